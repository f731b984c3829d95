//! Tests of warnings about all objects as a whole.

use expect_test::{Expect, expect};
use leno_model::Object;
use leno_registry::{FileSource, lint_objects, read_str};

fn check_warnings(text: &str, expected: &Expect) {
    let (objects, rejected) = read_str("mesh.yaml", text);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: Vec<String> =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expected.assert_eq(&lines.concat());
}

const MESH_WITH_MISTAKES: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, labels: {app: web}}
spec:
  serviceAccount: web
  ports: [{name: http, port: 80}]
  outbound:
  - {service: wbe, port: 80, listen: "127.0.0.1:1001"}
  - {service: web, port: 81, listen: "127.0.0.1:1002"}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: other}
spec: {serviceAccount: other, outbound: [{service: web, port: 80, listen: "127.0.0.1:80"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}, {port: 8080, targetPort: 8080}, {port: 90, targetPort: metrics}]}
---
apiVersion: v1
kind: Service
metadata: {name: lost}
spec: {selector: {app: lost}, ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{group: "", kind: Service, name: web, port: 9}]
  rules: [{backendRefs: [{name: web-v2, port: 80}]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: web}
spec:
  destination: {kind: ServiceAccount, name: web, namespace: default}
  sources: [{kind: ServiceAccount, name: nobody, namespace: default}]
  rules:
  - {kind: HTTPRouteGroup, name: web, matches: [get, lst]}
  - {kind: HTTPRouteGroup, name: wep, matches: [x]}
  - {kind: TCPRoute, name: tcp}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: web}
spec: {matches: [{name: get}, {name: list}]}
---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {defaultPolicy: deny}
"#;

