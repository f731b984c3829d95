//! One proxy as the control plane knows it: who it is, what it uses, what it was told.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use leno_discovery::{ChangeId, Connected, Doubt, ProxyReport, Refusal, Standing, Update};
use leno_identity::Peer;
use leno_model::{ServiceName, WorkloadName};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::compile::World;

/// One connected proxy.
#[derive(Debug)]
pub(crate) struct Contact {
    pub(crate) workload: WorkloadName,
    /// Who it is, as its certificate says.
    pub(crate) peer: Peer,
    pub(crate) subscriptions: BTreeSet<ServiceName>,
    /// The addresses that it wants to know of.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The names that it looked up.
    pub(crate) names: BTreeSet<ServiceName>,
    /// When its last certificate expires: it may not outlive that.
    pub(crate) expires: SystemTime,
    pub(crate) since: Instant,
    pub(crate) admin: Option<SocketAddr>,
    /// The address that it reports in place of one of its own: no tool is to connect to it.
    pub(crate) foreign_admin: Option<SocketAddr>,
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// The number of its stream among all of its workload.
    pub(crate) session: u64,
    /// The number of its process; 0 when it does not say.
    pub(crate) process: u64,
    /// The process of the proxy that it displaced, and when.
    pub(crate) displaced: Option<(u64, Instant)>,
    /// Until when other processes do not take its place: two were there at the same time.
    pub(crate) kept_until: Option<Instant>,
    /// Which signer and which roots its certificate is of.
    pub(crate) edition: u64,
    /// The cost of its world when it was last compiled, in the units of budgets.
    pub(crate) world_units: u64,
    /// What it was last told.
    pub(crate) offered: Option<Update>,
    /// Which endpoints it was told to keep, if it has them.
    doubt: Doubt,
    /// The newest change up to which it has applied everything.
    pub(crate) applied: Option<ChangeId>,
    /// When it last said so.
    pub(crate) applied_at: Option<Instant>,
    /// What it was sent since it last had applied everything.
    pub(crate) unsettled_bytes: u64,
    /// How many resources are held back because it refused them.
    pub(crate) refused: usize,
    /// Its last refusals, newest last.
    pub(crate) refusals: VecDeque<Refusal>,
    /// Its state for operators, as it reports it.
    pub(crate) report: ProxyReport,
    standing: watch::Sender<Standing>,
}

impl Contact {
    pub(crate) fn new(connected: Connected, peer: Peer, now: Instant) -> Self {
        let Connected { hello, standing, .. } = connected;
        Self {
            workload: hello.workload,
            expires: peer.not_after,
            peer,
            subscriptions: BTreeSet::new(),
            addresses: BTreeSet::new(),
            names: BTreeSet::new(),
            since: now,
            admin: hello.admin,
            foreign_admin: None,
            pid: hello.pid,
            version: hello.version,
            session: hello.session,
            process: hello.process,
            displaced: None,
            kept_until: None,
            edition: hello.edition,
            world_units: 0,
            offered: None,
            doubt: Doubt::default(),
            applied: None,
            applied_at: None,
            unsettled_bytes: 0,
            refused: 0,
            refusals: VecDeque::new(),
            report: hello.report,
            standing,
        }
    }

    /// Tells it of a world and of the doubts about that, unless both equal what it was told last.
    pub(crate) fn offer(&mut self, (world, doubt): (World, Doubt), change: ChangeId) -> Offered {
        let World { mut snapshot, absent } = world;
        if let Some(last) = &self.offered {
            if last.snapshot == snapshot && last.absent == absent && self.doubt == doubt {
                return Offered::Same;
            }
            if last.snapshot.plan == snapshot.plan {
                Arc::make_mut(&mut snapshot).plan = Arc::clone(&last.snapshot.plan);
            }
        }
        let update = Update { snapshot, absent, change };
        self.offered = Some(update.clone());
        self.doubt = doubt.clone();
        self.standing.send_replace(match doubt.is_empty() {
            true => Standing::Offer(update),
            false => Standing::Partial(update, doubt),
        });
        Offered::New
    }

    /// Notes that it applied everything up to `change`, but for what it refuses.
    pub(crate) fn applied(&mut self, change: ChangeId, refused: usize, now: Instant) {
        self.applied = Some(change);
        self.applied_at = Some(now);
        self.refused = refused;
        if refused == 0 {
            self.refusals.clear();
        }
    }

    pub(crate) fn refused(&mut self, refusals: Vec<Refusal>) {
        self.refusals.extend(refusals);
        while self.refusals.len() > REFUSALS_MAX {
            self.refusals.pop_front();
        }
    }

    /// Whether it has not yet applied what it was last told.
    pub(crate) fn is_behind(&self) -> bool {
        let offered = self.offered.as_ref().map(|update| update.change);
        offered.is_some() && self.applied < offered
    }

    /// Ends the connection, for this reason.
    pub(crate) fn dismiss(self, reason: String) {
        self.standing.send_replace(Standing::Goodbye(reason));
    }

    /// Whether the connection ended without a word.
    pub(crate) fn is_gone(&self) -> bool {
        self.standing.is_closed()
    }
}

/// What came of telling a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It was told something new.
    New,
    /// It knows already.
    Same,
}

/// How many refusals are remembered for a proxy.
const REFUSALS_MAX: usize = 16;
