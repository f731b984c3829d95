#!/usr/bin/env bash
# Measures the cost of many pods for a control plane, the speed of its injector, and the convergence time of changes, in a
# cluster with Leno that with.sh created: scale.sh [PODS]. Fails if the results exceed the limits in docs/scale.md.
# The pods are simulated (KWOK) and their sidecars do not connect, except for twenty real ones. `leno bench scale` has
# the costs of 1600 that do. CPU and memory are those of both control planes, from /proc.
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
