//! Finds the route matches that did not decide a request, each with the reason, for `leno explain request`.

use leno_model::{RequestMatch, RouteKind, RouteName, RouteRule};
use leno_traffic::{
    Mismatch, Precedence, RequestMatcher, RequestView, precedence, takes_precedence,
};

/// A match of a route rule that did not decide the request.
#[derive(Debug)]
pub(super) struct UnusedMatch {
    pub(super) kind: RouteKind,
    pub(super) route: RouteName,
    /// The index of the match's rule in its own route, from 0.
    pub(super) rule_index: usize,
    /// The index of the match in the rule, from 0.
    pub(super) match_index: usize,
    pub(super) request_match: RequestMatch,
    pub(super) reason: UnusedReason,
}

/// The reason why a match did not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnusedReason {
    /// The request does not match.
    Mismatch(Mismatch),
    /// The request matches, but the decisive match has precedence.
    Outranked(Precedence),
}

impl UnusedReason {
    /// Returns a short description for people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Mismatch(Mismatch::Path) => "the path does not match".to_owned(),
            Self::Mismatch(Mismatch::Method) => "the method does not match".to_owned(),
            Self::Mismatch(Mismatch::Header(name)) => format!("the header {name} does not match"),
            Self::Mismatch(Mismatch::Query(name)) => {
                format!("the query parameter {name} does not match")
            }
            Self::Outranked(Precedence::Path) => {
                "matches, but its path is less specific".to_owned()
            }
            Self::Outranked(Precedence::Method) => "matches, but names no method".to_owned(),
            Self::Outranked(Precedence::Headers) => "matches, but names fewer headers".to_owned(),
            Self::Outranked(Precedence::Query) => {
                "matches, but names fewer query parameters".to_owned()
            }
            Self::Outranked(Precedence::Order) => "matches as well, but comes later".to_owned(),
        }
    }
}

/// Returns the matches of a port's rules that did not decide. `decisive_position` has the indices of the
/// decisive rule in `rules` and of its match; `None` if no rule decided.
pub(super) fn find_unused_matches(
    rules: &[RouteRule],
    decisive_position: Option<(usize, usize)>,
    view: &RequestView<'_>,
) -> Vec<UnusedMatch> {
    let decisive_match =
        decisive_position.and_then(|(rule, index)| rules.get(rule)?.matches.get(index));
    let mut unused_matches = Vec::new();
    for (rule_position, rule) in rules.iter().enumerate() {
        let rule_index = index_in_route(rules, rule_position);
        for (match_index, request_match) in rule.matches.iter().enumerate() {
            if decisive_position == Some((rule_position, match_index)) {
                continue;
            }
            let Ok(matcher) = RequestMatcher::compile(request_match) else { continue };
            let reason = match (matcher.first_mismatch(view), decisive_match) {
                (Some(mismatch), _) => UnusedReason::Mismatch(mismatch),
                (None, Some(decisive_match)) => {
                    UnusedReason::Outranked(precedence(decisive_match, request_match))
                }
                (None, None) => continue,
            };
            let (kind, route) = (rule.kind, rule.route.clone());
            unused_matches.push(UnusedMatch {
                kind,
                route,
                rule_index,
                match_index,
                request_match: request_match.clone(),
                reason,
            });
        }
    }
    // Matches that the request fulfills come first.
    unused_matches.sort_by_key(|unused| matches!(unused.reason, UnusedReason::Mismatch(_)));
    unused_matches
}

/// Returns the index of a rule in its own route, from 0.
pub(super) fn index_in_route(rules: &[RouteRule], position: usize) -> usize {
    let route = rules.get(position).map(|rule| &rule.route);
    rules.iter().take(position).filter(|rule| Some(&rule.route) == route).count()
}

/// Returns the index of the match with the highest precedence among the matches that the request fulfills; 0 if
/// it fulfills none.
pub(super) fn find_preferred_match(matches: &[RequestMatch], view: &RequestView<'_>) -> usize {
    let is_fulfilled = |request_match: &RequestMatch| {
        RequestMatcher::compile(request_match).is_ok_and(|matcher| matcher.matches(view))
    };
    let mut fulfilled_matches =
        matches.iter().enumerate().filter(|(_, request_match)| is_fulfilled(request_match));
    let first_index = fulfilled_matches.next().map_or(0, |(index, _)| index);
    fulfilled_matches.fold(first_index, |best_index, (index, request_match)| {
        match matches.get(best_index).is_some_and(|best| takes_precedence(request_match, best)) {
            true => index,
            false => best_index,
        }
    })
}
