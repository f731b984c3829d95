//! Forwards opaque TCP connections: from the application to a service, from an external client through a
//! gateway, and from a peer to the application. The stages are the same as for a request, without those that
//! need HTTP.

mod bidirectional;
mod inbound;
mod request_detection;
mod server_first;

use bidirectional::{ClientSide, forward_bidirectional, forward_with_counters};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::BytesMut;
use leno_listen::PendingConnection;
use leno_model::{
    ClientAuthorization, EndpointId, PortFaults, Reason, RetryCondition, ServiceName,
    WeightedBackend,
};
use leno_traffic::forwarded::EffectivePolicies;
use leno_traffic::outlier::EndpointResult;
use leno_traffic::retry::{self, FailedAttempt, SentPart};
use leno_traffic::{CompiledGatewayPort, CompiledPort, TlsChoice, select_tcp_backend};
use leno_wire::link::StreamKind;
use leno_wire::sniff::{DetectedProtocol, sniff_protocol};
use tokio::time::timeout;

use crate::application_ports::MAX_START_WAIT;
use crate::config_store::ConfigSnapshot;
use crate::endpoint_wait::OutdatedConfig;
use crate::error::stream_error_reason;
use crate::first_bytes::{read_server_name, sniff_connection};
use crate::handshake;
use crate::http::gateway_request;
use crate::http::message::{MessageReader, MessageWriter};
use crate::http::route;
use crate::http2::client::{Http2Checkout, Http2Pool, connect_http2};
use crate::io::{ByteStream, Io};
use crate::link::{LinkHandle, LinkStream};
use crate::record::ExchangeRecord;
use crate::rule_matches;
use crate::session::{ListenerKind, Session};
use crate::splice::copy_bytes;
use crate::upstream::circuit_breaker::LimitPermit;
use crate::upstream::connect::connect_opaque;
use crate::upstream::priorities::Priorities;
use crate::upstream::{
    AttemptTarget, Checkout, ConnectWait, Http1Upstream, InFlight, Upstream, connect_wait_for,
    pick::pick_endpoint,
};
use crate::worker::Worker;

pub(crate) use inbound::{forward_plaintext, forward_to_application, needs_requests};
pub(crate) use request_detection::RequestDetector;
pub(crate) use server_first::injects_faults;

/// Forwards the application's connection to a service. `early_bytes`: the bytes that were read to detect the
/// protocol.
pub(crate) async fn forward_to_service(
    session: &Session,
    service: &ServiceName,
    port: u16,
    io: Io,
    mut early_bytes: BytesMut,
) {
    let mut record = ExchangeRecord::open(session, "tcp");
    record.subject.service = Some(service.clone());
    record.subject.port = port;
    let mut upstream =
        open_upstream(session, service, port, &io, &mut early_bytes, &mut record).await;
    while let Err(error) = &upstream
        && let Some(outdated) = error.outdated
        && Box::pin(wait_for_endpoint(session, outdated, &record)).await
    {
        upstream = open_upstream(session, service, port, &io, &mut early_bytes, &mut record).await;
    }
    record.count_opened();
    forward_connection(session, upstream, &io, early_bytes, record).await;
}

/// Waits for a newer configuration with other endpoints. Returns false if no endpoint is expected, or if the
/// maximum wait has passed.
#[cold]
async fn wait_for_endpoint(
    session: &Session,
    outdated: OutdatedConfig,
    record: &ExchangeRecord<'_>,
) -> bool {
    match &record.subject.service {
        Some(service) => session.worker.wait_for_endpoint(service, outdated, record.started).await,
        None => false,
    }
}

/// Forwards the connection of an external client to the destination of a gateway port without HTTP.
pub(crate) async fn forward_through_gateway(
    session: &Session,
    pending_connection: PendingConnection,
    port: u16,
    gateway_port: &CompiledGatewayPort,
    io: Io,
) {
    let mut record = ExchangeRecord::open(session, "tcp");
    record.subject.port = port;
    let mut early_bytes = BytesMut::new();
    let upstream = open_gateway_upstream(
        session,
        pending_connection,
        gateway_port,
        &io,
        &mut early_bytes,
        &mut record,
    )
    .await;
    record.count_opened();
    forward_connection(session, upstream, &io, early_bytes, record).await;
}

