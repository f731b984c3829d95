//! Index of many rules by their exact conditions, as an alternative to evaluating them one by one.

mod prefix_index;
mod rule_positions;

use std::borrow::Cow;

use leno_model::{RepeatedHeader, ServiceAccount};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::query::{all_parameters, decoded_text, find_parameter, may_be_named, may_be_values};
use crate::request::{RequestView, header_value};
use crate::variant::{PathVariants, any_listed_value, any_value, folded_case, host_readings};

pub(crate) use prefix_index::{PrefixIndex, whole_elements};
pub(crate) use rule_positions::RulePositions;

/// An index of rules: finds the candidates for the first match, by their position.
#[derive(Debug, Clone)]
pub(crate) struct RuleIndex {
    columns: Box<[Column]>,
    /// The rules with a path prefix, in order, if any.
    beginnings: Option<Box<PrefixIndex<Vec<usize>>>>,
    /// The rules without an indexed condition, in order.
    rest: Box<[usize]>,
    /// The number of rules.
    rules: usize,
}

/// The subject of a lookup.
#[derive(Clone, Copy)]
pub(crate) struct LookupKeys<'a> {
    pub(crate) request: &'a RequestView<'a>,
    /// The normalized path, if every meaning of the request counts, and not only the request as sent.
    meaning: Option<&'a PathVariants>,
    /// The caller, if rules have callers.
    caller: Option<&'a ServiceAccount>,
}

impl<'a> LookupKeys<'a> {
    /// Searches for rules that match the request as sent.
    #[inline]
    pub(crate) fn as_sent(request: &'a RequestView<'a>) -> Self {
        Self { request, meaning: None, caller: None }
    }

    /// Searches for rules that match any meaning of the request.
    #[inline]
    pub(crate) fn as_meant(request: &'a RequestView<'a>, variant: &'a PathVariants) -> Self {
        Self { request, meaning: Some(variant), caller: None }
    }

    /// Adds the verified caller, for rules that have callers.
    #[inline]
    pub(crate) fn with_caller(self, caller: Option<&'a ServiceAccount>) -> Self {
        Self { caller, ..self }
    }

    /// True if the request matches every rule about paths.
    fn matches_any_path(self) -> bool {
        self.meaning.is_some_and(PathVariants::is_any_path)
    }
}

/// One attribute of a request that rules compare with texts.
#[derive(Debug, Clone)]
struct Column {
    key: IndexedAttribute,
    rules: Texts,
}

/// The rules for each text, in order. The texts come from an operator, so requests cannot cause hash
/// collisions.
type Texts = FxHashMap<Box<str>, Vec<usize>>;

/// The indexed attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum IndexedAttribute {
    Header {
        name: Box<str>,
        repeated: RepeatedHeader,
        folded: bool,
    },
    Path,
    /// Leading path elements.
    PathPrefix,
    /// The first value of a query parameter, decoded.
    Query(Box<str>),
    Method,
    /// The namespace of the caller's account.
    Namespace,
    /// The name of the caller's account.
    Account,
}

/// A necessary condition of a rule: the attribute equals one of these texts.
pub(crate) type IndexCondition = (IndexedAttribute, Vec<Box<str>>);

impl RuleIndex {
    /// Indexes rules in order, with the conditions of each. Each rule is stored under the most selective of its
    /// attributes.
    pub(crate) fn from_rules(rules: &[Vec<IndexCondition>]) -> Self {
        let chosen = selective_keys(rules);
        let mut columns: Vec<Texts> = chosen.iter().map(|_| Texts::default()).collect();
        let mut rest = Vec::new();
        for (index, demands) in rules.iter().enumerate() {
            let held_by =
                |key: &IndexedAttribute| demands.iter().find(|(demanded, _)| demanded == key);
            let mut held = columns.iter_mut().zip(&chosen);
            let held = held.find_map(|(column, key)| Some((column, held_by(key)?)));
            let Some((column, (_, texts))) = held else {
                rest.push(index);
                continue;
            };
            for text in texts {
                let held = column.entry(text.clone()).or_default();
                // A repeated text is stored once.
                if held.last() != Some(&index) {
                    held.push(index);
                }
            }
        }
        let mut beginnings = None;
        let mut others = Vec::new();
        for (key, rules) in chosen.into_iter().zip(columns) {
            match key {
                IndexedAttribute::PathPrefix => {
                    beginnings = Some(Box::new(PrefixIndex::from_prefixes(rules.into_iter())));
                }
                key => others.push(Column { key: key.clone(), rules }),
            }
        }
        Self { columns: others.into(), beginnings, rest: rest.into(), rules: rules.len() }
    }

