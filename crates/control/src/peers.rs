//! Other control planes of the same mesh: which sidecars they have, and how they are followed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_discovery::{
    Budget, ConnectionId, EventQueue, FollowError, Registered, Registration, follow_peer,
};
use leno_model::WorkloadName;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// The sidecars that other control planes have, by the stream that tells of them.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    told: BTreeMap<ConnectionId, Registered>,
    addresses: PeerAddresses,
}

/// The address of the control plane at the end of each open stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerAddresses(Arc<Mutex<BTreeMap<ConnectionId, SocketAddr>>>);

impl PeerAddresses {
    /// The addresses. A thread that panicked while it held the lock left no half-written state.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// The place where the streams to other control planes note their addresses.
    pub(crate) fn addresses(&self) -> PeerAddresses {
        self.addresses.clone()
    }

    /// The address of the control plane at the other end of a stream.
    pub(crate) fn address(&self, peer: ConnectionId) -> Option<SocketAddr> {
        self.addresses.lock().get(&peer).copied()
    }

    /// The other control planes, each with its address and the number of its sidecars that `is_ours` rejects.
    pub(crate) fn others(
        &self,
        is_ours: impl Fn(&WorkloadName) -> bool,
    ) -> Vec<(Option<SocketAddr>, usize)> {
        let counted = self.told.iter().map(|(peer, told)| {
            let holds = |workload: &WorkloadName| {
                let holder = self.holder(workload).map(|(holder, _)| holder);
                !is_ours(workload) && holder == Some(*peer)
            };
            (self.address(*peer), told.keys().filter(|workload| holds(workload)).count())
        });
        counted.collect()
    }

    /// One of them lists its sidecars, of which it may have none.
    pub(crate) fn arrive(&mut self, peer: ConnectionId) {
        self.told.entry(peer).or_default();
    }

    /// One of them has this sidecar.
    pub(crate) fn tell(
        &mut self,
        peer: ConnectionId,
        workload: WorkloadName,
        registration: Registration,
    ) {
        self.told.entry(peer).or_default().insert(workload, registration);
    }

    /// One of them has it no more.
    pub(crate) fn forget(&mut self, peer: ConnectionId, workload: &WorkloadName) {
        if let Some(told) = self.told.get_mut(&peer) {
            told.remove(workload);
        }
    }

    /// One of them is gone, with all that it told.
    pub(crate) fn part(&mut self, peer: ConnectionId) -> Registered {
        self.told.remove(&peer).unwrap_or_default()
    }

    /// Who has a sidecar, as far as is known: the one with its newest stream.
    pub(crate) fn holder(&self, workload: &WorkloadName) -> Option<(ConnectionId, &Registration)> {
        let told = self.told.iter().filter_map(|(peer, told)| Some((*peer, told.get(workload)?)));
        told.max_by_key(|(peer, registration)| (registration.session, *peer))
    }

    /// The number of those that have listed their sidecars.
    pub(crate) fn count(&self) -> usize {
        self.told.len()
    }
}

/// What is needed to follow another control plane.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) configs: watch::Receiver<Arc<ClientConfig>>,
    pub(crate) events: EventQueue,
    pub(crate) addresses: PeerAddresses,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Follows the other control planes until told to stop: `always` these, and those in `found` for as
/// long as they are there.
///
/// Who is found no more is dialled no more. A stream to it goes on while it lasts: what the other
/// says is true as long as it speaks, and whoever lists control planes may be mistaken for a moment.
pub(crate) async fn follow_all(
    always: Vec<SocketAddr>,
    mut found: Option<watch::Receiver<BTreeSet<SocketAddr>>>,
    follower: Follower,
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
            // What remains is dropped with the set.
            _ = stop.wait_for(|stop| *stop) => return,
            // When nobody looks any more, those that were there last stay.
            changed = changed(&mut found), if is_looked_for => is_looked_for = changed.is_ok(),
            Some(ended) = tasks.join_next(), if !follower.events.is_closed() => match ended {
                Ok(ended) => {
                    following.remove(&ended);
                }
                // All of them once more: which one it was is not told.
                Err(error) => {
                    tracing::error!(%error, "following another control plane failed");
                    tasks.abort_all();
                    following.clear();
                }
            },
        }
    }
}

async fn changed(
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
    follower: Arc<Follower>,
) {
    loop {
        match dial(address, &follower).await {
            Ok(ended) => tracing::info!(%address, reason = %ended, "another control plane is lost"),
            Err(error) => tracing::debug!(%address, %error, "another control plane is not there"),
        }
        let gone = wanted.wait_for(|wanted| !wanted.contains(&address));
        if follower.events.is_closed() || timeout(AGAIN_AFTER, gone).await.is_ok() {
            return;
        }
    }
}

async fn dial(address: SocketAddr, follower: &Follower) -> std::io::Result<FollowError> {
    let config = Arc::clone(&follower.configs.borrow());
    let connected = async {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        TlsConnector::from(config).connect(ServerName::IpAddress(address.ip().into()), tcp).await
    };
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let stream = timeout(PATIENCE, connected).await.map_err(late)??;
    tracing::info!(%address, "following another control plane");
    // Of a kind of its own, so that it is never that of a proxy.
    let number = PEER_STREAMS.fetch_add(1, Ordering::Relaxed);
    let events = follower.events.connect(Arc::new(Budget::new(Instant::now())));
    let number = ConnectionId(number);
    let _noted = NotedAddress::new(&follower.addresses, number, address);
    Ok(Box::pin(follow_peer(stream, number, events)).await)
}

/// The address of a stream while that is open.
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

/// Between attempts: there are few control planes, and one that starts should be heard soon.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// For a connection and its handshake.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stream_of_a_sidecar_decides_who_has_it() {
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        let [one, two] = [1, 2].map(ConnectionId);
        let registration = |session| Registration { listeners: Vec::new(), session };
        let mut peers = Peers::default();
        let holder =
            |peers: &Peers| peers.holder(&workload).map(|(peer, told)| (peer, told.session));
        assert_eq!(holder(&peers), None);
        peers.tell(two, workload.clone(), registration(5));
        peers.tell(one, workload.clone(), registration(7));
        assert_eq!(holder(&peers), Some((one, 7)));
        peers.tell(two, workload.clone(), registration(9));
        assert_eq!(holder(&peers), Some((two, 9)));
        assert_eq!(peers.part(two).len(), 1);
        assert_eq!((holder(&peers), peers.count()), (Some((one, 7)), 1));
        peers.forget(one, &workload);
        assert_eq!(holder(&peers), None);
    }
}
