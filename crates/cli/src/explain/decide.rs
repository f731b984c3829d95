//! Decides a request as the two sidecars would, with the same code, and keeps what decided.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use leno_control::snapshot_for;
use leno_model::{
    Endpoint, EndpointId, Object, Protocol, Reach, Reason, RequestMatch, RouteKind, RouteRule,
    ServiceName, ServiceRetry, SpiffeId, WeightedBackend, Workload, WorkloadPlan,
};
use leno_traffic::cors::preflight_for;
use leno_traffic::{
    AttemptLimit, CompiledActions, Plans, PortPlan, PortRoutes, Redirection, RequestMatcher,
    RequestView, RouteChoice, Ruling, Stay, goes_before, service_of,
};

use super::backend::{decided_backend, with_port};
use super::inbound::{access, is_by_token, limits, marks, openings, tokens};
use super::outside::Outside;
use super::rivals::{Rival, place, rivals};
use super::tags::DecidedTags;
use super::target::Target;
use super::treatment::Treated;
use super::unapplied::{Unapplied, unapplied, unforwarded};

/// A request as it is asked about.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) method: String,
    pub(super) target: Target,
    pub(super) headers: Vec<(String, String)>,
}

/// The part of an address that the mesh does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Missing {
    /// The service; the namespaces that have one of this name.
    Service(Vec<ServiceName>),
    /// The port; those that the service has.
    Port(Vec<u16>),
}

impl Missing {
    fn of(objects: &[Object], wanted: Option<&ServiceName>) -> Option<Self> {
        let wanted = wanted?;
        let services = objects.iter().filter_map(|object| match object {
            Object::Service(service) => Some(service),
            _ => None,
        });
        let same_name: Vec<_> = services.filter(|it| it.name.name == wanted.name).collect();
        if let Some(service) = same_name.iter().find(|service| service.name == *wanted) {
            return Some(Self::Port(service.ports.iter().map(|port| port.port).collect()));
        }
        Some(Self::Service(same_name.into_iter().map(|service| service.name.clone()).collect()))
    }
}

/// What decided, station by station, as far as the request came.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) client: Workload,
    pub(super) service: Option<ServiceName>,
    /// The part of the address that the mesh does not have, if it is that.
    pub(super) missing: Option<Missing>,
    /// The permission for a host outside the mesh, where the request is for one.
    pub(super) outside: Option<Outside>,
    pub(super) protocol: Option<Protocol>,
    pub(super) route: Option<DecidedRoute>,
    /// The matches that did not decide.
    pub(super) rivals: Vec<Rival>,
    /// Where the client is sent instead of to a backend.
    pub(super) redirection: Option<Redirection>,
    /// A browser asks whether a request may be made, and the client's own sidecar answers.
    pub(super) is_preflight: bool,
    /// The endpoint that the request keeps to, by what it shows, whatever the weights say.
    pub(super) kept: Option<EndpointId>,
    /// The policy that has the request sent once more, where no rule says it.
    pub(super) retry: Option<ServiceRetry>,
    /// The request as endpoints get it, where the rule changes it.
    pub(super) sent: Option<Question>,
    pub(super) backends: Vec<DecidedBackend>,
    /// The policies of the called service, where the request reaches no backend.
    pub(super) unapplied: Vec<Unapplied>,
    /// Why the client's own sidecar would answer; `None` when it would send the request on.
    pub(super) refused: Option<Reason>,
}

/// The rule that decided.
#[derive(Debug)]
pub(super) struct DecidedRoute {
    pub(super) rule: RouteRule,
    /// The place of the rule in its own route, from 0.
    pub(super) index: usize,
    /// The place in the rule of the first match that fits, from 0.
    pub(super) fits: usize,
}

/// A backend that takes a share of such requests.
#[derive(Debug)]
pub(super) struct DecidedBackend {
    pub(super) service: ServiceName,
    pub(super) port: u16,
    pub(super) weight: u32,
    /// Its share of the requests, 0 to 1.
    pub(super) share: f64,
    pub(super) endpoints: Vec<DecidedEndpoint>,
    /// The policies that say how its requests are treated.
    pub(super) treated: Vec<Treated>,
    /// The policies of the called service and of the backend that do not apply.
    pub(super) unapplied: Vec<Unapplied>,
    /// Why the client's own sidecar would answer instead of it.
    pub(super) refused: Option<Reason>,
    /// The status of that answer, where a policy sets it.
    pub(super) status: Option<u16>,
    /// What tag rules make of such requests, where there are some.
    pub(super) tags: Option<DecidedTags>,
    /// It is in another namespace, and no grant permits the route to lead there.
    pub(super) ungranted: bool,
}

