//! Events of one connection for the mesh owner: the newest state of each kind, not a queue.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::condition::ProxyReport;
use crate::envelope::REFUSALS_MAX;
use crate::event::{ConnectionId, Event};
use crate::key::ChangeId;
use crate::message::{CertificateReply, Hello, InboundListener, ResourceRejection};
use crate::subscriptions::TrackedSubscriptions;
use crate::traffic::TrafficReport;

/// All events that the owner has not taken yet. Each part is bounded.
#[derive(Debug)]
pub(super) struct PendingEvents {
    connection: ConnectionId,
    pub(super) desired: TrackedSubscriptions,
    listeners: Option<Listeners>,
    /// The listeners that the owner took last; none before the proxy has sent any.
    last_listeners: Option<Listeners>,
    /// The newest report, unless the owner has it.
    report: Option<Box<ProxyReport>>,
    last_report: ProxyReport,
    refusals: VecDeque<ResourceRejection>,
    applied: Option<Applied>,
    traffic: Option<Box<TrafficReport>>,
    certificate: Option<(Vec<u8>, CertificateReply)>,
}

type Listeners = BTreeMap<u16, SocketAddr>;

#[derive(Debug)]
struct Applied {
    change: ChangeId,
    refused: usize,
    bytes: u64,
}

/// The events that a connection may send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllowedEvents {
    /// All of them.
    All,
    /// Events of negligible cost to the owner: the budget of the connection is exceeded.
    Cheap,
}

impl PendingEvents {
    pub(super) fn new(connection: ConnectionId, hello: &Hello) -> Self {
        let listeners = in_order(&hello.listeners);
        Self {
            connection,
            desired: TrackedSubscriptions::from_hello(hello),
            listeners: None,
            last_listeners: (!listeners.is_empty()).then_some(listeners),
            report: None,
            last_report: hello.report.clone(),
            refusals: VecDeque::new(),
            applied: None,
            traffic: None,
            certificate: None,
        }
    }

    /// Updates the listeners of the proxy. Known ones are not sent again.
    pub(super) fn update_listeners(&mut self, listeners: &[InboundListener]) {
        let listeners = in_order(listeners);
        self.listeners = (self.last_listeners.as_ref() != Some(&listeners)).then_some(listeners);
    }

    /// Updates the operational state of the proxy.
    pub(super) fn report_state(&mut self, report: ProxyReport) {
        self.report = (self.last_report != report).then(|| Box::new(report));
    }

    /// Adds rejected or unsent resources. The newest ones are kept.
    pub(super) fn add_rejections(&mut self, refusals: Vec<ResourceRejection>) {
        self.refusals.extend(refusals);
        let surplus = self.refusals.len().saturating_sub(REFUSALS_MAX);
        self.refusals.drain(..surplus);
    }

    pub(super) fn add_applied(&mut self, change: ChangeId, refused: usize, bytes: u64) {
        let before = self.applied.take().map_or(0, |applied| applied.bytes);
        self.applied = Some(Applied { change, refused, bytes: before.saturating_add(bytes) });
    }

    /// Adds a report; returns it if another one is pending.
    pub(super) fn add_report(&mut self, traffic: Box<TrafficReport>) -> Option<Box<TrafficReport>> {
        match self.traffic {
            Some(_) => Some(traffic),
            None => self.traffic.replace(traffic),
        }
    }

    /// Adds a certificate request. The session ensures that there is one at a time.
    pub(super) fn add_certificate_request(&mut self, csr: Vec<u8>, answer: CertificateReply) {
        self.certificate = Some((csr, answer));
    }

    /// True if there is an event to send.
    pub(super) fn has_next(&self, permitted: AllowedEvents) -> bool {
        let costly = self.listeners.is_some() || self.desired.has_changed();
        self.certificate.is_some()
            || !self.refusals.is_empty()
            || self.applied.is_some()
            || self.report.is_some()
            || self.traffic.is_some()
            || permitted == AllowedEvents::All && costly
    }

