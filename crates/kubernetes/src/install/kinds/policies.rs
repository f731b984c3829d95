//! Builds the OpenAPI schemas of the `spec` of each policy kind, for its CustomResourceDefinition:
//! authorization, outlier detection, circuit breakers, limits, JWT validation, fault injection, load balancing
//! and hedging.

use leno_model::definition::Definition as _;
use leno_model::{FailureClasses, GrpcFailure, HedgeRule, OutlierDetection, TargetedRule};
use serde_json::Value;

use super::target_refs;
use crate::install::definition_schema::{openapi_schema, schema_of_field};
use crate::install::schema::{
    any_value, boolean, dns_subdomain, duration, enumeration, integer, list, map, name_pattern,
    non_empty_list, object, percentage, port, text, with_description, with_keyword, with_rules,
};

/// Returns the schema of the `spec` of an AccessPolicy.
pub(super) fn access_policy() -> Value {
    let request = with_rules(
        object([
            ("methods", non_empty_list(text(32), 256)),
            ("path", path_match()),
            ("headers", non_empty_list(field_match(), 16)),
        ]),
        &[(
            "has(self.methods) || has(self.path) || has(self.headers)",
            "has no condition for requests: set methods, path or headers",
        )],
    );
    let claims = with_keyword(map(non_empty_list(text(512), 256), 16), "minProperties", 1.into());
    let rule = || {
        object([
            ("name", dns_subdomain()),
            ("from", peer_list()),
            ("requests", non_empty_list(request.clone(), 256)),
            ("claims", with_description(claims.clone(), "Required claims of the request's token.")),
            ("ports", non_empty_list(port(), 256)),
        ])
    };
    let accounts = with_description(
        non_empty_list(dns_subdomain(), 256),
        "Service accounts of the target workloads; all workloads of the namespace when absent.",
    );
    with_rules(
        object([
            ("serviceAccounts", accounts),
            (
                "deny",
                with_description(
                    non_empty_list(rule(), 256),
                    "Deny rules, which take precedence over allow rules.",
                ),
            ),
            (
                "allow",
                with_description(
                    non_empty_list(rule(), 256),
                    "Allow rules for default policy deny.",
                ),
            ),
        ]),
        &[("has(self.deny) || has(self.allow)", "has no rules: set deny or allow")],
    )
}

/// Returns the schema of the `spec` of an OutlierDetection.
pub(super) fn outlier_detection() -> Value {
    openapi_schema(&TargetedRule::<OutlierDetection>::SCHEMA)
}

/// Returns the schema of the `spec` of a SermantRemoval.
pub(super) fn sermant_removal() -> Value {
    let config = with_description(text(65_536), "Content of Sermant's `sermant.removal.config`.");
    object([("compat!", enumeration(&["sermant"])), ("config!", config)])
}

/// Returns the schema of the `spec` of a CircuitBreaker.
pub(super) fn circuit_breaker() -> Value {
    let limits = object([
        ("connections", integer(1, u32::MAX)),
        ("requests", integer(1, u32::MAX)),
        ("pending", integer(1, u32::MAX)),
        ("retries", integer(0, u32::MAX)),
    ]);
    let slow = object([("threshold!", duration()), ("percent", integer(1, 100))]);
    let trip = object([
        ("failures", schema_of_field::<FailureClasses>("failures")),
        ("grpcStatuses", schema_of_field::<FailureClasses>("grpcStatuses")),
        ("window", duration()),
        ("buckets", integer(1, 60)),
        ("minimumRequests", integer(1, MAX_THRESHOLD)),
        ("percent", integer(1, 100)),
        ("consecutiveFailures", integer(1, u32::MAX)),
        ("slow", slow),
        ("openDuration", duration()),
        ("halfOpenRequests", integer(1, 1000)),
    ]);
    with_rules(
        object([
            ("targetRefs!", target_refs()),
            ("limits", with_description(limits, "Limits of concurrent connections and requests.")),
            ("connectTimeout", duration()),
            ("trip", with_description(trip, "Conditions that open the circuit breaker.")),
            (
                "response",
                with_description(error_response(), "Response while the circuit breaker is open."),
            ),
        ]),
        &[
            (
                "has(self.limits) || has(self.connectTimeout) || has(self.trip)",
                "has no effect: set limits, connectTimeout or trip",
            ),
            ("!has(self.response) || has(self.trip)", "response requires trip"),
        ],
    )
}

