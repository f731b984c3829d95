//! Rounds: how long it takes from a change until the last proxy that it concerns has applied it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use leno_discovery::{ChangeId, ConnectionId};
use leno_telemetry::Histogram;
use tokio::time::Instant;

/// Changes that were sent out together and who has not applied them yet.
#[derive(Debug)]
struct Round {
    change: ChangeId,
    /// When each of its changes was seen.
    seen: Vec<Instant>,
    waiting: BTreeSet<ConnectionId>,
}

/// What became of the newest change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) change: ChangeId,
    pub(crate) seen: Instant,
    /// How many proxies it concerns, and how many of them have applied it.
    pub(crate) concerned: usize,
    pub(crate) applied: usize,
    /// How long it took until all had; `None` while some have not.
    pub(crate) converged: Option<Duration>,
}

/// The rounds that are not over, and how long those took that are.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    open: VecDeque<Round>,
    latest: Option<Progress>,
    convergence: Histogram,
}

impl Rounds {
    /// A round begins: changes seen at `seen`, the newest `change`, were sent to `waiting`.
    pub(crate) fn begin(
        &mut self,
        change: ChangeId,
        seen: Vec<Instant>,
        waiting: BTreeSet<ConnectionId>,
    ) {
        let Some(last) = seen.last().copied() else {
            return;
        };
        self.latest = Some(Progress {
            change,
            seen: last,
            concerned: waiting.len(),
            applied: 0,
            converged: waiting.is_empty().then_some(Duration::ZERO),
        });
        if waiting.is_empty() {
            return;
        }
        if self.open.len() == OPEN_ROUNDS_MAX {
            // Some proxy answers to nothing; its own status says so.
            self.open.pop_front();
        }
        self.open.push_back(Round { change, seen, waiting });
    }

    /// A proxy has applied all that it was told, or is gone.
    pub(crate) fn settle(&mut self, connection: ConnectionId, now: Instant) {
        for round in &mut self.open {
            let waited = round.waiting.remove(&connection);
            if let Some(latest) = &mut self.latest
                && latest.change == round.change
                && waited
            {
                latest.applied += 1;
                if round.waiting.is_empty() {
                    latest.converged = Some(now.duration_since(latest.seen));
                }
            }
        }
        let convergence = &mut self.convergence;
        self.open.retain(|round| {
            if round.waiting.is_empty() {
                for seen in &round.seen {
                    convergence.record(now.duration_since(*seen));
                }
            }
            !round.waiting.is_empty()
        });
    }

    /// What became of the newest change, if there was any.
    pub(crate) fn latest(&self) -> Option<Progress> {
        self.latest
    }

    /// How long changes took that concerned somebody.
    pub(crate) fn convergence(&self) -> &Histogram {
        &self.convergence
    }
}

/// Rounds that somebody is still waited for; the oldest is given up.
const OPEN_ROUNDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn connections<const N: usize>(ids: [u64; N]) -> BTreeSet<ConnectionId> {
        ids.map(ConnectionId).into()
    }

    #[test]
    fn a_change_has_converged_when_the_last_proxy_applied_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rounds = Rounds::default();
        rounds.begin(ChangeId(1), vec![start], connections([1, 2]));
        rounds.settle(ConnectionId(1), at(5));
        let latest = rounds.latest().unwrap();
        assert_eq!((latest.concerned, latest.applied, latest.converged), (2, 1, None));
        rounds.settle(ConnectionId(1), at(6));
        rounds.settle(ConnectionId(2), at(9));
        let latest = rounds.latest().unwrap();
        assert_eq!(latest.converged, Some(Duration::from_millis(9)));
        assert_eq!(rounds.convergence().count(), 1);
    }

    #[test]
    fn a_change_that_concerns_nobody_converges_at_once_and_is_not_averaged() {
        let mut rounds = Rounds::default();
        rounds.begin(ChangeId(1), vec![Instant::now()], BTreeSet::new());
        assert_eq!(rounds.latest().unwrap().converged, Some(Duration::ZERO));
        assert_eq!(rounds.convergence().count(), 0);
    }

    #[test]
    fn a_silent_proxy_does_not_let_rounds_pile_up() {
        let mut rounds = Rounds::default();
        for change in 0..1000 {
            rounds.begin(ChangeId(change), vec![Instant::now()], connections([1]));
        }
        assert_eq!(rounds.open.len(), OPEN_ROUNDS_MAX);
        rounds.settle(ConnectionId(1), Instant::now());
        assert!(rounds.open.is_empty());
    }
}
