//! Responses of the demo services: JSON, a page, or an error with its reason.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::upstream::UpstreamError;

/// A complete response.
pub(super) type Answer = Response<Full<Bytes>>;

/// Returns a value as JSON.
pub(super) fn json_response(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => with_body(status, "application/json", body),
        Err(_) => with_body(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", Vec::new()),
    }
}

/// Returns a page.
pub(super) fn html_response(status: StatusCode, page: String) -> Answer {
    with_body(status, "text/html; charset=utf-8", page)
}

/// Returns 404 for an unknown path or product.
pub(super) fn not_found(path: &str) -> Answer {
    let value = json!({"error": "not found", "path": path});
    json_response(StatusCode::NOT_FOUND, &value)
}

/// Returns 405: only GET and HEAD are served.
pub(super) fn method_not_allowed() -> Answer {
    let value = json!({"error": "method not allowed: use GET"});
    let mut answer = json_response(StatusCode::METHOD_NOT_ALLOWED, &value);
    let allowed = HeaderValue::from_static("GET, HEAD");
    answer.headers_mut().insert(ALLOW, allowed);
    answer
}

/// Returns 503 with the reason, after a failed call to another service.
pub(super) fn unavailable_response(error: &UpstreamError) -> Answer {
    let value = json!({
        "error": error.to_string(),
        "service": error.service,
        "status": error.response_status().map(|status| status.as_u16()),
        "reason": error.reason(),
    });
    json_response(StatusCode::SERVICE_UNAVAILABLE, &value)
}

/// Returns a body of any type.
pub(super) fn with_body(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}
