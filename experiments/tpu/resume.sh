#!/usr/bin/env bash
# After preemption: takes away what is left of the machine, asks for it again, and once it stands installs and goes on.
#
#   resume.sh [--dry-run] experiments.decode --config configs/decode/smollm2_humaneval.py

# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

HERE=$(dirname "$0")
FLAG=()
if [[ -n $DRY_RUN ]]; then
    FLAG=(--dry-run)
fi
[[ $# -gt 0 ]] || fail "say what goes on, as in: resume.sh experiments.decode --config FILE"
needs_bucket

state() {
    gcloud compute tpus queued-resources describe "$TPU" "${PLACE[@]}" --format="value(state.state)"
}

bash "$HERE/delete.sh" "${FLAG[@]}" queued
bash "$HERE/create.sh" "${FLAG[@]}" spot
if [[ -z $DRY_RUN ]]; then
    until [[ $(state) == ACTIVE ]]; do
        [[ $(state) != FAILED ]] || fail "the queued resource $TPU has failed; see: gcloud compute tpus queued-resources describe"
        sleep 60
    done
fi
bash "$HERE/install.sh" "${FLAG[@]}"
bash "$HERE/run.sh" "${FLAG[@]}" "$@"
