//! Session affinity of one request.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId};

use crate::compiled_snapshot::{CompiledPort, CompiledSnapshot};
use crate::request::RequestView;
use crate::route::{CompiledRouteRule, RouteChoice};
use crate::session_persistence::{CompiledPersistence, EndpointNames};

/// A request under session persistence: its endpoint, and the response field for its client.
#[derive(Debug, Clone)]
pub struct SessionAffinity {
    persistence: Arc<CompiledPersistence>,
    /// The endpoint of the session, and the start of the session.
    kept: Option<(Arc<Endpoint>, Duration)>,
    path: Box<str>,
}

impl SessionAffinity {
    /// Applies session persistence to a request: replaces `choice` if the request has a valid value, and
    /// returns the session; `None` if the rule has no session persistence.
    ///
    /// The backend with the session's endpoint is kept regardless of weights, including 0 (GEP-1619), while
    /// `is_well` accepts the endpoint. `now`: since the Unix epoch.
    #[inline]
    pub fn for_request(
        choice: &mut RouteChoice<'_>,
        plans: &CompiledSnapshot,
        is_well: impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool,
        request: &RequestView<'_>,
        now: impl FnOnce() -> Duration,
    ) -> Option<Box<Self>> {
        let (RouteChoice::To { rule, .. } | RouteChoice::InvalidBackend { rule }) = *choice else {
            return None;
        };
        let persistence = rule.persistence.as_ref()?;
        Some(Self::from_persistence(persistence, choice, rule, plans, is_well, request, now()))
    }

    fn from_persistence<'a>(
        persistence: &Arc<CompiledPersistence>,
        choice: &mut RouteChoice<'a>,
        rule: &'a CompiledRouteRule,
        plans: &CompiledSnapshot,
        is_well: impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool,
        request: &RequestView<'_>,
        now: Duration,
    ) -> Box<Self> {
        let shown = persistence.session_value(request, now);
        let found = shown.and_then(|shown| {
            let found = |names, endpoints| persistence.find_endpoint(names, endpoints, shown);
            let (index, endpoint) = endpoint_of(rule, plans, is_well, found)?;
            Some((index, (endpoint, shown.began)))
        });
        if let Some(kept) = found.as_ref().and_then(|(index, _)| rule.choice_at(*index)) {
            *choice = kept;
        }
        let kept = found.map(|(_, kept)| kept);
        let (persistence, path) = (persistence.clone(), persistence.cookie_path(request).into());
        Box::new(Self { persistence, kept, path })
    }

    /// Returns the endpoint of the session, if it is among these.
    #[must_use]
    pub fn find_endpoint<'a>(&self, among: &'a [Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
        let (kept, _) = self.kept.as_ref()?;
        // Usually they are from the same snapshot.
        let same = among.iter().find(|endpoint| Arc::ptr_eq(endpoint, kept));
        same.or_else(|| among.iter().find(|endpoint| endpoint.id == kept.id))
    }

    /// Returns the endpoint of the session, regardless of its availability.
    #[must_use]
    pub fn session_endpoint(&self) -> Option<&EndpointId> {
        self.kept.as_ref().map(|(endpoint, _)| &endpoint.id)
    }

    /// Returns the response field that identifies the endpoint to the client; `None` if the client already has
    /// it. `now`: since the Unix epoch. `is_safe`: the client connection uses TLS.
    #[must_use]
    pub fn response_field(
        &self,
        answered: &EndpointId,
        now: Duration,
        is_safe: bool,
    ) -> Option<(Cow<'static, str>, String)> {
        let kept = self.kept.as_ref().filter(|(endpoint, _)| endpoint.id == *answered);
        let since = kept.map(|(_, since)| *since);
        self.persistence.response_field(answered, since, now, &self.path, is_safe)
    }
}

/// Returns the first backend of a rule with a matching endpoint, and the endpoint.
fn endpoint_of<'a>(
    rule: &CompiledRouteRule,
    plans: &'a CompiledSnapshot,
    is_well: impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool,
    find: impl Fn(&'a EndpointNames, &'a [Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>>,
) -> Option<(usize, Arc<Endpoint>)> {
    rule.backends.iter().enumerate().find_map(|(index, backend)| {
        let port = plans.service(&backend.service)?.ports.get(&backend.port)?;
        let endpoint = find(&port.names, &port.endpoints)?;
        is_well(port, endpoint).then(|| (index, endpoint.clone()))
    })
}

#[cfg(test)]
mod tests;
