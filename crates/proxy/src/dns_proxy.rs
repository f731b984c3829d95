//! DNS proxy for the application: names of the mesh are resolved locally, other queries are forwarded to the
//! configured resolvers.

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
use question::{ParsedQuery, ServiceQuery, read, server_failure};
use resolvers::Resolvers;
pub(crate) use resolvers::is_answer;

/// The transport of a DNS query and its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsTransport {
    Udp,
    Tcp,
}

/// The replies to one packet, and the checks of it, without sockets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DnsReplies {
    /// The service in the query for addresses; no other packet has replies.
    pub service: Option<ServiceName>,
    /// The reply over UDP.
    pub udp: Option<Vec<u8>>,
    /// The reply over TCP.
    pub tcp: Option<Vec<u8>>,
    /// The reply when no resolver responds.
    pub failure: Option<Vec<u8>>,
}

/// Returns the replies to a packet if each service has the addresses `found`.
pub(crate) fn build_replies(
    packet: &[u8],
    domain: &ClusterDomain,
    found: &DnsRecord,
) -> DnsReplies {
    let failure = server_failure(packet);
    match read(packet, domain) {
        ParsedQuery::Service(asked) => DnsReplies {
            udp: asked.build_response(found, DnsTransport::Udp),
            tcp: asked.build_response(found, DnsTransport::Tcp),
            service: Some(asked.service),
            failure,
        },
        ParsedQuery::OutsideMesh | ParsedQuery::Invalid => {
            DnsReplies { failure, ..DnsReplies::default() }
        }
    }
}

/// Serves DNS queries for the lifetime of the proxy.
pub(crate) fn serve(tasks: &LocalSet, control_client: &Rc<ControlClient>, dns_proxy: &DnsProxy) {
    let resolvers = Resolvers::new(dns_proxy.resolvers.clone(), RESOLVER_PORT, is_of_pod);
    let answerer =
        DnsQueryHandler::new(control_client.clone(), dns_proxy.domain.clone(), resolvers);
    let answerer = Rc::new(answerer);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    for address in &dns_proxy.at {
        tasks.spawn_local(answerer.clone().serve_udp(*address));
        tasks.spawn_local(answerer.clone().serve_tcp(*address, slots.clone()));
    }
}

impl DnsProxy {
    /// Returns true if a resolver outside the pod is configured, for names outside the mesh.
    #[must_use]
    pub fn have_resolvers(&self) -> bool {
        let text = std::fs::read_to_string(&self.resolvers).unwrap_or_default();
        !resolvers::name_servers(&text, is_of_pod).is_empty()
    }
}

/// True if a name server runs in the pod itself, for example a local cache: its own queries are redirected to
/// this proxy as well, which would create a loop.
fn is_of_pod(server: IpAddr) -> bool {
    let server = server.to_canonical();
    server.is_loopback() || server.is_unspecified()
}

struct DnsQueryHandler {
    control_client: Rc<ControlClient>,
    domain: ClusterDomain,
    resolvers: Resolvers,
    /// Set after the control plane left a query unanswered: until then queries do not wait for it.
    silent_until: Cell<Option<Instant>>,
    /// The budget of control plane queries for new names.
    allowance: RefCell<QueryBudget>,
    /// Permits for DNS queries that wait for the control plane or a resolver.
    under_way: Arc<Semaphore>,
}

/// The next step of a DNS query.
enum QueryStep {
    /// The query is complete, with this response or none.
    Reply(Option<Vec<u8>>),
    /// The query is forwarded while this permit is held: to the control plane first, if it is for a service
    /// without a known record.
    Forward(Option<Box<ServiceQuery>>, OwnedSemaphorePermit),
}

impl DnsQueryHandler {
    fn new(control_client: Rc<ControlClient>, domain: ClusterDomain, resolvers: Resolvers) -> Self {
        Self {
            control_client,
            domain,
            resolvers,
            silent_until: Cell::new(None),
            allowance: RefCell::new(QueryBudget::new(Instant::now())),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
        }
    }

    fn conditions(&self) -> &Conditions {
        &self.control_client.config_store.conditions
    }

