//! Warns about regular expressions that are probably written for partial matches: Leno compares an expression with the
//! whole value, not with a part of it.

use leno_model::{
    AccessPolicy, FieldMatch, HttpRoute, HttpRouteGroup, PathMatch, RequestCheck, RequestMatch,
    RouteKind, ServicePolicy, ServicePolicyKind, ServiceRule, TokenRequirement, ValueMatch,
};

use super::WarningCollector;

/// Warns about the matches of an `HTTPRoute`.
pub(super) fn lint_route(route: &HttpRoute, collector: &mut WarningCollector<'_>) {
    if route.kind != RouteKind::Http {
        // The path of a GRPCRoute was built from its method match, so its author wrote no path expression.
        return;
    }
    for (rule, rule_index) in route.rules.iter().zip(0..) {
        for (request, index) in rule.matches.iter().zip(0..) {
            lint_request(request, &format!("spec.rules[{rule_index}].matches[{index}]"), collector);
        }
    }
}

/// Warns about the matches of an `HTTPRouteGroup`.
pub(super) fn lint_group(group: &HttpRouteGroup, collector: &mut WarningCollector<'_>) {
    for (named_match, index) in group.matches.iter().zip(0..) {
        let field = format!("spec.matches[{index}]");
        if let PathMatch::Regex(path) = &named_match.request.path {
            lint_path(path, format!("{field}.pathRegex"), collector);
        }
        for header in &named_match.request.headers {
            lint_field_match(header, &format!("{field}.headers"), collector);
        }
    }
}

/// Warns about the paths of an `UpstreamTrafficSetting`, and about the request matches of Leno's own policies.
pub(super) fn lint_policy(policy: &ServicePolicy, collector: &mut WarningCollector<'_>) {
    let is_osm = policy.name.kind == ServicePolicyKind::UpstreamTrafficSetting;
    if is_osm && let Some(limits) = policy.rule.rate_limits() {
        let requests = limits.rules.iter().flat_map(|rule| &rule.requests);
        for request in requests {
            if let PathMatch::Regex(path) = &request.path {
                lint_path(path, "spec.httpRoutes".to_owned(), collector);
            }
        }
        return;
    }
    for RequestList { field, requests } in request_lists(&policy.rule) {
        for (request, index) in requests.iter().zip(0..) {
            lint_request(request, &format!("{field}[{index}]"), collector);
        }
    }
}

/// A list of request matches in a policy.
struct RequestList<'a> {
    /// The path of the list, such as `spec.rules[0].matches`.
    field: String,
    requests: &'a [RequestMatch],
}

/// Returns the request matches of a policy of Leno's own kinds.
fn request_lists(policy_rule: &ServiceRule) -> Vec<RequestList<'_>> {
    let list_at = |field: &str, requests| RequestList { field: field.to_owned(), requests };
    let list_of_rule = |(index, requests): (usize, _)| RequestList {
        field: format!("spec.rules[{index}].matches"),
        requests,
    };
    match policy_rule {
        ServiceRule::FaultInjection(rules) => {
            rules.iter().map(|rule| &rule.requests[..]).enumerate().map(list_of_rule).collect()
        }
        ServiceRule::RateLimit(limits) => {
            let local =
                limits.rules.iter().map(|rule| &rule.requests[..]).enumerate().map(list_of_rule);
            let descriptors = limits.global.iter().flat_map(|global| &global.descriptors);
            let global = descriptors.enumerate().map(|(index, descriptor)| RequestList {
                field: format!("spec.global.descriptors[{index}].matches"),
                requests: &descriptor.requests,
            });
            local.chain(global).collect()
        }
        ServiceRule::RequestCheck(RequestCheck::Authorization(authorization)) => {
            vec![list_at("spec.matches", &authorization.requests)]
        }
        ServiceRule::RequestCheck(RequestCheck::Tokens(tokens)) => match &tokens.required {
            TokenRequirement::Matching(requests) => vec![list_at("spec.requiredFor", requests)],
            TokenRequirement::Always | TokenRequirement::Never => Vec::new(),
        },
        ServiceRule::OutlierDetection(_)
        | ServiceRule::SermantRemoval(_)
        | ServiceRule::CircuitBreaker(_)
        | ServiceRule::LoadBalancing(_)
        | ServiceRule::Hedging(_)
        | ServiceRule::UpstreamTrafficSetting(_) => Vec::new(),
    }
}

