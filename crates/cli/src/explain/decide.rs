//! Decides a request with the code of the client's and the endpoints' sidecars, and records every step.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use leno_control::snapshot_for;
use leno_model::{
    ClientAuthorization, Endpoint, EndpointId, Object, Protocol, Reason, RouteKind, RouteRule,
    ServiceName, ServiceRetry, SpiffeId, WeightedBackend, Workload, WorkloadConfig,
};
use leno_traffic::cors::preflight_for;
use leno_traffic::{
    AttemptLimit, CompiledActions, CompiledPort, CompiledSnapshot, PolicyDecision, PortRoutes,
    Redirection, RequestView, RouteChoice, SessionAffinity, service_of,
};

use super::backend::{decide_backend, decide_port};
use super::egress::EgressPermission;
use super::inbound::{
    check_access, describe_ingress_rules, describe_lane, describe_rate_limits,
    describe_token_checks, has_token,
};
use super::tags::TagRuleEvaluation;
use super::target::ExplainTarget;
use super::traffic_policy::PolicyEffect;
use super::unapplied::{UnappliedPolicy, find_unapplied, find_unforwarded};
use super::unused_matches::{
    UnusedMatch, find_preferred_match, find_unused_matches, index_in_route,
};

/// The request to explain.
#[derive(Debug, Clone)]
pub(super) struct ExplainedRequest {
    pub(super) method: String,
    pub(super) target: ExplainTarget,
    pub(super) headers: Vec<(String, String)>,
}

/// The called service, or its port, that does not exist in the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MissingPart {
    /// The service does not exist. Services in other namespaces with the same name are listed.
    Service(Vec<ServiceName>),
    /// The service does not have the port. The ports of the service are listed.
    Port(Vec<u16>),
}

impl MissingPart {
    fn for_service(objects: &[Object], requested_service: Option<&ServiceName>) -> Option<Self> {
        let requested_service = requested_service?;
        let services = objects.iter().filter_map(|object| match object {
            Object::Service(service) => Some(service),
            _ => None,
        });
        let candidates: Vec<_> =
            services.filter(|service| service.name.name == requested_service.name).collect();
        if let Some(service) = candidates.iter().find(|service| service.name == *requested_service)
        {
            return Some(Self::Port(service.ports.iter().map(|port| port.port).collect()));
        }
        Some(Self::Service(candidates.into_iter().map(|service| service.name.clone()).collect()))
    }
}

/// The decision at each stage, up to the stage that rejects the request.
#[derive(Debug)]
pub(super) struct RequestDecision {
    pub(super) client: Workload,
    pub(super) service: Option<ServiceName>,
    /// The called service or port that does not exist in the mesh; `None` if both exist.
    pub(super) missing: Option<MissingPart>,
    /// The egress permission, for a request to a host outside the mesh.
    pub(super) egress_permission: Option<EgressPermission>,
    pub(super) protocol: Option<Protocol>,
    pub(super) route: Option<DecidedRoute>,
    /// The matches that did not decide the request.
    pub(super) unused_matches: Vec<UnusedMatch>,
    /// The redirect that the client receives.
    pub(super) redirection: Option<Redirection>,
    /// True if the request is a CORS preflight, to which the client's sidecar responds.
    pub(super) is_preflight: bool,
    /// The endpoint that session persistence selects for the request, regardless of weights.
    pub(super) session_endpoint: Option<EndpointId>,
    /// The policy that sets retries; `None` without such a policy, or if a route rule sets retries.
    pub(super) retry: Option<ServiceRetry>,
    /// The request as endpoints receive it, if the rule changes it.
    pub(super) forwarded_request: Option<ExplainedRequest>,
    pub(super) backends: Vec<DecidedBackend>,
    /// The policies of the called service, if the request reaches no backend.
    pub(super) unapplied: Vec<UnappliedPolicy>,
    /// The reason why the client's sidecar rejects the request; `None` if it does not.
    pub(super) rejection: Option<Reason>,
}

