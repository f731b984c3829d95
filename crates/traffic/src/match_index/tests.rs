//! Property tests: the index is equivalent to sequential evaluation, for all kinds of match conditions.

use leno_model::{FieldMatch, PathMatch, RequestMatch, ValueMatch};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::matcher::{DenialMatcher, RequestMatcher};
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::variant::{PathKind, PathVariants};

/// A generated request.
#[derive(Debug, Clone)]
pub(crate) struct GeneratedRequest {
    method: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    authority: &'static str,
    fields: Vec<(String, String)>,
}

impl GeneratedRequest {
    pub(crate) fn request_view(&self) -> RequestView<'_> {
        let Self { method, path, query, authority, fields } = self;
        RequestView { method, path, query: *query, authority, fields }
    }

    pub(crate) fn path_variants(&self) -> PathVariants {
        PathVariants::from_path(self.path, PathKind::from_path(self.path))
    }
}

/// Generates requests from a small number of paths, methods and values, each in several encodings, so that several
/// matches often apply.
pub(crate) fn any_request() -> impl Strategy<Value = GeneratedRequest> {
    let paths = vec![
        "/a",
        "/a/b",
        "/a/b/c",
        "/b",
        "/",
        "/ab",
        "/%61",
        "/a/%62",
        "//a",
        "//b/a",
        "/a;v=1/b",
        r"\a\b",
        "/b/../a",
        "/a/%2e%2e/b",
        "/a/",
        "/a%2fb",
        "/a%ff",
        "/a%3bv/b",
        "/A/B",
        "/a/b.json",
        "/a/b.c/b",
        "/a.b/b",
        "/a.",
        "/a/%2562",
        "/a;v=1",
        "/b;x/a",
        "/.b",
        "/a%00/b",
        "/a%2",
        "*",
    ];
    let users = vec![
        "ann",
        "bob",
        "ann, bob",
        "bob,ann",
        "ANN",
        " ann",
        "\"bob\"",
        "x;ann",
        "a=1; \"%61nn",
    ];
    let queries = vec![
        None,
        Some("user=ann"),
        Some("user=%61nn&user=bob"),
        Some("user"),
        Some("User[]=x&user[0]=Bob"),
        Some("x=1;user=ann,x"),
        Some("user[x]=%2562ob"),
        Some("%5Buser%5d=bob&]user=ann"),
        Some("_method=put"),
    ];
    let users = prop::collection::vec(select([users, vec!["PUT"]].concat()), 0..4);
    let authority = select(vec!["shop", "SHOP:80", "shop.", "else"]);
    (select(vec!["GET", "get", "PUT"]), select(paths), select(queries), authority, users).prop_map(
        |(method, path, query, authority, users)| {
            let names = ["x-user", "X_User", "x-http-method-override"];
            let field = |(index, user): (usize, &str)| (names[index].to_owned(), user.to_owned());
            let fields = users.into_iter().enumerate().map(field).collect();
            GeneratedRequest { method, path, query, authority, fields }
        },
    )
}

/// Generates matches of any kind from the same small set of values.
pub(crate) fn any_match() -> impl Strategy<Value = RequestMatch> {
    let path = prop_oneof![
        Just(PathMatch::Any),
        select(vec!["/a", "/a/b", "/b", "/", "/a/b.json", "/A;v=1", "/a.b"])
            .prop_map(|text| PathMatch::Exact(text.into())),
        select(vec!["/a", "/a/b/", "/", "/a;v=1", "/a%2fb"])
            .prop_map(|text| PathMatch::Prefix(text.into())),
        select(vec![
            "/a/.*",
            "/a/b",
            "/[ab]",
            "/a/b.?",
            "/a.*",
            ".*",
            "(?i)/a/B",
            "/a/b|/b",
            "(/a)?/b",
            "/a/b/?",
            "/a/(b/)?",
            "/[^A]",
            "/[[:^upper:]]+",
            "/a;v.*",
            "/a%2.*",
            r"/a/b\.(json|c)",
            "(?i)/A/.+",
            "/[a-b]+/B/",
        ])
        .prop_map(|text| PathMatch::Regex(text.into())),
    ];
    let value = prop_oneof![
        select(vec!["ann", "Bob", "ann, bob", "\"ann\""])
            .prop_map(|text| ValueMatch::Exact(text.into())),
        Just(ValueMatch::Regex("b.*".to_owned())),
    ];
    let user = |name: &'static str| move |value| FieldMatch { name: name.to_owned(), value };
    let host = FieldMatch { name: "host".to_owned(), value: ValueMatch::Exact("shop".to_owned()) };
    let header = prop_oneof![2 => value.clone().prop_map(user("X-User")), 1 => Just(host)];
    let methods = prop::collection::vec(select(vec!["GET", "PUT"]), 0..2);
    let headers = prop::collection::vec(header, 0..2);
    let query = prop::collection::vec(value.prop_map(user("user")), 0..2);
    (path, methods, headers, query).prop_map(|(path, methods, headers, query)| RequestMatch {
        path,
        methods: methods.into_iter().map(str::to_owned).collect(),
        headers,
        query,
    })
}

