//! Sample requests of the benchmarks.

use leno_traffic::RequestView;

/// A sample request.
pub(crate) struct SampleRequest {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) fields: Vec<(String, String)>,
}

impl SampleRequest {
    pub(crate) fn request_view(&self) -> RequestView<'_> {
        RequestView {
            method: self.method,
            path: self.path,
            query: Some("limit=10"),
            authority: "reviews.bookinfo:9080",
            fields: &self.fields,
        }
    }
}

/// Returns a GET request for this path.
pub(crate) fn sample_request(path: &str) -> SampleRequest {
    let fields = [
        ("host", "reviews.bookinfo:9080"),
        ("user-agent", "python-requests/2.32.3"),
        ("accept", "application/json"),
        ("x-canary", "never"),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    SampleRequest { method: on_a_page("GET"), path: on_a_page(path), fields: fields.to_vec() }
}

/// Copies a text to the start of a memory page. The C library compares texts near the end of a page in another way, and
/// the address of a literal changes with every build, so that the instruction counts would differ.
pub(crate) fn on_a_page(text: &str) -> &'static str {
    #[repr(align(4096))]
    struct Page([u8; 32]);
    let Page(page) = Box::leak(Box::new(Page([0; 32])));
    let (target, _) = page.split_at_mut(text.len());
    target.copy_from_slice(text.as_bytes());
    std::str::from_utf8(target).expect("the copy of a text is UTF-8")
}

/// A random number. It is odd, so that its multiples are spread over all numbers.
pub(crate) const RANDOM_NUMBER: u64 = 0x9E37_79B9_7F4A_7C15;
