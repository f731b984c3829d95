//! Tests of access policy rules: random round trips and rejected values.

use leno_model::{
    ClaimMatch, InboundPolicy, NamePattern, PeerMatch, PolicyAction, PolicyName, PolicyRule,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::proto;
use crate::resource::inbound;

pub(super) fn any_inbound_policy() -> impl Strategy<Value = InboundPolicy> {
    let pattern = || "[a-z*.-]{1,9}".prop_map(|text| NamePattern::new(&text).unwrap());
    let peer = (pattern(), pattern());
    let peer = peer.prop_map(|(namespace, account)| PeerMatch { namespace, account });
    let action = prop_oneof![Just(PolicyAction::Deny), Just(PolicyAction::Allow)];
    let ports = prop_oneof![Just(PortSet::All), vec(1u16.., 0..3).prop_map(PortSet::Only)];
    let claim = ("[a-z]{1,5}", vec("[a-z]{0,5}", 1..3));
    let claim = claim.prop_map(|(name, values)| ClaimMatch { name, values });
    let requests_and_claims = (vec(any_request_match(), 0..3), vec(claim, 0..2));
    let rule = (any_name(), ".{0,9}", action, vec(peer, 0..3), requests_and_claims, ports);
    let rule =
        rule.prop_map(|(policy, name, action, peers, (requests, claims), ports)| PolicyRule {
            policy: PolicyName { namespace: policy.clone(), name: policy },
            name,
            action,
            peers,
            requests,
            claims,
            ports,
        });
    (any::<bool>(), vec(rule, 0..3))
        .prop_map(|(is_dry_run, rules)| InboundPolicy { is_dry_run, rules })
}

#[test]
fn an_invalid_access_rule_is_rejected_with_its_field() {
    let rule = || proto::PolicyRule {
        policy: "a/b".to_owned(),
        action: proto::PolicyAction::Deny.into(),
        all_ports: true,
        ..proto::PolicyRule::default()
    };
    let peer = proto::PeerPattern { namespace: "a".to_owned(), account: "B".to_owned() };
    for (invalid_rule, field) in [
        (proto::PolicyRule { action: 7, ..rule() }, "rules[0].action"),
        (proto::PolicyRule { action: 0, ..rule() }, "rules[0].action"),
        (proto::PolicyRule { ports: vec![80], ..rule() }, "rules[0].ports"),
        (
            proto::PolicyRule { ports: vec![70_000], all_ports: false, ..rule() },
            "rules[0].ports[0]",
        ),
        (proto::PolicyRule { policy: "a".to_owned(), ..rule() }, "rules[0].policy"),
        (proto::PolicyRule { peers: vec![peer], ..rule() }, "rules[0].peers[0].account"),
    ] {
        let wire = proto::InboundPolicy { dry_run: false, rules: vec![invalid_rule] };
        let invalid = inbound::from_wire(Some(wire)).map(|_| ()).unwrap_err();
        assert_eq!(invalid.field, field, "{}", invalid.reason);
    }
    let valid = proto::InboundPolicy { dry_run: false, rules: vec![rule()] };
    assert_eq!(inbound::from_wire(Some(valid)).unwrap().rules.len(), 1);
}
