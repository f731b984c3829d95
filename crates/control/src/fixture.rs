//! Test fixtures: meshes from YAML, the sample application Bookinfo, and random changes.

use std::net::SocketAddr;

use leno_model::{Change, Object, ObjectKey, ServiceName, WorkloadName};
use leno_registry::read_str;

use crate::mesh::{Listeners, Mesh};

/// Parses the objects of a YAML text, all of which must be valid.
pub(crate) fn parse_objects(yaml: &str) -> Vec<Object> {
    let (objects, rejected) = read_str("test.yaml", yaml);
    assert!(rejected.is_empty(), "{rejected:#?}");
    objects.into_iter().map(|(object, _)| object).collect()
}

/// Returns a mesh with a connected sidecar for every workload.
pub(crate) fn mesh_with_sidecars(yaml: &str) -> Mesh {
    let mut mesh: Mesh = parse_objects(yaml).into_iter().collect();
    connect_sidecars(&mut mesh);
    mesh
}

/// Connects every sidecar: the one of workload n listens at 10.0.0.n.
pub(crate) fn connect_sidecars(mesh: &mut Mesh) {
    let connected: Vec<(WorkloadName, Listeners)> = mesh
        .workloads()
        .enumerate()
        .map(|(index, workload)| {
            let host = [10, 0, 0, u8::try_from(index + 1).unwrap()];
            let ports = workload.ports.iter().map(|port| port.port);
            let listeners = ports.map(|port| (port, SocketAddr::from((host, port + 10_000))));
            (workload.name.clone(), listeners.collect())
        })
        .collect();
    for (name, listeners) in connected {
        mesh.set_listeners(&name, Some(listeners));
    }
}

pub(crate) fn workload_name(name: &str) -> WorkloadName {
    WorkloadName::new("bookinfo", name).unwrap()
}

pub(crate) fn service_name(name: &str) -> ServiceName {
    ServiceName::new("bookinfo", name).unwrap()
}

/// Bookinfo with `defaultPolicy: allow`: productpage calls details and reviews, which is split over two
/// versions.
pub(crate) const BOOKINFO: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: productpage-1, namespace: bookinfo, labels: {app: productpage}}
spec:
  serviceAccount: productpage
  ports: [{name: http, port: 9080, protocol: HTTP}]
  outbound: [{service: reviews.bookinfo, port: 9080, listen: "127.0.0.1:19080"}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: details-1, namespace: bookinfo, labels: {app: details}}
spec: {serviceAccount: details, ports: [{name: http, port: 9081, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: reviews-v1-1, namespace: bookinfo, labels: {app: reviews, version: v1}}
spec: {serviceAccount: reviews, ports: [{name: http, port: 9082, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: reviews-v2-1, namespace: bookinfo, labels: {app: reviews, version: v2}}
spec: {serviceAccount: reviews-beta, ports: [{name: http, port: 9083, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stranger-1, namespace: bookinfo, labels: {app: stranger}}
spec: {serviceAccount: stranger}
---
apiVersion: v1
kind: Service
metadata: {name: productpage, namespace: bookinfo}
spec: {selector: {app: productpage}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: details, namespace: bookinfo}
spec: {selector: {app: details}, ports: [{name: http, port: 9080, targetPort: 9081}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: bookinfo}
spec: {selector: {app: reviews}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews-v1, namespace: bookinfo}
spec: {selector: {app: reviews, version: v1}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews-v2, namespace: bookinfo}
spec: {selector: {app: reviews, version: v2}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews, port: 9080}]
  rules:
  - backendRefs: [{name: reviews-v1, port: 9080, weight: 90}, {name: reviews-v2, port: 9080, weight: 10}]
"#;

/// Additions that make [`BOOKINFO`] deny by default: only productpage may call anything, namely reviews v1.
pub(crate) const DEFAULT_DENY: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: deny}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: reviews, namespace: bookinfo}
spec:
  matches:
  - {name: read, pathRegex: "/reviews/[0-9]+", methods: [GET]}
  - {name: write, pathRegex: "/reviews/[0-9]+", methods: [PUT]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: reviews, namespace: bookinfo}
spec:
  destination: {kind: ServiceAccount, name: reviews, namespace: bookinfo}
  sources: [{kind: ServiceAccount, name: productpage, namespace: bookinfo}]
  rules: [{kind: HTTPRouteGroup, name: reviews, matches: [read]}]
"#;

/// Returns [`BOOKINFO`] with [`DEFAULT_DENY`] and more documents.
pub(crate) fn default_deny_bookinfo(documents: &str) -> String {
    format!("{BOOKINFO}{DEFAULT_DENY}{documents}")
}

/// Random numbers from a seed (xorshift64*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next_below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(random).unwrap() % bound
    }

    pub(crate) fn pick<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.next_below(names.len())]
    }
}

/// A small set of names, so that objects often refer to each other.
pub(crate) const LETTERS: &[&str] = &["a", "b", "c", "d"];

