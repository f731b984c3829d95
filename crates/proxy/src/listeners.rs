//! Opens and closes the listeners of a proxy according to the configuration, on the control thread. All data threads
//! accept connections from each listener.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_discovery::InboundListener;
use leno_listen::BACKLOG;
use leno_model::{GatewayPort, WorkloadConfig, WorkloadPort};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::config::{Config, Interception};
use crate::dial::set_options;
use crate::listen::ListenerCommand;
use crate::redirect::ConnectionClassifier;
use crate::session::ListenerKind;
use crate::state::StateDir;

/// The open listeners, and the data threads that accept from them.
pub(crate) struct Listeners {
    /// The command queue of each data thread.
    command_queues: Vec<mpsc::Sender<ListenerCommand>>,
    /// Stores the addresses of listeners with a port that the kernel selected.
    state_dir: StateDir,
    /// The open listeners by name.
    open_listeners: BTreeMap<String, OpenListener>,
}

/// An open listener, with its configured address, which may have port 0, and its actual address.
struct OpenListener {
    classifier: ConnectionClassifier,
    configured_address: SocketAddr,
    address: SocketAddr,
}

impl Listeners {
    pub(crate) fn new(
        command_queues: Vec<mpsc::Sender<ListenerCommand>>,
        state_dir: StateDir,
    ) -> Self {
        Self { command_queues, state_dir, open_listeners: BTreeMap::new() }
    }

    /// Opens configured listeners that are not open, and closes open listeners that are no longer configured.
    /// Returns the listeners that could not be opened; the other listeners are opened nevertheless.
    pub(crate) async fn reconcile(
        &mut self,
        config: &Config,
        workload_config: &WorkloadConfig,
    ) -> Vec<ListenError> {
        let configured_listeners = list_configured(config, workload_config);
        let stale_names: Vec<String> = self
            .open_listeners
            .iter()
            .filter(|(name, listener)| {
                configured_listeners.get(*name).is_none_or(|(classifier, address)| {
                    *classifier != listener.classifier || *address != listener.configured_address
                })
            })
            .map(|(name, _)| name.clone())
            .collect();
        let (closed_sender, mut closed_receiver) = mpsc::channel(1);
        let has_stale = !stale_names.is_empty();
        for name in stale_names {
            if let Some(listener) = self.open_listeners.remove(&name) {
                let close = || ListenerCommand::Close {
                    classifier: listener.classifier.clone(),
                    closed: closed_sender.clone(),
                };
                self.send_to_all(close).await;
            }
        }
        drop(closed_sender);
        if has_stale {
            // New listeners may need the address of a closed one, so all threads close it first. A draining thread does
            // not respond.
            drop(timeout(CLOSE_TIMEOUT, closed_receiver.recv()).await);
        }
        let mut listen_errors = Vec::new();
        for (name, (classifier, address)) in configured_listeners {
            if !self.open_listeners.contains_key(&name)
                && let Err(cause) = self.open_listener(&name, classifier, address).await
            {
                listen_errors.push(ListenError { name, address, cause });
            }
        }
        listen_errors
    }

    /// Returns the listeners of the application's ports for other sidecars.
    pub(crate) fn inbound_listeners(
        &self,
        config: &Config,
        workload_config: &WorkloadConfig,
    ) -> Vec<InboundListener> {
        let to_inbound = |listener: &OpenListener| match listener.classifier {
            ConnectionClassifier::Fixed(ListenerKind::Inbound { port }) => {
                Some(InboundListener { port, address: listener.address })
            }
            ConnectionClassifier::Fixed(
                ListenerKind::Outbound { .. }
                | ListenerKind::Service { .. }
                | ListenerKind::HttpProxy
                | ListenerKind::Address(_)
                | ListenerKind::Gateway { .. }
                | ListenerKind::Pinned { .. },
            )
            | ConnectionClassifier::Inbound
            | ConnectionClassifier::InboundOther
            | ConnectionClassifier::Outbound
            | ConnectionClassifier::OutboundV6 => None,
        };
        match &config.interception {
            Interception::Listeners { .. } => {
                self.open_listeners.values().filter_map(to_inbound).collect()
            }
            // No mesh member connects to a gateway.
            Interception::Gateway { .. } => Vec::new(),
            // No port is reachable while the listener of redirected connections is closed.
            Interception::Redirect { .. }
                if !self
                    .open_listeners
                    .values()
                    .any(|listener| listener.classifier == ConnectionClassifier::Inbound) =>
            {
                Vec::new()
            }
            // The application's own ports: the kernel redirects their connections to the sidecar.
            Interception::Redirect { address, .. } => {
                let to_listener = |port: &WorkloadPort| InboundListener {
                    port: port.port,
                    address: SocketAddr::new(*address, port.port),
                };
                workload_config.ports.iter().map(to_listener).collect()
            }
        }
    }

