#!/usr/bin/env bash
# Runs the scenarios in a cluster that with.sh brought up: scenarios.sh PROGRAM
# First as Leno is installed by default, then with network plugins that lead connections to sidecars,
# then without Leno again (nothing of it may be left on the nodes), and at the end by Helm.
set -euo pipefail
. "$(dirname "$0")/env.sh"
run() { cargo test --locked --workspace --test "$1" -- --ignored --nocapture "${@:2}"; }
run api_server --test-threads 2
run kubernetes --test-threads 4 --skip by_plugin --skip alone::
# These trouble everything in the cluster, and have it for themselves.
run kubernetes --test-threads 1 alone::
"$1" install --image "$KC_IMAGE" --cni --apply
kubectl -n leno-cni rollout status daemonset/leno-cni --timeout=120s
run kubernetes --test-threads 4 by_plugin connectivity
"$1" uninstall --purge --apply
if grep -rl leno "$KC_STATE"/n*/opt/cni/bin "$KC_STATE"/n*/etc/cni/net.d; then
  echo "the network of a node still knows Leno" >&2; exit 1
fi
"$KC_HERE/helm.sh" install leno "$KC_HERE/../../deploy/helm/leno" --namespace leno-system \
  --create-namespace --set "image=$KC_IMAGE" --wait
run kubernetes connectivity
"$KC_HERE/helm.sh" uninstall leno --namespace leno-system --wait
