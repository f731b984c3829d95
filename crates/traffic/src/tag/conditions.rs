//! Computes the necessary conditions of tag rules and lanes, by which an index finds them.

use leno_model::Quorum;

use super::matcher::TagMatcher;
use crate::rule_index::{IndexCondition, IndexedAttribute};

/// Returns the exact conditions that every matching request meets. Headers contribute only if all of them must match.
pub(super) fn exact_conditions(matcher: &TagMatcher) -> Vec<IndexCondition> {
    let needs_all = matcher.quorum == Quorum::All || matcher.headers.len() == 1;
    let headers = matcher.headers.iter().filter(|_| needs_all).filter_map(|header| {
        let (texts, ignores_case) = header.matcher.exact_values()?;
        let attribute = IndexedAttribute::Header {
            name: header.name.clone(),
            repeated: matcher.repeated,
            ignores_case,
        };
        Some((attribute, texts.into_iter().map(Into::into).collect()))
    });
    headers.chain(matcher.path.index_condition()).collect()
}
