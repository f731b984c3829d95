//! Generates the Helm chart in `deploy/helm` from the manifests of `leno install`, with chart values in place of
//! options.
//!
//! A test compares the chart with the generated one, and writes the chart with `UPDATE_EXPECT=1`.

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
/// The placeholder for the namespaces in which the control plane may write Secrets.
const ACCESS_CERT: &str = "helm-access-cert";
/// The template condition of each manifest with this kind or name.
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
/// The condition for clusters with ValidatingAdmissionPolicies.
const HAS_POLICIES: &str =
    ".Capabilities.APIVersions.Has \"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy\"";
/// The annotation for resources that Helm keeps on uninstall. The node agents need some of them while they
/// remove the plugin, and the deletion of a CRD deletes all objects of its kind.
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

fn chart_manifests() -> Vec<Value> {
    let options = chart_options();
    let settings_namespaces = [Name::new("helm-settings").unwrap()].into();
    let manifests_with_settings =
        installation_manifests(&InstallOptions { settings_namespaces, ..options.clone() });
    let is_control = |manifest: &Value| manifest["kind"] == "Deployment";
    let control_deployment = manifests_with_settings.into_iter().find(is_control).unwrap();
    // The control plane of one variant has a settings namespace; the template covers both, with a condition.
    let manifests = installation_manifests(&options).into_iter();
    manifests
        .map(|manifest| if is_control(&manifest) { control_deployment.clone() } else { manifest })
        .collect()
}

