//! An index of many rules by their exact conditions: the texts that rules compare a header, path, parameter, method or
//! caller with. All kinds of rules use it when they have too many rules to evaluate them one by one.

mod prefix_index;
mod rule_positions;

use std::borrow::Cow;
use std::cmp::Reverse;

use leno_model::{RepeatedHeader, ServiceAccount};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::query::{all_parameters, decoded_text, find_parameter, may_be_named, possible_values};
use crate::request::{RequestView, header_value};
use crate::variant::{PathVariants, any_listed_value, any_value, folded_case, host_readings};

pub(crate) use prefix_index::{PrefixIndex, common_whole_elements};
pub(crate) use rule_positions::RulePositions;

/// An index of rules that finds the positions of the rules that may match a request.
#[derive(Debug, Clone)]
pub(crate) struct RuleIndex {
    /// The rules with an indexed condition other than a path prefix, by attribute.
    columns: Box<[Column]>,
    /// The positions of the rules with a path prefix, if any.
    prefixes: Option<Box<PrefixIndex<Vec<usize>>>>,
    /// The positions of the rules without an indexed condition.
    unconditional: Box<[usize]>,
    /// The number of rules.
    rule_count: usize,
}

/// The values of a request that are looked up in an index.
#[derive(Clone, Copy)]
pub(crate) struct LookupKeys<'a> {
    pub(crate) request: &'a RequestView<'a>,
    /// The variants of the path, if every interpretation of the request is looked up; absent if only the request as
    /// sent is looked up.
    path_variants: Option<&'a PathVariants>,
    /// The caller, if rules have callers.
    caller: Option<&'a ServiceAccount>,
}

impl<'a> LookupKeys<'a> {
    /// Creates the keys for rules that match the request as sent.
    #[inline]
    pub(crate) fn as_sent(request: &'a RequestView<'a>) -> Self {
        Self { request, path_variants: None, caller: None }
    }

    /// Creates the keys for rules that match any interpretation of the request.
    #[inline]
    pub(crate) fn as_interpreted(request: &'a RequestView<'a>, variants: &'a PathVariants) -> Self {
        Self { request, path_variants: Some(variants), caller: None }
    }

    /// Adds the verified caller, for rules that have callers.
    #[inline]
    pub(crate) fn with_caller(self, caller: Option<&'a ServiceAccount>) -> Self {
        Self { caller, ..self }
    }

    /// True if applications may read any path in the request, so that every path condition may hold.
    fn matches_any_path(self) -> bool {
        self.path_variants.is_some_and(PathVariants::is_any_path)
    }
}

/// The rules that compare one attribute, by the text that they compare it with.
#[derive(Debug, Clone)]
struct Column {
    /// The attribute.
    attribute: IndexedAttribute,
    /// The positions of the rules, by text.
    rules: RulesByText,
}

/// The positions of the rules for each text, in order. The texts come from the configuration, so requests cannot cause
/// hash collisions.
type RulesByText = FxHashMap<Box<str>, Vec<usize>>;

/// An attribute of a request that rules compare with exact texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum IndexedAttribute {
    /// The value of a header.
    Header {
        /// The name in lower case; `:authority` for the host.
        name: Box<str>,
        /// The compared value of a repeated header.
        repeated: RepeatedHeader,
        /// True if values are compared in lower case.
        ignores_case: bool,
    },
    /// The whole path.
    Path,
    /// Leading path elements.
    PathPrefix,
    /// The first value of a query parameter, decoded.
    Query(Box<str>),
    /// The method.
    Method,
    /// The namespace of the caller's account.
    Namespace,
    /// The name of the caller's account.
    Account,
}

/// A necessary condition of a rule: the attribute equals one of these texts. A rule that is found by a condition must
/// still be evaluated, because it may have other conditions.
pub(crate) type IndexCondition = (IndexedAttribute, Vec<Box<str>>);