/// Returns the `spec` of an `OutlierDetection` of two services.
fn outlier_spec([one, two]: [&str; 2], [port, failures]: [&str; 2]) -> String {
    format!(
        "spec: {{targetRefs: [{{kind: Service, name: {one}, port: {port}}}, \
         {{kind: Service, name: {two}}}], consecutiveFailures: {failures}}}"
    )
}

/// Returns the `spec` of a `SermantRemoval` with a rule for one service.
fn sermant_spec(service: &str, min_instances: &str) -> String {
    format!(
        "spec: {{compat: sermant, config: '{{enableRemoval: true, \
         rules: [{{key: {service}, minInstanceNum: {min_instances}}}, {{key: default-rule}}]}}'}}"
    )
}

/// Returns the `spec` of a `TagRoute` of one service.
fn tag_spec(service: &str, tier: &str, tag: &str) -> String {
    format!(
        "spec: {{service: {service}, fallbackPolicy: any, rules: [{{split: [{{tags: {{tier: {tier}}}}}]}}], \
         preferSameTag: [{{tags: [{tag}]}}]}}"
    )
}

/// Returns the `spec` of a `TagRoute` of many services with a rule that matches the caller.
fn caller_spec(scope: &str, tier: &str, app: &str) -> String {
    format!(
        "spec: {{scope: {scope}, fallbackPolicy: fail, rules: [{{from: {{tags: {{tier: {tier}}}}}, \
         split: [{{tags: {{app: {app}}}}}]}}]}}"
    )
}

/// Returns the `spec` of a `Lane`.
fn lane_spec(service: &str, lane: &str) -> String {
    format!("spec: {{service: {service}, rules: [{{marks: [{{headers: {{x-lane: {lane}}}}}]}}]}}")
}

/// Returns the `spec` of a route to two backends, the second at `other_port`.
fn route_spec([parent, port]: [&str; 2], [one, two]: [&str; 2], other_port: &str) -> String {
    format!(
        "spec: {{parentRefs: [{{group: \"\", kind: Service, name: {parent}, port: {port}}}], \
         rules: [{{backendRefs: [{{name: {one}, port: 80}}, {{name: {two}, port: {other_port}}}]}}]}}"
    )
}

/// Returns the `spec` of a `TrafficSplit`; `matches` is one of [`MATCHES`].
fn split_spec([root, backend]: [&str; 2], matches: &str) -> String {
    format!("spec: {{service: {root}, {matches}backends: [{{service: {backend}, weight: 1}}]}}")
}

/// Returns the API version of a kind of route.
fn gateway_version(kind: &str) -> &'static str {
    match kind {
        "TCPRoute" => "gateway.networking.k8s.io/v1alpha2",
        _ => "gateway.networking.k8s.io/v1",
    }
}

/// Returns the `spec` of a `Service` that selects by two labels.
fn service_spec([app, tier]: [&str; 2], port: &str) -> String {
    format!(
        "spec: {{selector: {{app: {app}, tier: {tier}}}, ports: [{{port: 80, targetPort: {port}}}]}}"
    )
}

/// Returns two labels as YAML that follows the name in `metadata`.
fn label_lines(app: &str, tier: &str) -> String {
    format!(", labels: {{app: {app}, tier: {tier}}}")
}

/// The kinds of routes with the same schema.
const ROUTES: &[&str] = &["HTTPRoute", "HTTPRoute", "GRPCRoute", "TCPRoute"];
/// The API version of `TrafficSplit`.
const SMI_SPLIT: &str = "split.smi-spec.io/v1alpha4";
/// The `matches` of a `TrafficSplit`, as YAML.
const MATCHES: &[&str] = &["", "matches: [{kind: HTTPRouteGroup, name: a}], "];
/// Scopes of a `TagRoute` other than one service.
const SCOPES: &[&str] = &["mesh", "namespace"];

/// Returns the `spec` of an `AccessPolicy`.
fn access_spec(account: &str, peer: &str) -> String {
    format!(
        "spec: {{serviceAccounts: [{account}], deny: [{{ports: [81]}}], \
         allow: [{{from: [{{serviceAccount: \"{peer}*\"}}]}}]}}"
    )
}

/// Returns the `spec` of an `IngressBackend`.
fn ingress_spec([service, source, group]: [&str; 3], port: &str) -> String {
    format!(
        "spec: {{backends: [{{name: {service}, port: {{number: {port}, protocol: http}}}}], \
         sources: [{{kind: IPRange, name: 10.0.0.0/8}}, \
         {{kind: Service, name: {source}, namespace: bookinfo}}], \
         matches: [{{kind: HTTPRouteGroup, name: {group}}}]}}"
    )
}

/// Returns the `spec` of an `Egress`.
fn egress_spec(account: &str, group: &str, port: &str) -> String {
    format!(
        "spec: {{sources: [{{kind: ServiceAccount, name: {account}, namespace: bookinfo}}], \
         hosts: [{account}.example], ports: [{{number: {port}, protocol: http}}], \
         matches: [{{kind: HTTPRouteGroup, name: {group}}}]}}"
    )
}

