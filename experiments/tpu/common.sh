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
# With --dry-run every script prints the exact commands and runs none; with --help it says what it does. A script sets, before
# it is read here, OWN: how many words it takes at most; and PROGRAM, where those of a program stand behind them.

set -euo pipefail

TPU=${TPU:-sdjax}
ZONE=${ZONE:-us-east5-b}
TYPE=${TYPE:-v6e-8}
RUNTIME=${RUNTIME:-v2-alpha-tpuv6e}
BUCKET=${BUCKET:-}
PROJECT=${PROJECT:-}

SCRIPT=$(basename "$0")

PLACE=(--zone="$ZONE")
if [[ -n $PROJECT ]]; then
    PLACE+=(--project="$PROJECT")
fi

fail() {
    echo "error: $*" >&2
    exit 2
}

# The comment that a script begins with, and the settings above.
help() {
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    printf '\nRead from the environment:\n\n'
    sed -n 's/^#\(   [A-Z].*\)/\1/p' "${BASH_SOURCE[0]}"
}

DRY_RUN=
words=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --dry-run) DRY_RUN=1 ;;
    -h | --help)
        help
        exit
        ;;
    -*) fail "$SCRIPT has no option '$1'; $SCRIPT --help says what it takes" ;;
    *)
        [[ ${#words[@]} -lt $OWN ]] || break
        words+=("$1")
        ;;
    esac
    shift
done
[[ $# -eq 0 || -n ${PROGRAM:-} ]] || fail "$SCRIPT takes no '$1'; $SCRIPT --help says what it takes"
for word; do
    [[ $word != --dry-run ]] || fail "--dry-run stands among the words of $1; it is for $SCRIPT, so put it before $1"
done
set -- ${words[@]+"${words[@]}"} "$@"

needs_bucket() {
    [[ $BUCKET =~ ^gs:(//[A-Za-z0-9._-]+)(/[A-Za-z0-9._=-]+)*$ ]] \
        || fail "BUCKET is '$BUCKET'; set it to gs://NAME or gs://NAME/FOLDER, with no slash at its end"
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

# What a program on a pod is told: that it is one of several, where compiled programs are kept, and to say things at once.
settings() {
    printf '%s' "SDJAX_POD=1 SDJAX_CACHE= JAX_COMPILATION_CACHE_DIR=$BUCKET/compiled PYTHONUNBUFFERED=1"
}

# Makes the folder in the bucket that hosts read from: once, for an object takes one write a second.
bucket_is_there() {
    needs_bucket
    call bash -c "echo | gcloud storage cp - $BUCKET/runs/.here"
}

# The line that runs a program on a host, in a folder, by a Python: on_host FOLDER PYTHON PROGRAM ...
# What was written comes from the bucket first and goes there every five minutes and at the end, so that a machine that is
# taken away takes little with it; without what is there, nothing starts. Hosts share no disk: each sends what it has written,
# and never an older copy of another's. SIGTERM, which all of its processes get, does not end the line: it waits for the
# program, which may have something to save, and sends that. The program is not in the background, for bash may lose the
# code of what it waits for when a signal comes. The line ends as the program did, and not with 0 where the last sending fails.
# How it ended is in ~/sdjax.code.
on_host() {
    local folder=$1 python=$2 words newer='gcloud storage rsync --recursive --skip-if-dest-has-newer-mtime'
    shift 2
    printf -v words '%q ' "$@"
    printf '%s' "trap : TERM; (cd $folder && mkdir -p runs && $newer $BUCKET/runs runs || exit 1; \
save() (trap '' TERM; $newer --no-user-output-enabled runs $BUCKET/runs); \
keep() { trap 'kill \$! 2> /dev/null; wait \$!; exit' TERM; while :; do sleep 300 & wait \$!; save; done; }; \
keep & keeper=\$!; trap : TERM; $(settings) $python -m ${words% }; code=\$?; \
kill \$keeper 2> /dev/null; wait \$keeper; save || [ \$code != 0 ] || code=1; exit \$code); echo \$? > ~/sdjax.code"
}

# The line that starts another on a host, for good: it goes on where the connection breaks. Its processes are the group named
# in ~/sdjax.pid, what they say is in ~/sdjax.log.
detached() {
    local line
    printf -v line '%q' "$1"
    printf '%s' "if [ -e ~/sdjax.pid ] && kill -0 -- -\$(cat ~/sdjax.pid) 2> /dev/null; then \
echo 'a program is running here: follow.sh shows it, stop.sh ends it' >&2; exit 1; fi; rm -f ~/sdjax.code; \
setsid nohup bash -c $line >> ~/sdjax.log 2>&1 < /dev/null & echo \$! > ~/sdjax.pid"
}

# The line that runs another in a container, where SIGTERM comes to one process: it hands it on to all.
contained() {
    local line
    printf -v line '%q' "$1"
    printf '%s' "rm -f ~/sdjax.code; setsid bash -c $line & group=\$!; trap 'kill -TERM -- -\$group' TERM; \
while kill -0 \$group 2> /dev/null; do wait \$group; done; exit \$(cat ~/sdjax.code)"
}

# The line that shows what the program on a host says, to its end, and ends as it did.
followed() {
    printf '%s' "[ -e ~/sdjax.pid ] || { echo 'no program was started here' >&2; exit 1; }; touch ~/sdjax.log; \
tail -n 20 -F --pid=\$(cat ~/sdjax.pid) ~/sdjax.log; exit \$(cat ~/sdjax.code)"
}

# The line that asks the program on a host to leave, once, and waits until all of it is gone: ended SECONDS
ended() {
    printf '%s' "group=\$(cat ~/sdjax.pid 2> /dev/null) && kill -TERM -- -\$group 2> /dev/null \
|| { echo 'no program is running here'; exit 0; }; \
for _ in \$(seq $1); do kill -0 -- -\$group 2> /dev/null \
|| { echo \"the program has ended, with code \$(cat ~/sdjax.code)\"; exit 0; }; sleep 1; done; \
echo 137 > ~/sdjax.code; kill -KILL -- -\$group; sleep 1; \
echo 'the program had not ended after $1 seconds, and was killed' >&2"
}
