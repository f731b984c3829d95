//! Defines the operational state that a proxy reports to the control plane: conditions that affect its traffic,
//! and the addresses of its listeners.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::envelope::truncate_text;
use crate::proto;
use crate::resource::{InvalidField, parse_socket_address, socket_address_to_wire};

/// The operational state of a proxy. It does not affect the configuration of other proxies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyReport {
    /// The current conditions, at most [`MAX_CONDITIONS`].
    pub conditions: Vec<ProxyCondition>,
    /// The addresses of listeners for tools or for the application, by name, at most
    /// [`MAX_REPORTED_ADDRESSES`].
    pub addresses: BTreeMap<String, SocketAddr>,
}

/// A condition that affects traffic until it ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProxyCondition {
    /// The kind of the condition, one of the constants in [`kind`], such as [`kind::LISTENER_CLOSED`].
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
    /// A file of the state directory cannot be written. The subject is the directory.
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
    /// A circuit breaker blocks all traffic to a service port. The subject is the service port.
    pub const CIRCUIT_OPEN: &str = "circuit-open";
}

impl ProxyCondition {
    /// Creates a condition of one of the known kinds.
    #[must_use]
    pub fn new(kind: &str, subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), subject: subject.into(), reason: reason.into() }
    }
}

/// Encoding of rejected clients in a condition.
impl ProxyCondition {
    /// Creates a condition for rejected connections without mutual TLS at an application port; `has_more`:
    /// there are other clients than the listed ones.
    #[must_use]
    pub fn plaintext_rejected(port: u16, clients: &[IpAddr], has_more: bool) -> Self {
        let mut client_texts: Vec<String> = clients.iter().map(ToString::to_string).collect();
        client_texts.extend(has_more.then(|| "others".to_owned()));
        Self::new(kind::PLAINTEXT_REJECTED, format!("{PORT_PREFIX}{port}"), client_texts.join(", "))
    }

    /// Returns the port and the rejected clients of a [`kind::PLAINTEXT_REJECTED`] condition; `None` for
    /// other kinds, and if the subject is not a port.
    #[must_use]
    pub fn rejected_clients(&self) -> Option<(u16, Vec<IpAddr>)> {
        if self.kind != kind::PLAINTEXT_REJECTED {
            return None;
        }
        let port = self.subject.strip_prefix(PORT_PREFIX)?.parse().ok()?;
        Some((port, self.reason.split(", ").filter_map(|text| text.parse().ok()).collect()))
    }
}

/// Encodes the first [`MAX_REPORTED_ADDRESSES`] addresses of a report, ordered by name.
pub(crate) fn addresses_to_wire(report: &ProxyReport) -> Vec<proto::NamedAddress> {
    let to_wire = |(name, address): (&String, &SocketAddr)| proto::NamedAddress {
        name: truncate_text(name, MAX_KIND_BYTES).to_owned(),
        address: Some(socket_address_to_wire(*address)),
    };
    report.addresses.iter().take(MAX_REPORTED_ADDRESSES).map(to_wire).collect()
}

/// Parses a report from two lists of a message.
pub(crate) fn report_from_wire(
    conditions: Vec<proto::Condition>,
    addresses: Vec<proto::NamedAddress>,
) -> Result<ProxyReport, InvalidField> {
    let parse_address = |wire: proto::NamedAddress| {
        let address = parse_socket_address("named_addresses.address", wire.address.as_ref())?;
        Ok((truncate_text(&wire.name, MAX_KIND_BYTES).to_owned(), address))
    };
    let addresses = addresses.into_iter().take(MAX_REPORTED_ADDRESSES).map(parse_address);
    Ok(ProxyReport {
        conditions: conditions_from_wire(conditions),
        addresses: addresses.collect::<Result<_, _>>()?,
    })
}

/// Encodes the first [`MAX_CONDITIONS`] conditions, with truncated texts.
pub(crate) fn conditions_to_wire(conditions: &[ProxyCondition]) -> Vec<proto::Condition> {
    let to_wire = |condition: &ProxyCondition| proto::Condition {
        kind: truncate_text(&condition.kind, MAX_KIND_BYTES).to_owned(),
        subject: truncate_text(&condition.subject, MAX_SUBJECT_BYTES).to_owned(),
        reason: truncate_text(&condition.reason, MAX_CONDITION_REASON_BYTES).to_owned(),
    };
    conditions.iter().take(MAX_CONDITIONS).map(to_wire).collect()
}

/// Parses the first [`MAX_CONDITIONS`] conditions of a proxy, with truncated texts: a long text must not
/// invalidate the message, because operators read conditions only.
fn conditions_from_wire(wire: Vec<proto::Condition>) -> Vec<ProxyCondition> {
    let from_wire = |condition: proto::Condition| ProxyCondition {
        kind: truncate_text(&condition.kind, MAX_KIND_BYTES).to_owned(),
        subject: truncate_text(&condition.subject, MAX_SUBJECT_BYTES).to_owned(),
        reason: truncate_text(&condition.reason, MAX_CONDITION_REASON_BYTES).to_owned(),
    };
    wire.into_iter().take(MAX_CONDITIONS).map(from_wire).collect()
}

/// The prefix of a subject that is a port of the application.
const PORT_PREFIX: &str = "port ";

/// The maximum number of reported conditions: operators read the first few.
pub const MAX_CONDITIONS: usize = 64;

/// The maximum number of reported addresses, in addition to those of application ports.
pub const MAX_REPORTED_ADDRESSES: usize = 16;

/// The maximum length of a kind.
const MAX_KIND_BYTES: usize = 64;

/// The maximum length of a subject: an address, a path, or a service with its port.
const MAX_SUBJECT_BYTES: usize = 256;

/// The maximum length of a reason: an operating system error with its context.
const MAX_CONDITION_REASON_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_clients_survive_a_round_trip_through_a_condition() {
        let clients: Vec<IpAddr> = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap()).into();
        let condition = ProxyCondition::plaintext_rejected(8080, &clients, true);
        assert_eq!(condition.reason, "10.0.0.1, fd00::1, others");
        assert_eq!(condition.rejected_clients(), Some((8080, clients)));
        let other_condition = ProxyCondition::new(kind::CIRCUIT_OPEN, "port 8080", "10.0.0.1");
        assert_eq!(other_condition.rejected_clients(), None);
        // From a malicious sidecar.
        let invalid = ProxyCondition::new(kind::PLAINTEXT_REJECTED, "port 80808", "10.0.0.1");
        assert_eq!(invalid.rejected_clients(), None);
    }

    #[test]
    fn conditions_are_bounded_in_number_and_length_in_both_directions() {
        let long = ProxyCondition::new(&"k".repeat(100), "s".repeat(1000), "é".repeat(1000));
        let many = vec![long; MAX_CONDITIONS + 1];
        let wire = conditions_to_wire(&many);
        assert_eq!(wire.len(), MAX_CONDITIONS);
        let unbounded = many.iter().map(|condition| proto::Condition {
            kind: condition.kind.clone(),
            subject: condition.subject.clone(),
            reason: condition.reason.clone(),
        });
        for parsed in
            [conditions_from_wire(wire.clone()), conditions_from_wire(unbounded.collect())]
        {
            assert_eq!(parsed.len(), MAX_CONDITIONS);
            let first = &parsed[0];
            assert_eq!((first.kind.len(), first.subject.len(), first.reason.len()), (64, 256, 512));
        }
        let short =
            vec![ProxyCondition::new(kind::LISTENER_CLOSED, "listener-127.0.0.1:80", "in use")];
        assert_eq!(conditions_from_wire(conditions_to_wire(&short)), short);
    }
}
