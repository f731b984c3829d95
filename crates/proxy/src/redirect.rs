//! Redirected connections: where the kernel says that they wanted to go.

use std::net::SocketAddr;

use leno_model::Reason;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::config::{Config, Interception};
use crate::session::Entrance;
use crate::worker::Worker;

/// How a listener knows which entrance its connections came by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Gate {
    /// All of its connections come by this one.
    Fixed(Entrance),
    /// The application's outbound connections, redirected in its network namespace.
    Outbound,
    /// The same over IPv6.
    OutboundV6,
    /// Connections of others to the application's ports, redirected in its network namespace.
    Inbound,
    /// The same over the other version of IP.
    InboundOther,
}

impl Gate {
    /// The entrance that a connection came by.
    ///
    /// # Errors
    /// `unknown-service` when it wants to go where the mesh does not lead.
    pub(crate) fn entrance(&self, worker: &Worker, tcp: &TcpStream) -> Result<Entrance, Reason> {
        match self {
            Self::Fixed(entrance) => Ok(entrance.clone()),
            Self::Outbound | Self::OutboundV6 => {
                let wanted = original_destination(tcp).ok_or(Reason::UnknownService)?;
                if worker.config.interception.is_by_address() {
                    let wanted = SocketAddr::new(wanted.ip().to_canonical(), wanted.port());
                    let is_own = is_own_door(&worker.config.interception, wanted);
                    let entrance = (!is_own).then_some(Entrance::Address(wanted));
                    return entrance.ok_or(Reason::UnknownService);
                }
                let service = worker.world.names().service(wanted.ip());
                let service = service.ok_or(Reason::UnknownService)?;
                Ok(Entrance::Service { service, port: wanted.port() })
            }
            Self::Inbound | Self::InboundOther => {
                let port = original_destination(tcp).ok_or(Reason::UnknownService)?.port();
                let scene = worker.world.scene().ok_or(Reason::DiscoveryTimeout)?;
                let ports = &scene.plans.snapshot.plan.ports;
                // A service may name any port: those of the sidecar lead to itself again and again.
                let is_own = is_sidecar_port(&worker.config, port);
                let known = !is_own && ports.iter().any(|known| known.port == port);
                known.then_some(Entrance::Inbound { port }).ok_or(Reason::UnknownService)
            }
        }
    }
}

/// Whether a port of the namespace is one of the sidecar's own.
fn is_sidecar_port(config: &Config, port: u16) -> bool {
    let Interception::Redirect { outbound, inbound, .. } = &config.interception else {
        return false;
    };
    let own = [Some(outbound.port()), Some(inbound.port()), config.health.map(|it| it.port())];
    own.contains(&Some(port))
}

/// Whether a connection came to a door of the sidecar without having been redirected there: it would
/// go round for ever.
fn is_own_door(interception: &Interception, wanted: SocketAddr) -> bool {
    let Interception::Redirect { address, outbound, inbound, .. } = interception else {
        return false;
    };
    let is_here = wanted.ip().is_loopback() || wanted.ip() == *address;
    is_here && [outbound.port(), inbound.port()].contains(&wanted.port())
}

/// `SO_ORIGINAL_DST` (netfilter): where the connection went before it was redirected here.
fn original_destination(tcp: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(tcp);
    let destination = match tcp.local_addr().ok()? {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    destination.ok()?.as_socket()
}
