//! Warnings about unknown labels and annotations under `leno.dev/`, which may be typos.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_registry::Warning;

use super::place_of_field;
use crate::words;

/// Returns the warnings for unknown labels and annotations of a pod or namespace.
pub(super) fn unknown_marks(meta: &ObjectMeta, kind: &str) -> Vec<Warning> {
    let of = |list: &str, keys: Vec<&String>| -> Vec<Warning> {
        let warnings = words::unknown_marks(keys.into_iter()).map(|(key, hint)| Warning {
            at: place_of_field(meta, kind, &format!("metadata.{list}[{key:?}]")),
            problem: "is not supported".to_owned(),
            hint,
        });
        warnings.collect()
    };
    let labels = meta.labels.iter().flat_map(|all| all.keys()).collect();
    let annotations = meta.annotations.iter().flat_map(|all| all.keys()).collect();
    [of("labels", labels), of("annotations", annotations)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_in_a_key_has_a_warning_with_the_key_that_is_meant() {
        let of = |key: &str| {
            let annotations = Some([(key.to_owned(), "x".to_owned())].into());
            let name = Some("shop".to_owned());
            let meta = ObjectMeta { name, annotations, ..ObjectMeta::default() };
            unknown_marks(&meta, "Namespace").iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let meant = |key: &str| of(key).pop().unwrap().rsplit_once("; ").unwrap().1.to_owned();
        assert_eq!(
            of("leno.dev/outbound-port-exclusion"),
            ["Namespace shop: metadata.annotations[\"leno.dev/outbound-port-exclusion\"]: is \
                 not supported; did you mean `leno.dev/outbound-port-exclusion-list`?"]
        );
        assert_eq!(meant("leno.dev/defalt-policy"), "did you mean `leno.dev/default-policy`?");
        assert_eq!(
            meant("leno.dev/sidecar-resource-limit-cpu"),
            "did you mean `leno.dev/sidecar-resource-limits-cpu`?"
        );
        assert_eq!(
            meant("leno.dev/zzz"),
            "remove it, or see the table of annotations in docs/kubernetes.md"
        );
        for known in [
            "leno.dev/injection",
            "leno.dev/outbound-port-exclusion-list",
            "leno.dev/sidecar-resource-requests-ephemeral-storage",
            "leno.dev/weight",
            "leno.dev/metrics",
            "openservicemesh.io/nothing-of-ours",
            "example.org/leno.dev",
        ] {
            assert_eq!(of(known), [""; 0], "{known}");
        }
    }
}
