//! The API gateway in front of ratings, which forwards `/ratings/...`.

use http_body_util::Full;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Response, Uri};

use super::answer::{Answer, not_found, unavailable_response};
use super::upstream::UpstreamClient;

/// Forwards `/ratings/...`, and returns the response of ratings or of the mesh unchanged.
pub(super) async fn forward_ratings(
    upstream: &UpstreamClient,
    uri: &Uri,
    headers: &HeaderMap,
) -> Answer {
    if !uri.path().starts_with("/ratings/") {
        return not_found(uri.path());
    }
    let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
    match upstream.get_reply("ratings", target, headers).await {
        Ok(reply) => {
            let mut answer = Response::new(Full::new(reply.body));
            *answer.status_mut() = reply.status;
            if let Some(content_type) = reply.headers.get(CONTENT_TYPE) {
                answer.headers_mut().insert(CONTENT_TYPE, content_type.clone());
            }
            answer
        }
        Err(error) => unavailable_response(&error),
    }
}
