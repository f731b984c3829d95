//! The details service: facts about a book.

use hyper::StatusCode;

use super::answer::{Answer, json, not_found};
use super::catalogue::Book;

/// Serves `/details/ID`.
pub(super) fn answer(path: &str) -> Answer {
    match Book::at(path, "/details/") {
        Some(book) => json(StatusCode::OK, book),
        None => not_found(path),
    }
}