/// The rule that decided the request.
#[derive(Debug)]
pub(super) struct DecidedRoute {
    pub(super) rule: RouteRule,
    /// The index of the rule in its own route, from 0.
    pub(super) rule_index: usize,
    /// The index of the decisive match among the rule's matches, from 0.
    pub(super) match_index: usize,
}

/// A backend that receives a share of such requests.
#[derive(Debug)]
pub(super) struct DecidedBackend {
    pub(super) service: ServiceName,
    pub(super) port: u16,
    pub(super) weight: u32,
    /// The backend's share of the requests, 0 to 1.
    pub(super) share: f64,
    pub(super) endpoints: Vec<DecidedEndpoint>,
    /// The policies that apply to requests to the backend.
    pub(super) effects: Vec<PolicyEffect>,
    /// The policies of the called service and of the backend that do not apply.
    pub(super) unapplied: Vec<UnappliedPolicy>,
    /// The reason why the client's sidecar rejects requests to the backend.
    pub(super) rejection: Option<Reason>,
    /// The status of the rejection, if a policy sets it.
    pub(super) status: Option<u16>,
    /// The effect of tag rules on such requests; `None` without tag rules.
    pub(super) tags: Option<TagRuleEvaluation>,
    /// True if the backend is in another namespace and no grant permits the route to refer to it.
    pub(super) is_ungranted: bool,
}

/// The decision of one endpoint's sidecar.
#[derive(Debug)]
pub(super) struct DecidedEndpoint {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) access: EndpointAccess,
    /// True if the request has a token, which the sidecar may reject.
    pub(super) has_token: bool,
    /// The rate limits that the sidecar applies to such requests, and the check services that it queries.
    pub(super) limits: Vec<PolicyEffect>,
    /// The headers that lanes add to such requests for the application.
    pub(super) lane_headers: Vec<String>,
    /// The ingress rules that open the port to external clients.
    pub(super) ingress_rules: Vec<String>,
}

/// The access decision of an endpoint's sidecar for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndpointAccess {
    /// Every member of the mesh is allowed.
    AllowedByDefault,
    /// A policy allows the request.
    Allowed(PolicyDecision),
    /// The request is rejected. The policy denies it or allows only other requests; `None` if no policy applies.
    Denied(Reason, Option<PolicyDecision>),
    /// `defaultPolicy: dry-run` allows, counts and reports the request; `deny` would reject it.
    DryRun(Reason, Option<PolicyDecision>),
}

impl EndpointAccess {
    /// Returns the reason for a rejection.
    pub(super) fn rejection_reason(&self) -> Option<Reason> {
        match self {
            Self::AllowedByDefault | Self::Allowed(_) | Self::DryRun(..) => None,
            Self::Denied(reason, _) => Some(*reason),
        }
    }
}

impl RequestDecision {
    /// Decides the request.
    ///
    /// # Errors
    /// If the client does not exist, or an accepted pattern cannot be compiled.
    pub(super) fn for_request(
        objects: &[Object],
        client: &leno_model::WorkloadName,
        request: &ExplainedRequest,
    ) -> anyhow::Result<Self> {
        let workload = find_workload(objects, client);
        let client = workload.map_or(client, |workload| &workload.name);
        let service = service_of(&request.target.host, &client.namespace);
        let called_services: Vec<ServiceName> = service.iter().cloned().collect();
        let snapshot = Arc::new(snapshot_for(objects, client, &called_services)?);
        let mut decision = Self {
            client: workload.cloned().with_context(|| format!("there is no Workload {client}"))?,
            service,
            missing: None,
            egress_permission: None,
            protocol: None,
            route: None,
            unused_matches: Vec::new(),
            redirection: None,
            is_preflight: false,
            session_endpoint: None,
            retry: None,
            forwarded_request: None,
            backends: Vec::new(),
            unapplied: Vec::new(),
            rejection: None,
        };
        let compiled = CompiledSnapshot::build(snapshot, None)?;
        let called_service = decision.service.as_ref();
        let outcome = match called_service.is_some_and(|name| compiled.service(name).is_some()) {
            true => decision.decide_stages(objects, &compiled, request)?,
            // TCP to an address outside the mesh has no host name for an egress rule to match.
            false if request.target.is_tcp => Err(Reason::UnknownService),
            false => EgressPermission::for_request(objects, &compiled, called_service, request)
                .map(|permission| {
                    (decision.service, decision.egress_permission) = (None, Some(permission));
                }),
        };
        if let Err(reason) = outcome {
            decision.rejection = Some(reason);
            if reason == Reason::UnknownService {
                decision.missing = MissingPart::for_service(objects, decision.service.as_ref());
            }
        }
        if decision.backends.is_empty() && decision.missing.is_none() {
            decision.unapplied = find_unforwarded(objects, &decision, request.target.port);
        }
        Ok(decision)
    }

