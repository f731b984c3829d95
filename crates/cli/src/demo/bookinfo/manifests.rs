//! Renders the manifests of bookinfo: workloads, services, a split, and the minimal permissions.

use serde_json::Value;

use crate::ports::PortSearch;

/// The local ports of bookinfo: one per application and outbound listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BookinfoPorts {
    /// The port of productpage.
    pub(crate) productpage: u16,
    /// The port of details.
    pub(crate) details: u16,
    /// The port of reviews v1.
    pub(crate) reviews_v1: u16,
    /// The port of reviews v2.
    pub(crate) reviews_v2: u16,
    /// The port of reviews v3.
    pub(crate) reviews_v3: u16,
    /// The port of ratings.
    pub(crate) ratings: u16,
    /// The port of the gateway in front of ratings.
    pub(crate) gateway_ratings: u16,
    /// The client's outbound listener for productpage.
    pub(crate) traffic_productpage: u16,
    /// The client's outbound listener for the gateway.
    pub(crate) traffic_gateway_ratings: u16,
    /// The outbound listener for ratings of a client without permission.
    pub(crate) denied_client_ratings: u16,
}

impl BookinfoPorts {
    /// Returns the ports of `deploy/demo/bookinfo.yaml`.
    #[cfg(test)]
    pub(crate) const fn published() -> Self {
        Self {
            productpage: 9080,
            details: 9081,
            reviews_v1: 9082,
            reviews_v2: 9083,
            reviews_v3: 9084,
            ratings: 9085,
            gateway_ratings: 9086,
            traffic_productpage: 19080,
            traffic_gateway_ratings: 19081,
            denied_client_ratings: 19082,
        }
    }

    /// Returns distinct free loopback ports. Until the applications and listeners that use the ports start, the
    /// kernel assigns them to no outgoing connection.
    pub(crate) fn find_free() -> anyhow::Result<Self> {
        let search = PortSearch::new();
        let find_port = || search.find_free();
        Ok(Self {
            productpage: find_port()?,
            details: find_port()?,
            reviews_v1: find_port()?,
            reviews_v2: find_port()?,
            reviews_v3: find_port()?,
            ratings: find_port()?,
            gateway_ratings: find_port()?,
            traffic_productpage: find_port()?,
            traffic_gateway_ratings: find_port()?,
            denied_client_ratings: find_port()?,
        })
    }
}

/// Returns all bookinfo manifests for a local mesh as multi-document YAML. The `leno` program at the path
/// `binary` runs the applications.
pub(crate) fn render_manifests(ports: &BookinfoPorts, binary: &str) -> String {
    let mut documents = vec![MESH_CONFIG.to_owned()];
    documents.extend(demo_applications(ports).iter().map(|workload| workload.render(binary)));
    documents.extend(demo_clients(ports).iter().map(BookinfoClient::render));
    documents.extend(services_and_rules());
    format!("{HEADER_COMMENT}{}", documents.join("---\n"))
}

/// Returns the manifests that local meshes and clusters share.
pub(super) fn services_and_rules() -> Vec<String> {
    let services = SERVICES.iter().map(|(name, selector)| render_service(name, selector));
    let permissions = PERMISSIONS.iter().map(AllowedCalls::render);
    services.chain([REVIEWS_SPLIT.to_owned()]).chain(permissions).collect()
}

/// A workload with one of the demo's applications.
struct BookinfoApplication {
    name: &'static str,
    app: &'static str,
    version: &'static str,
    port: u16,
    /// The arguments after `demo-service`.
    arguments: &'static [&'static str],
}

impl BookinfoApplication {
    fn render(&self, binary: &str) -> String {
        let Self { name, app, version, port, arguments } = self;
        let port_text = port.to_string();
        let command = [binary, "demo-service"]
            .into_iter()
            .chain(arguments.iter().copied())
            .chain(["--port", &port_text]);
        // A JSON string is valid YAML, whatever characters the path contains.
        let quoted_words: Vec<String> = command.map(|word| Value::from(word).to_string()).collect();
        let run = quoted_words.join(", ");
        format!(
            "apiVersion: leno.dev/v1alpha1\n\
             kind: Workload\n\
             metadata: {{name: {name}, namespace: bookinfo, labels: {{app: {app}, version: {version}}}}}\n\
             spec:\n  \
               serviceAccount: {app}\n  \
               ports: [{{name: http, port: {port}, protocol: HTTP}}]\n  \
               run: [{run}]\n"
        )
    }
}

