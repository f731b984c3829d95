#!/usr/bin/env bash
# Runs the scenarios in a cluster that with.sh created: scenarios.sh PROGRAM
# First with the defaults of `leno install`, as in the README, then with gateways, then with network plugins that
# redirect connections to sidecars, then without Leno again (no file of it may be left on the nodes), and at the end by Helm.
set -euo pipefail
. "$(dirname "$0")/env.sh"
# Prints the time, so that the log shows the duration of each group. A group without tests is an error.
run() {
  local log; log=$(mktemp)
  date -u +"%T: $*" >&2
  cargo test --locked --workspace --test "$1" -- --ignored --nocapture "${@:2}" | tee "$log"
  if grep -q '^test result: ok\. 0 passed' "$log"; then echo "no test matches $*" >&2; exit 1; fi
  rm "$log"
}
# Before anything is in the mesh.
run kubernetes empty::
run kubernetes --test-threads 4 --skip by_plugin --skip alone:: --skip gateways:: --skip empty::
# IngressBackends open ports in each installation: the defaults (above), gateways, and Helm (below).
ingress=(policies::an_ingress_backend ingress_backends::)
"$1" install --image "$KC_IMAGE" --gateways --apply
run kubernetes --test-threads 4 gateways:: "${ingress[@]}"
# These start API servers of their own. They run in parallel with the following groups, which wait for pods most of the
# time. The scenarios with cert-manager are another target of ./test, which builds it.
api_server_log=$KC_STATE/api_server.log
run api_server --test-threads 2 --skip issuer:: > "$api_server_log" 2>&1 & api_server=$!
trap wait EXIT
# These disturb the whole cluster: one after the other.
run kubernetes --test-threads 1 alone::
"$1" install --image "$KC_IMAGE" --cni --apply
kubectl -n leno-cni rollout status daemonset/leno-cni --timeout=120s
run kubernetes --test-threads 4 by_plugin connectivity
"$1" uninstall --purge --apply
if grep -rl leno "$KC_STATE"/n*/opt/cni/bin "$KC_STATE"/n*/etc/cni/net.d; then
  echo "the network of a node still knows Leno" >&2; exit 1
fi
chart=$KC_HERE/../../deploy/helm/leno
helm() { "$KC_HERE/helm.sh" "$@"; }
kubectl apply -f "$KC_HERE/manifests/smi.yaml" > /dev/null
helm install leno "$chart" --namespace leno-system --create-namespace --set "image=$KC_IMAGE" --wait
run kubernetes --test-threads 4 connectivity "${ingress[@]}"
# Another installation by values: the chart rejects unknown values and wrong types, and accepts the others.
for wrong in replicas=none gatways=true cni.enabled=perhaps accessCerts=all; do
  if helm template leno "$chart" --set "$wrong" > /dev/null 2>&1; then
    echo "the chart takes $wrong" >&2; exit 1
  fi
done
kubectl create namespace external > /dev/null
helm upgrade leno "$chart" --namespace leno-system --reuse-values --set gateways=true,withSmi=true,replicas=1 \
  --set 'accessCerts={external}' --set 'tolerations[0].operator=Exists' --set-string 'nodeSelector.kubernetes\.io/os=linux' --wait
kubectl get gatewayclass/leno clusterrole/leno-gateways > /dev/null
kubectl -n external get roles -o name | grep leno > /dev/null
[ "$(kubectl -n leno-system get deployment leno-control -o 'jsonpath={.status.replicas} {.spec.template.spec.tolerations[0].operator}')" = "1 Exists" ]
"$1" check --kubernetes
run kubernetes connectivity
kubectl apply -f "$KC_HERE/manifests/policy.yaml" > /dev/null
accepted='jsonpath={.status.conditions[?(@.type=="Accepted")].status}'
kubectl -n external wait ratelimit/of-a-release "--for=$accepted=True" --timeout=60s
helm uninstall leno --namespace leno-system --wait
# No status claims an effect, and the hook leaves nothing.
[ "$(kubectl -n external get ratelimit/of-a-release -o "$accepted")" = Unknown ]
for left in lease/leno-control job/leno-uninstall serviceaccount/leno-uninstall clusterrole/leno-uninstall; do
  if kubectl -n leno-system get "$left" > /dev/null 2>&1; then
    echo "$left is left after helm uninstall" >&2; exit 1
  fi
done
wait "$api_server" && passed=0 || passed=$?
cat "$api_server_log"
exit "$passed"