    /// Runs the stages of the client's sidecar, then of the endpoints' sidecars. The inner error is the client's rejection.
    fn decide_stages(
        &mut self,
        objects: &[Object],
        compiled: &CompiledSnapshot,
        request: &ExplainedRequest,
    ) -> anyhow::Result<Result<(), Reason>> {
        let port = match self.find_port(compiled, request.target.port) {
            Ok(port) => port,
            Err(reason) => return Ok(Err(reason)),
        };
        self.protocol = Some(port.protocol);
        if request.target.is_tcp && !is_opaque(port.protocol) {
            let (host, port_number) = (&request.target.host, request.target.port);
            bail!("port {port_number} of {host} is {}, not TCP: use http://", port.protocol);
        }
        // Request routes do not apply to an opaque port.
        let routing_result = if is_opaque(port.protocol) {
            self.route_connection(objects, compiled, port, request)
        } else {
            self.route_request(objects, compiled, port, request)
        };
        let mut backends = match routing_result {
            Ok(backends) => backends,
            Err(reason) => return Ok(Err(reason)),
        };
        let peer = SpiffeId {
            trust_domain: compiled.snapshot.config.trust_domain.clone(),
            account: compiled.snapshot.config.account.clone(),
        };
        let (port_number, opaque) = (request.target.port, is_opaque(port.protocol));
        let request = self.forwarded_request.as_ref().unwrap_or(request);
        for backend in &mut backends {
            for endpoint in &mut backend.endpoints {
                let workload = &endpoint.endpoint.id.workload;
                let snapshot = snapshot_for(objects, workload, &[])?;
                let inbound_port = endpoint.endpoint.address.port();
                endpoint.access = check_access(&snapshot, &peer, request, inbound_port, opaque)?;
                endpoint.ingress_rules = describe_ingress_rules(&snapshot, inbound_port);
                match endpoint.access.rejection_reason() {
                    None => {
                        endpoint.has_token = has_token(&snapshot, request, inbound_port, opaque)?;
                        endpoint.limits =
                            describe_rate_limits(&snapshot, &peer, request, inbound_port, opaque)?;
                        endpoint.lane_headers =
                            describe_lane(&snapshot, request, inbound_port, opaque)?;
                    }
                    Some(Reason::TokenMissing) => {
                        endpoint.limits = describe_token_checks(&snapshot, request, inbound_port)?;
                    }
                    Some(_) => {}
                }
            }
        }
        for backend in &mut backends {
            backend.unapplied = find_unapplied(objects, self, port_number, backend);
        }
        self.backends = backends;
        Ok(Ok(()))
    }

