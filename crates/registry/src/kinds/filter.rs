//! Reads the filters of Gateway API `HTTPRoute` and `GRPCRoute` rules, and the filters of backends in these rules.

use std::net::IpAddr;

use leno_model::literal_path::LITERAL_PATH;
use leno_model::{
    BackendEdits, EDITABLE_HEADER, HEADER_VALUE, Header, HeaderEdits, Name, PathEdit, PathMatch,
    Redirect, RequestMatch, RuleActions, Scheme, UrlRewrite,
};

use super::{cors, mirror};
use crate::field::{Field, MapFields};
use crate::schema_reader::read_text;

/// The kind of the route that contains a filter. A `GRPCRoute` has no redirect, rewrite, or CORS filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteFamily {
    Http,
    Grpc,
}

/// Reads the field `filters` of a rule into `actions`. `matches` are the matches of the rule: a filter can replace the
/// matched prefix of a path only if the rule has a single match, by prefix.
pub(super) fn read(
    rule: &MapFields<'_>,
    family: RouteFamily,
    namespace: &Name,
    matches: &[RequestMatch],
    actions: &mut RuleActions,
) {
    let Some(field) = rule.find("filters") else { return };
    let mut preceding_types = Vec::new();
    for filter in field.read_list(MAX_FILTERS).unwrap_or_default() {
        let Some((filter_type, config)) =
            read_type_and_config(&filter, FilterType::supported_in_rules(family))
        else {
            continue;
        };
        if preceding_types.contains(&filter_type) && filter_type != FilterType::Mirror {
            filter.reject(format!("is a second {}", filter_type.type_name()), "join the two");
        }
        preceding_types.push(filter_type);
        match filter_type {
            FilterType::RequestHeaders => actions.request_headers = read_headers(&config),
            FilterType::ResponseHeaders => actions.response_headers = read_headers(&config),
            FilterType::Redirect => actions.redirect = read_redirect(&config, matches),
            FilterType::Rewrite => actions.rewrite = read_rewrite(&config, matches),
            FilterType::Mirror => actions.mirrors.extend(mirror::read(&config, namespace)),
            FilterType::Cors => actions.cors = cors::read(&config),
        }
    }
    let filter_types = preceding_types;
    if filter_types.contains(&FilterType::Redirect) && filter_types.contains(&FilterType::Rewrite) {
        field.reject(
            "has a RequestRedirect and a URLRewrite, of which a rule may have one",
            "remove one of the two",
        );
    }
    if actions.mirrors.len() > RuleActions::MAX_MIRRORS {
        field.reject(
            format!("has {} RequestMirrors", actions.mirrors.len()),
            format!("use at most {}", RuleActions::MAX_MIRRORS),
        );
    }
    // `read_backends` bounds the number of backends; here only an empty list makes a difference.
    let backends = rule.find("backendRefs").and_then(|field| field.read_list(usize::MAX));
    if filter_types.contains(&FilterType::Redirect) && backends.is_some_and(|list| !list.is_empty())
    {
        field.reject(
            "has a RequestRedirect, so `backendRefs` receive no requests",
            "remove the filter or `backendRefs`",
        );
    }
}

/// Reads the filters of a backend in a rule with these matches; `None` if they are absent or change nothing.
pub(super) fn read_backend_filters(
    backend: &MapFields<'_>,
    family: RouteFamily,
    matches: &[RequestMatch],
) -> Option<Box<BackendEdits>> {
    let mut edits = BackendEdits::default();
    let mut preceding_types = Vec::new();
    for filter in backend.find("filters")?.read_list(MAX_FILTERS)? {
        let supported_types = FilterType::supported_in_backends(family);
        let Some((filter_type, config)) = read_type_and_config(&filter, supported_types) else {
            continue;
        };
        if preceding_types.contains(&filter_type) {
            filter.reject(format!("is a second {}", filter_type.type_name()), "join the two");
        }
        preceding_types.push(filter_type);
        match filter_type {
            FilterType::RequestHeaders => edits.request_headers = read_headers(&config),
            FilterType::Rewrite => edits.rewrite = read_rewrite(&config, matches),
            // The only other type in `supported_in_backends`.
            _ => edits.response_headers = read_headers(&config),
        }
    }
    (edits != BackendEdits::default()).then(|| Box::new(edits))
}

