#!/usr/bin/env bash
# Asks for a machine: at once, or by a queued resource that is filled when there is room. Ends when the machine stands.
#
#   create.sh [--dry-run] [vm | queued | spot | wait]
#
# The default is vm; spot is queued, cheaper, and may be taken away. Where a wait was broken off the request stays, and
# `create.sh wait` goes on with it. EVERY says how many seconds are between two looks (60).

OWN=1
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

EVERY=${EVERY:-60}

state() {
    call gcloud compute tpus queued-resources describe "$TPU" "${PLACE[@]}" --format="value(state.state)"
}

# A look may fail, not ten in a row.
wait_for_it() {
    if [[ -n $DRY_RUN ]]; then
        state
        return
    fi
    local now before='' missed=0
    until now=$(state) && [[ $now == ACTIVE ]]; do
        [[ -n $now ]] && missed=0 || missed=$((missed + 1))
        [[ $missed -lt 10 ]] || fail "the state of the queued resource $TPU cannot be read"
        [[ $now != FAILED && $now != SUSPENDED ]] \
            || fail "the queued resource $TPU is $now; delete.sh queued takes it away, and create.sh asks again"
        [[ $now == "$before" ]] || echo "the queued resource $TPU is ${now:-not to be seen}" >&2
        before=$now
        sleep "$EVERY"
    done
}

queue() {
    call gcloud compute tpus queued-resources create "$TPU" "${PLACE[@]}" --node-id="$TPU" \
        --accelerator-type="$TYPE" --runtime-version="$RUNTIME" "$@"
    wait_for_it
}

case ${1:-vm} in
vm) call gcloud compute tpus tpu-vm create "$TPU" "${PLACE[@]}" --accelerator-type="$TYPE" --version="$RUNTIME" ;;
queued) queue ;;
spot) queue --spot ;;
wait) wait_for_it ;;
*) fail "create.sh knows vm, queued, spot and wait, not '$1'" ;;
esac
