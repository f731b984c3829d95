//! Converts rule actions to and from the wire: header edits, redirects, rewrites, mirrors, retries, CORS and
//! session persistence.

use std::collections::BTreeSet;
use std::time::Duration;

use leno_model::{
    Header, HeaderEdits, PathEdit, PathMatch, Redirect, RequestMatch, RuleActions, Scheme,
    UrlRewrite, WeightedBackend,
};

use super::fault::parse_share;
use super::field::{InvalidField, convert_each, parse_optional_name, parse_port, to_nanoseconds};
use super::service::{backend_to_wire, plain_backend_from_wire};
use super::{cors, retry, session_persistence};
use crate::proto;

/// Encodes actions; `None` for a rule without actions.
pub(super) fn to_wire(actions: &RuleActions) -> Option<proto::RuleActions> {
    (*actions != RuleActions::default()).then(|| proto::RuleActions {
        request_headers: header_edits_to_wire(&actions.request_headers),
        response_headers: header_edits_to_wire(&actions.response_headers),
        redirect: actions.redirect.as_ref().map(redirect_to_wire),
        rewrite: actions.rewrite.as_ref().map(rewrite_to_wire),
        attempt_timeout_nanoseconds: actions.attempt_timeout.map(to_nanoseconds),
        retry: actions.retry.as_ref().map(retry::rule_to_wire),
        ungranted_weight: actions.ungranted_weight,
        mirrors: actions.mirrors.iter().map(backend_to_wire).collect(),
        cors: actions.cors.as_ref().map(cors::to_wire),
        persistence: actions.persistence.as_ref().map(session_persistence::to_wire),
    })
}

/// Parses the actions of a rule with these matches. Rejects too many mirrors, and a redirect together with a
/// rewrite.
pub(super) fn from_wire(
    wire: proto::RuleActions,
    matches: &[RequestMatch],
) -> Result<RuleActions, InvalidField> {
    let redirect = wire.redirect.map(|wire| redirect_from_wire(wire, matches)).transpose();
    let rewrite = wire.rewrite.map(|wire| rewrite_from_wire(wire, matches)).transpose();
    let retry = wire.retry.map(|wire| retry::rule_from_wire(&wire)).transpose();
    let cors = wire.cors.map(cors::from_wire).transpose();
    let persistence = wire.persistence.map(session_persistence::from_wire).transpose();
    let actions = RuleActions {
        request_headers: parse_header_edits("request_headers", wire.request_headers)?,
        response_headers: parse_header_edits("response_headers", wire.response_headers)?,
        redirect: redirect.map_err(|invalid| invalid.with_parent("redirect"))?,
        rewrite: rewrite.map_err(|invalid| invalid.with_parent("rewrite"))?,
        attempt_timeout: wire.attempt_timeout_nanoseconds.map(Duration::from_nanos),
        retry: retry.map_err(|invalid| invalid.with_parent("retry"))?,
        ungranted_weight: wire.ungranted_weight,
        mirrors: convert_each("mirrors", wire.mirrors, mirror_from_wire)?,
        cors: cors.map_err(|invalid| invalid.with_parent("cors"))?,
        persistence: persistence.map_err(|invalid| invalid.with_parent("persistence"))?,
    };
    if actions.mirrors.len() > RuleActions::MAX_MIRRORS {
        let reason = format!("has more than {} elements", RuleActions::MAX_MIRRORS);
        return Err(InvalidField::new("mirrors", reason));
    }
    if actions.redirect.is_some() && actions.rewrite.is_some() {
        return Err(InvalidField::new("rewrite", "must be absent with a redirection"));
    }
    Ok(actions)
}

fn mirror_from_wire(wire: proto::Backend) -> Result<WeightedBackend, InvalidField> {
    let mirror = plain_backend_from_wire(wire)?;
    parse_share(mirror.weight).map_err(|invalid| InvalidField::new("weight", invalid.reason))?;
    Ok(mirror)
}

/// Encodes header edits; `None` if there are none.
pub(super) fn header_edits_to_wire(edits: &HeaderEdits) -> Option<proto::HeaderEdits> {
    (!edits.is_empty()).then(|| proto::HeaderEdits {
        set: edits.set.iter().map(header_to_wire).collect(),
        add: edits.add.iter().map(header_to_wire).collect(),
        remove: edits.remove.clone(),
    })
}

pub(super) fn header_to_wire(header: &Header) -> proto::Header {
    proto::Header { name: header.name.clone(), value: header.value.clone() }
}

pub(super) fn header_from_wire(wire: proto::Header) -> Result<Header, InvalidField> {
    if !HeaderEdits::is_valid_value(&wire.value) {
        return Err(InvalidField::new("value", "is not a valid header value"));
    }
    Ok(Header { name: parse_editable_name("name", wire.name)?, value: wire.value })
}

