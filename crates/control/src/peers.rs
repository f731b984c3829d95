//! Follows the other control planes (peers) of the same mesh, each over one stream, and stores the sidecars that they
//! report.

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
    sidecars_by_peer: BTreeMap<ConnectionId, RegisteredSidecars>,
    addresses: PeerAddresses,
}

/// The address of the control plane of each open stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerAddresses(Arc<Mutex<BTreeMap<ConnectionId, SocketAddr>>>);

impl PeerAddresses {
    /// Locks the addresses. A thread that panicked with the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// Returns the table in which streams to other control planes record their addresses.
    pub(crate) fn peer_addresses(&self) -> PeerAddresses {
        self.addresses.clone()
    }

    /// Returns the address of the control plane of a stream; `None` after the stream has ended.
    pub(crate) fn peer_address(&self, peer: ConnectionId) -> Option<SocketAddr> {
        self.addresses.lock().get(&peer).copied()
    }

    /// Returns the other control planes, each with its address and the number of its sidecars without those for
    /// which `is_excluded` is true.
    pub(crate) fn other_control_planes(
        &self,
        is_excluded: impl Fn(&WorkloadName) -> bool,
    ) -> Vec<(Option<SocketAddr>, usize)> {
        let counts = self.sidecars_by_peer.iter().map(|(peer, registered)| {
            let is_newest_at = |workload: &WorkloadName| {
                let newest_peer =
                    self.newest_registration(workload).map(|(newest_peer, _)| newest_peer);
                !is_excluded(workload) && newest_peer == Some(*peer)
            };
            (
                self.peer_address(*peer),
                registered.keys().filter(|workload| is_newest_at(workload)).count(),
            )
        });
        counts.collect()
    }

    /// Adds a control plane that reports its sidecars, possibly none.
    pub(crate) fn add_peer(&mut self, peer: ConnectionId) {
        self.sidecars_by_peer.entry(peer).or_default();
    }

    /// Records a control plane's report of this sidecar.
    pub(crate) fn record_registration(
        &mut self,
        peer: ConnectionId,
        workload: WorkloadName,
        registration: Registration,
    ) {
        self.sidecars_by_peer.entry(peer).or_default().insert(workload, registration);
    }

    /// Removes a sidecar of a control plane.
    pub(crate) fn remove_sidecar(&mut self, peer: ConnectionId, workload: &WorkloadName) {
        if let Some(registered) = self.sidecars_by_peer.get_mut(&peer) {
            registered.remove(workload);
        }
    }

    /// Removes a control plane, and returns its sidecars.
    pub(crate) fn remove_peer(&mut self, peer: ConnectionId) -> RegisteredSidecars {
        self.sidecars_by_peer.remove(&peer).unwrap_or_default()
    }

    /// Returns the known control plane with the newest stream of a sidecar, and the sidecar's registration
    /// there.
    pub(crate) fn newest_registration(
        &self,
        workload: &WorkloadName,
    ) -> Option<(ConnectionId, &Registration)> {
        let registrations = self
            .sidecars_by_peer
            .iter()
            .filter_map(|(peer, registered)| Some((*peer, registered.get(workload)?)));
        registrations.max_by_key(|(peer, registration)| (registration.session, *peer))
    }

    /// Returns the number of control planes that have reported their sidecars.
    pub(crate) fn peer_count(&self) -> usize {
        self.sidecars_by_peer.len()
    }
}

