//! Reads the `MeshConfig` of OSM, osm-edge and FSM, lists its settings that Leno does not support, and converts the
//! supported ones to a native `MeshConfig`.

use leno_kubernetes::read::{
    ALWAYS_ON_FIELDS, EXCLUSION_LISTS, INGRESS_GATEWAY, UNSUPPORTED_FIELDS, enables_feature,
};
use leno_model::Egress;
use serde_json::{Value, json};

use super::document::{DocumentContent, DocumentSource};

/// Reads the `MeshConfig` of another mesh from its flattened values; `None` if it is another kind.
pub(super) fn read_mesh_config(
    values: &[(String, String)],
    source: DocumentSource,
) -> Option<DocumentContent> {
    let find_value = |path: &str| {
        let entry = values.iter().find(|(field, _)| field == path);
        entry.map(|(_, value)| value.as_str())
    };
    let api_version = find_value("apiVersion")?;
    let is_known_group = API_GROUPS.iter().any(|group| api_version.starts_with(group));
    if !is_known_group || find_value("kind") != Some("MeshConfig") {
        return None;
    }
    // Both fields default to false in the schema.
    let is_permissive = find_value(PERMISSIVE_FIELD) == Some("true");
    let egress =
        if find_value(EGRESS_FIELD) == Some("true") { Egress::Allow } else { Egress::Deny };
    let unsupported_fields =
        UNSUPPORTED_FIELDS.iter().map(|(field, hint)| (*field, (*hint).to_owned()));
    let exclusion_lists = EXCLUSION_LISTS.iter().filter(|_| source == DocumentSource::File).map(
        |(field, annotation)| (*field, format!("annotate namespaces or pods with `{annotation}`")),
    );
    let ingress_gateway = [INGRESS_GATEWAY]
        .into_iter()
        .filter(|_| source == DocumentSource::File)
        .map(|(field, hint)| (field, hint.to_owned()));
    let disabled_features = ALWAYS_ON_FIELDS
        .iter()
        .filter(|(field, _)| find_value(field) == Some("false"))
        .map(|(field, hint)| (*field, (*hint).to_owned()));
    let unsupported = unsupported_fields
        .chain(exclusion_lists)
        .chain(ingress_gateway)
        .filter(|(field, _)| is_enabled(values, field))
        .chain(disabled_features)
        .map(|(field, hint)| format!("{field}: {hint}"));
    Some(DocumentContent::Settings { is_permissive, egress, unsupported: unsupported.collect() })
}

/// True if a field, or a field below it, enables something.
fn is_enabled(values: &[(String, String)], field: &str) -> bool {
    let is_at_or_below = |path: &str| {
        let suffix = path.strip_prefix(field);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(['.', '[']))
    };
    let parse_value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    values.iter().any(|(path, text)| is_at_or_below(path) && enables_feature(&parse_value(text)))
}

/// Returns the equivalent native MeshConfig.
pub(super) fn native_config(is_permissive: bool, egress: Egress) -> Value {
    let default_policy = if is_permissive { "allow" } else { "deny" };
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "MeshConfig",
        "metadata": {"name": "mesh"},
        "spec": {"defaultPolicy": default_policy, "egress": egress.as_str()},
    })
}

const API_GROUPS: &[&str] = &["config.openservicemesh.io/", "config.flomesh.io/"];
const EGRESS_FIELD: &str = "spec.traffic.enableEgress";
const PERMISSIVE_FIELD: &str = "spec.traffic.enablePermissiveTrafficPolicyMode";

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_fields(spec: &str, source: DocumentSource) -> Vec<String> {
        let text = format!(
            "apiVersion: config.openservicemesh.io/v1alpha2\nkind: MeshConfig\n\
             metadata: {{name: osm-mesh-config}}\nspec: {spec}\n"
        );
        match read_mesh_config(&leno_registry::outline_document(&text).unwrap(), source) {
            Some(DocumentContent::Settings { unsupported, .. }) => {
                let field = |setting: &String| setting.split(": ").next().unwrap().to_owned();
                unsupported.iter().map(field).collect()
            }
            _ => panic!("{text}"),
        }
    }

    #[test]
    fn disabled_settings_are_not_reported_as_lost() {
        let spec = "{traffic: {inboundExternalAuthorization: {enable: false, timeout: 1s}, \
                    inboundPortExclusionList: [], useHTTPSIngress: false}, \
                    observability: {osmLogLevel: info, tracing: {enable: false, port: 9411}}, \
                    sidecar: {resources: {}, maxDataPlaneConnections: 0}, \
                    certificate: {certKeyBitSize: 2048}}";
        assert_eq!(lost_fields(spec, DocumentSource::File), [""; 0]);
    }

    #[test]
    fn settings_supported_in_clusters_only_are_lost_in_files() {
        let spec = "{traffic: {inboundExternalAuthorization: {enable: true}, \
                    outboundPortExclusionList: [6379]}, sidecar: {cipherSuites: [A]}, \
                    certificate: {ingressGateway: {secret: {name: a, namespace: b}}}}";
        let fields =
            ["spec.traffic.inboundExternalAuthorization.enable", "spec.sidecar.cipherSuites"];
        assert_eq!(lost_fields(spec, DocumentSource::Cluster), fields);
        let list = "spec.traffic.outboundPortExclusionList";
        let gateway = "spec.certificate.ingressGateway";
        assert_eq!(lost_fields(spec, DocumentSource::File), [fields[0], fields[1], list, gateway]);
    }

    #[test]
    fn disabled_settings_that_leno_always_enforces_are_reported() {
        let spec = "{featureFlags: {enableEgressPolicy: false, enableIngressBackendPolicy: true}}";
        assert_eq!(
            lost_fields(spec, DocumentSource::File),
            ["spec.featureFlags.enableEgressPolicy"]
        );
    }
}
