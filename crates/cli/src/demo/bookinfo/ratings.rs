//! The ratings service: star ratings of a book.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::catalogue::Book;
use super::response::{DemoResponse, json_response, not_found};

/// Serves `/ratings/ID`.
pub(super) fn serve_ratings(path: &str) -> DemoResponse {
    let Some(book) = Book::from_path(path, "/ratings/") else {
        return not_found(path);
    };
    let ratings: Map<String, Value> = book
        .opinions
        .iter()
        .map(|opinion| (opinion.reviewer.to_owned(), opinion.stars.into()))
        .collect();
    json_response(StatusCode::OK, &json!({"id": book.id, "ratings": ratings}))
}
