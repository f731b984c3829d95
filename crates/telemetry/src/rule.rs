//! Numbers the rules that match, and counts the matches of each shard by rule number.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::cell::{SingleWriterCell, cell_array};

/// The labels that identify a rule. All values come from the mesh configuration, never from clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleLabels {
    /// The kind of the object that contains the rule, as in manifests.
    pub kind: &'static str,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The name of the rule in the object, or its index from 0; empty if the object is a single rule.
    pub rule: String,
}

/// The number of a rule, the same in all shards for the lifetime of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleNumber(u32);

impl RuleNumber {
    /// Returns the number, which is never 0.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Converts the result of [`RuleNumber::get`]; `None` for 0.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// The shared number of all rules beyond the limit.
    const OVERFLOW: Self = Self(1);
}

/// The numbers of all rules that ever matched.
#[derive(Debug, Default)]
pub(crate) struct RuleNumbers {
    /// The number of each rule within the limit.
    numbers: HashMap<RuleLabels, RuleNumber>,
    /// The labels of each rule, in order of the numbers. The first are those of the rules beyond the limit.
    labels: Vec<RuleLabels>,
}

impl RuleNumbers {
    /// Returns the number of a rule. A new rule is assigned a number; beyond [`MAX_RULES`] it gets the shared
    /// number.
    pub(crate) fn number_for(&mut self, labels: &RuleLabels) -> RuleNumber {
        if let Some(number) = self.numbers.get(labels) {
            return *number;
        }
        // The first number is that of all rules beyond the limit.
        if self.labels.is_empty() {
            let name = OVERFLOW_NAME.to_owned();
            self.labels.push(RuleLabels { name, ..RuleLabels::default() });
        }
        if self.labels.len() >= MAX_RULES {
            return RuleNumber::OVERFLOW;
        }
        self.labels.push(labels.clone());
        // At most `MAX_RULES`, so the conversion cannot fail.
        let number = RuleNumber(u32::try_from(self.labels.len()).unwrap_or(1));
        self.numbers.insert(labels.clone(), number);
        number
    }

    /// Returns the labels of all rules, in order of their numbers.
    pub(crate) fn labels(&self) -> &[RuleLabels] {
        &self.labels
    }
}

/// The match counts of one shard. A row is allocated when one of its rules first matches.
#[derive(Debug)]
pub(crate) struct RuleCells {
    rows: [OnceLock<Box<[SingleWriterCell; ROW_CELLS]>>; ROW_COUNT],
}

impl RuleCells {
    pub(crate) fn new() -> Self {
        Self { rows: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// Counts a match. Only one thread may call this: the one that owns the shard with these cells.
    pub(crate) fn add(&self, number: RuleNumber) {
        // Numbers begin at 1, indices at 0.
        let index = (number.0 as usize).wrapping_sub(1);
        if let Some(row) = self.rows.get(index / ROW_CELLS) {
            row.get_or_init(|| Box::new(cell_array()))[index % ROW_CELLS].add(1);
        }
    }

    /// Returns the number of matches of the rule at this index.
    pub(crate) fn read(&self, index: usize) -> u64 {
        let row = self.rows.get(index / ROW_CELLS).and_then(OnceLock::get);
        row.map_or(0, |row| row[index % ROW_CELLS].read())
    }
}

/// The maximum number of rule numbers in a process, including the shared number. The counts take at most 8 KiB
/// in each thread.
pub const MAX_RULES: usize = ROW_CELLS * ROW_COUNT;

/// The number of rules in a row.
const ROW_CELLS: usize = 64;
/// The number of rows.
const ROW_COUNT: usize = 16;

/// The name label of the rules beyond the limit.
const OVERFLOW_NAME: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;

    fn rule_labels(name: &str) -> RuleLabels {
        RuleLabels {
            kind: "HTTPRoute",
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            rule: "0".to_owned(),
        }
    }

    #[test]
    fn all_shards_count_a_rule_under_one_number() {
        let telemetry = Telemetry::new();
        let (first, second) = (telemetry.new_shard(), telemetry.new_shard());
        let (a, b) = (first.rule_number(&rule_labels("a")), second.rule_number(&rule_labels("b")));
        assert_eq!(
            (second.rule_number(&rule_labels("a")), first.rule_number(&rule_labels("b"))),
            (a, b)
        );
        assert_ne!(a, b);
        first.count_match(a);
        second.count_match(a);
        second.count_match(b);
        assert_eq!(telemetry.matched_rules(), [(rule_labels("a"), 2), (rule_labels("b"), 1)]);
    }

    #[test]
    fn a_rule_without_matches_is_not_reported() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let number = shard.rule_number(&rule_labels("a"));
        assert_eq!(telemetry.matched_rules(), []);
        shard.count_match(number);
        assert_eq!(telemetry.matched_rules().len(), 1);
    }

    #[test]
    fn rules_beyond_the_limit_are_counted_together() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        for name in 0..MAX_RULES + 2 {
            shard.count_match(shard.rule_number(&rule_labels(&name.to_string())));
        }
        let rules = telemetry.matched_rules();
        assert_eq!(rules.len(), MAX_RULES);
        let overflow_labels = RuleLabels { name: "other".to_owned(), ..RuleLabels::default() };
        assert_eq!(rules[0], (overflow_labels, 3));
        assert!(rules[1..].iter().all(|(_, matches)| *matches == 1));
    }
}
