#!/usr/bin/env bash
# Brings results home: what the hosts have put into the bucket, and the end of every host's log. A machine that was taken
# away sends nothing more; what it had sent comes all the same. The target (models/) and the corpora stay in the bucket.
#
#   fetch.sh [--dry-run] [FOLDER]        (default: runs)

OWN=1
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

needs_bucket
everywhere "gcloud storage rsync --recursive --skip-if-dest-has-newer-mtime ~/sdjax/runs $BUCKET/runs" \
    || echo "the machine $TPU, or one of its hosts, sends nothing" >&2
call mkdir -p "${1:-runs}"
call gcloud storage rsync --recursive --exclude="^(models|corpora)/" "$BUCKET/runs" "${1:-runs}"
everywhere "tail -n 20 ~/sdjax.log" || echo "the machine $TPU, or one of its hosts, has no log" >&2
