//! Classifies accepted connections. Redirected connections are classified by their original destination.

use std::net::SocketAddr;

use leno_model::Reason;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::config::{Config, Interception};
use crate::session::ListenerKind;
use crate::worker::Worker;

/// Determines the kind of each connection that a listener accepts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionClassifier {
    /// All connections are of this kind.
    Fixed(ListenerKind),
    /// The application's outbound connections, redirected in its network namespace.
    Outbound,
    /// The application's outbound connections over IPv6.
    OutboundV6,
    /// Connections of other workloads to the application's ports, redirected in its network namespace.
    Inbound,
    /// Connections of other workloads over the IP version that the workload's own address does not have.
    InboundOther,
}

impl ConnectionClassifier {
    /// Returns the listener kind of a connection.
    ///
    /// # Errors
    /// `unknown-service` if the destination is unknown, not in the mesh, or the sidecar itself;
    /// `discovery-timeout` before the first configuration.
    pub(crate) fn listener_kind(
        &self,
        worker: &Worker,
        tcp: &TcpStream,
    ) -> Result<ListenerKind, Reason> {
        match self {
            Self::Fixed(listener_kind) => Ok(listener_kind.clone()),
            Self::Outbound | Self::OutboundV6 => {
                let destination = original_destination(tcp).ok_or(Reason::UnknownService)?;
                if worker.config.interception.identifies_by_address() {
                    let destination =
                        SocketAddr::new(destination.ip().to_canonical(), destination.port());
                    let is_own_address = is_own_listener(&worker.config.interception, destination);
                    let listener_kind =
                        (!is_own_address).then_some(ListenerKind::Address(destination));
                    return listener_kind.ok_or(Reason::UnknownService);
                }
                let service = worker.config_store.virtual_addresses().service_at(destination.ip());
                let service = service.ok_or(Reason::UnknownService)?;
                Ok(ListenerKind::Service { service, port: destination.port() })
            }
            Self::Inbound | Self::InboundOther => {
                let port = original_destination(tcp).ok_or(Reason::UnknownService)?.port();
                let config =
                    worker.config_store.current_config().ok_or(Reason::DiscoveryTimeout)?;
                let ports = &config.compiled.snapshot.config.ports;
                // A service may declare any port, but connections to the sidecar's own ports would loop.
                let is_own_port = is_sidecar_port(&worker.config, port);
                let is_declared =
                    !is_own_port && ports.iter().any(|declared| declared.port == port);
                is_declared.then_some(ListenerKind::Inbound { port }).ok_or(Reason::UnknownService)
            }
        }
    }
}

/// True if the sidecar itself listens on this port of the namespace.
fn is_sidecar_port(config: &Config, port: u16) -> bool {
    let Interception::Redirect { outbound, inbound, .. } = &config.interception else {
        return false;
    };
    let own_ports =
        [Some(outbound.port()), Some(inbound.port()), config.health.map(|health| health.port())];
    own_ports.contains(&Some(port))
}

/// True if the destination is a listener of the sidecar itself: the connection was not redirected, and would
/// loop.
fn is_own_listener(interception: &Interception, destination: SocketAddr) -> bool {
    let Interception::Redirect { address, outbound, inbound, .. } = interception else {
        return false;
    };
    let is_local = destination.ip().is_loopback() || destination.ip() == *address;
    is_local && [outbound.port(), inbound.port()].contains(&destination.port())
}

/// Returns the original destination of a redirected connection, from `SO_ORIGINAL_DST` (netfilter); `None` if the
/// kernel has no record of it.
fn original_destination(tcp: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(tcp);
    let destination = match tcp.local_addr().ok()? {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    destination.ok()?.as_socket()
}
