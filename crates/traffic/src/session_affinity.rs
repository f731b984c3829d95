//! Applies session persistence to one request: selects the endpoint of the request's session, and returns the response
//! field that identifies the endpoint to the client. The compiled rules are in
//! [`session_persistence`](crate::session_persistence).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId};

use crate::compiled_snapshot::{CompiledPort, CompiledSnapshot};
use crate::request::RequestView;
use crate::route::{CompiledRouteRule, RouteChoice};
use crate::session_persistence::{CompiledPersistence, EndpointNumbers};

/// The session affinity of a request under a rule with session persistence.
#[derive(Debug, Clone)]
pub struct SessionAffinity {
    persistence: Arc<CompiledPersistence>,
    /// The session of the request; absent for a request without a valid session.
    session: Option<Session>,
    /// The path of the cookie, if the value is sent in a cookie.
    path: Box<str>,
}

/// A valid session of a request.
#[derive(Debug, Clone)]
struct Session {
    /// The endpoint that serves the session.
    endpoint: Arc<Endpoint>,
    /// The start of the session, since the Unix epoch.
    started_at: Duration,
}

impl SessionAffinity {
    /// Applies session persistence to a request; `None` if the rule has no session persistence. If the request has a
    /// valid session, `choice` is replaced by the backend of the session's endpoint.
    ///
    /// The backend of a healthy session endpoint is selected even if its weight is 0 (GEP-1619). `now` returns the time
    /// since the Unix epoch.
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

    /// Creates the session affinity under a rule with this persistence, and replaces `choice` as in
    /// [`Self::for_request`].
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
        let selected_endpoint = value.and_then(|value| {
            let find = |numbers, endpoints| persistence.find_endpoint(numbers, endpoints, value);
            let (index, endpoint) = find_backend_endpoint(rule, snapshot, is_healthy, find)?;
            let session = Session { endpoint, started_at: value.started_at };
            Some((index, session))
        });
        if let Some(session_choice) =
            selected_endpoint.as_ref().and_then(|(index, _)| rule.choice_at(*index))
        {
            *choice = session_choice;
        }
        let session = selected_endpoint.map(|(_, session)| session);
        let (persistence, path) = (persistence.clone(), persistence.cookie_path(request).into());
        Box::new(Self { persistence, session, path })
    }

    /// Returns the endpoint of the session, if it is one of these endpoints.
    #[must_use]
    pub fn find_endpoint<'a>(&self, endpoints: &'a [Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
        let session_endpoint = &self.session.as_ref()?.endpoint;
        // Usually the endpoints belong to the same snapshot, so that pointers can be compared.
        let same_object = endpoints.iter().find(|endpoint| Arc::ptr_eq(endpoint, session_endpoint));
        same_object.or_else(|| endpoints.iter().find(|endpoint| endpoint.id == session_endpoint.id))
    }

    /// Returns the ID of the session's endpoint, available or not; `None` for a request without a valid session.
    #[must_use]
    pub fn session_endpoint(&self) -> Option<&EndpointId> {
        self.session.as_ref().map(|session| &session.endpoint.id)
    }

    /// Returns the name and value of the response field that identifies the endpoint to the client; `None` if the
    /// client already has it. `now` is the time since the Unix epoch. `is_tls` is true if the client connection uses
    /// TLS.
    #[must_use]
    pub fn response_field(
        &self,
        responding_endpoint: &EndpointId,
        now: Duration,
        is_tls: bool,
    ) -> Option<(Cow<'static, str>, String)> {
        let session =
            self.session.as_ref().filter(|session| session.endpoint.id == *responding_endpoint);
        let session_start = session.map(|session| session.started_at);
        self.persistence.response_field(responding_endpoint, session_start, now, &self.path, is_tls)
    }
}

/// Returns the index of the first backend for which `find` returns a healthy endpoint, and the endpoint.
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
