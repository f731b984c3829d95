//! Other control planes of the same mesh: their sidecars, and the streams that follow them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_discovery::{
    Budget, ConnectionId, DiscoveryError, EventQueue, RegisteredSidecars, Registration, follow_peer,
};
use leno_model::WorkloadName;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// The sidecars of other control planes, by the stream that reports them.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    sent: BTreeMap<ConnectionId, RegisteredSidecars>,
    addresses: PeerAddresses,
}

/// The address of the control plane of each open stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerAddresses(Arc<Mutex<BTreeMap<ConnectionId, SocketAddr>>>);

impl PeerAddresses {
    /// Locks the addresses. A thread that panicked while it held the lock left no half-written state.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// Returns the table in which streams to other control planes record their addresses.
    pub(crate) fn peer_addresses(&self) -> PeerAddresses {
        self.addresses.clone()
    }

    /// Returns the address of the control plane of a stream.
    pub(crate) fn peer_address(&self, peer: ConnectionId) -> Option<SocketAddr> {
        self.addresses.lock().get(&peer).copied()
    }

    /// Returns the other control planes, each with its address and the number of its sidecars that `is_ours`
    /// rejects.
    pub(crate) fn other_control_planes(
        &self,
        is_ours: impl Fn(&WorkloadName) -> bool,
    ) -> Vec<(Option<SocketAddr>, usize)> {
        let counted = self.sent.iter().map(|(peer, sent)| {
            let holds = |workload: &WorkloadName| {
                let holder = self.newest_registration(workload).map(|(holder, _)| holder);
                !is_ours(workload) && holder == Some(*peer)
            };
            (self.peer_address(*peer), sent.keys().filter(|workload| holds(workload)).count())
        });
        counted.collect()
    }

    /// Adds a control plane that reports its sidecars, possibly none.
    pub(crate) fn add_peer(&mut self, peer: ConnectionId) {
        self.sent.entry(peer).or_default();
    }

    /// Records a control plane's report of this sidecar.
    pub(crate) fn record_registration(
        &mut self,
        peer: ConnectionId,
        workload: WorkloadName,
        registration: Registration,
    ) {
        self.sent.entry(peer).or_default().insert(workload, registration);
    }

    /// Removes a sidecar of a control plane.
    pub(crate) fn remove_sidecar(&mut self, peer: ConnectionId, workload: &WorkloadName) {
        if let Some(sent) = self.sent.get_mut(&peer) {
            sent.remove(workload);
        }
    }

    /// Removes a control plane, and returns its sidecars.
    pub(crate) fn remove_peer(&mut self, peer: ConnectionId) -> RegisteredSidecars {
        self.sent.remove(&peer).unwrap_or_default()
    }

    /// Returns the control plane that has a sidecar, as far as known: the one with its newest stream.
    pub(crate) fn newest_registration(
        &self,
        workload: &WorkloadName,
    ) -> Option<(ConnectionId, &Registration)> {
        let sent = self.sent.iter().filter_map(|(peer, sent)| Some((*peer, sent.get(workload)?)));
        sent.max_by_key(|(peer, registration)| (registration.session, *peer))
    }

    /// Returns the number of control planes that have reported their sidecars.
    pub(crate) fn peer_count(&self) -> usize {
        self.sent.len()
    }
}