/// Parses the header edits in a field; an absent field has none.
pub(super) fn parse_header_edits(
    field: &'static str,
    wire: Option<proto::HeaderEdits>,
) -> Result<HeaderEdits, InvalidField> {
    let edits = wire.map(header_edits_from_wire).transpose();
    edits.map(Option::unwrap_or_default).map_err(|invalid| invalid.with_parent(field))
}

/// Parses header edits. Names and values are copied into messages, so names and values that could break a
/// message are rejected.
fn header_edits_from_wire(wire: proto::HeaderEdits) -> Result<HeaderEdits, InvalidField> {
    let edits = HeaderEdits {
        set: convert_each("set", wire.set, header_from_wire)?,
        add: convert_each("add", wire.add, header_from_wire)?,
        remove: convert_each("remove", wire.remove, |name| parse_editable_name("", name))?,
    };
    let mut names = BTreeSet::new();
    let headers = edits.set.iter().chain(&edits.add).map(|header| &header.name);
    match headers.chain(&edits.remove).find(|name| !names.insert(*name)) {
        Some(name) => Err(InvalidField::new("set", format!("the header `{name}` is edited twice"))),
        None => Ok(edits),
    }
}

fn parse_editable_name(field: &str, name: String) -> Result<String, InvalidField> {
    match HeaderEdits::is_valid_name(&name) && HeaderEdits::may_edit(&name) {
        true => Ok(name),
        false => {
            Err(InvalidField::new(field, format!("`{name}` is not a header that a rule may edit")))
        }
    }
}

fn redirect_to_wire(redirect: &Redirect) -> proto::Redirect {
    let scheme = match redirect.scheme {
        None => proto::Scheme::Unspecified,
        Some(Scheme::Http) => proto::Scheme::Http,
        Some(Scheme::Https) => proto::Scheme::Https,
    };
    proto::Redirect {
        scheme: scheme.into(),
        hostname: redirect.hostname.as_ref().map(ToString::to_string),
        path: redirect.path.as_ref().map(path_to_wire),
        port: redirect.port.map(u32::from),
        status: redirect.status.into(),
    }
}

fn redirect_from_wire(
    wire: proto::Redirect,
    matches: &[RequestMatch],
) -> Result<Redirect, InvalidField> {
    let scheme = match proto::Scheme::try_from(wire.scheme) {
        Ok(proto::Scheme::Unspecified) => None,
        Ok(proto::Scheme::Http) => Some(Scheme::Http),
        Ok(proto::Scheme::Https) => Some(Scheme::Https),
        Err(_) => return Err(InvalidField::new("scheme", "is unknown to this version")),
    };
    let status = u16::try_from(wire.status).unwrap_or_default();
    if !Redirect::STATUSES.contains(&status) {
        return Err(InvalidField::new(
            "status",
            format!("{} is not a redirect status", wire.status),
        ));
    }
    Ok(Redirect {
        scheme,
        hostname: parse_optional_name("hostname", wire.hostname.as_deref())?,
        path: path_from_wire(wire.path, matches)?,
        port: wire.port.map(|number| parse_port("port", number)).transpose()?,
        status,
    })
}

pub(super) fn rewrite_to_wire(rewrite: &UrlRewrite) -> proto::UrlRewrite {
    proto::UrlRewrite {
        hostname: rewrite.hostname.as_ref().map(ToString::to_string),
        path: rewrite.path.as_ref().map(path_to_wire),
    }
}

pub(super) fn rewrite_from_wire(
    wire: proto::UrlRewrite,
    matches: &[RequestMatch],
) -> Result<UrlRewrite, InvalidField> {
    Ok(UrlRewrite {
        hostname: parse_optional_name("hostname", wire.hostname.as_deref())?,
        path: path_from_wire(wire.path, matches)?,
    })
}

fn path_to_wire(path: &PathEdit) -> proto::PathEdit {
    use proto::path_edit::Edit;
    let edit = match path {
        PathEdit::Full(path) => Edit::Full(path.clone()),
        PathEdit::Prefix(path) => Edit::Prefix(path.clone()),
    };
    proto::PathEdit { edit: Some(edit) }
}

/// Parses a path edit. A prefix can be replaced only if the rule has a single match of a prefix or of any path.
fn path_from_wire(
    wire: Option<proto::PathEdit>,
    matches: &[RequestMatch],
) -> Result<Option<PathEdit>, InvalidField> {
    use proto::path_edit::Edit;
    let Some(wire) = wire else { return Ok(None) };
    let replaces_prefix =
        matches!(matches, [RequestMatch { path: PathMatch::Any | PathMatch::Prefix(_), .. }]);
    match wire.edit {
        Some(Edit::Full(path)) if PathEdit::is_valid_path(&path) => Ok(Some(PathEdit::Full(path))),
        Some(Edit::Prefix(path))
            if replaces_prefix && (path.is_empty() || PathEdit::is_valid_path(&path)) =>
        {
            Ok(Some(PathEdit::Prefix(path)))
        }
        Some(_) => Err(InvalidField::new("path", "is not a path, or does not replace a prefix")),
        None => Err(InvalidField::new("path", "is empty, or unknown to this version")),
    }
}
