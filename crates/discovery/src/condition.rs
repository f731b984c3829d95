//! Traffic-breaking conditions that a proxy reports to the control plane.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::envelope::truncate_text;
use crate::proto;
use crate::resource::{InvalidField, socket_address, socket_address_to_wire};

/// The operational state of a proxy; it does not affect the configuration of others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyReport {
    /// Its current conditions, at most [`CONDITIONS_MAX`].
    pub conditions: Vec<ProxyCondition>,
    /// The addresses of listeners for tools or for the application, by name, at most [`ADDRESSES_MAX`].
    pub addresses: BTreeMap<String, SocketAddr>,
}

/// A condition that breaks traffic until it ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProxyCondition {
    /// Its kind, such as [`kind::LISTENER_CLOSED`].
    pub kind: String,
    /// The affected listener, file or service port.
    pub subject: String,
    /// The cause.
    pub reason: String,
}

/// The kinds of conditions that proxies of this release report.
pub mod kind {
    /// A listener is not open. The subject is its name.
    pub const LISTENER_CLOSED: &str = "listener-closed";
    /// DNS queries of the application are not answered at an address. The subject is the address.
    pub const DNS_CLOSED: &str = "dns-closed";
    /// A file of the state directory cannot be written.
    pub const STATE_UNWRITABLE: &str = "state-unwritable";
    /// A table is full and evicts entries. The subject is the table.
    pub const TABLE_FULL: &str = "table-full";
    /// A service port without a declared protocol has a server-first protocol: each connection waits for the
    /// detection. The subject is the service port. Traffic continues.
    pub const DETECTION_DELAYED: &str = "detection-delayed";
    /// Connections without mutual TLS are rejected at a port of the application. The subject is the port, and
    /// the reason lists the client addresses. Traffic of other clients continues.
    pub const PLAINTEXT_REJECTED: &str = "plaintext-rejected";
    /// Lines of the log or access log are dropped because the output is blocked. Traffic continues.
    pub const LOG_LINES_DROPPED: &str = "log-lines-dropped";
    /// A circuit breaker blocks all traffic to a service port.
    pub const CIRCUIT_OPEN: &str = "circuit-open";
}

impl ProxyCondition {
    /// A condition of one of the known kinds.
    #[must_use]
    pub fn new(kind: &str, subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), subject: subject.into(), reason: reason.into() }
    }
}

/// Encoding of rejected clients in a condition.
impl ProxyCondition {
    /// Creates a condition for rejected connections without mutual TLS at an application port; `others` for
    /// unlisted clients.
    #[must_use]
    pub fn plaintext_rejected(port: u16, clients: &[IpAddr], others: bool) -> Self {
        let mut names: Vec<String> = clients.iter().map(ToString::to_string).collect();
        names.extend(others.then(|| "others".to_owned()));
        Self::new(kind::PLAINTEXT_REJECTED, format!("{PORT}{port}"), names.join(", "))
    }

    /// The port and the clients of such a condition; `None` for other kinds.
    #[must_use]
    pub fn rejected_clients(&self) -> Option<(u16, Vec<IpAddr>)> {
        if self.kind != kind::PLAINTEXT_REJECTED {
            return None;
        }
        let port = self.subject.strip_prefix(PORT)?.parse().ok()?;
        Some((port, self.reason.split(", ").filter_map(|name| name.parse().ok()).collect()))
    }
}

/// The addresses, ordered by name.
pub(crate) fn addresses_to_wire(report: &ProxyReport) -> Vec<proto::NamedAddress> {
    let address = |(name, address): (&String, &SocketAddr)| proto::NamedAddress {
        name: truncate_text(name, KIND_BYTES_MAX).to_owned(),
        address: Some(socket_address_to_wire(*address)),
    };
    report.addresses.iter().take(ADDRESSES_MAX).map(address).collect()
}

