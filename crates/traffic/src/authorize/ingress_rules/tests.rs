//! The index of ingress rules is equivalent to sequential evaluation.

use leno_model::{IpRange, RequestMatch, ServiceAccount, TrustDomain};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::match_index::tests::{any_match, any_request};

/// Two ports, two accounts, and a small number of addresses and names, so that several rules often allow the
/// same client.
fn any_opening() -> impl Strategy<Value = IngressRule> {
    let named = prop::collection::vec(select(vec!["shop.test", "web.test"]), 0..2);
    let entry =
        (select(vec![ClientCertificateMode::Required, ClientCertificateMode::Skipped]), named)
            .prop_map(|(proof, names)| IngressProtocol::Https {
                client_certificate: proof,
                server_names: names.into_iter().map(str::to_owned).collect(),
            });
    let clear = select(vec![IngressProtocol::Http, IngressProtocol::Grpc, IngressProtocol::Tcp]);
    let entry = prop_oneof![2 => clear, 1 => entry];
    let range = select(vec!["10.0.0.0/8", "10.1.0.0/16", "10.1.0.1/32", "0.0.0.0/0", "::/0"]);
    let ranges = prop::option::of(prop::collection::vec(range, 0..3));
    let requests: BoxedStrategy<Option<Vec<RequestMatch>>> =
        prop::option::of(prop::collection::vec(any_match(), 0..3)).boxed();
    let account = select(vec!["web", "app"]);
    (select(vec![80, 90]), entry, ranges, account, any_external_principal(), requests).prop_map(
        |(port, entry, ranges, account, external_principals, requests)| IngressRule {
            policy: "IngressBackend shop/open".parse().unwrap(),
            port,
            protocol: entry,
            ranges: ranges.map(|it| it.iter().map(|it| it.parse::<IpRange>().unwrap()).collect()),
            accounts: vec![ServiceAccount::new("edge", account).unwrap()],
            external_principals,
            requests,
        },
    )
}

/// The names of an external principal, if any.
fn any_external_principal() -> impl Strategy<Value = Vec<Name>> {
    let name = select(vec!["batch.test", "edge.test"]);
    prop::collection::vec(name.prop_map(|name| Name::new(name).unwrap()), 0..2)
}

fn any_origin() -> impl Strategy<Value = ConnectionOrigin> {
    let name = prop::option::of(select(vec!["shop.test", "web.test"]));
    let tls = (name, any_external_principal()).prop_map(|(name, external_principal)| {
        SessionTransport::Tls {
            server_name: name.map(Into::into),
            external_principal: external_principal.into(),
        }
    });
    let carrier = prop_oneof![2 => Just(SessionTransport::Plaintext), 1 => tls];
    let address = select(vec!["10.1.0.1", "::ffff:10.1.0.1", "10.2.0.1", "192.0.2.1", "fd00::1"]);
    (address, carrier).prop_map(|(address, carrier)| ConnectionOrigin {
        address: address.parse().unwrap(),
        transport: carrier,
    })
}

proptest! {
    #[test]
    fn what_is_looked_up_is_what_asking_in_order_finds(
        said in prop::collection::vec(any_opening(), 0..24),
        origin in any_origin(),
        peer in prop::option::of(select(vec!["web", "api"])),
        made in any_request(),
    ) {
        let openings = IngressRules::compile(&said).unwrap();
        let peer = peer.map(|name| SpiffeId {
            trust_domain: TrustDomain::new("cluster.local").unwrap(),
            account: ServiceAccount::new("edge", name).unwrap(),
        });
        let request = made.request_view();
        let path = PathKind::from_path(request.path);
        let is_from = |opening: &IngressRule| match &opening.ranges {
            None => true,
            Some(ranges) => ranges.iter().any(|range| range.contains(origin.address)),
        };
        let open: Vec<(usize, CompiledIngressRule)> = said
            .iter()
            .map(|it| CompiledIngressRule::compile(it).unwrap())
            .enumerate()
            .filter(|(_, it)| it.rule.port == 80 && is_from(&it.rule))
            .filter(|(_, it)| it.opens_to(peer.as_ref(), &origin.transport))
            .collect();
        let part = openings.for_client(peer.as_ref(), 80, &origin);
        prop_assert_eq!(part.is_empty(), open.is_empty());
        let at_port = || said.iter().filter(|it| it.port == 80 && is_from(it));
        let spoken = openings.in_clear(80, Protocol::Detect, origin.address);
        let first = at_port().find(|it| it.protocol.is_clear()).map(|it| match it.protocol {
            IngressProtocol::Tcp => Protocol::Tcp,
            IngressProtocol::Grpc => Protocol::Grpc,
            IngressProtocol::Http | IngressProtocol::Https { .. } => Protocol::Http,
        });
        prop_assert_eq!(spoken, first);
        let skips = |it: &IngressRule| matches!(it.protocol, IngressProtocol::Https { client_certificate: ClientCertificateMode::Skipped, .. });
        prop_assert_eq!(openings.skips_proof(80, origin.address), at_port().any(skips));

        let takes = |it: &IngressRule| !it.external_principals.is_empty() && !it.protocol.is_clear();
        prop_assert_eq!(openings.takes_external_principals(80, origin.address), at_port().any(takes));

        let lets = |it: &CompiledIngressRule| {
            let mut requests = it.requests.iter().flatten();
            it.requests.is_none() || requests.any(|matcher| allows_path(matcher, &request, path))
        };
        let first = open.iter().find(|(_, it)| lets(it)).map(|(index, _)| *index);
        prop_assert_eq!(openings.for_request(&part, &request, path), first);

        let takes_bytes = |it: &CompiledIngressRule| it.rule.protocol == IngressProtocol::Tcp && it.requests.is_none();
        let first = open.iter().find(|(_, it)| takes_bytes(it)).map(|(index, _)| *index);
        prop_assert_eq!(openings.for_bytes(&part), first);
    }
}