    /// Returns the called port, if the client is allowed to call the service.
    fn find_port<'a>(
        &self,
        compiled: &'a CompiledSnapshot,
        port_number: u16,
    ) -> Result<&'a CompiledPort, Reason> {
        let name = self.service.as_ref().ok_or(Reason::UnknownService)?;
        let service = compiled.service(name).ok_or(Reason::UnknownService)?;
        if service.config.client_authorization == ClientAuthorization::Denied {
            return Err(Reason::DeniedOutbound);
        }
        service.ports.get(&port_number).ok_or(Reason::UnknownService)
    }

    /// Returns the backends of the decisive rule, or the service itself. Records the rule's effects on the request.
    fn route_request(
        &mut self,
        objects: &[Object],
        compiled: &CompiledSnapshot,
        port: &CompiledPort,
        request: &ExplainedRequest,
    ) -> Result<Vec<DecidedBackend>, Reason> {
        let header_fields = request.request_headers();
        let view = request.request_view(&header_fields);
        let client_config = &compiled.snapshot.config;
        // The random number does not matter: all backends of the chosen rule are decided.
        let mut choice = port.routes.choose_backend(&view, 0);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_selected = |port: &CompiledPort, endpoint: &Arc<Endpoint>| {
            let tag_rules = port.tags.as_deref();
            let tags = tag_rules
                .map(|rules| TagRuleEvaluation::for_request(rules, Some(&view), &port.endpoints));
            tags.is_none_or(|tags| tags.is_selected(endpoint))
        };
        let affinity = SessionAffinity::for_request(&mut choice, compiled, is_selected, &view, now);
        self.session_endpoint = affinity.and_then(|affinity| affinity.session_endpoint().cloned());
        self.retry = retry_policy(&port.routes, choice);
        let name = self.service.as_ref().ok_or(Reason::UnknownService)?;
        let service = compiled.snapshot.services.get(name);
        let port_config = service.and_then(|service| service.ports.get(&request.target.port));
        let rules = port_config.map_or(&[][..], |port| &port.rules);
        if let RouteChoice::Direct = choice {
            self.unused_matches = find_unused_matches(rules, None, &view);
            return Ok(vec![self.service_backend(request, port, client_config, Some(&view))?]);
        }
        let (RouteChoice::To { rule, .. }
        | RouteChoice::Redirect { rule }
        | RouteChoice::InvalidBackend { rule }) = choice
        else {
            self.unused_matches = find_unused_matches(rules, None, &view);
            return Err(Reason::NoRoute);
        };
        if let Some(decisive) = rules.get(rule.index) {
            let match_index = find_preferred_match(&decisive.matches, &view);
            let rule_index = index_in_route(rules, rule.index);
            self.route = Some(DecidedRoute { rule: decisive.clone(), rule_index, match_index });
            let decisive_position = Some((rule.index, match_index));
            self.unused_matches = find_unused_matches(rules, decisive_position, &view);
        }
        let session_backend = match choice {
            RouteChoice::To { backend, index, .. } if self.session_endpoint.is_some() => {
                Some((backend, index))
            }
            _ => None,
        };
        let actions = match session_backend {
            None => rule.actions.as_ref(),
            Some((_, index)) => rule.actions_at(index),
        };
        if let Some(actions) = actions {
            self.redirection = actions.redirection(&view, request.target.port);
            self.forwarded_request = request.apply_actions(actions);
        }
        let cors = rule.actions.as_ref().and_then(|actions| actions.cors.as_ref());
        self.is_preflight = cors.is_some() && preflight_for(&view).is_some();
        self.retry = self.retry.take().filter(|_| !self.is_preflight);
        if self.client_sidecar_responds() {
            return Ok(Vec::new());
        }
        if let Some((backend, _)) = session_backend {
            let backend = WeightedBackend { weight: 1, ..backend.clone() };
            return Ok(vec![decide_backend(compiled, port, &backend, 1, Some(&view))]);
        }
        self.rule_backends(objects, compiled, port, request.target.port, Some(&view))
    }

    /// Returns the backends of the rule for opaque connections, or the service itself.
    fn route_connection(
        &mut self,
        objects: &[Object],
        compiled: &CompiledSnapshot,
        port: &CompiledPort,
        request: &ExplainedRequest,
    ) -> Result<Vec<DecidedBackend>, Reason> {
        let Some(rule) = &port.tcp_rule else {
            return Ok(vec![self.service_backend(
                request,
                port,
                &compiled.snapshot.config,
                None,
            )?]);
        };
        self.route =
            Some(DecidedRoute { rule: rule.for_requests(), rule_index: 0, match_index: 0 });
        self.rule_backends(objects, compiled, port, request.target.port, None)
    }

    /// Returns the backends of the rule that decided, including those that no grant permits.
    fn rule_backends(
        &self,
        objects: &[Object],
        compiled: &CompiledSnapshot,
        called_port: &CompiledPort,
        port: u16,
        view: Option<&RequestView<'_>>,
    ) -> Result<Vec<DecidedBackend>, Reason> {
        let route = self.route.as_ref().ok_or(Reason::InvalidBackend)?;
        let rule = &route.rule;
        let weight_sum: u64 = rule.backends.iter().map(|backend| u64::from(backend.weight)).sum();
        let total_weight = weight_sum + u64::from(rule.actions.ungranted_weight);
        if total_weight == 0 {
            return Err(Reason::InvalidBackend);
        }
        let mut backends: Vec<DecidedBackend> = rule
            .backends
            .iter()
            .filter(|backend| backend.weight > 0)
            .map(|backend| decide_backend(compiled, called_port, backend, total_weight, view))
            .collect();
        if rule.actions.ungranted_weight > 0 {
            let declared = declared_backends(objects, route, port);
            let ungranted = declared.iter().filter(|backend| !rule.backends.contains(backend));
            backends.extend(ungranted.filter(|backend| backend.weight > 0).map(|backend| {
                let share = f64::from(backend.weight) / total_weight as f64;
                DecidedBackend {
                    is_ungranted: true,
                    ..decide_port(backend, share, None, &compiled.snapshot.config, None)
                }
            }));
        }
        Ok(backends)
    }

    /// Returns the service itself, for requests that match no rule.
    fn service_backend(
        &self,
        request: &ExplainedRequest,
        port: &CompiledPort,
        client_config: &WorkloadConfig,
        view: Option<&RequestView<'_>>,
    ) -> Result<DecidedBackend, Reason> {
        // A port was found, so the service is set. No panic: the control plane runs this code too.
        let service = self.service.clone().ok_or(Reason::UnknownService)?;
        let backend = WeightedBackend::new(service, request.target.port, 1);
        Ok(decide_port(&backend, 1.0, Some((port, port.own_policies())), client_config, view))
    }

    /// True if the client's sidecar responds itself, without an error: with a redirect or to a preflight request.
    pub(super) fn client_sidecar_responds(&self) -> bool {
        self.redirection.is_some() || self.is_preflight
    }

    /// Returns each distinct outcome of these requests: the reason of a rejection, or `None` if allowed.
    pub(super) fn distinct_outcomes(&self) -> Vec<Option<Reason>> {
        let mut outcomes = Vec::new();
        let mut add_outcome = |outcome| {
            if !outcomes.contains(&outcome) {
                outcomes.push(outcome);
            }
        };
        if self.rejection.is_some() {
            add_outcome(self.rejection);
        }
        if self.client_sidecar_responds() || self.egress_permission.is_some() {
            add_outcome(None);
        }
        if self.egress_permission == Some(EgressPermission::SomeAddresses) {
            add_outcome(Some(Reason::EgressDenied));
        }
        for backend in &self.backends {
            if backend.rejection.is_some() {
                add_outcome(backend.rejection);
                continue;
            }
            if backend.tags.as_ref().is_some_and(TagRuleEvaluation::may_reject) {
                add_outcome(Some(Reason::NoTaggedEndpoint));
            }
            for endpoint in &backend.endpoints {
                add_outcome(endpoint.access.rejection_reason());
                if endpoint.has_token {
                    add_outcome(Some(Reason::TokenInvalid));
                }
            }
        }
        outcomes
    }

    /// Returns the statuses of a rejection, which depend on the backend; 0 for a reset.
    pub(super) fn rejection_statuses(&self, reason: Reason) -> Vec<u16> {
        let rejecting = self.backends.iter().filter(|backend| backend.rejection == Some(reason));
        let mut statuses: Vec<u16> =
            rejecting.map(|backend| backend.status.unwrap_or(reason.status())).collect();
        if statuses.is_empty() {
            statuses.push(reason.status());
        }
        statuses
    }
}

