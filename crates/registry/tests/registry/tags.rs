//! Tests of tag rules: documented examples, rejections and warnings.

use expect_test::{Expect, expect};
use leno_model::{FieldTest, NumberRelation, Object, TagScope, TextRelation, ValueTest};
use leno_registry::{FileSource, lint_objects, read_str};

use crate::pages::page_examples;
use crate::rejections::check_specs;

#[test]
fn the_documented_examples_are_accepted_without_warnings() {
    for (page, count) in [("tag-route.md", 3), ("sermant.md", 1)] {
        let directory = tempfile::tempdir().unwrap();
        let text = page_examples(page).join("---\n");
        std::fs::write(directory.path().join("mesh.yaml"), text).unwrap();
        let mut source = FileSource::new(vec![directory.path().to_owned()]);
        let update = source.reload();
        assert_eq!((update.rejected, update.warnings), (Vec::new(), Vec::new()), "{page}");
        assert_eq!(update.object_count, count, "{page}");
    }
}

#[test]
fn rules_are_sorted_by_precedence() {
    let text = page_examples("tag-route.md").remove(0);
    let (objects, _) = read_str("f.yaml", &text);
    let Some((Object::TagRoute(route), _)) = objects.first() else { panic!("{objects:?}") };
    let rules = route.rules.rules.iter().map(|rule| (rule.priority, rule.origin.index));
    assert_eq!(rules.collect::<Vec<_>>(), [(20, 0), (10, 1)]);
    assert_eq!(route.rules.caller_rules.len(), 1);
    assert_eq!(route.scope, TagScope::Service("shop/orders".parse().unwrap(), None));
}

#[test]
fn tests_of_headers_have_the_order_of_the_manifest_and_lower_case_names() {
    let text = "{apiVersion: leno.dev/v1alpha1, kind: TagRoute, metadata: {name: a}, \
         spec: {scope: mesh, fallbackPolicy: [default, fail], rules: [{split: [{instances: any}], \
         match: {headers: {X-B: x, Host: {in: [y, z], ignoreCase: true}, c: {atLeast: -1}, \
         a: {regex: y, ignoreCase: true}, d: {present: false}}}}]}}";
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    let Some((Object::TagRoute(route), _)) = objects.first() else { panic!("{objects:?}") };
    let text_test = |relation, texts: &[&str], ignore_case| {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        ValueTest::Text { relation, texts, ignore_case }
    };
    let expected = [
        ("x-b", text_test(TextRelation::Exact, &["x"], false)),
        (":authority", text_test(TextRelation::In, &["y", "z"], true)),
        ("c", ValueTest::Number { relation: NumberRelation::AtLeast, bound: -1 }),
        ("a", text_test(TextRelation::Regex, &["(?i:y)"], false)),
        ("d", ValueTest::Absent),
    ];
    let expected = expected.map(|(name, test)| FieldTest { name: name.to_owned(), test });
    assert_eq!(route.rules.rules[0].request_match.headers, expected);
}

/// Checks the rejections of a kind's specs, one per line.
fn check_rejections(kind: &str, specs: &[&str], expected: &Expect) {
    let metadata = format!("apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}");
    check_specs(&metadata, specs, expected);
}

