//! `leno get rules`: rules and their match counts.

use leno_control::status::RuleStatus;

use crate::output::{Column, Listing};

/// Lists the rules in order of their objects.
pub(super) fn rule_table(rules: &[RuleStatus]) -> Listing {
    const COLUMNS: &[Column] = &[
        Column::always("kind"),
        Column::always("object"),
        Column::always("rule"),
        Column::always("matches 1h"),
        Column::always("hits"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for rule in rules {
        let RuleStatus { kind, name, rule, hour, hits } = rule;
        let (hour, hits) = (hour.to_string(), hits.to_string());
        listing.add_row([kind.clone(), name.clone(), rule.clone(), hour, hits]);
    }
    listing
}

/// Returns the matches of one object's rules within the last hour; empty if there were none.
pub(super) fn hits_of(rules: &[RuleStatus], kind: &str, name: &str) -> String {
    let found = rules.iter().filter(|rule| rule.kind == kind && rule.name == name);
    let hits = found.map(|RuleStatus { rule, hour, .. }| match rule.as_str() {
        "" => hour.to_string(),
        rule => format!("{rule}: {hour}"),
    });
    hits.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_an_object_are_reported_together() {
        let rule = |kind: &str, rule: &str, hour| RuleStatus {
            kind: kind.to_owned(),
            name: "shop/a".to_owned(),
            rule: rule.to_owned(),
            hour,
            hits: 9,
        };
        let rules = [rule("HTTPRoute", "0", 1), rule("HTTPRoute", "2", 3), rule("Lane", "", 4)];
        assert_eq!(hits_of(&rules, "HTTPRoute", "shop/a"), "0: 1, 2: 3");
        assert_eq!(hits_of(&rules, "Lane", "shop/a"), "4");
        assert_eq!(hits_of(&rules, "HTTPRoute", "shop/b"), "");
    }
}