/// Parses a report from two lists of a message.
pub(crate) fn report_from_wire(
    conditions: Vec<proto::Condition>,
    addresses: Vec<proto::NamedAddress>,
) -> Result<ProxyReport, InvalidField> {
    let address = |it: proto::NamedAddress| {
        let address = socket_address("named_addresses.address", it.address.as_ref())?;
        Ok((truncate_text(&it.name, KIND_BYTES_MAX).to_owned(), address))
    };
    let addresses = addresses.into_iter().take(ADDRESSES_MAX).map(address);
    Ok(ProxyReport {
        conditions: conditions_from_wire(conditions),
        addresses: addresses.collect::<Result<_, _>>()?,
    })
}

/// Encodes the first conditions, each truncated.
pub(crate) fn conditions_to_wire(conditions: &[ProxyCondition]) -> Vec<proto::Condition> {
    let condition = |it: &ProxyCondition| proto::Condition {
        kind: truncate_text(&it.kind, KIND_BYTES_MAX).to_owned(),
        subject: truncate_text(&it.subject, SUBJECT_BYTES_MAX).to_owned(),
        reason: truncate_text(&it.reason, CAUSE_BYTES_MAX).to_owned(),
    };
    conditions.iter().take(CONDITIONS_MAX).map(condition).collect()
}

/// Parses the first conditions of a proxy, each truncated: they are for people, and a long text must not
/// invalidate the message.
fn conditions_from_wire(wire: Vec<proto::Condition>) -> Vec<ProxyCondition> {
    let condition = |it: proto::Condition| ProxyCondition {
        kind: truncate_text(&it.kind, KIND_BYTES_MAX).to_owned(),
        subject: truncate_text(&it.subject, SUBJECT_BYTES_MAX).to_owned(),
        reason: truncate_text(&it.reason, CAUSE_BYTES_MAX).to_owned(),
    };
    wire.into_iter().take(CONDITIONS_MAX).map(condition).collect()
}

const PORT: &str = "port ";

/// The maximum number of reported conditions: operators read the first few.
pub const CONDITIONS_MAX: usize = 64;

/// The maximum number of reported addresses, in addition to those of application ports.
pub const ADDRESSES_MAX: usize = 16;

/// The maximum length of a kind.
const KIND_BYTES_MAX: usize = 64;

/// The maximum length of a subject: an address, a path, or a service with its port.
const SUBJECT_BYTES_MAX: usize = 256;

/// The maximum length of a cause: an operating system error with its context.
const CAUSE_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_clients_are_read_as_they_are_written() {
        let clients: Vec<IpAddr> = ["10.0.0.1", "fd00::1"].map(|it| it.parse().unwrap()).into();
        let condition = ProxyCondition::plaintext_rejected(8080, &clients, true);
        assert_eq!(condition.reason, "10.0.0.1, fd00::1, others");
        assert_eq!(condition.rejected_clients(), Some((8080, clients)));
        let other = ProxyCondition::new(kind::CIRCUIT_OPEN, "port 8080", "10.0.0.1");
        assert_eq!(other.rejected_clients(), None);
        // From a malicious sidecar.
        let odd = ProxyCondition::new(kind::PLAINTEXT_REJECTED, "port 80808", "10.0.0.1");
        assert_eq!(odd.rejected_clients(), None);
    }

    #[test]
    fn conditions_are_bounded_in_number_and_length_in_both_directions() {
        let long = ProxyCondition::new(&"k".repeat(100), "s".repeat(1000), "é".repeat(1000));
        let many = vec![long; CONDITIONS_MAX + 1];
        let wire = conditions_to_wire(&many);
        assert_eq!(wire.len(), CONDITIONS_MAX);
        let unbounded = many.iter().map(|it| proto::Condition {
            kind: it.kind.clone(),
            subject: it.subject.clone(),
            reason: it.reason.clone(),
        });
        for read in [conditions_from_wire(wire.clone()), conditions_from_wire(unbounded.collect())]
        {
            assert_eq!(read.len(), CONDITIONS_MAX);
            let first = &read[0];
            assert_eq!((first.kind.len(), first.subject.len(), first.reason.len()), (64, 256, 512));
        }
        let short =
            vec![ProxyCondition::new(kind::LISTENER_CLOSED, "listener-127.0.0.1:80", "in use")];
        assert_eq!(conditions_from_wire(conditions_to_wire(&short)), short);
    }
}
