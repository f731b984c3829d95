//! The index is equivalent to sequential evaluation, for all kinds of match conditions.

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
pub(crate) struct Made {
    method: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    authority: &'static str,
    fields: Vec<(String, String)>,
}

impl Made {
    pub(crate) fn request_view(&self) -> RequestView<'_> {
        let Self { method, path, query, authority, fields } = self;
        RequestView { method, path, query: *query, authority, fields }
    }

    pub(crate) fn path_variants(&self) -> PathVariants {
        PathVariants::from_path(self.path, PathKind::from_path(self.path))
    }
}

/// A small number of paths, methods and values, so that several matches often apply, each in several encodings.
pub(crate) fn any_request() -> impl Strategy<Value = Made> {
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
            let field = |(at, user): (usize, &str)| (names[at].to_owned(), user.to_owned());
            let fields = users.into_iter().enumerate().map(field).collect();
            Made { method, path, query, authority, fields }
        },
    )
}

/// A match of any kind, with the same small set of values.
pub(crate) fn any_match() -> impl Strategy<Value = RequestMatch> {
    let path = prop_oneof![
        Just(PathMatch::Any),
        select(vec!["/a", "/a/b", "/b", "/", "/a/b.json", "/A;v=1", "/a.b"])
            .prop_map(|it| PathMatch::Exact(it.into())),
        select(vec!["/a", "/a/b/", "/", "/a;v=1", "/a%2fb"])
            .prop_map(|it| PathMatch::Prefix(it.into())),
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
        .prop_map(|it| PathMatch::Regex(it.into())),
    ];
    let value = prop_oneof![
        select(vec!["ann", "Bob", "ann, bob", "\"ann\""])
            .prop_map(|it| ValueMatch::Exact(it.into())),
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
    let matcher = |it| compile(it).unwrap();
    rules.iter().map(|rule| rule.iter().map(matcher).collect()).collect()
}

/// The lookup finds the same as sequential evaluation, among all rules and among a part.
fn check_lookup<M: IndexedMatch>(
    rules: &[Vec<M>],
    part: &[usize],
    sought: LookupKeys<'_>,
    fits: impl Fn(&M) -> bool,
) -> Result<(), TestCaseError> {
    let Some(many) = MatchIndex::from_matches(rules.iter().enumerate().map(|(at, it)| (at, &**it)))
    else {
        return Ok(());
    };
    let fit = |rule: &usize| rules[*rule].is_empty() || rules[*rule].iter().any(&fits);
    let at = |rule: usize, place: usize| rules[rule].get(place).is_none_or(&fits);

    prop_assert_eq!(many.first_fitting(sought, at), (0..rules.len()).find(fit));

    let asked: Vec<usize> = many.candidates(sought).collect();
    prop_assert!(asked.is_sorted_by(|a, b| a < b), "{asked:?}");
    let found: Vec<usize> = asked.into_iter().filter(fit).collect();
    prop_assert_eq!(found, (0..rules.len()).filter(fit).collect::<Vec<_>>());

    let places = RuleSubset::from_rules(Some(&many), part.into());
    let mut listed: Vec<usize> = places.matching_rules(Some(&many)).collect();
    listed.dedup();
    prop_assert_eq!(&listed, part);
    prop_assert!(part.len() < rules.len() || matches!(places, RuleSubset::Many(None)));
    if let RuleSubset::Many(places) = places {
        let found = many.first_of(places.as_deref(), sought, at);
        prop_assert_eq!(found, part.iter().copied().find(fit));
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_looked_up_is_what_asking_in_order_finds(
        rules in prop::collection::vec(
            (prop::collection::vec(any_match(), 0..3), any::<bool>()),
            0..16,
        ),
        are_all_chosen in any::<bool>(),
        request in any_request(),
    ) {
        let (rules, chosen): (Vec<_>, Vec<bool>) = rules.into_iter().unzip();
        let part = (0..rules.len()).filter(|rule| are_all_chosen || chosen[*rule]);
        let part: Vec<usize> = part.collect();
        let (request, variant) = (request.request_view(), request.path_variants());
        let allowing = compile_all(&rules, RequestMatcher::compile);
        check_lookup(&allowing, &part, LookupKeys::as_sent(&request), |it| it.matches(&request))?;
        let denying = compile_all(&rules, DenialMatcher::compile);
        let sought = LookupKeys::as_meant(&request, &variant);
        check_lookup(&denying, &part, sought, |it| it.may_mean(&request, &variant))?;
    }
}