/// What one endpoint's sidecar would say.
#[derive(Debug)]
pub(super) struct DecidedEndpoint {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) access: EndpointAccess,
    /// The request shows a token, which may be none that the sidecar accepts.
    pub(super) is_by_token: bool,
    /// The rate limits that its sidecar counts such requests under, and whom it asks about them.
    pub(super) limits: Vec<Treated>,
    /// What such requests are marked with for the application, by lanes.
    pub(super) marks: Vec<String>,
    /// How the port is open to clients outside the mesh.
    pub(super) openings: Vec<String>,
}

/// What an endpoint's sidecar says to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndpointAccess {
    /// Every member of the mesh may call.
    Permissive,
    /// A policy allows it.
    Allowed(Ruling),
    /// It is refused; the policy, if there is one, allows it to others.
    Denied(Reason, Option<Ruling>),
    /// It is let in, counted and told: strict mode would refuse it.
    Audited(Reason, Option<Ruling>),
}

impl EndpointAccess {
    /// Why it is refused.
    pub(super) fn refused(&self) -> Option<Reason> {
        match self {
            Self::Permissive | Self::Allowed(_) | Self::Audited(..) => None,
            Self::Denied(reason, _) => Some(*reason),
        }
    }
}

impl Decision {
    /// Decides.
    ///
    /// # Errors
    /// When there is no such client, or a pattern that was accepted cannot be compiled.
    pub(super) fn of(
        objects: &[Object],
        client: &leno_model::WorkloadName,
        question: &Question,
    ) -> anyhow::Result<Self> {
        let found = workload(objects, client);
        let client = found.map_or(client, |workload| &workload.name);
        let service = service_of(&question.target.host, &client.namespace);
        let wanted: Vec<ServiceName> = service.iter().cloned().collect();
        let snapshot = Arc::new(snapshot_for(objects, client, &wanted)?);
        let mut decision = Self {
            client: found.cloned().with_context(|| format!("there is no Workload {client}"))?,
            service,
            missing: None,
            outside: None,
            protocol: None,
            route: None,
            rivals: Vec::new(),
            redirection: None,
            is_preflight: false,
            kept: None,
            retry: None,
            sent: None,
            backends: Vec::new(),
            unapplied: Vec::new(),
            refused: None,
        };
        let plans = Plans::build(snapshot, None)?;
        let called = decision.service.as_ref();
        let sent = match called.is_some_and(|called| plans.service(called).is_some()) {
            true => decision.send(objects, &plans, question)?,
            // A connection to an address outside has no name that a rule could decide about.
            false if question.target.is_tcp => Err(Reason::UnknownService),
            false => Outside::of(objects, &plans, called, question).map(|outside| {
                (decision.service, decision.outside) = (None, Some(outside));
            }),
        };
        if let Err(reason) = sent {
            decision.refused = Some(reason);
            if reason == Reason::UnknownService {
                decision.missing = Missing::of(objects, decision.service.as_ref());
            }
        }
        if decision.backends.is_empty() && decision.missing.is_none() {
            decision.unapplied = unforwarded(objects, &decision, question.target.port);
        }
        Ok(decision)
    }