/// Forwards bytes in both directions, once the upstream is open.
async fn forward_connection(
    session: &Session,
    upstream: Result<OpenedUpstream, TcpOpenError>,
    io: &Io,
    early_bytes: BytesMut,
    mut record: ExchangeRecord<'_>,
) {
    let idle_timeout = session.worker.config.limits.idle_connection;
    let client = |early_bytes| {
        let mut reader = MessageReader::new(io.clone());
        reader.buffer = early_bytes;
        (reader, MessageWriter::new(io.clone(), idle_timeout))
    };
    let outcome = match upstream {
        // The client sent nothing during the protocol detection, so the server may send first.
        Ok((upstream_stream, _guards))
            if early_bytes.is_empty() && server_first::has_detected_protocol(session, &record) =>
        {
            Box::pin(server_first::forward_bytes(
                session,
                upstream_stream,
                client(early_bytes),
                &record,
            ))
            .await
        }
        Ok((UpstreamStream::Link(stream), _guards)) => {
            let outcome = forward_bidirectional(
                &mut client(early_bytes),
                &stream,
                ClientSide::Connection,
                idle_timeout,
                &mut record,
            )
            .await;
            outcome.map_err(|reason| stream.rejection_reason().unwrap_or(reason))
        }
        Ok((UpstreamStream::Plain(connection), _guards)) => {
            let server_writer = MessageWriter::new(connection.writer.io.clone(), idle_timeout);
            let server = (connection.reader, server_writer);
            Box::pin(copy_bytes(client(early_bytes), server, idle_timeout, &record, None)).await
        }
        Err(error) => Err(error.counted_reason()),
    };
    match outcome {
        Ok(()) => record.mark_completed(),
        Err(reason) => {
            record.reason = Some(reason);
            // The client receives a reset, which it can tell from a complete transfer.
            io.reset_on_drop();
        }
    }
}

/// An opened upstream, and its load guards.
type OpenedUpstream = (UpstreamStream, LoadGuards);

/// Counts a connection in the load of its endpoint, and holds the circuit breaker's permit, if there is one.
type LoadGuards = (InFlight, Option<LimitPermit>);

/// The reason why no upstream was opened.
#[derive(Debug, Clone, Copy)]
struct TcpOpenError {
    /// The reason that determines the next step.
    reason: Reason,
    /// The reason that the sidecar of the endpoint reported.
    rejection: Option<Reason>,
    /// The configuration version of the decision, if the connection may be opened again.
    outdated: Option<OutdatedConfig>,
}

impl From<Reason> for TcpOpenError {
    fn from(reason: Reason) -> Self {
        Self { reason, rejection: None, outdated: None }
    }
}

impl TcpOpenError {
    /// Returns the reason that the connection is counted with.
    fn counted_reason(self) -> Reason {
        self.rejection.unwrap_or(self.reason)
    }

    /// Adds the configuration version of the decision if the connection may be opened again with a newer one.
    /// No endpoint has received any bytes.
    #[cold]
    fn with_outdated(
        self,
        worker: &Worker,
        config: &ConfigSnapshot,
        priorities: &Priorities,
    ) -> Self {
        let is_repeatable = matches!(self.reason, Reason::NoEndpoint | Reason::WrongIdentity)
            || self.reason.retry() != RetryCondition::Never;
        // The endpoint's sidecar has rejected the connection because its workload no longer has the port.
        let has_lost_port = self.rejection == Some(Reason::UnknownService);
        let outdated =
            OutdatedConfig::detect(&worker.config_store, config, priorities, has_lost_port);
        Self { outdated: outdated.filter(|_| is_repeatable), ..self }
    }
}

/// The upstream of a connection.
enum UpstreamStream {
    /// A stream of a link to the endpoint's sidecar.
    Link(LinkStream),
    /// An application without a sidecar.
    Plain(Box<Http1Upstream>),
}

/// The payload of the OPEN frame for a client that starts with HTTP/2: a receiving sidecar whose policies apply
/// to requests then serves them as HTTP/2.
const OPEN_PAYLOAD_HTTP2: &[u8] = b"h2";

