//! Decision of an endpoint's sidecar for a request: authorization, rate limits, lanes and ingress rules.

use std::sync::Arc;

use leno_model::{
    ClientCertificateMode, IngressProtocol, IngressRule, IpRange, JwtLocation, LaneRule, Reason,
    Snapshot, SpiffeId,
};
use leno_traffic::request_checks::{CheckedClient, CompiledJwtValidation, CompiledPortChecks};
use leno_traffic::{
    CompiledChecks, CompiledLimits, InboundAccess, Lanes, PolicyDecision, RequestView,
    similar_parameters,
};

use super::decide::{EndpointAccess, ExplainedRequest};
use super::traffic_policy::{
    PolicyEffect, asked_for_room, describe_authorization, describe_concurrency,
    describe_jwt_validation, describe_rate_limit, limited_connections,
};

/// Returns the access decision of the sidecar with this snapshot for a peer at a port of its application: for
/// the request, or for an opaque connection.
pub(super) fn check_access(
    snapshot: &Snapshot,
    peer: &SpiffeId,
    question: &ExplainedRequest,
    port: u16,
    opaque: bool,
) -> anyhow::Result<EndpointAccess> {
    let plan = &snapshot.config;
    let access = InboundAccess::from_config(plan)?;
    let permit = access.authorize_connection(Some(peer), port);
    if opaque
        && permit.is_ok()
        && let Some(policy) = plan.rejects_hidden_requests(port)
    {
        let policy = PolicyDecision::whole_policy(policy, &Arc::default());
        return Ok(EndpointAccess::Denied(Reason::DeniedByPolicy, Some(policy)));
    }
    let fields = question.request_headers();
    if !opaque
        && permit.is_ok()
        && let Some(policy) = missing_token(snapshot, &question.request_view(&fields), port)?
    {
        return Ok(EndpointAccess::Denied(Reason::TokenMissing, Some(policy)));
    }
    let decided = permit.and_then(|permit| match opaque {
        // The opaque bytes may carry a request.
        true => access
            .authorize_tcp(&permit)
            .and_then(|allowed| access.hidden_request(&permit).map(|()| allowed)),
        false => access.authorize_request(&permit, &question.request_view(&fields)),
    });
    Ok(match decided {
        Ok(permit) => match (permit.would_deny(), access.decision(permit)) {
            (Some(reason), decision) => EndpointAccess::DryRun(reason, decision.cloned()),
            (None, Some(decision)) => EndpointAccess::Allowed(decision.clone()),
            (None, None) => EndpointAccess::AllowedByDefault,
        },
        Err(denial) => EndpointAccess::Denied(denial.reason, denial.policy),
    })
}

/// Returns the policy that requires a token, if the request has none. Tokens are checked before other request
/// rules.
fn missing_token(
    snapshot: &Snapshot,
    view: &RequestView<'_>,
    port: u16,
) -> anyhow::Result<Option<PolicyDecision>> {
    let guards = CompiledChecks::build(&snapshot.config)?;
    let mut rules = guards
        .iter()
        .flat_map(|guards| guards.for_port(port))
        .flat_map(CompiledPortChecks::token_validations);
    let missing = rules.find(|rule| rule.is_required(view) && !shows_token(rule, view));
    Ok(missing.map(CompiledJwtValidation::policy_decision))
}

/// True if the request has a token where a policy expects one. Only the sidecar verifies it.
pub(super) fn is_by_token(
    snapshot: &Snapshot,
    question: &ExplainedRequest,
    port: u16,
    opaque: bool,
) -> anyhow::Result<bool> {
    let guards = CompiledChecks::build(&snapshot.config)?.filter(|_| !opaque);
    let fields = question.request_headers();
    let view = question.request_view(&fields);
    let mut rules = guards
        .iter()
        .flat_map(|guards| guards.for_port(port))
        .flat_map(CompiledPortChecks::token_validations);
    Ok(rules.any(|rule| shows_token(rule, &view)))
}

/// True if the request has a token where the policy expects one, or a value that an application may accept as
/// one.
fn shows_token(rule: &CompiledJwtValidation, view: &RequestView<'_>) -> bool {
    let mut places = rule.rule.issuers.iter().flat_map(|issuer| &issuer.locations);
    places.any(|place| match place {
        JwtLocation::Query(name) => {
            similar_parameters(view.query.unwrap_or_default(), name).next().is_some()
        }
        JwtLocation::Header { name, prefix } => match view.fields.first_value(name) {
            None => view.fields.find_similar(name).is_some(),
            Some(value) => {
                let scheme = prefix.trim_end();
                let begin = value.get(..scheme.len());
                let rest = value.get(scheme.len()..).unwrap_or_default();
                begin.is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
                    && (scheme == prefix || rest.starts_with(char::is_whitespace))
            }
        },
    })
}

/// Describes the tokens that the sidecar with this snapshot requires or verifies.
pub(super) fn token_checks(
    snapshot: &Snapshot,
    question: &ExplainedRequest,
    port: u16,
) -> anyhow::Result<Vec<PolicyEffect>> {
    let guards = CompiledChecks::build(&snapshot.config)?;
    let fields = question.request_headers();
    let view = question.request_view(&fields);
    let rules = guards
        .iter()
        .flat_map(|guards| guards.for_port(port))
        .flat_map(CompiledPortChecks::token_validations);
    Ok(rules.map(|rule| describe_jwt_validation(rule, rule.is_required(&view))).collect())
}

