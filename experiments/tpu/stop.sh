#!/usr/bin/env bash
# Ends the program that run.sh has started, on all hosts. Each is asked by SIGTERM, once: training saves a checkpoint and
# leaves with code 75. What was written goes to the bucket, and stop.sh waits for that. It kills what is not gone after
# PATIENCE seconds (120).
#
#   stop.sh [--dry-run]

OWN=0
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

PATIENCE=${PATIENCE:-120}
[[ $PATIENCE =~ ^[0-9]+$ ]] || fail "PATIENCE is '$PATIENCE'; it is a number of seconds"
everywhere "$(ended "$PATIENCE")"
