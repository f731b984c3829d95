//! Converts ingress rules, for clients outside the mesh, and egress rules, for destinations outside the mesh,
//! to and from the wire.

use leno_model::{
    ClientCertificateMode, EgressRule, IngressProtocol, IngressRule, MatchedBy, RequestMatch,
};

use super::field::{InvalidField, convert_each, parse_account, parse_name, parse_port};
use super::request;
use crate::proto;

pub(super) fn ingress_rule_to_wire(rule: &IngressRule) -> proto::IngressRule {
    use proto::ingress_rule::Entry as Wire;
    let nothing = proto::Nothing {};
    let entry = match &rule.protocol {
        IngressProtocol::Http => Wire::Http(nothing),
        IngressProtocol::Grpc => Wire::Grpc(nothing),
        IngressProtocol::Tcp => Wire::Tcp(nothing),
        IngressProtocol::Https { client_certificate, server_names } => {
            Wire::Https(proto::HttpsEntry {
                proof_skipped: *client_certificate == ClientCertificateMode::Skipped,
                server_names: server_names.clone(),
            })
        }
    };
    proto::IngressRule {
        policy: rule.policy.to_string(),
        port: rule.port.into(),
        entry: Some(entry),
        ranges: rule.ranges.iter().flatten().map(ToString::to_string).collect(),
        from_anywhere: rule.ranges.is_none(),
        accounts: rule.accounts.iter().map(ToString::to_string).collect(),
        requests: requests_to_wire(rule.requests.as_deref()),
        external_principals: rule.external_principals.iter().map(ToString::to_string).collect(),
    }
}

/// Parses an ingress rule. An unknown listener kind is rejected, because it must not be interpreted as another.
pub(super) fn ingress_rule_from_wire(
    wire: proto::IngressRule,
) -> Result<IngressRule, InvalidField> {
    use proto::ingress_rule::Entry as Wire;
    let protocol = match wire.entry {
        None => return Err(InvalidField::new("entry", "is missing, or unknown to this version")),
        Some(Wire::Http(proto::Nothing {})) => IngressProtocol::Http,
        Some(Wire::Grpc(proto::Nothing {})) => IngressProtocol::Grpc,
        Some(Wire::Tcp(proto::Nothing {})) => IngressProtocol::Tcp,
        Some(Wire::Https(https)) => IngressProtocol::Https {
            client_certificate: if https.proof_skipped {
                ClientCertificateMode::Skipped
            } else {
                ClientCertificateMode::Required
            },
            server_names: https.server_names,
        },
    };
    let ranges = convert_each("ranges", wire.ranges, |text| parse_name("", &text))?;
    let ranges = match (wire.from_anywhere, ranges.is_empty()) {
        (true, true) if !protocol.is_plaintext() => None,
        (true, _) => {
            return Err(InvalidField::new(
                "from_anywhere",
                "must not be set for these ranges or entry",
            ));
        }
        (false, _) => Some(ranges),
    };
    Ok(IngressRule {
        policy: parse_name("policy", &wire.policy)?,
        port: parse_port("port", wire.port)?,
        protocol,
        ranges,
        accounts: convert_each("accounts", wire.accounts, |text| parse_account("", &text))?,
        requests: requests_from_wire(wire.requests)?,
        external_principals: convert_each(
            "external_principals",
            wire.external_principals,
            |text| parse_name("", &text),
        )?,
    })
}

pub(super) fn egress_rule_to_wire(rule: &EgressRule) -> proto::EgressRule {
    let matched_by = match rule.matched_by {
        MatchedBy::Http => proto::MatchedBy::Http,
        MatchedBy::ServerName => proto::MatchedBy::ServerName,
        MatchedBy::Address => proto::MatchedBy::Address,
    };
    proto::EgressRule {
        policy: rule.policy.to_string(),
        port: rule.port.into(),
        matched_by: matched_by.into(),
        hosts: rule.hosts.iter().map(ToString::to_string).collect(),
        ranges: rule.ranges.iter().map(ToString::to_string).collect(),
        requests: requests_to_wire(rule.requests.as_deref()),
    }
}