    /// Returns the listeners for the sidecar's own requests to its application, by application port.
    pub(crate) fn application_listeners(&self) -> BTreeMap<u16, SocketAddr> {
        let own_listeners =
            self.open_listeners.iter().filter(|(name, _)| name.starts_with(OWN_LISTENER_PREFIX));
        let application_listeners =
            own_listeners.filter_map(|(_, listener)| match listener.classifier {
                ConnectionClassifier::Fixed(ListenerKind::Inbound { port }) => {
                    Some((port, listener.address))
                }
                ConnectionClassifier::Fixed(_)
                | ConnectionClassifier::Inbound
                | ConnectionClassifier::InboundOther
                | ConnectionClassifier::Outbound
                | ConnectionClassifier::OutboundV6 => None,
            });
        application_listeners.collect()
    }

    /// Returns the addresses of all open listeners by name.
    pub(crate) fn addresses(&self) -> BTreeMap<String, SocketAddr> {
        self.open_listeners
            .iter()
            .map(|(name, listener)| (name.clone(), listener.address))
            .collect()
    }

    /// Binds a listener, and lets all data threads accept from it. Stores an address whose port the kernel
    /// selected.
    async fn open_listener(
        &mut self,
        name: &str,
        classifier: ConnectionClassifier,
        configured_address: SocketAddr,
    ) -> io::Result<()> {
        let socket = match classifier {
            // All addresses of both versions are one listener on a gateway.
            ConnectionClassifier::Fixed(ListenerKind::Gateway { .. })
                if configured_address.ip().is_unspecified() =>
            {
                bind_with_versions(configured_address, configured_address.is_ipv4())?
            }
            ConnectionClassifier::Fixed(_)
            | ConnectionClassifier::Inbound
            | ConnectionClassifier::InboundOther
            | ConnectionClassifier::Outbound
            | ConnectionClassifier::OutboundV6 => self.bind_listener(name, configured_address)?,
        };
        let address = socket.local_addr()?;
        // All threads share one socket. With one socket per thread (`SO_REUSEPORT`) the kernel would permit
        // another sidecar of the same user to bind the same address and receive connections of this sidecar.
        let mut sockets = Vec::new();
        for _ in 1..self.command_queues.len() {
            sockets.push(socket.try_clone()?);
        }
        sockets.push(socket);
        for (command_queue, listener) in self.command_queues.iter().zip(sockets) {
            let command = ListenerCommand::Open { classifier: classifier.clone(), listener };
            command_queue.send(command).await.map_err(io::Error::other)?;
        }
        if configured_address.port() == 0 {
            self.state_dir.store_address(name, address);
        }
        self.open_listeners
            .insert(name.to_owned(), OpenListener { classifier, configured_address, address });
        Ok(())
    }

    /// Binds a listener. With port 0 the address of the previous run is tried first, since peers without a
    /// control plane still use it.
    fn bind_listener(
        &self,
        name: &str,
        configured_address: SocketAddr,
    ) -> io::Result<std::net::TcpListener> {
        let previous_address = self
            .state_dir
            .stored_address(name)
            .filter(|previous_address| previous_address.ip() == configured_address.ip());
        match previous_address.filter(|_| configured_address.port() == 0).map(bind_address) {
            Some(Ok(listener)) => Ok(listener),
            Some(Err(_)) | None => bind_address(configured_address),
        }
    }