    /// The next event. Rejections precede the change that was applied despite them.
    pub(super) fn next(&mut self, permitted: AllowedEvents) -> Option<Event> {
        let connection = self.connection;
        if let Some((csr, answer)) = self.certificate.take() {
            return Some(Event::CertificateRequested { connection, csr, answer });
        }
        if !self.refusals.is_empty() {
            let refusals = std::mem::take(&mut self.refusals).into();
            return Some(Event::Rejected { connection, refusals });
        }
        if let Some(Applied { change, refused, bytes }) = self.applied.take() {
            return Some(Event::Applied { connection, change, refused, bytes });
        }
        if let Some(report) = self.report.take() {
            self.last_report.clone_from(&report);
            return Some(Event::Reported { connection, report });
        }
        if permitted == AllowedEvents::All
            && let Some(listeners) = self.listeners.take()
        {
            let inbound = |(port, address): (&u16, &SocketAddr)| InboundListener {
                port: *port,
                address: *address,
            };
            let event =
                Event::Listeners { connection, listeners: listeners.iter().map(inbound).collect() };
            self.last_listeners = Some(listeners);
            return Some(event);
        }
        if permitted == AllowedEvents::All && self.desired.has_changed() {
            let change = Box::new(self.desired.take_changes());
            return Some(Event::SubscriptionsChanged { connection, change });
        }
        let traffic = self.traffic.take()?;
        Some(Event::Traffic { connection, traffic })
    }

    /// The next event after the end of the stream. The desired state and requests ended with it.
    pub(super) fn next_after_end(&mut self) -> Option<Event> {
        drop(self.desired.take_changes());
        self.certificate = None;
        self.next(AllowedEvents::All)
    }
}

fn in_order(listeners: &[InboundListener]) -> Listeners {
    listeners.iter().map(|listener| (listener.port, listener.address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::ProxyCondition;
    use crate::fixture::{gateway_hello, service_name};

    fn empty_pending() -> PendingEvents {
        PendingEvents::new(ConnectionId(1), &Hello { listeners: Vec::new(), ..gateway_hello() })
    }

    fn listener_at(port: u16) -> [InboundListener; 1] {
        [InboundListener { port: 80, address: ([127, 0, 0, 1], port).into() }]
    }

    #[test]
    fn listeners_that_alternate_are_no_event_once_they_are_back() {
        let mut pending = empty_pending();
        pending.update_listeners(&listener_at(1));
        assert!(matches!(pending.next(AllowedEvents::All), Some(Event::Listeners { .. })));
        for _ in 0..1000 {
            pending.update_listeners(&listener_at(2));
            pending.update_listeners(&listener_at(1));
        }
        assert!(!pending.has_next(AllowedEvents::All));
        pending.update_listeners(&listener_at(2));
        assert!(!pending.has_next(AllowedEvents::Cheap) && pending.has_next(AllowedEvents::All));
    }

    #[test]
    fn a_proxy_that_says_that_it_listens_nowhere_is_heard_once() {
        let mut pending = empty_pending();
        pending.update_listeners(&[]);
        assert!(matches!(pending.next(AllowedEvents::All), Some(Event::Listeners { .. })));
        pending.update_listeners(&[]);
        assert!(pending.next(AllowedEvents::All).is_none());
    }

    #[test]
    fn a_report_is_an_event_when_it_differs_from_the_one_that_the_owner_has() {
        let closed = || ProxyReport {
            conditions: vec![ProxyCondition::new("listener-closed", "door", "in use")],
            ..ProxyReport::default()
        };
        let mut pending = empty_pending();
        pending.report_state(ProxyReport::default());
        assert!(!pending.has_next(AllowedEvents::All));
        pending.report_state(closed());
        let Some(Event::Reported { report, .. }) = pending.next(AllowedEvents::Cheap) else {
            panic!("it is an event")
        };
        assert_eq!(*report, closed());
        pending.report_state(ProxyReport::default());
        pending.report_state(closed());
        assert!(!pending.has_next(AllowedEvents::All));
    }

    #[test]
    fn what_waits_is_bounded_however_much_comes() {
        let mut pending = empty_pending();
        let refusal = |number: usize| {
            ResourceRejection::new(
                crate::ResourceKey::Service(service_name("a")),
                number.to_string(),
            )
        };
        for number in 0..10_000 {
            pending.add_rejections(vec![refusal(number)]);
            pending.add_applied(ChangeId(number as u64), 1, 2);
        }
        let Some(Event::Rejected { refusals, .. }) = pending.next(AllowedEvents::Cheap) else {
            panic!("refusals come first")
        };
        assert_eq!(refusals.len(), REFUSALS_MAX);
        assert_eq!(refusals.last(), Some(&refusal(9_999)));
        let Some(Event::Applied { change, bytes, .. }) = pending.next(AllowedEvents::Cheap) else {
            panic!("then what was applied")
        };
        assert_eq!((change, bytes), (ChangeId(9_999), 20_000));
        assert!(!pending.has_next(AllowedEvents::All));
    }
}
