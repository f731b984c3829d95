//! Schemas of rules that select among the instances of a service.

use serde_json::Value;

use super::tests;
use crate::install::schema::{
    about, anything, integer, label, list, map, object, port, some, text, unless, word,
};

pub(super) fn tag_route() -> Value {
    let from = object([("service", label()), ("namespace", label()), ("tags", tests())]);
    let sticky = object([("header", text(256)), ("cookie", text(256))]);
    let rule = object([
        ("precedence", integer(0, PRECEDENCE_MAX)),
        ("from", from),
        ("match", request_match()),
        ("split!", list(target(), 64)),
        ("fallback", list(target(), 64)),
        ("otherwise", otherwise()),
        ("sticky", sticky),
    ]);
    let preference = object([
        ("tags!", some(text(317), 64)),
        ("minPercent", integer(0, 100)),
        ("minTotal", integer(0, 1_000_000)),
    ]);
    unless(
        object([
            ("service", label()),
            ("port", port()),
            ("scope", word(&["namespace", "mesh"])),
            ("otherwise", otherwise()),
            ("rules", about(list(rule, 16_384), "Rules by request; the first match applies.")),
            (
                "sameTag",
                about(
                    list(preference, 64),
                    "Rules by caller: prefer instances with the same tags as the caller.",
                ),
            ),
        ]),
        &[
            ("has(self.service) != has(self.scope)", "set exactly one of service and scope"),
            ("!has(self.port) || has(self.service)", "port requires service"),
            ("has(self.rules) || has(self.sameTag)", "has no rules: set rules or sameTag"),
        ],
    )
}

pub(super) fn lane() -> Value {
    let headers = about(map(anything(), 64), "Headers to add, with their values.");
    let mark = object([("percent", integer(0, 100)), ("headers!", headers)]);
    let rule = object([
        ("precedence", integer(0, PRECEDENCE_MAX)),
        ("match", request_match()),
        ("marks!", some(mark, 64)),
    ]);
    object([("service!", label()), ("rules!", list(rule, 1024))])
}

pub(super) fn sermant_route_rule() -> Value {
    object([
        ("compat!", word(&["sermant"])),
        ("key!", text(512)),
        ("rules!", about(anything(), "Published text, or its content as YAML.")),
    ])
}

fn request_match() -> Value {
    let path = object([("exact", text(4096)), ("prefix", text(4096)), ("regex", text(4096))]);
    object([
        ("path", path),
        ("methods", list(text(32), 256)),
        ("headers", tests()),
        ("query", tests()),
        ("cookies", tests()),
    ])
}

fn target() -> Value {
    object([
        ("weight", integer(0, 1_000_000)),
        ("tags", map(text(63), 64)),
        ("instances", word(&["default", "any"])),
    ])
}

/// Returns the schema of a fallback: one value, or several in order of preference.
fn otherwise() -> Value {
    about(anything(), "`any`, `default`, `fail`, `[default, any]` or `[default, fail]`.")
}

const PRECEDENCE_MAX: u32 = 1_000_000;
