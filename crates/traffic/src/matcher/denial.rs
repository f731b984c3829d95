//! Matching for rules that deny: whatever the request may mean to the application counts.

use super::{HeaderMatcher, RequestMatcher, Spelling};
use crate::request::RequestView;

impl RequestMatcher {
    /// Whether the request, or what an application may make of it, fits. A rule that allows can
    /// afford to be missed by an odd spelling; one that denies cannot.
    ///
    /// * A path counts as it was sent and as it reads when it is decoded; one that climbs fits
    ///   every rule about paths.
    /// * Of a repeated header, or a list in one, each value counts, and all of them joined.
    /// * A host counts as it was sent, and in lower case without port and final dot.
    /// * Methods are compared without regard to case.
    pub(crate) fn may_mean(&self, request: &RequestView<'_>, path: &Spelling) -> bool {
        let fits_path = || {
            path.climbs()
                || self.path.matches(request.path)
                || path.decoded().is_some_and(|decoded| self.path.matches(decoded))
        };
        let methods = &self.methods;
        (methods.is_empty() || methods.iter().any(|m| m.eq_ignore_ascii_case(request.method)))
            && (!self.constrains_path() || fits_path())
            && self.headers.iter().all(|header| header.may_mean(request))
            && self.query.iter().all(|parameter| parameter.matches(request))
    }
}

impl HeaderMatcher {
    fn may_mean(&self, request: &RequestView<'_>) -> bool {
        let Some(name) = &self.name else {
            let host = bare(request.authority);
            return self.value.matches(request.authority) || self.value.matches(&host);
        };
        request.fields.find(name).is_some_and(|values| {
            self.value.matches(&values)
                || values.split(',').any(|value| self.value.matches(value.trim()))
        })
    }
}

/// A host as most applications understand it.
fn bare(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::bare;

    #[test]
    fn a_host_is_the_same_in_every_spelling() {
        for spelling in
            ["admin.shop", "ADMIN.shop", "admin.shop:80", "admin.shop.", "Admin.Shop.:8080"]
        {
            assert_eq!(bare(spelling), "admin.shop", "{spelling}");
        }
        for (spelling, host) in
            [("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a:b", "a:b"), ("", "")]
        {
            assert_eq!(bare(spelling), host, "{spelling}");
        }
    }
}