/// The dependencies of a stream to another control plane.
#[derive(Debug)]
pub(crate) struct PeerStreamContext {
    pub(crate) configs: watch::Receiver<Arc<ClientConfig>>,
    pub(crate) events: EventQueue,
    pub(crate) addresses: PeerAddresses,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Follows the other control planes until shutdown: those in `always`, and those in `found` while they are
/// listed.
///
/// After an address leaves `found`, no new connection is opened. An open stream continues: its reports are true
/// while it is open, and the list of control planes may be wrong temporarily.
pub(crate) async fn follow_all(
    always: Vec<SocketAddr>,
    mut found: Option<watch::Receiver<BTreeSet<SocketAddr>>>,
    follower: PeerStreamContext,
) {
    let always: BTreeSet<SocketAddr> = always.into_iter().collect();
    let wanted = watch::Sender::new(BTreeSet::new());
    let follower = Arc::new(follower);
    let mut stop = follower.stop.clone();
    let mut following = BTreeSet::new();
    let mut tasks = JoinSet::new();
    let mut is_looked_for = found.is_some();
    loop {
        let mut now = always.clone();
        if let Some(found) = &mut found {
            now.extend(found.borrow_and_update().iter().copied());
        }
        wanted.send_replace(now.clone());
        for address in now.into_iter().filter(|address| following.insert(*address)) {
            let (wanted, follower) = (wanted.subscribe(), Arc::clone(&follower));
            tasks.spawn(async move {
                follow_one(address, wanted, follower).await;
                address
            });
        }
        tokio::select! {
            // Remaining tasks are dropped with the set.
            _ = stop.wait_for(|stop| *stop) => return,
            // When discovery ends, its last control planes stay.
            changed = wait_for_change(&mut found), if is_looked_for => is_looked_for = changed.is_ok(),
            Some(ended) = tasks.join_next(), if !follower.events.is_closed() => match ended {
                Ok(ended) => {
                    following.remove(&ended);
                }
                // Restart all: the error does not identify the task.
                Err(error) => {
                    tracing::error!(%error, "following another control plane failed");
                    tasks.abort_all();
                    following.clear();
                }
            },
        }
    }
}

async fn wait_for_change(
    found: &mut Option<watch::Receiver<BTreeSet<SocketAddr>>>,
) -> Result<(), watch::error::RecvError> {
    match found {
        Some(found) => found.changed().await,
        None => std::future::pending().await,
    }
}

async fn follow_one(
    address: SocketAddr,
    mut wanted: watch::Receiver<BTreeSet<SocketAddr>>,
    follower: Arc<PeerStreamContext>,
) {
    loop {
        match dial_peer(address, &follower).await {
            Ok(ended) => {
                tracing::info!(%address, reason = %ended, "the connection to another control plane ended")
            }
            Err(error) => tracing::debug!(%address, %error, "another control plane is unreachable"),
        }
        let gone = wanted.wait_for(|wanted| !wanted.contains(&address));
        if follower.events.is_closed() || timeout(AGAIN_AFTER, gone).await.is_ok() {
            return;
        }
    }
}

async fn dial_peer(
    address: SocketAddr,
    follower: &PeerStreamContext,
) -> std::io::Result<DiscoveryError> {
    let config = Arc::clone(&follower.configs.borrow());
    let connected = async {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        TlsConnector::from(config).connect(ServerName::IpAddress(address.ip().into()), tcp).await
    };
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let stream = timeout(MAX_WAIT, connected).await.map_err(late)??;
    tracing::info!(%address, "following another control plane");
    // A distinct number range, so that it never equals a proxy's.
    let number = PEER_STREAMS.fetch_add(1, Ordering::Relaxed);
    let events = follower.events.create_sender(Arc::new(Budget::new(Instant::now())));
    let number = ConnectionId(number);
    let _noted = NotedAddress::new(&follower.addresses, number, address);
    Ok(Box::pin(follow_peer(stream, number, events)).await)
}

/// Keeps the address of a stream in the table while it is open.
struct NotedAddress(PeerAddresses, ConnectionId);

impl NotedAddress {
    fn new(all: &PeerAddresses, stream: ConnectionId, address: SocketAddr) -> Self {
        all.lock().insert(stream, address);
        Self(all.clone(), stream)
    }
}

impl Drop for NotedAddress {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// The number of the next stream to another control plane; proxies count from 1.
static PEER_STREAMS: AtomicU64 = AtomicU64::new(1 << 63);

/// The retry interval: there are few control planes, and a starting one should be followed soon.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The timeout of a connection and its handshake.
const MAX_WAIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stream_of_a_sidecar_decides_who_has_it() {
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        let [one, two] = [1, 2].map(ConnectionId);
        let registration = |session| Registration { listeners: Vec::new(), session };
        let mut peers = Peers::default();
        let holder = |peers: &Peers| {
            peers.newest_registration(&workload).map(|(peer, sent)| (peer, sent.session))
        };
        assert_eq!(holder(&peers), None);
        peers.record_registration(two, workload.clone(), registration(5));
        peers.record_registration(one, workload.clone(), registration(7));
        assert_eq!(holder(&peers), Some((one, 7)));
        peers.record_registration(two, workload.clone(), registration(9));
        assert_eq!(holder(&peers), Some((two, 9)));
        assert_eq!(peers.remove_peer(two).len(), 1);
        assert_eq!((holder(&peers), peers.peer_count()), (Some((one, 7)), 1));
        peers.remove_sidecar(one, &workload);
        assert_eq!(holder(&peers), None);
    }
}
