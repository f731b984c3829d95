//! Collects the conditions that break traffic at this proxy, such as open circuits and closed listeners. All threads
//! report them; the control thread sends them to the control plane, and the admin endpoint shows them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leno_discovery::ProxyCondition;
use leno_discovery::condition::kind;
use leno_model::ServicePolicyName;
use leno_traffic::circuit_breaker::Trigger;
use leno_traffic::traffic_policy::ServicePortId;
use tokio::sync::Notify;

use crate::rejected_clients::RejectedClients;

/// The current conditions. Requests do not take the locks: only failures, recoveries and readers do.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    /// The reasons of the conditions, by kind and subject.
    reasons: Mutex<BTreeMap<(&'static str, String), String>>,
    /// The circuits that threads have opened, by number.
    circuits: Mutex<BTreeMap<u64, OpenCircuit>>,
    next_circuit_number: AtomicU64,
    rejected_clients: Mutex<RejectedClients>,
    /// Notified when the conditions change; only the control thread waits for it.
    changed: Notify,
}

/// A circuit opened by one thread.
#[derive(Debug, Clone)]
pub(crate) struct OpenCircuit {
    /// The service port that the policy is attached to, which may differ from the backends of its requests.
    pub(crate) subject: ServicePortId,
    pub(crate) policy: ServicePolicyName,
    pub(crate) trigger: Trigger,
    /// The time at which the circuit opened.
    pub(crate) since: Instant,
    /// The time for which the circuit rejects all requests, before it permits probes.
    pub(crate) open_for: Duration,
    /// The HTTP status of the responses to rejected requests.
    pub(crate) status: u16,
}

/// The state of a circuit that is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CircuitState {
    /// Requests are rejected.
    Open,
    /// Some requests are sent as probes.
    HalfOpen,
}

impl CircuitState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

impl OpenCircuit {
    /// Returns the state of the circuit at `now`.
    pub(crate) fn state(&self, now: Instant) -> CircuitState {
        match now.saturating_duration_since(self.since) < self.open_for {
            true => CircuitState::Open,
            false => CircuitState::HalfOpen,
        }
    }

    /// Returns the time at which the condition ends. A circuit that stays half-open for longer has no requests
    /// that could close it, and rejects no requests.
    fn condition_end(&self) -> Instant {
        self.since + self.open_for + self.open_for.clamp(MIN_HALF_OPEN_TIME, MAX_HALF_OPEN_TIME)
    }

    /// Returns the condition that reports the circuit.
    fn condition(&self) -> ProxyCondition {
        let Self { subject, policy, trigger, open_for, .. } = self;
        let cause = match trigger {
            Trigger::FailureThreshold => "too many requests failed",
            Trigger::ConsecutiveFailures => "too many requests failed in a row",
            Trigger::SlowRequests => "too many requests were slow",
            Trigger::Probe => "a probe failed or was slow",
        };
        let reason = format!("{cause}; {policy} opens the circuit for {open_for:?}");
        ProxyCondition::new(kind::CIRCUIT_OPEN, subject.to_string(), reason)
    }
}

impl Conditions {
    /// Sets a condition, or replaces the reason of an active condition.
    pub(crate) fn set_condition(&self, kind: &'static str, subject: &str, reason: String) {
        let previous = lock(&self.reasons).insert((kind, subject.to_owned()), reason.clone());
        if previous.as_ref() != Some(&reason) {
            self.changed.notify_one();
        }
    }

    /// Clears a condition; does nothing if the condition is not active.
    pub(crate) fn clear_condition(&self, kind: &'static str, subject: &str) {
        if lock(&self.reasons).remove(&(kind, subject.to_owned())).is_some() {
            self.changed.notify_one();
        }
    }

    /// Records a rejected connection from a client without mutual TLS at an application port.
    pub(crate) fn record_rejected_client(&self, port: u16, client: IpAddr) {
        if lock(&self.rejected_clients).record(port, client, Instant::now()) {
            self.changed.notify_one();
        }
    }

    /// Replaces all conditions of a kind.
    pub(crate) fn replace_kind(
        &self,
        kind: &'static str,
        current: impl IntoIterator<Item = (String, String)>,
    ) {
        let current: BTreeMap<_, _> =
            current.into_iter().map(|(subject, reason)| ((kind, subject), reason)).collect();
        let mut reasons = lock(&self.reasons);
        let previous: BTreeMap<_, _> =
            reasons.extract_if(.., |(candidate, _), _| *candidate == kind).collect();
        let has_changed = previous != current;
        reasons.extend(current);
        drop(reasons);
        if has_changed {
            self.changed.notify_one();
        }
    }

