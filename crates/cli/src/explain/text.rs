//! Renders the decision of `leno explain request` as text and as JSON.

use std::fmt::Write as _;

use leno_model::{
    Header, HeaderEdits, OriginPattern, PathEdit, PersistenceType, Reason, RetryRule, RouteKind,
    RouteRule, RuleActions, SessionPersistence, UrlRewrite,
};
use leno_traffic::PolicyDecision;
use serde_json::{Value, json};

use super::decide::{
    DecidedBackend, DecidedEndpoint, DecidedRoute, EndpointAccess, ExplainedRequest, MissingPart,
    RequestDecision, is_opaque,
};
use super::tags::TagRuleEvaluation;
use super::unapplied::UnappliedPolicy;
use super::unused_matches::UnusedMatch;

/// Renders the text output; the last line is the verdict.
pub(super) fn render(decision: &RequestDecision, request: &ExplainedRequest) -> String {
    let mut text = String::new();
    let mut add_line = |label: &str, value: &str| {
        writeln!(text, "{label:<9} {value}").expect("writing to a String never fails");
    };
    add_line("request", &describe_request(request));
    let client = &decision.client;
    add_line("from", &format!("{} (account {})", client.name, client.account));
    write_target(decision, request, &mut add_line);
    match &decision.route {
        Some(route) => {
            add_line("route", &describe_route(route));
            for filter in describe_rule(&route.rule) {
                add_line("filter", &filter);
            }
        }
        None if decision.protocol.is_some() && decision.rejection.is_none() => {
            let routing = match decision.unused_matches.is_empty() {
                true => "none",
                false => "no split matches",
            };
            add_line("route", &format!("{routing}: the service's own endpoints"));
        }
        None => {}
    }
    for unused_match in decision.unused_matches.iter().take(MAX_SHOWN_MATCHES) {
        add_line("skipped", &describe_unused_match(unused_match));
    }
    if let Some(omitted_count @ 1..) = decision.unused_matches.len().checked_sub(MAX_SHOWN_MATCHES)
    {
        add_line("skipped", &format!("{omitted_count} more matches"));
    }
    if let Some(forwarded_request) = &decision.forwarded_request {
        add_line("sent as", &describe_request(forwarded_request));
    }
    if let Some(redirection) = &decision.redirection {
        add_line("redirect", &format!("{} to {}", redirection.status, redirection.location));
    }
    if let Some(endpoint) = &decision.session_endpoint {
        let endpoint_text = format!("{} of {}", endpoint.workload, endpoint.service);
        add_line("session", &format!("{endpoint_text}, by session persistence"));
    }
    if let Some(retry) = &decision.retry {
        add_line("retry", &format!("Retry {}: {}", retry.policy, describe_retry(&retry.rule)));
        if let Some(limit) = retry.response_timeout {
            add_line("", &format!("timeout of {limit:?} per attempt, until the response begins"));
        }
    }
    for unapplied in &decision.unapplied {
        add_line("no effect", &format!("{}: {}", unapplied.policy, unapplied.reason));
    }
    for backend in &decision.backends {
        write_backend(backend, request, &mut add_line);
    }
    add_line("verdict", &render_verdict(decision, request));
    text
}

/// Returns the method and URL, or the URL of a TCP connection.
fn describe_request(request: &ExplainedRequest) -> String {
    match request.target.is_tcp {
        true => request.target.url(),
        false => format!("{} {}", request.method, request.target.url()),
    }
}

/// Adds the called service, or the host outside the mesh.
fn write_target(
    decision: &RequestDecision,
    request: &ExplainedRequest,
    add_line: &mut impl FnMut(&str, &str),
) {
    let target = &request.target;
    if let Some(permission) = &decision.egress_permission {
        return add_line("outside", &permission.describe(request));
    }
    match (&decision.service, decision.protocol) {
        (Some(service), Some(protocol)) => {
            add_line("service", &format!("{service} port {} ({protocol})", target.port));
            if is_opaque(protocol) {
                add_line("", "opaque: requests are not parsed, and only TCP rules apply");
            }
        }
        (Some(service), None) => add_line("service", &format!("{service} port {}", target.port)),
        (None, _) => {
            add_line("service", &format!("`{}` is not the name of a service", target.host))
        }
    }
}

