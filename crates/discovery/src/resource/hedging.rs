//! Converts hedging settings to and from the wire. They are a part of a port's traffic policy.

use leno_model::{HedgeMethod, HedgeRule, PortHedging};

use super::field::{InvalidField, convert_each, to_nanoseconds};
use super::traffic_policy::{parse_duration, policy_from_wire, policy_to_wire};
use crate::proto;

pub(super) fn to_wire(hedging: &PortHedging) -> proto::Hedging {
    proto::Hedging {
        policy: Some(policy_to_wire(&hedging.policy)),
        after_nanoseconds: to_nanoseconds(hedging.rule.after),
        methods: hedging.rule.methods.iter().map(|method| method.as_str().to_owned()).collect(),
    }
}

pub(super) fn from_wire(wire: proto::Hedging) -> Result<PortHedging, InvalidField> {
    let parse_method = |method: String| {
        HedgeMethod::new(&method)
            .ok_or_else(|| InvalidField::new("", "is not a method that can be hedged"))
    };
    let rule = HedgeRule {
        after: parse_duration("after_nanoseconds", wire.after_nanoseconds)?,
        methods: convert_each("methods", wire.methods, parse_method)?.into_iter().collect(),
    };
    Ok(PortHedging { policy: policy_from_wire(wire.policy)?, rule })
}