fn demo_applications(ports: &BookinfoPorts) -> [BookinfoApplication; 7] {
    let reviews = |name, version, port, arguments| BookinfoApplication {
        name,
        app: "reviews",
        version,
        port,
        arguments,
    };
    let application = |name, app, port, arguments| BookinfoApplication {
        name,
        app,
        version: "v1",
        port,
        arguments,
    };
    [
        application("productpage-1", "productpage", ports.productpage, &["productpage"]),
        application("details-1", "details", ports.details, &["details"]),
        reviews("reviews-v1-1", "v1", ports.reviews_v1, &["reviews", "--version", "v1"]),
        reviews("reviews-v2-1", "v2", ports.reviews_v2, &["reviews", "--version", "v2"]),
        reviews("reviews-v3-1", "v3", ports.reviews_v3, &["reviews", "--version", "v3"]),
        application("ratings-1", "ratings", ports.ratings, &["ratings"]),
        application("gateway-ratings-1", "gateway-ratings", ports.gateway_ratings, &["gateway"]),
    ]
}

/// A workload without ports, for clients of its outbound listeners.
struct BookinfoClient {
    account: &'static str,
    comment: &'static str,
    listeners: Vec<(&'static str, u16)>,
}

impl BookinfoClient {
    fn render(&self) -> String {
        let Self { account, comment, listeners } = self;
        let render_listener = |(service, port): &(&str, u16)| {
            format!(
                "  - {{service: {service}.bookinfo, port: 9080, listen: \"127.0.0.1:{port}\"}}\n"
            )
        };
        let listener_lines: String = listeners.iter().map(render_listener).collect();
        format!(
            "# {comment}\n\
             apiVersion: leno.dev/v1alpha1\n\
             kind: Workload\n\
             metadata: {{name: {account}-1, namespace: bookinfo, labels: {{app: {account}}}}}\n\
             spec:\n  \
               serviceAccount: {account}\n  \
               outbound:\n\
             {listener_lines}"
        )
    }
}

fn demo_clients(ports: &BookinfoPorts) -> [BookinfoClient; 2] {
    [
        BookinfoClient {
            account: "traffic",
            comment: "The demo's own client: clients of these listeners have the identity `traffic`.",
            listeners: vec![
                ("productpage", ports.traffic_productpage),
                ("gateway-ratings", ports.traffic_gateway_ratings),
            ],
        },
        BookinfoClient {
            account: "outsider",
            comment: "A member of the mesh with an outbound listener for ratings, but without a policy \
                that permits its requests: 403.",
            listeners: vec![("ratings", ports.denied_client_ratings)],
        },
    ]
}

fn render_service(name: &str, selector: &str) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Service\n\
         metadata: {{name: {name}, namespace: bookinfo}}\n\
         spec: {{selector: {{{selector}}}, ports: [{{name: http, port: 9080, targetPort: http}}]}}\n"
    )
}

/// The requests that clients may send to one service.
struct AllowedCalls {
    destination: &'static str,
    sources: &'static [&'static str],
    /// Names of matches, each with the allowed path, a regular expression for the whole path.
    paths: &'static [(&'static str, &'static str)],
}

impl AllowedCalls {
    fn render(&self) -> String {
        let Self { destination, sources, paths } = self;
        let match_lines: String = paths
            .iter()
            .map(|(name, path)| {
                format!("  - {{name: {name}, pathRegex: \"{path}\", methods: [GET, HEAD]}}\n")
            })
            .collect();
        let match_names = paths.iter().map(|(name, _)| *name).collect::<Vec<&str>>().join(", ");
        let source_lines: String = sources
            .iter()
            .map(|source| {
                format!("  - {{kind: ServiceAccount, name: {source}, namespace: bookinfo}}\n")
            })
            .collect();
        format!(
            "apiVersion: specs.smi-spec.io/v1alpha4\n\
             kind: HTTPRouteGroup\n\
             metadata: {{name: {destination}, namespace: bookinfo}}\n\
             spec:\n  \
               matches:\n\
             {match_lines}\
             ---\n\
             apiVersion: access.smi-spec.io/v1alpha3\n\
             kind: TrafficTarget\n\
             metadata: {{name: {destination}, namespace: bookinfo}}\n\
             spec:\n  \
               destination: {{kind: ServiceAccount, name: {destination}, namespace: bookinfo}}\n  \
               sources:\n\
             {source_lines}  \
               rules:\n  \
               - {{kind: HTTPRouteGroup, name: {destination}, matches: [{match_names}]}}\n"
        )
    }
}

const HEADER_COMMENT: &str = "\
# Bookinfo on one machine: the mesh of `leno demo`, with fixed ports.
# Start it with `leno up -f deploy/demo/bookinfo.yaml`, then open http://127.0.0.1:19080/.
";

const MESH_CONFIG: &str = "\
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: deny}
";

