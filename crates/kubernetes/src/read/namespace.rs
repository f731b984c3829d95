//! What a namespace says about who is let in.

use k8s_openapi::api::core::v1::Namespace;
use leno_model::TrafficMode;
use leno_registry::Rejected;

use super::traffic_mode;

/// What the annotation of a namespace says; why it says nothing, when it cannot be read.
pub type NamespaceMode = Result<Option<TrafficMode>, Box<Rejected>>;

/// The mode of a namespace.
///
/// # Errors
/// The refusal of an annotation that is no mode.
pub fn namespace(namespace: &Namespace) -> NamespaceMode {
    traffic_mode(&namespace.metadata, "Namespace")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_decides() {
        let read = |annotations| {
            let object = json!({"metadata": {"name": "shop", "annotations": annotations}});
            namespace(&serde_json::from_value(object).unwrap()).map_err(|it| it.to_string())
        };
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"leno.dev/other": "x"})), Ok(None));
        assert_eq!(read(json!({"leno.dev/traffic-mode": "audit"})), Ok(Some(TrafficMode::Audit)));
        assert_eq!(
            read(json!({"leno.dev/traffic-mode": "Strict"})).unwrap_err(),
            "Namespace shop: metadata.annotations[\"leno.dev/traffic-mode\"]: \"Strict\" is no \
             mode; the last good one stays in force, or strict if there is none; use permissive, \
             strict or audit, or remove it"
        );
    }
}
