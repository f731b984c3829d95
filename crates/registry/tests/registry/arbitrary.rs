//! Tests that reading any file content ends without a panic.

use proptest::prelude::*;

use crate::manifest::check_manifest;

const FRAGMENTS: &[&str] = &[
    "apiVersion: leno.dev/v1alpha1\n",
    "apiVersion: gateway.networking.k8s.io/v1\n",
    "apiVersion: access.smi-spec.io/v1alpha3\n",
    "apiVersion: specs.smi-spec.io/v1alpha4\n",
    "apiVersion: v1\n",
    "kind: Workload\n",
    "kind: Service\n",
    "kind: HTTPRoute\n",
    "kind: TrafficTarget\n",
    "kind: HTTPRouteGroup\n",
    "kind: TCPRoute\n",
    "kind: MeshConfig\n",
    "metadata: {name: a}\n",
    "metadata: {name: ä, namespace: [1]}\n",
    "spec:\n",
    "  ports: [{port: 1, name: x}]\n",
    "  ports: [70000, ~, {port: -1}]\n",
    "  rules: [{matches: [{path: {value: /%f}}], timeouts: {request: 99999h99999h}}]\n",
    "  parentRefs: [{kind: Service, name: b}, 0]\n",
    "  matches: [{name: m, pathRegex: '(', headers: [{a: b}, c]}]\n",
    "  matches: {ports: [0x10, 0o7, .inf]}\n",
    "  destination: {kind: ServiceAccount, name: a, namespace: default}\n",
    "  outbound: [{service: a.b.c, port: 1, listen: ':0'}]\n",
    "  &a ? [x]: *a\n",
    "  <<: *a\n",
    "---\n",
    "...\n",
    "- [",
    "}",
    "\"",
    "| \n",
    "\t",
    "%YAML 1.2\n",
    "!!str ",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_accepted_or_rejected(text in ".{0,400}") {
        check_manifest(text.as_bytes());
    }

    #[test]
    fn any_mixture_of_fragments_is_accepted_or_rejected(
        fragments in prop::collection::vec(prop::sample::select(FRAGMENTS), 0..24)
    ) {
        check_manifest(fragments.concat().as_bytes());
    }
}
