//! Stays: a request goes to the endpoint that its client keeps to.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId};

use crate::persistence::{CompiledPersistence, EndpointNames};
use crate::plan::{Plans, PortPlan};
use crate::request::RequestView;
use crate::route::{CompiledRule, RouteChoice};

/// A request under persistence: whom it keeps to, and what its client is told.
#[derive(Debug, Clone)]
pub struct Stay {
    persistence: Arc<CompiledPersistence>,
    /// The endpoint that it keeps to, and since when.
    kept: Option<(Arc<Endpoint>, Duration)>,
    path: Box<str>,
}

impl Stay {
    /// Where a request goes that shows a value, in place of the choice that was drawn, and what its
    /// client is to be told; `None`, and the choice itself, where the rule knows no persistence.
    ///
    /// The backend that holds the endpoint is kept, whatever the weights say, 0 included (GEP-1619), as
    /// long as `is_well` says so of the endpoint. `now`: since the beginning of 1970.
    #[inline]
    pub fn of(
        choice: &mut RouteChoice<'_>,
        (plans, is_well): (&Plans, impl Fn(&PortPlan, &Arc<Endpoint>) -> bool),
        request: &RequestView<'_>,
        now: impl FnOnce() -> Duration,
    ) -> Option<Box<Self>> {
        let (RouteChoice::To { rule, .. } | RouteChoice::InvalidBackend { rule }) = *choice else {
            return None;
        };
        let persistence = rule.persistence.as_ref()?;
        Some(Self::under(persistence, (choice, rule), (plans, is_well), (request, now())))
    }

    fn under<'a>(
        persistence: &Arc<CompiledPersistence>,
        (choice, rule): (&mut RouteChoice<'a>, &'a CompiledRule),
        (plans, is_well): (&Plans, impl Fn(&PortPlan, &Arc<Endpoint>) -> bool),
        (request, now): (&RequestView<'_>, Duration),
    ) -> Box<Self> {
        let shown = persistence.shown(request, now);
        let found = shown.and_then(|shown| {
            let found = |port| persistence.find(port, shown);
            let (index, endpoint) = endpoint_of(rule, (plans, is_well), found)?;
            Some((index, (endpoint, shown.began)))
        });
        if let Some(kept) = found.as_ref().and_then(|(index, _)| rule.at(*index)) {
            *choice = kept;
        }
        let kept = found.map(|(_, kept)| kept);
        let (persistence, path) = (persistence.clone(), persistence.path(request).into());
        Box::new(Self { persistence, kept, path })
    }

    /// The endpoint that the request keeps to, if it is among those that may take it.
    #[must_use]
    pub fn endpoint<'a>(&self, among: &'a [Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
        let (kept, _) = self.kept.as_ref()?;
        // Nearly always they are of one snapshot.
        let same = among.iter().find(|endpoint| Arc::ptr_eq(endpoint, kept));
        same.or_else(|| among.iter().find(|endpoint| endpoint.id == kept.id))
    }

    /// The endpoint that the request keeps to, whether it may take it or not.
    #[must_use]
    pub fn kept(&self) -> Option<&EndpointId> {
        self.kept.as_ref().map(|(endpoint, _)| &endpoint.id)
    }

    /// The field of the answer that tells a client who answered; none when it knows. `now`: since the
    /// beginning of 1970. `is_safe`: the client came over TLS.
    #[must_use]
    pub fn field(
        &self,
        answered: &EndpointId,
        now: Duration,
        is_safe: bool,
    ) -> Option<(Cow<'static, str>, String)> {
        let kept = self.kept.as_ref().filter(|(endpoint, _)| endpoint.id == *answered);
        let since = kept.map(|(_, since)| *since);
        self.persistence.field(answered, since, (now, &self.path, is_safe))
    }
}

/// The first backend of a rule with an endpoint that is looked for, and the endpoint.
fn endpoint_of<'a>(
    rule: &CompiledRule,
    (plans, is_well): (&'a Plans, impl Fn(&PortPlan, &Arc<Endpoint>) -> bool),
    find: impl Fn((&'a EndpointNames, &'a [Arc<Endpoint>])) -> Option<&'a Arc<Endpoint>>,
) -> Option<(usize, Arc<Endpoint>)> {
    rule.backends.iter().enumerate().find_map(|(index, backend)| {
        let port = plans.service(&backend.service)?.ports.get(&backend.port)?;
        let endpoint = find((&port.names, &port.endpoints))?;
        is_well(port, endpoint).then(|| (index, endpoint.clone()))
    })
}

#[cfg(test)]
mod tests;
