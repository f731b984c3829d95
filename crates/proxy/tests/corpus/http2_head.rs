//! Properties of heads converted from HTTP/2 to HTTP/1.1 and back, for any fields.

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, request};
use leno_proxy::untrusted::{http2_request, http2_response, to_http2_request, to_http2_response};
use leno_wire::http1::{BodyLength, ParseProgress, RequestHead, RequestKind, ResponseHead};

/// The first byte selects the direction; the rest is either lines of `name: value`, including pseudo-header
/// fields, or an HTTP/1.1 head.
pub(crate) fn check(bytes: &[u8]) {
    let Some((direction, rest)) = bytes.split_first() else { return };
    match direction % 4 {
        0 => check_received_request(rest),
        1 => check_received_response(rest),
        2 => check_sent_request(rest),
        _ => check_sent_response(rest),
    }
}

/// An HTTP/2 request is rejected, or becomes one HTTP/1.1 head with exactly the same method, target, authority
/// and fields.
fn check_received_request(text: &[u8]) {
    let Some(parts) = request_parts(text) else { return };
    let (method, uri, fields) = (parts.method.clone(), parts.uri.clone(), parts.headers.clone());
    let Ok((bytes, is_upgrade)) = http2_request(parts) else { return };
    let mut head = RequestHead::default();
    // An upgrade has fields of its own; its protocol may be one that HTTP/1.1 cannot name.
    let Ok(parsed) = head.parse(&bytes) else { return };
    assert_eq!(parsed, ParseProgress::Complete(bytes.len()), "a head ends where its fields end");
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    assert_eq!(head.target.slice_in(&bytes), target.as_bytes());
    let host = head.host.map(|host| host.slice_in(&bytes)).unwrap_or_default();
    if let Some(authority) = uri.authority() {
        assert!(host.eq_ignore_ascii_case(authority.as_str().as_bytes()));
    }
    assert!(head.body != BodyLength::Chunked, "HTTP/2 has no chunks");
    if is_upgrade {
        assert_eq!(head.method.slice_in(&bytes), b"GET");
        return;
    }
    assert_eq!(head.method.slice_in(&bytes), method.as_str().as_bytes());
    assert!(!head.upgrade && !head.http2);
    let sent: Vec<_> = end_to_end(&fields);
    let fields =
        head.fields.iter().map(|field| (field.name.slice_in(&bytes), field.value.slice_in(&bytes)));
    let mut received: Vec<_> = fields.filter(|(name, _)| !is_alone(name)).collect();
    received.sort_unstable();
    assert_eq!(received, sent);
}

/// True if the request of an input is converted to HTTP/1.1.
pub(crate) fn is_accepted(bytes: &[u8]) -> bool {
    request_parts(&bytes[1..]).is_some_and(|parts| http2_request(parts).is_ok())
}

/// An HTTP/2 response is rejected, or becomes one HTTP/1.1 head with the same status and fields.
fn check_received_response(text: &[u8]) {
    let Some((pseudo, fields)) = parse_lines(text) else { return };
    let Some(status) =
        find_field(&pseudo, ":status").and_then(|value| StatusCode::from_bytes(value).ok())
    else {
        return;
    };
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = fields.clone();
    let bytes = http2_response(&response.into_parts().0);
    let mut head = ResponseHead::default();
    let Ok(parsed) = head.parse(&bytes, RequestKind::default()) else { return };
    assert_eq!(parsed, ParseProgress::Complete(bytes.len()), "a head ends where its fields end");
    assert_eq!(head.status, status.as_u16());
    let received =
        head.fields.iter().map(|field| (field.name.slice_in(&bytes), field.value.slice_in(&bytes)));
    let mut received: Vec<_> = received.filter(|(name, _)| !is_alone(name)).collect();
    received.sort_unstable();
    assert_eq!(received, end_to_end(&fields));
}

