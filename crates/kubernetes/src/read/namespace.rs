//! Namespace annotations that control admission of clients.

use k8s_openapi::api::core::v1::Namespace;
use leno_registry::Warning;

use super::AdmissionReading;
use super::choices::Choices;
use super::image::images_of_others;
use super::marks::unknown_marks;

/// The settings of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceReading {
    /// Its admission of clients.
    pub admission: AdmissionReading,
    /// Warnings about annotations without effect.
    pub warnings: Vec<Warning>,
    /// The settings that a floor may override.
    pub choices: Choices,
}

/// Reads the annotations of a namespace.
#[must_use]
pub fn read_namespace(namespace: &Namespace) -> NamespaceReading {
    let meta = &namespace.metadata;
    NamespaceReading {
        admission: AdmissionReading::from_annotations(meta, "Namespace"),
        warnings: [images_of_others(meta, "Namespace"), unknown_marks(meta, "Namespace")].concat(),
        choices: Choices::of_namespace(meta),
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{Admission, Plaintext, TrafficMode};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_decides() {
        let read = |annotations| {
            let object = json!({"metadata": {"name": "shop", "annotations": annotations}});
            let object = serde_json::from_value(object).unwrap();
            let (admission, rejected) = read_namespace(&object).admission.resolve_with(None);
            match rejected.first() {
                None => Ok(admission),
                Some(first) => Err(first.to_string()),
            }
        };
        assert_eq!(read(json!({})), Ok(Admission::default()));
        assert_eq!(read(json!({"leno.dev/other": "x"})), Ok(Admission::default()));
        let both = json!({"leno.dev/traffic-mode": "audit", "leno.dev/plaintext": "accept"});
        let (mode, plaintext) = (Some(TrafficMode::Audit), Some(Plaintext::Accept));
        assert_eq!(read(both), Ok(Admission { mode, plaintext }));
        assert_eq!(
            read(json!({"leno.dev/plaintext": "yes"})).unwrap_err(),
            "Namespace shop: metadata.annotations[\"leno.dev/plaintext\"]: \"yes\" is not a \
             choice; the last valid annotations stay in force, or refuse if there are none; use \
             refuse or accept, or remove it"
        );
        assert_eq!(
            read(json!({"leno.dev/traffic-mode": "Strict"})).unwrap_err(),
            "Namespace shop: metadata.annotations[\"leno.dev/traffic-mode\"]: \"Strict\" is not a \
             mode; the last valid annotations stay in force, or strict mode if there are none; use \
             permissive or strict or audit, or remove it"
        );
    }
}