/// Returns the schema of the `spec` of a RateLimit.
pub(super) fn rate_limit() -> Value {
    let connections = object([
        ("count!", integer(1, 1_000_000)),
        ("per!", duration()),
        ("burst", integer(1, 2_000_000)),
    ]);
    let rule = object([
        ("name", dns_subdomain()),
        ("matches", non_empty_list(request_match(), 256)),
        ("from", peer_list()),
        ("key", with_description(any_value(), "Key of the buckets: `client` or `{header: NAME}`.")),
        ("maxKeys", integer(1, 100_000)),
        ("requests!", integer(1, 1_000_000)),
        ("per!", duration()),
        ("burst", integer(1, 2_000_000)),
        ("stop", boolean()),
        ("response", error_response()),
    ]);
    let adaptive = object([
        ("minConcurrency", integer(1, 1_000_000)),
        ("latencyTolerancePercent", integer(1, 1000)),
    ]);
    let concurrency_fields = object([
        ("requests!", integer(1, 1_000_000)),
        (
            "adaptive",
            with_description(
                adaptive,
                "Adaptive concurrency: a lower limit while the application's latency is increased.",
            ),
        ),
        ("response", error_response()),
    ]);
    let minimum_rule = "!has(self.adaptive) || !has(self.adaptive.minConcurrency) || self.adaptive.minConcurrency <= self.requests";
    let concurrency = with_rules(
        concurrency_fields,
        &[(minimum_rule, "adaptive.minConcurrency must not exceed requests")],
    );
    with_rules(
        object([
            ("targetRefs!", target_refs()),
            ("connections", connections),
            ("rules", list(rule, 64)),
            ("concurrency", with_description(concurrency, "Limit of concurrent requests.")),
            (
                "global",
                with_description(global_limit(), "Check requests to a global rate limit service."),
            ),
        ]),
        &[(
            "has(self.connections) || has(self.rules) || has(self.concurrency) || has(self.global)",
            "has no limits: set rules, connections, concurrency or global",
        )],
    )
}

/// Returns the schema of a check by a global rate limit service.
fn global_limit() -> Value {
    let entry = with_rules(
        object([
            ("key!", text(256)),
            ("value", text(256)),
            ("header", text(256)),
            ("from", enumeration(&["client", "path", "method", "address"])),
        ]),
        &[(
            "[has(self.value), has(self.header), has(self.from)].filter(it, it).size() == 1",
            "set exactly one of value, header and from",
        )],
    );
    let descriptor = object([
        ("matches", non_empty_list(request_match(), 256)),
        ("entries!", non_empty_list(entry, 16)),
        ("hitsAddend", integer(1, 1_000_000)),
    ]);
    with_rules(
        object([
            ("service", check_service_reference()),
            ("url", text(512)),
            ("timeout", duration()),
            ("failureMode", enumeration(&["deny", "allow"])),
            ("domain!", text(256)),
            ("descriptors!", non_empty_list(descriptor, 16)),
            ("response", error_response()),
            ("rateLimitHeaders", boolean()),
        ]),
        &[EXACTLY_ONE_SERVER],
    )
}

/// Returns the schema of the `spec` of an ExternalAuthorization.
pub(super) fn external_authorization() -> Value {
    let body = object([
        ("maxRequestBytes", integer(1, 1_048_576)),
        ("allowPartialMessage", boolean()),
        ("packAsBytes", boolean()),
    ]);
    with_rules(
        object([
            ("targetRefs!", target_refs()),
            (
                "service",
                with_description(
                    check_service_reference(),
                    "External authorization service in the mesh.",
                ),
            ),
            (
                "url",
                with_description(
                    text(512),
                    "External authorization server, `http://HOST:PORT` or `https://HOST:PORT`.",
                ),
            ),
            ("timeout", duration()),
            ("failureMode", enumeration(&["deny", "allow"])),
            ("matches", non_empty_list(request_match(), 256)),
            ("headers", list(text(256), 64)),
            ("contextExtensions", map(text(4096), 32)),
            (
                "body",
                with_description(
                    body,
                    "Part of the body sent to the service; no body when absent.",
                ),
            ),
        ]),
        &[EXACTLY_ONE_SERVER],
    )
}

/// Returns the schema of the `spec` of a JwtValidation.
pub(super) fn jwt_validation() -> Value {
    let token_location = with_rules(
        object([("header", text(256)), ("prefix", text(64)), ("query", text(256))]),
        &[("has(self.header) != has(self.query)", "set exactly one of header and query")],
    );
    let claim_header = object([("claim!", text(512)), ("header!", text(256))]);
    let jwks = with_rules(
        object([
            ("inline", with_description(text(65_536), "JWK set, as JSON.")),
            (
                "file",
                with_description(
                    text(4096),
                    "Path of a file on the control plane, which watches it for changes.",
                ),
            ),
            (
                "url",
                with_description(
                    text(2048),
                    "URL of a JWKS endpoint, which the control plane queries.",
                ),
            ),
            (
                "refreshInterval",
                with_description(duration(), "Maximum interval between JWKS fetches."),
            ),
        ]),
        &[
            (
                "(has(self.inline) ? 1 : 0) + (has(self.file) ? 1 : 0) + (has(self.url) ? 1 : 0) == 1",
                "set exactly one of inline, file and url",
            ),
            ("!has(self.refreshInterval) || has(self.url)", "refreshInterval requires url"),
            (
                "!has(self.file) || self.file.startsWith('/')",
                "must be an absolute path in a cluster",
            ),
        ],
    );
    let issuer = object([
        ("issuer!", text(512)),
        ("audiences", non_empty_list(text(512), 256)),
        ("jwks!", jwks),
        ("from", non_empty_list(token_location, 256)),
        ("clockSkew", duration()),
        ("requireExpiration", boolean()),
        ("maxAge", duration()),
        ("claimToHeaders", non_empty_list(claim_header, 256)),
        ("forwardOriginalToken", boolean()),
    ]);
    object([
        ("targetRefs!", target_refs()),
        ("issuers!", non_empty_list(issuer, 16)),
        ("required", boolean()),
        ("requiredFor", non_empty_list(request_match(), 256)),
    ])
}

