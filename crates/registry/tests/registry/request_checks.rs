//! Tests of warnings about check services, and about claims without token verification.

use expect_test::{Expect, expect};
use leno_model::Object;
use leno_registry::{lint_objects, read_str};

const SERVICE: &str = "\
    apiVersion: v1\nkind: Service\nmetadata: {name: stock}\n\
    spec: {selector: {app: stock}, ports: [{port: 80}, {port: 81, targetPort: admin}]}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {name: authz}\n\
    spec: {selector: {app: authz}, ports: [{port: 9000}]}\n---\n\
    apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: stock-1, labels: {app: stock}}\n\
    spec: {serviceAccount: stock, ports: [{port: 80}, {name: admin, port: 8081}]}\n---\n\
    apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: authz-1, labels: {app: authz}}\n\
    spec: {serviceAccount: authz, ports: [{port: 9000}]}\n---\n\
    apiVersion: leno.dev/v1alpha1\n";

/// Checks the warnings about documents, given as `(kind, spec)`.
fn check_warnings(documents: &[(&str, &str)], expected: &Expect) {
    let mut text = SERVICE.to_owned();
    for (kind, spec) in documents {
        text.push_str(&format!("kind: {kind}\nmetadata: {{name: guard}}\nspec: {spec}\n"));
        text.push_str("---\napiVersion: leno.dev/v1alpha1\n");
    }
    text.push_str("kind: MeshConfig\nmetadata: {name: mesh}\nspec: {defaultPolicy: deny}\n");
    let (objects, rejected) = read_str("mesh.yaml", &text);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines = lint_objects(&objects).into_iter().map(|warning| warning.to_string());
    let is_about_workload = |line: &String| line.starts_with("Workload ");
    let lines: Vec<String> =
        lines.filter(|line| !is_about_workload(line)).map(|line| line + "\n").collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn missing_and_self_referencing_check_services_cause_warnings() {
    let refs = "targetRefs: [{name: stock}]";
    check_warnings(
        &[("ExternalAuthorization", &format!("{{{refs}, service: {{name: authz, port: 9000}}}}"))],
        &expect![[""]],
    );
    let limit = "domain: d, descriptors: [{entries: [{key: path, from: path}]}]";
    check_warnings(
        &[
            ("ExternalAuthorization", &format!("{{{refs}, service: {{name: stock, port: 81}}}}")),
            (
                "RateLimit",
                &format!("{{{refs}, global: {{service: {{name: autz, port: 1}}, {limit}}}}}"),
            ),
        ],
        &expect![[r#"
            ExternalAuthorization default/guard: spec.service: checks its own check requests: each request to port 81 of default/stock causes another one; attach the policy to other services, or to other ports of this one
            RateLimit default/guard: spec.global.service.name: there is no Service default/autz; did you mean `authz`?
        "#]],
    );
    check_warnings(
        &[(
            "ExternalAuthorization",
            "{targetRefs: [{name: stock, port: 80}], service: {name: stock, port: 81}}",
        )],
        &expect![[""]],
    );
}

const KEYS: &str = "jwks: {inline: '{\"keys\": [{\"kty\": \"OKP\", \"crv\": \"Ed25519\", \
    \"x\": \"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}'}";

#[test]
fn claims_without_token_verification_cause_warnings() {
    let token_rule = |target: &str| {
        format!("{{targetRefs: [{{{target}}}], issuers: [{{issuer: \"https://a\", {KEYS}}}]")
    };
    let deny = "{serviceAccounts: [stock], deny: [{claims: {group: [guest]}}]}";
    let allow = "{serviceAccounts: [stock], allow: [{claims: {group: [staff]}}]}";
    let required = token_rule("name: stock") + ", required: true}";
    let optional = token_rule("name: stock") + "}";
    let one_port = token_rule("name: stock, port: 80") + ", required: true}";
    for valid in [
        [("JwtValidation", required.as_str()), ("AccessPolicy", deny)],
        [("JwtValidation", &optional), ("AccessPolicy", allow)],
        [("JwtValidation", &one_port), ("AccessPolicy", allow)],
    ] {
        check_warnings(&valid, &expect![[""]]);
    }
    check_warnings(
        &[("AccessPolicy", allow)],
        &expect![[r#"
        AccessPolicy default/guard: spec.allow[0].claims: can never match: no JwtValidation verifies tokens for these workloads; attach a JwtValidation to their services
    "#]],
    );
    check_warnings(
        &[("AccessPolicy", deny)],
        &expect![[r#"
        AccessPolicy default/guard: spec.deny[0].claims: does not apply to requests without a token, and no token is required at port 80 of default/stock; set `required: true` in a JwtValidation of that service
    "#]],
    );
    check_warnings(
        &[("JwtValidation", &optional), ("AccessPolicy", deny)],
        &expect![[r#"
        AccessPolicy default/guard: spec.deny[0].claims: does not apply to requests without a token, and no token is required at port 80 of default/stock; set `required: true` in a JwtValidation of that service
    "#]],
    );
    check_warnings(
        &[("JwtValidation", &one_port), ("AccessPolicy", deny)],
        &expect![[r#"
        AccessPolicy default/guard: spec.deny[0].claims: does not apply to requests without a token, and no token is required at port 81 of default/stock; set `required: true` in a JwtValidation of that service
    "#]],
    );
}

#[test]
fn a_rule_with_claims_does_not_shadow_the_next_rule() {
    let spec = "{serviceAccounts: [authz], deny: [{claims: {group: [guest]}}, {ports: [9000]}]}";
    let tokens = format!(
        "{{targetRefs: [{{name: authz}}], issuers: [{{issuer: \"https://a\", {KEYS}}}], required: true}}"
    );
    check_warnings(&[("JwtValidation", &tokens), ("AccessPolicy", spec)], &expect![[""]]);
}

#[test]
fn a_check_of_one_exact_path_causes_a_warning() {
    let refs = "targetRefs: [{name: stock}]";
    let exact = "[{path: {type: Exact, value: /admin}}]";
    check_warnings(
        &[
            (
                "ExternalAuthorization",
                &format!("{{{refs}, service: {{name: authz, port: 9000}}, matches: {exact}}}"),
            ),
            (
                "JwtValidation",
                &format!(
                    "{{{refs}, issuers: [{{issuer: me, audiences: [a], \
                     jwks: {{url: \"https://a/b\"}}}}], requiredFor: {exact}}}"
                ),
            ),
        ],
        &expect![[r#"
            ExternalAuthorization default/guard: spec.matches[0].path.type: checks /admin and no path below it, where an application may serve the same resource; PathPrefix is safer; use Exact only for exactly this path
            JwtValidation default/guard: spec.requiredFor[0].path.type: requires a token for /admin and no path below it, where an application may serve the same resource; PathPrefix is safer; use Exact only for exactly this path
        "#]],
    );
}

#[test]
fn anchors_in_the_matches_of_request_checks_cause_warnings() {
    let refs = "targetRefs: [{name: stock}]";
    let anchored = "[{path: {type: RegularExpression, value: \"^/admin/.*$\"}}]";
    check_warnings(
        &[
            (
                "ExternalAuthorization",
                &format!("{{{refs}, service: {{name: authz, port: 9000}}, matches: {anchored}}}"),
            ),
            (
                "JwtValidation",
                &format!(
                    "{{{refs}, issuers: [{{issuer: me, audiences: [a], \
                     jwks: {{url: \"https://a/b\"}}}}], requiredFor: {anchored}}}"
                ),
            ),
            (
                "RateLimit",
                &format!(
                    "{{{refs}, global: {{service: {{name: authz, port: 9000}}, domain: shop, \
                     descriptors: [{{matches: {anchored}, entries: [{{key: a, value: b}}]}}]}}}}"
                ),
            ),
        ],
        &expect![[r#"
            ExternalAuthorization default/guard: spec.matches[0].path.value: the anchors of "^/admin/.*$" have no effect: the whole value is always compared; remove ^ at the beginning and $ at the end
            JwtValidation default/guard: spec.requiredFor[0].path.value: the anchors of "^/admin/.*$" have no effect: the whole value is always compared; remove ^ at the beginning and $ at the end
            RateLimit default/guard: spec.global.descriptors[0].matches[0].path.value: the anchors of "^/admin/.*$" have no effect: the whole value is always compared; remove ^ at the beginning and $ at the end
        "#]],
    );
}
