#!/usr/bin/env bash
# Ends the program that run.sh has started, on all hosts. What it had written is sent to the bucket by fetch.sh.
#
#   stop.sh [--dry-run]

# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

everywhere "kill -- -\$(cat ~/sdjax.pid)"
