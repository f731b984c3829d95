//! Rejected clients without mutual TLS: a bounded table of their addresses by port.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use leno_discovery::ProxyCondition;
use leno_telemetry::RecentTable;

/// The clients of the last [`REMEMBERED`], by the application port that they connected to.
#[derive(Debug, Default)]
pub(crate) struct RejectedClients {
    ports: RecentTable<u16, PortClients, PORTS_MAX>,
    /// The time at which an eviction last changed the conditions.
    evicted: Option<Instant>,
}

#[derive(Debug, Default)]
struct PortClients {
    /// The time of the last rejected connection of each client.
    known: RecentTable<IpAddr, Instant, CLIENTS_MAX>,
    /// The time of the last eviction of a client.
    others: Option<Instant>,
}

impl RejectedClients {
    /// Records a rejected connection. Returns true if the conditions change.
    pub(crate) fn record(&mut self, port: u16, client: IpAddr, now: Instant) -> bool {
        self.ports.retain(|_, clients| clients.keep_recent(now));
        let (clients, evicted_port) = self.ports.entry(port, PortClients::default);
        let client = client.to_canonical();
        let is_new = !clients.known.contains_key(&client);
        let evicted_client = clients.known.insert(client, now);
        if evicted_client.is_some() {
            clients.others = Some(now);
        }
        if evicted_port.is_none() && evicted_client.is_none() {
            return is_new;
        }
        let is_due = self.evicted.is_none_or(|last| now >= last + REPORT_EVERY);
        if is_due {
            self.evicted = Some(now);
        }
        is_due
    }

    /// Returns a condition for each port.
    pub(crate) fn conditions(&self, now: Instant) -> Vec<ProxyCondition> {
        let conditions = self.ports.iter().filter_map(|(port, clients)| {
            let recent = clients.known.iter().filter(|(_, last)| is_recent(**last, now));
            let names: Vec<IpAddr> = recent.map(|(client, _)| *client).collect();
            let has_others = clients.others.is_some_and(|last| is_recent(last, now));
            let is_any = !names.is_empty() || has_others;
            is_any.then(|| ProxyCondition::plaintext_rejected(*port, &names, has_others))
        });
        conditions.collect()
    }

    /// Returns the next time at which the conditions change without a connection.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        let all = self
            .ports
            .iter()
            .flat_map(|(_, it)| it.known.iter().map(|(_, last)| *last).chain(it.others));
        all.map(|last| last + REMEMBERED).filter(|end| *end > now).min()
    }
}

impl PortClients {
    /// Removes expired clients. Returns false if none is left.
    fn keep_recent(&mut self, now: Instant) -> bool {
        self.known.retain(|_, last| is_recent(*last, now));
        self.others = self.others.filter(|last| is_recent(*last, now));
        !self.known.is_empty() || self.others.is_some()
    }
}

fn is_recent(last: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last) < REMEMBERED
}

/// The time for which a client is reported after its last connection: longer than the interval of slow retries
/// and scrapes.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The minimum time between changes of the conditions by clients that evict each other.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The maximum number of ports.
const PORTS_MAX: usize = 16;
/// The maximum number of clients per port: their addresses fit into the longest reason of a condition.
const CLIENTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn client_address(number: u16) -> IpAddr {
        format!("::ffff:10.0.0.{number}").parse().unwrap()
    }

    #[test]
    fn clients_are_reported_by_port_until_they_stay_away() {
        let mut table = RejectedClients::default();
        let start = Instant::now();
        let found = |table: &RejectedClients, now| -> Vec<(String, String)> {
            table.conditions(now).into_iter().map(|it| (it.subject, it.reason)).collect()
        };
        assert!(table.record(80, client_address(1), start));
        assert!(!table.record(80, client_address(1), start), "the same client is no news");
        let later = start + REMEMBERED / 2;
        assert!(table.record(80, client_address(2), later));
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
            assert!(table.record(80, client_address(number), now));
        }
        assert!(table.record(80, client_address(most), now), "others are news once");
        assert!(!table.record(80, client_address(most + 1), now));
        let reason = table.conditions(now)[0].reason.clone();
        assert!(reason.ends_with("10.0.0.7, 10.0.0.8, 10.0.0.9, others"), "the newest: {reason}");
        assert!(!reason.contains("10.0.0.1,"), "{reason}");
        assert!(
            table.record(80, client_address(most + 2), now + REPORT_EVERY),
            "and once in a while"
        );
        let ports = u16::try_from(PORTS_MAX).unwrap();
        for port in 100..100 + ports {
            table.record(port, client_address(1), now);
        }
        assert_eq!(table.conditions(now).len(), PORTS_MAX);
        assert!(table.record(99, client_address(1), now + REMEMBERED));
        assert_eq!(table.conditions(now + REMEMBERED).len(), 1);
    }
}