/// Adds a backend with its policies and endpoints.
fn write_backend(
    backend: &DecidedBackend,
    request: &ExplainedRequest,
    add_line: &mut impl FnMut(&str, &str),
) {
    add_line("backend", &describe_backend(backend, request));
    for effect in &backend.effects {
        add_line("", &format!("{}: {}", effect.policy, effect.description));
    }
    for unapplied in &backend.unapplied {
        add_line("no effect", &format!("{}: {}", unapplied.policy, unapplied.reason));
    }
    for (label, description) in backend.tags.iter().flat_map(TagRuleEvaluation::describe_lines) {
        add_line(label, &description);
    }
    for endpoint in &backend.endpoints {
        add_line("", &describe_endpoint(endpoint, request));
        for limit in &endpoint.limits {
            add_line("", &format!("  {}: {}", limit.policy, limit.description));
        }
        for description in endpoint.lane_headers.iter().chain(&endpoint.ingress_rules) {
            add_line("", &format!("  {description}"));
        }
    }
}

/// Returns the JSON output.
pub(super) fn decision_to_json(decision: &RequestDecision, request: &ExplainedRequest) -> Value {
    let outcomes = decision.distinct_outcomes();
    let allowed = outcomes == [None] && !decision.client_sidecar_responds();
    let reason = match outcomes.as_slice() {
        [Some(reason)] => Some(*reason),
        _ => None,
    };
    let is_request = !request.target.is_tcp;
    json!({
        "request": {
            "method": is_request.then_some(&request.method),
            "authority": request.target.authority,
            "path": is_request.then_some(&request.target.path),
            "query": request.target.query,
        },
        "from": {
            "workload": decision.client.name.to_string(),
            "account": decision.client.account.to_string(),
        },
        "service": decision.service.as_ref().map(ToString::to_string),
        "port": request.target.port,
        "outside": decision.egress_permission.as_ref().map(|permission| permission.to_json(request)),
        "protocol": decision.protocol.map(leno_model::Protocol::as_str),
        "route": decision.route.as_ref().map(route_to_json),
        "conflicts": decision.unused_matches.iter().map(unused_match_to_json).collect::<Vec<_>>(),
        "session_affinity": decision.session_endpoint.as_ref().map(|endpoint| json!({
            "workload": endpoint.workload.to_string(),
            "service": endpoint.service.to_string(),
            "port": endpoint.port,
        })),
        "retry": decision.retry.as_ref().map(|retry| json!({
            "policy": format!("Retry {}", retry.policy),
            "codes": retry.rule.codes,
            "attempts": retry.rule.attempts,
            "backoff_ms": retry.rule.backoff.as_secs_f64() * 1e3,
            "response_timeout_ms": retry.response_timeout.map(|limit| limit.as_secs_f64() * 1e3),
        })),
        "sent": decision.forwarded_request.as_ref().map(|forwarded| json!({
            "method": forwarded.method,
            "authority": forwarded.target.authority,
            "path": forwarded.target.path,
            "query": forwarded.target.query,
            "headers": forwarded.headers,
        })),
        "redirect": decision.redirection.as_ref().map(|redirection| json!({
            "status": redirection.status,
            "location": redirection.location,
        })),
        "not_applied": unapplied_to_json(&decision.unapplied),
        "backends": decision.backends.iter().map(backend_to_json).collect::<Vec<_>>(),
        "allowed": allowed,
        "status": decision
            .redirection
            .as_ref()
            .map(|redirection| redirection.status)
            .or(decision.is_preflight.then_some(200))
            .or(reason
                .filter(|_| is_request)
                .and_then(|reason| common_status(&decision.rejection_statuses(reason)))),
        "reason": reason.map(Reason::label),
        "outcomes": outcomes
            .iter()
            .map(|outcome| outcome.map_or("allowed", Reason::label))
            .collect::<Vec<_>>(),
        "verdict": render_verdict(decision, request),
    })
}

