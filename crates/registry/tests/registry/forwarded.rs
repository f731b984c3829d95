//! Tests of policies of a service with a route that forwards its requests to other services.

use expect_test::expect;
use leno_model::Object;
use leno_registry::{lint_objects, read_str};

/// Returns a service with a route, a service with some of its instances, and services with other instances.
fn canary_manifests(backends: &str, more_manifests: &str) -> String {
    let service = |(name, number): (&str, u8), labels: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, \
             spec: {{selector: {{{labels}}}, ports: [{{port: 80, appProtocol: http}}]}}}}\n\
             ---\n{{apiVersion: leno.dev/v1alpha1, kind: Workload, \
             metadata: {{name: {name}-1, labels: {{{labels}, name: {name}}}}}, \
             spec: {{address: 127.0.0.{number}, ports: [{{port: 80, protocol: HTTP}}]}}}}\n"
        )
    };
    let route = format!(
        "---\n{{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {{name: api}}, \
         spec: {{parentRefs: [{{group: '', kind: Service, name: api}}], rules: [{backends}]}}}}\n"
    );
    let manifests = [
        service(("api", 1), "app: api"),
        service(("api-v1", 2), "app: api, version: v1"),
        service(("next", 3), "app: next"),
        service(("third", 4), "app: third"),
        route,
        more_manifests.to_owned(),
    ];
    manifests.concat()
}

fn policy_for(kind: &str, name: &str, targets: &str, spec: &str) -> String {
    let targets: Vec<String> =
        targets.split(' ').map(|target| format!("{{kind: Service, name: {target}}}")).collect();
    format!(
        "---\n{{apiVersion: leno.dev/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, \
         spec: {{targetRefs: [{}], {spec}}}}}\n",
        targets.join(", ")
    )
}

fn lint_warnings(text: &str) -> String {
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect()
}

/// Returns one policy of each kind for a service.
fn policies_of_each_kind(targets: &str) -> String {
    [
        policy_for("CircuitBreaker", "breaker", targets, "limits: {requests: 2}"),
        policy_for("OutlierDetection", "removal", targets, "consecutiveFailures: 5"),
        policy_for("LoadBalancing", "balancing", targets, "algorithm: RoundRobin"),
        policy_for("Hedging", "hedging", targets, "after: 50ms"),
        policy_for(
            "FaultInjection",
            "faults",
            targets,
            "rules: [{abort: {httpStatus: 500, percent: 50}}]",
        ),
        policy_for("RateLimit", "limit", targets, "rules: [{requests: 5, per: 1s}]"),
    ]
    .concat()
}

#[test]
fn policies_of_a_called_service_apply_where_its_routes_forward() {
    let forwarding_rule =
        "{backendRefs: [{name: api-v1, port: 80, weight: 8}, {name: next, port: 80}]}";
    assert_eq!(
        lint_warnings(&canary_manifests(forwarding_rule, &policies_of_each_kind("api"))),
        ""
    );
    // A share for the service itself, clients without a match, and policies of a backend.
    let partly_forwarding_rule = "{backendRefs: [{name: api, port: 80}, {name: next, port: 80}]}";
    let backend_policy = policy_for("OutlierDetection", "theirs", "next", "consecutiveFailures: 5");
    assert_eq!(
        lint_warnings(&canary_manifests(
            partly_forwarding_rule,
            &format!("{}{backend_policy}", policies_of_each_kind("api"))
        )),
        ""
    );
}

