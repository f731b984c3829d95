//! Tests of `leno migrate` for Sermant's rules: its output satisfies the vectors of the service-router.

use std::collections::BTreeMap;

use expect_test::expect;

use crate::group::{Group, read_vectors};
use crate::run::TestDirectory;

#[test]
fn rewritten_rules_choose_as_the_service_router_does() {
    let vectors = read_vectors("sermant.json");
    let mut rewritten = 0;
    let mut mismatches = Vec::new();
    let mut unchanged = BTreeMap::<String, usize>::new();
    for group in vectors["groups"].as_array().expect("a list") {
        let group = Group { vectors: &vectors, group };
        let old = group.rule_manifests().join("\n---\n");
        let test_directory = TestDirectory::with_files(&[("old/rules.yaml", old.as_str())]);
        let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
        if result.exit_code == Some(1) {
            continue;
        }
        assert!(matches!(result.exit_code, Some(0 | 3)), "{result:?}");
        let reported = result.stdout.lines().filter_map(|line| line.split_once("): "));
        for (_, reason) in reported.filter(|(subject, _)| subject.starts_with("unchanged")) {
            *unchanged.entry(reason.to_owned()).or_default() += 1;
        }
        let new =
            std::fs::read_to_string(test_directory.path().join("new/rules.yaml")).expect("a file");
        if !new.contains("SermantRouteRule") {
            rewritten += 1;
            mismatches.extend(group.find_mismatches(&[new]));
        }
    }
    // The caller has no tag: a difference that is reported.
    expect![[r#"T-c, any, null: {"instances":["h1","n1"]}, not {"instances":["n1"]}"#]]
        .assert_eq(&mismatches.join("\n"));
    expect![[r#"
        {
            "a rule of the kind `tag` applies to some callers only, or to fixed tags": 12,
            "a rule of the kind `tag` has several targets": 1,
            "it has a condition that never matches": 2,
            "it selects instances with one of several tags": 1,
            "its `path` is compared with the part before the last dot": 2,
            "none of its rules can apply": 5,
            "the weights of a split add up to 160 instead of 100": 1,
            "the weights of a split add up to 60 instead of 100": 4,
        }
    "#]]
    .assert_debug_eq(&unchanged);
    assert!(rewritten >= 30, "{rewritten} groups are rewritten");
}