/// Parses an egress rule. An unknown source of the destination name is rejected, because it must not be
/// interpreted as another.
pub(super) fn egress_rule_from_wire(wire: proto::EgressRule) -> Result<EgressRule, InvalidField> {
    let matched_by = match wire.matched_by() {
        proto::MatchedBy::Http => MatchedBy::Http,
        proto::MatchedBy::ServerName => MatchedBy::ServerName,
        proto::MatchedBy::Address => MatchedBy::Address,
        proto::MatchedBy::Unspecified => {
            return Err(InvalidField::new("matched_by", "is missing, or unknown to this version"));
        }
    };
    Ok(EgressRule {
        policy: parse_name("policy", &wire.policy)?,
        port: parse_port("port", wire.port)?,
        matched_by,
        hosts: convert_each("hosts", wire.hosts, |text| parse_name("", &text))?,
        ranges: convert_each("ranges", wire.ranges, |text| parse_name("", &text))?,
        requests: requests_from_wire(wire.requests)?,
    })
}

fn requests_to_wire(requests: Option<&[RequestMatch]>) -> Option<proto::RequestMatches> {
    let matches = requests?.iter().map(request::to_wire).collect();
    Some(proto::RequestMatches { matches })
}

fn requests_from_wire(
    wire: Option<proto::RequestMatches>,
) -> Result<Option<Vec<RequestMatch>>, InvalidField> {
    let requests =
        wire.map(|wire| convert_each("matches", wire.matches, request::from_wire)).transpose();
    requests.map_err(|invalid| invalid.with_parent("requests"))
}

#[cfg(test)]
mod tests {
    use leno_model::{Name, PathMatch, PolicyName, ServiceAccount};

    use super::*;

    fn request_match() -> RequestMatch {
        let path = PathMatch::Exact("/a".to_owned());
        RequestMatch { path, methods: Vec::new(), headers: Vec::new(), query: Vec::new() }
    }

    #[test]
    fn ingress_rules_survive_a_round_trip() {
        let https = |client_certificate, names: &[&str]| IngressProtocol::Https {
            client_certificate,
            server_names: names.iter().map(ToString::to_string).collect(),
        };
        let ranges = Some(vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for (protocol, ranges, requests) in [
            (IngressProtocol::Http, ranges.clone(), None),
            (IngressProtocol::Grpc, Some(Vec::new()), Some(Vec::new())),
            (IngressProtocol::Tcp, ranges.clone(), None),
            (https(ClientCertificateMode::Required, &["a.b"]), None, Some(vec![request_match()])),
            (https(ClientCertificateMode::Skipped, &[]), ranges.clone(), None),
        ] {
            let rule = IngressRule {
                policy: "AccessControl shop/web".parse().unwrap(),
                port: 8080,
                protocol,
                ranges,
                accounts: vec![ServiceAccount::new("edge", "nginx").unwrap()],
                external_principals: vec![Name::new("batch.corp.example").unwrap()],
                requests,
            };
            assert_eq!(ingress_rule_from_wire(ingress_rule_to_wire(&rule)).unwrap(), rule);
        }
    }

    #[test]
    fn an_invalid_ingress_rule_is_rejected() {
        let rule = IngressRule {
            policy: "IngressBackend shop/web".parse().unwrap(),
            port: 8080,
            protocol: IngressProtocol::Http,
            ranges: Some(vec!["10.1.0.0/16".parse().unwrap()]),
            accounts: Vec::new(),
            external_principals: Vec::new(),
            requests: None,
        };
        let edits: [fn(&mut proto::IngressRule); 5] = [
            |wire| wire.entry = None,
            |wire| wire.from_anywhere = true,
            |wire| (wire.from_anywhere, wire.ranges) = (true, Vec::new()),
            |wire| wire.ranges.push("10.1.0.1/16".to_owned()),
            |wire| wire.port = 0,
        ];
        for edit in edits {
            let mut wire = ingress_rule_to_wire(&rule);
            edit(&mut wire);
            assert!(ingress_rule_from_wire(wire).is_err());
        }
    }

    #[test]
    fn egress_rules_survive_a_round_trip() {
        for matched_by in MatchedBy::ALL {
            let rule = EgressRule {
                policy: PolicyName::new("shop", "out").unwrap(),
                port: 443,
                matched_by: *matched_by,
                hosts: vec!["*.example".parse().unwrap(), "a.example".parse().unwrap()],
                ranges: vec!["10.1.0.0/16".parse().unwrap()],
                requests: Some(vec![request_match()]),
            };
            assert_eq!(egress_rule_from_wire(egress_rule_to_wire(&rule)).unwrap(), rule);
            let unknown = proto::EgressRule { matched_by: 77, ..egress_rule_to_wire(&rule) };
            assert!(egress_rule_from_wire(unknown).is_err());
        }
    }
}
