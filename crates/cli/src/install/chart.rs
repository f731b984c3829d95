//! The Helm chart in `deploy/helm`: the manifests of `leno install`, with chart values in place of options.
//!
//! The test that compares the chart also writes it (`UPDATE_EXPECT=1`), so that both agree.

use std::collections::BTreeSet;

use expect_test::expect_file;
use leno_kubernetes::install::{
    InstallOptions, NodeNetwork, installation_manifests, uninstall_hook,
};
use leno_model::{Name, TrustDomain};
use serde_json::{Value, json};

use crate::yaml;

/// The placeholder of each value in the manifests, and its template expression.
const VALUES: &[(&str, &str)] = &[
    ("HELM_IMAGE", "{{ .Values.image | quote }}"),
    ("helm-namespace", "{{ .Release.Namespace }}"),
    ("helm-trust-domain", "{{ .Values.trustDomain | quote }}"),
    ("HELM_BIN_DIR", "{{ .Values.cni.binDir | quote }}"),
    ("HELM_CONF_DIR", "{{ .Values.cni.confDir | quote }}"),
    // A line among the arguments, at any position.
    (
        "        - \"--cni\"\n",
        "        {{- if .Values.cni.enabled }}\n        - \"--cni\"\n        {{- end }}\n",
    ),
    (
        "        - \"--access-certs=helm-access-cert\"\n",
        "        {{- with .Values.accessCerts }}\n        - {{ join \",\" . | printf \"--access-certs=%s\" | quote }}\n        {{- end }}\n",
    ),
    (
        "        - \"--settings-namespaces=helm-settings\"\n",
        "        {{- with .Values.settingsNamespaces }}\n        - {{ join \",\" . | printf \"--settings-namespaces=%s\" | quote }}\n        {{- end }}\n",
    ),
    (
        "        - \"--jwks-allow=helm-jwks-allow\"\n",
        "        {{- with .Values.jwksAllow }}\n        - {{ join \",\" . | printf \"--jwks-allow=%s\" | quote }}\n        {{- end }}\n",
    ),
    (
        "        - \"--metrics-from=helm-metrics-from\"\n",
        "        {{- with .Values.metricsFrom }}\n        - {{ join \",\" . | printf \"--metrics-from=%s\" | quote }}\n        {{- end }}\n",
    ),
    (
        "        - \"--gateways\"\n",
        "        {{- if .Values.gateways }}\n        - \"--gateways\"\n        {{- end }}\n",
    ),
    ("replicas: 151719", "replicas: {{ .Values.replicas }}"),
    (
        "      maxUnavailable: 1\n      maxSurge: 1\n",
        "      maxUnavailable: {{ gt (int .Values.replicas) 1 | ternary 1 0 }}\n      maxSurge: 1\n",
    ),
    ("HELM_CLIENT_CA", "{{ .Values.webhookClientCa | quote }}"),
    (
        "        - \"--webhook-client-ca=/etc/leno/webhook-clients/ca.pem\"\n",
        "        {{- if .Values.webhookClientCa }}\n        - \"--webhook-client-ca=/etc/leno/webhook-clients/ca.pem\"\n        {{- end }}\n",
    ),
    (
        "        - name: webhook-clients\n          mountPath: /etc/leno/webhook-clients\n          readOnly: true\n",
        "        {{- if .Values.webhookClientCa }}\n        - name: webhook-clients\n          mountPath: /etc/leno/webhook-clients\n          readOnly: true\n        {{- end }}\n",
    ),
    (
        "      - name: webhook-clients\n        configMap:\n          name: leno-webhook-clients\n",
        "      {{- if .Values.webhookClientCa }}\n      - name: webhook-clients\n        configMap:\n          name: leno-webhook-clients\n      {{- end }}\n",
    ),
    (
        "    from:\n    - ipBlock:\n        cidr: \"192.0.2.151/32\"\n",
        "    {{- with .Values.apiServer }}\n    from:\n    {{- range . }}\n    - ipBlock:\n        cidr: {{ . | quote }}\n    {{- end }}\n    {{- end }}\n",
    ),
];
/// The placeholder for the namespaces with a right to write Secrets.
const ACCESS_CERT: &str = "helm-access-cert";
/// Conditional manifests, by kind or name, and their conditions.
const CONDITIONS: &[(&str, &str)] = &[
    ("PodDisruptionBudget", "gt (int .Values.replicas) 1"),
    ("leno-gateways", ".Values.gateways"),
    ("leno-cni", ".Values.cni.enabled"),
    ("leno-webhook-clients", ".Values.webhookClientCa"),
    ("NetworkPolicy", ".Values.networkPolicies"),
    (
        "GatewayClass",
        "and .Values.gateways (.Capabilities.APIVersions.Has \"gateway.networking.k8s.io/v1/GatewayClass\")",
    ),
    ("ValidatingAdmissionPolicy", HAS_POLICIES),
    ("ValidatingAdmissionPolicyBinding", HAS_POLICIES),
    (
        "MeshConfig",
        "and (ne .Values.trustDomain \"cluster.local\") (not .Values.settingsNamespaces)",
    ),
];
const HAS_POLICIES: &str =
    ".Capabilities.APIVersions.Has \"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy\"";
