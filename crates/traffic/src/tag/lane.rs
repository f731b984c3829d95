//! Lanes: headers added to requests at the entry of a service.

use std::collections::BTreeMap;

use leno_model::{LaneRule, RuleOrigin};

use super::conditions::exact_demands;
use super::matcher::TagMatcher;
use super::weighted_targets::{DrawPurpose, RandomChoice, WeightedTargets};
use crate::match_slot::MatchSlot;
use crate::pattern::InvalidPattern;
use crate::request::{RequestView, header_value};
use crate::rule_index::RuleIndex;

/// The lanes of a workload, compiled.
#[derive(Debug, Default)]
pub struct Lanes {
    /// By application port, in order of precedence.
    ports: BTreeMap<u16, PortLanes>,
}

#[derive(Debug)]
struct PortLanes {
    lanes: Box<[CompiledLane]>,
    /// An index, if there are many.
    lookup: Option<Box<RuleIndex>>,
}

#[derive(Debug)]
struct CompiledLane {
    matcher: TagMatcher,
    shares: WeightedTargets,
    /// Alternatives, one of which is drawn.
    marks: Box<[Box<[LaneHeader]>]>,
    origin: RuleOrigin,
    match_slot: MatchSlot,
}

/// The headers to add to a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct LaneHeaders<'a> {
    /// The rule that decided, with its origin and match counter.
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

    /// True if requests to this port may be marked.
    #[must_use]
    pub fn may_mark(&self, port: u16) -> bool {
        !self.ports.is_empty() && self.ports.contains_key(&port)
    }

    /// Returns the headers for a request to a port of the application: the first matching rule draws once, and
    /// later ones are not tried.
    pub fn marks_for(
        &self,
        port: u16,
        request: &RequestView<'_>,
        chance: &mut impl RandomChoice,
    ) -> LaneHeaders<'_> {
        let fitting = self.ports.get(&port).and_then(|lanes| lanes.first_match(request));
        let drawn = fitting
            .and_then(|lane| lane.marks.get(lane.shares.draw_target(DrawPurpose::Lane, chance)));
        let rule = fitting.map(|lane| (&lane.origin, &lane.match_slot));
        LaneHeaders { rule, headers: drawn.map_or(&[], |headers| headers) }
    }
}

impl PortLanes {
    fn from_lanes(lanes: Box<[CompiledLane]>) -> Self {
        let lookup = RuleIndex::of_many(lanes.len(), || {
            lanes.iter().map(|lane| exact_demands(&lane.matcher)).collect()
        });
        Self { lanes, lookup }
    }

    /// Returns the first match.
    fn first_match(&self, request: &RequestView<'_>) -> Option<&CompiledLane> {
        let Some(lookup) = &self.lookup else {
            return self.lanes.iter().find(|lane| lane.matcher.matches(request));
        };
        let fits = |at: usize| self.lanes.get(at).is_some_and(|it| it.matcher.matches(request));
        self.lanes.get(lookup.first_fitting(request, fits)?)
    }
}

impl CompiledLane {
    fn from_rule(rule: &LaneRule) -> Result<Self, InvalidPattern> {
        let headers = |headers: &BTreeMap<String, String>| {
            let pair =
                |(name, value): (&String, &String)| (name.as_str().into(), value.as_str().into());
            headers.iter().map(pair).collect()
        };
        Ok(Self {
            matcher: TagMatcher::compile(&rule.matches)
                .map_err(|bad| bad.with_object(rule.origin.object_key()))?,
            shares: WeightedTargets::of_percentages(rule.marks.iter().map(|mark| mark.percent)),
            marks: rule.marks.iter().map(|mark| headers(&mark.headers)).collect(),
            origin: rule.origin.clone(),
            match_slot: MatchSlot::default(),
        })
    }
}

impl<'a> LaneHeaders<'a> {
    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Returns the headers that the request does not have; existing ones are kept.
    pub fn missing_headers(
        &self,
        request: &RequestView<'_>,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let absent = |(name, _): &&(Box<str>, Box<str>)| {
            header_value(request, name, leno_model::RepeatedHeader::First).is_none()
        };
        self.headers.iter().filter(absent).map(|(name, value)| (&**name, &**value))
    }
}
