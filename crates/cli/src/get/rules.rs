//! `leno get rules`: lists rules with their match counts.

use leno_control::status::RuleStatus;

use crate::output::{Listing, ListingColumn};

/// Lists the rules in order of their objects.
pub(super) fn rule_table(rules: &[RuleStatus]) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("kind"),
        ListingColumn::always("object"),
        ListingColumn::always("rule"),
        ListingColumn::always("matches 1h"),
        ListingColumn::always("matches"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for rule_status in rules {
        let RuleStatus { kind, name, rule, matches_1h, matches } = rule_status;
        let (matches_1h, matches) = (matches_1h.to_string(), matches.to_string());
        listing.add_row([kind.clone(), name.clone(), rule.clone(), matches_1h, matches]);
    }
    listing
}

/// Returns the number of matches of each rule of one object within the last hour; empty if no rule matched.
pub(super) fn describe_matches(rules: &[RuleStatus], kind: &str, name: &str) -> String {
    let object_rules = rules.iter().filter(|rule| rule.kind == kind && rule.name == name);
    let matches = object_rules.map(|RuleStatus { rule, matches_1h, .. }| match rule.as_str() {
        "" => matches_1h.to_string(),
        rule => format!("{rule}: {matches_1h}"),
    });
    matches.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_of_all_rules_of_an_object_are_joined() {
        let rule = |kind: &str, rule: &str, matches_1h| RuleStatus {
            kind: kind.to_owned(),
            name: "shop/a".to_owned(),
            rule: rule.to_owned(),
            matches_1h,
            matches: 9,
        };
        let rules = [rule("HTTPRoute", "0", 1), rule("HTTPRoute", "2", 3), rule("Lane", "", 4)];
        assert_eq!(describe_matches(&rules, "HTTPRoute", "shop/a"), "0: 1, 2: 3");
        assert_eq!(describe_matches(&rules, "Lane", "shop/a"), "4");
        assert_eq!(describe_matches(&rules, "HTTPRoute", "shop/b"), "");
    }
}