/// The size in bytes of the in-memory buffer between a link stream and the HTTP codec.
const TUNNEL_BUFFER_BYTES: usize = 16 * 1024;

/// The route kind of TLS sessions that applications terminate.
const TLS_ROUTE: &str = "TLSRoute";

/// Opens the upstream of a connection to a service or to a pinned endpoint.
async fn open_upstream(
    session: &Session,
    service: &ServiceName,
    port: u16,
    io: &Io,
    early_bytes: &mut BytesMut,
    record: &mut ExchangeRecord<'_>,
) -> Result<OpenedUpstream, TcpOpenError> {
    let worker = &session.worker;
    if let ListenerKind::Pinned { address, id } = &session.listener_kind {
        let protocol = sniff_protocol(early_bytes);
        let (stream, guards) = open_pinned(session, *address, id, protocol, record).await?;
        return Ok((UpstreamStream::Link(stream), guards));
    }
    let max_wait = worker.config.limits.discovery_timeout;
    let (config, compiled_service) = worker.config_store.with_service(service, max_wait).await?;
    worker.retire_removed_endpoints(&config);
    if compiled_service.config.client_authorization == ClientAuthorization::Denied {
        return Err(Reason::DeniedOutbound.into());
    }
    let called_port = compiled_service.ports.get(&port).ok_or(Reason::UnknownService)?;
    let chosen_port = match called_port.tls_routes.is_trivial() {
        true => choose_port_by_weight(worker, &config, called_port, record)?,
        false => {
            choose_port_by_server_name(worker, &config, called_port, io, early_bytes, record)
                .await?
        }
    };
    open_at_any_endpoint(worker, &config, chosen_port, sniff_protocol(early_bytes), record).await
}

/// Opens the upstream of a connection to a gateway port without HTTP.
async fn open_gateway_upstream(
    session: &Session,
    pending_connection: PendingConnection,
    gateway_port: &CompiledGatewayPort,
    io: &Io,
    early_bytes: &mut BytesMut,
    record: &mut ExchangeRecord<'_>,
) -> Result<OpenedUpstream, TcpOpenError> {
    let worker = &session.worker;
    let limits = &worker.config.limits;
    let backend = match gateway_port {
        CompiledGatewayPort::Passthrough(routes) => {
            // TLS routes apply to no other protocol.
            let read_name = async {
                match sniff_connection(io, early_bytes).await {
                    DetectedProtocol::Tls => Ok(read_server_name(io, early_bytes).await),
                    _ => Err(Reason::NoRoute),
                }
            };
            let read_name = timeout(limits.handshake_timeout, read_name);
            let read_result =
                handshake::await_first_bytes(worker, &pending_connection, read_name).await;
            let server_name =
                read_result.ok_or(Reason::HandshakeFailed)?.map_err(|_| Reason::HeadTimeout)??;
            let (route, backend) =
                match routes.choose_backend(server_name.as_deref(), worker.random_number()) {
                    TlsChoice::To { rule, backend } => (&rule.route, Some(backend)),
                    TlsChoice::InvalidBackend { rule } => (&rule.route, None),
                    TlsChoice::Direct | TlsChoice::NoRoute => return Err(Reason::NoRoute.into()),
                };
            rule_matches::count_connection_rule(&worker.metrics, TLS_ROUTE, route);
            record.subject.route = Some(route.clone());
            backend
        }
        CompiledGatewayPort::Tcp(rule) => {
            rule_matches::count_route_kind(&worker.metrics, rule.kind, &rule.route);
            record.subject.route = Some(rule.route.clone());
            select_tcp_backend(rule, worker.random_number())
        }
        CompiledGatewayPort::Http(_) | CompiledGatewayPort::Https(_) => {
            return Err(Reason::NoRoute.into());
        }
    };
    drop(pending_connection);
    let backend = backend.ok_or(Reason::InvalidBackend)?;
    let (config, compiled_service) = gateway_request::backend_service(session, backend).await?;
    let port = compiled_service.ports.get(&backend.port).ok_or(Reason::InvalidBackend)?;
    record.subject.service = Some(backend.service.clone());
    record.subject.port = backend.port;
    let chosen_port = ChosenPort::from_called(port);
    open_at_any_endpoint(worker, &config, chosen_port, sniff_protocol(early_bytes), record).await
}