    /// Returns the number under which a new circuit is recorded.
    pub(crate) fn next_circuit_number(&self) -> u64 {
        self.next_circuit_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Records an opened circuit.
    pub(crate) fn add_circuit(&self, number: u64, circuit: OpenCircuit) {
        lock(&self.circuits).insert(number, circuit);
        self.changed.notify_one();
    }

    /// Removes a circuit that has closed or lost its policy.
    pub(crate) fn remove_circuit(&self, number: u64) {
        if lock(&self.circuits).remove(&number).is_some() {
            self.changed.notify_one();
        }
    }

    /// Returns the circuits that are not closed, one for each policy and port: the number of threads that opened one,
    /// and the circuit that was opened last.
    pub(crate) fn open_circuits(&self) -> Vec<(usize, OpenCircuit)> {
        let mut circuits: BTreeMap<(ServicePortId, ServicePolicyName), (usize, OpenCircuit)> =
            BTreeMap::new();
        for circuit in lock(&self.circuits).values() {
            let key = (circuit.subject.clone(), circuit.policy.clone());
            let (thread_count, newest_circuit) =
                circuits.entry(key).or_insert_with(|| (0, circuit.clone()));
            *thread_count += 1;
            if circuit.since > newest_circuit.since {
                *newest_circuit = circuit.clone();
            }
        }
        circuits.into_values().collect()
    }

    /// Returns all conditions that are active at `now`.
    pub(crate) fn active_conditions(&self, now: Instant) -> Vec<ProxyCondition> {
        let mut conditions: Vec<ProxyCondition> = lock(&self.reasons)
            .iter()
            .map(|((kind, subject), reason)| {
                ProxyCondition::new(kind, subject.clone(), reason.clone())
            })
            .collect();
        let circuits =
            self.open_circuits().into_iter().filter(|(_, circuit)| circuit.condition_end() > now);
        conditions.extend(circuits.map(|(_, circuit)| circuit.condition()));
        conditions.extend(lock(&self.rejected_clients).conditions(now));
        conditions
    }

    /// Waits until the conditions may have changed. The future is cancel-safe.
    pub(crate) async fn wait_for_change(&self) {
        let now = Instant::now();
        let next_circuit_end = lock(&self.circuits)
            .values()
            .map(OpenCircuit::condition_end)
            .filter(|end| *end > now)
            .min();
        let next_end =
            next_circuit_end.into_iter().chain(lock(&self.rejected_clients).next_expiry(now)).min();
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep_until(next_end) => {}
        }
    }
}

/// Sleeps until a deadline; forever without a deadline.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Locks a mutex, even if another thread panicked while holding the lock: no update leaves a partial state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The minimum time for which a half-open circuit is reported as a condition: the next probe may open it again
/// at once.
const MIN_HALF_OPEN_TIME: Duration = Duration::from_secs(10);
/// The maximum time for which a half-open circuit is reported as a condition.
const MAX_HALF_OPEN_TIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use leno_model::{ServiceName, ServicePolicyKind};

    use super::*;

    fn open_circuit(since: Instant) -> OpenCircuit {
        OpenCircuit {
            subject: ServicePortId { service: ServiceName::new("shop", "api").unwrap(), port: 80 },
            policy: ServicePolicyName::new(ServicePolicyKind::CircuitBreaker, "shop", "limits")
                .unwrap(),
            trigger: Trigger::FailureThreshold,
            since,
            open_for: Duration::from_secs(5),
            status: 503,
        }
    }

    #[test]
    fn replacing_a_kind_leaves_the_other_conditions() {
        let conditions = Conditions::default();
        let now = Instant::now();
        let closed_listener = |name: &str| (name.to_owned(), "in use".to_owned());
        conditions.set_condition(kind::STATE_UNWRITABLE, "/state", "full".to_owned());
        conditions
            .replace_kind(kind::LISTENER_CLOSED, [closed_listener("a"), closed_listener("b")]);
        conditions.replace_kind(kind::LISTENER_CLOSED, [closed_listener("b")]);
        let subjects: Vec<String> = conditions
            .active_conditions(now)
            .into_iter()
            .map(|condition| condition.subject)
            .collect();
        assert_eq!(subjects, ["b", "/state"]);
        conditions.clear_condition(kind::STATE_UNWRITABLE, "/state");
        conditions.replace_kind(kind::LISTENER_CLOSED, []);
        assert_eq!(conditions.active_conditions(now), []);
    }

    #[test]
    fn an_open_circuit_is_one_condition_until_it_closes_or_has_no_requests() {
        let conditions = Conditions::default();
        let since = Instant::now();
        for number in 0..2 {
            conditions.add_circuit(number, open_circuit(since));
        }
        let active = conditions.active_conditions(since);
        assert_eq!(active.len(), 1, "{active:?}");
        assert_eq!(
            (active[0].kind.as_str(), active[0].subject.as_str()),
            ("circuit-open", "shop/api:80")
        );
        assert_eq!(conditions.open_circuits()[0].0, 2);
        assert_eq!(
            open_circuit(since).state(since + Duration::from_secs(6)),
            CircuitState::HalfOpen
        );
        assert_eq!(conditions.active_conditions(since + Duration::from_secs(14)).len(), 1);
        assert_eq!(conditions.active_conditions(since + Duration::from_secs(15)), []);
        // Another policy at the same port is another circuit.
        let policy = ServicePolicyName::new(ServicePolicyKind::CircuitBreaker, "shop", "own");
        conditions.add_circuit(2, OpenCircuit { policy: policy.unwrap(), ..open_circuit(since) });
        assert_eq!(conditions.open_circuits().len(), 2);
        assert_eq!(conditions.active_conditions(since).len(), 2);
        conditions.remove_circuit(0);
        conditions.remove_circuit(1);
        conditions.remove_circuit(2);
        assert_eq!(conditions.active_conditions(since), []);
        assert!(conditions.open_circuits().is_empty());
    }
}