#[test]
fn policies_of_a_service_whose_route_forwards_everything_cause_warnings() {
    let forwarding_rule =
        "{backendRefs: [{name: next, port: 80}, {name: third, port: 80, weight: 0}]}";
    let backend_policies = [
        policy_for("OutlierDetection", "own-removal", "next", "consecutiveFailures: 5"),
        policy_for("LoadBalancing", "own-balancing", "next", "algorithm: Random"),
    ];
    let policies = format!("{}{}", policies_of_each_kind("third"), backend_policies.concat())
        .replace("name: third", "name: lone");
    let lone_service = "---\n{apiVersion: v1, kind: Service, metadata: {name: lone}, \
         spec: {selector: {app: lone}, ports: [{port: 80, appProtocol: http}]}}\n\
         ---\n{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: lone-1, \
         labels: {app: lone}}, spec: {address: 127.0.0.5, ports: [{port: 80, protocol: HTTP}]}}\n";
    let split = "---\n{apiVersion: split.smi-spec.io/v1alpha4, kind: TrafficSplit, \
         metadata: {name: lone}, spec: {service: lone, backends: [{service: next, weight: 1}]}}\n";
    let text = canary_manifests(forwarding_rule, &format!("{policies}{lone_service}{split}"));
    expect![[r#"
        OutlierDetection default/removal: spec.targetRefs[0]: has no effect: TrafficSplit default/lone forwards all requests to default/next, and each of these has its own policy, such as OutlierDetection default/own-removal; remove it, or the policies of the other services
        LoadBalancing default/balancing: spec.targetRefs[0]: has no effect: TrafficSplit default/lone forwards all requests to default/next, and each of these has its own policy, such as LoadBalancing default/own-balancing; remove it, or the policies of the other services
        RateLimit default/limit: spec.targetRefs[0]: has no effect: TrafficSplit default/lone forwards all requests to default/next, and no workload of default/lone receives any; attach it to default/next
    "#]].assert_eq(&lint_warnings(&text));
}

#[test]
fn connections_follow_the_tls_routes_and_the_tcp_route_of_a_port() {
    let services = "---\n{apiVersion: v1, kind: Service, metadata: {name: lone}, \
         spec: {selector: {app: lone}, ports: [{port: 80, appProtocol: tcp}]}}\n\
         ---\n{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: lone-1, \
         labels: {app: lone}}, spec: {address: 127.0.0.5, ports: [{port: 80, protocol: TCP}]}}\n";
    let parent = "parentRefs: [{group: '', kind: Service, name: lone}]";
    let routes = format!(
        "---\n{{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {{name: tls}}, \
         spec: {{{parent}, hostnames: [a.example], rules: [{{backendRefs: [{{name: next, port: 80}}]}}]}}}}\n\
         ---\n{{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {{name: tcp}}, \
         spec: {{{parent}, rules: [{{backendRefs: [{{name: third, port: 80}}]}}]}}}}\n"
    );
    let policies = [
        policy_for("RateLimit", "limit", "lone", "connections: {count: 5, per: 1s}"),
        policy_for("LoadBalancing", "next-balancing", "next", "algorithm: Random"),
        policy_for("LoadBalancing", "lone-balancing", "lone", "algorithm: Random"),
    ];
    let text = canary_manifests("{}", &format!("{services}{routes}{}", policies.concat()));
    expect![[r#"
        RateLimit default/limit: spec.targetRefs[0]: has no effect: TLSRoute default/tls and TCPRoute default/tcp forward all requests to default/next, default/third, and no workload of default/lone receives any; attach it to default/next and default/third
    "#]].assert_eq(&lint_warnings(&text));
}

#[test]
fn policies_of_a_service_whose_route_responds_to_everything_cause_warnings() {
    let redirect = "{filters: [{type: RequestRedirect, requestRedirect: {hostname: example.org}}]}";
    expect![[r#"
        CircuitBreaker default/breaker: spec.targetRefs[0]: has no effect: HTTPRoute default/api answers all requests to default/api without forwarding any; attach it to the service that receives the requests
        OutlierDetection default/removal: spec.targetRefs[0]: has no effect: HTTPRoute default/api answers all requests to default/api without forwarding any; attach it to the service that receives the requests
        LoadBalancing default/balancing: spec.targetRefs[0]: has no effect: HTTPRoute default/api answers all requests to default/api without forwarding any; attach it to the service that receives the requests
        Hedging default/hedging: spec.targetRefs[0]: has no effect: HTTPRoute default/api answers all requests to default/api without forwarding any; attach it to the service that receives the requests
        FaultInjection default/faults: spec.targetRefs[0]: has no effect: HTTPRoute default/api answers all requests to default/api without forwarding any; attach it to the service that receives the requests
    "#]].assert_eq(&lint_warnings(&canary_manifests(redirect, &policies_of_each_kind("api"))));
}

/// Returns a service with these ports, and one workload behind it.
fn service_with_ports(ports: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: api}}, \
         spec: {{selector: {{app: api}}, ports: [{ports}]}}}}\n\
         ---\n{{apiVersion: leno.dev/v1alpha1, kind: Workload, \
         metadata: {{name: api-1, labels: {{app: api}}}}, spec: {{address: 127.0.0.1}}}}\n"
    )
}

const TCP_PORT: &str = "{name: bytes, port: 90, appProtocol: tcp}";
const HTTP_PORT: &str = "{name: web, port: 80, appProtocol: http}";

/// Returns policies that depend on requests, and a retry policy.
fn request_policies() -> String {
    let policy = |kind: &str, name: &str, spec: &str| policy_for(kind, name, "api", spec);
    let retry = "---\n{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, \
         metadata: {name: retry}, spec: {source: {kind: ServiceAccount, name: default, \
         namespace: default}, destinations: [{kind: Service, name: api, namespace: default}], \
         retryPolicy: {retryOn: 5xx, numRetries: 2}}}\n";
    [
        policy("CircuitBreaker", "breaker", "limits: {requests: 2, pending: 1}"),
        policy("OutlierDetection", "removal", "consecutiveFailures: 5, failures: [5xx]"),
        policy("LoadBalancing", "balancing", "algorithm: Maglev, key: {header: x}"),
        policy("Hedging", "hedging", "after: 50ms"),
        policy("FaultInjection", "faults", "rules: [{abort: {httpStatus: 500}}]"),
        policy("RateLimit", "limit", "rules: [{requests: 5, per: 1s}]"),
        retry.to_owned(),
    ]
    .concat()
}

#[test]
fn request_policies_on_tcp_ports_cause_warnings() {
    let text = format!("{}{}", service_with_ports(TCP_PORT), request_policies());
    expect![[r#"
        CircuitBreaker default/breaker: spec.targetRefs[0]: has no effect: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
        OutlierDetection default/removal: spec.targetRefs[0]: has no effect: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
        LoadBalancing default/balancing: spec.targetRefs[0]: has no effect: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
        Hedging default/hedging: spec.targetRefs[0]: has no effect: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
        FaultInjection default/faults: spec.targetRefs[0]: has no effect: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
        RateLimit default/limit: spec.targetRefs[0]: has no effect except to reject connections with HTTP: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
        Retry default/retry: spec.destinations: has no effect: the ports of default/api carry TCP, in which requests are not visible; name a service with a port that speaks HTTP, or remove the policy
    "#]].assert_eq(&lint_warnings(&text));
    // One HTTP port suffices for a policy of the whole service, but not for a policy of the other port.
    let two_ports = service_with_ports(&format!("{HTTP_PORT}, {TCP_PORT}"));
    assert_eq!(lint_warnings(&format!("{two_ports}{}", request_policies())), "");
    let hedging = "---\n{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {name: h}, \
         spec: {targetRefs: [{kind: Service, name: api, port: PORT}], after: 50ms}}\n";
    let warnings_of_port =
        |port: &str| lint_warnings(&format!("{two_ports}{}", hedging.replace("PORT", port)));
    assert_eq!(warnings_of_port("80"), "");
    expect![[r#"
        Hedging default/h: spec.targetRefs[0]: has no effect: port 90 of default/api carries TCP, in which requests are not visible; attach it to a port that speaks HTTP, or remove it
    "#]].assert_eq(&warnings_of_port("90"));
}

#[test]
fn connection_policies_apply_to_tcp_ports() {
    let policy = |kind: &str, name: &str, spec: &str| policy_for(kind, name, "api", spec);
    let policies = [
        policy("CircuitBreaker", "breaker", "limits: {requests: 2, connections: 2}"),
        policy("OutlierDetection", "removal", "consecutiveFailures: 5"),
        policy("LoadBalancing", "balancing", "algorithm: Maglev, key: {source: true}"),
        policy("RateLimit", "limit", "connections: {count: 5, per: 1s}"),
    ];
    assert_eq!(
        lint_warnings(&format!("{}{}", service_with_ports(TCP_PORT), policies.concat())),
        ""
    );
    // A route of another service forwards requests to the port.
    let front = "---\n{apiVersion: v1, kind: Service, metadata: {name: front}, \
         spec: {selector: {app: api}, ports: [{port: 80, targetPort: 80, appProtocol: http}]}}\n\
         ---\n{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: front}, \
         spec: {parentRefs: [{group: '', kind: Service, name: front}], \
         rules: [{backendRefs: [{name: api, port: 90}]}]}}\n";
    let hedging = policy("Hedging", "hedging", "after: 50ms");
    assert_eq!(lint_warnings(&format!("{}{front}{hedging}", service_with_ports(TCP_PORT))), "");
}

/// Returns tag rules of each kind for a service.
fn tag_rules(service: &str) -> String {
    format!(
        "---\n{{apiVersion: leno.dev/v1alpha1, kind: TagRoute, metadata: {{name: tags}}, \
         spec: {{service: {service}, fallbackPolicy: any, rules: [{{split: [{{tags: {{app: {service}}}}}]}}]}}}}\n\
         ---\n{{apiVersion: leno.dev/v1alpha1, kind: Lane, metadata: {{name: lane}}, \
         spec: {{service: {service}, rules: [{{marks: [{{percent: 60, headers: {{x-lane: gray}}}}]}}]}}}}\n"
    )
}

#[test]
fn tag_rules_of_a_service_whose_route_forwards_everything_cause_warnings() {
    let forwarding_rule = "{backendRefs: [{name: next, port: 80}]}";
    expect![[r#"
        TagRoute default/tags: spec.service: has no effect: HTTPRoute default/api forwards all requests to default/next, and tag rules select from the endpoints of default/api only; write the rules for default/next, or remove them
    "#]].assert_eq(&lint_warnings(&canary_manifests(forwarding_rule, &tag_rules("api"))));
    // Another service with the same workloads receives no requests of the route, but can be called.
    let same_workloads = canary_manifests(forwarding_rule, &tag_rules("third"))
        .replace("name: api}], rules", "name: third}], rules");
    expect![[r#"
        TagRoute default/tags: spec.service: has no effect: HTTPRoute default/api forwards all requests to default/next, and tag rules select from the endpoints of default/third only; write the rules for default/next, or remove them
        Lane default/lane: spec.service: has no effect: HTTPRoute default/api forwards all requests to default/next, and no workload of default/third receives any; attach it to default/next
    "#]].assert_eq(&lint_warnings(&same_workloads));
    // Rules of the backend, of a service that keeps a share, and of a service that another route forwards to.
    assert_eq!(lint_warnings(&canary_manifests(forwarding_rule, &tag_rules("next"))), "");
    let partly_forwarding_rule = "{backendRefs: [{name: api, port: 80}, {name: next, port: 80}]}";
    assert_eq!(lint_warnings(&canary_manifests(partly_forwarding_rule, &tag_rules("api"))), "");
    let other_route = "---\n{apiVersion: split.smi-spec.io/v1alpha4, kind: TrafficSplit, \
         metadata: {name: third}, spec: {service: third, backends: [{service: api, weight: 1}]}}\n";
    assert_eq!(
        lint_warnings(&canary_manifests(
            forwarding_rule,
            &format!("{}{other_route}", tag_rules("api"))
        )),
        ""
    );
    let outlier_detection =
        policy_for("OutlierDetection", "theirs", "api next", "consecutiveFailures: 5");
    let redirect = "{filters: [{type: RequestRedirect, requestRedirect: {hostname: example.org}}]}";
    let policies =
        [outlier_detection, policies_of_each_kind("api"), other_route.to_owned()].concat();
    let warnings = lint_warnings(&canary_manifests(redirect, &policies));
    assert!(!warnings.contains("has no effect: HTTPRoute default/api answers"), "{warnings}");
}

/// A retry policy for requests to `api`.
const RETRY: &str = "---\n{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, \
     metadata: {name: retry}, spec: {source: {kind: ServiceAccount, name: default, \
     namespace: default}, destinations: [{kind: Service, name: api, namespace: default}], \
     retryPolicy: {retryOn: 5xx, numRetries: 2}}}\n";

#[test]
fn a_retry_policy_that_all_route_rules_override_causes_a_warning() {
    let backends = "backendRefs: [{name: next, port: 80}]";
    let with_retry = format!("{{retry: {{codes: [503]}}, {backends}}}");
    let also_with_retry =
        format!("{{retry: {{codes: [502]}}, matches: [{{path: {{value: /a}}}}], {backends}}}");
    let redirect = "{matches: [{path: {value: /b}}], filters: [{type: RequestRedirect, \
         requestRedirect: {hostname: example.org}}]}";
    let warnings_of = |rules: &str| lint_warnings(&canary_manifests(rules, RETRY));
    expect![[r#"
        Retry default/retry: spec.destinations[0]: has no effect: HTTPRoute default/api has a `retry` in each rule that forwards requests to default/api; remove it, or the `retry` of a rule
    "#]].assert_eq(&warnings_of(&format!("{with_retry}, {also_with_retry}, {redirect}")));
    expect![[r#"
        Retry default/retry: spec.destinations[0]: has no effect: HTTPRoute default/api answers all requests to default/api without forwarding any; attach it to the service that receives the requests
    "#]].assert_eq(&warnings_of(&redirect.replace("matches: [{path: {value: /b}}], ", "")));
    let without_retry = format!("{{matches: [{{path: {{value: /c}}}}], {backends}}}");
    assert_eq!(warnings_of(&format!("{with_retry}, {without_retry}")), "");
    assert_eq!(warnings_of(&format!("{{{backends}}}")), "");
}