/// The destination port of a connection, and the policies that apply to it.
#[derive(Clone, Copy)]
struct ChosenPort<'a> {
    /// The port that the client called.
    called_port: &'a CompiledPort,
    /// The port that receives the connection, which may be the same.
    port: &'a CompiledPort,
    policies: EffectivePolicies<'a>,
}

impl<'a> ChosenPort<'a> {
    fn from_called(port: &'a CompiledPort) -> Self {
        Self { called_port: port, port, policies: port.own_policies() }
    }

    /// True if fault injection rejects the connection: it needs requests, which are not visible here. Ports
    /// with a declared TCP protocol are exempt.
    fn is_rejected_by_faults(&self) -> bool {
        let called_has_faults =
            self.called_port.traffic_policy.as_ref().is_some_and(|policy| policy.faults.is_some());
        let faulty_port = if called_has_faults { self.called_port } else { self.port };
        let has_faults = self.policies.traffic_policy.is_some_and(|policy| policy.faults.is_some());
        has_faults && PortFaults::REQUEST_NEED.rejects_bytes(faulty_port.protocol)
    }
}

/// Connects to one of the endpoints of a port, with retries at other endpoints.
async fn open_at_any_endpoint(
    worker: &Rc<Worker>,
    config: &ConfigSnapshot,
    chosen_port: ChosenPort<'_>,
    protocol: DetectedProtocol,
    record: &mut ExchangeRecord<'_>,
) -> Result<OpenedUpstream, TcpOpenError> {
    if chosen_port.is_rejected_by_faults() {
        return Err(Reason::DeniedByPolicy.into());
    }
    let ChosenPort { port, policies, .. } = chosen_port;
    let cluster = worker.cluster_for(policies.traffic_policy, port, config.version);
    let priorities = route::permitted_endpoints(worker, port, None)?;
    let mut limit_permit = match &cluster {
        None => None,
        Some(cluster) => cluster.acquire_slot(|in_progress| &in_progress.connections)?,
    };
    let hash_selection = route::request_hash(config, port, policies, None);
    let mut tried_endpoint = None;
    // Each iteration tries one endpoint. The circuit breaker's permit is for the connection, not for an attempt.
    loop {
        let pick_result = pick_endpoint(
            worker,
            &priorities,
            cluster.as_deref(),
            hash_selection.as_ref(),
            tried_endpoint.as_ref(),
        );
        let upstream = pick_result.map_err(|reason| {
            TcpOpenError::from(reason).with_outdated(worker, config, &priorities)
        })?;
        tried_endpoint = Some(upstream.endpoint.id.clone());
        let in_flight = upstream.start_request();
        let outcome_guard = match &cluster {
            None => None,
            Some(cluster) => Some(cluster.start_attempt(&upstream, None)?),
        };
        let wait = ConnectWait::for_cluster(cluster.as_deref(), || {
            connect_wait_for(record.retries, priorities.len())
        });
        let result = open_at_endpoint(&upstream, worker, protocol, wait).await;
        if let Some(outcome_guard) = outcome_guard {
            let failure = result.as_ref().err().map(|error| EndpointResult::Failed(error.reason));
            outcome_guard.finish(worker, failure.unwrap_or(EndpointResult::ConnectionOpened));
        }
        AttemptTarget::Upstream(upstream)
            .record_outcome(worker, result.as_ref().map(|_| ()).map_err(|error| error.reason));
        let result = result.map(|stream| (stream, (in_flight, limit_permit.take())));
        // No bytes of the client were sent, so the connection may be opened at another endpoint.
        let attempt = FailedAttempt {
            sent: SentPart::None,
            idempotent: false,
            body_replayable: true,
            response_started: false,
            earlier_attempts: u8::try_from(record.retries).unwrap_or(u8::MAX),
            other_endpoints: priorities.len().saturating_sub(1),
            waited: record.started.elapsed(),
        };
        match result {
            Err(error) if retry::may_retry(error.reason, &attempt) => record.retries += 1,
            result => {
                return result.map_err(|error| error.with_outdated(worker, config, &priorities));
            }
        }
    }
}