#[test]
fn unsupported_tag_routes_are_rejected() {
    check_rejections(
        "TagRoute",
        &[
            "{}",
            "{service: a, scope: mesh, preferSameTag: [{tags: [zone]}]}",
            "{scope: mesh, port: 80, preferSameTag: [{tags: [zone]}]}",
            "{scope: cluster, preferSameTag: [{tags: [zone]}]}",
            "{service: a, rules: [{split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: [any, default], rules: [{split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: none, rules: [{split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{}]}",
            "{service: a, fallbackPolicy: any, rules: [{split: [{weight: 0, tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{split: [{tags: {v: a}, instances: any}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{split: [{tags: {}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{split: [{tags: {v: 2}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{from: {}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {path: {exact: a}}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {methods: [get]}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {headers: {a b: c}}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {headers: {A: b, a: c}}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {headers: {a: {above: x}}}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {headers: {a: {above: 1, ignoreCase: true}}}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{match: {queryParams: {a: {in: []}}}, split: [{tags: {v: a}}]}]}",
            "{service: a, fallbackPolicy: any, rules: [{sticky: {}, split: [{tags: {v: a}}]}]}",
            "{service: a, preferSameTag: [{tags: [zone], minPercent: 101}]}",
            "{service: a, preferSameTag: [{tags: []}]}",
        ],
        &expect![[r#"
            spec: has no scope; add `service` or `scope`
            spec: has no rules; add `rules` or `preferSameTag`
            spec: has `service` and `scope` together; keep one of them
            spec.port: requires `service`; remove it, or name a `service`
            spec.scope: "cluster" is not a supported value; use `namespace` or `mesh`
            spec.fallbackPolicy: is missing; add `fallbackPolicy`
            spec.fallbackPolicy: has an unreachable value; use `any`, `default`, `fail`, `[default, any]` or `[default, fail]`
            spec.fallbackPolicy: "none" is not a supported value; use `any`, `default` or `fail`
            spec.rules[0].split: is missing; add `split`
            spec.rules[0].split: has no target with a weight above 0; add one
            spec.rules[0].split[0]: has `tags` and `instances` together; keep one of them
            spec.rules[0].split[0].tags: is empty; add an entry
            spec.rules[0].split[0].tags.v: 2 is a number, not text; write "2" in quotes
            spec.rules[0].from: is empty; name a `service` or `tags`, or remove it
            spec.rules[0].match.path.exact: "a" does not start with `/`; use a path such as "/ratings"
            spec.rules[0].match.methods[0]: "get" is not a method; use one such as GET; methods are written in capital letters
            spec.rules[0].match.headers["a b"]: "a b" is not the name of a header; use letters, digits and `-`
            spec.rules[0].match.headers.a: is the name of another header; remove one of the two
            spec.rules[0].match.headers.a.above: "x" is not a whole number; use one, without quotes
            spec.rules[0].match.headers.a.ignoreCase: is not supported for numbers; remove it
            spec.rules[0].match.queryParams.a.in: is empty; add an element
            spec.rules[0].sticky: has no key; add `header` or `cookie`
            spec.preferSameTag[0].minPercent: 101 is out of range; use a number from 0 to 100
            spec.preferSameTag[0].tags: is empty; add an element
        "#]],
    );
}

#[test]
fn unsupported_lanes_are_rejected() {
    check_rejections(
        "Lane",
        &[
            "{rules: [{marks: [{headers: {x-lane: gray}}]}]}",
            "{service: web, rules: [{marks: []}]}",
            "{service: web, rules: [{marks: [{percent: 60, headers: {a: b}}, {percent: 41, headers: {a: c}}]}]}",
            "{service: web, rules: [{marks: [{headers: {Connection: close}}]}]}",
            "{service: web, rules: [{marks: [{headers: {a: \"b\\nc\"}}]}]}",
            "{service: web, rules: [{marks: [{headers: {}}]}]}",
        ],
        &expect![[r#"
            spec.service: is missing; add `service`
            spec.rules[0].marks: is empty; add an element
            spec.rules[0].marks: has 101 percent in total; use 1 to 100 in total
            spec.rules[0].marks[0].headers.Connection: "Connection" is not for applications; use a header of your own
            spec.rules[0].marks[0].headers.a: "b\nc" is not the value of a header; use at most 4096 printable ASCII characters without outer blanks
            spec.rules[0].marks[0].headers: is empty; add an entry
        "#]],
    );
}

#[test]
fn unsupported_sermant_rules_are_rejected() {
    let flow_rule = |rule: &str| {
        format!(
            "{{compat: sermant, key: servicecomb.routeRule.orders, rules: \
             [{{kind: routematcher.sermant.io/flow, rules: [{rule}]}}]}}"
        )
    };
    let route = "route: [{weight: 100, tags: {v: a}}]";
    let with_path =
        |path| format!("{{match: {{path: /{path}, headers: {{a: {{exact: b}}}}}}, {route}}}");
    let with_seven_paths: Vec<String> = (1..=7).map(with_path).collect();
    let specs = [
        "{compat: istio, key: servicecomb.routeRule.a, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.tagRule.a, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.A, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule, rules: []}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.a, rules: \"[\"}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.a, rules: \"\"}".to_owned(),
        "{compat: sermant, key: servicecomb.routeRule.a, rules: \"a: b\"}".to_owned(),
        flow_rule(&format!("{{match: {{headers: {{a: {{suffix: b}}}}}}, {route}}}")),
        flow_rule(&format!("{{match: {{headers: {{a: {{}}}}}}, {route}}}")),
        flow_rule(&format!("{{match: {{headers: {{a: {{regex: (?=b)}}}}}}, {route}}}")),
        flow_rule(&format!("{{match: {{attachments: {{a: {{exact: b}}}}}}, {route}}}")),
        flow_rule("{route: [{weight: many, tags: {v: a}}]}"),
        flow_rule(&with_seven_paths.join(", ")),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_rejections(
        "SermantRouteRule",
        &specs,
        &expect![[r#"
            spec.compat: "istio" is not a supported value; use `sermant`
            spec.key: "servicecomb.tagRule.a" is not a key of the service-router; use `servicecomb.routeRule.SERVICE`, `servicecomb.routeRule` or `servicecomb.globalRouteRule`
            spec.key: "servicecomb.routeRule.A" does not end with the name of a Service; use the name of a Service of this namespace: lower-case letters, digits, `-`
            spec.rules: is a list, not a map; write a map of names and values
            spec.rules: is not YAML (while parsing a node, did not find expected node content) in line 2 of it; correct it
            spec.rules: is empty; write the rules as they are published
            spec.rules: is a map, not a list; write a list, each element after `- `
            spec.rules[0].rules[0].match.headers.a.suffix: `suffix` is not an operator; use exact, regex, prefix, in, noEqu, noLess, noGreater, greater or less
            spec.rules[0].rules[0].match.headers.a: has no operator; use one such as `exact`
            spec.rules[0].rules[0].match.headers.a.regex: "(?=b)" cannot be used as Java would (look-around, including look-ahead and look-behind, is not supported); write it in RE2 syntax, without look-around or back references
            spec.rules[0].rules[0].match.attachments: is for calls of Dubbo, which the mesh forwards without parsing them; remove the rule, or match `headers`
            spec.rules[0].rules[0].route[0].weight: "many" is not a number; use a number from 0 to 2147483647
            spec.rules: has more than 6 different paths in its flow rules; use fewer, or a TagRoute
        "#]],
    );
}

#[test]
fn a_rejection_in_an_embedded_text_has_its_line_in_the_file() {
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
    let lines: String = rejected.iter().map(|rejection| format!("{rejection}\n")).collect();
    expect![[r#"
        f.yaml:11:41: SermantRouteRule default/x: spec.rules[0].rules[0].match.headers.a.suffix: `suffix` is not an operator; use exact, regex, prefix, in, noEqu, noLess, noGreater, greater or less
    "#]].assert_eq(&lines);
}

#[test]
fn ignored_parts_of_sermant_rules_cause_warnings() {
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
        let line = warning.to_string();
        let (_, detail) = line.split_once(" default/x: ").unwrap_or(("", &line));
        format!("{detail}\n")
    });
    expect![[r#"
        spec.rules[0].rules[0].match.method: is ignored in rules of the kind flow; remove it, or use a TagRoute, which supports it
        spec.rules[0].rules[0].match.path: is compared only with the part of the path before its last dot, if any; use a TagRoute to match paths
        spec.rules[0].rules[0].match.headers: "Id" matches no header: header names are lower-case; write the name in lower case
        spec.rules[0].rules[0].match.headers.Id: has two operators; `exact` is ignored; keep one; write a list of conditions for several
        spec.rules[0].rules[0].match.headers.b.regex: "(" is not a regular expression (unclosed group) and never matches; correct it
        spec.rules[0].rules[0].route[1]: lacks a `weight` and `tags` and is ignored; add a `weight` and `tags`
        spec.rules[1].kind: is also the kind of another document: only the first applies; put the rules of a kind into one document
        spec.rules[2].kind: "unknown" is not a supported kind of rule: the document is ignored; use `routematcher.sermant.io/flow`, `routematcher.sermant.io/tag` or `route.sermant.io/lane`
        spec.rules[3].rules[0].match: has no `protocol`, so the rule never matches; add `protocol: http`
    "#]].assert_eq(&lines.collect::<String>());
}

#[test]
fn shadowed_tag_rules_and_unknown_tags_cause_warnings() {
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
  fallbackPolicy: any
  rules:
  - {precedence: 1, split: [{tags: {version: v1}}, {tags: {version: v2}}]}
  - {match: {headers: {a: b}}, split: [{tags: {version: v1}}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: lost}
spec: {service: order, preferSameTag: [{tags: [zone]}]}
---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: lost}
spec: {service: web, rules: [{marks: [{headers: {x-lane: gray}}]}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: orders-all}
spec: {service: orders, preferSameTag: [{tags: [zone]}]}
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
    let lines: String =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[r#"
        TagRoute default/orders: spec.port: the Service default/orders has no port 81; use `80`
        TagRoute default/orders: spec.rules[1]: never applies: rules[0] matches every request first; give it a greater `precedence`, or give the other rule a `match`
        TagRoute default/orders: spec.rules[0].split[1].tags: no workload of the Service default/orders has them; use labels of its workloads
        TagRoute default/lost: spec.service: there is no Service default/order; did you mean `orders`?
        Lane default/lost: spec.service: there is no Service default/web; add the Service
        SermantRouteRule default/one: spec.key: the TagRoute default/orders-all is for the same service and takes precedence; remove one of the two
        SermantRouteRule default/two: spec.key: the SermantRouteRule default/one also has this key, and takes precedence; keep one: a configuration center has one value per key
        SermantRouteRule default/two: spec.key: the TagRoute default/orders-all is for the same service and takes precedence; remove one of the two
    "#]].assert_eq(&lines);
}
