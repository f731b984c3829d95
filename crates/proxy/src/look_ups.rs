//! Name look-ups of the application, which the kernel leads here: what the mesh knows is answered,
//! everything else is passed on to the resolvers that it was for.

mod question;
mod resolvers;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::NAMES_MAX;
use leno_model::{ServiceName, Whereabouts};
use leno_telemetry::Count;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use crate::config::LookUps;
use crate::follow::Follower;
use crate::world::Want;

pub use question::{BadDomain, ClusterDomain};

use question::{Reading, failure, read};
use resolvers::Resolvers;

/// How a look-up came, and its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Udp,
    Tcp,
}

/// Answers look-ups for as long as the proxy lives.
pub(crate) fn serve(tasks: &LocalSet, follower: &Rc<Follower>, look_ups: &LookUps) {
    let answerer = Rc::new(Answerer {
        follower: follower.clone(),
        domain: look_ups.domain.clone(),
        resolvers: Resolvers::new(look_ups.resolvers.clone(), RESOLVER_PORT),
        silent_until: Cell::new(None),
    });
    let (packets, connections) = (semaphore(LOOK_UPS_MAX), semaphore(CONNECTIONS_MAX));
    for address in &look_ups.at {
        tasks.spawn_local(answerer.clone().packets(*address, packets.clone()));
        tasks.spawn_local(answerer.clone().connections(*address, connections.clone()));
    }
}

struct Answerer {
    follower: Rc<Follower>,
    domain: ClusterDomain,
    resolvers: Resolvers,
    /// The control plane left a question open: until then nobody waits for it.
    silent_until: Cell<Option<Instant>>,
}

impl Answerer {
    async fn packets(self: Rc<Self>, address: SocketAddr, slots: Arc<Semaphore>) {
        let socket = match UdpSocket::bind(address).await {
            Ok(socket) => Rc::new(socket),
            Err(error) => return closed(address, &error),
        };
        let mut packet = vec![0_u8; QUERY_BYTES_MAX];
        loop {
            let Ok((length, client)) = socket.recv_from(&mut packet).await else {
                sleep(PAUSE).await;
                continue;
            };
            let query = packet.get(..length).unwrap_or_default().to_vec();
            // An application that asks faster than anybody answers loses look-ups; it asks again.
            let Ok(slot) = slots.clone().try_acquire_owned() else {
                self.count(Count::LookUpsFailed);
                continue;
            };
            let (answerer, socket) = (self.clone(), socket.clone());
            tokio::task::spawn_local(async move {
                if let Some(reply) = answerer.reply(&query, Over::Udp).await {
                    socket.send_to(&reply, client).await.ok();
                }
                drop(slot);
            });
        }
    }

    async fn connections(self: Rc<Self>, address: SocketAddr, slots: Arc<Semaphore>) {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => return closed(address, &error),
        };
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let Ok((tcp, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
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
        let reading = read(query, &self.domain);
        if let Reading::Service(asked) = &reading
            && let Some(found) = self.find(&asked.service).await
            && !found.is_elsewhere()
            && let Some(reply) = asked.answer(&found, over)
        {
            self.expect_connections(&found);
            self.count(Count::LookUpsAnswered);
            return Some(reply);
        }
        if matches!(reading, Reading::Nonsense) {
            self.count(Count::LookUpsFailed);
            return None;
        }
        if let Some(reply) = self.resolvers.pass_on(query, over).await {
            self.count(Count::LookUpsForwarded);
            return Some(reply);
        }
        self.count(Count::LookUpsFailed);
        failure(query)
    }

    /// What the control plane says of a name. It is not waited for long: the resolvers have an
    /// answer that is as right.
    async fn find(&self, name: &ServiceName) -> Option<Arc<Whereabouts>> {
        let Follower { world, connected, looked_up, .. } = &*self.follower;
        // What is known from before may be old.
        if !connected.get() {
            return None;
        }
        if let Some(found) = world.whereabouts(name) {
            return Some(found);
        }
        let mut changes = world.changes();
        world.want_in_passing(Want::Name(name.clone()));
        let is_full = {
            let looked_up = looked_up.borrow();
            looked_up.len() >= NAMES_MAX && !looked_up.contains(name)
        };
        let now = Instant::now();
        if is_full || self.silent_until.get().is_some_and(|until| now < until) {
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

    /// Asks what is at these addresses: the application is about to connect.
    fn expect_connections(&self, found: &Whereabouts) {
        let addresses = found.addresses();
        if addresses.len() > EXPECTED_MAX {
            return;
        }
        let world = &self.follower.world;
        for address in addresses.iter().filter(|address| !world.knows_address(**address)) {
            world.want_in_passing(Want::Address(*address));
        }
    }

    fn count(&self, count: Count) {
        self.follower.shard.add(count, 1);
    }
}

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits))
}

fn closed(address: SocketAddr, error: &io::Error) {
    tracing::error!(%address, %error, "names cannot be looked up there: free the port, or start without --dns");
}

/// Where name servers are asked (RFC 1035 §4.2).
const RESOLVER_PORT: u16 = 53;
/// The longest look-up that is taken: questions are short, whatever room they leave for answers.
const QUERY_BYTES_MAX: usize = 4096;
/// Look-ups over UDP under way at once.
const LOOK_UPS_MAX: usize = 256;
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

#[cfg(test)]
mod tests;