fn check_service_reference() -> Value {
    object([("name!", dns_subdomain()), ("namespace", dns_subdomain()), ("port!", port())])
}

/// The validation rule for a server that is either a service of the mesh or a URL.
const EXACTLY_ONE_SERVER: (&str, &str) =
    ("has(self.service) != has(self.url)", "set exactly one of service and url");

/// Returns the schema of the `spec` of a FaultInjection.
pub(super) fn fault_injection() -> Value {
    let delay = object([("fixedDelay!", duration()), ("percent", percentage())]);
    let abort = with_rules(
        object([
            ("httpStatus", integer(200, 599)),
            ("grpcStatus", openapi_schema(&GrpcFailure::SCHEMA)),
            ("body", text(4096)),
            ("headers", header_list()),
            ("percent", percentage()),
        ]),
        &[(
            "has(self.httpStatus) || has(self.grpcStatus)",
            "has no status: set httpStatus or grpcStatus",
        )],
    );
    let rule = with_rules(
        object([
            ("name", dns_subdomain()),
            ("matches", non_empty_list(request_match(), 256)),
            ("from", peer_list()),
            ("delay", delay),
            ("abort", abort),
        ]),
        &[("has(self.delay) || has(self.abort)", "injects no fault: set delay or abort")],
    );
    object([("targetRefs!", target_refs()), ("rules!", non_empty_list(rule, 64))])
}

/// Returns the schema of the `spec` of a LoadBalancing.
pub(super) fn load_balancing() -> Value {
    let key = with_rules(
        object([("header", text(256)), ("cookie", text(256)), ("source", boolean())]),
        &[(
            "[has(self.header), has(self.cookie), has(self.source)].filter(it, it).size() == 1",
            "set exactly one of header, cookie and source",
        )],
    );
    let warmup = object([("duration!", duration()), ("minimumPercent", integer(1, 100))]);
    let algorithms = ["PeakEwma", "LeastRequest", "RoundRobin", "Random", "RingHash", "Maglev"];
    let hashing_condition = "has(self.algorithm) && self.algorithm in ['RingHash', 'Maglev']";
    with_rules(
        object([
            ("targetRefs!", target_refs()),
            ("algorithm", enumeration(&algorithms)),
            ("choiceCount", integer(2, 16)),
            ("key", key),
            ("warmup", warmup),
        ]),
        &[
            (
                "!has(self.choiceCount) || !has(self.algorithm) \
                 || self.algorithm in ['PeakEwma', 'LeastRequest']",
                "choiceCount requires PeakEwma or LeastRequest",
            ),
            (
                &format!("has(self.key) == ({hashing_condition})"),
                "key is required for RingHash and Maglev, and not supported for other algorithms",
            ),
            (
                "!has(self.key) || !has(self.warmup)",
                "warmup is not supported for algorithms with a key",
            ),
        ],
    )
}

/// Returns the schema of the `spec` of a Hedging.
pub(super) fn hedging() -> Value {
    openapi_schema(&TargetedRule::<HedgeRule>::SCHEMA)
}

/// Returns the schema of the peers of a rule; all peers when absent.
fn peer_list() -> Value {
    let peer = with_rules(
        object([("namespace", name_pattern()), ("serviceAccount", name_pattern())]),
        &[(
            "has(self.namespace) || has(self.serviceAccount)",
            "names no client: set namespace or serviceAccount",
        )],
    );
    non_empty_list(peer, 256)
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
    object([
        ("type", enumeration(&["Exact", "PathPrefix", "RegularExpression"])),
        ("value", text(4096)),
    ])
}

fn field_match() -> Value {
    object([
        ("name!", text(256)),
        ("value!", text(4096)),
        ("type", enumeration(&["Exact", "RegularExpression"])),
    ])
}

fn error_response() -> Value {
    object([("status", integer(400, 599)), ("body", text(4096)), ("headers", header_list())])
}

fn header_list() -> Value {
    list(object([("name!", text(256)), ("value!", text(4096))]), 16)
}

/// The maximum of thresholds in policies: numbers of requests, failures or endpoints.
const MAX_THRESHOLD: u32 = 1_000_000;
