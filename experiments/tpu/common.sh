#!/usr/bin/env bash
# Sourced by the scripts beside it: what they are told by the environment, and how they run a command.
#
#   TPU      a name for the machine            (sdjax)
#   ZONE     where it stands                   (us-east5-b)
#   TYPE     accelerator type                  (v6e-8)
#   RUNTIME  software of its VMs               (v2-alpha-tpuv6e; v2-alpha-tpuv5 for v5p, v2-alpha-tpuv5-lite for v5e)
#   BUCKET   gs://… for data, checkpoints, results and compiled programs
#   PROJECT  (gcloud's own default)
#
# With --dry-run every script prints the exact commands and runs none.

set -euo pipefail

TPU=${TPU:-sdjax}
ZONE=${ZONE:-us-east5-b}
TYPE=${TYPE:-v6e-8}
RUNTIME=${RUNTIME:-v2-alpha-tpuv6e}
BUCKET=${BUCKET:-}
PROJECT=${PROJECT:-}

DRY_RUN=
if [[ ${1:-} == --dry-run ]]; then
    DRY_RUN=1
    shift
fi

PLACE=(--zone="$ZONE")
if [[ -n $PROJECT ]]; then
    PLACE+=(--project="$PROJECT")
fi

fail() {
    echo "error: $*" >&2
    exit 2
}

needs_bucket() {
    [[ $BUCKET == gs://* ]] || fail "BUCKET is '$BUCKET'; set it to a gs:// path for checkpoints and results"
}

# Runs a command, or prints it so that it can be pasted.
call() {
    if [[ -n $DRY_RUN ]]; then
        printf '%q ' "$@"
        printf '\n'
    else
        "$@"
    fi
}

# Runs a shell line on every host of the machine.
everywhere() {
    call gcloud compute tpus tpu-vm ssh "$TPU" "${PLACE[@]}" --worker=all --command="$1"
}

# What a program on a pod is told: that it is one of several, and where compiled programs are kept.
settings() {
    printf '%s' "SDJAX_POD=1 SDJAX_CACHE= JAX_COMPILATION_CACHE_DIR=$BUCKET/compiled"
}

# Makes the folder in the bucket that hosts read from: once, for an object takes one write a second.
bucket_is_there() {
    needs_bucket
    call bash -c "echo | gcloud storage cp - $BUCKET/runs/.here"
}

# The line that runs a program on a host, in a folder, by a Python: on_host FOLDER PYTHON PROGRAM ...
# What was written comes from the bucket first and goes there every five minutes and at the end, so that a machine that is
# taken away takes little with it; without what is there, nothing starts. Hosts share no disk: each sends what it has written,
# and never an older copy of another's.
on_host() {
    local folder=$1 python=$2 words
    shift 2
    printf -v words '%q ' "$@"
    printf '%s' "cd $folder && mkdir -p runs && gcloud storage rsync --recursive --skip-if-dest-has-newer-mtime $BUCKET/runs runs || exit 1; \
save() { gcloud storage rsync --recursive --skip-if-dest-has-newer-mtime runs $BUCKET/runs; }; \
(while sleep 300; do save; done) & keeper=\$!; set -o pipefail; \
$(settings) $python -m ${words% } 2>&1 | tee -a ~/sdjax.log; code=\$?; kill \$keeper; save; exit \$code"
}

# The line that starts another on a host, for good: it goes on where the connection breaks. Its process is in ~/sdjax.pid, how
# it ended in ~/sdjax.code.
detached() {
    local line
    printf -v line '%q' "($1); echo \$? > ~/sdjax.code"
    printf '%s' "if [ -e ~/sdjax.pid ] && kill -0 \$(cat ~/sdjax.pid) 2>/dev/null; then \
echo 'a program is running here: follow.sh shows it, stop.sh ends it' >&2; exit 1; fi; rm -f ~/sdjax.code; touch ~/sdjax.log; \
setsid nohup bash -c $line > /dev/null 2>&1 < /dev/null & echo \$! > ~/sdjax.pid"
}

# The line that shows what the program on a host says, to its end, and ends as it did.
followed() {
    printf '%s' "tail -n 20 -F --pid=\$(cat ~/sdjax.pid) ~/sdjax.log; exit \$(cat ~/sdjax.code)"
}