/// The annotation for resources that Helm keeps on uninstall: the node agents need them while they remove their
/// plugin, and deletion of a CRD deletes all objects of its kind.
const KEPT: &str = "helm.sh/resource-policy";

fn chart_manifests() -> Vec<Value> {
    let options = chart_options();
    let settings_namespaces = [Name::new("helm-settings").unwrap()].into();
    let named = installation_manifests(&InstallOptions { settings_namespaces, ..options.clone() });
    let control = named.into_iter().find(|it| it["kind"] == "Deployment").unwrap();
    // The control plane of one variant has a settings namespace; the template covers both, with a condition.
    let rest = installation_manifests(&options).into_iter();
    rest.map(|it| if it["kind"] == "Deployment" { control.clone() } else { it }).collect()
}

fn chart_options() -> InstallOptions {
    InstallOptions {
        image: "HELM_IMAGE".to_owned(),
        namespace: "helm-namespace".to_owned(),
        replicas: 151_719,
        trust_domain: TrustDomain::new("helm-trust-domain").unwrap(),
        with_smi: true,
        cni: Some(NodeNetwork {
            bin_dir: "HELM_BIN_DIR".to_owned(),
            conf_dir: "HELM_CONF_DIR".to_owned(),
        }),
        gateways: true,
        access_certs: [Name::new(ACCESS_CERT).unwrap()].into(),
        webhook_client_ca: Some("HELM_CLIENT_CA".to_owned()),
        network_policies: true,
        api_server: ["192.0.2.151/32".parse().unwrap()].into(),
        settings_namespaces: BTreeSet::new(),
        jwks_allow: Some("helm-jwks-allow".to_owned()),
        metrics_from: Some("helm-metrics-from".to_owned()),
    }
}

fn render_template(manifest: &Value) -> String {
    let mut manifest = manifest.clone();
    let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
    // Helm creates unknown kinds last, but the control plane reads this object at startup.
    if manifest["kind"] == "MeshConfig" {
        manifest["metadata"]["annotations"] = json!({"helm.sh/hook": "pre-install"});
    }
    let is_kind = is_kind(&manifest);
    if is_kind || name == "leno-cni" && manifest["kind"] != "DaemonSet" {
        manifest["metadata"]["annotations"] = json!({KEPT: "keep"});
    }
    let mut text = yaml::write_documents(std::slice::from_ref(&manifest));
    if ["Deployment", "Job"].iter().any(|kind| manifest["kind"] == *kind) {
        text = add_scheduling(&text, &manifest);
    }
    if manifest["kind"] == "Deployment" {
        text = with_resources(&text, &manifest);
    }
    for (mark, value) in VALUES {
        text = text.replace(mark, value);
    }
    if is_kind {
        return skip_if_foreign(&name, &text);
    }
    if manifest["metadata"]["namespace"] == ACCESS_CERT {
        return for_each_namespace(&text);
    }
    let condition = CONDITIONS.iter().find(|(mark, _)| manifest["kind"] == *mark || name == *mark);
    match condition {
        Some((_, condition)) => format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"),
        None => text,
    }
}

/// Adds the operator's image pull secrets, node selector and tolerations to a pod template.
fn add_scheduling(text: &str, manifest: &Value) -> String {
    let of_pod = |key: &str| {
        let (key, value) = (key, format!(".Values.{key}"));
        format!(
            "      {{{{- with {value} }}}}\n      {key}:\n      {{{{- toYaml . | nindent 8 }}}}\n      {{{{- end }}}}\n"
        )
    };
    let all: String = ["imagePullSecrets", "nodeSelector", "tolerations"].map(of_pod).concat();
    let account = &manifest["spec"]["template"]["spec"]["serviceAccountName"];
    let account = format!("      serviceAccountName: {}\n", account.as_str().unwrap());
    assert_eq!(text.matches(&account).count(), 1, "{text}");
    text.replace(&account, &format!("{account}{all}"))
}

