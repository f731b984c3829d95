//! Tests of JWT validation, and of rules with claims.

use std::time::Duration;

use expect_test::expect;
use leno_model::{
    IssuerKeys, JwtLocation, KeySource, Object, PathMatch, RequestCheck, ServiceRule,
    TokenRequirement,
};
use leno_registry::{FileSource, read_str};

use crate::service_policies::{check_group_rejections, read_policy};

const KEYS: &str = "{inline: '{\"keys\": [{\"kty\": \"OKP\"}]}'}";

#[test]
fn the_documented_example_is_read_with_all_fields() {
    let text = &crate::pages::page_examples("jwt-validation.md")[0];
    let (validation_text, access_text) = text.split_once("---\n").unwrap();
    let policy = read_policy(validation_text);
    assert_eq!(policy.name.to_string(), "JwtValidation bookinfo/ratings");
    let ServiceRule::RequestCheck(RequestCheck::Tokens(rule)) = policy.rule else {
        panic!("no tokens")
    };
    let TokenRequirement::Matching(requests) = &rule.required else {
        panic!("{:?}", rule.required)
    };
    assert_eq!(requests[0].path, PathMatch::Prefix("/ratings".to_owned()));
    let [issuer] = &rule.issuers[..] else { panic!("one issuer") };
    assert_eq!(issuer.issuer, "https://accounts.example.com");
    assert_eq!(issuer.aud, ["ratings", "bookinfo"]);
    let IssuerKeys::Inline(keys) = &issuer.keys else { panic!("{:?}", issuer.keys) };
    assert!(keys.contains("2026-11"));
    let (name, prefix) = ("authorization".to_owned(), "Bearer ".to_owned());
    let header = JwtLocation::Header { name, prefix };
    assert_eq!(issuer.locations, [header, JwtLocation::Query("access_token".to_owned())]);
    assert_eq!(
        (issuer.clock_skew, issuer.forward_original_token),
        (Duration::from_secs(30), false)
    );
    assert_eq!((issuer.requires_expiration, issuer.max_age), (true, None));
    let headers: Vec<_> =
        issuer.claim_to_headers.iter().map(|mapping| (&*mapping.claim, &*mapping.header)).collect();
    assert_eq!(headers, [("sub", "x-user"), ("realm.roles", "x-roles")]);

    let (objects, rejected) = read_str("f.yaml", access_text);
    assert!(rejected.is_empty(), "{rejected:?}");
    let [(Object::AccessPolicy(access_policy), _)] = &objects[..] else { panic!("{objects:?}") };
    let claim = &access_policy.rules[0].claims[0];
    assert_eq!((&*claim.name, claim.values.len()), ("groups", 2));
}

#[test]
fn the_documented_example_is_read_with_other_key_sources() {
    let policy = read_policy(&crate::pages::page_examples("jwt-validation.md")[1]);
    let ServiceRule::RequestCheck(RequestCheck::Tokens(rule)) = policy.rule else {
        panic!("no tokens")
    };
    let sources = rule.issuers.iter().filter_map(|issuer| issuer.keys.source());
    let sources: Vec<String> = sources.map(ToString::to_string).collect();
    let server = "https://accounts.example.com:443/.well-known/jwks.json";
    assert_eq!(sources, [server, "/etc/leno/keys/batch.json"]);
}

#[test]
fn the_maximum_age_is_read() {
    let spec = format!(
        "{{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {KEYS}, requireExpiration: false, maxAge: 1h}}]}}"
    );
    let text = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: JwtValidation\nmetadata: {{name: a, namespace: a}}\nspec: {spec}\n"
    );
    let ServiceRule::RequestCheck(RequestCheck::Tokens(rule)) = read_policy(&text).rule else {
        panic!("no tokens")
    };
    let issuer = &rule.issuers[0];
    let expected = (false, Some(Duration::from_secs(3600)));
    assert_eq!((issuer.requires_expiration, issuer.max_age), expected);
}

