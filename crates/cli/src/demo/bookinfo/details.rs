//! The details service: publisher, language and other details of a book.

use hyper::StatusCode;

use super::catalogue::Book;
use super::response::{DemoResponse, json_response, not_found};

/// Serves `/details/ID`.
pub(super) fn serve_details(path: &str) -> DemoResponse {
    match Book::from_path(path, "/details/") {
        Some(book) => json_response(StatusCode::OK, book),
        None => not_found(path),
    }
}