/// Services and the selectors of their workloads; all on port 9080.
const SERVICES: [(&str, &str); 8] = [
    ("productpage", "app: productpage"),
    ("details", "app: details"),
    ("reviews", "app: reviews"),
    ("reviews-v1", "app: reviews, version: v1"),
    ("reviews-v2", "app: reviews, version: v2"),
    ("reviews-v3", "app: reviews, version: v3"),
    ("ratings", "app: ratings"),
    ("gateway-ratings", "app: gateway-ratings"),
];

const REVIEWS_SPLIT: &str = "\
# One user gets version 2; one in ten of all others gets version 3.
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs:
  - {group: \"\", kind: Service, name: reviews, port: 9080}
  rules:
  - matches:
    - headers: [{name: end-user, value: jason}]
    backendRefs:
    - {name: reviews-v2, port: 9080}
  - backendRefs:
    - {name: reviews-v1, port: 9080, weight: 90}
    - {name: reviews-v3, port: 9080, weight: 10}
";

const PERMISSIONS: [AllowedCalls; 5] = [
    AllowedCalls {
        destination: "productpage",
        sources: &["traffic"],
        paths: &[
            ("shelf", "/"),
            ("page", "/productpage"),
            ("products", "/api/v1/products(/[0-9]+)?"),
            ("health", "/health"),
        ],
    },
    AllowedCalls {
        destination: "gateway-ratings",
        sources: &["traffic"],
        paths: &[("ratings", "/ratings/[0-9]+"), ("health", "/health")],
    },
    AllowedCalls {
        destination: "details",
        sources: &["productpage"],
        paths: &[("book", "/details/[0-9]+")],
    },
    AllowedCalls {
        destination: "reviews",
        sources: &["productpage"],
        paths: &[("book", "/reviews/[0-9]+")],
    },
    AllowedCalls {
        destination: "ratings",
        sources: &["reviews", "gateway-ratings"],
        paths: &[("book", "/ratings/[0-9]+")],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser;
    use leno_model::Object;

    use super::super::DemoServiceArgs;
    use super::*;

    #[test]
    fn the_published_manifests_match_the_rendered_ones() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/demo/bookinfo.yaml");
        let published = std::fs::read_to_string(path).unwrap_or_default();
        let rendered = render_manifests(&BookinfoPorts::published(), "leno");
        assert_eq!(
            published, rendered,
            "deploy/demo/bookinfo.yaml differs from the output of `render_manifests`"
        );
    }

    #[test]
    fn all_documents_and_commands_of_the_manifests_are_valid() {
        let text = render_manifests(&BookinfoPorts::published(), "/opt/my leno/leno");
        let (objects, rejected) = leno_registry::read_str("bookinfo.yaml", &text);
        assert!(rejected.is_empty(), "{rejected:?}");
        assert_eq!(objects.len(), text.split("---\n").count());
        let commands: Vec<&[String]> = objects
            .iter()
            .filter_map(|(object, _)| match object {
                Object::Workload(workload) => Some(workload.run.as_slice()),
                _ => None,
            })
            .filter(|run| !run.is_empty())
            .collect();
        assert_eq!(commands.len(), 7);
        for command in commands {
            assert_eq!(command[0], "/opt/my leno/leno");
            CommandLine::try_parse_from(command).unwrap();
        }
    }

    /// The subcommands of `leno` that the manifests use.
    #[derive(Debug, Parser)]
    #[command(version, propagate_version = true)]
    enum CommandLine {
        DemoService(DemoServiceArgs),
    }

    #[test]
    fn the_manifests_use_distinct_free_ports() {
        let ports = BookinfoPorts::find_free().unwrap();
        let text = render_manifests(&ports, "/opt/my leno/leno");
        let BookinfoPorts {
            productpage,
            details,
            reviews_v1,
            reviews_v2,
            reviews_v3,
            ratings,
            gateway_ratings,
            traffic_productpage,
            traffic_gateway_ratings,
            denied_client_ratings,
        } = ports;
        let applications =
            [productpage, details, reviews_v1, reviews_v2, reviews_v3, ratings, gateway_ratings];
        let listeners = [traffic_productpage, traffic_gateway_ratings, denied_client_ratings];
        for port in applications {
            assert!(text.contains(&format!("ports: [{{name: http, port: {port}, ")));
            assert!(text.contains(&format!("\"--port\", \"{port}\"]")));
        }
        for port in listeners {
            assert!(text.contains(&format!("listen: \"127.0.0.1:{port}\"")));
        }
        let distinct: HashSet<u16> = applications.into_iter().chain(listeners).collect();
        assert_eq!(distinct.len(), 10);
        assert_eq!(text.matches("run: [\"/opt/my leno/leno\", \"demo-service\", ").count(), 7);
    }

    #[test]
    fn no_policy_permits_requests_of_the_denied_client() {
        for permission in &PERMISSIONS {
            assert!(!permission.sources.contains(&"outsider"));
        }
    }
}