fn chart_options() -> InstallOptions {
    InstallOptions {
        image: "HELM_IMAGE".to_owned(),
        namespace: "helm-namespace".to_owned(),
        // The placeholder of a number, found nowhere else in the manifests.
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
    let is_crd = is_crd(&manifest);
    if is_crd || name == "leno-cni" && manifest["kind"] != "DaemonSet" {
        manifest["metadata"]["annotations"] = json!({RESOURCE_POLICY: "keep"});
    }
    let mut text = yaml::write_documents(std::slice::from_ref(&manifest));
    if ["Deployment", "Job"].iter().any(|kind| manifest["kind"] == *kind) {
        text = add_scheduling(&text, &manifest);
    }
    if manifest["kind"] == "Deployment" {
        text = template_resources(&text, &manifest);
    }
    for (placeholder, expression) in VALUES {
        text = text.replace(placeholder, expression);
    }
    if is_crd {
        return skip_if_external(&name, &text);
    }
    if manifest["metadata"]["namespace"] == ACCESS_CERT {
        return for_each_namespace(&text);
    }
    let matches = |key: &str| manifest["kind"] == key || name == key;
    match CONDITIONS.iter().find(|(key, _)| matches(key)) {
        Some((_, condition)) => format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"),
        None => text,
    }
}

/// Adds the operator's image pull secrets, node selector and tolerations to a pod template.
fn add_scheduling(text: &str, manifest: &Value) -> String {
    let pod_field = |key: &str| {
        let value = format!(".Values.{key}");
        format!(
            "      {{{{- with {value} }}}}\n      {key}:\n      {{{{- toYaml . | nindent 8 }}}}\n      {{{{- end }}}}\n"
        )
    };
    let fields: String =
        ["imagePullSecrets", "nodeSelector", "tolerations"].map(pod_field).concat();
    let account = &manifest["spec"]["template"]["spec"]["serviceAccountName"];
    let account_line = format!("      serviceAccountName: {}\n", account.as_str().unwrap());
    assert_eq!(text.matches(&account_line).count(), 1, "{text}");
    text.replace(&account_line, &format!("{account_line}{fields}"))
}

/// Adds the operator's resources to the control plane.
fn template_resources(text: &str, manifest: &Value) -> String {
    let defaults = &manifest["spec"]["template"]["spec"]["containers"][0]["resources"];
    assert_eq!(text.matches("        resources:\n").count(), 1, "{text}");
    let (before, after) = text.split_once("        resources:\n").unwrap();
    let is_field = |line: &&str| line.starts_with("          ");
    let resources_length: usize =
        after.lines().take_while(is_field).map(|line| line.len() + 1).sum();
    assert!(defaults["limits"]["memory"].is_string(), "the default is in values.yaml: {defaults}");
    format!(
        "{before}        resources:\n          {{{{- toYaml .Values.resources | nindent 10 }}}}\n{}",
        &after[resources_length..]
    )
}

/// Repeats a manifest for each listed namespace.
fn for_each_namespace(text: &str) -> String {
    assert_eq!(text.matches(ACCESS_CERT).count(), 1, "{text}");
    let text = text.replace(ACCESS_CERT, "{{ . | quote }}").replace("{{ .Release", "{{ $.Release");
    let error =
        "accessCerts: the namespace of the release has the CA of the mesh; use other namespaces";
    format!(
        "{{{{- range .Values.accessCerts }}}}\n{{{{- if eq . $.Release.Namespace }}}}\n\
         {{{{- fail \"{error}\" }}}}\n{{{{- end }}}}\n{text}{{{{- end }}}}\n"
    )
}

/// Renders a CRD only where no other mesh has installed it.
fn skip_if_external(name: &str, text: &str) -> String {
    let kind = "\"apiextensions.k8s.io/v1\" \"CustomResourceDefinition\" \"\"";
    let part_of = "dig \"metadata\" \"labels\" \"app.kubernetes.io/part-of\" \"\" $found";
    format!(
        "{{{{- if .Values.withSmi }}}}\n{{{{- $found := lookup {kind} \"{name}\" }}}}\n\
         {{{{- if or (not $found) (eq ({part_of}) \"leno\") }}}}\n{text}{{{{- end }}}}\n{{{{- end }}}}\n"
    )
}

fn is_crd(manifest: &Value) -> bool {
    manifest["kind"] == "CustomResourceDefinition"
}

fn is_leno_crd(manifest: &Value) -> bool {
    is_crd(manifest) && manifest["spec"]["group"] == "leno.dev"
}

#[test]
fn the_chart_has_the_manifests_of_the_install_command() {
    let (crds, manifests): (Vec<Value>, Vec<Value>) =
        chart_manifests().into_iter().partition(is_leno_crd);
    // Helm creates the namespace before the installation.
    let is_release_namespace = |manifest: &Value| {
        manifest["kind"] == "Namespace" && manifest["metadata"]["name"] == "helm-namespace"
    };
    let templated = manifests.iter().filter(|manifest| !is_release_namespace(manifest));
    let hook = uninstall_hook(&chart_options());
    let templates: String = templated.chain(&hook).map(render_template).collect();
    expect_file!["../../../../deploy/helm/leno/crds/leno.yaml"]
        .assert_eq(&yaml::write_documents(&crds));
    expect_file!["../../../../deploy/helm/leno/templates/leno.yaml"].assert_eq(&templates);
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/leno");
    let version = env!("CARGO_PKG_VERSION");
    let chart = std::fs::read_to_string(root.join("Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
    let values = std::fs::read_to_string(root.join("values.yaml")).unwrap();
    assert!(values.contains(&format!("\nimage: {}\n", super::IMAGE)), "{values}");
}

#[test]
fn values_have_defaults_a_schema_and_documentation() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read_file = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let schema: Value =
        serde_json::from_str(&read_file("deploy/helm/leno/values.schema.json")).unwrap();
    let mut schema_keys: Vec<&str> =
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    schema_keys.sort_unstable();
    assert_eq!(schema["additionalProperties"], false);
    let values = read_file("deploy/helm/leno/values.yaml");
    let is_key = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
    let mut default_keys: Vec<&str> =
        values.lines().filter(is_key).map(|line| line.split(':').next().unwrap()).collect();
    default_keys.sort_unstable();
    assert_eq!(default_keys, schema_keys);
    let manifests = chart_manifests();
    let is_control = |manifest: &&Value| manifest["kind"] == "Deployment";
    let control = manifests.iter().find(is_control).unwrap();
    let resources = &control["spec"]["template"]["spec"]["containers"][0]["resources"];
    for (limit_kind, amounts) in resources.as_object().unwrap() {
        for (resource, amount) in amounts.as_object().unwrap() {
            let amount = amount.as_str().unwrap();
            let section = values.split(&format!("  {limit_kind}:\n")).nth(1).unwrap();
            assert!(
                section.contains(&format!("    {resource}: {amount}\n")),
                "{limit_kind} of {resource}"
            );
        }
    }
    let documentation = read_file("docs/kubernetes.md");
    for key in schema_keys {
        assert!(
            documentation.contains(&format!("\n| `{key}` |")),
            "{key} is missing in docs/kubernetes.md"
        );
    }
    let templates = read_file("deploy/helm/leno/templates/leno.yaml");
    for line in templates.lines().filter(|line| line.contains(".Values.")) {
        let key = line.split(".Values.").nth(1).unwrap();
        let end = key.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(key.len());
        assert!(default_keys.contains(&&key[..end]), "{line}");
    }
}
