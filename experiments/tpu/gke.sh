#!/usr/bin/env bash
# The same on GKE, by xpk (pip install xpk): a cluster with one slice of TYPE, and a program as a workload on it.
#
#   gke.sh [--dry-run] cluster
#   gke.sh [--dry-run] run experiments.decode --config configs/decode/smollm2_humaneval.py
#
# IMAGE is a container that holds this repository at /sdjax, installed there with its extras tpu and demo, etils[epath-gcs] and
# gcloud.
# WORKLOAD names what runs (default: TPU and the time). Nodes that are taken away are given back by the cluster, and the
# program goes on: RESTARTS says how often (100). What it says is for kubectl logs.

OWN=1 PROGRAM=1
# shellcheck source=experiments/tpu/common.sh
source "$(dirname "$0")/common.sh"

IMAGE=${IMAGE:-}
WORKLOAD=${WORKLOAD:-$TPU-$(date -u +%m%d-%H%M%S)}
RESTARTS=${RESTARTS:-100}
case ${1:-} in
cluster)
    [[ $# -eq 1 ]] || fail "gke.sh cluster takes no '$2'; gke.sh --help says what it takes"
    call xpk cluster create --cluster "$TPU" --tpu-type="$TYPE" --num-slices=1 "${PLACE[@]}" --spot
    ;;
run)
    shift
    [[ $# -gt 0 ]] || fail "say what to run, as in: gke.sh run experiments.decode --config FILE"
    [[ -n $IMAGE ]] || fail "set IMAGE to a container image that holds this repository"
    bucket_is_there
    printf -v line '%q' "$(contained "$(on_host /sdjax python "$@")")"
    call xpk workload create --cluster "$TPU" --workload "$WORKLOAD" --tpu-type="$TYPE" --num-slices=1 "${PLACE[@]}" \
        --max-restarts="$RESTARTS" --docker-image="$IMAGE" --command "bash -c $line"
    ;;
*) fail "gke.sh knows cluster and run, not '${1:-}'" ;;
esac