    /// Sends a command to all data threads.
    async fn send_to_all(&self, command: impl Fn() -> ListenerCommand) {
        for command_queue in &self.command_queues {
            // A data thread that has ended has closed its listeners.
            drop(command_queue.send(command()).await);
        }
    }
}

/// A listener that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("the listener `{name}` cannot be opened at {address}: {cause}")]
pub(crate) struct ListenError {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) cause: io::Error,
}

/// Returns the classifier and the address, which may have port 0, of each listener of a configuration, by name.
fn list_configured(
    config: &Config,
    workload_config: &WorkloadConfig,
) -> BTreeMap<String, (ConnectionClassifier, SocketAddr)> {
    let mut listeners = BTreeMap::new();
    let is_gateway = matches!(config.interception, Interception::Gateway { .. });
    for listener in workload_config.outbound_listeners.iter().filter(|_| !is_gateway) {
        let listener_kind =
            ListenerKind::Outbound { service: listener.service.clone(), port: listener.port };
        listeners.insert(
            format!("listener-{}", listener.listen),
            (ConnectionClassifier::Fixed(listener_kind), listener.listen),
        );
    }
    match &config.interception {
        Interception::Listeners { inbound, http_proxy } => {
            for port in &workload_config.ports {
                let classifier =
                    ConnectionClassifier::Fixed(ListenerKind::Inbound { port: port.port });
                let address = SocketAddr::new(*inbound, 0);
                listeners.insert(format!("inbound-{}", port.port), (classifier, address));
            }
            if let Some(address) = http_proxy {
                let classifier = ConnectionClassifier::Fixed(ListenerKind::HttpProxy);
                listeners.insert("http-proxy".to_owned(), (classifier, *address));
            }
        }
        Interception::Gateway { bind } => {
            let ports = workload_config.gateway.iter().flat_map(|gateway| &gateway.ports);
            for GatewayPort { port, .. } in ports {
                let classifier = ConnectionClassifier::Fixed(ListenerKind::Gateway { port: *port });
                let address = SocketAddr::new(*bind, *port);
                listeners.insert(format!("gateway-{port}"), (classifier, address));
            }
        }
        Interception::Redirect { inbound, inbound_other, outbound, outbound_v6, .. } => {
            listeners
                .insert("redirected-inbound".to_owned(), (ConnectionClassifier::Inbound, *inbound));
            if let Some(inbound) = inbound_other {
                let name = "redirected-inbound-other".to_owned();
                listeners.insert(name, (ConnectionClassifier::InboundOther, *inbound));
            }
            listeners.insert(
                "redirected-outbound".to_owned(),
                (ConnectionClassifier::Outbound, *outbound),
            );
            if let Some(outbound) = outbound_v6 {
                let name = "redirected-outbound-v6".to_owned();
                listeners.insert(name, (ConnectionClassifier::OutboundV6, *outbound));
            }
            // The kernel does not redirect the sidecar's own connections, so its requests to its own application use
            // these listeners.
            for port in &workload_config.ports {
                let classifier =
                    ConnectionClassifier::Fixed(ListenerKind::Inbound { port: port.port });
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                listeners
                    .insert(format!("{OWN_LISTENER_PREFIX}{}", port.port), (classifier, address));
            }
        }
    }
    listeners
}

/// Binds a listener for the IP version of the address.
fn bind_address(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    bind_with_versions(address, true)
}

/// Binds a listener. With `single_version`, an IPv6 address accepts only IPv6 connections.
fn bind_with_versions(
    address: SocketAddr,
    single_version: bool,
) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    set_options(SockRef::from(&socket))?;
    if matches!(address.ip(), IpAddr::V6(_)) {
        socket.set_only_v6(single_version)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG.cast_signed())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The name prefix of listeners for the sidecar's own requests to its application.
const OWN_LISTENER_PREFIX: &str = "own-";
/// The maximum time to wait until all threads have closed the sockets of removed listeners.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
