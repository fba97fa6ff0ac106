#!/usr/bin/env bash
# Brings results home: what the hosts have put into the bucket, and the end of every host's log.
#
#   fetch.sh [--dry-run] [FOLDER]        (default: runs)

# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

needs_bucket
everywhere "gcloud storage rsync --recursive --skip-if-dest-has-newer-mtime ~/sdjax/runs $BUCKET/runs"
call mkdir -p "${1:-runs}"
call gcloud storage rsync --recursive "$BUCKET/runs" "${1:-runs}"
everywhere "tail -n 20 ~/sdjax.log"
