//! Necessary conditions of tag rules and lanes, for their index.

use leno_model::Quorum;

use super::matcher::TagMatcher;
use crate::rule_index::{IndexCondition, IndexedAttribute};

/// Returns the exact conditions that every matching request meets.
pub(super) fn exact_demands(matcher: &TagMatcher) -> Vec<IndexCondition> {
    let demands_all = matcher.quorum == Quorum::All || matcher.headers.len() == 1;
    let headers = matcher.headers.iter().filter(|_| demands_all).filter_map(|test| {
        let (texts, folded) = test.test.exact_values()?;
        let key = IndexedAttribute::Header {
            name: test.name.clone(),
            repeated: matcher.repeated,
            folded,
        };
        Some((key, texts.into_iter().map(Into::into).collect()))
    });
    headers.chain(matcher.path.demand()).collect()
}
