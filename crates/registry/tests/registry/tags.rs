//! Tag rules: the examples of the documents, what is refused, and what is odd.

use std::path::Path;

use expect_test::{Expect, expect};
use leno_model::{Object, TagScope};
use leno_registry::{FileSource, lint, read_str};

/// The blocks of YAML of a page.
fn examples(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_examples_of_the_pages_are_accepted_without_a_warning() {
    for (page, count) in [("tag-route.md", 3), ("sermant.md", 1)] {
        let directory = tempfile::tempdir().unwrap();
        let text = examples(page).join("---\n");
        std::fs::write(directory.path().join("mesh.yaml"), text).unwrap();
        let mut source = FileSource::new(vec![directory.path().to_owned()]);
        let update = source.reload();
        assert_eq!((update.rejected, update.warnings), (Vec::new(), Vec::new()), "{page}");
        assert_eq!(update.objects, count, "{page}");
    }
}

#[test]
fn rules_stand_in_order_of_precedence() {
    let text = examples("tag-route.md").remove(0);
    let (objects, _) = read_str("f.yaml", &text);
    let Some((Object::TagRoute(route), _)) = objects.first() else { panic!("{objects:?}") };
    let rules = route.rules.rules.iter().map(|rule| (rule.precedence, rule.origin.index));
    assert_eq!(rules.collect::<Vec<_>>(), [(20, 0), (10, 1)]);
    assert_eq!(route.rules.by_caller.len(), 1);
    assert_eq!(route.scope, TagScope::Service("shop/orders".parse().unwrap(), None));
}

/// The refusals of a kind's specs, a line each.
fn check(kind: &str, specs: &[&str], expected: &Expect) {
    let mut lines = String::new();
    for spec in specs {
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
        );
        let (objects, rejected) = read_str("f.yaml", &text);
        assert!(objects.is_empty() && !rejected.is_empty(), "accepted: {spec}");
        for refusal in rejected {
            let shown = refusal.to_string();
            let (_, rest) = shown.split_once(" default/x: ").unwrap_or(("", &shown));
            lines += &format!("{}\n", rest.trim_start_matches("f.yaml:"));
        }
    }
    expected.assert_eq(&lines);
}

#[test]
fn refuses_tag_routes_that_cannot_be_honoured() {
    check(
        "TagRoute",
        &[
            "{}",
            "{service: a, scope: mesh, sameTag: [{tags: [zone]}]}",
            "{scope: mesh, port: 80, sameTag: [{tags: [zone]}]}",
            "{scope: cluster, sameTag: [{tags: [zone]}]}",
            "{service: a, rules: [{split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: [any, default], rules: [{split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: none, rules: [{split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{}]}",
            "{service: a, otherwise: any, rules: [{split: [{weight: 0, tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{split: [{tags: {v: a}, instances: any}]}]}",
            "{service: a, otherwise: any, rules: [{split: [{tags: {}}]}]}",
            "{service: a, otherwise: any, rules: [{split: [{tags: {v: 2}}]}]}",
            "{service: a, otherwise: any, rules: [{from: {}, split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{match: {path: {exact: a}}, split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{match: {methods: [get]}, split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{match: {headers: {a b: c}}, split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{match: {headers: {a: {above: x}}}, split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{match: {query: {a: {in: []}}}, split: [{tags: {v: a}}]}]}",
            "{service: a, otherwise: any, rules: [{sticky: {}, split: [{tags: {v: a}}]}]}",
            "{service: a, sameTag: [{tags: [zone], minPercent: 101}]}",
            "{service: a, sameTag: [{tags: []}]}",
        ],
        &expect![[""]],
    );
}

#[test]
fn refuses_lanes_that_cannot_be_honoured() {
    check(
        "Lane",
        &[
            "{rules: [{marks: [{headers: {x-lane: gray}}]}]}",
            "{service: web, rules: [{marks: []}]}",
            "{service: web, rules: [{marks: [{percent: 60, headers: {a: b}}, {percent: 41, headers: {a: c}}]}]}",
            "{service: web, rules: [{marks: [{headers: {Connection: close}}]}]}",
            "{service: web, rules: [{marks: [{headers: {a: \"b\\nc\"}}]}]}",
            "{service: web, rules: [{marks: [{headers: {}}]}]}",
        ],
        &expect![[""]],
    );
}

