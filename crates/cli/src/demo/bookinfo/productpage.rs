//! The productpage service: serves a book with its details and reviews, as HTML and as JSON.

use hyper::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};

use super::catalogue::{BOOKS, Book};
use super::page;
use super::response::{
    DemoResponse, html_response, json_response, not_found, unavailable_response,
};
use super::upstream::{UpstreamClient, UpstreamError};

/// Serves `/`, `/productpage?id=ID`, `/api/v1/products` and `/api/v1/products/ID`.
pub(super) async fn serve_page(
    upstream: &UpstreamClient,
    uri: &Uri,
    headers: &HeaderMap,
) -> DemoResponse {
    match uri.path() {
        "/" => html_response(StatusCode::OK, page::render_shelf(&BOOKS)),
        "/productpage" => {
            let id = query_parameter(uri, "id").unwrap_or("0");
            match Book::with_id(id) {
                Some(book) => render_page_response(upstream, book, headers).await,
                None => not_found(uri.path()),
            }
        }
        "/api/v1/products" => {
            let to_product = |book: &Book| json!({"id": book.id, "title": book.title});
            json_response(StatusCode::OK, &BOOKS.iter().map(to_product).collect::<Vec<_>>())
        }
        path => match Book::from_path(path, "/api/v1/products/") {
            Some(book) => render_json_response(upstream, book, headers).await,
            None => not_found(path),
        },
    }
}

async fn render_page_response(
    upstream: &UpstreamClient,
    book: &Book,
    headers: &HeaderMap,
) -> DemoResponse {
    let (details, reviews) = fetch_details_and_reviews(upstream, book, headers).await;
    let is_complete = details.is_ok() && reviews.is_ok();
    let status = if is_complete { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    html_response(status, page::render_product(book, &details, &reviews))
}

async fn render_json_response(
    upstream: &UpstreamClient,
    book: &Book,
    headers: &HeaderMap,
) -> DemoResponse {
    match fetch_details_and_reviews(upstream, book, headers).await {
        (Ok(details), Ok(reviews)) => {
            let product = json!({
                "id": book.id,
                "title": book.title,
                "details": details,
                "reviews": reviews,
            });
            json_response(StatusCode::OK, &product)
        }
        (Err(error), _) | (_, Err(error)) => unavailable_response(&error),
    }
}

/// Fetches details and reviews concurrently.
async fn fetch_details_and_reviews(
    upstream: &UpstreamClient,
    book: &Book,
    headers: &HeaderMap,
) -> (Result<Value, UpstreamError>, Result<Value, UpstreamError>) {
    let details_path = format!("/details/{}", book.id);
    let reviews_path = format!("/reviews/{}", book.id);
    tokio::join!(
        upstream.get_json("details", &details_path, headers),
        upstream.get_json("reviews", &reviews_path, headers),
    )
}

fn query_parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}
