//! The status of every kind of policy and route: in effect, or the reason why it has no effect.

use leno_control::status::{PolicyStatus, RouteStatus};

use crate::{MESH, Shop, run};

const RULES: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: a, namespace: shop}
spec: {targetRefs: [{kind: Service, name: stock}], consecutiveFailures: 3}
---
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: b, namespace: shop}
spec: {targetRefs: [{kind: Service, name: stock}], consecutiveFailures: 5}
---
apiVersion: leno.dev/v1alpha1
kind: Hedging
metadata: {name: lost, namespace: shop}
spec: {targetRefs: [{kind: Service, name: nobody}], after: 50ms}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: all, namespace: shop}
spec: {scope: namespace, fallbackPolicy: any, rules: [{split: [{tags: {version: "2"}}], fallbackPolicy: any}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: stock, namespace: shop}
spec: {service: stock, fallbackPolicy: any, rules: [{split: [{tags: {version: "1"}}], fallbackPolicy: any}]}
---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: gray, namespace: shop}
spec: {service: stock, rules: [{marks: [{percent: 60, headers: {x-lane: gray}}]}]}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out, namespace: shop}
spec:
  sources: [{kind: ServiceAccount, name: client, namespace: shop}]
  hosts: [api.example]
  ports: [{number: 80, protocol: http}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: again, namespace: shop}
spec:
  source: {kind: ServiceAccount, name: client, namespace: shop}
  destinations: [{kind: Service, name: stock, namespace: shop}]
  retryPolicy: {retryOn: 5xx, numRetries: 2}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: first, namespace: shop}
spec:
  source: {kind: ServiceAccount, name: client, namespace: shop}
  destinations: [{kind: Service, name: stock, namespace: shop}]
  retryPolicy: {retryOn: 5xx, numRetries: 1}
---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: deny, egress: allow}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: stock, namespace: shop}
spec:
  parentRefs:
  - {group: "", kind: Service, name: stock}
  - {group: "", kind: Service, name: stock, port: 81}
  rules: [{backendRefs: [{name: stock, port: 80}, {name: gone, port: 80}]}]
"#;

/// Returns the statuses of a mesh's policies, once there are this many.
async fn wait_for_policies(shop: &Shop, min_count: usize) -> Vec<PolicyStatus> {
    loop {
        let policies: Vec<PolicyStatus> = shop.query_json("/policies").await;
        if policies.len() >= min_count {
            return policies;
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the reason why a policy is not in force.
fn inactive_reason<'a>(policies: &'a [PolicyStatus], name: &str) -> Option<&'a str> {
    let status = policies.iter().find(|policy| policy.name == name).expect(name);
    assert_eq!(status.in_force, status.reason.is_none(), "{name}");
    status.reason.as_deref()
}

#[test]
fn every_kind_of_rules_has_a_status_with_its_cause() {
    run(async {
        let shop = Shop::open().await;
        let file = shop.directory.path().join("mesh.yaml");
        shop.write_objects(&format!("{MESH}{RULES}"));
        let policies = wait_for_policies(&shop, 1).await;
        let rejected: serde_json::Value = shop.query_json("/rejected").await;
        assert_eq!(rejected["rejected"], serde_json::json!([]), "{}", file.display());
        let status = |kind: &str, name: &str| {
            let mut found = policies.iter();
            found
                .find(|policy| (policy.kind.as_str(), policy.name.as_str()) == (kind, name))
                .expect(name)
        };
        for (kind, name, reason) in [
            ("OutlierDetection", "shop/a", None),
            (
                "OutlierDetection",
                "shop/b",
                Some("OutlierDetection shop/a takes precedence at all of its targets"),
            ),
            ("Hedging", "shop/lost", Some("none of its targets exists")),
            ("TagRoute", "shop/all", Some("TagRoute shop/stock takes precedence")),
            ("TagRoute", "shop/stock", None),
            ("Lane", "shop/gray", None),
            ("Egress", "shop/out", Some("no effect: spec.egress is allow")),
            ("Retry", "shop/again", None),
            ("Retry", "shop/first", Some("Retry shop/again applies to the same requests")),
        ] {
            let status = status(kind, name);
            assert_eq!(
                (status.in_force, status.reason.as_deref()),
                (reason.is_none(), reason),
                "{name}"
            );
        }
        assert_eq!(status("Hedging", "shop/lost").problems, ["Service shop/nobody does not exist"]);
        assert_eq!(status("TagRoute", "shop/all").destinations, ["shop/*"]);

        let routes: Vec<RouteStatus> = shop.query_json("/routes").await;
        let attached = &routes[0].attached;
        let statuses: Vec<(&str, bool, bool)> = attached
            .iter()
            .map(|parent| (parent.parent.as_str(), parent.accepted, parent.resolved))
            .collect();
        assert_eq!(statuses, [("shop/stock", true, false), ("shop/stock:81", false, false)]);
        assert_eq!(attached[0].reasons, ["Service shop/gone does not exist"]);
        let all_reasons = ["Service shop/stock has no port 81", "Service shop/gone does not exist"];
        assert_eq!(attached[1].reasons, all_reasons);
    });
}

/// A service with two ports, and one of another owner.
const ROUTES: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: two, namespace: shop}
spec:
  selector: {app: stock}
  ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 81, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: bank}
