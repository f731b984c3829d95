//! Books of the demo shop, and their reviews.

use serde::Serialize;

/// A book.
#[derive(Debug, Serialize)]
pub(super) struct Book {
    pub(super) id: u32,
    pub(super) title: &'static str,
    pub(super) author: &'static str,
    pub(super) year: u32,
    pub(super) pages: u32,
    #[serde(rename = "type")]
    pub(super) binding: &'static str,
    pub(super) publisher: &'static str,
    pub(super) language: &'static str,
    #[serde(skip)]
    pub(super) blurb: &'static str,
    #[serde(skip)]
    pub(super) opinions: [Opinion; 2],
}

/// The opinion of one reader.
#[derive(Debug)]
pub(super) struct Opinion {
    pub(super) reviewer: &'static str,
    pub(super) text: &'static str,
    pub(super) stars: u8,
}

impl Book {
    /// Returns the book at the end of a path, as in `/details/1`; `None` unless the whole path matches.
    pub(super) fn from_path(path: &str, prefix: &str) -> Option<&'static Self> {
        path.strip_prefix(prefix).and_then(Self::with_id)
    }

    /// Returns the book with this number.
    pub(super) fn with_id(id: &str) -> Option<&'static Self> {
        // The parser alone would accept `+1`.
        let is_decimal = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let id: usize = id.parse().ok().filter(|_| is_decimal)?;
        BOOKS.get(id)
    }
}

/// All books, each at the index of its ID.
pub(super) static BOOKS: [Book; 4] = [
    Book {
        id: 0,
        title: "The Comedy of Errors",
        author: "William Shakespeare",
        year: 1595,
        pages: 200,
        binding: "paperback",
        publisher: "First Folio Press",
        language: "English",
        blurb: "Two pairs of twins, parted by a shipwreck, come to the same town on the same day.",
        opinions: [
            Opinion {
                reviewer: "Adriana",
                text: "I laughed until my own husband locked me out.",
                stars: 5,
            },
            Opinion {
                reviewer: "Egeon",
                text: "Good, but I would have liked to be told sooner who was who.",
                stars: 4,
            },
        ],
    },
    Book {
        id: 1,
        title: "The Loom of Penelope",
        author: "A. Weaver",
        year: 1888,
        pages: 312,
        binding: "hardcover",
        publisher: "Warp & Weft",
        language: "English",
        blurb: "What is woven by day is undone by night, for twenty years, and nobody notices.",
        opinions: [
            Opinion {
                reviewer: "Laertes",
                text: "The middle repeats itself, on purpose I am told.",
                stars: 3,
            },
            Opinion {
                reviewer: "Eurycleia",
                text: "Patient, exact and quietly furious. Read it twice.",
                stars: 5,
            },
        ],
    },
    Book {
        id: 2,
        title: "A Journey Round My Server Room",
        author: "X. de Maistre the Younger",
        year: 1994,
        pages: 142,
        binding: "paperback",
        publisher: "Cold Aisle",
        language: "English",
        blurb: "Forty-two days of house arrest among machines that hum in slightly different keys.",
        opinions: [
            Opinion {
                reviewer: "Operator",
                text: "Every word is true, and the fan in rack nine still rattles.",
                stars: 4,
            },
            Opinion {
                reviewer: "Auditor",
                text: "Where is the chapter about fire doors?",
                stars: 2,
            },
        ],
    },
    Book {
        id: 3,
        title: "Gauze and Effect",
        author: "L. Eno",
        year: 2021,
        pages: 256,
        binding: "paperback",
        publisher: "Warp & Weft",
        language: "English",
        blurb: "Why the lightest cloth holds best: threads that twist around each other cannot slip.",
        opinions: [
            Opinion {
                reviewer: "Draper",
                text: "Open, strong and weighs nothing at all.",
                stars: 5,
            },
            Opinion {
                reviewer: "Sailmaker",
                text: "Lovely, though I would not sail with it.",
                stars: 4,
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_a_book_is_its_id() {
        for (index, book) in BOOKS.iter().enumerate() {
            assert_eq!(usize::try_from(book.id), Ok(index));
            assert!(book.opinions.iter().all(|opinion| (1..=5).contains(&opinion.stars)));
        }
    }

    #[test]
    fn book_ids_are_decimal_numbers() {
        assert_eq!(Book::from_path("/details/1", "/details/").map(|book| book.id), Some(1));
        for invalid in ["/details/", "/details/+1", "/details/1/", "/details/4", "/details/-0"] {
            assert!(Book::from_path(invalid, "/details/").is_none(), "{invalid}");
        }
    }
}