impl ExplainedRequest {
    /// Returns the statuses unchanged; for a TCP connection, which is reset, only the status 0.
    pub(super) fn response_statuses(&self, statuses: Vec<u16>) -> Vec<u16> {
        if self.target.is_tcp { vec![0] } else { statuses }
    }

    /// Returns the headers, including the `Host` that a client would send.
    pub(super) fn request_headers(&self) -> Vec<(String, String)> {
        let mut headers = self.headers.clone();
        if !headers.iter().any(|(name, _)| name == "host") {
            headers.push(("host".to_owned(), self.target.authority.clone()));
        }
        headers
    }

    /// Returns the request as modified by a rule; `None` if it is unchanged.
    fn apply_actions(&self, actions: &CompiledActions) -> Option<Self> {
        let target = actions.rewritten_target(&self.target.path, self.target.query.as_deref());
        let is_unchanged =
            target.is_none() && actions.rewritten_host().is_none() && actions.request.is_empty();
        if is_unchanged {
            return None;
        }
        let mut modified = self.clone();
        if let Some(target) = target {
            modified.target.path = target.split('?').next().unwrap_or_default().to_owned();
        }
        if let Some(host) = actions.rewritten_host() {
            host.clone_into(&mut modified.target.authority);
            modified.headers.retain(|(name, _)| name != "host");
        }
        modified.headers = actions.request.apply_to(&modified.headers);
        Some(modified)
    }

