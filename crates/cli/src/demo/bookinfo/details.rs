//! The details service: facts about a book.

use hyper::StatusCode;

use super::answer::{Answer, json_response, not_found};
use super::catalogue::Book;

/// Serves `/details/ID`.
pub(super) fn serve_details(path: &str) -> Answer {
    match Book::from_path(path, "/details/") {
        Some(book) => json_response(StatusCode::OK, book),
        None => not_found(path),
    }
}
