//! Collects the events of one connection that the state task, the task that owns the control plane's state, has
//! not taken yet. Only the newest state of each kind is kept, so memory is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::condition::ProxyReport;
use crate::envelope::MAX_REJECTIONS;
use crate::event::{ConnectionId, Event};
use crate::key::ChangeId;
use crate::message::{CertificateReply, Hello, InboundListener, ResourceRejection};
use crate::subscriptions::TrackedSubscriptions;
use crate::traffic::TrafficReport;

/// All events that the state task has not taken yet. Each field is bounded.
#[derive(Debug)]
pub(super) struct PendingEvents {
    connection: ConnectionId,
    pub(super) subscriptions: TrackedSubscriptions,
    /// The newest listeners; `None` if the state task has them.
    listeners: Option<Listeners>,
    /// The listeners that the state task took last; `None` before the proxy has sent any.
    last_listeners: Option<Listeners>,
    /// The newest operational state of the proxy; `None` if the state task has it.
    proxy_report: Option<Box<ProxyReport>>,
    /// The operational state that the state task took last.
    last_proxy_report: ProxyReport,
    /// The newest rejections, at most [`MAX_REJECTIONS`].
    rejections: VecDeque<ResourceRejection>,
    /// The newest acknowledgement; `None` if the state task has it.
    applied: Option<Applied>,
    /// The oldest traffic report that the state task has not taken.
    traffic: Option<Box<TrafficReport>>,
    /// A certificate signing request (DER), and the sender of its result.
    certificate_request: Option<(Vec<u8>, CertificateReply)>,
}

/// The addresses of listeners by application port.
type Listeners = BTreeMap<u16, SocketAddr>;

/// The newest acknowledgement of a delta.
#[derive(Debug)]
struct Applied {
    change: ChangeId,
    /// The number of resources that are withheld because the proxy rejected them.
    rejected_count: usize,
    /// The bytes of all deltas sent since the state task took the previous acknowledgement.
    bytes: u64,
}

/// The events that a connection may send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllowedEvents {
    /// All events.
    All,
    /// Events of negligible cost to the state task: the budget of the connection is exceeded.
    Cheap,
}

impl PendingEvents {
    pub(super) fn new(connection: ConnectionId, hello: &Hello) -> Self {
        let listeners = listeners_by_port(&hello.listeners);
        Self {
            connection,
            subscriptions: TrackedSubscriptions::from_hello(hello),
            listeners: None,
            last_listeners: (!listeners.is_empty()).then_some(listeners),
            proxy_report: None,
            last_proxy_report: hello.report.clone(),
            rejections: VecDeque::new(),
            applied: None,
            traffic: None,
            certificate_request: None,
        }
    }

    /// Updates the listeners of the proxy. Listeners that the state task already has cause no event.
    pub(super) fn update_listeners(&mut self, listeners: &[InboundListener]) {
        let listeners = listeners_by_port(listeners);
        self.listeners = (self.last_listeners.as_ref() != Some(&listeners)).then_some(listeners);
    }

    /// Updates the operational state of the proxy. A state that the state task already has causes no event.
    pub(super) fn update_proxy_report(&mut self, proxy_report: ProxyReport) {
        self.proxy_report =
            (self.last_proxy_report != proxy_report).then(|| Box::new(proxy_report));
    }

    /// Adds resources that the proxy rejected, or that are too large to send. Only the newest
    /// [`MAX_REJECTIONS`] are kept.
    pub(super) fn add_rejections(&mut self, rejections: Vec<ResourceRejection>) {
        self.rejections.extend(rejections);
        let surplus_count = self.rejections.len().saturating_sub(MAX_REJECTIONS);
        self.rejections.drain(..surplus_count);
    }

    /// Records the newest applied change, and the bytes of the deltas that led to it.
    pub(super) fn add_applied(&mut self, change: ChangeId, rejected_count: usize, bytes: u64) {
        let pending_bytes = self.applied.take().map_or(0, |applied| applied.bytes);
        self.applied =
            Some(Applied { change, rejected_count, bytes: pending_bytes.saturating_add(bytes) });
    }

    /// Adds a traffic report, or returns it if another traffic report is pending.
    pub(super) fn add_traffic_report(
        &mut self,
        traffic: Box<TrafficReport>,
    ) -> Option<Box<TrafficReport>> {
        match self.traffic {
            Some(_) => Some(traffic),
            None => self.traffic.replace(traffic),
        }
    }

    /// Adds a certificate request. The session ensures that there is one at a time.
    pub(super) fn add_certificate_request(&mut self, csr: Vec<u8>, reply: CertificateReply) {
        self.certificate_request = Some((csr, reply));
    }

    /// True if there is an event to send.
    pub(super) fn has_next_event(&self, allowed_events: AllowedEvents) -> bool {
        let has_costly_event = self.listeners.is_some() || self.subscriptions.has_changed();
        self.certificate_request.is_some()
            || !self.rejections.is_empty()
            || self.applied.is_some()
            || self.proxy_report.is_some()
            || self.traffic.is_some()
            || allowed_events == AllowedEvents::All && has_costly_event
    }

