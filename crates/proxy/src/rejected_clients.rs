//! Rejected clients, those without mutual TLS: a bounded table of their addresses, by port.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use leno_discovery::Condition;
use leno_discovery::condition::kind;

/// The clients of the last [`REMEMBERED`], by the port of the application that they connected to.
#[derive(Debug, Default)]
pub(crate) struct RejectedClients(BTreeMap<u16, PortClients>);

#[derive(Debug, Default)]
struct PortClients {
    /// The time of the last rejected connection of each client.
    known: BTreeMap<IpAddr, Instant>,
    /// The same of all clients that the table has no room for.
    others: Option<Instant>,
}

impl RejectedClients {
    /// Notes a rejected connection. True when the conditions change.
    pub(crate) fn note(&mut self, port: u16, client: IpAddr, now: Instant) -> bool {
        self.0.retain(|_, clients| clients.keep_recent(now));
        if self.0.len() >= PORTS_MAX && !self.0.contains_key(&port) {
            return false;
        }
        let clients = self.0.entry(port).or_default();
        let client = client.to_canonical();
        if clients.known.len() < CLIENTS_MAX || clients.known.contains_key(&client) {
            return clients.known.insert(client, now).is_none();
        }
        clients.others.replace(now).is_none()
    }

    /// A condition for each port.
    pub(crate) fn conditions(&self, now: Instant) -> Vec<Condition> {
        let conditions = self.0.iter().filter_map(|(port, clients)| {
            let recent = clients.known.iter().filter(|(_, last)| is_recent(**last, now));
            let mut names: Vec<String> = recent.map(|(client, _)| client.to_string()).collect();
            let has_others = clients.others.is_some_and(|last| is_recent(last, now));
            names.extend(has_others.then(|| "others".to_owned()));
            let subject = format!("port {port}");
            let reason = names.join(", ");
            (!names.is_empty()).then(|| Condition::new(kind::PLAINTEXT_REJECTED, subject, reason))
        });
        conditions.collect()
    }

    /// The next time at which the conditions change without a connection.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        let all = self.0.values().flat_map(|it| it.known.values().copied().chain(it.others));
        all.map(|last| last + REMEMBERED).filter(|end| *end > now).min()
    }
}

impl PortClients {
    /// Forgets clients. False when none is left.
    fn keep_recent(&mut self, now: Instant) -> bool {
        self.known.retain(|_, last| is_recent(*last, now));
        self.others = self.others.filter(|last| is_recent(*last, now));
        !self.known.is_empty() || self.others.is_some()
    }
}

fn is_recent(last: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last) < REMEMBERED
}

/// A client is reported for this time after its last connection: longer than the interval of slow retries and scrapes.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The most ports in the table.
const PORTS_MAX: usize = 16;
/// The most clients of a port: their addresses fit the longest reason of a condition.
const CLIENTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u16) -> IpAddr {
        format!("::ffff:10.0.0.{number}").parse().unwrap()
    }

    #[test]
    fn clients_are_reported_by_port_until_they_stay_away() {
        let mut table = RejectedClients::default();
        let start = Instant::now();
        let found = |table: &RejectedClients, now| -> Vec<(String, String)> {
            table.conditions(now).into_iter().map(|it| (it.subject, it.reason)).collect()
        };
        assert!(table.note(80, client(1), start));
        assert!(!table.note(80, client(1), start), "the same client is no news");
        let later = start + REMEMBERED / 2;
        assert!(table.note(80, client(2), later));
        let both = [("port 80".to_owned(), "10.0.0.1, 10.0.0.2".to_owned())];
        assert_eq!(found(&table, later), both);
        assert_eq!(table.next_end(later), Some(start + REMEMBERED));
        let one = [("port 80".to_owned(), "10.0.0.2".to_owned())];
        assert_eq!(found(&table, start + REMEMBERED), one);
        assert_eq!(found(&table, later + REMEMBERED), []);
        assert_eq!(table.next_end(later + REMEMBERED), None);
    }

    #[test]
    fn the_table_is_bounded_and_has_room_again() {
        let mut table = RejectedClients::default();
        let now = Instant::now();
        let most = u16::try_from(CLIENTS_MAX).unwrap();
        for number in 0..most {
            assert!(table.note(80, client(number), now));
        }
        assert!(table.note(80, client(most), now), "others are news once");
        assert!(!table.note(80, client(most + 1), now));
        let reason = table.conditions(now)[0].reason.clone();
        assert!(reason.ends_with("10.0.0.7, others"), "{reason}");
        let ports = u16::try_from(PORTS_MAX).unwrap();
        for port in 100..100 + ports {
            table.note(port, client(1), now);
        }
        assert_eq!(table.conditions(now).len(), PORTS_MAX);
        assert!(table.note(99, client(1), now + REMEMBERED));
        assert_eq!(table.conditions(now + REMEMBERED).len(), 1);
    }
}
