//! Converts inbound access policies, which the server's sidecar enforces, to and from the wire.

use leno_model::{
    ClaimMatch, InboundPolicy, NamePattern, PeerMatch, PolicyAction, PolicyRule, PortSet,
};

use super::field::{InvalidField, convert_each, parse_name, parse_port};
use super::request;
use crate::proto;

/// Encodes a policy; `None` for the default policy.
pub(super) fn to_wire(policy: &InboundPolicy) -> Option<proto::InboundPolicy> {
    let InboundPolicy { is_dry_run, rules } = policy;
    let rules = rules.iter().map(rule_to_wire).collect();
    let wire = proto::InboundPolicy { dry_run: *is_dry_run, rules };
    (*policy != InboundPolicy::default()).then_some(wire)
}

pub(super) fn from_wire(wire: Option<proto::InboundPolicy>) -> Result<InboundPolicy, InvalidField> {
    let Some(wire) = wire else { return Ok(InboundPolicy::default()) };
    let rules = convert_each("rules", wire.rules, rule_from_wire)?;
    Ok(InboundPolicy { is_dry_run: wire.dry_run, rules })
}

fn rule_to_wire(rule: &PolicyRule) -> proto::PolicyRule {
    // Rules with claims have actions of their own, so that a release without claims does not ignore the claims.
    let action = match (rule.action, rule.claims.is_empty()) {
        (PolicyAction::Deny, true) => proto::PolicyAction::Deny,
        (PolicyAction::Allow, true) => proto::PolicyAction::Allow,
        (PolicyAction::Deny, false) => proto::PolicyAction::DenyClaims,
        (PolicyAction::Allow, false) => proto::PolicyAction::AllowClaims,
    };
    let claim_to_wire = |claim: &ClaimMatch| proto::ClaimMatch {
        name: claim.name.clone(),
        values: claim.values.clone(),
    };
    let (all_ports, ports) = match &rule.ports {
        PortSet::All => (true, Vec::new()),
        PortSet::Only(ports) => (false, ports.iter().map(|port| u32::from(*port)).collect()),
    };
    proto::PolicyRule {
        policy: rule.policy.to_string(),
        name: rule.name.clone(),
        action: action.into(),
        peers: rule.peers.iter().map(peer_to_wire).collect(),
        requests: rule.requests.iter().map(request::to_wire).collect(),
        all_ports,
        ports,
        claims: rule.claims.iter().map(claim_to_wire).collect(),
    }
}

/// Parses a rule. An unknown action is rejected, because it must not be interpreted as another.
fn rule_from_wire(wire: proto::PolicyRule) -> Result<PolicyRule, InvalidField> {
    let action = match wire.action() {
        proto::PolicyAction::Deny | proto::PolicyAction::DenyClaims => PolicyAction::Deny,
        proto::PolicyAction::Allow | proto::PolicyAction::AllowClaims => PolicyAction::Allow,
        proto::PolicyAction::Unspecified => {
            return Err(InvalidField::new("action", "is missing, or unknown to this version"));
        }
    };
    let matches_claims =
        matches!(wire.action(), proto::PolicyAction::DenyClaims | proto::PolicyAction::AllowClaims);
    if matches_claims == wire.claims.is_empty() {
        return Err(InvalidField::new("claims", "are not allowed with this action"));
    }
    let claims = convert_each("claims", wire.claims, |wire| match wire.values.is_empty() {
        true => Err(InvalidField::new("values", "is empty")),
        false => Ok(ClaimMatch { name: wire.name, values: wire.values }),
    })?;
    let ports = match (wire.all_ports, wire.ports.is_empty()) {
        (true, true) => PortSet::All,
        (true, false) => {
            return Err(InvalidField::new("ports", "must be empty when all_ports is set"));
        }
        (false, _) => {
            PortSet::Only(convert_each("ports", wire.ports, |number| parse_port("", number))?)
        }
    };
    Ok(PolicyRule {
        policy: parse_name("policy", &wire.policy)?,
        name: wire.name,
        action,
        peers: convert_each("peers", wire.peers, peer_from_wire)?,
        requests: convert_each("requests", wire.requests, request::from_wire)?,
        claims,
        ports,
    })
}

pub(super) fn peer_to_wire(peer: &PeerMatch) -> proto::PeerPattern {
    proto::PeerPattern { namespace: peer.namespace.to_string(), account: peer.account.to_string() }
}

pub(super) fn peer_from_wire(peer: proto::PeerPattern) -> Result<PeerMatch, InvalidField> {
    Ok(PeerMatch {
        namespace: parse_pattern("namespace", &peer.namespace)?,
        account: parse_pattern("account", &peer.account)?,
    })
}

fn parse_pattern(field: &str, text: &str) -> Result<NamePattern, InvalidField> {
    NamePattern::new(text).map_err(|error| InvalidField::new(field, error.to_string()))
}
