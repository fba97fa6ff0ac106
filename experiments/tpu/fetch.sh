#!/usr/bin/env bash
# Brings results home: what the hosts have put into the bucket, and the end of every host's log. A machine that was taken
# away sends nothing more; what it had sent comes all the same.
#
#   fetch.sh [--dry-run] [FOLDER]        (default: runs)

# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

needs_bucket
everywhere "gcloud storage rsync --recursive --skip-if-dest-has-newer-mtime ~/sdjax/runs $BUCKET/runs" \
    || echo "the machine $TPU sends nothing" >&2
call mkdir -p "${1:-runs}"
call gcloud storage rsync --recursive "$BUCKET/runs" "${1:-runs}"
everywhere "tail -n 20 ~/sdjax.log" || echo "the machine $TPU has no log" >&2