impl RuleIndex {
    /// Indexes rules by their conditions. Each rule is stored under the most selective attribute of its conditions.
    pub(crate) fn from_rules(rules: &[Vec<IndexCondition>]) -> Self {
        let attributes = selective_attributes(rules);
        let mut rules_by_attribute: Vec<RulesByText> =
            attributes.iter().map(|_| RulesByText::default()).collect();
        let mut unconditional = Vec::new();
        for (position, conditions) in rules.iter().enumerate() {
            let condition_on = |attribute: &IndexedAttribute| {
                conditions.iter().find(|(condition_attribute, _)| condition_attribute == attribute)
            };
            let mut columns_and_attributes = rules_by_attribute.iter_mut().zip(&attributes);
            let selected_column = columns_and_attributes.find_map(|(rules_by_text, attribute)| {
                Some((rules_by_text, condition_on(attribute)?))
            });
            let Some((rules_by_text, (_, texts))) = selected_column else {
                unconditional.push(position);
                continue;
            };
            for text in texts {
                let positions = rules_by_text.entry(text.clone()).or_default();
                // A repeated text is stored once.
                if positions.last() != Some(&position) {
                    positions.push(position);
                }
            }
        }
        let mut prefixes = None;
        let mut columns = Vec::new();
        for (attribute, rules) in attributes.into_iter().zip(rules_by_attribute) {
            match attribute {
                IndexedAttribute::PathPrefix => {
                    prefixes = Some(Box::new(PrefixIndex::from_prefixes(rules.into_iter())));
                }
                attribute => columns.push(Column { attribute: attribute.clone(), rules }),
            }
        }
        Self {
            columns: columns.into(),
            prefixes,
            unconditional: unconditional.into(),
            rule_count: rules.len(),
        }
    }

    /// Builds the index; `None` for a small number of rules: their evaluation one by one is faster.
    pub(crate) fn build_if_many(
        rule_count: usize,
        index_conditions: impl FnOnce() -> Vec<Vec<IndexCondition>>,
    ) -> Option<Box<Self>> {
        needs_index(rule_count).then(|| Box::new(Self::from_rules(&index_conditions())))
    }

    /// Returns the position of the first rule that matches a request as sent, in an index without conditions on
    /// callers. Equivalent to `first_match_by_keys` without a caller, and faster.
    pub(crate) fn first_match(
        &self,
        request: &RequestView<'_>,
        is_match: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut best = usize::MAX;
        for column in &self.columns {
            debug_assert!(
                !matches!(
                    column.attribute,
                    IndexedAttribute::PathPrefix
                        | IndexedAttribute::Namespace
                        | IndexedAttribute::Account
                ),
                "other conditions have their own index"
            );
            best = find_before(best, column.rules_for(request), &is_match);
        }
        if let Some(prefixes) = &self.prefixes {
            best = find_by_prefix(prefixes, request.path, best, &is_match);
        }
        best = find_before(best, &self.unconditional, &is_match);
        (best != usize::MAX).then_some(best)
    }

    /// Returns the position of the first rule that matches.
    pub(crate) fn first_match_by_keys(
        &self,
        keys: LookupKeys<'_>,
        is_match: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if keys.matches_any_path() {
            return (0..self.rule_count).find(|position| is_match(*position));
        }
        self.search_lists(keys, |best, positions| find_before(best, positions, &is_match))
    }

    /// Returns the positions of all candidate rules in order, a superset of the matching rules.
    pub(crate) fn candidates(&self, keys: LookupKeys<'_>) -> RulePositions<'_> {
        if keys.matches_any_path() {
            return RulePositions::all_rules(self.rule_count);
        }
        let mut positions = RulePositions::empty();
        self.for_each_list(keys, |list| positions.add_list(list));
        positions
    }

    /// Returns the positions of all candidate rules for a caller, in an index with conditions on callers only.
    pub(crate) fn rules_for_caller(&self, caller: Option<&ServiceAccount>) -> RulePositions<'_> {
        let mut positions = RulePositions::empty();
        self.columns.iter().for_each(|column| positions.add_list(column.rules_for_caller(caller)));
        positions.add_list(&self.unconditional);
        positions
    }

    /// Returns the position of the first candidate that matches. `candidates` are positions in ascending order.
    pub(crate) fn first_match_among(
        &self,
        candidates: &[usize],
        keys: LookupKeys<'_>,
        is_match: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if keys.matches_any_path() {
            return candidates.iter().copied().find(|position| is_match(*position));
        }
        self.search_lists(keys, |best, positions| {
            // Iterates over the shorter list and searches the longer one, because either list may contain almost
            // all rules.
            let (shorter, longer) = if positions.len() < candidates.len() {
                (positions, candidates)
            } else {
                (candidates, positions)
            };
            let earlier_positions = shorter.iter().copied().take_while(|position| *position < best);
            let mut common_positions =
                earlier_positions.filter(|position| longer.binary_search(position).is_ok());
            common_positions.find(|position| is_match(*position)).unwrap_or(best)
        })
    }