fn render_verdict(decision: &RequestDecision, request: &ExplainedRequest) -> String {
    if let Some(redirection) = &decision.redirection {
        return format!("{}: the client's sidecar sends a redirect", redirection.status);
    }
    if decision.is_preflight {
        return "200: CORS preflight, answered by the client's sidecar".to_owned();
    }
    if let Some(permission) = &decision.egress_permission {
        return permission.render_verdict(request);
    }
    let outcomes = decision.distinct_outcomes();
    match outcomes.as_slice() {
        [None] if request.target.is_tcp => {
            "allowed: the connection reaches the application".to_owned()
        }
        [None] => "200-range: allowed; the application responds".to_owned(),
        [Some(reason)] => {
            let status =
                format_statuses(&request.response_statuses(decision.rejection_statuses(*reason)));
            let hint = reason_hint(decision, request, *reason);
            let caption = reason_caption(decision, request, *reason);
            format!("{status} {}: {caption} {hint}", reason.label())
        }
        [] if request.target.is_tcp => "reset no-endpoint: the service has no endpoint.".to_owned(),
        [] => "503 no-endpoint: the service has no endpoint.".to_owned(),
        [None, Some(Reason::TokenInvalid)] => {
            "it depends on the token (allowed, token-invalid): the endpoint's sidecar verifies it"
                .to_owned()
        }
        outcomes => {
            let outcomes: Vec<&str> =
                outcomes.iter().map(|outcome| outcome.map_or("allowed", Reason::label)).collect();
            format!("it depends on the endpoint ({}): see the lines above", outcomes.join(", "))
        }
    }
}

/// Returns the status common to all responses; `None` if the statuses differ or there are none.
pub(super) fn common_status(statuses: &[u16]) -> Option<u16> {
    let first = *statuses.first()?;
    statuses.iter().all(|status| *status == first).then_some(first)
}

/// Joins the distinct statuses of responses with `or`; the status 0 is a reset connection.
pub(super) fn format_statuses(statuses: &[u16]) -> String {
    let mut distinct_statuses: Vec<String> = Vec::new();
    for status in statuses {
        let status = if *status == 0 { "reset".to_owned() } else { status.to_string() };
        if !distinct_statuses.contains(&status) {
            distinct_statuses.push(status);
        }
    }
    distinct_statuses.join(" or ")
}

/// Returns a sentence about the reason; it names the service or port that does not exist, if that is the cause.
fn reason_caption(
    decision: &RequestDecision,
    request: &ExplainedRequest,
    reason: Reason,
) -> String {
    match (&decision.missing, &decision.service) {
        (Some(MissingPart::Service(_)), Some(service)) => format!("There is no Service {service}."),
        (Some(MissingPart::Port(_)), Some(service)) => {
            format!("The Service {service} has no port {}.", request.target.port)
        }
        _ => reason.caption().to_owned(),
    }
}

/// Returns the hint for a rejected request, with names from the configuration where they are known.
fn reason_hint(decision: &RequestDecision, request: &ExplainedRequest, reason: Reason) -> String {
    match &decision.missing {
        Some(MissingPart::Port(ports)) if !ports.is_empty() => {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            return format!("Use port {}.", ports.join(" or "));
        }
        Some(MissingPart::Service(same_name_services)) if !same_name_services.is_empty() => {
            let hosts = same_name_services
                .iter()
                .map(|service| format!("{}.{}", service.name, service.namespace));
            return format!("Use the host {}.", hosts.collect::<Vec<_>>().join(" or "));
        }
        _ => {}
    }
    let account = &decision.client.account;
    let source = format!(
        "{{kind: ServiceAccount, name: {}, namespace: {}}}",
        account.name, account.namespace
    );
    let endpoints: Vec<&DecidedEndpoint> =
        decision.backends.iter().flat_map(|backend| &backend.endpoints).collect();
    let policy = endpoints.iter().find_map(|endpoint| match &endpoint.access {
        EndpointAccess::Denied(_, policy) => policy.as_ref(),
        EndpointAccess::AllowedByDefault
        | EndpointAccess::Allowed(_)
        | EndpointAccess::DryRun(..) => None,
    });
    let destination = endpoints.first().and_then(|endpoint| endpoint.endpoint.account.as_ref());
    match (reason, policy, destination, &decision.service) {
        (Reason::Denied, Some(policy), ..) => {
            format!("Add {source} to spec.sources of the {} {policy}.", policy.policy_kind())
        }
        (Reason::DeniedByPolicy, Some(policy), ..) => {
            format!("Change the {} {policy}, or use another service account.", policy.policy_kind())
        }
        (Reason::Denied, None, Some(destination), _) => format!(
            "Add a TrafficTarget with the destination {destination} and {source} among its sources."
        ),
        (Reason::NoPolicyRoute, _, Some(destination), _) => format!(
            "Add a match for {} {} to an HTTPRouteGroup that a TrafficTarget for {destination} uses.",
            request.method, request.target.path
        ),
        (Reason::DeniedOutbound, _, _, Some(service)) => format!(
            "Add {source} to spec.sources of a TrafficTarget with the account of the workloads \
             of {service} as its destination."
        ),
        _ => reason.remedy().to_owned(),
    }
}

