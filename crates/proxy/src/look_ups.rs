//! Name look-ups of the application, which the kernel leads here: what the mesh knows is answered,
//! everything else is passed on to the resolvers that it was for.

mod allowance;
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
use leno_model::{ServiceName, Whereabouts};
use leno_telemetry::Count;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use crate::conditions::Conditions;
use crate::config::LookUps;
use crate::follow::Follower;
use crate::world::Want;

pub use question::{BadDomain, ClusterDomain};

use allowance::Allowance;
use question::{Asked, Reading, failure, read};
use resolvers::Resolvers;
pub(crate) use resolvers::is_answer;

/// How a look-up came, and its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
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

/// The replies to a packet when each service has the addresses `found`.
pub(crate) fn replies(packet: &[u8], domain: &ClusterDomain, found: &Whereabouts) -> DnsReplies {
    let failure = failure(packet);
    match read(packet, domain) {
        Reading::Service(asked) => DnsReplies {
            udp: asked.answer(found, Over::Udp),
            tcp: asked.answer(found, Over::Tcp),
            service: Some(asked.service),
            failure,
        },
        Reading::Foreign | Reading::Nonsense => DnsReplies { failure, ..DnsReplies::default() },
    }
}

/// Answers look-ups for as long as the proxy lives.
pub(crate) fn serve(tasks: &LocalSet, follower: &Rc<Follower>, look_ups: &LookUps) {
    let resolvers = Resolvers::new(look_ups.resolvers.clone(), RESOLVER_PORT, is_of_pod);
    let answerer = Answerer::new(follower.clone(), look_ups.domain.clone(), resolvers);
    let answerer = Rc::new(answerer);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    for address in &look_ups.at {
        tasks.spawn_local(answerer.clone().packets(*address));
        tasks.spawn_local(answerer.clone().connections(*address, slots.clone()));
    }
}

impl LookUps {
    /// Whether somebody beyond the pod is named who answers what the mesh does not know.
    #[must_use]
    pub fn have_resolvers(&self) -> bool {
        let text = std::fs::read_to_string(&self.resolvers).unwrap_or_default();
        !resolvers::name_servers(&text, is_of_pod).is_empty()
    }
}

/// Whether a name server is in the pod itself, as a cache beside the application: its own look-ups
/// are led here too, so that they would go round in circles.
fn is_of_pod(server: IpAddr) -> bool {
    let server = server.to_canonical();
    server.is_loopback() || server.is_unspecified()
}

struct Answerer {
    follower: Rc<Follower>,
    domain: ClusterDomain,
    resolvers: Resolvers,
    /// The control plane left a question open: until then nobody waits for it.
    silent_until: Cell<Option<Instant>>,
    /// What may be asked about names that are new.
    allowance: RefCell<Allowance>,
    /// Look-ups for which the control plane is asked, or a name server.
    under_way: Arc<Semaphore>,
}

/// What becomes of a look-up.
enum Step {
    /// Nothing more: it is answered so, or not at all.
    Reply(Option<Vec<u8>>),
    /// Others are asked, while this is kept: the control plane about that, if it is about a service
    /// of which it did not say anything yet.
    Ask(Option<Box<Asked>>, OwnedSemaphorePermit),
}

impl Answerer {
    fn new(follower: Rc<Follower>, domain: ClusterDomain, resolvers: Resolvers) -> Self {
        Self {
            follower,
            domain,
            resolvers,
            silent_until: Cell::new(None),
            allowance: RefCell::new(Allowance::new(Instant::now())),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
        }
    }

    fn conditions(&self) -> &Conditions {
        &self.follower.world.conditions
    }

    async fn packets(self: Rc<Self>, address: SocketAddr) {
        let socket =
            bound(self.conditions(), (address, Over::Udp), async || UdpSocket::bind(address).await)
                .await;
        let socket = Rc::new(socket);
        // Room for one byte more than is taken tells what was longer.
        let mut packet = vec![0_u8; QUERY_BYTES_MAX + 1];
        loop {
            let Ok((length, client)) = socket.recv_from(&mut packet).await else {
                sleep(PAUSE).await;
                continue;
            };
            if length > QUERY_BYTES_MAX {
                self.count(Count::LookUpsFailed);
                continue;
            }
            let query = packet.get(..length).unwrap_or_default();
            let (asked, slot) = match self.step(query, Over::Udp) {
                Step::Reply(None) => continue,
                Step::Reply(Some(reply)) => {
                    socket.send_to(&reply, client).await.ok();
                    continue;
                }
                Step::Ask(asked, slot) => (asked, slot),
            };
            let (answerer, socket, query) = (self.clone(), socket.clone(), query.to_vec());
            tokio::task::spawn_local(async move {
                if let Some(reply) = answerer.ask(asked, &query, Over::Udp).await {
                    socket.send_to(&reply, client).await.ok();
                }
                drop(slot);
            });
        }
    }

