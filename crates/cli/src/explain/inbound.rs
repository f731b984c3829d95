//! Decides a request as the sidecar of an endpoint does, and describes the rate limits, check services, lanes and
//! ingress rules that apply to it there.

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
    PolicyEffect, describe_authorization, describe_concurrency, describe_connection_limit,
    describe_global_limit, describe_jwt_validation, describe_rate_limit,
};

/// Returns the access decision of the sidecar with this snapshot: whether the peer may send the request, or
/// open an opaque connection, to this port of the application.
pub(super) fn check_access(
    snapshot: &Snapshot,
    peer: &SpiffeId,
    request: &ExplainedRequest,
    port: u16,
    is_opaque: bool,
) -> anyhow::Result<EndpointAccess> {
    let config = &snapshot.config;
    let access = InboundAccess::from_config(config)?;
    let connection_result = access.authorize_connection(Some(peer), port);
    // An opaque connection may carry requests, which are hidden from the sidecar because it does not parse the
    // bytes.
    if is_opaque
        && connection_result.is_ok()
        && let Some(policy) = config.policy_rejecting_hidden_requests(port)
    {
        let decision = PolicyDecision::from_whole_policy(policy, &Arc::default());
        return Ok(EndpointAccess::Denied(Reason::DeniedByPolicy, Some(decision)));
    }
    let header_fields = request.request_headers();
    if !is_opaque
        && connection_result.is_ok()
        && let Some(decision) =
            find_missing_token(snapshot, &request.request_view(&header_fields), port)?
    {
        return Ok(EndpointAccess::Denied(Reason::TokenMissing, Some(decision)));
    }
    let request_result = connection_result.and_then(|permit| match is_opaque {
        true => access
            .authorize_tcp(&permit)
            .and_then(|allowed| access.authorize_hidden_request(&permit).map(|()| allowed)),
        false => access.authorize_request(&permit, &request.request_view(&header_fields)),
    });
    Ok(match request_result {
        Ok(permit) => match (permit.would_deny(), access.decision(permit)) {
            (Some(reason), decision) => EndpointAccess::DryRun(reason, decision.cloned()),
            (None, Some(decision)) => EndpointAccess::Allowed(decision.clone()),
            (None, None) => EndpointAccess::AllowedByDefault,
        },
        Err(denial) => EndpointAccess::Denied(denial.reason, denial.policy),
    })
}

/// Returns the decision of the policy whose required token is missing; `None` if the request has the token or needs
/// none. Sidecars check tokens before all other request rules.
fn find_missing_token(
    snapshot: &Snapshot,
    view: &RequestView<'_>,
    port: u16,
) -> anyhow::Result<Option<PolicyDecision>> {
    let checks = CompiledChecks::build(&snapshot.config)?;
    let mut validations = checks
        .iter()
        .flat_map(|checks| checks.for_port(port))
        .flat_map(CompiledPortChecks::token_validations);
    let unmet_validation = validations
        .find(|validation| validation.is_required(view) && !carries_token(validation, view));
    Ok(unmet_validation.map(CompiledJwtValidation::policy_decision))
}

/// True if the request has a token where a policy expects one. Only the sidecar verifies it.
pub(super) fn has_token(
    snapshot: &Snapshot,
    request: &ExplainedRequest,
    port: u16,
    is_opaque: bool,
) -> anyhow::Result<bool> {
    let checks = CompiledChecks::build(&snapshot.config)?.filter(|_| !is_opaque);
    let header_fields = request.request_headers();
    let view = request.request_view(&header_fields);
    let mut validations = checks
        .iter()
        .flat_map(|checks| checks.for_port(port))
        .flat_map(CompiledPortChecks::token_validations);
    Ok(validations.any(|validation| carries_token(validation, &view)))
}

/// True if the request has a token at a location of the policy, or a value that an application may accept as a
/// token.
fn carries_token(validation: &CompiledJwtValidation, view: &RequestView<'_>) -> bool {
    let mut locations = validation.rule.issuers.iter().flat_map(|issuer| &issuer.locations);
    locations.any(|location| match location {
        JwtLocation::Query(name) => {
            similar_parameters(view.query.unwrap_or_default(), name).next().is_some()
        }
        JwtLocation::Header { name, prefix } => match view.fields.first_value(name) {
            None => view.fields.find_similar(name).is_some(),
            Some(value) => {
                let scheme = prefix.trim_end();
                let scheme_part = value.get(..scheme.len());
                let remainder = value.get(scheme.len()..).unwrap_or_default();
                scheme_part.is_some_and(|scheme_part| scheme_part.eq_ignore_ascii_case(scheme))
                    && (scheme == prefix || remainder.starts_with(char::is_whitespace))
            }
        },
    })
}

/// Describes the tokens that the sidecar with this snapshot requires or verifies.
pub(super) fn describe_token_checks(
    snapshot: &Snapshot,
    request: &ExplainedRequest,
    port: u16,
) -> anyhow::Result<Vec<PolicyEffect>> {
    let checks = CompiledChecks::build(&snapshot.config)?;
    let header_fields = request.request_headers();
    let view = request.request_view(&header_fields);
    let validations = checks
        .iter()
        .flat_map(|checks| checks.for_port(port))
        .flat_map(CompiledPortChecks::token_validations);
    Ok(validations
        .map(|validation| describe_jwt_validation(validation, validation.is_required(&view)))
        .collect())
}

