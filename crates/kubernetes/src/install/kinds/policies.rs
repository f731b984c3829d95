//! Schemas of policies: authorization and traffic policies.

use serde_json::Value;

use super::target_refs;
use crate::install::schema::{
    about, anything, boolean, duration, integer, list, map, name, name_pattern, object, percentage,
    port, some, text, unless, with, word,
};

pub(super) fn access_policy() -> Value {
    let request = unless(
        object([
            ("methods", some(text(32), 256)),
            ("path", path_match()),
            ("headers", some(field_match(), 16)),
        ]),
        &[(
            "has(self.methods) || has(self.path) || has(self.headers)",
            "has no condition for requests: set methods, path or headers",
        )],
    );
    let claims = with(map(some(text(512), 256), 16), "minProperties", 1.into());
    let rule = || {
        object([
            ("name", name()),
            ("from", peers()),
            ("requests", some(request.clone(), 256)),
            ("claims", about(claims.clone(), "Required claims of the request's token.")),
            ("ports", some(port(), 256)),
        ])
    };
    let accounts = about(
        some(name(), 256),
        "Service accounts of the target workloads; all workloads of the namespace when absent.",
    );
    unless(
        object([
            ("serviceAccounts", accounts),
            (
                "deny",
                about(some(rule(), 256), "Deny rules, which take precedence over allow rules."),
            ),
            ("allow", about(some(rule(), 256), "Allow rules for strict mode.")),
        ]),
        &[("has(self.deny) || has(self.allow)", "has no rules: set deny or allow")],
    )
}

pub(super) fn outlier_removal() -> Value {
    let rate = object([("percent!", integer(1, 100)), ("minimumRequests", integer(1, COUNT_MAX))]);
    let back_off =
        object([("base", duration()), ("max", duration()), ("jitterPercent", integer(0, 100))]);
    object([
        ("targetRefs!", target_refs()),
        ("failures", failures()),
        ("grpcStatuses", grpc_statuses()),
        ("window", duration()),
        ("steps", integer(1, 60)),
        ("rate", rate),
        ("consecutive", integer(1, COUNT_MAX)),
        ("maxRemovedPercent", integer(1, 100)),
        ("keepAtLeast", integer(1, COUNT_MAX)),
        ("backOff", back_off),
        ("probes", integer(1, 1000)),
        ("healthCheck", about(health_check(), "Active health checks of endpoints.")),
    ])
}

fn health_check() -> Value {
    let path = about(text(1024), "Path, beginning with `/`.");
    let one_of = [
        ("has(self.httpGet) || has(self.grpc)", "has no probe: set httpGet or grpc"),
        ("!has(self.httpGet) || !has(self.grpc)", "has two probes: set either httpGet or grpc"),
    ];
    unless(
        object([
            ("httpGet", object([("path!", path)])),
            ("grpc", object([("service", text(256))])),
            ("interval", duration()),
            ("timeout", duration()),
            ("failureThreshold", integer(1, 1000)),
            ("successThreshold", integer(1, 1000)),
        ]),
        &one_of,
    )
}

pub(super) fn sermant_removal() -> Value {
    let config = about(text(65_536), "Content of Sermant's `sermant.removal.config`.");
    object([("compat!", word(&["sermant"])), ("config!", config)])
}

pub(super) fn circuit_breaker() -> Value {
    let limits = object([
        ("connections", integer(1, u32::MAX)),
        ("requests", integer(1, u32::MAX)),
        ("pending", integer(1, u32::MAX)),
        ("retries", integer(0, u32::MAX)),
    ]);
    let slow = object([("from!", duration()), ("percent", integer(1, 100))]);
    let trip = object([
        ("failures", failures()),
        ("grpcStatuses", grpc_statuses()),
        ("window", duration()),
        ("steps", integer(1, 60)),
        ("minimumRequests", integer(1, COUNT_MAX)),
        ("percent", integer(1, 100)),
        ("consecutive", integer(1, u32::MAX)),
        ("slow", slow),
        ("openFor", duration()),
        ("probes", integer(1, 1000)),
    ]);
    unless(
        object([
            ("targetRefs!", target_refs()),
            ("limits", about(limits, "Limits of concurrent connections and requests.")),
            ("connectTimeout", duration()),
            ("trip", about(trip, "Conditions that open the circuit breaker.")),
            ("answer", about(answer(), "Response while the circuit breaker is open.")),
        ]),
        &[
            (
                "has(self.limits) || has(self.connectTimeout) || has(self.trip)",
                "has no effect: set limits, connectTimeout or trip",
            ),
            ("!has(self.answer) || has(self.trip)", "answer requires trip"),
        ],
    )
}

