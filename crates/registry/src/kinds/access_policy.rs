//! Reads the `leno.dev/v1alpha1` `AccessPolicy` kind.

use leno_model::{
    AccessPolicy, ClaimMatch, Name, NamePattern, PathMatch, PeerMatch, PolicyAction, PolicyName,
    PolicyRule, PortSet, RequestMatch,
};

use super::ObjectMetadata;
use super::http_route::{read_headers, read_path, read_path_with};
use super::jwt_validation::read_compared_text;
use super::literal_path::read_decoded_path;
use super::smi::read_methods;
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `AccessPolicy`: deny rules first, in the order in which sidecars evaluate rules.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<AccessPolicy> {
    let fields = spec.read_fields(&["serviceAccounts", "deny", "allow"])?;
    let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
    let accounts = match fields.find("serviceAccounts") {
        Some(field) => {
            read_non_empty_list(field, "or leave it out for all workloads of the namespace")?
                .iter()
                .filter_map(Field::read_name)
                .collect()
        }
        None => Vec::new(),
    };
    if fields.find("deny").is_none() && fields.find("allow").is_none() {
        spec.reject("has no rules", "add `deny` or `allow`");
    }
    let mut rules = Vec::new();
    for action in [PolicyAction::Deny, PolicyAction::Allow] {
        let Some(field) = fields.find(action.as_str()) else { continue };
        let elements =
            read_bounded_non_empty_list(field, MAX_RULES, "or omit it for no such rule")?;
        for (index, element) in elements.iter().enumerate() {
            let Some(rule) = read_rule(element, &name, action, index) else { continue };
            if rules.iter().any(|existing: &PolicyRule| existing.name == rule.name) {
                element.reject("its name is used by another rule", "use another name");
            }
            rules.push(rule);
        }
    }
    Some(AccessPolicy { name, accounts, rules })
}

/// Reads a rule with this action. A rule without `name` gets a name from its action and index, such as `deny[0]`.
fn read_rule(
    element: &Field<'_>,
    policy: &PolicyName,
    action: PolicyAction,
    index: usize,
) -> Option<PolicyRule> {
    let fields = element.read_fields(&["name", "from", "requests", "claims", "ports"])?;
    let name = match fields.find("name") {
        Some(field) => field.read_name()?.to_string(),
        None => format!("{}[{index}]", action.as_str()),
    };
    let peers = read_elements(&fields, "from", "or omit it for all clients", |field| {
        read_peer(field, &policy.namespace)
    });
    let requests = read_elements(&fields, "requests", "or omit it for all requests", |field| {
        read_request(field, action)
    });
    let claims = read_claims(&fields);
    let ports = match fields.find("ports") {
        Some(field) => {
            let ports = read_non_empty_list(field, "or leave it out for all ports")?;
            PortSet::Only(ports.iter().filter_map(Field::read_port).collect())
        }
        None => PortSet::All,
    };
    let policy = policy.clone();
    let (peers, requests, claims) = (peers?, requests?, claims?);
    Some(PolicyRule { policy, name, action, peers, requests, claims, ports })
}

/// Reads `claims`, a map from claim names to accepted values: a token matches if each claim has one of its accepted values.
fn read_claims(fields: &MapFields<'_>) -> Option<Vec<ClaimMatch>> {
    let Some(field) = fields.find("claims") else { return Some(Vec::new()) };
    let entries = field.read_entries()?;
    if entries.is_empty() {
        field.reject("is empty", "name a claim, or leave it out");
        return None;
    }
    if entries.len() > MAX_CLAIMS {
        field.reject(format!("has {} claims", entries.len()), format!("use at most {MAX_CLAIMS}"));
        return None;
    }
    let read_claim = |(name, values): (&str, Field<'_>)| {
        let value_fields = read_non_empty_list(&values, "or leave the claim out")?;
        let accepted_values =
            value_fields.iter().map(read_compared_text).collect::<Option<Vec<_>>>()?;
        Some(ClaimMatch { name: name.to_owned(), values: accepted_values })
    };
    entries.into_iter().map(read_claim).collect()
}

