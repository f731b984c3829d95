#!/usr/bin/env bash
# Installs the kinds of the Gateway API, experimental ones too, from the module that the conformance
# suite is built with: gateway-api.sh [KUBECONFIG]
set -euo pipefail
. "$(dirname "$0")/env.sh"
export GOTOOLCHAIN=$KC_SUITE_GO
[ $# = 0 ] || KUBECTL="$KC_BIN/kubectl --kubeconfig=$1"
cd "$KC_HERE/tools/conformance"
go mod download sigs.k8s.io/gateway-api
M=$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)
for f in "$M"/config/crd/experimental/gateway*.yaml; do $KUBECTL apply --server-side -f "$f" > /dev/null; done
