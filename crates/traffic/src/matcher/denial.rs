//! Matching for rules that deny: whatever the request may mean to the application counts.

use super::{HeaderMatcher, RequestMatcher};
use crate::request::RequestView;
use crate::spelling::{Spelling, hosts, values};

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
            return hosts(request.authority).any(|host| self.value.matches(&host));
        };
        let joined = request.fields.find(name);
        joined.is_some_and(|joined| values(&joined).any(|value| self.value.matches(value)))
    }
}