    /// Does the same if an index is worth it: a small number of rules is faster to evaluate one by one.
    pub(crate) fn of_many(
        rules: usize,
        demands: impl FnOnce() -> Vec<Vec<IndexCondition>>,
    ) -> Option<Box<Self>> {
        are_many(rules).then(|| Box::new(Self::from_rules(&demands())))
    }

    /// Returns the first rule in order that `fits` a request as sent, regardless of the caller. Equivalent to
    /// `first_sought`, inlined for the hot path.
    pub(crate) fn first_fitting(
        &self,
        request: &RequestView<'_>,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut best = usize::MAX;
        for column in &self.columns {
            debug_assert!(
                !matches!(
                    column.key,
                    IndexedAttribute::PathPrefix
                        | IndexedAttribute::Namespace
                        | IndexedAttribute::Account
                ),
                "other conditions have their own index"
            );
            best = first_before(best, column.rules_for(request), &fits);
        }
        if let Some(beginnings) = &self.beginnings {
            best = first_begun(beginnings, request.path, best, &fits);
        }
        best = first_before(best, &self.rest, &fits);
        (best != usize::MAX).then_some(best)
    }

    /// Returns the first rule in order that `fits`.
    pub(crate) fn first_sought(
        &self,
        sought: LookupKeys<'_>,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if sought.matches_any_path() {
            return (0..self.rules).find(|place| fits(*place));
        }
        self.search_lists(sought, |best, places| first_before(best, places, &fits))
    }

    /// Returns all candidate rules in order, a superset of the matching ones.
    pub(crate) fn candidates(&self, sought: LookupKeys<'_>) -> RulePositions<'_> {
        if sought.matches_any_path() {
            return RulePositions::all_rules(self.rules);
        }
        let mut places = RulePositions::empty();
        self.for_each_list(sought, |held| places.add_list(held));
        places
    }

    /// Does the same for a caller, with rules that have no other conditions.
    pub(crate) fn all_naming(&self, caller: Option<&ServiceAccount>) -> RulePositions<'_> {
        let mut places = RulePositions::empty();
        self.columns.iter().for_each(|column| places.add_list(column.held_by_caller(caller)));
        places.add_list(&self.rest);
        places
    }

    /// Returns the first that `fits` of some of the rules: `part`, in order.
    pub(crate) fn first_of(
        &self,
        part: &[usize],
        sought: LookupKeys<'_>,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if sought.matches_any_path() {
            return part.iter().copied().find(|place| fits(*place));
        }
        self.search_lists(sought, |best, places| {
            // Iterates over the shorter list and searches the longer one: many rules may have the same
            // condition on requests of other callers, and a part may be most of them.
            let (few, many) =
                if places.len() < part.len() { (places, part) } else { (part, places) };
            let open = few.iter().copied().take_while(|place| *place < best);
            let mut both = open.filter(|place| many.binary_search(place).is_ok());
            both.find(|place| fits(*place)).unwrap_or(best)
        })
    }

    /// Returns the first rule found by `first_before`, which is called for each matching list with the best
    /// rule so far.
    #[inline]
    fn search_lists(
        &self,
        sought: LookupKeys<'_>,
        first_before: impl Fn(usize, &[usize]) -> usize,
    ) -> Option<usize> {
        let mut best = usize::MAX;
        self.for_each_list(sought, |places| best = first_before(best, places));
        (best != usize::MAX).then_some(best)
    }

    /// Calls `take` with each list of candidate rules, in order. The path has no dot segments if every meaning
    /// counts.
    #[inline]
    fn for_each_list<'a>(&'a self, sought: LookupKeys<'_>, mut take: impl FnMut(&'a [usize])) {
        match sought.meaning {
            None => {
                for column in &self.columns {
                    match &column.key {
                        IndexedAttribute::Namespace | IndexedAttribute::Account => {
                            take(column.held_by_caller(sought.caller))
                        }
                        _ => take(column.rules_for(sought.request)),
                    }
                }
                if let Some(beginnings) = &self.beginnings {
                    beginnings.for_each_prefix(sought.request.path, |held| take(held));
                }
            }
            Some(variant) => {
                for column in &self.columns {
                    column.each_meant(sought, variant, &mut take);
                }
                if let Some(beginnings) = &self.beginnings {
                    let path = variant.normalized_path(sought.request.path);
                    beginnings.each_meant(path, |held| take(held));
                }
                if variant.is_ambiguous() {
                    self.each_of_others(variant, &mut take);
                }
            }
        }
        take(&self.rest);
    }

    /// Calls `take` with each list for the alternative readings of the path. Separate, so that the usual path
    /// needs no stack space for it.
    #[inline(never)]
    fn each_of_others<'a>(&'a self, variant: &PathVariants, take: &mut dyn FnMut(&'a [usize])) {
        let paths =
            self.columns.iter().filter(|column| matches!(column.key, IndexedAttribute::Path));
        for (other, variant) in variant.other_readings() {
            paths.clone().for_each(|column| column.each_of_path(other, variant, take));
            if let Some(beginnings) = &self.beginnings {
                beginnings.each_meant(variant.normalized_path(other), |held| take(held));
            }
        }
    }
}

