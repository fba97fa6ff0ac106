#!/usr/bin/env bash
# Shows what the program that run.sh has started says, to its end, on all hosts.
#
#   follow.sh [--dry-run]

OWN=0
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

everywhere "$(followed)"
