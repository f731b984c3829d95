#!/usr/bin/env bash
# Brings a cluster up, installs the program into it, runs a command there and takes the cluster down:
# with.sh PROGRAM COMMAND…   COMMAND finds KUBECONFIG, and kubectl in its path.
# KC_KEEP=1 leaves the cluster for looking around; down.sh removes it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "$1"); shift
export KC_NODES=${KC_NODES:-2}   # one can be drained
. "$here/env.sh"
[ -n "${KC_KEEP:-}" ] || trap '"$here/down.sh"' EXIT
"$here/up.sh" > /dev/null
export KUBECONFIG=$KC_STATE/admin.conf PATH=$KC_BIN:$PATH LENO_IMAGE=$KC_IMAGE
"$here/gateway-api.sh"
kubectl apply -f "$here/manifests/smi.yaml" > /dev/null
"$here/image.sh" "$program" "$KC_STATE/leno.tar"
"$here/load.sh" "$KC_STATE/leno.tar"
"$program" install --image "$KC_IMAGE" --gateways --apply
"$@"
