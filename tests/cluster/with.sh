#!/usr/bin/env bash
# Creates a cluster, installs the program, runs a command and removes the cluster:
# with.sh PROGRAM COMMAND…   COMMAND finds KUBECONFIG, and kubectl in its path.
# KC_KEEP=1 keeps the cluster for inspection; down.sh removes it. Otherwise the script checks at the end that the
# cluster has left no traces on the machine, and fails if it has.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "$1"); shift
export KC_NODES=${KC_NODES:-2}   # one can be drained
. "$here/env.sh"
before=$("$here/traces.sh")
leave() {
  local status=$? left
  "$here/down.sh"
  left=$("$here/traces.sh" gone <<< "$before")
  if [ -n "$left" ]; then
    printf 'the cluster is down, and this of it is left:\n%s\n' "$left" >&2
    [ "$status" != 0 ] || status=1
  else
    echo "machine clean: no process, mount, namespace, link, route, table, cgroup or file of the cluster is left"
  fi
  exit "$status"
}
[ -n "${KC_KEEP:-}" ] || trap leave EXIT
"$here/up.sh" > /dev/null
export KUBECONFIG=$KC_STATE/admin.conf PATH=$KC_BIN:$PATH LENO_IMAGE=$KC_IMAGE LENO_IMAGE_NEXT=$KC_IMAGE_NEXT
"$here/gateway-api.sh"
kubectl apply -f "$here/manifests/smi.yaml" > /dev/null
"$here/image.sh" "$program" "$KC_STATE/leno.tar"
"$here/load.sh" "$KC_STATE/leno.tar"
# KC_INSTALL replaces the option: an empty value installs with the defaults, as in the README.
# shellcheck disable=SC2086 # It has several options, or none.
"$program" install --image "$KC_IMAGE" ${KC_INSTALL---gateways} --apply
"$@"
