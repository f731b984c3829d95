#!/usr/bin/env bash
# Runs the Gateway API conformance suite for meshes against the cluster of $KUBECONFIG and writes its
# report: conformance.sh OUT.yaml [FLAG OF THE SUITE…]
set -euo pipefail
. "$(dirname "$0")/env.sh"
out=$(realpath -m "$1"); shift
mkdir -p "$(dirname "$out")"
suite=$("$KC_HERE/conformance-build.sh")
"$KC_HERE/load.sh" "$suite"/echo-*.tar
"$KC_HERE/gateway-api.sh"
cd "$suite"
features=Mesh,HTTPRoute,GRPCRoute
for extended in NamedRouteRule QueryParamMatching RedirectPath RedirectPort RewritePath SchemeRedirect; do
  features+=,MeshHTTPRoute$extended
done
./conformance.test -test.run TestConformance -test.v -test.timeout 40m \
  -conformance-profiles=MESH-HTTP,MESH-GRPC -namespace-labels=leno.dev/injection=enabled \
  -supported-features="$features" \
  -organization=leno -project=leno -url=https://leno.dev -version="$(git -C "$KC_HERE" describe --always)" -contact=@leno \
  -report-output="$out" "$@"
