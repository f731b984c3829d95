//! Schemas of what a mesh consists of: workloads, and its settings.

use serde_json::Value;

use crate::install::schema::{
    about, anything, boolean, duration, integer, label, list, map, name, object, port, text,
    unless, word,
};

pub(super) fn workload() -> Value {
    let ports = object([
        ("name", label()),
        ("port!", port()),
        ("protocol", word(&["HTTP", "HTTP2", "GRPC", "TCP", "detect"])),
    ]);
    let doors = object([("service!", text(253)), ("port!", port()), ("listen!", text(64))]);
    let account =
        about(name(), "The account that it runs under, in its namespace; `default` when absent.");
    object([
        ("serviceAccount", account),
        ("address", about(text(64), "Where its sidecar reaches it; 127.0.0.1 when absent.")),
        ("ports", about(list(ports, 256), "Where the application listens.")),
        ("run", list(anything(), 4096)),
        ("env", map(anything(), 4096)),
        ("cwd", text(4096)),
        ("user", anything()),
        ("readiness", object([("httpGet!", object([("port!", port()), ("path", text(4096))]))])),
        ("outbound", about(list(doors, 1024), "Fixed local doors to services.")),
        ("trafficMode", traffic_mode()),
        ("plaintext", plaintext()),
        ("weight", about(integer(1, 1000), "What it gets beside others; 100 when absent.")),
    ])
}

pub(super) fn mesh_config() -> Value {
    let namespace =
        object([("name!", label()), ("trafficMode", traffic_mode()), ("plaintext", plaintext())]);
    let protocol = || ("protocol", word(&["http", "grpc"]));
    let otlp = || object([("endpoint!", text(2048)), protocol()]);
    let zipkin = object([("endpoint!", text(2048))]);
    let export = unless(
        object([("otlp", otlp()), ("zipkin", zipkin)]),
        &[("has(self.otlp) != has(self.zipkin)", "give one of otlp and zipkin")],
    );
    let tracing = object([
        ("sampling", about(anything(), "Which share is traced, such as 1%.")),
        ("errors", boolean()),
        ("propagation", text(32)),
        ("export!", export),
    ]);
    let access_log = object([
        ("sampling", about(anything(), "Which share is logged, such as 1%.")),
        ("errors", boolean()),
        ("template", text(4096)),
        (
            "export",
            about(object([("otlp!", otlp())]), "Where lines go, if not to standard output."),
        ),
    ]);
    let interval = about(duration(), "How often, such as 15s; 60s when absent.");
    let otlp = object([("endpoint!", text(2048)), protocol(), ("interval", interval)]);
    let metrics = object([("export!", object([("otlp!", otlp)]))]);
    object([
        ("trustDomain", about(name(), "Who vouches for identities; fixed once the mesh has run.")),
        ("trafficMode", traffic_mode()),
        ("plaintext", plaintext()),
        ("egress", about(word(&["allow", "deny"]), "Connections to what is not of the mesh.")),
        ("namespaces", about(list(namespace, 1024), "Namespaces that differ from the mesh.")),
        ("floor", about(floor(), "What namespaces, pods and Workloads cannot weaken.")),
        (
            "revoked",
            about(list(revoked(), 1024), "Accounts and workloads that are members no more."),
        ),
        ("tracing", about(tracing, "Which requests are traced, and where spans go.")),
        ("accessLog", about(access_log, "Which requests are logged, and how.")),
        ("metrics", about(metrics, "Where metrics are pushed, and how often.")),
    ])
}

fn floor() -> Value {
    let repositories = about(list(text(255), 64), "The repositories that sidecars come from.");
    let excepted = about(list(label(), 1024), "Namespaces that it does not apply to.");
    object([
        ("trafficMode", traffic_mode()),
        ("plaintext", about(word(&["refuse"]), "No client comes in without mutual TLS.")),
        (
            "injection",
            about(word(&["required"]), "Pods of namespaces with injection cannot opt out."),
        ),
        ("exclusions", about(word(&["refuse"]), "Annotations exclude nothing from interception.")),
        ("sidecarImages", repositories),
        ("exceptNamespaces", excepted),
    ])
}

/// An account, or one workload of it; of pods perhaps the one with a UID.
fn revoked() -> Value {
    object([
        ("kind!", word(&["ServiceAccount", "Workload", "Pod"])),
        ("name!", name()),
        ("namespace!", label()),
        ("uid", about(text(64), "Of a pod: this one alone, and not others of its name.")),
    ])
}

fn plaintext() -> Value {
    about(word(&["refuse", "accept"]), "What becomes of clients without mutual TLS.")
}

fn traffic_mode() -> Value {
    about(
        word(&["permissive", "strict", "audit"]),
        "Who is let in: every member, only what a policy allows, or every member while what strict \
         mode would deny is counted.",
    )
}
