//! Wire conversion of ingress and egress rules.

use leno_model::{
    ClientCertificateMode, EgressRule, IngressProtocol, IngressRule, MatchedBy, RequestMatch,
};

use super::field::{InvalidField, convert_each, parse_account, parse_name, parse_port};
use super::request;
use crate::proto;

pub(super) fn opening_to_wire(opening: &IngressRule) -> proto::IngressRule {
    use proto::ingress_rule::Entry as Wire;
    let nothing = proto::Nothing {};
    let entry = match &opening.protocol {
        IngressProtocol::Http => Wire::Http(nothing),
        IngressProtocol::Grpc => Wire::Grpc(nothing),
        IngressProtocol::Tcp => Wire::Tcp(nothing),
        IngressProtocol::Https { client_certificate: proof, server_names } => {
            Wire::Https(proto::HttpsEntry {
                proof_skipped: *proof == ClientCertificateMode::Skipped,
                server_names: server_names.clone(),
            })
        }
    };
    proto::IngressRule {
        policy: opening.policy.to_string(),
        port: opening.port.into(),
        entry: Some(entry),
        ranges: opening.ranges.iter().flatten().map(ToString::to_string).collect(),
        from_anywhere: opening.ranges.is_none(),
        accounts: opening.accounts.iter().map(ToString::to_string).collect(),
        requests: requests_to_wire(opening.requests.as_deref()),
        external_principals: opening.external_principals.iter().map(ToString::to_string).collect(),
    }
}

/// An unknown listener kind must not be taken for another.
pub(super) fn opening_from_wire(wire: proto::IngressRule) -> Result<IngressRule, InvalidField> {
    use proto::ingress_rule::Entry as Wire;
    let nothing = |proto::Nothing {}, entry| entry;
    let entry = match wire.entry {
        None => return Err(InvalidField::new("entry", "is missing, or unknown to this version")),
        Some(Wire::Http(it)) => nothing(it, IngressProtocol::Http),
        Some(Wire::Grpc(it)) => nothing(it, IngressProtocol::Grpc),
        Some(Wire::Tcp(it)) => nothing(it, IngressProtocol::Tcp),
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
        (true, true) if !entry.is_clear() => None,
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
        protocol: entry,
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

pub(super) fn egress_rule_to_wire(sender: &EgressRule) -> proto::EgressRule {
    let matched_by = match sender.matched_by {
        MatchedBy::Http => proto::MatchedBy::Http,
        MatchedBy::ServerName => proto::MatchedBy::ServerName,
        MatchedBy::Address => proto::MatchedBy::Address,
    };
    proto::EgressRule {
        policy: sender.policy.to_string(),
        port: sender.port.into(),
        matched_by: matched_by.into(),
        hosts: sender.hosts.iter().map(ToString::to_string).collect(),
        ranges: sender.ranges.iter().map(ToString::to_string).collect(),
        requests: requests_to_wire(sender.requests.as_deref()),
    }
}

/// An unknown source of the destination name must not be taken for another.
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
    fn openings_arrive_as_they_left() {
        let https = |proof, names: &[&str]| IngressProtocol::Https {
            client_certificate: proof,
            server_names: names.iter().map(ToString::to_string).collect(),
        };
        let ranges = Some(vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for (entry, ranges, requests) in [
            (IngressProtocol::Http, ranges.clone(), None),
            (IngressProtocol::Grpc, Some(Vec::new()), Some(Vec::new())),
            (IngressProtocol::Tcp, ranges.clone(), None),
            (https(ClientCertificateMode::Required, &["a.b"]), None, Some(vec![request_match()])),
            (https(ClientCertificateMode::Skipped, &[]), ranges.clone(), None),
        ] {
            let opening = IngressRule {
                policy: "AccessControl shop/web".parse().unwrap(),
                port: 8080,
                protocol: entry,
                ranges,
                accounts: vec![ServiceAccount::new("edge", "nginx").unwrap()],
                external_principals: vec![Name::new("batch.corp.example").unwrap()],
                requests,
            };
            assert_eq!(opening_from_wire(opening_to_wire(&opening)).unwrap(), opening);
        }
    }

    #[test]
    fn what_would_open_more_than_is_meant_is_refused() {
        let opening = IngressRule {
            policy: "IngressBackend shop/web".parse().unwrap(),
            port: 8080,
            protocol: IngressProtocol::Http,
            ranges: Some(vec!["10.1.0.0/16".parse().unwrap()]),
            accounts: Vec::new(),
            external_principals: Vec::new(),
            requests: None,
        };
        let spoilt: [fn(&mut proto::IngressRule); 5] = [
            |it| it.entry = None,
            |it| it.from_anywhere = true,
            |it| (it.from_anywhere, it.ranges) = (true, Vec::new()),
            |it| it.ranges.push("10.1.0.1/16".to_owned()),
            |it| it.port = 0,
        ];
        for spoil in spoilt {
            let mut wire = opening_to_wire(&opening);
            spoil(&mut wire);
            assert!(opening_from_wire(wire).is_err());
        }
    }

    #[test]
    fn egress_rules_arrive_as_they_left() {
        for matched_by in MatchedBy::ALL {
            let sender = EgressRule {
                policy: PolicyName::new("shop", "out").unwrap(),
                port: 443,
                matched_by: *matched_by,
                hosts: vec!["*.example".parse().unwrap(), "a.example".parse().unwrap()],
                ranges: vec!["10.1.0.0/16".parse().unwrap()],
                requests: Some(vec![request_match()]),
            };
            assert_eq!(egress_rule_from_wire(egress_rule_to_wire(&sender)).unwrap(), sender);
            let unknown = proto::EgressRule { matched_by: 77, ..egress_rule_to_wire(&sender) };
            assert!(egress_rule_from_wire(unknown).is_err());
        }
    }
}