/// Adds the operator's resources to the control plane.
fn with_resources(text: &str, manifest: &Value) -> String {
    let own = &manifest["spec"]["template"]["spec"]["containers"][0]["resources"];
    assert_eq!(text.matches("        resources:\n").count(), 1, "{text}");
    let (before, rest) = text.split_once("        resources:\n").unwrap();
    let is_within = |line: &&str| line.starts_with("          ");
    let within: Vec<&str> = rest.lines().take_while(is_within).collect();
    let length: usize = within.iter().map(|line| line.len() + 1).sum();
    assert!(own["limits"]["memory"].is_string(), "the default is in values.yaml: {own}");
    format!(
        "{before}        resources:\n          {{{{- toYaml .Values.resources | nindent 10 }}}}\n{}",
        &rest[length..]
    )
}

/// Repeats a manifest for each listed namespace.
fn for_each_namespace(text: &str) -> String {
    assert_eq!(text.matches(ACCESS_CERT).count(), 1, "{text}");
    let text = text.replace(ACCESS_CERT, "{{ . | quote }}").replace("{{ .Release", "{{ $.Release");
    let refusal =
        "accessCerts: the namespace of the release has the CA of the mesh; use other namespaces";
    format!(
        "{{{{- range .Values.accessCerts }}}}\n{{{{- if eq . $.Release.Namespace }}}}\n\
         {{{{- fail \"{refusal}\" }}}}\n{{{{- end }}}}\n{text}{{{{- end }}}}\n"
    )
}

/// Wraps a CRD that another mesh may have installed, and that then stays unchanged.
fn skip_if_foreign(name: &str, text: &str) -> String {
    let kind = "\"apiextensions.k8s.io/v1\" \"CustomResourceDefinition\" \"\"";
    let ours = "dig \"metadata\" \"labels\" \"app.kubernetes.io/part-of\" \"\" $found";
    format!(
        "{{{{- if .Values.withSmi }}}}\n{{{{- $found := lookup {kind} \"{name}\" }}}}\n\
         {{{{- if or (not $found) (eq ({ours}) \"leno\") }}}}\n{text}{{{{- end }}}}\n{{{{- end }}}}\n"
    )
}

fn is_kind(manifest: &Value) -> bool {
    manifest["kind"] == "CustomResourceDefinition"
}

fn is_own_kind(manifest: &Value) -> bool {
    is_kind(manifest) && manifest["spec"]["group"] == "leno.dev"
}

#[test]
fn the_chart_equals_the_installed_manifests() {
    let all = chart_manifests();
    let kinds: Vec<Value> = all.iter().filter(|it| is_own_kind(it)).cloned().collect();
    // Helm creates the namespace before the installation.
    let is_made =
        |it: &Value| it["kind"] == "Namespace" && it["metadata"]["name"] == "helm-namespace";
    let rest = all.iter().filter(|it| !is_own_kind(it) && !is_made(it));
    let hook = uninstall_hook(&chart_options());
    let templates: String = rest.chain(&hook).map(render_template).collect();
    expect_file!["../../../../deploy/helm/leno/crds/leno.yaml"]
        .assert_eq(&yaml::write_documents(&kinds));
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

/// Each value is in the defaults file, in the schema, and in the documented table.
#[test]
fn values_are_documented_and_bounded() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let schema: Value = serde_json::from_str(&read("deploy/helm/leno/values.schema.json")).unwrap();
    let mut known: Vec<&str> =
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    known.sort_unstable();
    assert_eq!(schema["additionalProperties"], false);
    let values = read("deploy/helm/leno/values.yaml");
    let is_key = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
    let mut written: Vec<&str> =
        values.lines().filter(is_key).map(|line| line.split(':').next().unwrap()).collect();
    written.sort_unstable();
    assert_eq!(written, known);
    let all = chart_manifests();
    let control = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
    let own = &control["spec"]["template"]["spec"]["containers"][0]["resources"];
    for (kind, amounts) in own.as_object().unwrap() {
        for (resource, amount) in amounts.as_object().unwrap() {
            let amount = amount.as_str().unwrap();
            let part = values.split(&format!("  {kind}:\n")).nth(1).unwrap();
            assert!(part.contains(&format!("    {resource}: {amount}\n")), "{kind} of {resource}");
        }
    }
    let page = read("docs/kubernetes.md");
    for key in known {
        assert!(page.contains(&format!("\n| `{key}` |")), "{key} is missing in docs/kubernetes.md");
    }
    let used = read("deploy/helm/leno/templates/leno.yaml");
    for line in used.lines().filter(|line| line.contains(".Values.")) {
        let key = line.split(".Values.").nth(1).unwrap();
        let end = key.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(key.len());
        assert!(written.contains(&&key[..end]), "{line}");
    }
}
