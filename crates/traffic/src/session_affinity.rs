//! Session affinity of one request.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId};

use crate::compiled_snapshot::{CompiledPort, CompiledSnapshot};
use crate::request::RequestView;
use crate::route::{CompiledRouteRule, RouteChoice};
use crate::session_persistence::{CompiledPersistence, EndpointNumbers};

/// A request under session persistence: its endpoint, and the response field for its client.
#[derive(Debug, Clone)]
pub struct SessionAffinity {
    persistence: Arc<CompiledPersistence>,
    /// The endpoint of the session, and the start of the session.
    session: Option<(Arc<Endpoint>, Duration)>,
    /// The path of the cookie, if the value is sent in a cookie.
    path: Box<str>,
}

impl SessionAffinity {
    /// Applies session persistence to a request: replaces `choice` if the request has a valid value, and
    /// returns the session; `None` if the rule has no session persistence.
    ///
    /// While the endpoint of the session is healthy, its backend is selected regardless of weights, including 0
    /// (GEP-1619). `now` returns the time since the Unix epoch.
    #[inline]
    pub fn for_request(
        choice: &mut RouteChoice<'_>,
        snapshot: &CompiledSnapshot,
        is_healthy: impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool,
        request: &RequestView<'_>,
        now: impl FnOnce() -> Duration,
    ) -> Option<Box<Self>> {
        let (RouteChoice::To { rule, .. } | RouteChoice::InvalidBackend { rule }) = *choice else {
            return None;
        };
        let persistence = rule.persistence.as_ref()?;
        Some(Self::from_persistence(
            persistence,
            choice,
            rule,
            snapshot,
            is_healthy,
            request,
            now(),
        ))
    }

    fn from_persistence<'a>(
        persistence: &Arc<CompiledPersistence>,
        choice: &mut RouteChoice<'a>,
        rule: &'a CompiledRouteRule,
        snapshot: &CompiledSnapshot,
        is_healthy: impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool,
        request: &RequestView<'_>,
        now: Duration,
    ) -> Box<Self> {
        let value = persistence.session_value(request, now);
        let selected = value.and_then(|value| {
            let find = |names, endpoints| persistence.find_endpoint(names, endpoints, value);
            let (index, endpoint) = find_backend_endpoint(rule, snapshot, is_healthy, find)?;
            Some((index, (endpoint, value.started)))
        });
        if let Some(session_choice) =
            selected.as_ref().and_then(|(index, _)| rule.choice_at(*index))
        {
            *choice = session_choice;
        }
        let session = selected.map(|(_, session)| session);
        let (persistence, path) = (persistence.clone(), persistence.cookie_path(request).into());
        Box::new(Self { persistence, session, path })
    }

    /// Returns the endpoint of the session, if it is among these.
    #[must_use]
    pub fn find_endpoint<'a>(&self, endpoints: &'a [Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
        let (session_endpoint, _) = self.session.as_ref()?;
        // Usually the endpoints are from the same snapshot.
        let same_object = endpoints.iter().find(|endpoint| Arc::ptr_eq(endpoint, session_endpoint));
        same_object.or_else(|| endpoints.iter().find(|endpoint| endpoint.id == session_endpoint.id))
    }

    /// Returns the endpoint of the session, regardless of its availability.
    #[must_use]
    pub fn session_endpoint(&self) -> Option<&EndpointId> {
        self.session.as_ref().map(|(endpoint, _)| &endpoint.id)
    }

    /// Returns the response field that identifies the endpoint to the client; `None` if the client already has
    /// it. `now` is the time since the Unix epoch. `is_tls` is true if the client connection uses TLS.
    #[must_use]
    pub fn response_field(
        &self,
        responding_endpoint: &EndpointId,
        now: Duration,
        is_tls: bool,
    ) -> Option<(Cow<'static, str>, String)> {
        let session =
            self.session.as_ref().filter(|(endpoint, _)| endpoint.id == *responding_endpoint);
        let since = session.map(|(_, since)| *since);
        self.persistence.response_field(responding_endpoint, since, now, &self.path, is_tls)
    }
}

/// Returns the index of the first backend with a healthy endpoint that `find` returns, and the endpoint.
fn find_backend_endpoint<'a>(
    rule: &CompiledRouteRule,
    snapshot: &'a CompiledSnapshot,
    is_healthy: impl Fn(&CompiledPort, &Arc<Endpoint>) -> bool,
    find: impl Fn(&'a EndpointNumbers, &'a [Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>>,
) -> Option<(usize, Arc<Endpoint>)> {
    rule.backends.iter().enumerate().find_map(|(index, backend)| {
        let port = snapshot.service(&backend.service)?.ports.get(&backend.port)?;
        let endpoint = find(&port.endpoint_numbers, &port.endpoints)?;
        is_healthy(port, endpoint).then(|| (index, endpoint.clone()))
    })
}

#[cfg(test)]
mod tests;
