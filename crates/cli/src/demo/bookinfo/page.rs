//! Renders the self-contained HTML pages of the demo shop.

use std::fmt::{self, Write as _};

use serde_json::Value;

use super::catalogue::Book;
use super::upstream::UpstreamError;

/// Renders the list of all books.
pub(super) fn render_shelf(books: &[Book]) -> String {
    let mut body = String::from("<h1>Bookinfo</h1><ul class=shelf>");
    for book in books {
        let (id, title, author) = (book.id, Escaped(book.title), Escaped(book.author));
        append_format(
            &mut body,
            format_args!(
                "<li><a href=\"/productpage?id={id}\">{title}</a> <small>{author}</small></li>"
            ),
        );
    }
    body.push_str("</ul>");
    render_document("Bookinfo", &body)
}

/// Renders one book. Details or reviews that could not be fetched are replaced by the error.
pub(super) fn render_product(
    book: &Book,
    details: &Result<Value, UpstreamError>,
    reviews: &Result<Value, UpstreamError>,
) -> String {
    let (title, author) = (Escaped(book.title), Escaped(book.author));
    let mut body = String::with_capacity(TYPICAL_PAGE_BYTES);
    append_format(
        &mut body,
        format_args!(
            "<p><a href=\"/\">All books</a></p><h1>{title}</h1><p class=by>{author}</p><p>{}</p>",
            Escaped(book.blurb),
        ),
    );
    body.push_str("<div class=columns><section><h2>Details</h2>");
    append_value_or_error(&mut body, details, append_details);
    body.push_str("</section><section><h2>Reviews</h2>");
    append_value_or_error(&mut body, reviews, append_reviews);
    body.push_str("</section></div>");
    render_document(book.title, &body)
}

fn append_value_or_error(
    body: &mut String,
    outcome: &Result<Value, UpstreamError>,
    append_value: fn(&mut String, &Value),
) {
    match outcome {
        Ok(value) => append_value(body, value),
        Err(error) => {
            let error = error.to_string();
            append_format(body, format_args!("<p class=error>{}</p>", Escaped(&error)));
        }
    }
}

fn append_details(body: &mut String, details: &Value) {
    body.push_str("<dl>");
    for (label, field) in [
        ("Type", "type"),
        ("Pages", "pages"),
        ("Year", "year"),
        ("Publisher", "publisher"),
        ("Language", "language"),
    ] {
        let text = match &details[field] {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        append_format(body, format_args!("<dt>{label}</dt><dd>{}</dd>", Escaped(&text)));
    }
    body.push_str("</dl>");
}

fn append_reviews(body: &mut String, reviews: &Value) {
    for review in reviews["reviews"].as_array().into_iter().flatten() {
        let text = review["text"].as_str().unwrap_or_default();
        let reviewer = review["reviewer"].as_str().unwrap_or_default();
        append_format(
            body,
            format_args!("<blockquote>{}<footer>{}", Escaped(text), Escaped(reviewer)),
        );
        if let Some(stars) = review["rating"]["stars"].as_u64() {
            let full_stars = usize::try_from(stars).unwrap_or(MAX_STARS).min(MAX_STARS);
            let class = match review["rating"]["color"].as_str() {
                Some("red") => "red",
                _ => "black",
            };
            append_format(
                body,
                format_args!(
                    " <span class=\"stars {class}\" title=\"{full_stars} of {MAX_STARS}\">{}{}</span>",
                    "★".repeat(full_stars),
                    "☆".repeat(MAX_STARS - full_stars),
                ),
            );
        }
        body.push_str("</footer></blockquote>");
    }
    let version = reviews["version"].as_str().unwrap_or("unknown");
    append_format(body, format_args!("<p class=by>Served by reviews {}</p>", Escaped(version)));
}

fn render_document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\"><title>{}</title>\
         <style>{STYLE}</style></head><body><main>{body}</main></body></html>",
        Escaped(title),
    )
}

fn append_format(body: &mut String, arguments: fmt::Arguments<'_>) {
    body.write_fmt(arguments).expect("writing to a String never fails");
}

/// Text with HTML markup escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

const MAX_STARS: usize = 5;

/// The initial capacity of a page, in bytes; slightly more than the size of a page with two reviews.
const TYPICAL_PAGE_BYTES: usize = 4096;

const STYLE: &str = "body{margin:0;background:#f6f4ef;color:#222;font:17px/1.55 Georgia,serif}\
main{max-width:50rem;margin:3rem auto;padding:0 1.5rem}h1{margin:.2rem 0;font-size:2.2rem}\
h2{font-size:1.05rem;text-transform:uppercase;letter-spacing:.08em;color:#2f6f6a}\
a{color:#2f6f6a}.by,small{color:#777}.columns{display:grid;grid-template-columns:1fr 2fr;\
gap:2.5rem;border-top:1px solid #ddd8cc;margin-top:1.5rem}\
dl{display:grid;grid-template-columns:auto 1fr;gap:.2rem 1rem}dt{color:#777}dd{margin:0}\
blockquote{margin:0 0 1.4rem;padding-left:1rem;border-left:3px solid #ddd8cc}\
footer{color:#777;font-size:.9em}.stars{letter-spacing:.1em}.black{color:#222}.red{color:#c0392b}\
.error{color:#c0392b}.shelf{line-height:2}\
@media(max-width:38rem){.columns{grid-template-columns:1fr}}";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::catalogue::BOOKS;
    use super::*;

    #[test]
    fn text_of_other_services_is_escaped() {
        let details = Ok(json!({"publisher": "<script>alert(1)</script>"}));
        let reviews = Ok(json!({
            "version": "<v9>",
            "reviews": [{"reviewer": "\"A&B\"", "text": "<b>", "rating": {"stars": 99}}],
        }));
        let page = render_product(&BOOKS[0], &details, &reviews);
        assert!(!page.contains("<script>") && !page.contains("<b>") && !page.contains("<v9>"));
        assert!(page.contains("&lt;script&gt;") && page.contains("&quot;A&amp;B&quot;"));
        assert!(page.contains("★★★★★<"), "more stars than there are count as all");
    }

    #[test]
    fn the_shelf_links_every_book() {
        let page = render_shelf(&BOOKS);
        for book in &BOOKS {
            assert!(page.contains(&format!("/productpage?id={}", book.id)));
        }
    }
}