fn describe_route(route: &DecidedRoute) -> String {
    let rule = &route.rule;
    let (kind, name) = (rule.kind.as_str(), &rule.route);
    let match_text =
        rule.matches.get(route.match_index).map(ToString::to_string).unwrap_or_default();
    let timeout = rule
        .request_timeout
        .map_or(String::new(), |timeout| format!(", request timeout {timeout:?}"));
    let position = match_position(rule.kind, route.rule_index, route.match_index);
    format!("{kind} {name}: {position}({match_text}){timeout}")
}

/// Returns the position of a match in its route; empty for kinds without numbered rules.
fn match_position(kind: RouteKind, rule_index: usize, match_index: usize) -> String {
    match kind {
        RouteKind::Http | RouteKind::Grpc => format!("rules[{rule_index}].matches[{match_index}] "),
        RouteKind::Split | RouteKind::Tcp | RouteKind::Tls => String::new(),
    }
}

/// Describes the effects of a rule and of its backends on requests and responses, one line per effect.
fn describe_rule(rule: &RouteRule) -> Vec<String> {
    let mut lines = describe_actions(&rule.actions);
    for backend in &rule.backends {
        let Some(edits) = &backend.edits else { continue };
        let request_edits = describe_header_edits("request", &edits.request_headers);
        let effects = request_edits
            .into_iter()
            .chain(describe_header_edits("response", &edits.response_headers))
            .chain(edits.rewrite.iter().flat_map(describe_rewrite));
        lines.extend(
            effects.map(|line| format!("for {} port {}: {line}", backend.service, backend.port)),
        );
    }
    lines
}

/// Describes the actions of a rule except the choice of a backend, one line per action.
fn describe_actions(actions: &RuleActions) -> Vec<String> {
    let mut lines = describe_header_edits("request", &actions.request_headers);
    lines.extend(describe_header_edits("response", &actions.response_headers));
    lines.extend(actions.rewrite.iter().flat_map(describe_rewrite));
    if actions.redirect.is_some() {
        lines.push("redirect".to_owned());
    }
    lines.extend(actions.mirrors.iter().map(|mirror| {
        let percent = f64::from(mirror.weight) / 1e4;
        format!("mirror {percent} % of requests to {} port {}", mirror.service, mirror.port)
    }));
    if let Some(cors) = &actions.cors {
        let origins: Vec<&str> = cors.origins.iter().map(OriginPattern::as_str).collect();
        lines.push(format!("allow CORS requests of the origins {}", origins.join(", ")));
    }
    lines.extend(actions.persistence.as_ref().map(describe_persistence));
    if let Some(limit) = actions.attempt_timeout {
        lines.push(format!("timeout of {limit:?} per attempt"));
    }
    if let Some(retry) = &actions.retry {
        lines.push(describe_retry(retry));
    }
    lines
}

fn describe_rewrite(rewrite: &UrlRewrite) -> impl Iterator<Item = String> {
    let host = rewrite.hostname.as_ref().map(|name| format!("rewrite the host to {name}"));
    let path = rewrite.path.as_ref().map(|path| match path {
        PathEdit::Full(path) => format!("rewrite the path to {path}"),
        PathEdit::Prefix(path) => format!("replace the matched prefix of the path with {path:?}"),
    });
    host.into_iter().chain(path)
}