    /// Calls `search_list` for each list of candidate rules, with the best position so far, and returns the best
    /// position of all lists.
    #[inline]
    fn search_lists(
        &self,
        keys: LookupKeys<'_>,
        search_list: impl Fn(usize, &[usize]) -> usize,
    ) -> Option<usize> {
        let mut best = usize::MAX;
        self.for_each_list(keys, |positions| best = search_list(best, positions));
        (best != usize::MAX).then_some(best)
    }

    /// Calls `on_list` with each list of positions of candidate rules. If `keys` contain path variants, the path must
    /// have no dot segments.
    #[inline]
    fn for_each_list<'a>(&'a self, keys: LookupKeys<'_>, mut on_list: impl FnMut(&'a [usize])) {
        match keys.path_variants {
            None => {
                for column in &self.columns {
                    match &column.attribute {
                        IndexedAttribute::Namespace | IndexedAttribute::Account => {
                            on_list(column.rules_for_caller(keys.caller))
                        }
                        _ => on_list(column.rules_for(keys.request)),
                    }
                }
                if let Some(prefixes) = &self.prefixes {
                    prefixes.for_each_prefix(keys.request.path, |list| on_list(list));
                }
            }
            Some(variants) => {
                for column in &self.columns {
                    column.for_each_interpreted(keys, variants, &mut on_list);
                }
                if let Some(prefixes) = &self.prefixes {
                    let path = variants.normalized_path(keys.request.path);
                    prefixes.for_each_prefix_or_stem(path, |list| on_list(list));
                }
                if variants.is_ambiguous() {
                    self.for_each_alternative(variants, &mut on_list);
                }
            }
        }
        on_list(&self.unconditional);
    }

    /// Calls `on_list` with each list for the alternative readings of the path. This is a separate function so that
    /// usual paths do not need its stack space.
    #[inline(never)]
    fn for_each_alternative<'a>(
        &'a self,
        variants: &PathVariants,
        on_list: &mut dyn FnMut(&'a [usize]),
    ) {
        let path_columns =
            self.columns.iter().filter(|column| matches!(column.attribute, IndexedAttribute::Path));
        for (path, variants) in variants.alternative_readings() {
            path_columns
                .clone()
                .for_each(|column| column.for_each_path_form(path, variants, on_list));
            if let Some(prefixes) = &self.prefixes {
                prefixes
                    .for_each_prefix_or_stem(variants.normalized_path(path), |list| on_list(list));
            }
        }
    }
}

/// Returns the first of these ascending positions that is less than the best position so far and matches; otherwise the
/// best position so far, which is initially `usize::MAX`.
#[inline]
pub(crate) fn find_before(
    best: usize,
    positions: &[usize],
    is_match: impl Fn(usize) -> bool,
) -> usize {
    let mut earlier = positions.iter().copied().take_while(|position| *position < best);
    earlier.find(|position| is_match(*position)).unwrap_or(best)
}

/// Returns the first matching position like [`find_before`], among the rules for all prefixes of this path.
#[inline]
fn find_by_prefix(
    prefixes: &PrefixIndex<Vec<usize>>,
    path: &str,
    best: usize,
    is_match: &impl Fn(usize) -> bool,
) -> usize {
    let mut best = best;
    prefixes.for_each_prefix(path, |positions| best = find_before(best, positions, is_match));
    best
}

/// True if this number of rules is faster to look up in an index than to evaluate one by one.
pub(crate) fn needs_index(count: usize) -> bool {
    count > MAX_UNINDEXED_RULES
}

/// Returns the most selective attributes: those with the most distinct texts first, at most [`MAX_COLUMNS`]. Attributes
/// with equally many texts retain their order.
fn selective_attributes(rules: &[Vec<IndexCondition>]) -> Vec<&IndexedAttribute> {
    let mut texts_by_attribute: FxHashMap<&IndexedAttribute, (usize, FxHashSet<&str>)> =
        FxHashMap::default();
    for (attribute, texts) in rules.iter().flatten() {
        let attribute_count = texts_by_attribute.len();
        let (_, distinct_texts) = texts_by_attribute
            .entry(attribute)
            .or_insert_with(|| (attribute_count, FxHashSet::default()));
        distinct_texts.extend(texts.iter().map(|text| &**text));
    }
    let mut ranked_attributes: Vec<(Reverse<usize>, usize, &IndexedAttribute)> = texts_by_attribute
        .into_iter()
        .map(|(attribute, (first_position, texts))| {
            (Reverse(texts.len()), first_position, attribute)
        })
        .collect();
    ranked_attributes
        .sort_unstable_by_key(|(text_count, first_position, _)| (*text_count, *first_position));
    ranked_attributes.into_iter().map(|(_, _, attribute)| attribute).take(MAX_COLUMNS).collect()
}