#[test]
fn token_settings_without_effect_are_rejected() {
    let issuer = |more_fields: &str| {
        format!(
            "{{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {KEYS}{more_fields}}}]}}"
        )
    };
    let specs = [
        "{targetRefs: [{name: a}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: []}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {inline: a, url: b}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {url: b}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {url: \"https://a#b\"}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {url: \"https://a\", refreshInterval: 500ms}}]}"
            .to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {file: a, refreshInterval: 5s}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {file: \"\"}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {file: ..}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {inline: \"a\"}}]}".to_owned(),
        "{targetRefs: [{name: a}], issuers: [{issuer: a, jwks: {inline: '{\"keys\": [{\"kty\": \"oct\"}]}'}}]}"
            .to_owned(),
        issuer(", audiences: []"),
        issuer(", from: [{}]"),
        issuer(", from: [{header: a, query: b}]"),
        issuer(", from: [{query: a, prefix: b}]"),
        issuer(", clockSkew: 2h"),
        issuer(", maxAge: 0s"),
        issuer(", requireExpiration: 1"),
        issuer(", claimToHeaders: [{claim: a, header: content-length}]"),
        issuer(", claimToHeaders: [{claim: a, header: x-a}, {claim: b, header: X-A}]"),
        issuer(", algorithms: [none]"),
        format!("{{targetRefs: [{{name: a}}], required: true, requiredFor: [{{method: GET}}], issuers: [{{issuer: a, jwks: {KEYS}}}]}}"),
        format!("{{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {KEYS}}}, {{issuer: a, jwks: {KEYS}}}]}}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "leno.dev",
        "JwtValidation",
        &specs,
        &expect![[r#"
            spec.issuers: is missing; add `issuers`
            spec.issuers: is empty; add an element
            spec.issuers[0].jwks: is missing; add `jwks`
            spec.issuers[0].jwks: has no keys; add `inline`, `file` or `url`
            spec.issuers[0].jwks: has `inline` and `url` together; keep one of them
            spec.issuers[0].jwks.url: "b" is not a valid JWKS endpoint: an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
            spec.issuers[0].jwks.inline: is not a JWK set, which is JSON with `keys`; copy the content of the issuer's `jwks_uri`
            spec.issuers[0].jwks.url: "b" is not a valid JWKS endpoint: an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
            spec.issuers[0].jwks.url: "https://a#b" is not a valid JWKS endpoint: an endpoint needs a host: an address, IPv6 in brackets, or a name; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
            spec.issuers[0].jwks.refreshInterval: "500ms" is out of range; use a time with a unit, from 1s to 24h, such as "5s"
            spec.issuers[0].jwks.refreshInterval: applies to `url` only; remove it; files are watched
            spec.issuers[0].jwks.file: "" is not the path of a file; name one
            spec.issuers[0].jwks.file: ".." is not the path of a file; name one
            spec.issuers[0].jwks.inline: is not a JWK set, which is JSON with `keys`; copy the content of the issuer's `jwks_uri`
            spec.issuers[0].jwks.inline: has no public key: only keys with the `kty` RSA, EC or OKP can verify tokens; copy the content of the issuer's `jwks_uri`
            spec.issuers[0].audiences: is empty, which is ambiguous; add an element, or omit it for any audience
            spec.issuers[0].from[0]: has no location; add `header` or `query`
            spec.issuers[0].from[0]: has `header` and `query` together; keep one of them
            spec.issuers[0].from[0].prefix: requires `header`; remove it
            spec.issuers[0].clockSkew: "2h" is out of range; use a time with a unit, from 0s to 1h, such as "5s"
            spec.issuers[0].maxAge: "0s" is out of range; use a time with a unit, from 1s to 8784h, such as "5s"
            spec.issuers[0].requireExpiration: 1 is neither true nor false; use true or false
            spec.issuers[0].claimToHeaders[0].header: "content-length" is a header of the protocol; use another header, such as `x-user`
            spec.issuers[0].claimToHeaders[1]: has the header of another claim; use another header for one of them
            spec.issuers[0].algorithms[0]: "none" is not a supported value; use `RS256`, `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES256`, `ES384`, `ES512`, `EdDSA` or `Ed25519`
            spec: has both `required` and `requiredFor`; keep one of them
            spec.issuers[1]: is listed twice; remove one of the two
        "#]],
    );
}

#[test]
fn empty_claims_are_rejected() {
    let specs = [
        "{allow: [{claims: {}}]}",
        "{allow: [{claims: [a]}]}",
        "{allow: [{claims: {groups: []}}]}",
        "{allow: [{claims: {groups: writers}}]}",
        "{deny: [{claims: {groups: [1]}}]}",
    ];
    check_group_rejections(
        "leno.dev",
        "AccessPolicy",
        &specs,
        &expect![[r#"
            spec.allow[0].claims: is empty, which is ambiguous; add an element, or omit it for no required claims
            spec.allow[0].claims: is a list, not a map; write a map of names and values
            spec.allow[0].claims.groups: is empty; add an element
            spec.allow[0].claims.groups: is "writers", not a list; write a list, each element after `- `
            spec.deny[0].claims.groups[0]: 1 is a number, not text; write "1" in quotes
        "#]],
    );
}

#[test]
fn keys_are_read_from_a_file_or_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let document = |jwks: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: JwtValidation\nmetadata: {{name: a}}\n\
             spec: {{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {jwks}}}]}}\n"
        )
    };
    let read_source = |jwks: &str| {
        let file = directory.path().join("a.yaml");
        std::fs::write(&file, document(jwks)).unwrap();
        let mut source = FileSource::new(vec![directory.path().to_owned()]);
        let update = source.reload();
        assert_eq!(update.rejected, []);
        let Some(Object::ServicePolicy(policy)) = source.objects().next() else {
            panic!("no policy")
        };
        let ServiceRule::RequestCheck(RequestCheck::Tokens(rule)) = &policy.rule else {
            panic!("no tokens")
        };
        let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
        (rule.issuers[0].keys.source().unwrap().clone(), warnings)
    };
    let relative_source = KeySource::File(directory.path().join("keys/a.json"));
    assert_eq!(read_source("{file: keys/a.json}"), (relative_source, vec![]));
    assert_eq!(read_source("{file: /keys.json}").0, KeySource::File("/keys.json".into()));
    for (jwks, url, seconds) in [
        ("{url: \"https://a/b?c=d\"}", "https://a:443/b?c=d", 300),
        ("{url: \"http://127.0.0.1:8/\", refreshInterval: 1h}", "http://127.0.0.1:8/", 3600),
    ] {
        let (source, warnings) = read_source(jwks);
        assert_eq!((source.to_string().as_str(), warnings.len()), (url, 0));
        let KeySource::Server(server) = source else { panic!("{source:?}") };
        assert_eq!(server.refresh_interval, Duration::from_secs(seconds));
    }
    for host in ["169.254.169.254", "[::ffff:169.254.169.254]", "0.0.0.0"] {
        let (_, warnings) = read_source(&format!("{{url: \"https://{host}/\"}}"));
        assert!(warnings[0].contains("--jwks-allow"), "{host}: {warnings:?}");
    }
    let (_, warnings) = read_source("{url: \"http://a/b\"}");
    assert!(warnings[0].contains("jwks.url: is queried in plaintext"), "{warnings:?}");

    let object = |jwks: serde_json::Value| {
        serde_json::json!({
            "apiVersion": "leno.dev/v1alpha1", "kind": "JwtValidation", "metadata": {"name": "a"},
            "spec": {"targetRefs": [{"name": "a"}], "issuers": [{"issuer": "a", "jwks": jwks}]},
        })
    };
    let rejected = leno_registry::read_json(&object(serde_json::json!({"file": "keys.json"})));
    let rejected = rejected.unwrap_err()[0].to_string();
    assert!(
        rejected.contains("\"keys.json\" is relative, but this document has no directory"),
        "{rejected}"
    );
    assert!(leno_registry::read_json(&object(serde_json::json!({"file": "/keys.json"}))).is_ok());
}