pub(super) fn rate_limit() -> Value {
    let connections = object([
        ("count!", integer(1, 1_000_000)),
        ("in!", duration()),
        ("burst", integer(1, 2_000_000)),
    ]);
    let rule = object([
        ("name", name()),
        ("matches", some(request_match(), 256)),
        ("from", peers()),
        ("each", about(anything(), "Key of the buckets: `client` or `{header: NAME}`.")),
        ("buckets", integer(1, 100_000)),
        ("requests!", integer(1, 1_000_000)),
        ("in!", duration()),
        ("burst", integer(1, 2_000_000)),
        ("last", boolean()),
        ("answer", answer()),
    ]);
    let adaptive = object([("least", integer(1, 1_000_000)), ("slowerPercent", integer(1, 1000))]);
    let concurrency = object([
        ("requests!", integer(1, 1_000_000)),
        (
            "adaptive",
            about(
                adaptive,
                "Adaptive concurrency: a lower limit while the application's latency is increased.",
            ),
        ),
        ("answer", answer()),
    ]);
    let least =
        "!has(self.adaptive) || !has(self.adaptive.least) || self.adaptive.least <= self.requests";
    let concurrency = unless(concurrency, &[(least, "adaptive.least must not exceed requests")]);
    unless(
        object([
            ("targetRefs!", target_refs()),
            ("connections", connections),
            ("rules", list(rule, 64)),
            ("concurrency", about(concurrency, "Limit of concurrent requests.")),
            ("global", about(global_limit(), "Check requests to a global rate limit service.")),
        ]),
        &[(
            "has(self.connections) || has(self.rules) || has(self.concurrency) || has(self.global)",
            "has no limits: set rules, connections, concurrency or global",
        )],
    )
}

fn global_limit() -> Value {
    let entry = unless(
        object([
            ("key!", text(256)),
            ("text", text(256)),
            ("header", text(256)),
            ("from", word(&["client", "path", "method", "address"])),
        ]),
        &[(
            "[has(self.text), has(self.header), has(self.from)].filter(it, it).size() == 1",
            "set exactly one of text, header and from",
        )],
    );
    let descriptor = object([
        ("matches", some(request_match(), 256)),
        ("entries!", some(entry, 16)),
        ("hits", integer(1, 1_000_000)),
    ]);
    unless(
        object([
            ("service", check_service_service()),
            ("url", text(512)),
            ("timeout", duration()),
            ("onFailure", word(&["deny", "allow"])),
            ("domain!", text(256)),
            ("descriptors!", some(descriptor, 16)),
            ("answer", answer()),
            ("tellClients", boolean()),
        ]),
        &[ONE_CHECK_SERVICE],
    )
}

pub(super) fn external_authorization() -> Value {
    let body = object([
        ("maxBytes", integer(1, 1_048_576)),
        ("allowPartial", boolean()),
        ("asBytes", boolean()),
    ]);
    unless(
        object([
            ("targetRefs!", target_refs()),
            (
                "service",
                about(check_service_service(), "External authorization service in the mesh."),
            ),
            (
                "url",
                about(
                    text(512),
                    "External authorization server, `http://HOST:PORT` or `https://HOST:PORT`.",
                ),
            ),
            ("timeout", duration()),
            ("onFailure", word(&["deny", "allow"])),
            ("matches", some(request_match(), 256)),
            ("headers", list(text(256), 64)),
            ("context", map(text(4096), 32)),
            ("body", about(body, "Part of the body sent to the service; no body when absent.")),
        ]),
        &[ONE_CHECK_SERVICE],
    )
}

pub(super) fn jwt_validation() -> Value {
    let place = unless(
        object([("header", text(256)), ("prefix", text(64)), ("query", text(256))]),
        &[("has(self.header) != has(self.query)", "set exactly one of header and query")],
    );
    let forward = object([("claim!", text(512)), ("header!", text(256))]);
    let jwks = unless(
        object([
            ("inline", about(text(65_536), "JWK set, as JSON.")),
            (
                "file",
                about(
                    text(4096),
                    "Path of a file on the control plane, which watches it for changes.",
                ),
            ),
            ("url", about(text(2048), "URL of a JWKS endpoint, which the control plane queries.")),
            ("refresh", about(duration(), "Maximum interval between JWKS fetches.")),
        ]),
        &[
            (
                "(has(self.inline) ? 1 : 0) + (has(self.file) ? 1 : 0) + (has(self.url) ? 1 : 0) == 1",
                "set exactly one of inline, file and url",
            ),
            ("!has(self.refresh) || has(self.url)", "refresh requires url"),
            (
                "!has(self.file) || self.file.startsWith('/')",
                "must be an absolute path in a cluster",
            ),
        ],
    );
    let issuer = object([
        ("issuer!", text(512)),
        ("audiences", some(text(512), 256)),
        ("jwks!", jwks),
        ("from", some(place, 256)),
        ("leeway", duration()),
        ("requireExpiration", boolean()),
        ("maxAge", duration()),
        ("forwardClaims", some(forward, 256)),
        ("forwardToken", boolean()),
    ]);
    object([
        ("targetRefs!", target_refs()),
        ("issuers!", some(issuer, 16)),
        ("required", boolean()),
        ("requiredFor", some(request_match(), 256)),
    ])
}