/// Connects to one specific workload, without retries at other endpoints.
async fn open_pinned(
    session: &Session,
    address: SocketAddr,
    id: &EndpointId,
    protocol: DetectedProtocol,
    record: &mut ExchangeRecord<'_>,
) -> Result<(LinkStream, LoadGuards), TcpOpenError> {
    let worker = &session.worker;
    let max_wait = worker.config.limits.discovery_timeout;
    let (config, endpoint) = worker.config_store.pinned_endpoint(address, id, max_wait).await?;
    worker.retire_removed_endpoints(&config);
    let upstream = worker.upstream_for(&endpoint);
    let in_flight = upstream.start_request();
    let mut result = open_stream(&upstream, worker, protocol, ConnectWait::Full).await;
    // The link may have closed while it was selected.
    if result.as_ref().is_err_and(|error| error.reason == Reason::UpstreamRefused) {
        record.retries += 1;
        result = open_stream(&upstream, worker, protocol, ConnectWait::Full).await;
    }
    AttemptTarget::Upstream(upstream)
        .record_outcome(worker, result.as_ref().map(|_| ()).map_err(|error| error.reason));
    result.map(|stream| (stream, (in_flight, None)))
}

/// Routes a TLS session by its server name. TLS routes do not apply to other protocols, which go to the
/// service's own endpoints.
async fn choose_port_by_server_name<'a>(
    worker: &Worker,
    config: &'a ConfigSnapshot,
    port: &'a CompiledPort,
    io: &Io,
    early_bytes: &mut BytesMut,
    record: &mut ExchangeRecord<'_>,
) -> Result<ChosenPort<'a>, Reason> {
    let limits = &worker.config.limits;
    // A client that sends nothing within the timeout waits for bytes of the server, so it does not use TLS.
    match timeout(limits.detect_timeout, sniff_connection(io, early_bytes)).await {
        Ok(DetectedProtocol::Tls) => {}
        Ok(_) | Err(_) => return choose_port_by_weight(worker, config, port, record),
    }
    let read_result = timeout(limits.head_timeout, read_server_name(io, early_bytes)).await;
    let server_name = read_result.map_err(|_| Reason::HeadTimeout)?;
    match port.tls_routes.choose_backend(server_name.as_deref(), worker.random_number()) {
        TlsChoice::Direct => Ok(ChosenPort::from_called(port)),
        TlsChoice::To { rule, backend } => {
            rule_matches::count_connection_rule(&worker.metrics, TLS_ROUTE, &rule.route);
            record.subject.route = Some(rule.route.clone());
            choose_backend_port(config, port, backend, record)
        }
        TlsChoice::NoRoute => Err(Reason::NoRoute),
        TlsChoice::InvalidBackend { rule } => {
            rule_matches::count_connection_rule(&worker.metrics, TLS_ROUTE, &rule.route);
            record.subject.route = Some(rule.route.clone());
            Err(Reason::InvalidBackend)
        }
    }
}

/// Routes a connection without visible requests: to the service's own endpoints, or to a backend by weight.
fn choose_port_by_weight<'a>(
    worker: &Worker,
    config: &'a ConfigSnapshot,
    port: &'a CompiledPort,
    record: &mut ExchangeRecord<'_>,
) -> Result<ChosenPort<'a>, Reason> {
    let Some(rule) = &port.tcp_rule else {
        return Ok(ChosenPort::from_called(port));
    };
    rule_matches::count_route_kind(&worker.metrics, rule.kind, &rule.route);
    record.subject.route = Some(rule.route.clone());
    let backend = select_tcp_backend(rule, worker.random_number()).ok_or(Reason::InvalidBackend)?;
    choose_backend_port(config, port, backend, record)
}

/// Chooses the port of a rule's backend, and records its service as the subject of the connection.
fn choose_backend_port<'a>(
    config: &'a ConfigSnapshot,
    called_port: &'a CompiledPort,
    backend: &WeightedBackend,
    record: &mut ExchangeRecord<'_>,
) -> Result<ChosenPort<'a>, Reason> {
    let service = config.compiled.service(&backend.service);
    let port = service.and_then(|service| service.ports.get(&backend.port));
    let port = port.ok_or(Reason::InvalidBackend)?;
    record.subject.service = Some(backend.service.clone());
    let policies = called_port.policies_to(&backend.service, backend.port, port);
    Ok(ChosenPort { called_port, port, policies })
}