#[test]
fn references_to_missing_objects_cause_warnings() {
    check_warnings(
        MESH_WITH_MISTAKES,
        &expect![[r#"
        Workload default/web: spec.outbound[0].service: there is no Service default/wbe; did you mean `web`?
        Workload default/web: spec.outbound[1].port: the Service default/web has no port 81; use `80`, `8080` or `90`
        Workload default/other: spec.serviceAccount: no policy mentions the account default/other: with default policy deny the workload may call no service and no client may call it; add it as a source or destination of a TrafficTarget, or in an AccessPolicy
        Service default/web: spec.ports[1].targetPort: no selected workload has a port 8080; use a port that the workloads list
        Service default/web: spec.ports[2].targetPort: no selected workload has a port "metrics"; use a port that the workloads list
        Service default/lost: spec.selector: selects no workload of the namespace; use labels that a Workload of the same namespace has
        HTTPRoute default/web: spec.parentRefs[0].port: the Service default/web has no port 9; use `80`, `8080` or `90`
        HTTPRoute default/web: spec.rules[0].backendRefs[0].name: there is no Service default/web-v2; add the Service
        TrafficTarget default/web: spec.rules[0].matches[1]: the HTTPRouteGroup default/web has no match "lst"; did you mean `list`?
        TrafficTarget default/web: spec.rules[1].name: there is no HTTPRouteGroup default/wep, so the rule allows no request; did you mean `web`?
        TrafficTarget default/web: spec.rules[2].name: there is no TCPRoute default/tcp, so the rule allows no request; add the TCPRoute
        TrafficTarget default/web: spec.sources[0]: no workload runs under the account default/nobody; add a Workload with this account
        Workload default/other: spec.outbound[0].listen: 127.0.0.1:80 is also taken by the Workload default/web; use another port, unless each has a network namespace of its own
    "#]],
    );
}

#[test]
fn a_valid_mesh_causes_no_warnings() {
    let valid = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, labels: {app: web}}
spec: {serviceAccount: web, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
"#;
    check_warnings(valid, &expect![[""]]);
}

#[test]
fn a_workload_below_the_floor_causes_a_warning() {
    let text = "\
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {floor: {defaultPolicy: dry-run, mtls: strict, exceptNamespaces: [legacy]}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: a, namespace: shop}
spec: {defaultPolicy: allow, mtls: permissive}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: b, namespace: legacy}
spec: {defaultPolicy: allow, mtls: permissive}
";
    check_warnings(
        text,
        &expect![[r"
            Workload shop/a: spec.defaultPolicy: is below the floor of the MeshConfig, and dry-run is in force; use dry-run, or remove the field
            Workload shop/a: spec.mtls: is below the floor of the MeshConfig, and strict is in force; use strict, or remove the field
        "]],
    );
}

#[test]
fn an_http_route_on_the_port_of_a_grpc_route_causes_a_warning() {
    let route = |kind: &str, port: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: web}}\n\
             spec:\n  parentRefs: [{{group: \"\", kind: Service, name: web{port}}}]\n  \
             rules: [{{backendRefs: [{{name: web, port: 80}}]}}]\n"
        )
    };
    let with_ports = |grpc: &str, http: &str| {
        format!("{SERVED_SERVICE}{}{}", route("GRPCRoute", grpc), route("HTTPRoute", http))
    };
    check_warnings(&with_ports(", port: 80", ", port: 81"), &expect![[""]]);
    check_warnings(
        &with_ports("", ", port: 80"),
        &expect![[r#"
        HTTPRoute default/web: spec.parentRefs[0]: the GRPCRoute default/web is attached to the same port and takes precedence over an HTTPRoute; use one kind of route per port
    "#]],
    );
}

#[test]
fn a_backend_in_another_namespace_without_a_grant_causes_a_warning() {
    let route_in_other_namespace = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: web, \
                namespace: shop}\nspec:\n  parentRefs: [{group: \"\", kind: Service, name: web}]\n  \
                rules: [{backendRefs: [{name: web, namespace: default, port: 80}]}]\n";
    let own_service =
        SERVED_SERVICE.replace("metadata: {name: web", "metadata: {namespace: shop, name: web");
    let grant = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: \
                 {name: web}\nspec:\n  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, \
                 namespace: shop}]\n  to: [{group: \"\", kind: Service}]\n";
    let backend_service = SERVED_SERVICE.replace("port: 80}]}", "port: 8080}]}");
    check_warnings(
        &format!("{backend_service}---{own_service}{route_in_other_namespace}{grant}"),
        &expect![[""]],
    );
    check_warnings(
        &format!("{backend_service}---{own_service}{route_in_other_namespace}"),
        &expect![[r#"
        HTTPRoute shop/web: spec.rules[0].backendRefs[0].namespace: no ReferenceGrant in default permits it, so its share of requests gets the status 500; add one there, from HTTPRoutes in shop to the Service
    "#]],
    );
}

/// A workload behind a service with two ports.
const SERVED_SERVICE: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, labels: {app: web}}
spec: {serviceAccount: web, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 81, targetPort: http}]
"#;

#[test]
fn a_source_adds_file_and_line_to_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh.yaml");
    std::fs::write(&path, MESH_WITH_MISTAKES).unwrap();
    let mut source = FileSource::new(vec![dir.path().to_owned()]);
    source.reload();
    let warnings = source.lint_warnings();
    assert!(!warnings.is_empty());
    for warning in warnings {
        assert_eq!(warning.location.file.as_deref(), path.to_str(), "{warning}");
        assert!(warning.location.line.is_some(), "{warning}");
    }
}

#[test]
fn the_line_of_a_warning_is_that_of_its_field() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mesh.yaml"), MESH_WITH_MISTAKES).unwrap();
    let mut source = FileSource::new(vec![dir.path().to_owned()]);
    source.reload();
    let warnings = source.lint_warnings();
    let line_of = |field: &str, word: &str| {
        let warning = warnings.iter().find(|warning| {
            warning.location.field.as_deref() == Some(field) && warning.problem.contains(word)
        });
        warning.expect(field).location.line.unwrap() as usize
    };
    let line_with =
        |text: &str| 1 + MESH_WITH_MISTAKES.lines().position(|line| line.contains(text)).unwrap();
    assert_eq!(line_of("spec.outbound[1].port", "no port 81"), line_with("port: 81"));
    assert_eq!(line_of("spec.rules[1].name", "default/wep"), line_with("name: wep"));
    assert_eq!(line_of("spec.selector", "selects no workload"), line_with("app: lost"));
}

/// Checks the warnings about these rules of `web`, except those about missing references.
fn check_rules(rules: &str, expected: &Expect) {
    let (objects, rejected) = read_str("mesh.yaml", rules);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines = lint_objects(&objects);
    let lines = lines.iter().filter(|warning| !warning.problem.contains("there is no Service"));
    let lines: Vec<String> = lines.map(|warning| format!("{warning}\n")).collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn expressions_written_for_partial_matches_cause_warnings() {
    let group = r#"
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: web}
spec:
  matches:
  - {name: anchored, pathRegex: "^/items/[0-9]+$"}
  - {name: exact, pathRegex: /buy}
  - {name: never, pathRegex: buy}
  - {name: fine, pathRegex: "/(a|b)/.*", headers: [{host: "shop.example"}]}
  - {name: either, pathRegex: "buy|/sell", headers: [{host: 'shop\.example'}, {x-tag: "a.b"}]}
"#;
    check_rules(
        group,
        &expect![[r#"
        HTTPRouteGroup default/web: spec.matches[0].pathRegex: the anchors of "^/items/[0-9]+$" have no effect: the whole value is always compared; remove ^ at the beginning and $ at the end
        HTTPRouteGroup default/web: spec.matches[1].pathRegex: matches /buy and no path below it: an expression is compared with the whole path; write "/buy.*" to match a part of the path
        HTTPRouteGroup default/web: spec.matches[2].pathRegex: can never match: "buy" does not begin with /; write "/buy"
        HTTPRouteGroup default/web: spec.matches[3].headers: an unescaped . in "shop.example" stands for any character, not only for a dot; write \. for a dot
    "#]],
    );
    let route = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules:
  - matches:
    - path: {type: RegularExpression, value: "items/.*"}
      queryParams: [{name: a, type: RegularExpression, value: "^b"}]
    backendRefs: [{name: web, port: 80}]
"#;
    check_rules(
        route,
        &expect![[r#"
        HTTPRoute default/web: spec.rules[0].matches[0].path.value: can never match: "items/.*" does not begin with /; write "/items/.*"
        HTTPRoute default/web: spec.rules[0].matches[0].queryParams[0].value: the anchors of "^b" have no effect: the whole value is always compared; remove ^ at the beginning and $ at the end
    "#]],
    );
}

#[test]
fn rules_that_an_earlier_rule_shadows_cause_warnings() {
    let route = |name: &str, rules: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{name: {name}}}\nspec:\n  parentRefs: [{{group: \"\", kind: Service, name: \
             web}}]\n  rules: [{rules}]\n"
        )
    };
    let backends = "backendRefs: [{name: web, port: 80}]";
    let conditions = "headers: [{name: x-a, value: b}, {name: x-c, value: d}]";
    let reordered_conditions = "headers: [{name: x-c, value: d}, {name: x-a, value: b}]";
    let rules = [
        route(
            "a",
            &format!("{{matches: [{{{conditions}}}], {backends}}}, {{{backends}}}, {{{backends}}}"),
        ),
        route(
            "b",
            &format!(
                "{{matches: [{{{reordered_conditions}}}, {{path: {{value: /c}}}}], {backends}}}"
            ),
        ),
    ];
    check_rules(
        &rules.concat(),
        &expect![[r#"
        HTTPRoute default/a: spec.rules[2].matches[0]: never applies: spec.rules[1] matches the same requests; remove one of the two, or change its matches
        HTTPRoute default/b: spec.rules[0].matches[0]: never applies: rules[0] of the HTTPRoute default/a, which takes precedence, matches the same requests; remove one of the two, or change its matches
    "#]],
    );
    let policies = r#"
apiVersion: leno.dev/v1alpha1
kind: FaultInjection
metadata: {name: web}
spec:
  targetRefs: [{kind: Service, name: web}]
  rules:
  - {abort: {percent: 1, httpStatus: 503}}
  - {matches: [{path: {value: /a}}], abort: {percent: 2, httpStatus: 503}}
---
apiVersion: leno.dev/v1alpha1
kind: RateLimit
metadata: {name: web}
spec:
  targetRefs: [{kind: Service, name: web}]
  rules:
  - {requests: 5, per: 1s}
  - {requests: 9, per: 1s, stop: true}
  - {matches: [{path: {value: /a}}], requests: 1, per: 1s}
---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: web}
spec:
  service: web
  rules:
  - {match: {path: {prefix: /a}}, marks: [{percent: 5, headers: {x-lane: a}}]}
  - {precedence: 1, marks: [{percent: 5, headers: {x-lane: b}}]}
"#;
    check_rules(
        policies,
        &expect![[r#"
        FaultInjection default/web: spec.rules[1]: never applies: rules[0] matches every request first; move it before that rule, or restrict the requests of that rule
        RateLimit default/web: spec.rules[2]: never applies: rules[1] matches every request first; move it before that rule, or restrict the requests of that rule
        Lane default/web: spec.rules[0]: never applies: rules[1] matches every request first; give it a greater `precedence`, or give the other rule a `match`
    "#]],
    );
}

#[test]
fn a_hint_for_a_wrong_namespace_names_the_right_one() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: shop}\n\
                   spec: {ports: [{port: 80}], selector: {app: api}}\n";
    let limit = |namespace: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: RateLimit\n\
             metadata: {{name: r, namespace: {namespace}}}\n\
             spec: {{targetRefs: [{{kind: Service, name: api}}], rules: [{{name: a, requests: 5, per: 1s}}]}}\n"
        )
    };
    let warning_in = |namespace: &str| {
        let (objects, rejected) = read_str("mesh.yaml", &format!("{service}{}", limit(namespace)));
        assert_eq!(rejected, []);
        let objects: Vec<_> = objects.into_iter().map(|(object, _)| object).collect();
        let mut warnings = lint_objects(&objects).into_iter();
        warnings
            .find(|warning| warning.problem.contains("there is no Service"))
            .map(|warning| warning.to_string())
    };
    assert_eq!(
        warning_in("default").as_deref(),
        Some(
            "RateLimit default/r: spec.targetRefs[0].name: there is no Service default/api; there is \
             one in the namespace `shop`: use that namespace"
        )
    );
    assert_eq!(warning_in("shop"), None);
}
