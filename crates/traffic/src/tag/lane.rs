//! Lanes: the headers that the first service of a lane adds to requests, so that later services can route by them. A
//! mark is the set of headers that a lane adds to a percentage of the requests.

use std::collections::BTreeMap;

use leno_model::{LaneRule, RuleOrigin};

use super::conditions::exact_conditions;
use super::matcher::TagMatcher;
use super::weighted_targets::{ChoicePurpose, RandomChoice, WeightedTargets};
use crate::match_slot::MatchSlot;
use crate::pattern::InvalidPattern;
use crate::request::{RequestView, header_value};
use crate::rule_index::RuleIndex;

/// The compiled lanes of a workload.
#[derive(Debug, Default)]
pub struct Lanes {
    /// The lanes of each application port, in order of precedence.
    ports: BTreeMap<u16, PortLanes>,
}

/// The lanes of one port.
#[derive(Debug)]
struct PortLanes {
    lanes: Box<[CompiledLane]>,
    /// An index of the lanes, if there are many.
    index: Option<Box<RuleIndex>>,
}

/// A compiled [`LaneRule`].
#[derive(Debug)]
struct CompiledLane {
    matcher: TagMatcher,
    /// The percentages of requests that receive each mark.
    weights: WeightedTargets,
    /// The headers of each mark; one mark is selected at random.
    headers_by_mark: Box<[Box<[LaneHeader]>]>,
    origin: RuleOrigin,
    match_slot: MatchSlot,
}

/// The headers to add to a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct LaneHeaders<'a> {
    /// The origin and the match counter of the matching rule, if any.
    pub rule: Option<(&'a RuleOrigin, &'a MatchSlot)>,
    headers: &'a [LaneHeader],
}

/// A header: its name and its value.
type LaneHeader = (Box<str>, Box<str>);

impl Lanes {
    /// Compiles the lanes of a workload.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn compile(lanes: &BTreeMap<u16, Vec<LaneRule>>) -> Result<Self, InvalidPattern> {
        let mut ports = BTreeMap::new();
        for (port, rules) in lanes {
            let lanes: Result<Box<[CompiledLane]>, InvalidPattern> =
                rules.iter().map(CompiledLane::from_rule).collect();
            ports.insert(*port, PortLanes::from_lanes(lanes?));
        }
        Ok(Self { ports })
    }

    /// True if lanes may add headers to requests to this port.
    #[must_use]
    pub fn may_add_headers(&self, port: u16) -> bool {
        !self.ports.is_empty() && self.ports.contains_key(&port)
    }

    /// Returns the headers to add to a request to a port of the application: those of a random mark of the first
    /// matching rule. Empty if no rule matches.
    pub fn headers_for_request(
        &self,
        port: u16,
        request: &RequestView<'_>,
        random: &mut impl RandomChoice,
    ) -> LaneHeaders<'_> {
        let lane = self.ports.get(&port).and_then(|lanes| lanes.first_match(request));
        let headers = lane.and_then(|lane| {
            lane.headers_by_mark.get(lane.weights.choose_target(ChoicePurpose::Lane, random))
        });
        let rule = lane.map(|lane| (&lane.origin, &lane.match_slot));
        LaneHeaders { rule, headers: headers.map_or(&[], |headers| headers) }
    }
}

impl PortLanes {
    fn from_lanes(lanes: Box<[CompiledLane]>) -> Self {
        let index = RuleIndex::build_if_many(lanes.len(), || {
            lanes.iter().map(|lane| exact_conditions(&lane.matcher)).collect()
        });
        Self { lanes, index }
    }

    /// Returns the first matching lane; `None` if no lane matches.
    fn first_match(&self, request: &RequestView<'_>) -> Option<&CompiledLane> {
        let Some(index) = &self.index else {
            return self.lanes.iter().find(|lane| lane.matcher.matches(request));
        };
        let is_match = |position: usize| {
            self.lanes.get(position).is_some_and(|lane| lane.matcher.matches(request))
        };
        self.lanes.get(index.first_match(request, is_match)?)
    }
}

impl CompiledLane {
    fn from_rule(rule: &LaneRule) -> Result<Self, InvalidPattern> {
        let lane_headers = |headers: &BTreeMap<String, String>| {
            let pair =
                |(name, value): (&String, &String)| (name.as_str().into(), value.as_str().into());
            headers.iter().map(pair).collect()
        };
        Ok(Self {
            matcher: TagMatcher::compile(&rule.request_match)
                .map_err(|error| error.with_object(rule.origin.object_key()))?,
            weights: WeightedTargets::from_percentages(rule.marks.iter().map(|mark| mark.percent)),
            headers_by_mark: rule.marks.iter().map(|mark| lane_headers(&mark.headers)).collect(),
            origin: rule.origin.clone(),
            match_slot: MatchSlot::default(),
        })
    }
}

impl<'a> LaneHeaders<'a> {
    /// True if there are no headers to add.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Returns the headers that the request does not have. Existing headers are not replaced.
    pub fn missing_headers(
        &self,
        request: &RequestView<'_>,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_absent = |(name, _): &&(Box<str>, Box<str>)| {
            header_value(request, name, leno_model::RepeatedHeader::First).is_none()
        };
        self.headers.iter().filter(is_absent).map(|(name, value)| (&**name, &**value))
    }
}
