//! Warnings about sidecar images in annotations of other meshes, which are ignored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_registry::Warning;

use super::place_of_field;
use crate::words::{PREFIXES, SIDECAR_IMAGE};

/// Returns warnings about the `sidecar-image` annotations of other meshes on a pod or namespace.
pub(super) fn images_of_others(meta: &ObjectMeta, kind: &str) -> Vec<Warning> {
    let keys = PREFIXES.map(|prefix| format!("{prefix}/sidecar-image")).into_iter();
    let others = keys.filter(|key| key != SIDECAR_IMAGE);
    let annotations = meta.annotations.as_ref();
    let written = others.filter(|key| annotations.is_some_and(|all| all.contains_key(key)));
    let reported = written.map(|key| Warning {
        at: place_of_field(meta, kind, &format!("metadata.annotations[{key:?}]")),
        problem: "is ignored: it names an image of another mesh".to_owned(),
        hint: format!("remove it; an image of Leno is named by {SIDECAR_IMAGE}"),
    });
    reported.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_other_meshes_are_reported() {
        let of = |key: &str| {
            let annotations = Some([(key.to_owned(), "x".to_owned())].into());
            let name = Some("shop".to_owned());
            let meta = ObjectMeta { name, annotations, ..ObjectMeta::default() };
            images_of_others(&meta, "Namespace").iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            of("flomesh.io/sidecar-image"),
            ["Namespace shop: metadata.annotations[\"flomesh.io/sidecar-image\"]: is ignored: \
                 it names an image of another mesh; remove it; an image of Leno is named by \
                 leno.dev/sidecar-image"]
        );
        assert_eq!(of("openservicemesh.io/sidecar-image").len(), 1);
        assert_eq!(of("leno.dev/sidecar-image"), [""; 0]);
    }
}