impl Column {
    /// Returns the positions of the rules for the attribute's value in the request.
    #[inline(always)]
    fn rules_for(&self, request: &RequestView<'_>) -> &[usize] {
        let rules = match &self.attribute {
            IndexedAttribute::Header { name, repeated, ignores_case } => {
                header_value(request, name, *repeated).and_then(|value| match ignores_case {
                    true => self.rules.get(&*lowercase_text(&value)),
                    false => self.rules.get(&*value),
                })
            }
            _ => self.rules_except_headers(request),
        };
        rules.map_or(&[], Vec::as_slice)
    }

    /// Calls `on_list` with each list for any interpretation of the request. The texts of the rules must be normalized.
    #[inline(never)]
    fn for_each_interpreted<'a>(
        &'a self,
        keys: LookupKeys<'_>,
        variants: &PathVariants,
        on_list: &mut dyn FnMut(&'a [usize]),
    ) {
        let request = keys.request;
        match &self.attribute {
            IndexedAttribute::Path => self.for_each_path_form(request.path, variants, on_list),
            IndexedAttribute::Header { name, .. } if **name == *":authority" => {
                host_readings(request.authority)
                    .for_each(|host| on_list(self.rules_for_text(&folded_case(&host))));
            }
            IndexedAttribute::Header { name, repeated, ignores_case } => {
                debug_assert!(
                    *repeated == RepeatedHeader::Joined && *ignores_case,
                    "{name} is compared joined and without case"
                );
                if let Some(joined_values) = request.fields.find_similar(name) {
                    self.for_each_value(|compare| any_value(&joined_values, compare), on_list);
                }
            }
            IndexedAttribute::Query(name) => {
                let named_parameters = all_parameters(request.query.unwrap_or_default())
                    .filter(|(encoded, _)| may_be_named(encoded, name));
                for (_, value) in named_parameters {
                    for value in possible_values(value) {
                        self.for_each_value(|compare| any_listed_value(&value, compare), on_list);
                    }
                }
            }
            // Prefixes have their own index, and a method may be overridden.
            IndexedAttribute::PathPrefix | IndexedAttribute::Method => {
                debug_assert!(false, "an index for all interpretations has no such column")
            }
            IndexedAttribute::Namespace | IndexedAttribute::Account => {
                on_list(self.rules_for_caller(keys.caller))
            }
        }
    }

    /// Calls `on_list` with each list for a form of the path that applications may read.
    fn for_each_path_form<'a>(
        &'a self,
        sent: &str,
        variants: &PathVariants,
        on_list: &mut dyn FnMut(&'a [usize]),
    ) {
        on_list(self.rules_for_text(variants.normalized_path(sent)));
        // A stem is a prefix that an application may read as the whole path, such as `/a` of `/a.json`.
        for stem in variants.path_stems(sent) {
            on_list(self.rules_for_text(stem));
        }
    }

    /// Calls `on_list` with each list for the values that `compare_values` passes to its argument. Each list is passed
    /// once, because a client may repeat a value many times. If there are too many values, passes all lists.
    fn for_each_value<'a>(
        &'a self,
        compare_values: impl FnOnce(&mut dyn FnMut(&str) -> bool) -> bool,
        on_list: &mut dyn FnMut(&'a [usize]),
    ) {
        let mut reported_lists = FxHashSet::default();
        let has_too_many_values = compare_values(&mut |value| {
            let rules = self.rules_for_text(&folded_case(value));
            if !rules.is_empty() && reported_lists.insert(rules.as_ptr()) {
                on_list(rules);
            }
            // No value is accepted, so that all values are visited.
            false
        });
        if has_too_many_values {
            self.rules.values().for_each(|rules| on_list(rules));
        }
    }

    /// Returns the rules for the value of an attribute other than a header. This is a separate function so that the
    /// most frequent lookup, that of headers, can be inlined.
    #[inline(never)]
    fn rules_except_headers(&self, request: &RequestView<'_>) -> Option<&Vec<usize>> {
        match &self.attribute {
            // Other functions look up these attributes.
            IndexedAttribute::Header { .. }
            | IndexedAttribute::PathPrefix
            | IndexedAttribute::Namespace
            | IndexedAttribute::Account => None,
            IndexedAttribute::Path => self.rules.get(request.path),
            IndexedAttribute::Method => self.rules.get(request.method),
            IndexedAttribute::Query(name) => {
                let value = find_parameter(request.query?, name)?;
                self.rules.get(&*decoded_text(value)?)
            }
        }
    }