/// The dependencies of a stream to another control plane.
#[derive(Debug)]
pub(crate) struct PeerStreamContext {
    pub(crate) tls_configs: watch::Receiver<Arc<ClientConfig>>,
    pub(crate) events: EventQueue,
    pub(crate) addresses: PeerAddresses,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Follows the other control planes until shutdown: those in `configured`, and those in `discovered` while they
/// are listed.
///
/// After an address leaves `discovered`, no new connection is opened. An open stream continues, because its reports are
/// true while it is open, and the list of control planes may be wrong temporarily.
pub(crate) async fn follow_all(
    configured: Vec<SocketAddr>,
    mut discovered: Option<watch::Receiver<BTreeSet<SocketAddr>>>,
    context: PeerStreamContext,
) {
    let configured_addresses: BTreeSet<SocketAddr> = configured.into_iter().collect();
    let active_addresses = watch::Sender::new(BTreeSet::new());
    let context = Arc::new(context);
    let mut stop = context.stop.clone();
    let mut followed_addresses = BTreeSet::new();
    let mut tasks = JoinSet::new();
    let mut is_discovery_running = discovered.is_some();
    loop {
        let mut current_addresses = configured_addresses.clone();
        if let Some(discovered) = &mut discovered {
            current_addresses.extend(discovered.borrow_and_update().iter().copied());
        }
        active_addresses.send_replace(current_addresses.clone());
        for address in
            current_addresses.into_iter().filter(|address| followed_addresses.insert(*address))
        {
            let (active_addresses, context) = (active_addresses.subscribe(), Arc::clone(&context));
            tasks.spawn(async move {
                follow_until_removed(address, active_addresses, context).await;
                address
            });
        }
        tokio::select! {
            // Remaining tasks are dropped with the set.
            _ = stop.wait_for(|stop| *stop) => return,
            // When discovery ends, the control planes that it listed last stay active.
            changed = wait_for_change(&mut discovered), if is_discovery_running => is_discovery_running = changed.is_ok(),
            // After the end of the state task, each stream would end at once and be restarted without a pause.
            Some(ended_address) = tasks.join_next(), if !context.events.is_closed() => match ended_address {
                Ok(ended_address) => {
                    followed_addresses.remove(&ended_address);
                }
                // All streams are restarted, because the error does not identify the failed one.
                Err(error) => {
                    tracing::error!(%error, "following another control plane failed");
                    tasks.abort_all();
                    followed_addresses.clear();
                }
            },
        }
    }
}

/// Waits until the list of discovered control planes changes. Without discovery, the wait does not end.
async fn wait_for_change(
    discovered: &mut Option<watch::Receiver<BTreeSet<SocketAddr>>>,
) -> Result<(), watch::error::RecvError> {
    match discovered {
        Some(discovered) => discovered.changed().await,
        None => std::future::pending().await,
    }
}

/// Follows one control plane, and reconnects after each end, until its address is no longer active or the state task
/// has ended.
async fn follow_until_removed(
    address: SocketAddr,
    mut active_addresses: watch::Receiver<BTreeSet<SocketAddr>>,
    context: Arc<PeerStreamContext>,
) {
    loop {
        match follow_once(address, &context).await {
            Ok(end_reason) => {
                tracing::info!(%address, reason = %end_reason, "the connection to another control plane ended")
            }
            Err(error) => tracing::debug!(%address, %error, "another control plane is unreachable"),
        }
        let removed =
            active_addresses.wait_for(|active_addresses| !active_addresses.contains(&address));
        if context.events.is_closed() || timeout(RETRY_INTERVAL, removed).await.is_ok() {
            return;
        }
    }
}

/// Connects to a control plane and follows it until the stream ends. Returns the reason of the end.
async fn follow_once(
    address: SocketAddr,
    context: &PeerStreamContext,
) -> std::io::Result<DiscoveryError> {
    let tls_config = Arc::clone(&context.tls_configs.borrow());
    let handshake = async {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        TlsConnector::from(tls_config)
            .connect(ServerName::IpAddress(address.ip().into()), tcp)
            .await
    };
    let timeout_error = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let stream = timeout(CONNECT_TIMEOUT, handshake).await.map_err(timeout_error)??;
    tracing::info!(%address, "following another control plane");
    // The number is from a separate range, so that it never equals the number of a proxy's connection.
    let connection = ConnectionId(NEXT_PEER_STREAM.fetch_add(1, Ordering::Relaxed));
    let events = context.events.create_sender(Arc::new(Budget::new(Instant::now())));
    let _address_entry = RegisteredAddress::new(&context.addresses, connection, address);
    Ok(Box::pin(follow_peer(stream, connection, events)).await)
}

/// An entry of the address table that is removed when the stream ends.
struct RegisteredAddress {
    addresses: PeerAddresses,
    stream: ConnectionId,
}

impl RegisteredAddress {
    fn new(addresses: &PeerAddresses, stream: ConnectionId, address: SocketAddr) -> Self {
        addresses.lock().insert(stream, address);
        Self { addresses: addresses.clone(), stream }
    }
}

impl Drop for RegisteredAddress {
    fn drop(&mut self) {
        self.addresses.lock().remove(&self.stream);
    }
}

/// The number of the next stream to another control plane; proxies count from 1.
static NEXT_PEER_STREAM: AtomicU64 = AtomicU64::new(1 << 63);

/// The retry interval. It is short, because there are few control planes and a starting one should be followed soon.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The timeout of a connection and its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_belongs_to_the_control_plane_with_its_newest_stream() {
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        let [first, second] = [1, 2].map(ConnectionId);
        let registration = |session| Registration { listeners: Vec::new(), session };
        let mut peers = Peers::default();
        let newest_peer = |peers: &Peers| {
            peers
                .newest_registration(&workload)
                .map(|(peer, registered)| (peer, registered.session))
        };
        assert_eq!(newest_peer(&peers), None);
        peers.record_registration(second, workload.clone(), registration(5));
        peers.record_registration(first, workload.clone(), registration(7));
        assert_eq!(newest_peer(&peers), Some((first, 7)));
        peers.record_registration(second, workload.clone(), registration(9));
        assert_eq!(newest_peer(&peers), Some((second, 9)));
        assert_eq!(peers.remove_peer(second).len(), 1);
        assert_eq!((newest_peer(&peers), peers.peer_count()), (Some((first, 7)), 1));
        peers.remove_sidecar(first, &workload);
        assert_eq!(newest_peer(&peers), None);
    }
}
