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
        (
            "apiServerEgress",
            about(
                word(&["allow", "deny"]),
                "Connections to the API server of Kubernetes while egress is deny; allow when absent.",
            ),
        ),
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

/// Returns the schema of a revocation: an account, or one of its workloads, for pods optionally with a UID.
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