    /// The stations of the client's sidecar, then those of each endpoint's. The inner error is
    /// its answer.
    fn send(
        &mut self,
        objects: &[Object],
        plans: &Plans,
        question: &Question,
    ) -> anyhow::Result<Result<(), Reason>> {
        let port = match self.port(plans, question.target.port) {
            Ok(port) => port,
            Err(reason) => return Ok(Err(reason)),
        };
        self.protocol = Some(port.protocol);
        if question.target.is_tcp && !is_opaque(port.protocol) {
            let (host, number) = (&question.target.host, question.target.port);
            bail!("port {number} of {host} is {}, not TCP: ask with http://", port.protocol);
        }
        let mut backends = if is_opaque(port.protocol) {
            // Nobody sees a request there: routes do not apply.
            match self.shared_out(objects, plans, port, question) {
                Ok(backends) => backends,
                Err(reason) => return Ok(Err(reason)),
            }
        } else {
            match self.routed(objects, plans, port, question) {
                Ok(backends) => backends,
                Err(reason) => return Ok(Err(reason)),
            }
        };
        let peer = SpiffeId {
            trust_domain: plans.snapshot.plan.trust_domain.clone(),
            account: plans.snapshot.plan.account.clone(),
        };
        let port_number = question.target.port;
        let question = self.sent.as_ref().unwrap_or(question);
        for backend in &mut backends {
            for decided in &mut backend.endpoints {
                let workload = &decided.endpoint.id.workload;
                let snapshot = snapshot_for(objects, workload, &[])?;
                let way = (decided.endpoint.address.port(), is_opaque(port.protocol));
                decided.access = access(&snapshot, &peer, question, way)?;
                decided.openings = openings(&snapshot, way.0);
                match decided.access.refused() {
                    None => {
                        decided.is_by_token = is_by_token(&snapshot, question, way)?;
                        decided.limits = limits(&snapshot, &peer, question, way)?;
                        decided.marks = marks(&snapshot, question, way)?;
                    }
                    Some(Reason::TokenMissing) => {
                        decided.limits = tokens(&snapshot, question, way.0)?;
                    }
                    Some(_) => {}
                }
            }
        }
        for backend in &mut backends {
            backend.unapplied = unapplied(objects, self, port_number, backend);
        }
        self.backends = backends;
        Ok(Ok(()))
    }

