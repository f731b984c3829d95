//! Tokens that requests show, and rules that ask what they say.

use std::time::Duration;

use expect_test::expect;
use leno_model::{Guard, JwtPlace, Object, PathMatch, Required, ServiceRule};
use leno_registry::read_str;

use crate::service_policies::{check_refusals_of, policy};

const KEYS: &str = "{inline: '{\"keys\": [{\"kty\": \"OKP\"}]}'}";

#[test]
fn reads_the_documented_example_with_all_its_parts() {
    let text = &crate::pages::examples("jwt-validation.md")[0];
    let (first, second) = text.split_once("---\n").unwrap();
    let policy = policy(first);
    assert_eq!(policy.name.to_string(), "JwtValidation bookinfo/ratings");
    let ServiceRule::Guard(Guard::Tokens(rule)) = policy.rule else { panic!("no tokens") };
    let Required::Of(requests) = &rule.required else { panic!("{:?}", rule.required) };
    assert_eq!(requests[0].path, PathMatch::Prefix("/ratings".to_owned()));
    let [issuer] = &rule.issuers[..] else { panic!("one issuer") };
    assert_eq!(issuer.issuer, "https://accounts.example.com");
    assert_eq!(issuer.audiences, ["ratings", "bookinfo"]);
    assert!(issuer.keys.contains("2026-11"));
    let (name, prefix) = ("authorization".to_owned(), "Bearer ".to_owned());
    let header = JwtPlace::Header { name, prefix };
    assert_eq!(issuer.places, [header, JwtPlace::Query("access_token".to_owned())]);
    assert_eq!((issuer.leeway, issuer.passes_token), (Duration::from_secs(30), false));
    let told: Vec<_> = issuer.forwards.iter().map(|it| (&*it.claim, &*it.header)).collect();
    assert_eq!(told, [("sub", "x-user"), ("realm.roles", "x-roles")]);

    let (objects, rejected) = read_str("f.yaml", second);
    assert!(rejected.is_empty(), "{rejected:?}");
    let [(Object::AccessPolicy(access), _)] = &objects[..] else { panic!("{objects:?}") };
    let claim = &access.rules[0].claims[0];
    assert_eq!((&*claim.name, claim.values.len()), ("groups", 2));
}

#[test]
fn refuses_tokens_that_nobody_could_show() {
    let issuer = |more: &str| {
        format!("{{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {KEYS}{more}}}]}}")
    };
    let specs = [
        "{targetRefs: [{name: a}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: []}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {url: b}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {inline: \"a\"}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {inline: '{\"keys\": [{\"kty\": \"oct\"}]}'}}]}"
            .to_owned(),
        issuer(", audiences: []"),
        issuer(", from: [{}]"),
        issuer(", from: [{header: a, query: b}]"),
        issuer(", from: [{query: a, prefix: b}]"),
        issuer(", leeway: 2h"),
        issuer(", forwardClaims: [{claim: a, header: content-length}]"),
        issuer(", forwardClaims: [{claim: a, header: x-a}, {claim: b, header: X-A}]"),
        issuer(", algorithms: [none]"),
        format!("{{targetRefs: [{{name: a}}], required: true, requiredFor: [{{method: GET}}], issuers: [{{issuer: a, jwks: {KEYS}}}]}}"),
        format!("{{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {KEYS}}}, {{issuer: a, jwks: {KEYS}}}]}}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_refusals_of(
        "leno.dev",
        "JwtValidation",
        &specs,
        &expect![[r#"
        spec.issuers: is missing; add `issuers`
        spec.issuers: names nobody whose tokens are accepted; add an issuer
        spec.issuers[0].jwks: is missing; add `jwks`
        spec.issuers[0].jwks.url: is not a field that is known here; remove it, or use `inline`
        spec.issuers[0].jwks.inline: is missing; add `inline`
        spec.issuers[0].jwks.inline: is not a JWK set, which is JSON with `keys`; copy what the issuer serves at its `jwks_uri`
        spec.issuers[0].jwks.inline: has no public key: only `kty` RSA, EC and OKP verify here; copy what the issuer serves at its `jwks_uri`
        spec.issuers[0].audiences: is empty, which reads as nothing and as everything; add an element, or leave it out for any
        spec.issuers[0].from[0]: says nothing; give one of `header`, `query`
        spec.issuers[0].from[0]: has `header` and `query` at once; keep one of them
        spec.issuers[0].from[0].prefix: is for headers; remove it
        spec.issuers[0].leeway: "2h" is out of range; use a time from 0ns to 3600s
        spec.issuers[0].forwardClaims[0].header: "content-length" says how a message travels; use another header, such as `x-user`
        spec.issuers[0].forwardClaims: has two claims in one header; use another header for one of them
        spec.issuers[0].algorithms: is not a field that is known here; remove it, or use `issuer`, `audiences`, `jwks`, `from`, `leeway`, `forwardClaims` or `forwardToken`
        spec: has `required` and `requiredFor` at once; keep one of them
        spec.issuers[1]: is listed twice; remove one of the two
    "#]],
    );
}

#[test]
fn refuses_claims_that_say_nothing() {
    let specs = [
        "{allow: [{claims: {}}]}",
        "{allow: [{claims: [a]}]}",
        "{allow: [{claims: {groups: []}}]}",
        "{allow: [{claims: {groups: writers}}]}",
        "{deny: [{claims: {groups: [1]}}]}",
    ];
    check_refusals_of(
        "leno.dev",
        "AccessPolicy",
        &specs,
        &expect![[r#"
        spec.allow[0].claims: is empty; name a claim, or leave it out
        spec.allow[0].claims: is a list, not a map; write a map, such as {key: value}
        spec.allow[0].claims.groups: is empty, which reads as nothing and as everything; add an element, or leave the claim out
        spec.allow[0].claims.groups: is "writers", not a list; write a list, each element after `- `
        spec.deny[0].claims.groups[0]: 1 is a number, not text; write "1" in quotes
    "#]],
    );
}
