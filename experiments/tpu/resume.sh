#!/usr/bin/env bash
# After preemption: takes away what is left of the machine, asks for it again, and once it stands installs and goes on.
#
#   resume.sh [--dry-run] experiments.decode --config configs/decode/smollm2_humaneval.py
#
# KIND says how the machine was asked for, and is again: vm, queued or spot (default).

# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

HERE=$(dirname "$0")
KIND=${KIND:-spot}
[[ $# -gt 0 ]] || fail "say what goes on, as in: resume.sh experiments.decode --config FILE"
needs_bucket
case $KIND in
vm) MADE_AS=vm ;;
queued | spot) MADE_AS=queued ;;
*) fail "KIND is '$KIND'; resume.sh knows vm, queued and spot" ;;
esac

beside() {
    bash "$HERE/$1" ${DRY_RUN:+--dry-run} "${@:2}"
}

state() {
    gcloud compute tpus queued-resources describe "$TPU" "${PLACE[@]}" --format="value(state.state)"
}

beside delete.sh "$MADE_AS" || echo "there was nothing to take away" >&2
beside create.sh "$KIND"
if [[ -z $DRY_RUN && $KIND != vm ]]; then
    until [[ $(state) == ACTIVE ]]; do
        [[ $(state) != FAILED ]] || fail "the queued resource $TPU has failed; see: gcloud compute tpus queued-resources describe"
        sleep 60
    done
fi
beside install.sh
beside run.sh "$@"