    /// Returns the request, with these headers, in the form that matchers read.
    pub(super) fn request_view<'a>(&'a self, fields: &'a Vec<(String, String)>) -> RequestView<'a> {
        RequestView {
            method: &self.method,
            path: &self.target.path,
            query: self.target.query.as_deref(),
            authority: &self.target.authority,
            fields,
        }
    }
}

/// Returns the workload with this name, or else the first workload of the service account with this name.
fn find_workload<'a>(
    objects: &'a [Object],
    name: &leno_model::WorkloadName,
) -> Option<&'a Workload> {
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

/// Returns the backends of a rule as configured, before grants are checked.
fn declared_backends(objects: &[Object], route: &DecidedRoute, port: u16) -> Vec<WeightedBackend> {
    let (kind, name) = (route.rule.kind, &route.rule.route);
    let backends = objects.iter().find_map(|object| match object {
        Object::HttpRoute(declared) | Object::GrpcRoute(declared)
            if (declared.kind, &declared.name) == (kind, name) =>
        {
            declared.rules.get(route.rule_index).map(|rule| rule.backends.clone())
        }
        Object::GatewayTcpRoute(declared)
            if (RouteKind::Tcp, &declared.rule.route) == (kind, name) =>
        {
            Some(declared.rule.backends.clone())
        }
        Object::TrafficSplit(split) if (RouteKind::Split, &split.name) == (kind, name) => {
            Some(split.backends_for(port))
        }
        _ => None,
    });
    backends.unwrap_or_default()
}

/// True if a sidecar forwards the bytes of a port without parsing requests.
pub(super) fn is_opaque(protocol: Protocol) -> bool {
    match protocol {
        Protocol::Tcp => true,
        Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::Detect => false,
    }
}

/// Returns the retries set by a policy, not by a rule of a route.
fn retry_policy(routes: &PortRoutes, choice: RouteChoice<'_>) -> Option<ServiceRetry> {
    let actions = match choice {
        RouteChoice::Direct => routes.direct_actions(),
        RouteChoice::To { rule, index, .. } => rule.actions_at(index),
        _ => None,
    }?;
    let (policy, _) = actions.retry_policy.as_ref()?;
    let limit = actions.attempt_limit.filter(|limit| limit.ends_with_head());
    Some(ServiceRetry {
        policy: policy.clone(),
        rule: actions.retry.clone()?,
        response_timeout: limit.map(AttemptLimit::time_limit),
    })
}