/// Returns the `spec` of a `Retry`.
fn retry_spec(account: &str, services: [&str; 2], attempts: &str) -> String {
    let [one, other] = services;
    let other = match one == other {
        true => String::new(),
        false => format!(", {{kind: Service, name: {other}, namespace: bookinfo}}"),
    };
    format!(
        "spec: {{source: {{kind: ServiceAccount, name: {account}, namespace: bookinfo}}, \
         destinations: [{{kind: Service, name: {one}, namespace: bookinfo}}{other}], \
         retryPolicy: {{retryOn: \"5xx\", numRetries: {attempts}}}}}"
    )
}

/// The API version of OSM policies.
const OSM: &str = "policy.openservicemesh.io/v1alpha1";
const LENO: &str = "leno.dev/v1alpha1";

/// The values of `defaultPolicy`.
const DEFAULT_POLICIES: &[&str] = &["deny", "allow", "dry-run"];

/// Returns a random `MeshConfig`, mostly with `deny`: the default policy with the most dependencies.
fn random_mesh_config(dice: &mut Dice) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec: {{trustDomain: cluster.local, defaultPolicy: {}, egress: {}, \
         namespaces: [{{name: {}, defaultPolicy: {}}}]}}",
        dice.pick(&["deny", "deny", "allow"]),
        dice.pick(&["deny", "allow"]),
        dice.pick(&["bookinfo", "elsewhere", "elsewhere"]),
        dice.pick(DEFAULT_POLICIES),
    )
}

/// Returns a random change: an object with a random kind, name and references, or its removal.
pub(crate) fn random_change(dice: &mut Dice) -> Change {
    let [name, one, two, three] = [(); 4].map(|()| dice.pick(LETTERS));
    let (port, other_port) = (dice.pick(&["80", "81"]), dice.pick(&["80", "81"]));
    let header = |kind: &str, version: &str, extra_metadata: &str| {
        format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: bookinfo{extra_metadata}}}\n"
        )
    };
    let account =
        |name: &str| format!("{{kind: ServiceAccount, name: {name}, namespace: bookinfo}}");
    let yaml = match dice.next_below(19) {
        0 => format!(
            "{}spec: {{serviceAccount: {two}, ports: [{{name: {three}, port: {port}, protocol: HTTP}}], \
             outbound: [{{service: {three}, port: 80, listen: \"127.0.0.1:19080\"}}]}}",
            header("Workload", LENO, &label_lines(one, two)),
        ),
        1 => format!(
            "{}spec: {{serviceAccount: {three}, defaultPolicy: {}, ports: [{{port: 80}}, {{port: 81, protocol: TCP}}]}}",
            header("Workload", LENO, &format!(", labels: {{app: {one}}}")),
            dice.pick(DEFAULT_POLICIES),
        ),
        2 => format!(
            "{}spec: {{selector: {{app: {one}}}, ports: [{{port: {port}, targetPort: {other_port}}}]}}",
            header("Service", "v1", ""),
        ),
        3 => format!("{}{}", header("Service", "v1", ""), service_spec([one, two], three)),
        4 => {
            let kind = dice.pick(ROUTES);
            header(kind, gateway_version(kind), "")
                + &route_spec([one, port], [two, three], other_port)
        }
        5 => format!(
            "{}spec: {{destination: {}, sources: [{}, {}], rules: \
             [{{kind: HTTPRouteGroup, name: {one}, matches: [{two}]}}, {{kind: TCPRoute, name: {three}}}]}}",
            header("TrafficTarget", "access.smi-spec.io/v1alpha3", ""),
            account(one),
            account(two),
            account(three),
        ),
        6 => format!(
            "{}spec: {{matches: [{{name: {one}, pathRegex: \"/{two}\"}}]}}",
            header("HTTPRouteGroup", "specs.smi-spec.io/v1alpha4", ""),
        ),
        7 => format!(
            "{}spec: {{matches: {{ports: [{port}]}}}}",
            header("TCPRoute", "specs.smi-spec.io/v1alpha4", ""),
        ),
        8 => header("OutlierDetection", LENO, "") + &outlier_spec([one, two], [port, other_port]),
        9 => header("SermantRemoval", LENO, "") + &sermant_spec(one, port),
        10 => header("TagRoute", LENO, "") + &tag_spec(one, two, three),
        11 => header("TagRoute", LENO, "") + &caller_spec(dice.pick(SCOPES), one, two),
        12 => header("Lane", LENO, "") + &lane_spec(one, two),
        13 => header("TrafficSplit", SMI_SPLIT, "") + &split_spec([one, two], dice.pick(MATCHES)),
        14 => header("AccessPolicy", LENO, "") + &access_spec(one, two),
        15 => header("IngressBackend", OSM, "") + &ingress_spec([one, two, three], port),
        16 => header("Egress", OSM, "") + &egress_spec(one, two, port),
        17 => header("Retry", OSM, "") + &retry_spec(one, [two, three], dice.pick(&["1", "2"])),
        _ => random_mesh_config(dice),
    };
    let object = parse_objects(&yaml).pop().unwrap();
    // A quarter of the changes are removals, except that a `MeshConfig` is never removed.
    match (dice.next_below(4), object.object_key()) {
        (0, key) if key != ObjectKey::MeshConfig => Change::Remove(key),
        _ => Change::Upsert(object),
    }
}