/// A supported filter type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterType {
    RequestHeaders,
    ResponseHeaders,
    Redirect,
    Rewrite,
    Mirror,
    Cors,
}

impl FilterType {
    /// Returns the value of the filter's field `type`.
    const fn type_name(self) -> &'static str {
        match self {
            Self::RequestHeaders => "RequestHeaderModifier",
            Self::ResponseHeaders => "ResponseHeaderModifier",
            Self::Redirect => "RequestRedirect",
            Self::Rewrite => "URLRewrite",
            Self::Mirror => "RequestMirror",
            Self::Cors => "CORS",
        }
    }

    /// Returns the name of the field that contains the filter's configuration.
    const fn config_field(self) -> &'static str {
        match self {
            Self::RequestHeaders => "requestHeaderModifier",
            Self::ResponseHeaders => "responseHeaderModifier",
            Self::Redirect => "requestRedirect",
            Self::Rewrite => "urlRewrite",
            Self::Mirror => "requestMirror",
            Self::Cors => "cors",
        }
    }

    /// Returns the filters that a rule of this route family may have.
    const fn supported_in_rules(family: RouteFamily) -> &'static [Self] {
        match family {
            RouteFamily::Http => &[
                Self::RequestHeaders,
                Self::ResponseHeaders,
                Self::Redirect,
                Self::Rewrite,
                Self::Mirror,
                Self::Cors,
            ],
            RouteFamily::Grpc => &[Self::RequestHeaders, Self::ResponseHeaders, Self::Mirror],
        }
    }

    /// Returns the filters that a backend in a rule of this route family may have.
    const fn supported_in_backends(family: RouteFamily) -> &'static [Self] {
        match family {
            RouteFamily::Http => &[Self::RequestHeaders, Self::ResponseHeaders, Self::Rewrite],
            RouteFamily::Grpc => &[Self::RequestHeaders, Self::ResponseHeaders],
        }
    }
}

/// Reads the filter type and returns it with the field of its configuration; `None` if the type is unsupported.
fn read_type_and_config<'a>(
    filter: &Field<'a>,
    supported_types: &[FilterType],
) -> Option<(FilterType, Field<'a>)> {
    let fields = filter.read_any_fields()?;
    let choices: Vec<_> =
        supported_types.iter().map(|filter_type| (filter_type.type_name(), *filter_type)).collect();
    let filter_type = fields.require("type")?.read_choice(&choices)?;
    fields.reject_unknown(&["type", filter_type.config_field()]);
    Some((filter_type, fields.require(filter_type.config_field())?.clone()))
}

/// Reads the changes of a header modifier. Two changes of one header are rejected, because their order is undefined.
fn read_headers(config: &Field<'_>) -> HeaderEdits {
    let Some(fields) = config.read_fields(&["set", "add", "remove"]) else {
        return HeaderEdits::default();
    };
    let edits = HeaderEdits {
        set: fields.read_each("set", MAX_HEADERS, read_header),
        add: fields.read_each("add", MAX_HEADERS, read_header),
        remove: fields.read_each("remove", MAX_HEADERS, read_editable_header),
    };
    let header_names =
        edits.set.iter().chain(&edits.add).map(|header| &header.name).chain(&edits.remove);
    let mut sorted_names: Vec<&String> = header_names.collect();
    sorted_names.sort_unstable();
    if let Some([name, _]) = sorted_names.windows(2).find(|pair| matches!(pair, [a, b] if a == b)) {
        config.reject(
            format!("has two changes of the header {name:?}"),
            "name each header once; several values go into one, separated by commas",
        );
    }
    if edits.is_empty() {
        config.warn("changes no header", "add `set`, `add` or `remove`");
    }
    edits
}

/// Reads the name and the value of a header that a filter sets or adds.
pub(super) fn read_header(element: &Field<'_>) -> Option<Header> {
    let fields = element.read_fields(&["name", "value"])?;
    let name = fields.require("name").and_then(read_editable_header);
    let value = fields.require("value").and_then(|field| read_text(field, &HEADER_VALUE));
    Some(Header { name: name?, value: value? })
}

