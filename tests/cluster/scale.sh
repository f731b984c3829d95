#!/usr/bin/env bash
# What many pods cost a control plane, and how fast its injector is, in a cluster with Leno that
# with.sh brought up: scale.sh [PODS]
# The pods are simulated (KWOK), and none of their sidecars connects; `leno bench` has the costs of
# those. CPU and memory are of the processes of both control planes, of /proc.
set -euo pipefail
. "$(dirname "$0")/env.sh"
pods=${1:-1600}
export KWOK_LABELS=leno.dev/injection=enabled KWOK_THEN="python3 $KC_HERE/cost.py there $pods"
python3 "$KC_HERE/cost.py" before 0
"$KC_HERE/kwok-scale.sh" "$pods"
python3 "$KC_HERE/cost.py" after 0
python3 "$KC_HERE/cost.py" injector
