//! Builds requests to external authorization services (`envoy.service.auth.v3.Authorization/Check`), and decodes their
//! responses to decisions.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use leno_model::{FixedResponse, Header, HeaderEdits, ServiceName, SpiffeId};
use leno_traffic::RequestView;
use leno_traffic::request_checks::{
    CompiledAuthorization, HeaderAction, HeaderChange, request_edits, response_edits,
};
use prost::Message;

use super::CheckError;
use super::protobuf::{
    Address, AttributeRequest, Attributes, CheckRequest, CheckResponse, DeniedResponse,
    HeaderValueOption, HttpRequest, KeyValuePair, OkResponse, Peer, SocketAddress, Time,
};
use crate::http::buffered_body::BufferedExcerpt;
use crate::http::request::Request;

/// The decision of an external authorization service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AuthorizationResult {
    /// The request is allowed, with these edits of the request and response headers.
    Allowed { request: HeaderEdits, response: HeaderEdits },
    /// The request is denied, and the client receives this response.
    Denied(FixedResponse),
}

/// The client and server of a request, as reported to the check service.
pub(crate) struct ConnectionPeers<'a> {
    /// The source address of the connection.
    pub(crate) from: SocketAddr,
    /// The authenticated identity of the client; `None` without mutual TLS.
    pub(crate) client: Option<&'a SpiffeId>,
    /// The address of the application.
    pub(crate) to: SocketAddr,
    /// The identity of this workload.
    pub(crate) server: &'a SpiffeId,
    /// The service of the port, as in metrics; `None` if the port belongs to no service.
    pub(crate) service: Option<&'a ServiceName>,
}

