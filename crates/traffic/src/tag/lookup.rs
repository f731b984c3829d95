//! Looking a rule up among many: by what it demands exactly, instead of asking one after another.

use leno_model::{PathMatch, Quorum, Repeated, TagMatch};
use rustc_hash::FxHashMap;

use super::matcher::{TagMatcher, header};
use super::value::folded_text;
use crate::request::RequestView;

/// Which rules could be the first to fit, by their place in order.
#[derive(Debug, Clone)]
pub(super) struct Lookup {
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

#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Header { name: Box<str>, repeated: Repeated, folded: bool },
    Path,
}

impl Lookup {
    pub(super) fn of<'a>(rules: impl Iterator<Item = (&'a TagMatch, &'a TagMatcher)>) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        let mut rest = Vec::new();
        for (index, (matches, matcher)) in rules.enumerate() {
            let Some((key, texts)) = key_of(matches, matcher) else {
                rest.push(index);
                continue;
            };
            let column = match columns.iter().position(|column| column.key == key) {
                Some(found) => found,
                None if columns.len() < COLUMNS_MAX => {
                    columns.push(Column { key, rules: FxHashMap::default() });
                    columns.len() - 1
                }
                None => {
                    rest.push(index);
                    continue;
                }
            };
            for text in texts {
                if let Some(column) = columns.get_mut(column) {
                    column.rules.entry(text).or_default().push(index);
                }
            }
        }
        Self { columns: columns.into(), rest: rest.into() }
    }

    /// The first rule in order that `fits`.
    pub(super) fn first(
        &self,
        request: &RequestView<'_>,
        fits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut best: Option<usize> = None;
        let before = |best: Option<usize>, index: usize| best.is_none_or(|best| index < best);
        for column in &self.columns {
            let held = column.held(request);
            let mut open = held.iter().copied().take_while(|index| before(best, *index));
            if let Some(found) = open.find(|index| fits(*index)) {
                best = Some(found);
            }
        }
        let mut open = self.rest.iter().copied().take_while(|index| before(best, *index));
        open.find(|index| fits(*index)).or(best)
    }
}

impl Column {
    /// The rules that compare with what the request has.
    fn held(&self, request: &RequestView<'_>) -> &[usize] {
        let rules = match &self.key {
            Key::Path => self.rules.get(request.path),
            Key::Header { name, repeated, folded } => {
                header(request, name, *repeated).and_then(|value| match folded {
                    true => self.rules.get(&*folded_text(&value)),
                    false => self.rules.get(&*value),
                })
            }
        };
        rules.map_or(&[], Vec::as_slice)
    }
}

/// What a rule demands of every request, as texts.
fn key_of(matches: &TagMatch, matcher: &TagMatcher) -> Option<(Key, Vec<Box<str>>)> {
    let demands_all = matcher.quorum == Quorum::All || matcher.headers.len() == 1;
    if demands_all {
        let exact = matcher.headers.iter().find_map(|test| Some((test, test.test.exact()?)));
        if let Some((test, (texts, folded))) = exact {
            let name = test.name.clone();
            let key = Key::Header { name, repeated: matcher.repeated, folded };
            let mut texts: Vec<Box<str>> = texts.into_iter().map(Into::into).collect();
            texts.sort();
            texts.dedup();
            return Some((key, texts));
        }
    }
    match &matches.path {
        PathMatch::Exact(path) => Some((Key::Path, vec![path.as_str().into()])),
        PathMatch::Any | PathMatch::Prefix(_) | PathMatch::Regex(_) => None,
    }
}

/// Each costs a look at the request.
const COLUMNS_MAX: usize = 8;
