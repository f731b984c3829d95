#!/usr/bin/env bash
# Runs the Gateway API conformance suite for meshes or for gateways against the cluster of $KUBECONFIG
# and writes its report: conformance.sh mesh|gateway OUT.yaml [FLAG OF THE SUITE…]
# The features of gateways are those of the GatewayClass, unless flags set others
# (-supported-features=…, or -run-test=NAME for one test).
set -euo pipefail
. "$(dirname "$0")/env.sh"
part=$1; out=$(realpath -m "$2"); shift 2
mkdir -p "$(dirname "$out")"
suite=$("$KC_HERE/conformance-build.sh")
"$KC_HERE/load.sh" "$suite"/echo-*.tar
"$KC_HERE/gateway-api.sh"
cd "$suite"
case $part in
mesh)
  features=Mesh,HTTPRoute,GRPCRoute
  features+=,MeshConsumerRoute,MeshClusterIPMatching,HTTPRouteResponseHeaderModification
  for status in 303 307 308; do features+=,HTTPRoute${status}RedirectStatusCode; done
  for extended in BackendRequestHeaderModification NamedRouteRule QueryParamMatching RedirectPath RedirectPort \
    RewritePath SchemeRedirect; do
    features+=,MeshHTTPRoute$extended
  done
  flags=(-conformance-profiles=MESH-HTTP,MESH-GRPC -namespace-labels=leno.dev/injection=enabled
    -supported-features="$features") ;;
gateway)
  # `leno install` omits the class while its CRD is not installed.
  $KUBECTL apply --server-side -f - > /dev/null <<Y
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: leno}
spec: {controllerName: leno.dev/gateway-controller}
Y
  $KUBECTL wait --for=condition=Accepted --timeout=60s gatewayclass/leno > /dev/null
  # Gateways get the addresses of load balancers, which this machine reaches through the first node.
  flags=(-conformance-profiles=GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS -gateway-class=leno) ;;
*) echo "conformance.sh: '$part' is neither mesh nor gateway" >&2; exit 2 ;;
esac
./conformance.test -test.run TestConformance -test.v -test.timeout 60m "${flags[@]}" \
  -organization=leno -project=leno -url=https://leno.dev -version="$(git -C "$KC_HERE" describe --always)" -contact=@leno \
  -report-output="$out" "$@"
