//! The ratings service: star ratings of a book.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::answer::{Answer, json_response as json_answer, not_found};
use super::catalogue::Book;

/// Serves `/ratings/ID`.
pub(super) fn serve_ratings(path: &str) -> Answer {
    let Some(book) = Book::from_path(path, "/ratings/") else {
        return not_found(path);
    };
    let ratings: Map<String, Value> = book
        .opinions
        .iter()
        .map(|opinion| (opinion.reviewer.to_owned(), opinion.stars.into()))
        .collect();
    json_answer(StatusCode::OK, &json!({"id": book.id, "ratings": ratings}))
}
