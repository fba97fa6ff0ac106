#!/usr/bin/env bash
# After preemption: takes away what is left of the machine, asks for it again, and once it stands installs and goes on.
#
#   resume.sh [--dry-run] experiments.decode --config configs/decode/smollm2_humaneval.py
#
# KIND says how the machine was asked for, and is again: vm, queued or spot (default).

OWN=0 PROGRAM=1
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

HERE=$(dirname "$0")
KIND=${KIND:-spot}
[[ $# -gt 0 ]] || fail "say what goes on, as in: resume.sh experiments.decode --config FILE"
needs_bucket
[[ $KIND =~ ^(vm|queued|spot)$ ]] || fail "KIND is '$KIND'; resume.sh knows vm, queued and spot"

beside() {
    bash "$HERE/$1" ${DRY_RUN:+--dry-run} "${@:2}"
}

beside delete.sh "$KIND" || echo "there was nothing to take away" >&2
beside create.sh "$KIND"
beside install.sh
beside run.sh "$@"
