//! The settings of OSM, osm-edge and FSM: what of them says something here.

use leno_model::Egress;
use serde_json::{Value, json};

use super::document::Found;

/// Reads the `MeshConfig` of another mesh from its single values; `None` when it is none.
pub(super) fn read(values: &[(String, String)]) -> Option<Found> {
    let value = |path: &str| {
        let found = values.iter().find(|(known, _)| known == path);
        found.map(|(_, value)| value.as_str())
    };
    let version = value("apiVersion")?;
    let is_foreign = GROUPS.iter().any(|group| version.starts_with(group));
    if !is_foreign || value("kind") != Some("MeshConfig") {
        return None;
    }
    // The schema's default is false, for both.
    let permissive = value(PERMISSIVE) == Some("true");
    let egress = if value(EGRESS) == Some("true") { Egress::Allow } else { Egress::Deny };
    let others = values.iter().map(|(path, _)| path);
    let others = others
        .filter(|path| path.starts_with("spec.") && ![PERMISSIVE, EGRESS].contains(&path.as_str()));
    Some(Found::Settings { permissive, egress, others: others.cloned().collect() })
}

/// The same in our words.
pub(super) fn native(permissive: bool, egress: Egress) -> Value {
    let mode = if permissive { "permissive" } else { "strict" };
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "MeshConfig",
        "metadata": {"name": "mesh"},
        "spec": {"trafficMode": mode, "egress": egress.as_str()},
    })
}

const GROUPS: &[&str] = &["config.openservicemesh.io/", "config.flomesh.io/"];
const EGRESS: &str = "spec.traffic.enableEgress";
const PERMISSIVE: &str = "spec.traffic.enablePermissiveTrafficPolicyMode";
