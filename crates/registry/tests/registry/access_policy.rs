//! Tests of access policies: accepted documents, rejections and warnings.

use expect_test::{Expect, expect};
use leno_model::{AccessPolicy, Object, PathMatch, PolicyAction, PortSet};
use leno_registry::{lint_objects, read_str};

use crate::rejections::check_specs;

fn read_objects(text: &str) -> Vec<Object> {
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    objects.into_iter().map(|(object, _)| object).collect()
}

fn policy_with_spec(spec: &str) -> AccessPolicy {
    let text = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
         metadata: {{name: guard, namespace: shop}}\nspec: {spec}\n"
    );
    match read_objects(&text).pop() {
        Some(Object::AccessPolicy(policy)) => policy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn omitted_fields_of_a_rule_match_everything() {
    let policy = policy_with_spec(
        "{serviceAccounts: [stock], allow: [{}, {name: mine, from: [{serviceAccount: \"web*\"}], \
         requests: [{methods: [GET, \"*\"], path: {value: /items/}}], ports: [80]}], \
         deny: [{from: [{namespace: \"*\"}]}]}",
    );
    let names: Vec<(&str, PolicyAction)> =
        policy.rules.iter().map(|rule| (rule.name.as_str(), rule.action)).collect();
    let (allow, deny) = (PolicyAction::Allow, PolicyAction::Deny);
    assert_eq!(names, [("deny[0]", deny), ("allow[0]", allow), ("mine", allow)]);
    assert_eq!(policy.accounts.len(), 1);
    let [any_namespace, unrestricted, named] = policy.rules.as_slice() else {
        panic!("{policy:?}")
    };
    assert_eq!(any_namespace.peers[0].to_string(), "*/*");
    assert!(unrestricted.peers.is_empty() && unrestricted.requests.is_empty());
    assert_eq!(unrestricted.ports, PortSet::All);
    assert_eq!(named.peers[0].to_string(), "shop/web*");
    assert_eq!(named.requests[0].path, PathMatch::Prefix("/items".to_owned()));
    assert!(named.requests[0].methods.is_empty());
    assert_eq!(named.ports, PortSet::Only(vec![80]));
}

#[test]
fn ambiguous_policies_are_rejected() {
    check_specs(
        "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: x}",
        &[
            "{}",
            "{deny: []}",
            "{allow: []}",
            "{deny: [{}], allow: []}",
            "{deny: [{requests: [{path: {value: /a}, methods: []}]}]}",
            "{deny: [{requests: [{path: {value: /a}, headers: []}]}]}",
            "{serviceAccounts: [], deny: [{}]}",
            "{deny: [{from: []}]}",
            "{deny: [{from: [{}]}]}",
            "{deny: [{from: [{serviceAccount: \"Web\"}]}]}",
            "{deny: [{from: [{account: web}]}]}",
            "{deny: [{requests: []}]}",
            "{deny: [{requests: [{}]}]}",
            "{deny: [{requests: [{methods: []}]}]}",
            "{deny: [{requests: [{method: GET}]}]}",
            "{deny: [{requests: [{path: {type: Exact, value: /%61}}]}]}",
            "{deny: [{requests: [{path: {type: RegularExpression, value: \"(\"}}]}]}",
            "{deny: [{ports: []}]}",
            "{deny: [{ports: [0]}]}",
            "{deny: [{name: a}], allow: [{name: a}]}",
        ],
        &expect![[r#"
            spec: has no rules; add `deny` or `allow`
            spec.deny: is empty, which is ambiguous; add an element, or omit it for no deny rules
            spec.allow: is empty, which is ambiguous; add an element, or omit it for no allow rules
            spec.allow: is empty, which is ambiguous; add an element, or omit it for no allow rules
            spec.deny[0].requests[0].methods: is empty, which is ambiguous; add an element, or omit it for all methods
            spec.deny[0].requests[0].headers: is empty, which is ambiguous; add an element, or omit it for no conditions on headers
            spec.serviceAccounts: is empty, which is ambiguous; add an element, or omit it for all workloads of the namespace
            spec.deny[0].from: is empty, which is ambiguous; add an element, or omit it for all clients
            spec.deny[0].from[0]: names no client; add `namespace` or `serviceAccount`
            spec.deny[0].from[0].serviceAccount: "Web" is not a pattern of names; use lower-case letters, digits, `-`, `.`, and `*` for any characters
            spec.deny[0].from[0].account: is an unknown field; remove it, or use `namespace` or `serviceAccount`
            spec.deny[0].from[0]: names no client; add `namespace` or `serviceAccount`
            spec.deny[0].requests: is empty, which is ambiguous; add an element, or omit it for all requests and opaque bytes
            spec.deny[0].requests[0]: has no condition for requests; add `methods`, `path` or `headers`
            spec.deny[0].requests[0].methods: is empty, which is ambiguous; add an element, or omit it for all methods
            spec.deny[0].requests[0].method: is an unknown field; did you mean `methods`? Its value is "GET", not a list: write a list, each element after `- `
            spec.deny[0].requests[0].path.value: "/%61" has escapes or parameters, but deny rules match decoded paths; did you mean `/a`?
            spec.deny[0].requests[0].path.value: "(" is not a regular expression (unclosed group); correct it; the syntax is RE2's, without look-around or back references
            spec.deny[0].ports: is empty, which is ambiguous; add an element, or omit it for all ports
            spec.deny[0].ports[0]: 0 is out of range; use a number from 1 to 65535
            spec.allow[0].name: is the name of another rule; use another name
        "#]],
    );
}

fn check_warnings(spec: &str, default_policy: &str, expected: &Expect) {
    let text = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec: {{defaultPolicy: {default_policy}}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: stock-1, namespace: shop}}\n\
         spec: {{serviceAccount: stock, ports: [{{port: 80, protocol: HTTP}}, \
         {{port: 5432, protocol: TCP}}]}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: web-1, namespace: shop}}\nspec: {{serviceAccount: web}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
         metadata: {{name: guard, namespace: shop}}\nspec: {spec}\n"
    );
    let lines: Vec<String> =
        lint_objects(&read_objects(&text)).iter().map(|warning| format!("{warning}\n")).collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn rules_that_can_never_match_cause_warnings() {
    check_warnings(
        "{serviceAccounts: [stock], deny: [{requests: [{methods: [DELETE]}]}], \
         allow: [{from: [{serviceAccount: \"web*\"}], ports: [80, 5432]}]}",
        "deny",
        &expect![[""]],
    );
    check_warnings(
        "{serviceAccounts: [stock, stok], deny: [{from: [{namespace: else}]}, \
         {ports: [5432], requests: [{methods: [GET]}]}, {ports: [81]}, {name: all}, {name: again}], \
         allow: [{from: [{serviceAccount: web}]}]}",
        "allow",
        &expect![[r#"
            AccessPolicy shop/guard: spec.serviceAccounts[1]: no workload runs under the account shop/stok; did you mean `stock`?
            AccessPolicy shop/guard: spec.deny[0].from[0]: no workload runs under an account that matches else/*; correct the names, or add a Workload with such an account
            AccessPolicy shop/guard: spec.deny[1].requests: cannot match single requests: on TCP ports it denies every connection with HTTP; remove `requests`, or use ports that speak HTTP
            AccessPolicy shop/guard: spec.deny[2].ports[0]: no workload of the policy has a port 81; use ports of the workload, not of the service
            AccessPolicy shop/guard: spec.deny[4]: has no effect: the rule all applies first to all of its requests; remove one of the two, or change `from`, `requests` or `ports`
            AccessPolicy shop/guard: spec.allow[0]: has no effect: default policy allow already allows it; set `defaultPolicy` to deny or dry-run, or remove the rule
            AccessPolicy shop/guard: spec.allow[0]: has no effect: the rule all applies first to all of its requests; remove one of the two, or change `from`, `requests` or `ports`
        "#]],
    );
    check_warnings("{allow: [{requests: [{methods: [GET]}]}]}", "deny", &expect![[""]]);
}

#[test]
fn a_rule_for_one_exact_path_causes_a_warning() {
    check_warnings(
        "{serviceAccounts: [stock], deny: [{requests: [{path: {value: /ops}}]}, \
         {requests: [{methods: [PUT]}, {path: {type: Exact, value: /admin}}]}], \
         allow: [{requests: [{path: {type: Exact, value: /items}}]}]}",
        "deny",
        &expect![[r#"
            AccessPolicy shop/guard: spec.deny[1].requests[1].path.type: denies /admin and no path below it, where an application may serve the same resource; PathPrefix is safer; use Exact only for exactly this path
        "#]],
    );
}