#[test]
fn refuses_published_rules_that_cannot_be_honoured() {
    let flow = |rule: &str| {
        format!(
            "{{compat: sermant, key: servicecomb.routeRule.orders, rules: \
             [{{kind: routematcher.sermant.io/flow, rules: [{rule}]}}]}}"
        )
    };
    let route = "route: [{weight: 100, tags: {v: a}}]";
    let specs = [
        "{compat: istio, key: servicecomb.routeRule.a, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.tagRule.a, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.A, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.a, rules: \"[\"}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.a, rules: \"\"}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.a, rules: \"a: b\"}".to_owned(),
        flow(&format!("{{match: {{headers: {{a: {{suffix: b}}}}}}, {route}}}")),
        flow(&format!("{{match: {{headers: {{a: {{}}}}}}, {route}}}")),
        flow(&format!("{{match: {{headers: {{a: {{regex: (?=b)}}}}}}, {route}}}")),
        flow(&format!("{{match: {{attachments: {{a: {{exact: b}}}}}}, {route}}}")),
        flow("{route: [{weight: many, tags: {v: a}}]}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check("SermantRouteRule", &specs, &expect![[""]]);
}

#[test]
fn a_refusal_inside_a_published_text_names_its_line() {
    let text = "\
apiVersion: leno.dev/v1alpha1
kind: SermantRouteRule
metadata: {name: x}
spec:
  compat: sermant
  key: servicecomb.routeRule.orders
  rules: |
    ---
    - kind: routematcher.sermant.io/flow
      rules:
        - match: {headers: {a: {suffix: b}}}
          route: [{weight: 100, tags: {v: a}}]
";
    let (_, rejected) = read_str("f.yaml", text);
    let lines: String = rejected.iter().map(|refusal| format!("{refusal}\n")).collect();
    expect![[""]].assert_eq(&lines);
}

#[test]
fn warns_of_what_published_rules_do_not_do() {
    let directory = tempfile::tempdir().unwrap();
    let text = "\
apiVersion: leno.dev/v1alpha1
kind: SermantRouteRule
metadata: {name: x}
spec:
  compat: sermant
  key: servicecomb.routeRule.orders
  rules:
  - kind: routematcher.sermant.io/flow
    rules:
    - match: {method: POST, path: /x, headers: {Id: {exact: a, prefix: b}, b: {regex: '('}}, extra: 1}
      route: [{weight: 100, tags: {v: a}}, {tags: {v: b}}]
  - kind: routematcher.sermant.io/flow
    rules: []
  - kind: unknown
  - kind: route.sermant.io/lane
    rules:
    - match: {path: /x}
      route: [{weight: 100, tag-inject: {x-lane: gray}}]
";
    std::fs::write(directory.path().join("mesh.yaml"), text).unwrap();
    let mut source = FileSource::new(vec![directory.path().to_owned()]);
    let update = source.reload();
    assert_eq!(update.rejected, []);
    let lines = update.warnings.iter().map(|warning| {
        let shown = warning.to_string();
        let (_, rest) = shown.split_once(" default/x: ").unwrap_or(("", &shown));
        format!("{rest}\n")
    });
    expect![[""]].assert_eq(&lines.collect::<String>());
}

#[test]
fn lints_rules_that_never_decide_and_tags_that_nobody_has() {
    let text = "\
apiVersion: v1
kind: Service
metadata: {name: orders}
spec: {selector: {app: orders}, ports: [{port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: orders-1, labels: {app: orders, version: v1}}
spec: {ports: [{port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: orders}
spec:
  service: orders
  port: 81
  otherwise: any
  rules:
  - {precedence: 1, split: [{tags: {version: v1}}, {tags: {version: v2}}]}
  - {match: {headers: {a: b}}, split: [{tags: {version: v1}}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: lost}
spec: {service: order, sameTag: [{tags: [zone]}]}
---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: lost}
spec: {service: web, rules: [{marks: [{headers: {x-lane: gray}}]}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: orders-all}
spec: {service: orders, sameTag: [{tags: [zone]}]}
---
apiVersion: leno.dev/v1alpha1
kind: SermantRouteRule
metadata: {name: one}
spec: {compat: sermant, key: servicecomb.routeRule.orders, rules: []}
---
apiVersion: leno.dev/v1alpha1
kind: SermantRouteRule
metadata: {name: two}
spec: {compat: sermant, key: servicecomb.routeRule.orders, rules: []}
";
    let (objects, rejected) = read_str("mesh.yaml", text);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: String = lint(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[""]].assert_eq(&lines);
}
