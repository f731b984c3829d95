//! Serves DNS queries of the application: names of the mesh are resolved locally, other queries are forwarded to the
//! configured resolvers, the name servers of a `resolv.conf`.

mod query_budget;
mod question;
mod resolvers;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::condition::kind;
use leno_listen::Listener;
use leno_model::{DnsRecord, ServiceName};
use leno_telemetry::Count;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use crate::conditions::Conditions;
use crate::config::DnsProxy;
use crate::config_store::ResourceRequest;
use crate::control_client::ControlClient;

pub use question::{ClusterDomain, InvalidDomain};

use query_budget::QueryBudget;
use question::{ParsedQuery, ServiceQuery, parse_query, server_failure};
use resolvers::Resolvers;
pub(crate) use resolvers::is_response_to;

/// The transport of a DNS query and its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsTransport {
    Udp,
    Tcp,
}

/// The responses to one packet, computed without sockets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DnsResponses {
    /// The service in the address query of the packet; `None` for any other packet.
    pub service: Option<ServiceName>,
    /// The response over UDP; `None` if the packet queries no service.
    pub udp: Option<Vec<u8>>,
    /// The response over TCP; `None` if the packet queries no service.
    pub tcp: Option<Vec<u8>>,
    /// The SERVFAIL response if no resolver responds; `None` for a malformed packet.
    pub failure: Option<Vec<u8>>,
}

/// Returns the responses to a packet over both transports, as if each service had this record.
pub(crate) fn build_responses(
    packet: &[u8],
    domain: &ClusterDomain,
    record: &DnsRecord,
) -> DnsResponses {
    let failure = server_failure(packet);
    match parse_query(packet, domain) {
        ParsedQuery::Service(service_query) => DnsResponses {
            udp: service_query.build_response(record, DnsTransport::Udp),
            tcp: service_query.build_response(record, DnsTransport::Tcp),
            service: Some(service_query.service),
            failure,
        },
        ParsedQuery::OutsideMesh | ParsedQuery::Invalid => {
            DnsResponses { failure, ..DnsResponses::default() }
        }
    }
}

/// Starts the tasks that serve DNS queries at each configured address until the proxy ends.
pub(crate) fn serve(tasks: &LocalSet, control_client: &Rc<ControlClient>, dns_proxy: &DnsProxy) {
    let resolvers = Resolvers::new(dns_proxy.resolvers.clone(), RESOLVER_PORT, is_in_pod);
    let handler = DnsQueryHandler::new(control_client.clone(), dns_proxy.domain.clone(), resolvers);
    let handler = Rc::new(handler);
    let connection_permits = Arc::new(Semaphore::new(MAX_TCP_CONNECTIONS));
    for address in &dns_proxy.listen_addresses {
        tasks.spawn_local(handler.clone().serve_udp(*address));
        tasks.spawn_local(handler.clone().serve_tcp(*address, connection_permits.clone()));
    }
}

impl DnsProxy {
    /// Returns true if a resolver outside the pod is configured, for names outside the mesh.
    #[must_use]
    pub fn has_resolvers(&self) -> bool {
        let text = std::fs::read_to_string(&self.resolvers).unwrap_or_default();
        !resolvers::parse_name_servers(&text, is_in_pod).is_empty()
    }
}

/// True if a name server runs in the pod itself, for example a local cache: its own queries are redirected to
/// this proxy as well, which would create a loop.
fn is_in_pod(server: IpAddr) -> bool {
    let server = server.to_canonical();
    server.is_loopback() || server.is_unspecified()
}

/// The state of the DNS proxy that its listeners share.
struct DnsQueryHandler {
    control_client: Rc<ControlClient>,
    domain: ClusterDomain,
    resolvers: Resolvers,
    /// The time until which queries do not wait for the control plane, because it left a query unanswered;
    /// `None` before the first unanswered query.
    control_silent_until: Cell<Option<Instant>>,
    /// The budget of control plane queries for new names.
    query_budget: RefCell<QueryBudget>,
    /// Permits for the DNS queries that wait for the control plane or a resolver.
    pending_query_permits: Arc<Semaphore>,
}

/// The next step of a DNS query.
enum QueryStep {
    /// Sends this response; `None` drops a malformed query without a response.
    Respond(Option<Vec<u8>>),
    /// Forwards the query while the permit is held: to the control plane first if it is for a service without a
    /// known record, then to the resolvers.
    Forward(Option<Box<ServiceQuery>>, OwnedSemaphorePermit),
}

impl DnsQueryHandler {
    fn new(control_client: Rc<ControlClient>, domain: ClusterDomain, resolvers: Resolvers) -> Self {
        Self {
            control_client,
            domain,
            resolvers,
            control_silent_until: Cell::new(None),
            query_budget: RefCell::new(QueryBudget::new(Instant::now())),
            pending_query_permits: Arc::new(Semaphore::new(MAX_PENDING_QUERIES)),
        }
    }

    fn conditions(&self) -> &Conditions {
        &self.control_client.config_store.conditions
    }

