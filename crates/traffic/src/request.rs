//! A request as rules see it: method, path, authority, headers, query.

use std::borrow::Cow;

use leno_model::Repeated;

/// What rules look at. All of it is borrowed from the received bytes.
#[derive(Clone, Copy)]
pub struct RequestView<'a> {
    /// The method, as sent; methods are case-sensitive.
    pub method: &'a str,
    /// The path as sent, without the query.
    pub path: &'a str,
    /// What followed the first `?`, if there was one.
    pub query: Option<&'a str>,
    /// Whom the request is for: host and, if it was sent, port.
    pub authority: &'a str,
    /// Its headers.
    pub fields: &'a dyn Fields,
}

/// The headers of a request, found by name.
pub trait Fields {
    /// All values of this lower-case header name joined by `", "`; `None` when it is absent.
    fn find(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The first value of this lower-case header name; `None` when it is absent.
    fn first(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The values of a claim of the token that the request shows, when that was verified.
    fn claim(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }
}

/// A header's value as rules see it.
pub(crate) fn header<'a>(
    request: &RequestView<'a>,
    name: &str,
    repeated: Repeated,
) -> Option<Cow<'a, str>> {
    match (name, repeated) {
        (":authority" | "host", _) => Some(Cow::Borrowed(request.authority)),
        (name, Repeated::Joined) => request.fields.find(name),
        (name, Repeated::First) => request.fields.first(name),
    }
}

/// Headers in a list, for tools and tests.
impl Fields for Vec<(String, String)> {
    fn find(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str());
        let first = values.next()?;
        let mut joined = Cow::Borrowed(first);
        for value in values {
            let text = joined.to_mut();
            text.push_str(", ");
            text.push_str(value);
        }
        Some(joined)
    }

    fn first(&self, name: &str) -> Option<Cow<'_, str>> {
        let named = self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| Cow::Borrowed(value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_repeated_headers_and_ignores_case() {
        let fields = vec![
            ("Accept".to_owned(), "a".to_owned()),
            ("x".to_owned(), "1".to_owned()),
            ("accept".to_owned(), "b".to_owned()),
        ];
        assert_eq!(fields.find("accept").as_deref(), Some("a, b"));
        assert_eq!(fields.find("x").as_deref(), Some("1"));
        assert_eq!(fields.find("y"), None);
        assert_eq!(fields.first("accept").as_deref(), Some("a"));
        assert_eq!(fields.first("y"), None);
    }
}
