//! Looking a rule up among many: by what it demands exactly, instead of asking one after another.

use std::borrow::Cow;

use leno_model::Repeated;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::query::{decoded_text, parameter};
use crate::request::{RequestView, header};

/// Which rules could be the first to fit, by their place in order.
#[derive(Debug, Clone)]
pub(crate) struct Lookup {
    columns: Box<[Column]>,
    /// Those that no column holds, in order.
    rest: Box<[usize]>,
}

/// One thing of a request that rules compare with texts.
#[derive(Debug, Clone)]
struct Column {
    key: Key,
    /// By text, in order. Texts are an operator's: no request can make them meet in one place.
    rules: FxHashMap<Box<str>, Vec<usize>>,
}

/// What of a request is compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Header {
        name: Box<str>,
        repeated: Repeated,
        folded: bool,
    },
    Path,
    /// What is between the first and the second slash of the path.
    FirstElement,
    /// The first value of a query parameter, decoded.
    Query(Box<str>),
    Method,
}

/// Something that a rule demands of every request that fits it: one of these texts.
pub(crate) type Demand = (Key, Vec<Box<str>>);

impl Lookup {
    /// Of rules in order, with all that each of them demands. Each is held by that of its demands in
    /// which the rules differ most.
    pub(crate) fn of(rules: &[Vec<Demand>]) -> Self {
        let chosen = chosen(rules);
        let empty = |key: &&Key| Column { key: (*key).clone(), rules: FxHashMap::default() };
        let mut columns: Vec<Column> = chosen.iter().map(empty).collect();
        let mut rest = Vec::new();
        for (index, demands) in rules.iter().enumerate() {
            let held_by = |key: &Key| demands.iter().find(|(demanded, _)| demanded == key);
            let mut held = columns.iter_mut().zip(&chosen);
            let held = held.find_map(|(column, key)| Some((column, held_by(key)?)));
            let Some((column, (_, texts))) = held else {
                rest.push(index);
                continue;
            };
            for text in texts {
                let held = column.rules.entry(text.clone()).or_default();
                // A text that is demanded twice is one.
                if held.last() != Some(&index) {
                    held.push(index);
                }
            }
        }
        Self { columns: columns.into(), rest: rest.into() }
    }

    /// The same, where they are so many that it is worth it: a few are sooner asked one after the other.
    pub(crate) fn of_many(
        rules: usize,
        demands: impl FnOnce() -> Vec<Vec<Demand>>,
    ) -> Option<Box<Self>> {
        are_many(rules).then(|| Box::new(Self::of(&demands())))
    }

    /// The first rule in order that `fits`.
    pub(crate) fn first(
        &self,
        request: &RequestView<'_>,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        self.search(request, |best, places| first_before(best, places, &fits))
    }

    /// The same among some of the rules only: `part`, in order.
    pub(crate) fn first_of(
        &self,
        part: &[usize],
        request: &RequestView<'_>,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        self.search(request, |best, places| {
            // The shorter one is gone through and the longer one searched: many rules may demand the same
            // of others' requests, and a part may be most of them.
            let (few, many) =
                if places.len() < part.len() { (places, part) } else { (part, places) };
            let open = few.iter().copied().take_while(|place| *place < best);
            let mut both = open.filter(|place| many.binary_search(place).is_ok());
            both.find(|place| fits(*place)).unwrap_or(best)
        })
    }

    /// The first rule that `first_before` finds, asked for that before the best so far in each list that
    /// fits the request.
    #[inline]
    fn search(
        &self,
        request: &RequestView<'_>,
        first_before: impl Fn(usize, &[usize]) -> usize,
    ) -> Option<usize> {
        let mut best = usize::MAX;
        for column in &self.columns {
            best = first_before(best, column.held(request));
        }
        best = first_before(best, &self.rest);
        (best != usize::MAX).then_some(best)
    }
}

/// The first of these places, which are in order, that comes before the best so far and `fits`; or else
/// that one, which is `usize::MAX` while there is none.
#[inline]
pub(crate) fn first_before(best: usize, places: &[usize], fits: impl Fn(usize) -> bool) -> usize {
    let mut open = places.iter().copied().take_while(|place| *place < best);
    open.find(|place| fits(*place)).unwrap_or(best)
}

/// Whether so many are sooner looked up than asked one after the other.
pub(crate) fn are_many(rules: usize) -> bool {
    rules > ASKED_MAX
}