fn describe_persistence(persistence: &SessionPersistence) -> String {
    let header_or_cookie = match persistence.kind {
        PersistenceType::Cookie | PersistenceType::LastingCookie => "cookie",
        PersistenceType::Header => "header",
    };
    let mut description = match &persistence.name {
        Some(name) => format!("persist sessions with the {header_or_cookie} {name}"),
        None => format!("persist sessions with a {header_or_cookie}"),
    };
    if let Some(path) = &persistence.path {
        description.push_str(&format!(" for paths below {path}"));
    }
    if let Some(duration) = persistence.absolute_timeout {
        description.push_str(&format!(", for at most {duration:?}"));
    }
    if let Some(duration) = persistence.idle_timeout {
        description.push_str(&format!(", until {duration:?} after the last response"));
    }
    description
}

fn describe_retry(retry: &RetryRule) -> String {
    if retry.attempts == 0 {
        return "no retries".to_owned();
    }
    let retried_failures = match retry.codes.is_empty() {
        true => "failures without a response".to_owned(),
        false => format!("failures and responses {}", join_statuses(&retry.codes)),
    };
    let retries_text = if retry.attempts == 1 {
        "1 retry".to_owned()
    } else {
        format!("{} retries", retry.attempts)
    };
    format!(
        "up to {retries_text} after {retried_failures}, back-off from {:?}, within the retry budget",
        retry.backoff
    )
}

/// Joins statuses in order, with consecutive statuses as a range.
fn join_statuses(codes: &[u16]) -> String {
    let ranges = codes.chunk_by(|status, next| status + 1 == *next);
    let descriptions = ranges.filter_map(|range| match (range.first()?, range.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first} to {last}")),
    });
    descriptions.collect::<Vec<_>>().join(", ")
}

fn describe_header_edits(side: &str, edits: &HeaderEdits) -> Vec<String> {
    let describe = |verb: &str, header: &Header| {
        format!("{verb} the {side} header {}: {}", header.name, header.value)
    };
    let set_lines = edits.set.iter().map(|header| describe("set", header));
    let add_lines = edits.add.iter().map(|header| describe("add", header));
    let remove_lines = edits.remove.iter().map(|name| format!("remove the {side} header {name}"));
    set_lines.chain(add_lines).chain(remove_lines).collect()
}

fn describe_unused_match(unused_match: &UnusedMatch) -> String {
    let UnusedMatch { kind, route, rule_index, match_index, request_match, reason } = unused_match;
    let position = match_position(*kind, *rule_index, *match_index);
    format!("{} {route}: {position}({request_match}): {}", kind.as_str(), reason.describe())
}

fn unused_match_to_json(unused_match: &UnusedMatch) -> Value {
    json!({
        "kind": unused_match.kind.as_str(),
        "name": unused_match.route.to_string(),
        "rule": unused_match.rule_index,
        "match": unused_match.match_index,
        "matches": unused_match.request_match.to_string(),
        "reason": unused_match.reason.describe(),
    })
}

fn describe_backend(backend: &DecidedBackend, request: &ExplainedRequest) -> String {
    let padded_percent = format!("{:.4}", backend.share * 100.0);
    let percent = padded_percent.trim_end_matches('0').trim_end_matches('.');
    let rejection_text = match backend.rejection {
        None => String::new(),
        Some(reason) => {
            let statuses =
                request.response_statuses(vec![backend.status.unwrap_or(reason.status())]);
            format!(": {} {}", format_statuses(&statuses), reason.label())
        }
    };
    let grant_note = match backend.is_ungranted {
        true => " (no ReferenceGrant permits it)",
        false => "",
    };
    format!(
        "{} port {}, {percent} % of such requests{rejection_text}{grant_note}",
        backend.service, backend.port
    )
}