    /// Returns the rules for a text.
    #[inline]
    fn rules_for_text(&self, text: &str) -> &[usize] {
        self.rules.get(text).map_or(&[], Vec::as_slice)
    }

    /// Returns the rules for the caller.
    fn rules_for_caller(&self, caller: Option<&ServiceAccount>) -> &[usize] {
        let rules = caller.map(|caller| match self.attribute {
            IndexedAttribute::Namespace => self.rules_for_text(caller.namespace.as_str()),
            // The other columns of an index of callers compare account names.
            _ => self.rules_for_text(caller.name.as_str()),
        });
        rules.unwrap_or_default()
    }
}

/// Returns the value in lower case; allocates only if the value changes.
pub(crate) fn lowercase_text(value: &str) -> Cow<'_, str> {
    let is_lower = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    match value.bytes().all(is_lower) {
        true => Cow::Borrowed(value),
        false => Cow::Owned(value.to_lowercase()),
    }
}

/// The maximum number of indexed attributes, each of which requires a lookup per request.
const MAX_COLUMNS: usize = 8;
/// The maximum number of rules that are evaluated one by one, without an index. It is small in tests, so that they use
/// the index with few rules.
const MAX_UNINDEXED_RULES: usize = if cfg!(test) { 2 } else { 16 };

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn header_condition(name: &str, text: &str) -> IndexCondition {
        let attribute = IndexedAttribute::Header {
            name: name.into(),
            repeated: RepeatedHeader::Joined,
            ignores_case: false,
        };
        (attribute, vec![text.into()])
    }

    /// Returns the position of the first candidate, and the number of evaluated rules; every evaluated rule matches.
    fn find_first_rule(
        index: &RuleIndex,
        path: &str,
        fields: &[(&str, &str)],
    ) -> (Option<usize>, usize) {
        let fields: Vec<(String, String)> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = RequestView {
            method: "GET",
            path,
            query: Some("page=7&user=u%2d7"),
            authority: "shop",
            fields: &fields,
        };
        let evaluation_count = Cell::new(0);
        let first_rule = index.first_match(&request, |_| {
            evaluation_count.set(evaluation_count.get() + 1);
            true
        });
        (first_rule, evaluation_count.get())
    }

    #[test]
    fn ten_thousand_rules_cost_no_more_evaluations_than_ten() {
        for rules in [10, 10_000] {
            let user_name = |n: usize| format!("u-{n}");
            for kind in 0..4 {
                let index_condition = |n: usize| match kind {
                    // All of them share another condition.
                    0 => vec![
                        header_condition("x-all", "1"),
                        header_condition("x-user", &user_name(n)),
                    ],
                    1 => vec![(IndexedAttribute::Query("user".into()), vec![user_name(n).into()])],
                    2 => vec![(IndexedAttribute::Path, vec![format!("/{}", user_name(n)).into()])],
                    _ => {
                        vec![(
                            IndexedAttribute::PathPrefix,
                            vec![format!("/{}", user_name(n)).into()],
                        )]
                    }
                };
                let lookup =
                    RuleIndex::from_rules(&(0..rules).map(index_condition).collect::<Vec<_>>());
                let fields = [("x-all", "1"), ("x-user", "u-7")];
                assert_eq!(find_first_rule(&lookup, "/u-7", &fields), (Some(7), 1), "{kind}");
                // A request without a match evaluates no rule.
                let unmatched = [("x-all", "1"), ("x-user", "u-")];
                if kind != 1 {
                    assert_eq!(find_first_rule(&lookup, "/u-", &unmatched), (None, 0), "{kind}");
                }
            }
        }
    }

    #[test]
    fn a_rule_without_conditions_is_evaluated_in_order() {
        let lookup = RuleIndex::from_rules(&[vec![], vec![header_condition("x", "1")], vec![]]);
        assert_eq!(find_first_rule(&lookup, "/", &[("x", "1")]).0, Some(0));
        let lookup = RuleIndex::from_rules(&[vec![header_condition("x", "1")], vec![]]);
        assert_eq!(find_first_rule(&lookup, "/", &[("x", "1")]), (Some(0), 1));
        assert_eq!(find_first_rule(&lookup, "/", &[("x", "2")]), (Some(1), 1));
    }
}