/// Builds the message of a check request. `view`: the attributes of `request` that rules match. `edits`: the header
/// changes of earlier checks. `excerpt`: the beginning of the body, if the rule sends it.
pub(crate) fn build_request(
    rule: &CompiledAuthorization,
    request: &Request<'_>,
    view: &RequestView<'_>,
    edits: &HeaderEdits,
    peers: &ConnectionPeers<'_>,
    excerpt: Option<BufferedExcerpt>,
) -> Vec<u8> {
    let peer = |address: SocketAddr, id: Option<&SpiffeId>| Peer {
        address: Some(Address {
            socket_address: Some(SocketAddress {
                address: address.ip().to_canonical().to_string(),
                port_value: address.port().into(),
            }),
        }),
        service: String::new(),
        principal: id.map(ToString::to_string).unwrap_or_default(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Time {
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(now.subsec_nanos()).unwrap_or(0),
    };
    let path = match view.query {
        Some(query) => format!("{}?{query}", view.path),
        None => view.path.to_owned(),
    };
    let first_value = |name: &str| view.fields.first_value(name).map(|value| value.into_owned());
    let mut headers = select_headers(rule, request, view, edits, &path);
    // Only a complete excerpt has the length of the body.
    let complete_excerpt = excerpt.as_ref().filter(|excerpt| !excerpt.is_partial);
    let body_length = complete_excerpt.and_then(|excerpt| i64::try_from(excerpt.bytes.len()).ok());
    if let Some(excerpt) = &excerpt {
        let value = excerpt.is_partial.to_string();
        headers.push(KeyValuePair { key: PARTIAL_BODY_HEADER.to_owned(), value });
    }
    let declared_length = first_value("content-length").and_then(|length| length.parse().ok());
    let packs_as_bytes = rule.rule.body.is_some_and(|body| body.pack_as_bytes);
    // The service reads one of the two fields, as the rule configures.
    let (body, raw_body) = match excerpt {
        Some(excerpt) if packs_as_bytes => (String::new(), excerpt.bytes),
        Some(excerpt) => (excerpt_text(&excerpt), Bytes::new()),
        None => Default::default(),
    };
    let http = HttpRequest {
        id: first_value("x-request-id").unwrap_or_default(),
        method: view.method.to_owned(),
        headers,
        path,
        host: view.authority.to_owned(),
        scheme: APPLICATION_SCHEME.to_owned(),
        // -1: the length is unknown, as in Envoy.
        size: declared_length.or(body_length).unwrap_or(-1),
        protocol: if request.is_grpc() { "HTTP/2" } else { "HTTP/1.1" }.to_owned(),
        body,
        raw_body,
    };
    let destination = Peer {
        service: peers.service.map(ToString::to_string).unwrap_or_default(),
        ..peer(peers.to, Some(peers.server))
    };
    let context_extensions = rule
        .rule
        .context_extensions
        .iter()
        .map(|(key, value)| KeyValuePair { key: key.clone(), value: value.clone() });
    let attributes = Attributes {
        source: Some(peer(peers.from, peers.client)),
        destination: Some(destination),
        request: Some(AttributeRequest { time: Some(time), http: Some(http) }),
        context_extensions: context_extensions.collect(),
    };
    CheckRequest { attributes: Some(attributes) }.encode_to_vec()
}

/// Converts an excerpt to text for the field `body`, since protobuf strings must be UTF-8. A last character
/// that the excerpt truncates is omitted if all bytes before it are valid.
fn excerpt_text(excerpt: &BufferedExcerpt) -> String {
    let bytes = match std::str::from_utf8(&excerpt.bytes) {
        Err(error) if excerpt.is_partial && error.error_len().is_none() => {
            excerpt.bytes.slice(..error.valid_up_to())
        }
        Ok(_) | Err(_) => excerpt.bytes.clone(),
    };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the headers that the rule selects, each once, in lower case. The values of repeated headers are
/// joined.
fn select_headers(
    rule: &CompiledAuthorization,
    request: &Request<'_>,
    view: &RequestView<'_>,
    edits: &HeaderEdits,
    path: &str,
) -> Vec<KeyValuePair> {
    let is_reported = |name: &str| match &rule.rule.headers {
        None => true,
        Some(names) => names.iter().any(|reported| reported == name),
    };
    let pseudo_headers = [
        (":authority", view.authority),
        (":method", view.method),
        (":path", path),
        (":scheme", APPLICATION_SCHEME),
    ];
    let mut reported_headers: Vec<KeyValuePair> = Vec::new();
    for (key, value) in pseudo_headers {
        // A list of names selects headers, not pseudo-headers; other attributes of the check request contain
        // their values.
        if rule.rule.headers.is_none() {
            reported_headers.push(KeyValuePair { key: key.to_owned(), value: value.to_owned() });
        }
    }
    for field in &request.head.fields {
        let name =
            String::from_utf8_lossy(field.name.slice_in(&request.bytes)).to_ascii_lowercase();
        let value = String::from_utf8_lossy(field.value.slice_in(&request.bytes));
        let is_changed =
            edits.remove.contains(&name) || edits.set.iter().any(|header| header.name == name);
        // Clients must not set the header that marks a partial body.
        if field.hop_by_hop
            || is_changed
            || name == PARTIAL_BODY_HEADER
            || !is_reported(if name == "host" { ":authority" } else { &name })
        {
            continue;
        }
        match reported_headers.iter_mut().find(|existing| existing.key == name) {
            Some(existing) => existing.value.extend([",", &value]),
            None => reported_headers.push(KeyValuePair { key: name, value: value.into_owned() }),
        }
    }
    let added_headers = edits.set.iter().filter(|header| is_reported(&header.name));
    reported_headers.extend(
        added_headers
            .map(|header| KeyValuePair { key: header.name.clone(), value: header.value.clone() }),
    );
    reported_headers
}

/// Decodes a response of the service. `view`: the request; the decision may change its headers.
///
/// # Errors
/// [`CheckError::Grpc`] if the service reported an error, or [`CheckError::Unusable`] if the response cannot be
/// decoded or applied.
pub(crate) fn parse_decision(
    message: Bytes,
    view: &RequestView<'_>,
) -> Result<AuthorizationResult, CheckError> {
    let response = CheckResponse::decode(message).map_err(unusable_response)?;
    if response.error.is_some() {
        return Err(CheckError::Grpc("it reported an error".to_owned()));
    }
    let is_ok = response.status.as_ref().is_none_or(|status| status.code == 0);
    match (is_ok, response.denied, response.ok) {
        // An empty message allows the request, as in Envoy.
        (true, None, ok) => parse_allowed(ok.unwrap_or_default(), view),
        // A denial prevails over a status of OK in the same message.
        (_, denied, _) => {
            Ok(AuthorizationResult::Denied(denied_response(denied.unwrap_or_default())))
        }
    }
}

/// Converts the header options of an allow decision to edits.
fn parse_allowed(
    ok: OkResponse,
    view: &RequestView<'_>,
) -> Result<AuthorizationResult, CheckError> {
    if !ok.query_parameters_to_set.is_empty() || !ok.query_parameters_to_remove.is_empty() {
        return Err(unusable_response("it changes the query string, which is not supported"));
    }
    let convert_options = |options: Vec<HeaderValueOption>, default| {
        options
            .into_iter()
            .map(move |option| header_change(option, default))
            .collect::<Result<Vec<_>, _>>()
    };
    // If a header specifies no append action, the defaults are those of Envoy.
    let request_changes = convert_options(ok.headers, HeaderAction::Replace)?;
    let response_changes = convert_options(ok.response_headers_to_add, HeaderAction::Append)?;
    let removed_names: Vec<String> =
        ok.headers_to_remove.iter().map(|name| name.to_ascii_lowercase()).collect();
    Ok(AuthorizationResult::Allowed {
        request: request_edits(&request_changes, &removed_names, view.fields)
            .map_err(unusable_response)?,
        response: response_edits(&response_changes).map_err(unusable_response)?,
    })
}

/// Converts a denial to the client's response, with the status 403 by default.
fn denied_response(denied: DeniedResponse) -> FixedResponse {
    let code = denied.status.map(|status| status.code).unwrap_or_default();
    let status = u16::try_from(code).ok().filter(|status| FixedResponse::is_valid_status(*status));
    let mut headers = Vec::new();
    for option in denied.headers {
        // Invalid headers are omitted: the request is denied in any case.
        let Ok(HeaderChange { name, value, .. }) = header_change(option, HeaderAction::Append)
        else {
            continue;
        };
        if HeaderEdits::is_valid_name(&name)
            && HeaderEdits::may_edit(&name)
            && HeaderEdits::is_valid_value(&value)
        {
            headers.push(Header { name, value });
        }
    }
    let body = (!denied.body.is_empty()).then_some(denied.body);
    FixedResponse { status: status.or(Some(StatusCode::FORBIDDEN.as_u16())), body, headers }
}

/// Converts a header option. `default` applies if the option does not specify an action. The numbers of
/// `append_action` are those of Envoy's `HeaderAppendAction`; the older field `append` has precedence.
fn header_change(
    option: HeaderValueOption,
    default: HeaderAction,
) -> Result<HeaderChange, CheckError> {
    let header = option.header.unwrap_or_default();
    let value = match header.raw_value.is_empty() {
        true => header.value,
        false => String::from_utf8(header.raw_value).map_err(unusable_response)?,
    };
    let action = match (option.append, option.append_action) {
        (Some(append), _) if append.value => HeaderAction::Append,
        (Some(_), _) | (None, 2) => HeaderAction::Replace,
        (None, 0) => default,
        (None, 1) => HeaderAction::IfAbsent,
        (None, 3) => HeaderAction::IfPresent,
        (None, unknown) => {
            return Err(unusable_response(format!("append_action {unknown} is unknown")));
        }
    };
    Ok(HeaderChange { name: header.key.to_ascii_lowercase(), value, action })
}

fn unusable_response(problem: impl std::fmt::Display) -> CheckError {
    CheckError::Unusable(problem.to_string())
}

/// The path of the gRPC method.
pub(crate) const METHOD: &str = "/envoy.service.auth.v3.Authorization/Check";
/// The header that indicates whether the body is partial.
const PARTIAL_BODY_HEADER: &str = "x-envoy-auth-partial-body";
/// The scheme used towards the application.
const APPLICATION_SCHEME: &str = "http";

#[cfg(test)]
mod tests;
