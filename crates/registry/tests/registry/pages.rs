//! Tests that the examples of the documentation pages are accepted, and that the tables of fields are up to date.

use std::path::Path;

use leno_model::KIND_DEFINITIONS;
use leno_model::definition::{field_references, reference_table};
use leno_registry::read_str;

/// Returns the YAML examples of a page in `docs/rules`.
pub(crate) fn page_examples(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn documented_route_examples_are_accepted() {
    for (page, kind) in [
        ("http-route.md", "kind: HTTPRoute\n"),
        ("grpc-route.md", "kind: GRPCRoute\n"),
        ("tls-route.md", "kind: TLSRoute\n"),
        ("reference-grant.md", "kind: ReferenceGrant\n"),
        ("traffic-target.md", "kind: TrafficTarget\n"),
        ("http-route-group.md", "kind: HTTPRouteGroup\n"),
        ("smi-tcp-route.md", "kind: TCPRoute\n"),
        ("mesh-config.md", "kind: MeshConfig\n"),
        ("service.md", "kind: Service\n"),
        ("workload.md", "kind: Workload\n"),
        ("traffic-warmup.md", "kind: TrafficWarmup\n"),
        ("access-policy.md", "kind: AccessPolicy\n"),
        ("tcp-route.md", "kind: TCPRoute\n"),
        ("traffic-split.md", "kind: TrafficSplit\n"),
        ("ingress-backend.md", "kind: AccessControl\n"),
        ("access-cert.md", "kind: AccessCert\n"),
        ("egress.md", "kind: Egress\n"),
        ("retry.md", "kind: Retry\n"),
        ("../tracing.md", "kind: MeshConfig\n"),
    ] {
        let examples = page_examples(page);
        assert!(examples.iter().any(|example| example.contains(kind)), "{page}");
        for example in examples {
            let (objects, rejected) = read_str(page, &example);
            assert_eq!(rejected, [], "{page}");
            assert!(!objects.is_empty(), "{page}");
        }
    }
}

/// With the environment variable `UPDATE_EXPECT=1`, stale tables are replaced.
#[test]
fn the_field_tables_of_pages_match_the_definitions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules");
    for definition in KIND_DEFINITIONS {
        let (path, kind) = (folder.join(definition.page), definition.kind);
        let page = std::fs::read_to_string(&path).unwrap();
        let begin = format!("<!-- fields of {kind} -->\n");
        let (before, after_begin) = page.split_once(&begin).unwrap();
        let (table, after) = after_begin.split_once("<!-- end -->\n").unwrap();
        let expected = reference_table(&field_references("spec", definition.spec));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, format!("{before}{begin}{expected}<!-- end -->\n{after}"))
                .unwrap();
        } else {
            assert_eq!(table, expected, "{}: run the test with UPDATE_EXPECT=1", path.display());
        }
    }
}