spec: {selector: {app: vault}, ports: [{port: 443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: away, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: stock}]
  hostnames: [vault.example]
  rules: [{backendRefs: [{name: vault, namespace: bank, port: 443}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: a, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: two}, {group: "", kind: Service, name: two, port: 80}]
  rules: [{backendRefs: [{name: stock, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: a, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: two, port: 80}]
  rules: [{backendRefs: [{name: stock, port: 80}]}]
"#;

#[test]
fn a_route_is_rejected_only_where_it_has_no_effect() {
    run(async {
        let shop = Shop::open().await;
        shop.write_objects(&format!("{MESH}{ROUTES}"));
        let routes = loop {
            let routes: Vec<RouteStatus> = shop.query_json("/routes").await;
            if !routes.is_empty() {
                break routes;
            }
            tokio::task::yield_now().await;
        };
        let route_of = |kind: &str| routes.iter().find(|route| route.kind == kind).expect(kind);
        let reason = "GRPCRoute shop/a is attached to the same port and takes precedence";
        // The HTTPRoute applies at the other port.
        let http = route_of("HTTPRoute");
        let statuses: Vec<(&str, bool)> =
            http.attached.iter().map(|parent| (parent.parent.as_str(), parent.accepted)).collect();
        assert_eq!(statuses, [("shop/two", true), ("shop/two:80", false)]);
        assert_eq!(http.attached[0].reasons, [""; 0]);
        assert_eq!(http.attached[1].reasons, [reason]);
        assert_eq!(http.problems, [reason]);
        let ungranted = "no ReferenceGrant permits the Service bank/vault";
        let tls = route_of("TLSRoute");
        assert_eq!((tls.attached[0].accepted, tls.attached[0].resolved), (true, false));
        assert_eq!(tls.problems, [ungranted]);
    });
}

/// A service with a split that forwards everything to another one, and policies of both.
const SPLIT: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: away, namespace: shop}
spec: {selector: {app: away}, ports: [{port: 80, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec: {selector: {app: next}, ports: [{port: 80, appProtocol: http}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: all, namespace: shop}
spec: {service: away, backends: [{service: next, weight: 1}]}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: breaker, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: away}], limits: {requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: OutlierDetection, metadata: {name: removal, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: away}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: OutlierDetection, metadata: {name: own, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: next}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: RateLimit, metadata: {name: limit, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: away}], rules: [{requests: 5, per: 1s}]}}
"#;

#[test]
fn a_policy_without_effect_is_not_in_force_and_names_the_forwarding_route() {
    run(async {
        let shop = Shop::open().await;
        shop.write_objects(&format!("{MESH}{SPLIT}"));
        let policies = wait_for_policies(&shop, 4).await;
        for (name, expected) in [
            ("shop/breaker", None),
            ("shop/own", None),
            (
                "shop/removal",
                Some(
                    "TrafficSplit shop/all forwards all requests to shop/next, and each of these has its own policy, such as \
                     OutlierDetection shop/own",
                ),
            ),
            (
                "shop/limit",
                Some(
                    "TrafficSplit shop/all forwards all requests to shop/next, and no workload of \
                     shop/away receives any",
                ),
            ),
        ] {
            assert_eq!(inactive_reason(&policies, name), expected, "{name}");
        }
    });
}

/// A service with one port, which carries TCP, one with a second port, and policies for requests.
const TCP_SERVICES: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: bytes, namespace: shop}
spec: {selector: {app: bytes}, ports: [{port: 90, appProtocol: tcp}]}
---
apiVersion: v1
kind: Service
metadata: {name: both, namespace: shop}
spec: {selector: {app: bytes}, ports: [{name: a, port: 90, appProtocol: tcp}, {name: b, port: 80, appProtocol: http}]}
---
{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {name: hedging, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], after: 50ms}}
---
{apiVersion: leno.dev/v1alpha1, kind: RateLimit, metadata: {name: limit, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], rules: [{requests: 5, per: 1s}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: breaker, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], limits: {connections: 2, requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: FaultInjection, metadata: {name: faults, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: both}], rules: [{abort: {httpStatus: 503}}]}}
---
{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, metadata: {name: retry, namespace: shop},
 spec: {source: {kind: ServiceAccount, name: client, namespace: shop},
        destinations: [{kind: Service, name: bytes, namespace: shop}],
        retryPolicy: {retryOn: 5xx, numRetries: 2}}}
