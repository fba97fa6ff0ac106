#!/usr/bin/env bash
# Runs a program on all hosts at once: each reads its own part of the data, the first one prints and writes.
#
#   run.sh [--dry-run] experiments.decode --config configs/decode/smollm2_humaneval.py
#
# What it says is shown to its end. Where the connection breaks it goes on: follow.sh shows it again, stop.sh ends it.
# Programs note what they have done: the same line again goes on where it was stopped.

OWN=0 PROGRAM=1
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

[[ $# -gt 0 ]] || fail "say what to run, as in: run.sh experiments.decode --config FILE"
bucket_is_there
everywhere "$(detached "$(on_host \~/sdjax .venv/bin/python "$@")"); $(followed)"