fn describe_endpoint(decided: &DecidedEndpoint, request: &ExplainedRequest) -> String {
    let endpoint = &decided.endpoint;
    let access_text = match &decided.access {
        EndpointAccess::AllowedByDefault => "allowed for every member of the mesh".to_owned(),
        EndpointAccess::Allowed(decision) => {
            format!("allowed by the {} {decision}", decision.policy_kind())
        }
        EndpointAccess::Denied(reason, decision) => {
            let policy_note = describe_decision(*reason, decision.as_ref());
            let status = format_statuses(&request.response_statuses(vec![reason.status()]));
            format!("{status} {}{policy_note}", reason.label())
        }
        EndpointAccess::DryRun(reason, decision) => format!(
            "allowed by default policy dry-run; with default policy deny {} {}{}",
            reason.status(),
            reason.label(),
            describe_decision(*reason, decision.as_ref())
        ),
    };
    match &endpoint.account {
        Some(account) => format!("{} (account {account}): {access_text}", endpoint.id.workload),
        None => format!("{} (no sidecar)", endpoint.id.workload),
    }
}

/// Returns the policy that causes a rejection, in parentheses; empty if the policy is unknown.
fn describe_decision(reason: Reason, decision: Option<&PolicyDecision>) -> String {
    let effect = match reason {
        Reason::DeniedByPolicy => "denies it",
        Reason::TokenMissing => "requires a token",
        _ => "does not allow it",
    };
    let describe = |decision: &PolicyDecision| {
        format!(" (the {} {decision} {effect})", decision.policy_kind())
    };
    decision.map(describe).unwrap_or_default()
}

fn route_to_json(route: &DecidedRoute) -> Value {
    json!({
        "kind": route.rule.kind.as_str(),
        "name": route.rule.route.to_string(),
        "rule": route.rule_index,
        "match": route.match_index,
        "matches": route.rule.matches.get(route.match_index).map(ToString::to_string),
        "filters": describe_rule(&route.rule),
        "request_timeout_ms": route
            .rule
            .request_timeout
            .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
    })
}

fn unapplied_to_json(unapplied: &[UnappliedPolicy]) -> Vec<Value> {
    let to_json =
        |policy: &UnappliedPolicy| json!({"policy": policy.policy, "reason": policy.reason});
    unapplied.iter().map(to_json).collect()
}

fn backend_to_json(backend: &DecidedBackend) -> Value {
    json!({
        "service": backend.service.to_string(),
        "port": backend.port,
        "weight": backend.weight,
        "share": backend.share,
        "reason": backend.rejection.map(Reason::label),
        "granted": !backend.is_ungranted,
        "policies": backend.effects.iter().map(|effect| json!({
            "policy": effect.policy.to_string(),
            "effect": effect.description,
        })).collect::<Vec<_>>(),
        "not_applied": unapplied_to_json(&backend.unapplied),
        "tags": backend.tags.as_ref().map(TagRuleEvaluation::to_json),
        "endpoints": backend.endpoints.iter().map(endpoint_to_json).collect::<Vec<_>>(),
    })
}

fn endpoint_to_json(decided: &DecidedEndpoint) -> Value {
    let (policy, reason, dry_run_reason) = match &decided.access {
        EndpointAccess::AllowedByDefault => (None, None, None),
        EndpointAccess::Allowed(policy) => (Some(policy), None, None),
        EndpointAccess::Denied(reason, policy) => (policy.as_ref(), Some(*reason), None),
        EndpointAccess::DryRun(reason, policy) => (policy.as_ref(), None, Some(*reason)),
    };
    json!({
        "workload": decided.endpoint.id.workload.to_string(),
        "account": decided.endpoint.account.as_ref().map(ToString::to_string),
        "allowed": reason.is_none(),
        "limits": decided.limits.iter().map(|limit| json!({
            "policy": limit.policy.to_string(),
            "effect": limit.description,
        })).collect::<Vec<_>>(),
        "lane_marks": decided.lane_headers,
        "ingress_rules": decided.ingress_rules,
        "policy": policy.map(ToString::to_string),
        "dry_run_reason": dry_run_reason.map(Reason::label),
        "status": reason.map(Reason::status),
        "reason": reason.map(Reason::label),
    })
}

/// The maximum number of unused matches in the text output.
const MAX_SHOWN_MATCHES: usize = 10;