#[test]
fn following_hints_about_key_sources_leads_to_acceptance() {
    let issuer = |jwks: &str| {
        format!("{{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {jwks}}}]}}")
    };
    let specs = [
        "'https://a.example/jwks.json'",
        "/etc/keys.json",
        "'{\"keys\": []}'",
        "{file: 'https://a.example/jwks.json'}",
        "{url: /etc/keys.json}",
        "{url: 'https://user:secret@a.example/jwks.json'}",
        "{url: 'https://user@a.example:443/jwks.json'}",
        "{url: 'https://müller.example/jwks.json'}",
        "{url: 'https://a.example:99999/jwks.json'}",
    ]
    .map(issuer);
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "leno.dev",
        "JwtValidation",
        &specs,
        &expect![[r#"
            spec.issuers[0].jwks: is "https://a.example/jwks.json", not a map; write a map, such as {url: "https://a.example/jwks.json"}
            spec.issuers[0].jwks: is "/etc/keys.json", not a map; write a map, such as {file: "/etc/keys.json"}
            spec.issuers[0].jwks: is a text, not a map; write a map with the text as `inline`
            spec.issuers[0].jwks.file: "https://a.example/jwks.json" is a URL, not the path of a file; write it as `url`
            spec.issuers[0].jwks.url: "/etc/keys.json" is not a valid JWKS endpoint: an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS; write the path of a file as `file`
            spec.issuers[0].jwks.url: "https://...@a.example/jwks.json" is not a valid JWKS endpoint: an endpoint must not contain a user or password: remove the part up to the `@`; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
            spec.issuers[0].jwks.url: "https://...@a.example:443/jwks.json" is not a valid JWKS endpoint: an endpoint must not contain a user or password: remove the part up to the `@`; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
            spec.issuers[0].jwks.url: "https://müller.example/jwks.json" is not a valid JWKS endpoint: a host with non-ASCII characters is written in Punycode, such as `xn--mller-kva.example`; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
            spec.issuers[0].jwks.url: "https://a.example:99999/jwks.json" is not a valid JWKS endpoint: an endpoint needs a port from 1 to 65535, such as `:4318`; correct it, as in `https://accounts.example.com/.well-known/jwks.json`
        "#]],
    );
}

#[test]
fn following_hints_about_file_urls_leads_to_acceptance() {
    let document = |jwks: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: JwtValidation\nmetadata: {{name: a}}\n\
             spec: {{targetRefs: [{{name: a}}], issuers: [{{issuer: a, jwks: {jwks}}}]}}\n"
        )
    };
    let rejections_of = |jwks: &str| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), document(jwks)).unwrap();
        let update = FileSource::new(vec![directory.path().to_owned()]).reload();
        update.rejected.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (jwks, hint, corrected) in [
        ("'file:///etc/k.json'", "{file: \"/etc/k.json\"}", "{file: \"/etc/k.json\"}"),
        ("'file:/etc/k.json'", "{file: \"/etc/k.json\"}", "{file: \"/etc/k.json\"}"),
        ("{file: 'file:///etc/k.json'}", "alone: \"/etc/k.json\"", "{file: \"/etc/k.json\"}"),
        ("{file: 'FILE:/etc/k.json'}", "alone: \"/etc/k.json\"", "{file: \"/etc/k.json\"}"),
        ("{file: 'file://localhost/k.json'}", "alone: \"/k.json\"", "{file: \"/k.json\"}"),
        ("{url: 'file:///etc/k.json'}", "as `file`: \"/etc/k.json\"", "{file: \"/etc/k.json\"}"),
        ("{file: 'https://a.example/k'}", "write it as `url`", "{url: 'https://a.example/k'}"),
        ("{file: 'ftp://a/k.json'}", "as in `/etc/leno/keys.json`", "{file: /etc/leno/keys.json}"),
        ("{file: 'https://a b/k'}", "as in `/etc/leno/keys.json`", "{file: /etc/leno/keys.json}"),
    ] {
        let rejections = rejections_of(jwks);
        assert!(rejections.len() == 1 && rejections[0].contains(hint), "{jwks}: {rejections:?}");
        assert_eq!(rejections_of(corrected), [""; 0], "{jwks}");
    }
}

#[test]
fn hints_about_non_ascii_hosts_name_the_dns_form() {
    let egress = |host: &str| {
        format!(
            "{{sources: [{{kind: ServiceAccount, name: a, namespace: b}}], hosts: ['{host}'], \
             ports: [{{number: 80, protocol: http}}]}}"
        )
    };
    let specs = ["müller.example", "a b.example"].map(egress);
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "policy.openservicemesh.io",
        "Egress",
        &specs,
        &expect![[r#"
        spec.hosts[0]: "müller.example" is not a host name; write it as the DNS has it, such as xn--mller-kva.example
        spec.hosts[0]: "a b.example" is not a host name; use one in lower case without a port, such as api.example.com or *.example.com
    "#]],
    );
}