"#;

#[test]
fn a_policy_for_requests_is_not_in_force_if_each_port_carries_tcp() {
    run(async {
        let shop = Shop::open().await;
        shop.write_objects(&format!("{MESH}{TCP_SERVICES}"));
        let policies = wait_for_policies(&shop, 5).await;
        let reason = |name| inactive_reason(&policies, name);
        let port = Some("port 90 of shop/bytes carries TCP, in which requests are not visible");
        assert_eq!((reason("shop/hedging"), reason("shop/limit")), (port, port));
        assert_eq!((reason("shop/breaker"), reason("shop/faults")), (None, None));
        let ports = "the ports of shop/bytes carry TCP, in which requests are not visible";
        assert_eq!(reason("shop/retry"), Some(ports));
    });
}

/// Tag rules and lanes of a service with a split for all its requests, and of the backend.
const SPLIT_TAGS: &str = r#"
---
{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: away-1, namespace: shop, labels: {app: away}},
 spec: {address: 127.0.0.9, ports: [{port: 80, protocol: HTTP}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: TagRoute, metadata: {name: tags, namespace: shop},
 spec: {service: away, fallbackPolicy: any, rules: [{split: [{tags: {version: "2"}}]}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: TagRoute, metadata: {name: theirs, namespace: shop},
 spec: {service: next, fallbackPolicy: any, rules: [{split: [{tags: {version: "2"}}]}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: Lane, metadata: {name: lane, namespace: shop},
 spec: {service: away, rules: [{marks: [{percent: 60, headers: {x-lane: gray}}]}]}}
"#;

#[test]
fn tag_rules_are_not_in_force_if_a_route_forwards_everything() {
    run(async {
        let shop = Shop::open().await;
        shop.write_objects(&format!("{MESH}{SPLIT}{SPLIT_TAGS}"));
        let policies = wait_for_policies(&shop, 7).await;
        let reason = |name| inactive_reason(&policies, name);
        let all = "TrafficSplit shop/all forwards all requests to shop/next, and";
        let tags = format!("{all} tag rules select from the endpoints of shop/away only");
        assert_eq!((reason("shop/tags"), reason("shop/theirs")), (Some(&*tags), None));
        let lane = format!("{all} no workload of shop/away receives any");
        assert_eq!(reason("shop/lane"), Some(&*lane));
    });
}

/// A route with its own `retry`, and a retry policy for the same requests.
const OWN_RETRY: &str = r#"
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: stock, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: stock}]
  rules: [{retry: {codes: [503]}, backendRefs: [{name: stock, port: 80}]}]
---
{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, metadata: {name: again, namespace: shop},
 spec: {source: {kind: ServiceAccount, name: client, namespace: shop},
        destinations: [{kind: Service, name: stock, namespace: shop}],
        retryPolicy: {retryOn: 5xx, numRetries: 2}}}
"#;

#[test]
fn a_retry_is_not_in_force_if_each_rule_of_the_route_has_retries() {
    run(async {
        let shop = Shop::open().await;
        shop.write_objects(&format!("{MESH}{OWN_RETRY}"));
        let policies = wait_for_policies(&shop, 1).await;
        let reason =
            "HTTPRoute shop/stock has a `retry` in each rule that forwards requests to shop/stock";
        assert_eq!((policies[0].in_force, policies[0].reason.as_deref()), (false, Some(reason)));
    });
}