    /// The service and port that the request names, if the client may call it at all.
    fn port<'a>(&self, plans: &'a Plans, number: u16) -> Result<&'a PortPlan, Reason> {
        let name = self.service.as_ref().ok_or(Reason::UnknownService)?;
        let plan = plans.service(name).ok_or(Reason::UnknownService)?;
        if plan.view.reach == Reach::Denied {
            return Err(Reason::DeniedOutbound);
        }
        plan.ports.get(&number).ok_or(Reason::UnknownService)
    }

    /// The backends of the rule that decides, or the service's own endpoints.
    fn routed(
        &mut self,
        objects: &[Object],
        plans: &Plans,
        port: &PortPlan,
        question: &Question,
    ) -> Result<Vec<DecidedBackend>, Reason> {
        let fields = question.fields();
        let view = question.view(&fields);
        let caller = &plans.snapshot.plan;
        let mut choice = port.routes.choose(&view, 0);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_left = |port: &PortPlan, endpoint: &Arc<Endpoint>| {
            let tags = port.tags.as_deref();
            let tags = tags.map(|tags| DecidedTags::of(tags, Some(&view), &port.endpoints));
            tags.is_none_or(|tags| tags.leaves(endpoint))
        };
        let stay = Stay::of(&mut choice, (plans, is_left), &view, now);
        self.kept = stay.and_then(|stay| stay.kept().cloned());
        self.retry = retried(&port.routes, choice);
        let name = self.service.as_ref().ok_or(Reason::UnknownService)?;
        let views = plans.snapshot.services.get(name);
        let rules = views.and_then(|view| view.ports.get(&question.target.port));
        let rules = rules.map_or(&[][..], |port| &port.rules);
        if let RouteChoice::Direct = choice {
            self.rivals = rivals(rules, None, &view);
            return Ok(vec![self.itself(question, port, (caller, Some(&view)))?]);
        }
        let (RouteChoice::To { rule, .. }
        | RouteChoice::Redirect { rule }
        | RouteChoice::InvalidBackend { rule }) = choice
        else {
            self.rivals = rivals(rules, None, &view);
            return Err(Reason::NoRoute);
        };
        if let Some(decisive) = rules.get(rule.index) {
            let fits = |request: &RequestMatch| {
                RequestMatcher::compile(request).is_ok_and(|matcher| matcher.matches(&view))
            };
            let mut fitting = decisive.matches.iter().enumerate().filter(|(_, it)| fits(it));
            let first = fitting.next().map_or(0, |(index, _)| index);
            // The first of those that go before the others.
            let fits = fitting.fold(first, |best, (index, request)| {
                match decisive.matches.get(best).is_some_and(|best| goes_before(request, best)) {
                    true => index,
                    false => best,
                }
            });
            self.route = Some(DecidedRoute {
                rule: decisive.clone(),
                index: place(rules, rule.index),
                fits,
            });
            self.rivals = rivals(rules, Some((rule.index, fits)), &view);
        }
        let kept = match choice {
            RouteChoice::To { backend, index, .. } if self.kept.is_some() => Some((backend, index)),
            _ => None,
        };
        let actions = match kept {
            None => rule.actions.as_ref(),
            Some((_, index)) => rule.actions_at(index),
        };
        if let Some(actions) = actions {
            self.redirection = actions.redirection(&view, question.target.port);
            self.sent = question.edited(actions);
        }
        let cors = rule.actions.as_ref().and_then(|actions| actions.cors.as_ref());
        self.is_preflight = cors.is_some() && preflight_for(&view).is_some();
        self.retry = self.retry.take().filter(|_| !self.is_preflight);
        if self.is_elsewhere() {
            return Ok(Vec::new());
        }
        if let Some((backend, _)) = kept {
            let backend = WeightedBackend { weight: 1, ..backend.clone() };
            return Ok(vec![decided_backend((plans, port), &backend, 1, Some(&view))]);
        }
        self.shares(objects, (plans, port), question.target.port, Some(&view))
    }

    /// The backends of the rule for connections in which no request is seen, or the service's own
    /// endpoints.
    fn shared_out(
        &mut self,
        objects: &[Object],
        plans: &Plans,
        port: &PortPlan,
        question: &Question,
    ) -> Result<Vec<DecidedBackend>, Reason> {
        let Some(rule) = &port.tcp_rule else {
            return Ok(vec![self.itself(question, port, (&plans.snapshot.plan, None))?]);
        };
        self.route = Some(DecidedRoute { rule: rule.for_requests(), index: 0, fits: 0 });
        self.shares(objects, (plans, port), question.target.port, None)
    }

    /// The backends of the rule that decided, and those that no grant permits.
    fn shares(
        &self,
        objects: &[Object],
        (plans, called): (&Plans, &PortPlan),
        port: u16,
        request: Option<&RequestView<'_>>,
    ) -> Result<Vec<DecidedBackend>, Reason> {
        let route = self.route.as_ref().ok_or(Reason::InvalidBackend)?;
        let rule = &route.rule;
        let total = rule.backends.iter().map(|b| u64::from(b.weight)).sum::<u64>();
        let total = total + u64::from(rule.actions.ungranted_weight);
        if total == 0 {
            return Err(Reason::InvalidBackend);
        }
        let backends = rule.backends.iter().filter(|backend| backend.weight > 0);
        let mut decided: Vec<DecidedBackend> = backends
            .map(|backend| decided_backend((plans, called), backend, total, request))
            .collect();
        if rule.actions.ungranted_weight > 0 {
            let written = written(objects, route, port);
            let lost = written.iter().filter(|backend| !rule.backends.contains(backend));
            decided.extend(lost.filter(|backend| backend.weight > 0).map(|backend| {
                let share = f64::from(backend.weight) / total as f64;
                DecidedBackend {
                    ungranted: true,
                    ..with_port(backend, share, None, (&plans.snapshot.plan, None))
                }
            }));
        }
        Ok(decided)
    }

    /// The service itself, when no rule decides.
    fn itself(
        &self,
        question: &Question,
        port: &PortPlan,
        asked: (&WorkloadPlan, Option<&RequestView<'_>>),
    ) -> Result<DecidedBackend, Reason> {
        // A port was found, hence its service; the control plane, which asks too, is not to end over it.
        let service = self.service.clone().ok_or(Reason::UnknownService)?;
        let backend = WeightedBackend::new(service, question.target.port, 1);
        Ok(with_port(&backend, 1.0, Some((port, port.own_policies())), asked))
    }

    /// Whether the client's own sidecar answers, without a failure.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.redirection.is_some() || self.is_preflight
    }

    /// Every answer that such requests would get: why they are refused, or `None` when they are
    /// not, each once.
    pub(super) fn outcomes(&self) -> Vec<Option<Reason>> {
        let mut outcomes = Vec::new();
        let mut add = |outcome| {
            if !outcomes.contains(&outcome) {
                outcomes.push(outcome);
            }
        };
        if self.refused.is_some() {
            add(self.refused);
        }
        if self.is_elsewhere() || self.outside.is_some() {
            add(None);
        }
        if self.outside == Some(Outside::SomeAddresses) {
            add(Some(Reason::EgressDenied));
        }
        for backend in &self.backends {
            if backend.refused.is_some() {
                add(backend.refused);
                continue;
            }
            if backend.tags.as_ref().is_some_and(DecidedTags::may_leave_nobody) {
                add(Some(Reason::NoTaggedEndpoint));
            }
            for endpoint in &backend.endpoints {
                add(endpoint.access.refused());
                if endpoint.is_by_token {
                    add(Some(Reason::TokenInvalid));
                }
            }
        }
        outcomes
    }

    /// The statuses of the answers to a rejected request, which depend on the backend; 0 for a reset.
    pub(super) fn statuses(&self, reason: Reason) -> Vec<u16> {
        let rejecting = self.backends.iter().filter(|backend| backend.refused == Some(reason));
        let mut statuses: Vec<u16> =
            rejecting.map(|backend| backend.status.unwrap_or(reason.status())).collect();
        if statuses.is_empty() {
            statuses.push(reason.status());
        }
        statuses
    }
}