/// Connects to the application at one endpoint, and returns once the application has accepted the connection.
/// No bytes of the client are sent before that, so another endpoint may be tried after an error.
async fn open_at_endpoint(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    protocol: DetectedProtocol,
    wait: ConnectWait,
) -> Result<UpstreamStream, TcpOpenError> {
    if upstream.is_unmeshed() {
        let connection = Box::pin(connect_opaque(upstream, worker, wait)).await?;
        return Ok(UpstreamStream::Plain(Box::new(connection)));
    }
    open_stream(upstream, worker, protocol, wait).await.map(UpstreamStream::Link)
}

/// Opens a stream of opaque bytes over a link to the endpoint.
async fn open_stream(
    upstream: &Rc<Upstream>,
    worker: &Rc<Worker>,
    protocol: DetectedProtocol,
    wait: ConnectWait,
) -> Result<LinkStream, TcpOpenError> {
    let link = match upstream.acquire(worker, None, wait).await? {
        Checkout::Link(link) => link,
        // A peer that is not a Leno sidecar has no framing for opaque streams.
        Checkout::Http1(_) | Checkout::Http2(_) => return Err(Reason::Unsupported.into()),
    };
    open_stream_on_link(&link, worker, protocol).await
}

/// Opens a stream of opaque bytes on this link, and waits until the peer's application has accepted it.
async fn open_stream_on_link(
    link: &LinkHandle,
    worker: &Rc<Worker>,
    protocol: DetectedProtocol,
) -> Result<LinkStream, TcpOpenError> {
    let write_payload = |payload: &mut BytesMut| {
        if protocol == DetectedProtocol::Http2 {
            payload.extend_from_slice(OPEN_PAYLOAD_HTTP2);
        }
    };
    let stream = link
        .open_stream(StreamKind::Tcp, false, write_payload)
        .map_err(|_| Reason::UpstreamRefused)?;
    // The sidecar of a starting application waits for it, as for requests.
    let max_wait = worker.config.limits.connect_timeout + MAX_START_WAIT;
    let timeout_result = timeout(max_wait, stream.wait_for_item()).await;
    let accept_result = timeout_result.map_err(|_| Reason::ConnectTimeout)?;
    accept_result.map_err(|error| TcpOpenError {
        rejection: stream.rejection_reason(),
        ..TcpOpenError::from(stream_error_reason(error))
    })?;
    Ok(stream)
}

/// Opens an HTTP/2 connection that is tunneled through a link as opaque bytes, to a sidecar of an earlier
/// release that does not support the mark on requests of HTTP/2 clients. That sidecar forwards the bytes to its
/// application, or serves the requests in them.
pub(crate) async fn open_http2_tunnel(
    link: &LinkHandle,
    worker: &Rc<Worker>,
) -> Result<Http2Checkout, Reason> {
    let stream = open_stream_on_link(link, worker, DetectedProtocol::Http2).await;
    let stream = stream.map_err(TcpOpenError::counted_reason)?;
    let (tunnel_end, client_end) = tokio::io::duplex(TUNNEL_BUFFER_BYTES);
    let (tunnel_end, client_end) =
        (Io::new(ByteStream::Memory(tunnel_end)), Io::new(ByteStream::Memory(client_end)));
    let idle_timeout = worker.config.limits.idle_connection;
    tokio::task::spawn_local(async move {
        let mut client =
            (MessageReader::new(tunnel_end.clone()), MessageWriter::new(tunnel_end, idle_timeout));
        let (sent_bytes, received_bytes) = (Cell::new(0), Cell::new(0));
        let outcome = forward_with_counters(
            &mut client,
            &stream,
            ClientSide::Connection,
            idle_timeout,
            &sent_bytes,
            &received_bytes,
        )
        .await;
        if let Err(reason) = outcome {
            tracing::debug!(reason = reason.label(), "HTTP/2 tunnel failed");
        }
    });
    let connect_result =
        timeout(worker.config.limits.connect_timeout, connect_http2(client_end, ())).await;
    let sender = connect_result.map_err(|_| Reason::ConnectTimeout)??;
    Ok(Http2Pool::default().add_and_acquire(sender, None))
}
