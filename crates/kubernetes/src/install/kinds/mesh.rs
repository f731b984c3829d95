//! Builds the OpenAPI schema of the `spec` of a MeshConfig, for its CustomResourceDefinition.

use serde_json::Value;

use crate::install::schema::{
    any_value, boolean, dns_label, dns_subdomain, duration, enumeration, list, object, text,
    with_description, with_rules,
};

/// Returns the schema of the `spec` of a MeshConfig.
pub(super) fn mesh_config() -> Value {
    let namespace_settings = object([
        ("name!", dns_label()),
        ("defaultPolicy", default_policy()),
        ("mtls", mtls_schema()),
    ]);
    object([
        (
            "trustDomain",
            with_description(
                dns_subdomain(),
                "Trust domain of identities; fixed after the first start of the mesh.",
            ),
        ),
        ("defaultPolicy", default_policy()),
        ("mtls", mtls_schema()),
        (
            "egress",
            with_description(
                enumeration(&["allow", "deny"]),
                "Connections to destinations outside the mesh.",
            ),
        ),
        (
            "apiServerEgress",
            with_description(
                enumeration(&["allow", "deny"]),
                "Connections to the API server of Kubernetes while egress is deny; allow when absent.",
            ),
        ),
        (
            "namespaces",
            with_description(
                list(namespace_settings, 1024),
                "Settings for single namespaces that differ from those of the mesh.",
            ),
        ),
        (
            "floor",
            with_description(
                floor_schema(),
                "Minimum settings that namespaces, pods and Workloads cannot weaken.",
            ),
        ),
        (
            "revoked",
            with_description(
                list(revocation_schema(), 1024),
                "Accounts and workloads with revoked membership.",
            ),
        ),
        (
            "tracing",
            with_description(
                tracing_schema(),
                "Tracing: sampling of requests and destination of spans.",
            ),
        ),
        (
            "accessLog",
            with_description(access_log_schema(), "Access log: sampling, format and destination."),
        ),
        (
            "metrics",
            with_description(metrics_schema(), "Export of metrics: destination and interval."),
        ),
    ])
}

fn tracing_schema() -> Value {
    let zipkin = object([("endpoint!", text(2048))]);
    let export = with_rules(
        object([("otlp", otlp_schema()), ("zipkin", zipkin)]),
        &[("has(self.otlp) != has(self.zipkin)", "set exactly one of otlp and zipkin")],
    );
    object([
        (
            "sampling",
            with_description(any_value(), "Share of requests that are traced, such as 1%."),
        ),
        ("errors", boolean()),
        ("propagation", text(32)),
        ("export!", export),
    ])
}

fn access_log_schema() -> Value {
    object([
        (
            "sampling",
            with_description(any_value(), "Share of requests that are logged, such as 1%."),
        ),
        ("errors", boolean()),
        ("template", text(4096)),
        (
            "export",
            with_description(
                object([("otlp!", otlp_schema())]),
                "Destination of log entries; standard output when absent.",
            ),
        ),
    ])
}

fn metrics_schema() -> Value {
    let interval = with_description(duration(), "Interval, such as 15s; 60s when absent.");
    let otlp = object([("endpoint!", text(2048)), otlp_protocol(), ("interval", interval)]);
    object([("export!", object([("otlp!", otlp)]))])
}

fn otlp_schema() -> Value {
    object([("endpoint!", text(2048)), otlp_protocol()])
}

fn otlp_protocol() -> (&'static str, Value) {
    ("protocol", enumeration(&["http", "grpc"]))
}

fn floor_schema() -> Value {
    let repositories =
        with_description(list(text(255), 64), "Permitted image repositories of sidecars.");
    let excepted = with_description(list(dns_label(), 1024), "Namespaces exempt from the floor.");
    object([
        ("defaultPolicy", default_policy()),
        (
            "mtls",
            with_description(enumeration(&["strict"]), "Clients without mutual TLS are rejected."),
        ),
        (
            "injection",
            with_description(
                enumeration(&["required"]),
                "Pods of namespaces with injection cannot opt out.",
            ),
        ),
        (
            "exclusions",
            with_description(
                enumeration(&["forbidden"]),
                "Annotations that exclude traffic from interception have no effect.",
            ),
        ),
        ("sidecarImages", repositories),
        ("exceptNamespaces", excepted),
    ])
}

/// Returns the schema of a revocation: an account, or one of its workloads, for pods optionally with a UID.
fn revocation_schema() -> Value {
    object([
        ("kind!", enumeration(&["ServiceAccount", "Workload", "Pod"])),
        ("name!", dns_subdomain()),
        ("namespace!", dns_label()),
        (
            "uid",
            with_description(
                text(64),
                "UID of a pod: limits the entry to this pod, without others of the same name.",
            ),
        ),
    ])
}

fn mtls_schema() -> Value {
    with_description(
        enumeration(&["strict", "permissive"]),
        "Clients without mutual TLS: strict rejects them, permissive accepts them as well.",
    )
}

fn default_policy() -> Value {
    with_description(
        enumeration(&["allow", "deny", "dry-run"]),
        "Allowed clients. allow: every member; deny: only clients that a policy allows; \
         dry-run: every member, and requests that deny would reject are counted.",
    )
}