    /// Serves queries over UDP; never returns.
    async fn serve_udp(self: Rc<Self>, address: SocketAddr) {
        let socket = bind_when_free(self.conditions(), address, DnsTransport::Udp, async || {
            UdpSocket::bind(address).await
        })
        .await;
        let socket = Rc::new(socket);
        // One extra byte reveals packets that are too long.
        let mut packet = vec![0_u8; MAX_QUERY_BYTES + 1];
        loop {
            let Ok((length, client)) = socket.recv_from(&mut packet).await else {
                sleep(ERROR_PAUSE).await;
                continue;
            };
            if length > MAX_QUERY_BYTES {
                self.count(Count::DnsQueriesFailed);
                continue;
            }
            let query = packet.get(..length).unwrap_or_default();
            let (service_query, permit) = match self.handle_immediately(query, DnsTransport::Udp) {
                QueryStep::Respond(None) => continue,
                QueryStep::Respond(Some(response)) => {
                    // UDP clients repeat a query without a response.
                    socket.send_to(&response, client).await.ok();
                    continue;
                }
                QueryStep::Forward(service_query, permit) => (service_query, permit),
            };
            let (handler, socket, query) = (self.clone(), socket.clone(), query.to_vec());
            tokio::task::spawn_local(async move {
                if let Some(response) =
                    handler.resolve_query(service_query, &query, DnsTransport::Udp).await
                {
                    socket.send_to(&response, client).await.ok();
                }
                drop(permit);
            });
        }
    }

    /// Serves queries over TCP; `connection_permits` limits the connections of all listeners together.
    async fn serve_tcp(self: Rc<Self>, address: SocketAddr, connection_permits: Arc<Semaphore>) {
        let listener = bind_when_free(self.conditions(), address, DnsTransport::Tcp, async || {
            TcpListener::bind(address).await
        })
        .await;
        let mut listener = Listener::new("DNS", listener);
        loop {
            let Ok(permit) = connection_permits.clone().acquire_owned().await else {
                return;
            };
            let (tcp, _) = listener.accept().await;
            let handler = self.clone();
            tokio::task::spawn_local(async move {
                let outcome = timeout(MAX_CONNECTION_LIFETIME, handler.serve_connection(tcp)).await;
                tracing::trace!(result = ?outcome, "DNS connection ended");
                drop(permit);
            });
        }
    }