fn compile_all<M>(
    rules: &[Vec<RequestMatch>],
    compile: fn(&RequestMatch) -> Result<M, InvalidPattern>,
) -> Vec<Vec<M>> {
    let matcher = |request| compile(request).unwrap();
    rules.iter().map(|rule| rule.iter().map(matcher).collect()).collect()
}

/// Checks that the index agrees with sequential evaluation, among all rules and among the selected rules.
fn check_lookup<M: IndexedMatch>(
    rules: &[Vec<M>],
    selected_rules: &[usize],
    keys: LookupKeys<'_>,
    is_match: impl Fn(&M) -> bool,
) -> Result<(), TestCaseError> {
    let Some(index) = MatchIndex::from_matches(
        rules.iter().enumerate().map(|(rule, matches)| (rule, &**matches)),
    ) else {
        return Ok(());
    };
    let rule_matches = |rule: &usize| rules[*rule].is_empty() || rules[*rule].iter().any(&is_match);
    let match_at =
        |rule: usize, match_position: usize| rules[rule].get(match_position).is_none_or(&is_match);

    prop_assert_eq!(index.first_match(keys, match_at), (0..rules.len()).find(rule_matches));

    let candidates: Vec<usize> = index.candidates(keys).collect();
    prop_assert!(candidates.is_sorted_by(|a, b| a < b), "{candidates:?}");
    let matching: Vec<usize> = candidates.into_iter().filter(rule_matches).collect();
    prop_assert_eq!(matching, (0..rules.len()).filter(rule_matches).collect::<Vec<_>>());

    let subset = RuleSubset::from_rules(Some(&index), selected_rules.into());
    let mut rules_of_subset: Vec<usize> = subset.rule_positions(Some(&index)).collect();
    rules_of_subset.dedup();
    prop_assert_eq!(&rules_of_subset, selected_rules);
    prop_assert!(selected_rules.len() < rules.len() || matches!(subset, RuleSubset::Many(None)));
    if let RuleSubset::Many(subset) = subset {
        let matching = index.first_match_among(subset.as_deref(), keys, match_at);
        prop_assert_eq!(matching, selected_rules.iter().copied().find(rule_matches));
    }
    Ok(())
}

proptest! {
    #[test]
    fn indexed_lookup_agrees_with_sequential_evaluation(
        rules in prop::collection::vec(
            (prop::collection::vec(any_match(), 0..3), any::<bool>()),
            0..16,
        ),
        selects_all in any::<bool>(),
        request in any_request(),
    ) {
        let (rules, is_selected): (Vec<_>, Vec<bool>) = rules.into_iter().unzip();
        let selected_rules = (0..rules.len()).filter(|rule| selects_all || is_selected[*rule]);
        let selected_rules: Vec<usize> = selected_rules.collect();
        let (request, variants) = (request.request_view(), request.path_variants());
        let allow_matchers = compile_all(&rules, RequestMatcher::compile);
        check_lookup(&allow_matchers, &selected_rules, LookupKeys::as_sent(&request), |matcher| matcher.matches(&request))?;
        let deny_matchers = compile_all(&rules, DenialMatcher::compile);
        let keys = LookupKeys::as_interpreted(&request, &variants);
        check_lookup(&deny_matchers, &selected_rules, keys, |matcher| matcher.may_match(&request, &variants))?;
    }
}