/// The keys in which the rules differ most, the most first; of equals the one that comes first.
fn chosen(rules: &[Vec<Demand>]) -> Vec<&Key> {
    let mut found: FxHashMap<&Key, (usize, FxHashSet<&str>)> = FxHashMap::default();
    for (key, texts) in rules.iter().flatten() {
        let count = found.len();
        let (_, known) = found.entry(key).or_insert_with(|| (count, FxHashSet::default()));
        known.extend(texts.iter().map(|text| &**text));
    }
    let mut keys: Vec<(usize, usize, &Key)> =
        found.into_iter().map(|(key, (first, texts))| (texts.len(), first, key)).collect();
    keys.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    keys.into_iter().map(|(_, _, key)| key).take(COLUMNS_MAX).collect()
}

impl Column {
    /// The rules that compare with what the request has.
    #[inline]
    fn held(&self, request: &RequestView<'_>) -> &[usize] {
        let rules = match &self.key {
            Key::Header { name, repeated, folded } => {
                header(request, name, *repeated).and_then(|value| match folded {
                    true => self.rules.get(&*folded_text(&value)),
                    false => self.rules.get(&*value),
                })
            }
            _ => self.held_beside_headers(request),
        };
        rules.map_or(&[], Vec::as_slice)
    }

    /// Apart, so that what is looked up most costs no call.
    #[inline(never)]
    fn held_beside_headers(&self, request: &RequestView<'_>) -> Option<&Vec<usize>> {
        match &self.key {
            Key::Header { .. } => None,
            Key::Path => self.rules.get(request.path),
            Key::FirstElement => self.rules.get(first_element(request.path)?),
            Key::Method => self.rules.get(request.method),
            Key::Query(name) => {
                let value = parameter(request.query?, name)?;
                self.rules.get(&*decoded_text(value)?)
            }
        }
    }
}

/// What is between the first slash, with which it begins, and the second or the end.
fn first_element(path: &str) -> Option<&str> {
    path.strip_prefix('/')?.split('/').next()
}

/// The first element of all paths that begin so, if the beginning has all of it.
pub(crate) fn whole_first_element(beginning: &str) -> Option<&str> {
    beginning.strip_prefix('/')?.split_once('/').map(|(element, _)| element)
}

/// The value in lower case; nothing is allocated when it is already.
pub(crate) fn folded_text(value: &str) -> Cow<'_, str> {
    let is_lower = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    match value.bytes().all(is_lower) {
        true => Cow::Borrowed(value),
        false => Cow::Owned(value.to_lowercase()),
    }
}

/// Each costs a look at the request.
const COLUMNS_MAX: usize = 8;
/// So many are asked one after the other.
const ASKED_MAX: usize = if cfg!(test) { 2 } else { 16 };

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn header_is(name: &str, text: &str) -> Demand {
        let key = Key::Header { name: name.into(), repeated: Repeated::Joined, folded: false };
        (key, vec![text.into()])
    }

    /// The rule that decides, when all that are asked fit, and how many were asked.
    fn asked(lookup: &Lookup, path: &str, fields: &[(&str, &str)]) -> (Option<usize>, usize) {
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
        let found = lookup.first(&request, |_| {
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
                    // All of them demand the same of something else as well.
                    0 => vec![header_is("x-all", "1"), header_is("x-user", &texts(n))],
                    1 => vec![(Key::Query("user".into()), vec![texts(n).into()])],
                    2 => vec![(Key::Path, vec![format!("/{}", texts(n)).into()])],
                    _ => vec![(Key::FirstElement, vec![texts(n).into()])],
                };
                let lookup = Lookup::of(&(0..rules).map(demand).collect::<Vec<_>>());
                let fields = [("x-all", "1"), ("x-user", "u-7")];
                assert_eq!(asked(&lookup, "/u-7", &fields), (Some(7), 1), "{kind}");
                // Who fits none asks none.
                let strange = [("x-all", "1"), ("x-user", "u-")];
                if kind != 1 {
                    assert_eq!(asked(&lookup, "/u-", &strange), (None, 0), "{kind}");
                }
            }
        }
    }

    #[test]
    fn what_demands_nothing_is_asked_in_its_turn() {
        let lookup = Lookup::of(&[vec![], vec![header_is("x", "1")], vec![]]);
        assert_eq!(asked(&lookup, "/", &[("x", "1")]).0, Some(0));
        let lookup = Lookup::of(&[vec![header_is("x", "1")], vec![]]);
        assert_eq!(asked(&lookup, "/", &[("x", "1")]), (Some(0), 1));
        assert_eq!(asked(&lookup, "/", &[("x", "2")]), (Some(1), 1));
    }
}