impl Question {
    /// The statuses of answers; a connection has none, and is reset.
    pub(super) fn statuses(&self, statuses: Vec<u16>) -> Vec<u16> {
        if self.target.is_tcp { vec![0] } else { statuses }
    }

    /// The headers, with the `Host` that a client would send.
    pub(super) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = self.headers.clone();
        if !fields.iter().any(|(name, _)| name == "host") {
            fields.push(("host".to_owned(), self.target.authority.clone()));
        }
        fields
    }

    /// The request as a rule sends it on; `None` when it stays as it is.
    fn edited(&self, actions: &CompiledActions) -> Option<Self> {
        let target = actions.target(&self.target.path, self.target.query.as_deref());
        let unchanged = target.is_none() && actions.host().is_none() && actions.request.is_empty();
        if unchanged {
            return None;
        }
        let mut edited = self.clone();
        if let Some(target) = target {
            edited.target.path = target.split('?').next().unwrap_or_default().to_owned();
        }
        if let Some(host) = actions.host() {
            host.clone_into(&mut edited.target.authority);
            edited.headers.retain(|(name, _)| name != "host");
        }
        edited.headers = actions.request.applied(&edited.headers);
        Some(edited)
    }

    pub(super) fn view<'a>(&'a self, fields: &'a Vec<(String, String)>) -> RequestView<'a> {
        RequestView {
            method: &self.method,
            path: &self.target.path,
            query: self.target.query.as_deref(),
            authority: &self.target.authority,
            fields,
        }
    }
}

/// The workload of this name, or else the first that runs under the account of this name: all of
/// them are the same to every rule.
fn workload<'a>(objects: &'a [Object], name: &leno_model::WorkloadName) -> Option<&'a Workload> {
    let workloads = || {
        objects.iter().filter_map(|object| match object {
            Object::Workload(workload) => Some(workload),
            _ => None,
        })
    };
    let has_account = |workload: &&Workload| {
        workload.account.namespace == name.namespace && workload.account.name == name.name
    };
    workloads().find(|workload| workload.name == *name).or_else(|| workloads().find(has_account))
}

/// The backends of a rule as its author wrote them.
fn written(objects: &[Object], route: &DecidedRoute, port: u16) -> Vec<WeightedBackend> {
    let (kind, name) = (route.rule.kind, &route.rule.route);
    let found = objects.iter().find_map(|object| match object {
        Object::HttpRoute(it) | Object::GrpcRoute(it) if (it.kind, &it.name) == (kind, name) => {
            it.rules.get(route.index).map(|rule| rule.backends.clone())
        }
        Object::GatewayTcpRoute(it) if (RouteKind::Tcp, &it.rule.route) == (kind, name) => {
            Some(it.rule.backends.clone())
        }
        Object::TrafficSplit(it) if (RouteKind::Split, &it.name) == (kind, name) => {
            Some(it.at(port))
        }
        _ => None,
    });
    found.unwrap_or_default()
}

/// Whether a sidecar carries a port's bytes without looking at requests.
pub(super) fn is_opaque(protocol: Protocol) -> bool {
    match protocol {
        Protocol::Tcp => true,
        Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::Detect => false,
    }
}

/// What a policy says about retries, where it is no rule of a route that does.
fn retried(routes: &PortRoutes, choice: RouteChoice<'_>) -> Option<ServiceRetry> {
    let actions = match choice {
        RouteChoice::Direct => routes.direct_actions(),
        RouteChoice::To { rule, index, .. } => rule.actions_at(index),
        _ => None,
    }?;
    let (policy, _) = actions.retried_by.as_ref()?;
    let limit = actions.attempt_limit.filter(|limit| limit.is_of_head());
    Some(ServiceRetry {
        policy: policy.clone(),
        rule: actions.retry.clone()?,
        answer_timeout: limit.map(AttemptLimit::time),
    })
}
