#!/usr/bin/env bash
# What many pods cost a control plane, how fast its injector is, and how fast changes reach sidecars among so many, in a
# cluster with Leno that with.sh brought up: scale.sh [PODS]. Fails when it is more than docs/scale.md promises.
# The pods are simulated (KWOK), and none of their sidecars connects; but for twenty real ones. `leno bench scale` has
# the costs of 1600 that do. CPU and memory are of the processes of both control planes, of /proc.
set -euo pipefail
. "$(dirname "$0")/env.sh"
pods=${1:-1600}
there() { python3 "$KC_HERE/cost.py" there "$pods" && python3 "$KC_HERE/convergence.py" 20 30; }
export -f there; export pods KC_HERE
export KWOK_LABELS=leno.dev/injection=enabled KWOK_THEN=there
python3 "$KC_HERE/cost.py" before 0
"$KC_HERE/kwok-scale.sh" "$pods"
python3 "$KC_HERE/cost.py" after 0
python3 "$KC_HERE/cost.py" injector
