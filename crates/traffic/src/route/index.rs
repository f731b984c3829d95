//! The index of a port's matches: by an exact path, a prefix, and what else they demand exactly.

use std::ops::Range;

use leno_model::{PathMatch, RequestMatch};
use rustc_hash::FxHashMap;

use super::{CompiledMatch, PathRank, rank};
use crate::lookup::{Demand, Lookup};
use crate::matcher::prefix_elements;
use crate::request::RequestView;

/// All matches of a port in the order in which they decide, but that those by one exact path, and
/// those by one prefix, stand together: no request fits two exact paths, and of two prefixes the
/// longer decides.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    matches: Box<[CompiledMatch]>,
    exact: FxHashMap<Box<str>, Span>,
    prefixes: FxHashMap<Box<[u8]>, Span>,
    /// Which lengths prefixes have, the greatest first.
    lengths: Box<[usize]>,
    /// Those by a regular expression, and then those by any path.
    rest: Span,
}

/// Neighbours among the matches.
#[derive(Debug, Clone, Default)]
struct Span {
    places: Range<usize>,
    /// Where they are many: by what else they demand.
    lookup: Option<Box<Lookup>>,
}

impl Index {
    /// Builds the index of matches, which stand in the order of routes, rules and matches.
    pub(super) fn build(matches: Vec<(&RequestMatch, CompiledMatch)>) -> Self {
        let mut ranked: Vec<_> =
            matches.into_iter().map(|(request, it)| (place(request), rank(request), it)).collect();
        // A stable sort: equals stay in the order they had.
        ranked.sort_by(|(a_place, a_rank, _), (b_place, b_rank, _)| {
            let by_path = b_rank.path.cmp(&a_rank.path);
            by_path.then(a_place.cmp(b_place)).then(b_rank.cmp(a_rank))
        });
        let mut index = Self::default();
        for (at, (place, rank, _)) in ranked.iter().enumerate() {
            let span = match rank.path {
                PathRank::Exact => {
                    index.exact.entry((*place).into()).or_insert_with(|| Span::at(at))
                }
                PathRank::Prefix(_) => {
                    let elements = index.prefixes.entry(place.as_bytes().into());
                    elements.or_insert_with(|| Span::at(at))
                }
                PathRank::Regex | PathRank::Any => break,
            };
            span.places.end = at + 1;
            index.rest.places.start = at + 1;
        }
        index.rest.places.end = ranked.len();
        let mut lengths: Vec<usize> = index.prefixes.keys().map(|prefix| prefix.len()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        index.lengths = lengths.into();
        index.matches = ranked.into_iter().map(|(_, _, compiled)| compiled).collect();
        let spans = index.exact.values_mut().chain(index.prefixes.values_mut());
        for span in spans.chain([&mut index.rest]) {
            span.look_up(&index.matches);
        }
        index
    }

    /// The first match that the request fits.
    #[inline]
    pub(super) fn find(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if let Some(found) = self.by_exact_path(request).or_else(|| self.by_prefix(request)) {
            return Some(found);
        }
        self.rest.first(&self.matches, request, |it| it.matcher.matches(request))
    }

    fn by_exact_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if self.exact.is_empty() {
            return None;
        }
        self.among(self.exact.get(request.path)?, request)
    }

    /// Tries the beginnings of the path that end with an element, the longest first.
    fn by_prefix(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        let path = request.path.as_bytes();
        for length in &self.lengths {
            let Some((beginning, rest)) = path.split_at_checked(*length) else { continue };
            if !matches!(rest, [] | [b'/', ..]) {
                continue;
            }
            let span = self.prefixes.get(beginning);
            if let Some(found) = span.and_then(|span| self.among(span, request)) {
                return Some(found);
            }
        }
        None
    }

    fn among(&self, span: &Span, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        span.first(&self.matches, request, |it| it.matcher.matches_beside_path(request))
    }
}

impl Span {
    fn at(at: usize) -> Self {
        Self { places: at..at, lookup: None }
    }

    fn look_up(&mut self, matches: &[CompiledMatch]) {
        let Some(own) = matches.get(self.places.clone()) else { return };
        let demands =
            || -> Vec<Vec<Demand>> { own.iter().map(|it| it.matcher.demands()).collect() };
        self.lookup = Lookup::of_many(own.len(), demands);
    }

    /// The first of them that fits.
    #[inline]
    fn first<'a>(
        &self,
        matches: &'a [CompiledMatch],
        request: &RequestView<'_>,
        fits: impl Fn(&CompiledMatch) -> bool,
    ) -> Option<&'a CompiledMatch> {
        let own = matches.get(self.places.clone())?;
        let Some(lookup) = &self.lookup else {
            return own.iter().find(|compiled| fits(compiled));
        };
        own.get(lookup.first(request, |at| own.get(at).is_some_and(&fits))?)
    }
}

/// What stands together: the exact path, or the elements of the prefix.
fn place(request: &RequestMatch) -> &str {
    match &request.path {
        PathMatch::Exact(path) => path,
        PathMatch::Prefix(prefix) => prefix_elements(prefix),
        PathMatch::Any | PathMatch::Regex(_) => "",
    }
}