    async fn serve_udp(self: Rc<Self>, address: SocketAddr) {
        let socket = bind_when_free(self.conditions(), address, DnsTransport::Udp, async || {
            UdpSocket::bind(address).await
        })
        .await;
        let socket = Rc::new(socket);
        // One extra byte reveals packets that are too long.
        let mut packet = vec![0_u8; QUERY_BYTES_MAX + 1];
        loop {
            let Ok((length, client)) = socket.recv_from(&mut packet).await else {
                sleep(PAUSE).await;
                continue;
            };
            if length > QUERY_BYTES_MAX {
                self.count(Count::DnsQueriesFailed);
                continue;
            }
            let query = packet.get(..length).unwrap_or_default();
            let (asked, slot) = match self.handle_immediately(query, DnsTransport::Udp) {
                QueryStep::Reply(None) => continue,
                QueryStep::Reply(Some(reply)) => {
                    socket.send_to(&reply, client).await.ok();
                    continue;
                }
                QueryStep::Forward(asked, slot) => (asked, slot),
            };
            let (answerer, socket, query) = (self.clone(), socket.clone(), query.to_vec());
            tokio::task::spawn_local(async move {
                if let Some(reply) = answerer.resolve_query(asked, &query, DnsTransport::Udp).await
                {
                    socket.send_to(&reply, client).await.ok();
                }
                drop(slot);
            });
        }
    }

