//! The chart in `deploy/helm`: what `leno install` prints, with values in place of options.
//!
//! It is written by the test that compares it (`UPDATE_EXPECT=1`), so that both say the same.

use expect_test::expect_file;
use leno_kubernetes::install::{Options, manifests};
use leno_model::TrustDomain;
use serde_json::{Value, json};

use crate::yaml;

/// What stands for each value in the manifests, and what a template has there.
const VALUES: &[(&str, &str)] = &[
    ("HELM_IMAGE", "{{ .Values.image | quote }}"),
    ("helm-namespace", "{{ .Release.Namespace }}"),
    ("helm-trust-domain", "{{ .Values.trustDomain | quote }}"),
    // The line of an argument, wherever it stands.
    (
        "        - \"--gateways\"\n",
        "        {{- if .Values.gateways }}\n        - \"--gateways\"\n        {{- end }}\n",
    ),
    ("replicas: 151719", "replicas: {{ .Values.replicas }}"),
];
/// What is there only sometimes, by its kind or name, and when.
const CONDITIONS: &[(&str, &str)] = &[
    ("PodDisruptionBudget", "gt (int .Values.replicas) 1"),
    ("leno-gateways", ".Values.gateways"),
    (
        "GatewayClass",
        "and .Values.gateways (.Capabilities.APIVersions.Has \"gateway.networking.k8s.io/v1/GatewayClass\")",
    ),
    ("MeshConfig", "ne .Values.trustDomain \"cluster.local\""),
];

fn chart() -> Vec<Value> {
    manifests(&Options {
        image: "HELM_IMAGE".to_owned(),
        namespace: "helm-namespace".to_owned(),
        replicas: 151_719,
        trust_domain: TrustDomain::new("helm-trust-domain").unwrap(),
        with_smi: false,
        cni: None,
        gateways: true,
    })
}

fn template(manifest: &Value) -> String {
    let mut manifest = manifest.clone();
    // Helm creates kinds that it does not know last, and the control plane looks for this one first.
    if manifest["kind"] == "MeshConfig" {
        manifest["metadata"]["annotations"] = json!({"helm.sh/hook": "pre-install"});
    }
    let mut text = yaml::stream(std::slice::from_ref(&manifest));
    for (mark, value) in VALUES {
        text = text.replace(mark, value);
    }
    let condition = CONDITIONS
        .iter()
        .find(|(mark, _)| manifest["kind"] == *mark || manifest["metadata"]["name"] == *mark);
    match condition {
        Some((_, condition)) => format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"),
        None => text,
    }
}

#[test]
fn the_chart_has_what_is_installed() {
    let is_kind = |it: &&Value| it["kind"] == "CustomResourceDefinition";
    let all = chart();
    let kinds: Vec<Value> = all.iter().filter(is_kind).cloned().collect();
    // Helm makes the namespace before it installs.
    let rest = all.iter().filter(|it| !is_kind(it) && it["kind"] != "Namespace");
    let templates: String = rest.map(template).collect();
    expect_file!["../../../../deploy/helm/leno/crds/leno.yaml"].assert_eq(&yaml::stream(&kinds));
    expect_file!["../../../../deploy/helm/leno/templates/leno.yaml"].assert_eq(&templates);
}

#[test]
fn the_chart_is_of_this_version() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/leno");
    let version = env!("CARGO_PKG_VERSION");
    let chart = std::fs::read_to_string(root.join("Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
    let values = std::fs::read_to_string(root.join("values.yaml")).unwrap();
    assert!(values.contains(&format!("\nimage: {}\n", super::IMAGE)), "{values}");
}
