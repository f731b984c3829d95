//! Settings of OSM, osm-edge and FSM that have an equivalent.

use leno_kubernetes::read::{
    ALWAYS_ON, EXCLUSION_LISTS, INGRESS_GATEWAY, UNHEEDED, asks_for_something,
};
use leno_model::Egress;
use serde_json::{Value, json};

use super::document::{DocumentContent, DocumentSource};

/// Reads the `MeshConfig` of another mesh from its flattened values; `None` if it is another kind.
pub(super) fn read(values: &[(String, String)], whence: DocumentSource) -> Option<DocumentContent> {
    let value = |path: &str| {
        let found = values.iter().find(|(known, _)| known == path);
        found.map(|(_, value)| value.as_str())
    };
    let version = value("apiVersion")?;
    let is_foreign = GROUPS.iter().any(|group| version.starts_with(group));
    if !is_foreign || value("kind") != Some("MeshConfig") {
        return None;
    }
    // Both default to false in the schema.
    let permissive = value(PERMISSIVE) == Some("true");
    let egress = if value(EGRESS) == Some("true") { Egress::Allow } else { Egress::Deny };
    let unheeded = UNHEEDED.iter().map(|(field, hint)| (*field, (*hint).to_owned()));
    let lists = EXCLUSION_LISTS
        .iter()
        .filter(|_| whence == DocumentSource::File)
        .map(|(field, mark)| (*field, format!("annotate namespaces or pods with `{mark}`")));
    let gateway = [INGRESS_GATEWAY].into_iter().filter(|_| whence == DocumentSource::File);
    let gateway = gateway.map(|(field, hint)| (field, hint.to_owned()));
    let switched_off = ALWAYS_ON
        .iter()
        .filter(|(field, _)| value(field) == Some("false"))
        .map(|(field, hint)| (*field, (*hint).to_owned()));
    let others = unheeded
        .chain(lists)
        .chain(gateway)
        .filter(|(field, _)| is_enabled(values, field))
        .chain(switched_off)
        .map(|(field, hint)| format!("{field}: {hint}"));
    Some(DocumentContent::Settings { permissive, egress, others: others.collect() })
}

/// True if a field, or a field below it, enables something.
fn is_enabled(values: &[(String, String)], field: &str) -> bool {
    let below = |path: &str| {
        let rest = path.strip_prefix(field);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let said = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    values.iter().any(|(path, text)| below(path) && asks_for_something(&said(text)))
}

/// Returns the equivalent native MeshConfig.
pub(super) fn native_config(permissive: bool, egress: Egress) -> Value {
    let default_policy = if permissive { "allow" } else { "deny" };
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "MeshConfig",
        "metadata": {"name": "mesh"},
        "spec": {"defaultPolicy": default_policy, "egress": egress.as_str()},
    })
}

const GROUPS: &[&str] = &["config.openservicemesh.io/", "config.flomesh.io/"];
const EGRESS: &str = "spec.traffic.enableEgress";
const PERMISSIVE: &str = "spec.traffic.enablePermissiveTrafficPolicyMode";

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_fields(spec: &str, whence: DocumentSource) -> Vec<String> {
        let text = format!(
            "apiVersion: config.openservicemesh.io/v1alpha2\nkind: MeshConfig\n\
             metadata: {{name: osm-mesh-config}}\nspec: {spec}\n"
        );
        match read(&leno_registry::outline_document(&text).unwrap(), whence) {
            Some(DocumentContent::Settings { others, .. }) => {
                let field = |it: &String| it.split(": ").next().unwrap().to_owned();
                others.iter().map(field).collect()
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
        let both =
            ["spec.traffic.inboundExternalAuthorization.enable", "spec.sidecar.cipherSuites"];
        assert_eq!(lost_fields(spec, DocumentSource::Cluster), both);
        let list = "spec.traffic.outboundPortExclusionList";
        let gateway = "spec.certificate.ingressGateway";
        assert_eq!(lost_fields(spec, DocumentSource::File), [both[0], both[1], list, gateway]);
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
