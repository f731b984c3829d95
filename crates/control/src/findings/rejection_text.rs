//! Describes rejected requests in sentences for `leno status` and `leno diagnose`: the rejecting sidecars, and the
//! policies that decided.

use crate::status::{
    PolicyStatus, RejectionStatus, RouteStatus, WorkloadStatus, is_service_or_port,
};

use crate::figures::{DEGRADED_BELOW, format_share};

/// The objects of the mesh that may explain a rejection.
#[derive(Debug, Clone, Copy)]
pub struct MeshObjects<'a> {
    /// The status of all workloads.
    pub workloads: &'a [WorkloadStatus],
    /// The status of all routes.
    pub routes: &'a [RouteStatus],
    /// The status of all policies.
    pub policies: &'a [PolicyStatus],
}

/// True for a significant share of rejections: at least `MIN_REJECTED_REQUESTS` requests, and more than one
/// percent.
#[must_use]
pub fn is_notable(rejection: &RejectionStatus) -> bool {
    rejection.requests >= MIN_REJECTED_REQUESTS && 1.0 - rejection.share < DEGRADED_BELOW
}

/// Returns a sentence about a rejection: its service, share, reason, sidecars and policies.
#[must_use]
pub fn describe_rejection(rejection: &RejectionStatus, objects: MeshObjects<'_>) -> String {
    let RejectionStatus { service, reason, sidecars, clients, .. } = rejection;
    let share = format_share(Some(rejection.share));
    let decision = match deciding_objects(rejection, objects).as_slice() {
        [] if reason == "egress-denied" => {
            "; no policy allows it, and spec.egress of the MeshConfig is deny".to_owned()
        }
        [] if is_missing_policy_reason(reason) => "; no policy allows it".to_owned(),
        [] => String::new(),
        [name] => format!("; decided by {name}"),
        several => format!("; decided by one of {}", several.join(", ")),
    };
    if let ("", [client, ..]) = (service.as_str(), clients.as_slice()) {
        let requests = match is_head_reason(reason) {
            true => "requests without a known service",
            false => "requests to destinations that are not services",
        };
        return format!(
            "{client}: the mesh rejects {share} of its {requests} with {reason}{decision}"
        );
    }
    let client_suffix = match rejection.side.as_str() {
        "server" => "",
        _ => " of its clients",
    };
    // The server's sidecar rejects these requests, but only the clients' sidecars have reported them so far.
    let location_word =
        if !client_suffix.is_empty() && is_server_reason(reason) { ", counted by" } else { " at" };
    let location = match sidecars.as_slice() {
        [] => String::new(),
        [sidecar] => format!("{location_word} the sidecar{client_suffix} {sidecar}"),
        several => format!(
            "{location_word} {} sidecars{client_suffix}: {}",
            several.len(),
            several.join(", ")
        ),
    };
    format!("{service}: the mesh rejects {share} of the requests with {reason}{location}{decision}")
}

/// Returns the commands that explain a rejection.
#[must_use]
pub fn rejection_hint(rejection: &RejectionStatus) -> String {
    let RejectionStatus { service, reason, clients, .. } = rejection;
    let explain_command = format!("leno explain {reason} shows its meaning and hint");
    match clients.first() {
        None => explain_command,
        Some(client) if service.is_empty() => format!("{explain_command}; leno diagnose {client}"),
        Some(client) => format!("{explain_command}; leno diagnose {client} --to {service}"),
    }
}

/// Returns the policies or routes that decided. If sidecars report none, returns all objects for the service of the
/// kinds that reject requests for this reason.
fn deciding_objects(rejection: &RejectionStatus, objects: MeshObjects<'_>) -> Vec<String> {
    if !rejection.policies.is_empty() {
        return rejection.policies.clone();
    }
    let service = &rejection.service;
    let workloads = objects.workloads.iter().filter(|workload| workload.services.contains(service));
    let accounts: Vec<&str> = workloads.map(|workload| workload.account.as_str()).collect();
    let kinds = rejecting_kinds(&rejection.reason);
    let policies = objects
        .policies
        .iter()
        .filter(|policy| kinds.contains(&&*policy.kind))
        .filter(|policy| policy.applies_to(&accounts, &[service.as_str()]))
        .map(|policy| format!("{} {}", policy.kind, policy.name));
    let routes = objects
        .routes
        .iter()
        .filter(|route| kinds.contains(&&*route.kind))
        .filter(|route| route.parents.iter().any(|parent| is_service_or_port(parent, service)))
        .map(|route| format!("{} {}", route.kind, route.name));
    policies.chain(routes).take(MAX_OBJECTS).collect()
}

/// Returns the kinds of objects that reject requests for a reason. Empty for `denied` and `denied-outbound`: no
/// policy allowed the request, and an existing policy may be newer and allow it.
fn rejecting_kinds(reason: &str) -> &'static [&'static str] {
    match reason {
        "no-policy-route" => &["TrafficTarget", "AccessPolicy"],
        "denied-by-policy" => &["AccessPolicy"],
        "rate-limited" | "overloaded" | "rate-limit-unavailable" => {
            &["RateLimit", "UpstreamTrafficSetting"]
        }
        "token-missing" | "token-invalid" => &["JwtValidation"],
        "denied-by-service" | "authorization-unavailable" | "body-too-large" => {
            &["ExternalAuthorization"]
        }
        "fault-injected" => &["FaultInjection"],
        "circuit-open" | "circuit-full" => &["CircuitBreaker", "UpstreamTrafficSetting"],
        "no-tagged-endpoint" => &["TagRoute", "SermantRouteRule", "Lane"],
        "no-route" | "invalid-backend" => {
            &["HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute", "TrafficSplit"]
        }
        _ => &[],
    }
}

/// True for reasons for which the server's sidecar rejects requests; the client's sidecar counts them as well.
/// A gateway rejects requests for these reasons itself.
fn is_server_reason(reason: &str) -> bool {
    matches!(
        reason,
        "denied"
            | "denied-by-policy"
            | "no-policy-route"
            | "rate-limited"
            | "overloaded"
            | "rate-limit-unavailable"
            | "token-missing"
            | "token-invalid"
            | "denied-by-service"
            | "authorization-unavailable"
            | "body-too-large"
    )
}

/// True for reasons for which a request head cannot be read. At a port where each request names its service, such as
/// the HTTP proxy port, the service of the request is then unknown.
fn is_head_reason(reason: &str) -> bool {
    matches!(reason, "bad-request" | "head-too-large" | "head-timeout" | "unsupported")
}

/// True for reasons caused by the absence of an allow policy.
fn is_missing_policy_reason(reason: &str) -> bool {
    matches!(reason, "denied" | "no-policy-route" | "denied-outbound")
}

/// The minimum number of rejected requests for a finding.
const MIN_REJECTED_REQUESTS: u64 = 5;
/// Maximum policies or routes in one sentence.
const MAX_OBJECTS: usize = 4;

#[cfg(test)]
mod tests;