    async fn connections(self: Rc<Self>, address: SocketAddr, slots: Arc<Semaphore>) {
        let listener = bound(self.conditions(), (address, Over::Tcp), async || {
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
                let ended = timeout(LIFE_MAX, answerer.converse(tcp)).await;
                tracing::trace!(?ended, "a connection for look-ups ended");
                drop(slot);
            });
        }
    }

    /// Look-ups of one connection, one after another (RFC 1035 §4.2.2).
    async fn converse(&self, mut tcp: TcpStream) -> io::Result<()> {
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
            let reply = self.reply(&query, Over::Tcp).await;
            let reply = reply.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let write = async {
                tcp.write_all(&resolvers::framed(&reply)).await?;
                tcp.flush().await
            };
            timeout(IDLE_MAX, write).await.map_err(io::Error::from)??;
        }
    }

    /// What a look-up is answered; `None` when it is none.
    async fn reply(&self, query: &[u8], over: Over) -> Option<Vec<u8>> {
        match self.step(query, over) {
            Step::Reply(reply) => reply,
            Step::Ask(asked, _slot) => self.ask(asked, query, over).await,
        }
    }

    /// What can be done without asking anybody: what is known is answered however many others wait.
    fn step(&self, query: &[u8], over: Over) -> Step {
        let asked = match read(query, &self.domain) {
            Reading::Nonsense => {
                self.count(Count::LookUpsFailed);
                return Step::Reply(None);
            }
            Reading::Foreign => None,
            Reading::Service(asked) => match self.known(&asked.service) {
                None => Some(asked),
                Some(found) => match self.answer(&asked, &found, over) {
                    Some(reply) => return Step::Reply(Some(reply)),
                    None => None,
                },
            },
        };
        match self.under_way.clone().try_acquire_owned() {
            Ok(slot) => Step::Ask(asked, slot),
            Err(_) => Step::Reply(self.fail(query)),
        }
    }

    /// Asks the control plane about a service, and the resolvers when it has no answer.
    async fn ask(&self, asked: Option<Box<Asked>>, query: &[u8], over: Over) -> Option<Vec<u8>> {
        if let Some(asked) = asked
            && let Some(found) = self.find(&asked.service).await
            && let Some(reply) = self.answer(&asked, &found, over)
        {
            return Some(reply);
        }
        if let Some(reply) = self.resolvers.pass_on(query, over).await {
            self.count(Count::LookUpsForwarded);
            return Some(reply);
        }
        self.fail(query)
    }

    /// The answer of the mesh; `None` when others have it.
    fn answer(&self, asked: &Asked, found: &Whereabouts, over: Over) -> Option<Vec<u8>> {
        let reply = asked.answer(found, over).filter(|_| !found.is_elsewhere())?;
        self.expect_connections(asked, found);
        self.count(Count::LookUpsAnswered);
        Some(reply)
    }

    fn fail(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.count(Count::LookUpsFailed);
        failure(query)
    }

    /// What the control plane said of a name.
    fn known(&self, name: &ServiceName) -> Option<Arc<Whereabouts>> {
        // What is known from before may be old.
        let is_fresh = self.follower.connected.get();
        is_fresh.then(|| self.follower.world.whereabouts(name)).flatten()
    }

    /// What the control plane says of a name. It is not waited for long: the resolvers have an
    /// answer that is as right.
    async fn find(&self, name: &ServiceName) -> Option<Arc<Whereabouts>> {
        let Follower { world, connected, looked_up, .. } = &*self.follower;
        if !connected.get() {
            return None;
        }
        let now = Instant::now();
        let is_new = !looked_up.borrow().contains(name);
        if is_new && !self.allowance.borrow_mut().permits(name, now) {
            return None;
        }
        let mut changes = world.changes();
        world.want_in_passing(Want::Name(name.clone()));
        if self.silent_until.get().is_some_and(|until| now < until) {
            return None;
        }
        let found = async {
            loop {
                // Looked up once more before the first wait: the answer may have come since.
                if let Some(found) = world.whereabouts(name) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        if let Ok(found) = timeout(PATIENCE, found).await {
            return found;
        }
        self.silent_until.set(Some(now + SILENCE));
        None
    }

    /// Asks what is at the addresses of an answer: the application is about to connect.
    fn expect_connections(&self, asked: &Asked, found: &Whereabouts) {
        let addresses = || found.addresses().iter().filter(|address| asked.wants(**address));
        if addresses().count() > EXPECTED_MAX {
            return;
        }
        let world = &self.follower.world;
        for address in addresses().filter(|address| !world.knows_address(**address)) {
            world.want_in_passing(Want::Address(*address));
        }
    }

    fn count(&self, count: Count) {
        self.follower.shard.add(count, 1);
    }
}

/// What listens there, as soon as the port is free.
pub(crate) async fn bound<T>(
    conditions: &Conditions,
    (address, over): (SocketAddr, Over),
    bind: impl AsyncFn() -> io::Result<T>,
) -> T {
    let mut failed = false;
    let subject = format!("{address} {over:?}");
    loop {
        match bind().await {
            Ok(bound) => {
                if failed {
                    conditions.clear(kind::DNS_CLOSED, &subject);
                    tracing::info!(%address, ?over, "names can be looked up there now");
                }
                return bound;
            }
            Err(error) if !failed => {
                tracing::error!(%address, ?over, %error, "names cannot be looked up there: free the port, or start without --dns");
                conditions.set(kind::DNS_CLOSED, &subject, error.to_string());
                failed = true;
            }
            Err(_) => {}
        }
        sleep(BIND_AGAIN).await;
    }
}

/// Where name servers are asked (RFC 1035 §4.2).
const RESOLVER_PORT: u16 = 53;
/// The longest look-up that is taken: questions are short, whatever room they leave for answers.
const QUERY_BYTES_MAX: usize = 4096;
/// Look-ups at once for which others are asked; more are told that nobody can answer.
const UNDER_WAY_MAX: usize = 256;
/// Connections for look-ups at once; more wait.
const CONNECTIONS_MAX: usize = 64;
/// How long such a connection may be silent, or take nothing of its answer.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// The longest life of such a connection.
const LIFE_MAX: Duration = Duration::from_secs(120);
/// How long the control plane is waited for.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long it is not waited for after it did not answer in that time.
const SILENCE: Duration = Duration::from_secs(10);
/// With more addresses than that, who knows which of them it connects to.
const EXPECTED_MAX: usize = 4;
/// When a socket fails, asking again at once would only burn time.
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is tried to listen where somebody else does.
const BIND_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
