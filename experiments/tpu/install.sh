#!/usr/bin/env bash
# Copies the commit that is checked out to every host and installs it there with the pinned versions and libtpu. It can be run
# again, for another commit or where it failed.
#
#   install.sh [--dry-run]

OWN=0
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PACKED=$(mktemp)  # not a name that another installation may be writing to
trap 'rm -f "$PACKED"' EXIT
call git -C "$ROOT" archive --format=tar.gz --output="$PACKED" HEAD
call gcloud compute tpus tpu-vm scp "$PACKED" "$TPU:sdjax.tar.gz" "${PLACE[@]}" --worker=all
# What the last commit brought and this one lacks goes: Python would still import it. Each session may have another locale.
everywhere "mkdir -p ~/sdjax && cd ~/sdjax && tar -xzf ~/sdjax.tar.gz && touch .installed \
&& tar -tzf ~/sdjax.tar.gz | grep -v '/\$' | LC_ALL=C sort > .unpacked \
&& LC_ALL=C sort .installed | LC_ALL=C comm -23 - .unpacked | xargs -r -d '\\n' rm -f && mv .unpacked .installed"
# The images' own Python may be older than 3.11, for which the pinned versions are those that were tested ahead of time. An
# environment that has its pip is kept; what is left of one that was not finished goes.
everywhere "cd ~/sdjax && { .venv/bin/python -m pip --version > /dev/null 2>&1 || { rm -rf .venv \
&& python3 -m pip install -q --user uv && python3 -m uv venv -q --seed --python 3.11 .venv; }; } \
&& .venv/bin/python -m pip install -q --no-deps -r requirements.lock \
&& .venv/bin/python -m pip install -q -c requirements.lock -e '.[tpu]' 'etils[epath-gcs]'"
everywhere "cd ~/sdjax && SDJAX_POD=1 .venv/bin/python -c \
'from sdjax.mesh.start import join_pod; join_pod(); import jax; print(jax.devices())'"