/// Warns about the requests in the rules of an `AccessPolicy`.
pub(super) fn lint_access(policy: &AccessPolicy, collector: &mut WarningCollector<'_>) {
    // The numbers of deny rules and allow rules so far: `spec.deny` and `spec.allow` are separate lists.
    let mut rule_counts = [0, 0];
    for rule in &policy.rules {
        let count = &mut rule_counts[usize::from(rule.action == leno_model::PolicyAction::Allow)];
        let field = format!("spec.{}[{count}]", rule.action.as_str());
        *count += 1;
        for (request, index) in rule.requests.iter().zip(0..) {
            lint_request(request, &format!("{field}.requests[{index}]"), collector);
        }
    }
}

/// Warns about the expressions for path, headers and query parameters in one match.
fn lint_request(request: &RequestMatch, field: &str, collector: &mut WarningCollector<'_>) {
    if let PathMatch::Regex(path) = &request.path {
        lint_path(path, format!("{field}.path.value"), collector);
    }
    for (header, index) in request.headers.iter().zip(0..) {
        lint_field_match(header, &format!("{field}.headers[{index}].value"), collector);
    }
    for (query, index) in request.query.iter().zip(0..) {
        lint_field_match(query, &format!("{field}.queryParams[{index}].value"), collector);
    }
}

/// Warns about anchors in a path expression, an expression that cannot match any path, and an expression that is a
/// plain path, which does not match paths below it.
fn lint_path(path: &str, field: String, collector: &mut WarningCollector<'_>) {
    lint_anchors(path, &field, collector);
    let unanchored_path = path.strip_prefix('^').unwrap_or(path);
    if cannot_begin_with_slash(unanchored_path) {
        collector.add_warning(
            field,
            format!("can never match: {path:?} does not begin with /"),
            format!("write {:?}", format!("/{unanchored_path}")),
        );
    } else if unanchored_path.starts_with('/') && !unanchored_path.contains(METACHARACTERS) {
        collector.add_warning(
            field,
            format!(
                "matches {unanchored_path} and no path below it: an expression is compared with the \
                 whole path"
            ),
            format!("write {:?} to match a part of the path", format!("{unanchored_path}.*")),
        );
    }
}

/// Warns about anchors in the expression for a header or query parameter, and about an unescaped dot in a host name.
fn lint_field_match(field_match: &FieldMatch, field: &str, collector: &mut WarningCollector<'_>) {
    let ValueMatch::Regex(value) = &field_match.value else { return };
    lint_anchors(value, field, collector);
    if HOST_HEADERS.contains(&field_match.name.as_str()) && has_bare_dot(value) {
        collector.add_warning(
            field.to_owned(),
            format!("an unescaped . in {value:?} stands for any character, not only for a dot"),
            r"write \. for a dot",
        );
    }
}

/// Warns about anchors, which have no effect because the whole value is matched.
fn lint_anchors(text: &str, field: &str, collector: &mut WarningCollector<'_>) {
    let has_end_anchor = text.ends_with('$') && !text.ends_with(r"\$");
    if text.starts_with('^') || has_end_anchor {
        collector.add_warning(
            field.to_owned(),
            format!("the anchors of {text:?} have no effect: the whole value is always compared"),
            "remove ^ at the beginning and $ at the end",
        );
    }
}

/// True if a path expression requires a first character other than a slash. False for expressions with alternatives
/// or with an optional first character.
fn cannot_begin_with_slash(path: &str) -> bool {
    let mut characters = path.chars();
    let (first_character, second_character) = (characters.next(), characters.next());
    let may_be_missing = matches!(second_character, Some('?' | '*' | '{'));
    first_character.is_some_and(|first_character| {
        first_character != '/' && !METACHARACTERS.contains(&first_character)
    }) && !may_be_missing
        && !path.contains('|')
}

/// True if a dot between two characters of a name is neither escaped nor repeated.
fn has_bare_dot(text: &str) -> bool {
    let characters: Vec<char> = text.chars().collect();
    let is_name_character =
        |character: &char| character.is_ascii_alphanumeric() || *character == '-';
    characters.windows(3).any(|window| match window {
        [before, '.', after] => is_name_character(before) && is_name_character(after),
        _ => false,
    })
}

/// Metacharacters of regular expressions.
const METACHARACTERS: &[char] =
    &['\\', '.', '^', '$', '*', '+', '?', '(', ')', '[', ']', '{', '}', '|'];

/// The headers that contain host names.
const HOST_HEADERS: &[&str] = &[":authority", "host", "origin", "referer", "x-forwarded-host"];
