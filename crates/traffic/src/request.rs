//! The view of a request that rules match: method, path, query, authority and headers.

use std::borrow::Cow;

use leno_model::RepeatedHeader;

/// The attributes of a request that rules match, borrowed from the received bytes.
#[derive(Clone, Copy)]
pub struct RequestView<'a> {
    /// The method as sent; methods are case-sensitive.
    pub method: &'a str,
    /// The path as sent, without the query.
    pub path: &'a str,
    /// The text after the first `?`, if any.
    pub query: Option<&'a str>,
    /// The host, and the port if it was sent.
    pub authority: &'a str,
    /// The headers.
    pub fields: &'a dyn HeaderLookup,
}

/// The headers of a request, by name.
pub trait HeaderLookup {
    /// Returns all values of the header with this lower-case name, joined by `", "`; `None` if it is absent.
    fn joined_values(&self, name: &str) -> Option<Cow<'_, str>>;

    /// Returns the values of all headers with [similar names](is_similar_name), joined by `", "`; `None` if there are
    /// none.
    fn find_similar(&self, name: &str) -> Option<Cow<'_, str>>;

    /// Returns all values of the header with this lower-case name, joined by `", "`; `None` if it is absent, or if a
    /// header with a different [similar name](is_similar_name) is present.
    fn find_unique(&self, name: &str) -> Option<Cow<'_, str>> {
        let values = self.joined_values(name)?;
        // A header with a similar name adds at least a separator.
        let is_unique = self.find_similar(name).is_some_and(|joined| joined.len() == values.len());
        is_unique.then_some(values)
    }

    /// Returns the first value of the header with this lower-case name; `None` if it is absent.
    fn first_value(&self, name: &str) -> Option<Cow<'_, str>>;

    /// Returns the values of a claim in the request's verified token; empty if there is no token or no such claim.
    fn claim_values(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }
}

/// Returns the value of a header that rules match; `None` if it is absent. `:authority` and `host` are the authority.
pub(crate) fn header_value<'a>(
    request: &RequestView<'a>,
    name: &str,
    repeated: RepeatedHeader,
) -> Option<Cow<'a, str>> {
    match (name, repeated) {
        (":authority" | "host", _) => Some(Cow::Borrowed(request.authority)),
        (name, RepeatedHeader::Joined) => request.fields.joined_values(name),
        (name, RepeatedHeader::First) => request.fields.first_value(name),
    }
}

/// True if two header names differ only in case and separators. CGI-like applications read `X_Role` and `x-role` as one
/// variable (RFC 3875 §4.1.18), and PHP also maps `.` to `_`.
#[must_use]
pub fn is_similar_name(first: &[u8], second: &[u8]) -> bool {
    let is_similar = |(first, second): (&u8, &u8)| {
        first.eq_ignore_ascii_case(second)
            || !first.is_ascii_alphanumeric() && !second.is_ascii_alphanumeric()
    };
    first.len() == second.len() && first.iter().zip(second).all(is_similar)
}

/// Looks up headers in a list, for diagnostic tools and tests.
impl HeaderLookup for Vec<(String, String)> {
    fn joined_values(&self, name: &str) -> Option<Cow<'_, str>> {
        let matching_fields =
            self.iter().filter(|(field_name, _)| field_name.eq_ignore_ascii_case(name));
        join_values(matching_fields.map(|(_, value)| value.as_str()))
    }

    fn find_similar(&self, name: &str) -> Option<Cow<'_, str>> {
        let is_similar = |field_name: &str| is_similar_name(field_name.as_bytes(), name.as_bytes());
        let matching_fields = self.iter().filter(|(field_name, _)| is_similar(field_name));
        join_values(matching_fields.map(|(_, value)| value.as_str()))
    }

    fn first_value(&self, name: &str) -> Option<Cow<'_, str>> {
        let header = self.iter().find(|(field_name, _)| field_name.eq_ignore_ascii_case(name));
        header.map(|(_, value)| Cow::Borrowed(value.as_str()))
    }
}

/// Joins values by `", "`; `None` if there are none.
fn join_values<'a>(mut values: impl Iterator<Item = &'a str>) -> Option<Cow<'a, str>> {
    let mut joined = Cow::Borrowed(values.next()?);
    for value in values {
        let joined_text = joined.to_mut();
        joined_text.push_str(", ");
        joined_text.push_str(value);
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_headers_are_joined_regardless_of_case() {
        let fields = vec![
            ("Accept".to_owned(), "a".to_owned()),
            ("x".to_owned(), "1".to_owned()),
            ("accept".to_owned(), "b".to_owned()),
        ];
        assert_eq!(fields.joined_values("accept").as_deref(), Some("a, b"));
        assert_eq!(fields.joined_values("x").as_deref(), Some("1"));
        assert_eq!(fields.joined_values("y"), None);
        assert_eq!(fields.first_value("accept").as_deref(), Some("a"));
        assert_eq!(fields.first_value("y"), None);
    }

    #[test]
    fn names_that_map_to_one_variable_are_similar() {
        for (name, is_similar) in [
            ("x-role", true),
            ("X_Role", true),
            ("X.ROLE", true),
            ("x-roles", false),
            ("xrole", false),
            ("x1role", false),
        ] {
            assert_eq!(is_similar_name(name.as_bytes(), b"x-role"), is_similar, "{name}");
        }
        let fields =
            vec![("X-Role".to_owned(), "a".to_owned()), ("x_role".to_owned(), "b".to_owned())];
        assert_eq!(fields.find_similar("x-role").as_deref(), Some("a, b"));
        assert_eq!(fields.find_similar("x_role").as_deref(), Some("a, b"));
        assert_eq!(fields.find_similar("role"), None);
        assert_eq!(fields.find_unique("x-role"), None);
        let fields =
            vec![("X-Role".to_owned(), "a".to_owned()), ("x-role".to_owned(), "b".to_owned())];
        assert_eq!(fields.find_unique("x-role").as_deref(), Some("a, b"));
        assert_eq!(fields.find_unique("x_role"), None);
    }
}
