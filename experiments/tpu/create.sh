#!/usr/bin/env bash
# Asks for a machine: at once, or by a queued resource that is filled when there is room.
#
#   create.sh [--dry-run] [vm | queued | spot]        (default: vm; spot is queued, cheaper, and may be taken away)

# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

queue() {
    call gcloud compute tpus queued-resources create "$TPU" "${PLACE[@]}" --node-id="$TPU" \
        --accelerator-type="$TYPE" --runtime-version="$RUNTIME" "$@"
    call gcloud compute tpus queued-resources describe "$TPU" "${PLACE[@]}" --format="value(state.state)"
}

case ${1:-vm} in
vm) call gcloud compute tpus tpu-vm create "$TPU" "${PLACE[@]}" --accelerator-type="$TYPE" --version="$RUNTIME" ;;
queued) queue ;;
spot) queue --spot ;;
*) fail "create.sh knows vm, queued and spot, not '$1'" ;;
esac
