//! Schema of mesh settings.

use serde_json::Value;

use crate::install::schema::{
    about, anything, boolean, duration, label, list, name, object, text, unless, word,
};

pub(super) fn mesh_config() -> Value {
    let namespace =
        object([("name!", label()), ("trafficMode", traffic_mode()), ("plaintext", plaintext())]);
    let protocol = || ("protocol", word(&["http", "grpc"]));
    let otlp = || object([("endpoint!", text(2048)), protocol()]);
    let zipkin = object([("endpoint!", text(2048))]);
    let export = unless(
        object([("otlp", otlp()), ("zipkin", zipkin)]),
        &[("has(self.otlp) != has(self.zipkin)", "set exactly one of otlp and zipkin")],
    );
    let tracing = object([
        ("sampling", about(anything(), "Share of requests that are traced, such as 1%.")),
        ("errors", boolean()),
        ("propagation", text(32)),
        ("export!", export),
    ]);
    let access_log = object([
        ("sampling", about(anything(), "Share of requests that are logged, such as 1%.")),
        ("errors", boolean()),
        ("template", text(4096)),
        (
            "export",
            about(
                object([("otlp!", otlp())]),
                "Destination of log entries; standard output when absent.",
            ),
        ),
    ]);
    let interval = about(duration(), "Interval, such as 15s; 60s when absent.");
    let otlp = object([("endpoint!", text(2048)), protocol(), ("interval", interval)]);
    let metrics = object([("export!", object([("otlp!", otlp)]))]);
    object([
        (
            "trustDomain",
            about(name(), "Trust domain of identities; fixed after the first start of the mesh."),
        ),
        ("trafficMode", traffic_mode()),
        ("plaintext", plaintext()),
        (
            "egress",
            about(word(&["allow", "deny"]), "Connections to destinations outside the mesh."),
        ),
        (
            "apiServerEgress",
            about(
                word(&["allow", "deny"]),
                "Connections to the API server of Kubernetes while egress is deny; allow when absent.",
            ),
        ),
        (
            "namespaces",
            about(
                list(namespace, 1024),
                "Settings for single namespaces that differ from those of the mesh.",
            ),
        ),
        (
            "floor",
            about(floor(), "Minimum settings that namespaces, pods and Workloads cannot weaken."),
        ),
        (
            "revoked",
            about(list(revoked(), 1024), "Accounts and workloads with revoked membership."),
        ),
        ("tracing", about(tracing, "Tracing: sampling of requests and destination of spans.")),
        ("accessLog", about(access_log, "Access log: sampling, format and destination.")),
        ("metrics", about(metrics, "Export of metrics: destination and interval.")),
    ])
}

fn floor() -> Value {
    let repositories = about(list(text(255), 64), "Permitted image repositories of sidecars.");
    let excepted = about(list(label(), 1024), "Namespaces exempt from the floor.");
    object([
        ("trafficMode", traffic_mode()),
        ("plaintext", about(word(&["refuse"]), "Clients without mutual TLS are rejected.")),
        (
            "injection",
            about(word(&["required"]), "Pods of namespaces with injection cannot opt out."),
        ),
        (
            "exclusions",
            about(
                word(&["refuse"]),
                "Annotations that exclude traffic from interception have no effect.",
            ),
        ),
        ("sidecarImages", repositories),
        ("exceptNamespaces", excepted),
    ])
}

/// Returns the schema of a revocation: an account, or one of its workloads, for pods optionally with a UID.
fn revoked() -> Value {
    object([
        ("kind!", word(&["ServiceAccount", "Workload", "Pod"])),
        ("name!", name()),
        ("namespace!", label()),
        (
            "uid",
            about(
                text(64),
                "UID of a pod: limits the entry to this pod, without others of the same name.",
            ),
        ),
    ])
}

fn plaintext() -> Value {
    about(word(&["refuse", "accept"]), "Handling of clients without mutual TLS.")
}

fn traffic_mode() -> Value {
    about(
        word(&["permissive", "strict", "audit"]),
        "Allowed clients. permissive: every member; strict: only clients that a policy allows; \
         audit: every member, and requests that strict mode would deny are counted.",
    )
}
