//! Converts lane rules, which add headers to the inbound requests of a workload, to and from the wire.

use leno_model::{LaneMark, LaneRule};

use super::conditions::{match_from_wire, match_to_wire};
use super::{labels_from_wire, labels_to_wire, origin_from_wire, source_to_wire};
use crate::proto;
use crate::resource::field::{InvalidField, convert_each, parse_port};

pub(in crate::resource) fn to_wire((port, rules): (&u16, &Vec<LaneRule>)) -> proto::LanePort {
    let mark_to_wire = |mark: &LaneMark| proto::LaneMark {
        percent: mark.percent,
        headers: labels_to_wire(&mark.headers),
    };
    let rule_to_wire = |rule: &LaneRule| proto::LaneRule {
        source: Some(source_to_wire(&rule.origin)),
        index: rule.origin.index,
        precedence: rule.priority,
        matches: match_to_wire(&rule.request_match),
        marks: rule.marks.iter().map(mark_to_wire).collect(),
    };
    proto::LanePort { port: u32::from(*port), rules: rules.iter().map(rule_to_wire).collect() }
}

pub(in crate::resource) fn from_wire(
    wire: proto::LanePort,
) -> Result<(u16, Vec<LaneRule>), InvalidField> {
    let mark_from_wire = |wire: proto::LaneMark| {
        let headers = labels_from_wire("headers", &wire.headers)?;
        Ok(LaneMark { percent: wire.percent, headers })
    };
    let rule_from_wire = |wire: proto::LaneRule| {
        let source = wire.source.ok_or_else(|| InvalidField::new("source", "is missing"))?;
        Ok(LaneRule {
            origin: origin_from_wire(&source, wire.index)
                .map_err(|invalid| invalid.with_parent("source"))?,
            priority: wire.precedence,
            request_match: match_from_wire(wire.matches)?,
            marks: convert_each("marks", wire.marks, mark_from_wire)?,
        })
    };
    Ok((parse_port("port", wire.port)?, convert_each("rules", wire.rules, rule_from_wire)?))
}
