//! Warns about unknown labels and annotations under `leno.dev/`, which may be typos.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_registry::Warning;

use super::field_location;
use crate::well_known;

/// Returns the warnings for unknown labels and annotations of a pod or namespace.
pub(super) fn unknown_annotation_warnings(meta: &ObjectMeta, kind: &str) -> Vec<Warning> {
    let warnings_of = |map_field: &str, keys: Vec<&String>| -> Vec<Warning> {
        let warnings =
            well_known::unknown_annotations(keys.into_iter()).map(|(key, hint)| Warning {
                location: field_location(meta, kind, &format!("metadata.{map_field}[{key:?}]")),
                problem: "is not supported".to_owned(),
                hint,
            });
        warnings.collect()
    };
    let labels = meta.labels.iter().flat_map(|labels| labels.keys()).collect();
    let annotations = meta.annotations.iter().flat_map(|annotations| annotations.keys()).collect();
    [warnings_of("labels", labels), warnings_of("annotations", annotations)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_key_causes_a_warning_that_suggests_the_right_one() {
        let warnings_of = |key: &str| {
            let annotations = Some([(key.to_owned(), "x".to_owned())].into());
            let name = Some("shop".to_owned());
            let meta = ObjectMeta { name, annotations, ..ObjectMeta::default() };
            unknown_annotation_warnings(&meta, "Namespace")
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let hint_of =
            |key: &str| warnings_of(key).pop().unwrap().rsplit_once("; ").unwrap().1.to_owned();
        assert_eq!(
            warnings_of("leno.dev/outbound-port-exclusion"),
            ["Namespace shop: metadata.annotations[\"leno.dev/outbound-port-exclusion\"]: is \
                 not supported; did you mean `leno.dev/outbound-port-exclusion-list`?"]
        );
        assert_eq!(hint_of("leno.dev/defalt-policy"), "did you mean `leno.dev/default-policy`?");
        assert_eq!(
            hint_of("leno.dev/sidecar-resource-limit-cpu"),
            "did you mean `leno.dev/sidecar-resource-limits-cpu`?"
        );
        assert_eq!(
            hint_of("leno.dev/zzz"),
            "remove it, or see the table of annotations in docs/kubernetes.md"
        );
        for key in [
            "leno.dev/injection",
            "leno.dev/outbound-port-exclusion-list",
            "leno.dev/sidecar-resource-requests-ephemeral-storage",
            "leno.dev/weight",
            "leno.dev/metrics",
            "openservicemesh.io/nothing-of-ours",
            "example.org/leno.dev",
        ] {
            assert_eq!(warnings_of(key), [""; 0], "{key}");
        }
    }
}
