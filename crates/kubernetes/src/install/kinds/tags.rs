//! Builds the OpenAPI schemas of the `spec` of TagRoute and SermantRouteRule, which select among the instances of a
//! service by their tags, and of Lane, which marks requests with headers.

use serde_json::Value;

use super::value_matches;
use crate::install::schema::{
    any_value, dns_label, enumeration, integer, list, map, non_empty_list, object, port, text,
    with_description, with_rules,
};

/// Returns the schema of the `spec` of a TagRoute.
pub(super) fn tag_route() -> Value {
    let from =
        object([("service", dns_label()), ("namespace", dns_label()), ("tags", value_matches())]);
    let sticky = object([("header", text(256)), ("cookie", text(256))]);
    let rule = object([
        ("precedence", integer(0, MAX_PRECEDENCE)),
        ("from", from),
        ("match", request_match()),
        ("split!", list(weighted_target(), 64)),
        ("fallback", list(weighted_target(), 64)),
        ("fallbackPolicy", fallback_schema()),
        ("sticky", sticky),
    ]);
    let preference = object([
        ("tags!", non_empty_list(text(317), 64)),
        ("minPercent", integer(0, 100)),
        ("minTotal", integer(0, 1_000_000)),
    ]);
    with_rules(
        object([
            ("service", dns_label()),
            ("port", port()),
            ("scope", enumeration(&["namespace", "mesh"])),
            ("fallbackPolicy", fallback_schema()),
            (
                "rules",
                with_description(list(rule, 16_384), "Rules by request; the first match applies."),
            ),
            (
                "preferSameTag",
                with_description(
                    list(preference, 64),
                    "Rules by caller: prefer instances with the same tags as the caller.",
                ),
            ),
        ]),
        &[
            ("has(self.service) != has(self.scope)", "set exactly one of service and scope"),
            ("!has(self.port) || has(self.service)", "port requires service"),
            (
                "has(self.rules) || has(self.preferSameTag)",
                "has no rules: set rules or preferSameTag",
            ),
        ],
    )
}

/// Returns the schema of the `spec` of a Lane.
pub(super) fn lane() -> Value {
    let headers = with_description(map(any_value(), 64), "Headers to add, with their values.");
    let mark_schema = object([("percent", integer(0, 100)), ("headers!", headers)]);
    let rule = object([
        ("precedence", integer(0, MAX_PRECEDENCE)),
        ("match", request_match()),
        ("marks!", non_empty_list(mark_schema, 64)),
    ]);
    object([("service!", dns_label()), ("rules!", list(rule, 1024))])
}

/// Returns the schema of the `spec` of a SermantRouteRule.
pub(super) fn sermant_route_rule() -> Value {
    object([
        ("compat!", enumeration(&["sermant"])),
        ("key!", text(512)),
        ("rules!", with_description(any_value(), "Published text, or its content as YAML.")),
    ])
}

fn request_match() -> Value {
    let path = object([("exact", text(4096)), ("prefix", text(4096)), ("regex", text(4096))]);
    object([
        ("path", path),
        ("methods", list(text(32), 256)),
        ("headers", value_matches()),
        ("queryParams", value_matches()),
        ("cookies", value_matches()),
    ])
}

fn weighted_target() -> Value {
    object([
        ("weight", integer(0, 1_000_000)),
        ("tags", map(text(63), 64)),
        ("instances", enumeration(&["default", "any"])),
    ])
}

/// Returns the schema of a fallback: one value, or several in order of preference.
fn fallback_schema() -> Value {
    with_description(
        any_value(),
        "`any`, `default`, `fail`, `[default, any]` or `[default, fail]`.",
    )
}

/// The maximum precedence of a rule; a rule with a higher precedence is evaluated first.
const MAX_PRECEDENCE: u32 = 1_000_000;