/// An HTTP/1.1 request cannot be expressed in HTTP/2, or has no hop-by-hop fields and is the same after the
/// conversion back.
fn check_sent_request(bytes: &[u8]) {
    let mut head = RequestHead::default();
    let Ok(ParseProgress::Complete(length)) = head.parse(bytes) else { return };
    let bytes = &bytes[..length];
    let Some(host) = head.host.and_then(|host| std::str::from_utf8(host.slice_in(bytes)).ok())
    else {
        return;
    };
    let Ok(target) = std::str::from_utf8(head.target.slice_in(bytes)) else { return };
    let Ok(request) = to_http2_request(bytes, &head, "http", host, target) else { return };
    assert_no_hop_by_hop_fields(request.headers());
    let (parts, ()) = request.into_parts();
    let (method, headers) = (parts.method.clone(), parts.headers.clone());
    let Ok((again, _)) = http2_request(parts) else { return };
    let mut second = RequestHead::default();
    if let Ok(parsed) = second.parse(&again) {
        assert_eq!(parsed, ParseProgress::Complete(again.len()));
        assert_eq!(second.method.slice_in(&again), method.as_str().as_bytes());
        let fields = second.fields.iter().filter(|field| !is_alone(field.name.slice_in(&again)));
        assert_eq!(fields.count(), end_to_end(&headers).len());
    }
}

/// An HTTP/1.1 response in HTTP/2 has the same status and no hop-by-hop field.
fn check_sent_response(bytes: &[u8]) {
    let mut head = ResponseHead::default();
    let Ok(ParseProgress::Complete(length)) = head.parse(bytes, RequestKind::default()) else {
        return;
    };
    let Some(response) = to_http2_response(&bytes[..length], &head) else { return };
    assert!(head.tunnel || response.status().as_u16() == head.status);
    assert_no_hop_by_hop_fields(response.headers());
}

/// Asserts that no field is hop-by-hop (RFC 9113 §8.2.2).
fn assert_no_hop_by_hop_fields(fields: &HeaderMap) {
    for name in HOP_BY_HOP {
        assert!(!fields.contains_key(name), "{name}");
    }
    assert!(fields.get_all("te").iter().all(|value| value == "trailers"));
}

/// Returns a request as the codec creates it; `None` if the codec itself rejects it (RFC 9113 §8.2, §8.3).
fn request_parts(text: &[u8]) -> Option<request::Parts> {
    let (pseudo, fields) = parse_lines(text)?;
    let method = Method::from_bytes(find_field(&pseudo, ":method")?).ok()?;
    let mut uri = Uri::builder();
    if let Some(authority) = find_field(&pseudo, ":authority") {
        uri = uri.scheme(Scheme::HTTPS).authority(Authority::try_from(authority).ok()?);
    }
    if let Some(path) = find_field(&pseudo, ":path") {
        let path = PathAndQuery::try_from(path).ok().filter(|path| !path.as_str().is_empty())?;
        uri = uri.path_and_query(path);
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri.build().ok()?;
    *request.headers_mut() = fields;
    if let Some(protocol) = find_field(&pseudo, ":protocol") {
        let protocol = std::str::from_utf8(protocol).ok()?;
        request.extensions_mut().insert(h2::ext::Protocol::from(protocol));
        *request.method_mut() = Method::CONNECT;
    }
    Some(request.into_parts().0)
}

type Pseudo<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Returns the pseudo-header fields and the others; `None` if the HTTP/2 codec rejects the section.
fn parse_lines(text: &[u8]) -> Option<(Pseudo<'_>, HeaderMap)> {
    let (mut pseudo, mut fields) = (Vec::new(), HeaderMap::new());
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let colon = line.iter().skip(1).position(|byte| *byte == b':')? + 1;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.starts_with(b":") {
            pseudo.push((name, value));
            continue;
        }
        let name = HeaderName::from_lowercase(name).ok()?;
        let value = HeaderValue::from_bytes(value).ok()?;
        if HOP_BY_HOP.contains(&name.as_str()) || (name == "te" && value != "trailers") {
            return None;
        }
        fields.try_append(name, value).ok()?;
    }
    Some((pseudo, fields))
}

fn find_field<'a>(pseudo: &Pseudo<'a>, name: &str) -> Option<&'a [u8]> {
    pseudo.iter().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| *value)
}

/// True if the field is written once in all cases: the authority, and the joined cookie.
fn is_alone(name: &[u8]) -> bool {
    name == b"host" || name == b"cookie"
}

/// Returns the fields that must arrive, in order of their names; HTTP/1.1 has no space around values.
fn end_to_end(fields: &HeaderMap) -> Vec<(&[u8], &[u8])> {
    let fields = fields.iter().filter(|(name, _)| *name != HOST && *name != "cookie");
    let fields =
        fields.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes().trim_ascii()));
    let mut fields: Vec<_> = fields.collect();
    fields.sort_unstable();
    fields
}

const HOP_BY_HOP: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
