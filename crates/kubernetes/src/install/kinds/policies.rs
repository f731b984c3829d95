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
            "says nothing about a request: give methods, path or headers",
        )],
    );
    let claims = with(map(some(text(512), 256), 16), "minProperties", 1.into());
    let rule = || {
        object([
            ("name", name()),
            ("from", peers()),
            ("requests", some(request.clone(), 256)),
            ("claims", about(claims.clone(), "What the token of a request must say.")),
            ("ports", some(port(), 256)),
        ])
    };
    let accounts =
        about(some(name(), 256), "Whose workloads it is about; all of the namespace when absent.");
    unless(
        object([
            ("serviceAccounts", accounts),
            ("deny", about(some(rule(), 256), "What is denied, whatever allows it.")),
            ("allow", about(some(rule(), 256), "What is allowed in strict mode.")),
        ]),
        &[("has(self.deny) || has(self.allow)", "has no rules: give deny or allow")],
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
        ("healthCheck", about(health_check(), "How endpoints are asked whether they are well.")),
    ])
}

fn health_check() -> Value {
    let path = about(text(1024), "A path, which starts with `/`.");
    let one_of = [
        ("has(self.httpGet) || has(self.grpc)", "asks nothing: give httpGet or grpc"),
        ("!has(self.httpGet) || !has(self.grpc)", "asks two things: give httpGet or grpc"),
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
    let config = about(text(65_536), "What stands under Sermant's `sermant.removal.config`.");
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
            ("limits", about(limits, "How much may be under way.")),
            ("connectTimeout", duration()),
            ("trip", about(trip, "When nothing is sent for a while.")),
            ("answer", about(answer(), "What is answered instead.")),
        ]),
        &[
            (
                "has(self.limits) || has(self.connectTimeout) || has(self.trip)",
                "limits nothing and never trips: give limits, connectTimeout or trip",
            ),
            ("!has(self.answer) || has(self.trip)", "answer is never given without trip"),
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
        ("each", about(anything(), "`client`, or `{header: NAME}`: each has a bucket of its own.")),
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
        ("adaptive", about(adaptive, "Fewer, where the application answers slower than it can.")),
        ("answer", answer()),
    ]);
    let least =
        "!has(self.adaptive) || !has(self.adaptive.least) || self.adaptive.least <= self.requests";
    let concurrency = unless(concurrency, &[(least, "adaptive.least is more than requests")]);
    unless(
        object([
            ("targetRefs!", target_refs()),
            ("connections", connections),
            ("rules", list(rule, 64)),
            ("concurrency", about(concurrency, "How many requests may be under way at once.")),
            ("global", about(global_limit(), "What a rate limit service is asked.")),
        ]),
        &[(
            "has(self.connections) || has(self.rules) || has(self.concurrency) || has(self.global)",
            "limits nothing: give rules, connections, concurrency or global",
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
            "must say one thing: text, header or from",
        )],
    );
    let descriptor = object([
        ("matches", some(request_match(), 256)),
        ("entries!", some(entry, 16)),
        ("hits", integer(1, 1_000_000)),
    ]);
    unless(
        object([
            ("service", decider_service()),
            ("url", text(512)),
            ("timeout", duration()),
            ("onFailure", word(&["deny", "allow"])),
            ("domain!", text(256)),
            ("descriptors!", some(descriptor, 16)),
            ("answer", answer()),
            ("tellClients", boolean()),
        ]),
        &[ONE_DECIDER],
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
            ("service", about(decider_service(), "A service of the mesh that decides.")),
            ("url", about(text(512), "`http://HOST:PORT`, or `https`: a server that decides.")),
            ("timeout", duration()),
            ("onFailure", word(&["deny", "allow"])),
            ("matches", some(request_match(), 256)),
            ("headers", list(text(256), 64)),
            ("context", map(text(4096), 32)),
            ("body", about(body, "How much of bodies the service is shown; nothing without it.")),
        ]),
        &[ONE_DECIDER],
    )
}

pub(super) fn jwt_validation() -> Value {
    let place = unless(
        object([("header", text(256)), ("prefix", text(64)), ("query", text(256))]),
        &[("has(self.header) != has(self.query)", "must be one place: give header or query")],
    );
    let forward = object([("claim!", text(512)), ("header!", text(256))]);
    let jwks = unless(
        object([
            ("inline", about(text(65_536), "A JWK set, as JSON.")),
            ("file", about(text(4096), "A file where the control plane is, which it watches.")),
            ("url", about(text(2048), "A server that the control plane asks for the set.")),
            ("refresh", about(duration(), "How often it is asked, at the least.")),
        ]),
        &[
            (
                "(has(self.inline) ? 1 : 0) + (has(self.file) ? 1 : 0) + (has(self.url) ? 1 : 0) == 1",
                "must be in one place: give inline, file or url",
            ),
            ("!has(self.refresh) || has(self.url)", "refresh is for servers: give url"),
            ("!has(self.file) || self.file.startsWith('/')", "must begin with / in a cluster"),
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

fn decider_service() -> Value {
    object([("name!", name()), ("namespace", name()), ("port!", port())])
}

const ONE_DECIDER: (&str, &str) =
    ("has(self.service) != has(self.url)", "must ask somebody: give service or url");

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
        &[("has(self.status) || has(self.grpcStatus)", "has no status: give status or grpcStatus")],
    );
    let rule = unless(
        object([
            ("name", name()),
            ("matches", some(request_match(), 256)),
            ("from", peers()),
            ("delay", delay),
            ("abort", abort),
        ]),
        &[("has(self.delay) || has(self.abort)", "injects nothing: give delay or abort")],
    );
    object([("targetRefs!", target_refs()), ("rules!", some(rule, 64))])
}

pub(super) fn load_balancing() -> Value {
    let key = unless(
        object([("header", text(256)), ("cookie", text(256)), ("source", boolean())]),
        &[(
            "[has(self.header), has(self.cookie), has(self.source)].filter(it, it).size() == 1",
            "must say one thing: header, cookie or source",
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
                "choices is for PeakEwma and LeastRequest",
            ),
            (
                &format!("has(self.key) == ({hashes})"),
                "key is hashed by RingHash and Maglev, which need one",
            ),
            ("!has(self.key) || !has(self.warmUp)", "warmUp is not for algorithms with a key"),
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
            "names nobody: give namespace or serviceAccount",
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