/// Describes the rate limits that the sidecar with this snapshot applies to the request, or to an opaque
/// connection, and the check services that it queries.
pub(super) fn describe_rate_limits(
    snapshot: &Snapshot,
    peer: &SpiffeId,
    request: &ExplainedRequest,
    port: u16,
    is_opaque: bool,
) -> anyhow::Result<Vec<PolicyEffect>> {
    let limits = CompiledLimits::build(&snapshot.config.limits, None)?;
    if is_opaque {
        let connection_rates = limits
            .policy_limits(port)
            .filter_map(|policy_limits| Some((policy_limits, policy_limits.limits.connections?)));
        return Ok(connection_rates
            .map(|(policy_limits, rate)| describe_connection_limit(&policy_limits.policy, rate))
            .collect());
    }
    let header_fields = request.request_headers();
    let view = request.request_view(&header_fields);
    let counting_rules = limits.counting_rules(port, &view, Some(&peer.account));
    let mut effects: Vec<PolicyEffect> = counting_rules
        .into_iter()
        .map(|(policy, rule)| describe_rate_limit(policy, rule))
        .collect();
    let checks = CompiledChecks::build(&snapshot.config)?;
    if let Some(checks) = checks.as_ref().and_then(|checks| checks.for_port(port)) {
        effects.extend(describe_token_checks(snapshot, request, port)?);
        effects.extend(checks.required_authorizations(&view).map(describe_authorization));
        // The client's address is unknown: the server's own address replaces it.
        let client =
            CheckedClient { account: Some(&peer.account), address: snapshot.config.address };
        effects.extend(
            checks.required_limits(&view, client).map(|(rule, _)| describe_global_limit(rule)),
        );
    }
    let concurrency_rules = limits.policy_limits(port).filter_map(|policy_limits| {
        Some((policy_limits, policy_limits.limits.concurrency.as_ref()?))
    });
    effects.extend(
        concurrency_rules
            .map(|(policy_limits, rule)| describe_concurrency(&policy_limits.policy, rule)),
    );
    Ok(effects)
}

/// Describes the headers that the lane of the workload adds to the request for the application.
pub(super) fn describe_lane(
    snapshot: &Snapshot,
    request: &ExplainedRequest,
    port: u16,
    is_opaque: bool,
) -> anyhow::Result<Vec<String>> {
    if is_opaque {
        return Ok(Vec::new());
    }
    let lanes = Lanes::compile(&snapshot.config.lanes)?;
    let header_fields = request.request_headers();
    let view = request.request_view(&header_fields);
    // The choice of the rule is deterministic; only the choice among its header sets is random.
    let decisive_rule = lanes.headers_for_request(port, &view, &mut || 0).rule;
    let mut port_rules = snapshot.config.lanes.get(&port).into_iter().flatten();
    let lane_rule =
        port_rules.find(|rule| decisive_rule.is_some_and(|(origin, _)| rule.origin == *origin));
    Ok(lane_rule.map(|rule| describe_lane_headers(rule, &header_fields)).into_iter().collect())
}

fn describe_lane_headers(rule: &LaneRule, header_fields: &[(String, String)]) -> String {
    let is_present = |name: &str| {
        header_fields.iter().any(|(present_name, _)| present_name.eq_ignore_ascii_case(name))
    };
    let mark_texts: Vec<String> = rule
        .marks
        .iter()
        .map(|mark| {
            let headers = mark.headers.iter().map(|(name, value)| match is_present(name) {
                true => format!("{name}, as in the request"),
                false => format!("{name}: {value}"),
            });
            format!("{} % with {}", mark.percent, headers.collect::<Vec<_>>().join(" and "))
        })
        .collect();
    format!(
        "{} rule {} marks {}",
        rule.origin.object_key(),
        rule.origin.index,
        mark_texts.join(", ")
    )
}

/// Describes the ingress rules that open a port to external clients.
pub(super) fn describe_ingress_rules(snapshot: &Snapshot, port: u16) -> Vec<String> {
    let rules = snapshot.config.ingress_rules.iter().filter(|rule| rule.port == port);
    rules.map(describe_ingress_rule).collect()
}

fn describe_ingress_rule(rule: &IngressRule) -> String {
    let transport = match &rule.protocol {
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
    let ranges_text = rule
        .ranges
        .as_ref()
        .map(|ranges| {
            let range_texts: Vec<String> = ranges.iter().map(IpRange::to_string).collect();
            format!(" from {}", range_texts.join(", "))
        })
        .unwrap_or_default();
    let principals: Vec<String> = rule
        .accounts
        .iter()
        .map(|account| format!("account {account}"))
        .chain(rule.external_principals.iter().map(|name| format!("external principal {name}")))
        .collect();
    let principals_text = match principals.as_slice() {
        [] => String::new(),
        principals => format!(" of {}", principals.join(", ")),
    };
    let condition = if rule.requests.is_some() { ", for some requests" } else { "" };
    format!(
        "{} allows clients outside the mesh {transport}{principals_text}{ranges_text}{condition}",
        rule.policy
    )
}