/// Describes the rate limits that the sidecar with this snapshot applies to the request, or to an opaque
/// connection, and the check services that it queries.
pub(super) fn rate_limits(
    snapshot: &Snapshot,
    peer: &SpiffeId,
    question: &ExplainedRequest,
    port: u16,
    opaque: bool,
) -> anyhow::Result<Vec<PolicyEffect>> {
    let limits = CompiledLimits::build(&snapshot.config.limits, None)?;
    if opaque {
        let rates =
            limits.policy_limits(port).filter_map(|said| Some((said, said.limits.connections?)));
        return Ok(rates.map(|(said, rate)| limited_connections(&said.policy, rate)).collect());
    }
    let fields = question.request_headers();
    let view = question.request_view(&fields);
    let counting = limits.counting_rules(port, &view, Some(&peer.account));
    let mut reported: Vec<PolicyEffect> =
        counting.into_iter().map(|(policy, rule)| describe_rate_limit(policy, rule)).collect();
    let guards = CompiledChecks::build(&snapshot.config)?;
    if let Some(guards) = guards.as_ref().and_then(|guards| guards.for_port(port)) {
        reported.extend(token_checks(snapshot, question, port)?);
        reported.extend(guards.required_authorizations(&view).map(describe_authorization));
        // The client's address is unknown: the server's own stands in for it.
        let asking =
            CheckedClient { account: Some(&peer.account), address: snapshot.config.address };
        reported
            .extend(guards.required_limits(&view, asking).map(|(rule, _)| asked_for_room(rule)));
    }
    let at_once = limits
        .policy_limits(port)
        .filter_map(|said| Some((said, said.limits.concurrency.as_ref()?)));
    reported.extend(at_once.map(|(said, rule)| describe_concurrency(&said.policy, rule)));
    Ok(reported)
}

/// Describes the headers that the lane of the workload adds to the request for the application.
pub(super) fn lane_marks(
    snapshot: &Snapshot,
    question: &ExplainedRequest,
    port: u16,
    opaque: bool,
) -> anyhow::Result<Vec<String>> {
    if opaque {
        return Ok(Vec::new());
    }
    let lanes = Lanes::compile(&snapshot.config.lanes)?;
    let fields = question.request_headers();
    let view = question.request_view(&fields);
    // The choice of the rule is deterministic; only the choice of its mark is random.
    let decides = lanes.marks_for(port, &view, &mut || 0).rule;
    let rules = snapshot.config.lanes.get(&port).into_iter().flatten();
    let mut rules = rules.filter(|rule| decides.is_some_and(|(origin, _)| rule.origin == *origin));
    Ok(rules.next().map(|rule| reported_marks(rule, &fields)).into_iter().collect())
}

fn reported_marks(rule: &LaneRule, fields: &[(String, String)]) -> String {
    let has = |name: &str| fields.iter().any(|(found, _)| found.eq_ignore_ascii_case(name));
    let marks = rule.marks.iter().map(|mark| {
        let headers = mark.headers.iter().map(|(name, value)| match has(name) {
            true => format!("{name}, as in the request"),
            false => format!("{name}: {value}"),
        });
        format!("{} % with {}", mark.percent, headers.collect::<Vec<_>>().join(" and "))
    });
    let marks: Vec<String> = marks.collect();
    format!("{} rule {} marks {}", rule.origin.object_key(), rule.origin.index, marks.join(", "))
}

/// Describes the ingress rules that open a port to external clients.
pub(super) fn ingress_rules(snapshot: &Snapshot, port: u16) -> Vec<String> {
    let here = snapshot.config.ingress_rules.iter().filter(|opening| opening.port == port);
    here.map(reported_opening).collect()
}

fn reported_opening(opening: &IngressRule) -> String {
    let how = match &opening.protocol {
        IngressProtocol::Http => "over plaintext HTTP",
        IngressProtocol::Grpc => "over plaintext gRPC",
        IngressProtocol::Tcp => "over plaintext TCP",
        IngressProtocol::Https { client_certificate: ClientCertificateMode::Skipped, .. } => {
            "over TLS"
        }
        IngressProtocol::Https { client_certificate: ClientCertificateMode::Required, .. } => {
            "over TLS with a client certificate"
        }
    };
    let from = opening.ranges.as_ref().map(|ranges| {
        let ranges: Vec<String> = ranges.iter().map(IpRange::to_string).collect();
        format!(" from {}", ranges.join(", "))
    });
    let from = from.unwrap_or_default();
    let called: Vec<String> = opening
        .accounts
        .iter()
        .map(|account| format!("account {account}"))
        .chain(opening.external_principals.iter().map(|name| format!("external principal {name}")))
        .collect();
    let called = match called.as_slice() {
        [] => String::new(),
        called => format!(" of {}", called.join(", ")),
    };
    let some = if opening.requests.is_some() { ", for some requests" } else { "" };
    format!("{} allows clients outside the mesh {how}{called}{from}{some}", opening.policy)
}
