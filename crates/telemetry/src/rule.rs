//! Rules: how often each of them decided, counted by number.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::cell::{Cell, cells};

/// What tells a rule from others. Every part comes from the mesh, never from what a client may
/// invent.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleLabels {
    /// The kind of the object that holds it, as manifests write it.
    pub kind: &'static str,
    /// The namespace of that object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The rule in it: its name, or its place from 0; empty where an object is one rule.
    pub rule: String,
}

/// The number of a rule, the same in all shards of a process for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleNumber(u32);

impl RuleNumber {
    /// As a number that is never 0.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// From what [`RuleNumber::get`] said; `None` for 0.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// What is counted together when there are too many rules.
    const FOLDED: Self = Self(1);
}

/// The numbers of all rules that ever decided something.
#[derive(Debug, Default)]
pub(crate) struct RuleNumbers {
    numbers: HashMap<RuleLabels, RuleNumber>,
    labels: Vec<RuleLabels>,
}

impl RuleNumbers {
    /// The number of a rule, given to it when it is new and there is room.
    pub(crate) fn of(&mut self, labels: &RuleLabels) -> RuleNumber {
        if let Some(number) = self.numbers.get(labels) {
            return *number;
        }
        if self.labels.is_empty() {
            let name = FOLDED_NAME.to_owned();
            self.labels.push(RuleLabels { name, ..RuleLabels::default() });
        }
        if self.labels.len() >= RULES_MAX {
            return RuleNumber::FOLDED;
        }
        self.labels.push(labels.clone());
        let number = RuleNumber(u32::try_from(self.labels.len()).unwrap_or(1));
        self.numbers.insert(labels.clone(), number);
        number
    }

    /// The labels, in the order of their numbers.
    pub(crate) fn labels(&self) -> &[RuleLabels] {
        &self.labels
    }
}

/// How often rules decided, as one shard counts it: rows are made when the first of their rules
/// decides something.
#[derive(Debug)]
pub(crate) struct RuleCells {
    rows: [OnceLock<Box<[Cell; ROW]>>; ROWS],
}

impl RuleCells {
    pub(crate) fn new() -> Self {
        Self { rows: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// The rule decided once more; only the thread that owns the shard may say so.
    pub(crate) fn add(&self, number: RuleNumber) {
        let place = (number.0 as usize).wrapping_sub(1);
        if let Some(row) = self.rows.get(place / ROW) {
            row.get_or_init(|| Box::new(cells()))[place % ROW].add(1);
        }
    }

    /// How often the rule in this place decided.
    pub(crate) fn read(&self, place: usize) -> u64 {
        let row = self.rows.get(place / ROW).and_then(OnceLock::get);
        row.map_or(0, |row| row[place % ROW].read())
    }
}

/// How many rules a process counts apart, one of them for all that have no room: in each thread at
/// most 8 KiB.
pub const RULES_MAX: usize = ROW * ROWS;

const ROW: usize = 64;
const ROWS: usize = 16;

/// What rules are counted under that have no room.
const FOLDED_NAME: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;

    fn rule(name: &str) -> RuleLabels {
        RuleLabels {
            kind: "HTTPRoute",
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            rule: "0".to_owned(),
        }
    }

    #[test]
    fn shards_count_a_rule_under_one_number_and_a_sum_is_told() {
        let telemetry = Telemetry::new();
        let (one, two) = (telemetry.shard(), telemetry.shard());
        let (a, b) = (one.rule(&rule("a")), two.rule(&rule("b")));
        assert_eq!((two.rule(&rule("a")), one.rule(&rule("b"))), (a, b));
        assert_ne!(a, b);
        one.hit(a);
        two.hit(a);
        two.hit(b);
        assert_eq!(telemetry.rules(), [(rule("a"), 2), (rule("b"), 1)]);
    }

    #[test]
    fn a_rule_that_never_decided_is_not_told() {
        let telemetry = Telemetry::new();
        let shard = telemetry.shard();
        let number = shard.rule(&rule("a"));
        assert_eq!(telemetry.rules(), []);
        shard.hit(number);
        assert_eq!(telemetry.rules().len(), 1);
    }

    #[test]
    fn rules_beyond_the_bound_are_counted_together() {
        let telemetry = Telemetry::new();
        let shard = telemetry.shard();
        for name in 0..RULES_MAX + 2 {
            shard.hit(shard.rule(&rule(&name.to_string())));
        }
        let rules = telemetry.rules();
        assert_eq!(rules.len(), RULES_MAX);
        let other = RuleLabels { name: "other".to_owned(), ..RuleLabels::default() };
        assert_eq!(rules[0], (other, 3));
        assert!(rules[1..].iter().all(|(_, hits)| *hits == 1));
    }
}