    async fn serve_tcp(self: Rc<Self>, address: SocketAddr, slots: Arc<Semaphore>) {
        let listener = bind_when_free(self.conditions(), address, DnsTransport::Tcp, async || {
            TcpListener::bind(address).await
        })
        .await;
        let mut listener = Listener::new("DNS", listener);
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let (tcp, _) = listener.accept().await;
            let answerer = self.clone();
            tokio::task::spawn_local(async move {
                let ended = timeout(LIFE_MAX, answerer.serve_connection(tcp)).await;
                tracing::trace!(result = ?ended, "DNS connection ended");
                drop(slot);
            });
        }
    }

    /// Serves the queries of one connection in sequence (RFC 1035 §4.2.2).
    async fn serve_connection(&self, mut tcp: TcpStream) -> io::Result<()> {
        loop {
            let read = async {
                let length = usize::from(tcp.read_u16().await?);
                if length > QUERY_BYTES_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let mut query = vec![0; length];
                tcp.read_exact(&mut query).await.map(|_| query)
            };
            let query = timeout(IDLE_MAX, read).await.map_err(io::Error::from)??;
            let reply = self.reply_to(&query, DnsTransport::Tcp).await;
            let reply = reply.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let write = async {
                tcp.write_all(&resolvers::frame_message(&reply)).await?;
                tcp.flush().await
            };
            timeout(IDLE_MAX, write).await.map_err(io::Error::from)??;
        }
    }

    /// Returns the response to a query; `None` if it is malformed.
    async fn reply_to(&self, query: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        match self.handle_immediately(query, over) {
            QueryStep::Reply(reply) => reply,
            QueryStep::Forward(asked, _slot) => self.resolve_query(asked, query, over).await,
        }
    }

    /// Handles a query as far as possible without waiting: known names are resolved regardless of the number of
    /// pending queries.
    fn handle_immediately(&self, query: &[u8], over: DnsTransport) -> QueryStep {
        let asked = match read(query, &self.domain) {
            ParsedQuery::Invalid => {
                self.count(Count::DnsQueriesFailed);
                return QueryStep::Reply(None);
            }
            ParsedQuery::OutsideMesh => None,
            ParsedQuery::Service(asked) => match self.known_record(&asked.service) {
                None => Some(asked),
                Some(found) => match self.mesh_response(&asked, &found, over) {
                    Some(reply) => return QueryStep::Reply(Some(reply)),
                    None => None,
                },
            },
        };
        match self.under_way.clone().try_acquire_owned() {
            Ok(slot) => QueryStep::Forward(asked, slot),
            Err(_) => QueryStep::Reply(self.server_failure(query)),
        }
    }

    /// Queries the control plane about a service, and the resolvers if it has no record.
    async fn resolve_query(
        &self,
        asked: Option<Box<ServiceQuery>>,
        query: &[u8],
        over: DnsTransport,
    ) -> Option<Vec<u8>> {
        if let Some(asked) = asked
            && let Some(found) = self.request_record(&asked.service).await
            && let Some(reply) = self.mesh_response(&asked, &found, over)
        {
            return Some(reply);
        }
        if let Some(reply) = self.resolvers.pass_on(query, over).await {
            self.count(Count::DnsQueriesForwarded);
            return Some(reply);
        }
        self.server_failure(query)
    }

    /// Returns the response of the mesh; `None` if the query has to be forwarded.
    fn mesh_response(
        &self,
        asked: &ServiceQuery,
        found: &DnsRecord,
        over: DnsTransport,
    ) -> Option<Vec<u8>> {
        let reply = asked.build_response(found, over).filter(|_| !found.is_forwarded())?;
        self.expect_connections(asked, found);
        self.count(Count::DnsQueriesAnswered);
        Some(reply)
    }

    fn server_failure(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.count(Count::DnsQueriesFailed);
        server_failure(query)
    }

    /// Returns the record of a name, if it is known and current.
    fn known_record(&self, name: &ServiceName) -> Option<Arc<DnsRecord>> {
        // Without a connection to the control plane, records may be outdated.
        let is_fresh = self.control_client.connected.get();
        is_fresh.then(|| self.control_client.config_store.dns_record(name)).flatten()
    }

    /// Requests the record of a name from the control plane. The wait is short: the resolvers have an equally
    /// valid response.
    async fn request_record(&self, name: &ServiceName) -> Option<Arc<DnsRecord>> {
        let ControlClient { config_store, connected, dns_names, .. } = &*self.control_client;
        if !connected.get() {
            return None;
        }
        let now = Instant::now();
        let is_new = !dns_names.borrow().contains(name);
        if is_new && !self.allowance.borrow_mut().try_withdraw(name, now) {
            return None;
        }
        let mut changes = config_store.subscribe();
        config_store.want_in_passing(ResourceRequest::Name(name.clone()));
        if self.silent_until.get().is_some_and(|until| now < until) {
            return None;
        }
        let found = async {
            loop {
                // Checked again before the first wait: the record may have arrived since.
                if let Some(found) = config_store.dns_record(name) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        if let Ok(found) = timeout(MAX_WAIT, found).await {
            return found;
        }
        self.silent_until.set(Some(now + SILENCE));
        None
    }

    /// Requests the entries of the addresses in a response: the application is about to connect.
    fn expect_connections(&self, asked: &ServiceQuery, found: &DnsRecord) {
        let addresses = || found.addresses().iter().filter(|address| asked.is_requested(**address));
        if addresses().count() > EXPECTED_MAX {
            return;
        }
        let config_store = &self.control_client.config_store;
        for address in addresses().filter(|address| !config_store.knows_address(**address)) {
            config_store.want_in_passing(ResourceRequest::Address(*address));
        }
    }

    fn count(&self, count: Count) {
        self.control_client.shard.add(count, 1);
    }
}

/// Binds the address, as soon as it is free.
pub(crate) async fn bind_when_free<T>(
    conditions: &Conditions,
    address: SocketAddr,
    over: DnsTransport,
    bind: impl AsyncFn() -> io::Result<T>,
) -> T {
    let mut failed = false;
    let subject = format!("{address} {over:?}");
    loop {
        match bind().await {
            Ok(bound) => {
                if failed {
                    conditions.clear(kind::DNS_CLOSED, &subject);
                    tracing::info!(%address, transport = ?over, "the DNS listener is open");
                }
                return bound;
            }
            Err(error) if !failed => {
                tracing::error!(%address, transport = ?over, %error, "cannot open the DNS listener: free the port, or start without --dns");
                conditions.set_condition(kind::DNS_CLOSED, &subject, error.to_string());
                failed = true;
            }
            Err(_) => {}
        }
        sleep(BIND_AGAIN).await;
    }
}

/// The port of resolvers (RFC 1035 §4.2).
const RESOLVER_PORT: u16 = 53;
/// The maximum size of a query: queries are short, whatever response size they announce.
const QUERY_BYTES_MAX: usize = 4096;
/// The maximum number of pending queries; further ones fail with SERVFAIL.
const UNDER_WAY_MAX: usize = 256;
/// The maximum number of TCP connections; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// The idle and write timeout of a TCP connection.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// The maximum lifetime of a TCP connection.
const LIFE_MAX: Duration = Duration::from_secs(120);
/// The time limit for the control plane's response.
const MAX_WAIT: Duration = Duration::from_millis(250);
/// The time after such a timeout in which queries do not wait for the control plane.
const SILENCE: Duration = Duration::from_secs(10);
/// The maximum number of addresses for which entries are requested; with more, the client's choice is
/// unpredictable.
const EXPECTED_MAX: usize = 4;
/// The pause after a socket error, to avoid a busy loop.
const PAUSE: Duration = Duration::from_millis(50);
/// The interval of attempts to bind an address that is in use.
const BIND_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