/// Returns the first of these positions, in order, that precedes the best so far and `fits`; otherwise the best
/// so far (initially `usize::MAX`).
#[inline]
pub(crate) fn first_before(best: usize, places: &[usize], fits: impl Fn(usize) -> bool) -> usize {
    let mut open = places.iter().copied().take_while(|place| *place < best);
    open.find(|place| fits(*place)).unwrap_or(best)
}

/// Does the same for all rules with a prefix of this path.
#[inline]
fn first_begun(
    beginnings: &PrefixIndex<Vec<usize>>,
    path: &str,
    best: usize,
    fits: &impl Fn(usize) -> bool,
) -> usize {
    let mut best = best;
    beginnings.for_each_prefix(path, |held| best = first_before(best, held, fits));
    best
}

/// True if this number of rules is faster to look up than to evaluate one by one.
pub(crate) fn are_many(rules: usize) -> bool {
    rules > ASKED_MAX
}

/// Returns the most selective attributes, in descending order; ties keep the original order.
fn selective_keys(rules: &[Vec<IndexCondition>]) -> Vec<&IndexedAttribute> {
    let mut found: FxHashMap<&IndexedAttribute, (usize, FxHashSet<&str>)> = FxHashMap::default();
    for (key, texts) in rules.iter().flatten() {
        let count = found.len();
        let (_, known) = found.entry(key).or_insert_with(|| (count, FxHashSet::default()));
        known.extend(texts.iter().map(|text| &**text));
    }
    let mut keys: Vec<(usize, usize, &IndexedAttribute)> =
        found.into_iter().map(|(key, (first, texts))| (texts.len(), first, key)).collect();
    keys.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    keys.into_iter().map(|(_, _, key)| key).take(COLUMNS_MAX).collect()
}

impl Column {
    /// Returns the rules for the attribute's value in the request.
    #[inline(always)]
    fn rules_for(&self, request: &RequestView<'_>) -> &[usize] {
        let rules = match &self.key {
            IndexedAttribute::Header { name, repeated, folded } => {
                header_value(request, name, *repeated).and_then(|value| match folded {
                    true => self.rules.get(&*folded_text(&value)),
                    false => self.rules.get(&*value),
                })
            }
            _ => self.held_beside_headers(request),
        };
        rules.map_or(&[], Vec::as_slice)
    }

    /// Calls `take` with each list for any meaning of the request; the texts of rules are normalized.
    #[inline(never)]
    fn each_meant<'a>(
        &'a self,
        sought: LookupKeys<'_>,
        variant: &PathVariants,
        take: &mut dyn FnMut(&'a [usize]),
    ) {
        let request = sought.request;
        match &self.key {
            IndexedAttribute::Path => self.each_of_path(request.path, variant, take),
            IndexedAttribute::Header { name, .. } if **name == *":authority" => {
                host_readings(request.authority)
                    .for_each(|host| take(self.rules_for_text(&folded_case(&host))));
            }
            IndexedAttribute::Header { name, repeated, folded } => {
                debug_assert!(
                    *repeated == RepeatedHeader::Joined && *folded,
                    "{name} is compared so"
                );
                if let Some(joined) = request.fields.find_similar(name) {
                    self.take_each(|compare| any_value(&joined, compare), take);
                }
            }
            IndexedAttribute::Query(name) => {
                let named = all_parameters(request.query.unwrap_or_default())
                    .filter(|(encoded, _)| may_be_named(encoded, name));
                for (_, value) in named {
                    for value in may_be_values(value) {
                        self.take_each(|compare| any_listed_value(&value, compare), take);
                    }
                }
            }
            // The method may be overridden.
            IndexedAttribute::PathPrefix | IndexedAttribute::Method => {
                debug_assert!(false, "these are no columns here")
            }
            IndexedAttribute::Namespace | IndexedAttribute::Account => {
                take(self.held_by_caller(sought.caller))
            }
        }
    }

    /// Calls `take` with each list for a path as applications read it.
    fn each_of_path<'a>(
        &'a self,
        sent: &str,
        variant: &PathVariants,
        take: &mut dyn FnMut(&'a [usize]),
    ) {
        take(self.rules_for_text(variant.normalized_path(sent)));
        for stem in variant.path_stems(sent) {
            take(self.rules_for_text(stem));
        }
    }

