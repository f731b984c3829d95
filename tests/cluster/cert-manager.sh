#!/usr/bin/env bash
# Installs the kinds of cert-manager from the module that its controllers are built with: cert-manager.sh KUBECONFIG
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$KC_HERE/../programs/cert-manager"
go mod download github.com/cert-manager/cert-manager
M=$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)
"$KC_BIN/kubectl" --kubeconfig="$1" apply --server-side -f "$M/deploy/crds" > /dev/null
