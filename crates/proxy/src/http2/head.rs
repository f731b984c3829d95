//! Converts HTTP/2 heads to HTTP/1.1 and back, so that one set of rules applies to both versions.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{
    CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, TE,
};
use http::{Method, Request, Response, StatusCode, Uri, request, response};
use leno_model::Reason;
use leno_wire::http1::{FieldKind, HeaderField, RequestHead, ResponseHead};

/// Returns the request of an HTTP/2 client in HTTP/1.1 format (RFC 9113 §8.3.1, §8.2.3).
///
/// # Errors
/// `bad-request` for two different authorities, `unsupported` for CONNECT.
pub(crate) fn request_to_http1(request_parts: &request::Parts) -> Result<BytesMut, Reason> {
    if request_parts.method == Method::CONNECT {
        return Err(Reason::Unsupported);
    }
    let authority = request_parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let mut hosts = request_parts.headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let host_field = hosts.next();
    if hosts.next().is_some() {
        return Err(Reason::BadRequest);
    }
    let host = match (authority, host_field) {
        (Some(authority), Some(host_field)) if !authority.eq_ignore_ascii_case(host_field) => {
            return Err(Reason::BadRequest);
        }
        (authority, host_field) => authority.or(host_field).unwrap_or_default(),
    };
    let path = request_parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut output = BytesMut::with_capacity(INITIAL_HEAD_BYTES);
    output.put_slice(request_parts.method.as_str().as_bytes());
    output.put_slice(b" ");
    output.put_slice(path.as_bytes());
    output.put_slice(b" HTTP/1.1\r\n");
    put_field(&HOST, host, &mut output);
    put_fields(&request_parts.headers, &mut output);
    output.put_slice(b"\r\n");
    Ok(output)
}

/// Returns the response of an HTTP/2 server in HTTP/1.1 format.
pub(crate) fn response_to_http1(response_parts: &response::Parts) -> Bytes {
    let mut output = BytesMut::with_capacity(INITIAL_HEAD_BYTES);
    output.put_slice(b"HTTP/1.1 ");
    output.put_slice(response_parts.status.as_str().as_bytes());
    output.put_slice(b" ");
    output.put_slice(response_parts.status.canonical_reason().unwrap_or_default().as_bytes());
    output.put_slice(b"\r\n");
    put_fields(&response_parts.headers, &mut output);
    output.put_slice(b"\r\n");
    output.freeze()
}

/// Returns a trailer section in HTTP/1.1 format, with the fields permitted in trailers (RFC 9110 §6.5.1);
/// `None` if no field is permitted.
pub(super) fn trailers_to_http1(fields: &HeaderMap) -> Option<Bytes> {
    let mut output = BytesMut::with_capacity(INITIAL_TRAILER_BYTES);
    for (name, value) in fields {
        if FieldKind::classify(name.as_str().as_bytes()) == FieldKind::Other {
            put_field(name, value.as_bytes(), &mut output);
        }
    }
    if output.is_empty() {
        return None;
    }
    output.put_slice(b"\r\n");
    Some(output.freeze())
}

/// Appends the fields, without `host`. HTTP/2 may split a cookie into several `cookie` fields, which are joined
/// (RFC 9113 §8.2.3).
fn put_fields(fields: &HeaderMap, output: &mut BytesMut) {
    for (name, value) in fields {
        if name != HOST && name != COOKIE {
            put_field(name, value.as_bytes(), output);
        }
    }
    let mut cookie_fields = fields.get_all(COOKIE).iter();
    if let Some(first_cookie) = cookie_fields.next() {
        output.put_slice(b"cookie: ");
        output.put_slice(first_cookie.as_bytes());
        for cookie in cookie_fields {
            output.put_slice(b"; ");
            output.put_slice(cookie.as_bytes());
        }
        output.put_slice(b"\r\n");
    }
}

fn put_field(name: &HeaderName, value: &[u8], output: &mut BytesMut) {
    output.put_slice(name.as_str().as_bytes());
    output.put_slice(b": ");
    output.put_slice(value);
    output.put_slice(b"\r\n");
}

/// Returns the request in HTTP/2 format, for `target` at `authority` by `scheme`. `bytes`: the bytes from which
/// `head` was parsed.
///
/// # Errors
/// `bad-request` for a head that HTTP/2 cannot express.
pub(crate) fn request_to_http2(
    bytes: &[u8],
    head: &RequestHead,
    scheme: &str,
    authority: &str,
    target: &str,
) -> Result<Request<()>, Reason> {
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build();
    let method = Method::from_bytes(head.method.slice_in(bytes)).map_err(|_| Reason::BadRequest)?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri.map_err(|_| Reason::BadRequest)?;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = fields_to_http2(bytes, &head.fields).ok_or(Reason::BadRequest)?;
    // Every hop supports trailers, and gRPC requires the field (RFC 9113 §8.2.2).
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    Ok(request)
}

/// Appends validated fields, after removing the existing fields named in `replaced_names`.
pub(crate) fn add_fields(
    request: &mut Request<()>,
    added_fields: &[(&str, &[u8])],
    replaced_names: &[&str],
) {
    for name in replaced_names {
        request.headers_mut().remove(*name);
    }
    for (name, value) in added_fields {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            request.headers_mut().append(name, value);
        }
    }
}

/// Returns the response in HTTP/2 format; `None` if HTTP/2 cannot express it. `bytes`: the bytes from which
/// `head` was parsed.
pub(crate) fn response_to_http2(bytes: &[u8], head: &ResponseHead) -> Option<Response<()>> {
    let mut response = Response::new(());
    *response.headers_mut() = fields_to_http2(bytes, &head.fields)?;
    if head.tunnel {
        // RFC 8441 §5: any 2xx accepts the protocol, without a key.
        response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        response.headers_mut().remove(CONTENT_LENGTH);
    } else {
        *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    }
    Some(response)
}

/// Returns the end-to-end fields for HTTP/2 (RFC 9113 §8.2), without `host`; `None` if a field is invalid.
fn fields_to_http2(bytes: &[u8], fields: &[HeaderField]) -> Option<HeaderMap> {
    let mut header_map = HeaderMap::with_capacity(fields.len());
    for field in fields.iter().filter(|field| !field.hop_by_hop && field.kind != FieldKind::Host) {
        let name = HeaderName::from_bytes(field.name.slice_in(bytes)).ok()?;
        header_map.append(name, HeaderValue::from_bytes(field.value.slice_in(bytes)).ok()?);
    }
    Some(header_map)
}

/// Returns a validated trailer section for HTTP/2.
pub(super) fn trailers_to_http2(section: &[u8]) -> HeaderMap {
    let mut header_map = HeaderMap::new();
    for line in section.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let kind = FieldKind::classify(name);
        if let (false, Ok(name), Ok(value)) =
            (kind.is_hop_by_hop(), HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            header_map.append(name, value);
        }
    }
    header_map
}

/// The initial capacity of the buffer for a head.
const INITIAL_HEAD_BYTES: usize = 512;
/// The initial capacity of the buffer for trailers.
const INITIAL_TRAILER_BYTES: usize = 128;

#[cfg(test)]
mod tests;