/// Reads each element of a list with `read`; the list may be absent, but not empty. `alternative` completes the hint for an
/// empty list.
pub(super) fn read_elements<'a, T>(
    fields: &MapFields<'a>,
    key: &str,
    alternative: &str,
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    match fields.find(key) {
        Some(field) => {
            Some(read_non_empty_list(field, alternative)?.iter().filter_map(read).collect())
        }
        None => Some(Vec::new()),
    }
}

/// Reads a list of at most [`MAX_LIST`] elements. An empty list is rejected, because it could mean both no element and every
/// element; `alternative` completes the hint.
fn read_non_empty_list<'a>(field: &Field<'a>, alternative: &str) -> Option<Vec<Field<'a>>> {
    read_bounded_non_empty_list(field, MAX_LIST, alternative)
}

/// Reads a list of 1 to `max` elements; see [`read_non_empty_list`].
fn read_bounded_non_empty_list<'a>(
    field: &Field<'a>,
    max: usize,
    alternative: &str,
) -> Option<Vec<Field<'a>>> {
    let elements = field.read_list(max)?;
    if elements.is_empty() {
        field.reject("is empty, which is ambiguous", format!("add an element, {alternative}"));
        return None;
    }
    Some(elements)
}

/// Reads an element of `from`, the clients that a rule applies to: patterns of namespace and service account. The namespace
/// defaults to `own_namespace`, and the account to any.
pub(super) fn read_peer(element: &Field<'_>, own_namespace: &Name) -> Option<PeerMatch> {
    let fields = element.read_fields(&["namespace", "serviceAccount"])?;
    let namespace_field = fields.find("namespace");
    let account_field = fields.find("serviceAccount");
    if namespace_field.is_none() && account_field.is_none() {
        element.reject("names no client", "add `namespace` or `serviceAccount`");
        return None;
    }
    let read_pattern = |field: &Field<'_>| {
        field.read_with(
            |text| NamePattern::new(text).ok(),
            "a pattern of names",
            "use lower-case letters, digits, `-`, `.`, and `*` for any characters",
        )
    };
    let namespace = match namespace_field {
        Some(field) => read_pattern(field),
        None => Some(NamePattern::from(own_namespace)),
    };
    let account = match account_field {
        Some(field) => read_pattern(field),
        None => NamePattern::new("*").ok(),
    };
    Some(PeerMatch { namespace: namespace?, account: account? })
}

/// Reads one of the `requests` that a rule applies to: conditions on methods, path and headers, at least one.
fn read_request(element: &Field<'_>, action: PolicyAction) -> Option<RequestMatch> {
    let fields = element.read_fields(&["methods", "path", "headers"])?;
    let path = match fields.find("path") {
        // Deny rules match every encoding of a path and are written with the decoded path.
        Some(field) if action == PolicyAction::Deny => read_path_with(field, read_decoded_path),
        Some(field) => read_path(field),
        None => Some(PathMatch::Any),
    };
    for (key, alternative) in
        [("methods", "or leave it out for all methods"), ("headers", "or leave it out for any")]
    {
        if let Some(field) = fields.find(key) {
            read_non_empty_list(field, alternative)?;
        }
    }
    let methods = read_methods(&fields);
    let request =
        RequestMatch { path: path?, methods, headers: read_headers(&fields), query: Vec::new() };
    let has_condition = ["methods", "path", "headers"].iter().any(|key| fields.find(key).is_some());
    if !has_condition {
        element.reject("has no condition for requests", "add `methods`, `path` or `headers`");
        return None;
    }
    Some(request)
}

/// Maximum number of `allow` rules, and of `deny` rules, per policy.
const MAX_RULES: usize = 256;
/// Maximum number of claims per rule.
const MAX_CLAIMS: usize = 16;
/// Maximum number of elements in a list: accounts, peers, requests, claim values or ports.
const MAX_LIST: usize = 256;
