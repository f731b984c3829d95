//! Checks that the admin endpoint that a sidecar reports is at the sidecar's own address.
//!
//! Sidecars report the address of their admin endpoint, and operators' tools connect to it from the operators'
//! machines. Without the check, a sidecar could direct these tools to any address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use leno_model::{AddressClass, Workload};
use tokio::net::TcpStream;

/// The addresses of both ends of the connection over which a sidecar reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionAddresses {
    sidecar: IpAddr,
    control_plane: IpAddr,
}

impl ConnectionAddresses {
    pub(crate) fn from_stream(stream: &TcpStream) -> io::Result<Self> {
        let (sidecar, control_plane) = (stream.peer_addr()?.ip(), stream.local_addr()?.ip());
        Ok(Self { sidecar: sidecar.to_canonical(), control_plane: control_plane.to_canonical() })
    }

    /// True for a sidecar's own address: an address of its workload, the source address of its connection, or
    /// loopback if it runs on the control plane's machine.
    pub(crate) fn is_own_address(
        self,
        reported_address: SocketAddr,
        workload: Option<&Workload>,
    ) -> bool {
        let address = reported_address.ip().to_canonical();
        let belongs_to_workload = |workload: &Workload| {
            let mut other_addresses = workload.other_addresses.iter();
            workload.address.to_canonical() == address
                || other_addresses.any(|other| other.to_canonical() == address)
        };
        match AddressClass::from_address(address) {
            AddressClass::Loopback => {
                self.sidecar.is_loopback() || self.sidecar == self.control_plane
            }
            AddressClass::Special => false,
            AddressClass::Private | AddressClass::Public => {
                address == self.sidecar || workload.is_some_and(belongs_to_workload)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_must_be_an_address_of_the_sidecar() {
        let connection_addresses = |sidecar: &str, control_plane: &str| ConnectionAddresses {
            sidecar: sidecar.parse().unwrap(),
            control_plane: control_plane.parse().unwrap(),
        };
        let loopback = connection_addresses("127.0.0.1", "127.0.0.1");
        let same_machine = connection_addresses("192.0.2.1", "192.0.2.1");
        let other_machine = connection_addresses("192.0.2.7", "192.0.2.1");
        for (connection_addresses, admin_address, expected) in [
            (loopback, "127.0.0.1:9", true),
            (loopback, "[::1]:9", true),
            (loopback, "10.0.0.1:80", false),
            (loopback, "169.254.169.254:80", false),
            (loopback, "[::ffff:169.254.169.254]:80", false),
            (loopback, "0.0.0.0:80", false),
            (same_machine, "127.0.0.1:9", true),
            (other_machine, "127.0.0.1:9", false),
            (other_machine, "[::ffff:127.0.0.1]:9", false),
            (other_machine, "192.0.2.7:9", true),
            (other_machine, "[::ffff:192.0.2.7]:9", true),
            (other_machine, "192.0.2.1:9", false),
            (other_machine, "192.0.2.8:9", false),
        ] {
            assert_eq!(
                connection_addresses.is_own_address(admin_address.parse().unwrap(), None),
                expected,
                "{connection_addresses:?} {admin_address}"
            );
        }
    }
}