    /// Serves the queries of one connection in sequence (RFC 1035 §4.2.2).
    async fn serve_connection(&self, mut tcp: TcpStream) -> io::Result<()> {
        loop {
            let read_query = async {
                let length = usize::from(tcp.read_u16().await?);
                if length > MAX_QUERY_BYTES {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let mut query = vec![0; length];
                tcp.read_exact(&mut query).await.map(|_| query)
            };
            let query = timeout(IDLE_TIMEOUT, read_query).await.map_err(io::Error::from)??;
            let response = self.handle_query(&query, DnsTransport::Tcp).await;
            let response = response.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let write_response = async {
                tcp.write_all(&resolvers::frame_message(&response)).await?;
                tcp.flush().await
            };
            timeout(IDLE_TIMEOUT, write_response).await.map_err(io::Error::from)??;
        }
    }

    /// Returns the response to a query; `None` if it is malformed.
    async fn handle_query(&self, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        match self.handle_immediately(query, transport) {
            QueryStep::Respond(response) => response,
            QueryStep::Forward(service_query, _permit) => {
                self.resolve_query(service_query, query, transport).await
            }
        }
    }

    /// Handles a query as far as possible without waiting, so that known names are resolved even if too many
    /// queries are pending.
    fn handle_immediately(&self, query: &[u8], transport: DnsTransport) -> QueryStep {
        let service_query = match parse_query(query, &self.domain) {
            ParsedQuery::Invalid => {
                self.count(Count::DnsQueriesFailed);
                return QueryStep::Respond(None);
            }
            ParsedQuery::OutsideMesh => None,
            ParsedQuery::Service(service_query) => {
                match self.known_record(&service_query.service) {
                    None => Some(service_query),
                    Some(record) => match self.mesh_response(&service_query, &record, transport) {
                        Some(response) => return QueryStep::Respond(Some(response)),
                        None => None,
                    },
                }
            }
        };
        match self.pending_query_permits.clone().try_acquire_owned() {
            Ok(permit) => QueryStep::Forward(service_query, permit),
            Err(_) => QueryStep::Respond(self.server_failure(query)),
        }
    }

    /// Queries the control plane about a service, and the resolvers if it has no record. Returns SERVFAIL if no resolver
    /// responds, and `None` if the query is malformed.
    async fn resolve_query(
        &self,
        service_query: Option<Box<ServiceQuery>>,
        query: &[u8],
        transport: DnsTransport,
    ) -> Option<Vec<u8>> {
        if let Some(service_query) = service_query
            && let Some(record) = self.request_record(&service_query.service).await
            && let Some(response) = self.mesh_response(&service_query, &record, transport)
        {
            return Some(response);
        }
        if let Some(response) = self.resolvers.forward_query(query, transport).await {
            self.count(Count::DnsQueriesForwarded);
            return Some(response);
        }
        self.server_failure(query)
    }

    /// Returns the response from a record of the mesh; `None` if the query has to be forwarded.
    fn mesh_response(
        &self,
        service_query: &ServiceQuery,
        record: &DnsRecord,
        transport: DnsTransport,
    ) -> Option<Vec<u8>> {
        let response =
            service_query.build_response(record, transport).filter(|_| !record.is_forwarded())?;
        self.request_address_entries(service_query, record);
        self.count(Count::DnsQueriesAnswered);
        Some(response)
    }

    /// Counts a failed query, and returns its SERVFAIL response; `None` if the query is malformed.
    fn server_failure(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.count(Count::DnsQueriesFailed);
        server_failure(query)
    }

    /// Returns the record of a name; `None` if the record is unknown or may be outdated.
    fn known_record(&self, name: &ServiceName) -> Option<Arc<DnsRecord>> {
        // Without a connection to the control plane, records may be outdated.
        let is_connected = self.control_client.is_connected.get();
        is_connected.then(|| self.control_client.config_store.dns_record(name)).flatten()
    }

    /// Requests the record of a name from the control plane, and waits at most [`MAX_CONTROL_WAIT`]. Returns
    /// `None` without a record; the query is then forwarded to the resolvers.
    async fn request_record(&self, name: &ServiceName) -> Option<Arc<DnsRecord>> {
        let ControlClient { config_store, is_connected, subscribed_names, .. } =
            &*self.control_client;
        if !is_connected.get() {
            return None;
        }
        let now = Instant::now();
        let is_new = !subscribed_names.borrow().contains(name);
        if is_new && !self.query_budget.borrow_mut().try_withdraw(name, now) {
            return None;
        }
        let mut changes = config_store.subscribe();
        config_store.try_request_resource(ResourceRequest::Name(name.clone()));
        if self.control_silent_until.get().is_some_and(|until| now < until) {
            return None;
        }
        let wait_for_record = async {
            loop {
                // Checked again before the first wait: the record may have arrived meanwhile.
                if let Some(record) = config_store.dns_record(name) {
                    return Some(record);
                }
                changes.changed().await.ok()?;
            }
        };
        if let Ok(record) = timeout(MAX_CONTROL_WAIT, wait_for_record).await {
            return record;
        }
        self.control_silent_until.set(Some(now + CONTROL_SILENCE));
        None
    }

    /// Requests the entries of the addresses in a response, since the application is about to connect.
    fn request_address_entries(&self, service_query: &ServiceQuery, record: &DnsRecord) {
        let addresses = || {
            record
                .addresses()
                .iter()
                .filter(|address| service_query.has_requested_version(**address))
        };
        if addresses().count() > MAX_REQUESTED_ADDRESSES {
            return;
        }
        let config_store = &self.control_client.config_store;
        for address in addresses().filter(|address| !config_store.knows_address(**address)) {
            config_store.try_request_resource(ResourceRequest::Address(*address));
        }
    }

    fn count(&self, count: Count) {
        self.control_client.metrics.add(count, 1);
    }
}

/// Calls `bind` until it succeeds. While the address is in use, a condition reports it.
pub(crate) async fn bind_when_free<T>(
    conditions: &Conditions,
    address: SocketAddr,
    transport: DnsTransport,
    bind: impl AsyncFn() -> io::Result<T>,
) -> T {
    let mut has_failed = false;
    let subject = format!("{address} {transport:?}");
    loop {
        match bind().await {
            Ok(bound) => {
                if has_failed {
                    conditions.clear_condition(kind::DNS_CLOSED, &subject);
                    tracing::info!(%address, transport = ?transport, "the DNS listener is open");
                }
                return bound;
            }
            Err(error) if !has_failed => {
                tracing::error!(%address, transport = ?transport, %error, "cannot open the DNS listener: free the port, or start without --dns");
                conditions.set_condition(kind::DNS_CLOSED, &subject, error.to_string());
                has_failed = true;
            }
            Err(_) => {}
        }
        sleep(BIND_RETRY_INTERVAL).await;
    }
}

/// The port of resolvers (RFC 1035 §4.2).
const RESOLVER_PORT: u16 = 53;
/// The maximum size of a query in bytes. Queries are short, even if they announce a large response size.
const MAX_QUERY_BYTES: usize = 4096;
/// The maximum number of pending queries; further ones fail with SERVFAIL.
const MAX_PENDING_QUERIES: usize = 256;
/// The maximum number of TCP connections; further ones wait.
const MAX_TCP_CONNECTIONS: usize = 64;
/// The idle and write timeout of a TCP connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum lifetime of a TCP connection.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(120);
/// The maximum wait of a query for the control plane's response.
const MAX_CONTROL_WAIT: Duration = Duration::from_millis(250);
/// The time for which queries do not wait for the control plane after a query without its response.
const CONTROL_SILENCE: Duration = Duration::from_secs(10);
/// The maximum number of addresses for which entries are requested; with more, the client's choice is
/// unpredictable.
const MAX_REQUESTED_ADDRESSES: usize = 4;
/// The pause after a socket error, to avoid a busy loop.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// The interval of attempts to bind an address that is in use.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
