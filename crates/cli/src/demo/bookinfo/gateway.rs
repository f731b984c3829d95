//! The API gateway in front of ratings, which forwards `/ratings/...`.

use http_body_util::Full;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Response, Uri};

use super::response::{DemoResponse, not_found, unavailable_response};
use super::upstream::UpstreamClient;

/// Forwards `/ratings/...`, and returns the response of ratings or of the mesh unchanged.
pub(super) async fn forward_ratings(
    upstream: &UpstreamClient,
    uri: &Uri,
    headers: &HeaderMap,
) -> DemoResponse {
    if !uri.path().starts_with("/ratings/") {
        return not_found(uri.path());
    }
    let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
    match upstream.get_response("ratings", target, headers).await {
        Ok(upstream_response) => {
            let mut response = Response::new(Full::new(upstream_response.body));
            *response.status_mut() = upstream_response.status;
            if let Some(content_type) = upstream_response.headers.get(CONTENT_TYPE) {
                response.headers_mut().insert(CONTENT_TYPE, content_type.clone());
            }
            response
        }
        Err(error) => unavailable_response(&error),
    }
}
