//! Records the clients without mutual TLS that were recently rejected, by application port and in bounded number, and
//! reports them as conditions.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use leno_discovery::ProxyCondition;
use leno_telemetry::RecentTable;

/// The clients that were rejected in the last [`REPORT_DURATION`], by application port.
#[derive(Debug, Default)]
pub(crate) struct RejectedClients {
    ports: RecentTable<u16, PortClients, MAX_PORTS>,
    /// The time at which an eviction last changed the conditions; `None` if no eviction did.
    conditions_changed_at: Option<Instant>,
}

/// The rejected clients at one port.
#[derive(Debug, Default)]
struct PortClients {
    /// The time of the last rejected connection of each client.
    clients: RecentTable<IpAddr, Instant, MAX_CLIENTS>,
    /// The time of the last eviction of a client.
    evicted_at: Option<Instant>,
}

impl RejectedClients {
    /// Records a rejected connection. Returns true if the conditions have changed and the change must be
    /// reported now; changes by evictions are reported at most once per [`CHANGE_INTERVAL`].
    pub(crate) fn record(&mut self, port: u16, client: IpAddr, now: Instant) -> bool {
        self.ports.retain(|_, port_clients| port_clients.retain_recent(now));
        let (port_clients, evicted_port) = self.ports.entry(port, PortClients::default);
        let client = client.to_canonical();
        let is_new = !port_clients.clients.contains_key(&client);
        let evicted_client = port_clients.clients.insert(client, now);
        if evicted_client.is_some() {
            port_clients.evicted_at = Some(now);
        }
        if evicted_port.is_none() && evicted_client.is_none() {
            return is_new;
        }
        let is_due =
            self.conditions_changed_at.is_none_or(|changed_at| now >= changed_at + CHANGE_INTERVAL);
        if is_due {
            self.conditions_changed_at = Some(now);
        }
        is_due
    }

    /// Returns a condition for each port with recently rejected clients.
    pub(crate) fn conditions(&self, now: Instant) -> Vec<ProxyCondition> {
        let conditions = self.ports.iter().filter_map(|(port, port_clients)| {
            let recent_clients = port_clients
                .clients
                .iter()
                .filter(|(_, rejected_at)| is_recent(**rejected_at, now));
            let addresses: Vec<IpAddr> = recent_clients.map(|(client, _)| *client).collect();
            let has_evicted =
                port_clients.evicted_at.is_some_and(|evicted_at| is_recent(evicted_at, now));
            let has_clients = !addresses.is_empty() || has_evicted;
            has_clients.then(|| ProxyCondition::plaintext_rejected(*port, &addresses, has_evicted))
        });
        conditions.collect()
    }

    /// Returns the next time at which a client expires, which changes the conditions; `None` without clients.
    pub(crate) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        let event_times = self.ports.iter().flat_map(|(_, port)| {
            port.clients.iter().map(|(_, rejected_at)| *rejected_at).chain(port.evicted_at)
        });
        event_times.map(|time| time + REPORT_DURATION).filter(|expiry| *expiry > now).min()
    }
}

impl PortClients {
    /// Removes expired clients and evictions. Returns false if nothing remains to be reported.
    fn retain_recent(&mut self, now: Instant) -> bool {
        self.clients.retain(|_, rejected_at| is_recent(*rejected_at, now));
        self.evicted_at = self.evicted_at.filter(|evicted_at| is_recent(*evicted_at, now));
        !self.clients.is_empty() || self.evicted_at.is_some()
    }
}

/// True if a client that was rejected or evicted at `time` is still reported.
fn is_recent(time: Instant, now: Instant) -> bool {
    now.saturating_duration_since(time) < REPORT_DURATION
}

/// The time for which a client is reported after its last connection: longer than the interval of slow retries
/// and scrapes.
const REPORT_DURATION: Duration = Duration::from_secs(600);
/// The minimum interval of changes of the conditions by clients that evict each other.
const CHANGE_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum number of ports with recorded clients.
const MAX_PORTS: usize = 16;
/// The maximum number of recorded clients per port: their addresses fit into the reason of one condition.
const MAX_CLIENTS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn client_address(number: u16) -> IpAddr {
        format!("::ffff:10.0.0.{number}").parse().unwrap()
    }

    #[test]
    fn clients_are_reported_by_port_until_they_expire() {
        let mut table = RejectedClients::default();
        let start = Instant::now();
        let reported = |table: &RejectedClients, now| -> Vec<(String, String)> {
            table
                .conditions(now)
                .into_iter()
                .map(|condition| (condition.subject, condition.reason))
                .collect()
        };
        assert!(table.record(80, client_address(1), start));
        assert!(
            !table.record(80, client_address(1), start),
            "a known client does not change the conditions"
        );
        let second_record_at = start + REPORT_DURATION / 2;
        assert!(table.record(80, client_address(2), second_record_at));
        let expected_both = [("port 80".to_owned(), "10.0.0.1, 10.0.0.2".to_owned())];
        assert_eq!(reported(&table, second_record_at), expected_both);
        assert_eq!(table.next_expiry(second_record_at), Some(start + REPORT_DURATION));
        let expected = [("port 80".to_owned(), "10.0.0.2".to_owned())];
        assert_eq!(reported(&table, start + REPORT_DURATION), expected);
        assert_eq!(reported(&table, second_record_at + REPORT_DURATION), []);
        assert_eq!(table.next_expiry(second_record_at + REPORT_DURATION), None);
    }

    #[test]
    fn the_table_is_bounded_and_expired_entries_make_room() {
        let mut table = RejectedClients::default();
        let now = Instant::now();
        let max_count = u16::try_from(MAX_CLIENTS).unwrap();
        for number in 0..max_count {
            assert!(table.record(80, client_address(number), now));
        }
        assert!(
            table.record(80, client_address(max_count), now),
            "the first eviction changes the conditions"
        );
        assert!(!table.record(80, client_address(max_count + 1), now));
        let reason = table.conditions(now)[0].reason.clone();
        assert!(reason.ends_with("10.0.0.7, 10.0.0.8, 10.0.0.9, others"), "the newest: {reason}");
        assert!(!reason.contains("10.0.0.1,"), "{reason}");
        assert!(
            table.record(80, client_address(max_count + 2), now + CHANGE_INTERVAL),
            "evictions change them at most once per interval"
        );
        let ports = u16::try_from(MAX_PORTS).unwrap();
        for port in 100..100 + ports {
            table.record(port, client_address(1), now);
        }
        assert_eq!(table.conditions(now).len(), MAX_PORTS);
        assert!(table.record(99, client_address(1), now + REPORT_DURATION));
        assert_eq!(table.conditions(now + REPORT_DURATION).len(), 1);
    }
}
