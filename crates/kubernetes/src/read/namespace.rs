//! Reads a namespace's annotations: admission of clients, and settings of sidecars.

use k8s_openapi::api::core::v1::Namespace;
use leno_registry::Warning;

use super::AdmissionReading;
use super::image::foreign_image_warnings;
use super::sidecar_settings::SidecarSettings;
use super::unknown_annotations::unknown_annotation_warnings;

/// The settings of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceReading {
    /// The annotations that control admission of clients.
    pub admission: AdmissionReading,
    /// Warnings about annotations without effect.
    pub warnings: Vec<Warning>,
    /// The settings of sidecars that the mesh floor (`spec.floor` of the MeshConfig) may override.
    pub sidecar_settings: SidecarSettings,
}

/// Reads the annotations of a namespace.
#[must_use]
pub fn read_namespace(namespace: &Namespace) -> NamespaceReading {
    let meta = &namespace.metadata;
    NamespaceReading {
        admission: AdmissionReading::from_annotations(meta, "Namespace"),
        warnings: [
            foreign_image_warnings(meta, "Namespace"),
            unknown_annotation_warnings(meta, "Namespace"),
        ]
        .concat(),
        sidecar_settings: SidecarSettings::from_namespace(meta),
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{AdmissionSettings, DefaultPolicy, MtlsMode};
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_set_the_default_policy_and_the_mtls_mode() {
        let read = |annotations| {
            let object = json!({"metadata": {"name": "shop", "annotations": annotations}});
            let object = serde_json::from_value(object).unwrap();
            let (admission, rejected) = read_namespace(&object).admission.resolve_with(None);
            match rejected.first() {
                None => Ok(admission),
                Some(first) => Err(first.to_string()),
            }
        };
        assert_eq!(read(json!({})), Ok(AdmissionSettings::default()));
        assert_eq!(read(json!({"leno.dev/other": "x"})), Ok(AdmissionSettings::default()));
        let both_annotations =
            json!({"leno.dev/default-policy": "dry-run", "leno.dev/mtls": "permissive"});
        let (default_policy, mtls) = (Some(DefaultPolicy::DryRun), Some(MtlsMode::Permissive));
        assert_eq!(read(both_annotations), Ok(AdmissionSettings { default_policy, mtls }));
        assert_eq!(
            read(json!({"leno.dev/mtls": "yes"})).unwrap_err(),
            "Namespace shop: metadata.annotations[\"leno.dev/mtls\"]: \"yes\" is not a \
             mutual TLS mode; the last valid annotations stay in force, or strict if there are none; use \
             strict or permissive, or remove it"
        );
        assert_eq!(
            read(json!({"leno.dev/default-policy": "Deny"})).unwrap_err(),
            "Namespace shop: metadata.annotations[\"leno.dev/default-policy\"]: \"Deny\" is not a \
             default policy; the last valid annotations stay in force, or deny if there are none; use \
             allow or deny or dry-run, or remove it"
        );
    }
}
