//! Builds the responses of the demo services: JSON, an HTML page, or an error with its reason.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::upstream::UpstreamError;

/// A complete response.
pub(super) type DemoResponse = Response<Full<Bytes>>;

/// Returns a value as JSON; 500 if it cannot be serialized.
pub(super) fn json_response(status: StatusCode, value: &impl Serialize) -> DemoResponse {
    match serde_json::to_vec(value) {
        Ok(body) => build_response(status, "application/json", body),
        Err(_) => build_response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", Vec::new()),
    }
}

/// Returns an HTML page.
pub(super) fn html_response(status: StatusCode, page: String) -> DemoResponse {
    build_response(status, "text/html; charset=utf-8", page)
}

/// Returns 404 for an unknown path or product.
pub(super) fn not_found(path: &str) -> DemoResponse {
    let value = json!({"error": "not found", "path": path});
    json_response(StatusCode::NOT_FOUND, &value)
}

/// Returns 405: only GET and HEAD are served.
pub(super) fn method_not_allowed() -> DemoResponse {
    let value = json!({"error": "method not allowed: use GET"});
    let mut response = json_response(StatusCode::METHOD_NOT_ALLOWED, &value);
    let allowed_methods = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(ALLOW, allowed_methods);
    response
}

/// Returns 503 with the reason, after a failed call to another service.
pub(super) fn unavailable_response(error: &UpstreamError) -> DemoResponse {
    let value = json!({
        "error": error.to_string(),
        "service": error.service,
        "status": error.response_status().map(|status| status.as_u16()),
        "reason": error.reason(),
    });
    json_response(StatusCode::SERVICE_UNAVAILABLE, &value)
}

/// Returns a response with a body of any content type.
pub(super) fn build_response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> DemoResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