fn check_service_service() -> Value {
    object([("name!", name()), ("namespace", name()), ("port!", port())])
}

const ONE_CHECK_SERVICE: (&str, &str) =
    ("has(self.service) != has(self.url)", "set exactly one of service and url");

pub(super) fn fault_injection() -> Value {
    let delay = object([("time!", duration()), ("percent", percentage())]);
    let abort = unless(
        object([
            ("status", integer(200, 599)),
            ("grpcStatus", word(GRPC)),
            ("body", text(4096)),
            ("headers", headers()),
            ("percent", percentage()),
        ]),
        &[("has(self.status) || has(self.grpcStatus)", "has no status: set status or grpcStatus")],
    );
    let rule = unless(
        object([
            ("name", name()),
            ("matches", some(request_match(), 256)),
            ("from", peers()),
            ("delay", delay),
            ("abort", abort),
        ]),
        &[("has(self.delay) || has(self.abort)", "injects no fault: set delay or abort")],
    );
    object([("targetRefs!", target_refs()), ("rules!", some(rule, 64))])
}

pub(super) fn load_balancing() -> Value {
    let key = unless(
        object([("header", text(256)), ("cookie", text(256)), ("source", boolean())]),
        &[(
            "[has(self.header), has(self.cookie), has(self.source)].filter(it, it).size() == 1",
            "set exactly one of header, cookie and source",
        )],
    );
    let warm_up = object([("time!", duration()), ("minPercent", integer(1, 100))]);
    let algorithms = ["PeakEwma", "LeastRequest", "RoundRobin", "Random", "RingHash", "Maglev"];
    let hashes = "has(self.algorithm) && self.algorithm in ['RingHash', 'Maglev']";
    unless(
        object([
            ("targetRefs!", target_refs()),
            ("algorithm", word(&algorithms)),
            ("choices", integer(2, 16)),
            ("key", key),
            ("warmUp", warm_up),
        ]),
        &[
            (
                "!has(self.choices) || !has(self.algorithm) \
                 || self.algorithm in ['PeakEwma', 'LeastRequest']",
                "choices requires PeakEwma or LeastRequest",
            ),
            (
                &format!("has(self.key) == ({hashes})"),
                "key is required for RingHash and Maglev, and not supported for other algorithms",
            ),
            (
                "!has(self.key) || !has(self.warmUp)",
                "warmUp is not supported for algorithms with a key",
            ),
        ],
    )
}

pub(super) fn hedging() -> Value {
    object([
        ("targetRefs!", target_refs()),
        ("after!", duration()),
        ("methods", some(text(32), 16)),
    ])
}

/// Returns the schema of the peers of a rule; all peers when absent.
fn peers() -> Value {
    let peer = unless(
        object([("namespace", name_pattern()), ("serviceAccount", name_pattern())]),
        &[(
            "has(self.namespace) || has(self.serviceAccount)",
            "names no client: set namespace or serviceAccount",
        )],
    );
    some(peer, 256)
}

/// Returns the schema of a request match, as in rules of an `HTTPRoute`.
fn request_match() -> Value {
    object([
        ("path", path_match()),
        ("method", text(32)),
        ("headers", list(field_match(), 16)),
        ("queryParams", list(field_match(), 16)),
    ])
}

fn path_match() -> Value {
    object([("type", word(&["Exact", "PathPrefix", "RegularExpression"])), ("value", text(4096))])
}

fn field_match() -> Value {
    object([
        ("name!", text(256)),
        ("value!", text(4096)),
        ("type", word(&["Exact", "RegularExpression"])),
    ])
}

fn answer() -> Value {
    object([("status", integer(400, 599)), ("body", text(4096)), ("headers", headers())])
}

fn headers() -> Value {
    list(object([("name!", text(256)), ("value!", text(4096))]), 16)
}

fn failures() -> Value {
    list(word(&["connect", "timeout", "reset", "5xx", "gateway"]), 5)
}

fn grpc_statuses() -> Value {
    list(word(GRPC), 16)
}

const COUNT_MAX: u32 = 1_000_000;
const GRPC: &[&str] = &[
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
