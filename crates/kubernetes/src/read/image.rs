//! Warns about sidecar images in annotations of other meshes, which Leno ignores.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_registry::Warning;

use super::field_location;
use crate::well_known::{PREFIXES, SIDECAR_IMAGE};

/// Returns warnings about the `sidecar-image` annotations of other meshes on a pod or namespace.
pub(super) fn foreign_image_warnings(meta: &ObjectMeta, kind: &str) -> Vec<Warning> {
    let keys = PREFIXES.map(|prefix| format!("{prefix}/sidecar-image")).into_iter();
    let foreign_keys = keys.filter(|key| key != SIDECAR_IMAGE);
    let annotations = meta.annotations.as_ref();
    let present_keys = foreign_keys
        .filter(|key| annotations.is_some_and(|annotations| annotations.contains_key(key)));
    let warnings = present_keys.map(|key| Warning {
        location: field_location(meta, kind, &format!("metadata.annotations[{key:?}]")),
        problem: "is ignored: it names an image of another mesh".to_owned(),
        hint: format!("remove it; an image of Leno is named by {SIDECAR_IMAGE}"),
    });
    warnings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_other_meshes_are_reported() {
        let warnings_for = |key: &str| {
            let annotations = Some([(key.to_owned(), "x".to_owned())].into());
            let name = Some("shop".to_owned());
            let meta = ObjectMeta { name, annotations, ..ObjectMeta::default() };
            foreign_image_warnings(&meta, "Namespace")
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            warnings_for("flomesh.io/sidecar-image"),
            ["Namespace shop: metadata.annotations[\"flomesh.io/sidecar-image\"]: is ignored: \
                 it names an image of another mesh; remove it; an image of Leno is named by \
                 leno.dev/sidecar-image"]
        );
        assert_eq!(warnings_for("openservicemesh.io/sidecar-image").len(), 1);
        assert_eq!(warnings_for("leno.dev/sidecar-image"), [""; 0]);
    }
}