/// Reads the name of a header that a rule may modify, and returns it in lower case.
fn read_editable_header(field: &Field<'_>) -> Option<String> {
    Some(read_text(field, &EDITABLE_HEADER)?.to_ascii_lowercase())
}

/// Reads a `RequestRedirect`. Absent parts of the location are those of the request.
fn read_redirect(config: &Field<'_>, matches: &[RequestMatch]) -> Option<Redirect> {
    let fields = config.read_fields(&["scheme", "hostname", "path", "port", "statusCode"])?;
    let scheme = fields
        .find("scheme")
        .map(|field| field.read_choice(&[("http", Scheme::Http), ("https", Scheme::Https)]));
    let status = fields.find("statusCode").map_or(Some(DEFAULT_REDIRECT_STATUS), |field| {
        let status = field
            .read_number(0, u32::from(u16::MAX))
            .and_then(|status| u16::try_from(status).ok())?;
        let is_redirect = Redirect::STATUSES.contains(&status);
        if !is_redirect {
            field.reject(
                format!("{status} is not a redirect status"),
                "use 301, 302, 303, 307 or 308",
            );
        }
        is_redirect.then_some(status)
    });
    Some(Redirect {
        scheme: scheme.flatten(),
        hostname: fields.find("hostname").and_then(read_hostname),
        path: fields.find("path").and_then(|field| read_path(field, matches)),
        port: fields.find("port").and_then(Field::read_port),
        status: status?,
    })
}

/// Reads a `URLRewrite`.
fn read_rewrite(config: &Field<'_>, matches: &[RequestMatch]) -> Option<UrlRewrite> {
    let fields = config.read_fields(&["hostname", "path"])?;
    let rewrite = UrlRewrite {
        hostname: fields.find("hostname").and_then(read_hostname),
        path: fields.find("path").and_then(|field| read_path(field, matches)),
    };
    if fields.find("hostname").is_none() && fields.find("path").is_none() {
        config.warn("rewrites nothing", "add `hostname` or `path`");
    }
    Some(rewrite)
}

/// Reads a host name that is not an address and has no wildcard.
fn read_hostname(field: &Field<'_>) -> Option<Name> {
    let name = field.read_name()?;
    if name.as_str().parse::<IpAddr>().is_ok() {
        field.reject(format!("{} is an address", field.quoted_value()), "use a host name");
        return None;
    }
    Some(name)
}

/// Reads the path of a redirect or rewrite, which replaces the whole path or the matched prefix.
fn read_path(path: &Field<'_>, matches: &[RequestMatch]) -> Option<PathEdit> {
    let fields = path.read_any_fields()?;
    let replaces_full_path = fields
        .require("type")?
        .read_choice(&[("ReplaceFullPath", true), (REPLACE_PREFIX, false)])?;
    let key = if replaces_full_path { "replaceFullPath" } else { "replacePrefixMatch" };
    fields.reject_unknown(&["type", key]);
    let value = fields.require(key)?;
    if replaces_full_path {
        return read_text(value, &LITERAL_PATH).map(PathEdit::Full);
    }
    let has_single_prefix =
        matches!(matches, [RequestMatch { path: PathMatch::Any | PathMatch::Prefix(_), .. }]);
    if !has_single_prefix {
        path.reject(
            "replaces a prefix, which requires a rule with a single match of the type PathPrefix",
            "use one match with a path of the type PathPrefix",
        );
    }
    match value.read_text()? {
        "" => Some(PathEdit::Prefix(String::new())),
        _ => read_text(value, &LITERAL_PATH).map(PathEdit::Prefix),
    }
}

/// The default status of a redirect, as in the resource's schema.
const DEFAULT_REDIRECT_STATUS: u16 = 302;
/// The path type that replaces the matched prefix.
const REPLACE_PREFIX: &str = "ReplacePrefixMatch";
/// Maximum number of filters per rule or backend, as in the resource's schema.
const MAX_FILTERS: usize = 16;
/// Maximum number of headers per list, as in the resource's schema.
const MAX_HEADERS: usize = 16;