    /// Calls `take` once with each list for the values that `any` compares: a client may repeat a value
    /// thousands of times. Takes all lists if there are too many values.
    fn take_each<'a>(
        &'a self,
        any: impl FnOnce(&mut dyn FnMut(&str) -> bool) -> bool,
        take: &mut dyn FnMut(&'a [usize]),
    ) {
        let mut taken = FxHashSet::default();
        let are_too_many = any(&mut |value| {
            let held = self.rules_for_text(&folded_case(value));
            if !held.is_empty() && taken.insert(held.as_ptr()) {
                take(held);
            }
            false
        });
        if are_too_many {
            self.rules.values().for_each(|held| take(held));
        }
    }

    /// Separate, so that the most frequent lookup is inlined.
    #[inline(never)]
    fn held_beside_headers(&self, request: &RequestView<'_>) -> Option<&Vec<usize>> {
        match &self.key {
            // The latter are stored elsewhere, or checked by the caller.
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
    fn held_by_caller(&self, caller: Option<&ServiceAccount>) -> &[usize] {
        let rules = caller.map(|caller| match self.key {
            IndexedAttribute::Namespace => self.rules_for_text(caller.namespace.as_str()),
            _ => self.rules_for_text(caller.name.as_str()),
        });
        rules.unwrap_or_default()
    }
}

/// Returns the value in lower case; allocates only if it changes.
pub(crate) fn folded_text(value: &str) -> Cow<'_, str> {
    let is_lower = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    match value.bytes().all(is_lower) {
        true => Cow::Borrowed(value),
        false => Cow::Owned(value.to_lowercase()),
    }
}

/// Each one costs a lookup per request.
const COLUMNS_MAX: usize = 8;
/// Up to this number, rules are evaluated one by one.
const ASKED_MAX: usize = if cfg!(test) { 2 } else { 16 };

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn header_is(name: &str, text: &str) -> IndexCondition {
        let key = IndexedAttribute::Header {
            name: name.into(),
            repeated: RepeatedHeader::Joined,
            folded: false,
        };
        (key, vec![text.into()])
    }

    /// The first of the evaluated rules, given that all of them match, and the number of evaluated rules.
    fn look_up(lookup: &RuleIndex, path: &str, fields: &[(&str, &str)]) -> (Option<usize>, usize) {
        let fields: Vec<(String, String)> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = RequestView {
            method: "GET",
            path,
            query: Some("page=7&user=u%2d7"),
            authority: "shop",
            fields: &fields,
        };
        let count = Cell::new(0);
        let found = lookup.first_fitting(&request, |_| {
            count.set(count.get() + 1);
            true
        });
        (found, count.get())
    }

    #[test]
    fn ten_thousand_rules_are_asked_no_more_than_ten() {
        for rules in [10, 10_000] {
            let texts = |n: usize| format!("u-{n}");
            for kind in 0..4 {
                let demand = |n: usize| match kind {
                    // All of them share another condition.
                    0 => vec![header_is("x-all", "1"), header_is("x-user", &texts(n))],
                    1 => vec![(IndexedAttribute::Query("user".into()), vec![texts(n).into()])],
                    2 => vec![(IndexedAttribute::Path, vec![format!("/{}", texts(n)).into()])],
                    _ => {
                        vec![(IndexedAttribute::PathPrefix, vec![format!("/{}", texts(n)).into()])]
                    }
                };
                let lookup = RuleIndex::from_rules(&(0..rules).map(demand).collect::<Vec<_>>());
                let fields = [("x-all", "1"), ("x-user", "u-7")];
                assert_eq!(look_up(&lookup, "/u-7", &fields), (Some(7), 1), "{kind}");
                // A request without a match evaluates no rule.
                let strange = [("x-all", "1"), ("x-user", "u-")];
                if kind != 1 {
                    assert_eq!(look_up(&lookup, "/u-", &strange), (None, 0), "{kind}");
                }
            }
        }
    }

    #[test]
    fn what_demands_nothing_is_asked_in_its_turn() {
        let lookup = RuleIndex::from_rules(&[vec![], vec![header_is("x", "1")], vec![]]);
        assert_eq!(look_up(&lookup, "/", &[("x", "1")]).0, Some(0));
        let lookup = RuleIndex::from_rules(&[vec![header_is("x", "1")], vec![]]);
        assert_eq!(look_up(&lookup, "/", &[("x", "1")]), (Some(0), 1));
        assert_eq!(look_up(&lookup, "/", &[("x", "2")]), (Some(1), 1));
    }
}