    /// Returns the next event to send; `None` if no allowed event is pending. Rejections precede the change
    /// that the proxy applied without the rejected resources.
    pub(super) fn next_event(&mut self, allowed_events: AllowedEvents) -> Option<Event> {
        let connection = self.connection;
        if let Some((csr, reply)) = self.certificate_request.take() {
            return Some(Event::CertificateRequested { connection, csr, reply });
        }
        if !self.rejections.is_empty() {
            let rejections = std::mem::take(&mut self.rejections).into();
            return Some(Event::Rejected { connection, rejections });
        }
        if let Some(Applied { change, rejected_count, bytes }) = self.applied.take() {
            return Some(Event::Applied { connection, change, rejected_count, bytes });
        }
        if let Some(report) = self.proxy_report.take() {
            self.last_proxy_report.clone_from(&report);
            return Some(Event::Reported { connection, report });
        }
        if allowed_events == AllowedEvents::All
            && let Some(listeners) = self.listeners.take()
        {
            let to_listener = |(port, address): (&u16, &SocketAddr)| InboundListener {
                port: *port,
                address: *address,
            };
            let event = Event::Listeners {
                connection,
                listeners: listeners.iter().map(to_listener).collect(),
            };
            self.last_listeners = Some(listeners);
            return Some(event);
        }
        if allowed_events == AllowedEvents::All && self.subscriptions.has_changed() {
            let change = Box::new(self.subscriptions.take_changes());
            return Some(Event::SubscriptionsChanged { connection, change });
        }
        let traffic = self.traffic.take()?;
        Some(Event::Traffic { connection, traffic })
    }

    /// Returns the next event after the end of the stream; `None` if there is none. Subscription changes and
    /// certificate requests are dropped.
    pub(super) fn next_event_after_end(&mut self) -> Option<Event> {
        drop(self.subscriptions.take_changes());
        self.certificate_request = None;
        self.next_event(AllowedEvents::All)
    }
}

fn listeners_by_port(listeners: &[InboundListener]) -> Listeners {
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
    fn alternating_listeners_cause_no_event_when_they_are_restored() {
        let mut pending_events = empty_pending();
        pending_events.update_listeners(&listener_at(1));
        assert!(matches!(
            pending_events.next_event(AllowedEvents::All),
            Some(Event::Listeners { .. })
        ));
        for _ in 0..1000 {
            pending_events.update_listeners(&listener_at(2));
            pending_events.update_listeners(&listener_at(1));
        }
        assert!(!pending_events.has_next_event(AllowedEvents::All));
        pending_events.update_listeners(&listener_at(2));
        assert!(
            !pending_events.has_next_event(AllowedEvents::Cheap)
                && pending_events.has_next_event(AllowedEvents::All)
        );
    }

    #[test]
    fn an_empty_list_of_listeners_is_one_event() {
        let mut pending_events = empty_pending();
        pending_events.update_listeners(&[]);
        assert!(matches!(
            pending_events.next_event(AllowedEvents::All),
            Some(Event::Listeners { .. })
        ));
        pending_events.update_listeners(&[]);
        assert!(pending_events.next_event(AllowedEvents::All).is_none());
    }

    #[test]
    fn a_report_is_an_event_only_if_it_differs_from_the_last_one() {
        let closed = || ProxyReport {
            conditions: vec![ProxyCondition::new("listener-closed", "admin", "in use")],
            ..ProxyReport::default()
        };
        let mut pending_events = empty_pending();
        pending_events.update_proxy_report(ProxyReport::default());
        assert!(!pending_events.has_next_event(AllowedEvents::All));
        pending_events.update_proxy_report(closed());
        let Some(Event::Reported { report, .. }) = pending_events.next_event(AllowedEvents::Cheap)
        else {
            panic!("it is an event")
        };
        assert_eq!(*report, closed());
        pending_events.update_proxy_report(ProxyReport::default());
        pending_events.update_proxy_report(closed());
        assert!(!pending_events.has_next_event(AllowedEvents::All));
    }

    #[test]
    fn pending_rejections_and_acknowledgements_are_bounded() {
        let mut pending_events = empty_pending();
        let rejection = |number: usize| {
            ResourceRejection::new(
                crate::ResourceKey::Service(service_name("a")),
                number.to_string(),
            )
        };
        for number in 0..10_000 {
            pending_events.add_rejections(vec![rejection(number)]);
            pending_events.add_applied(ChangeId(number as u64), 1, 2);
        }
        let Some(Event::Rejected { rejections, .. }) =
            pending_events.next_event(AllowedEvents::Cheap)
        else {
            panic!("rejections come first")
        };
        assert_eq!(rejections.len(), MAX_REJECTIONS);
        assert_eq!(rejections.last(), Some(&rejection(9_999)));
        let Some(Event::Applied { change, bytes, .. }) =
            pending_events.next_event(AllowedEvents::Cheap)
        else {
            panic!("the applied change comes next")
        };
        assert_eq!((change, bytes), (ChangeId(9_999), 20_000));
        assert!(!pending_events.has_next_event(AllowedEvents::All));
    }
}
