//! Property tests: the index of ingress rules is equivalent to sequential evaluation.

use leno_model::{IpRange, RequestMatch, ServiceAccount, TrustDomain};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::match_index::tests::{any_match, any_request};

/// Returns a rule with one of two ports, two accounts, and a small number of addresses and names, so that several
/// rules often allow the same client.
fn any_ingress_rule() -> impl Strategy<Value = IngressRule> {
    let server_names = prop::collection::vec(select(vec!["shop.test", "web.test"]), 0..2);
    let protocol = (
        select(vec![ClientCertificateMode::Required, ClientCertificateMode::Skipped]),
        server_names,
    )
        .prop_map(|(client_certificate, names)| IngressProtocol::Https {
            client_certificate,
            server_names: names.into_iter().map(str::to_owned).collect(),
        });
    let plaintext =
        select(vec![IngressProtocol::Http, IngressProtocol::Grpc, IngressProtocol::Tcp]);
    let protocol = prop_oneof![2 => plaintext, 1 => protocol];
    let range = select(vec!["10.0.0.0/8", "10.1.0.0/16", "10.1.0.1/32", "0.0.0.0/0", "::/0"]);
    let ranges = prop::option::of(prop::collection::vec(range, 0..3));
    let requests: BoxedStrategy<Option<Vec<RequestMatch>>> =
        prop::option::of(prop::collection::vec(any_match(), 0..3)).boxed();
    let account = select(vec!["web", "app"]);
    (select(vec![80, 90]), protocol, ranges, account, any_external_principal(), requests).prop_map(
        |(port, protocol, ranges, account, external_principals, requests)| IngressRule {
            policy: "IngressBackend shop/open".parse().unwrap(),
            port,
            protocol,
            ranges: ranges
                .map(|ranges| ranges.iter().map(|text| text.parse::<IpRange>().unwrap()).collect()),
            accounts: vec![ServiceAccount::new("edge", account).unwrap()],
            external_principals,
            requests,
        },
    )
}

/// Returns the names of an external principal, if any.
fn any_external_principal() -> impl Strategy<Value = Vec<Name>> {
    let name = select(vec!["batch.test", "edge.test"]);
    prop::collection::vec(name.prop_map(|name| Name::new(name).unwrap()), 0..2)
}

fn any_origin() -> impl Strategy<Value = ConnectionOrigin> {
    let name = prop::option::of(select(vec!["shop.test", "web.test"]));
    let tls = (name, any_external_principal()).prop_map(|(name, principal_names)| {
        SessionTransport::Tls {
            server_name: name.map(Into::into),
            principal_names: principal_names.into(),
        }
    });
    let transport = prop_oneof![2 => Just(SessionTransport::Plaintext), 1 => tls];
    let address = select(vec!["10.1.0.1", "::ffff:10.1.0.1", "10.2.0.1", "192.0.2.1", "fd00::1"]);
    (address, transport).prop_map(|(address, transport)| ConnectionOrigin {
        address: address.parse().unwrap(),
        transport,
    })
}

proptest! {
    #[test]
    fn indexed_lookup_agrees_with_sequential_evaluation(
        rules in prop::collection::vec(any_ingress_rule(), 0..24),
        origin in any_origin(),
        peer in prop::option::of(select(vec!["web", "api"])),
        parts in any_request(),
    ) {
        let index = IngressRules::compile(&rules).unwrap();
        let peer = peer.map(|name| SpiffeId {
            trust_domain: TrustDomain::new("cluster.local").unwrap(),
            account: ServiceAccount::new("edge", name).unwrap(),
        });
        let request = parts.request_view();
        let path = PathKind::from_path(request.path);
        let includes_client = |rule: &IngressRule| match &rule.ranges {
            None => true,
            Some(ranges) => ranges.iter().any(|range| range.contains(origin.address)),
        };
        let open: Vec<(usize, CompiledIngressRule)> = rules
            .iter()
            .map(|rule| CompiledIngressRule::compile(rule).unwrap())
            .enumerate()
            .filter(|(_, rule)| rule.config.port == 80 && includes_client(&rule.config))
            .filter(|(_, rule)| rule.allows_client(peer.as_ref(), &origin.transport))
            .collect();
        let applicable = index.rules_for_client(peer.as_ref(), 80, &origin);
        prop_assert_eq!(applicable.is_empty(), open.is_empty());
        let at_port = || rules.iter().filter(|rule| rule.port == 80 && includes_client(rule));
        let plaintext_protocol = index.plaintext_protocol(80, Protocol::Detect, origin.address);
        let first_rule = at_port().find(|rule| rule.protocol.is_plaintext()).map(|rule| match rule.protocol {
            IngressProtocol::Tcp => Protocol::Tcp,
            IngressProtocol::Grpc => Protocol::Grpc,
            IngressProtocol::Http | IngressProtocol::Https { .. } => Protocol::Http,
        });
        prop_assert_eq!(plaintext_protocol, first_rule);
        let is_skipped = |rule: &IngressRule| matches!(rule.protocol, IngressProtocol::Https { client_certificate: ClientCertificateMode::Skipped, .. });
        prop_assert_eq!(index.skips_client_certificate(80, origin.address), at_port().any(is_skipped));

        let accepts = |rule: &IngressRule| !rule.external_principals.is_empty() && !rule.protocol.is_plaintext();
        prop_assert_eq!(index.accepts_external_principals(80, origin.address), at_port().any(accepts));

        let allows = |rule: &CompiledIngressRule| {
            let mut requests = rule.request_matchers.iter().flatten();
            rule.request_matchers.is_none() || requests.any(|matcher| allows_path(matcher, &request, path))
        };
        let first_rule = open.iter().find(|(_, rule)| allows(rule)).map(|(index, _)| *index);
        prop_assert_eq!(index.find_for_request(&applicable, &request, path), first_rule);

        let accepts_bytes = |rule: &CompiledIngressRule| rule.config.protocol == IngressProtocol::Tcp && rule.request_matchers.is_none();
        let first_rule = open.iter().find(|(_, rule)| accepts_bytes(rule)).map(|(index, _)| *index);
        prop_assert_eq!(index.find_for_bytes(&applicable), first_rule);
    }
}
