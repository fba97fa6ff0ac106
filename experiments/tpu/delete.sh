#!/usr/bin/env bash
# Gives the machine back. What is not in the bucket is lost.
#
#   delete.sh [--dry-run] [vm | queued | spot]        (as it was asked for; default: vm)

OWN=1
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

case ${1:-vm} in
vm) call gcloud compute tpus tpu-vm delete "$TPU" "${PLACE[@]}" --quiet ;;
queued | spot) call gcloud compute tpus queued-resources delete "$TPU" "${PLACE[@]}" --quiet --force ;;
*) fail "delete.sh knows vm, queued and spot, not '$1'" ;;
esac
