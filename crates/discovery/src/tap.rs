//! Distributes operators' taps on live requests to the sidecars, and collects the records that sidecars report.
//!
//! Every connection receives the set of open taps through a `tokio::sync::watch` channel, which keeps only the
//! newest set. The records of a proxy go to the bounded queue of their tap. Records that do not fit are counted
//! and dropped, so that an operator's blocked terminal delays no connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use leno_model::{
    MAX_TAP_PER_SECOND, MAX_TAP_TEXT_BYTES, ServiceAccount, StatusRange, Tap, TapSide, WorkloadName,
};
use tokio::sync::{mpsc, watch};

use crate::proto;
use crate::resource::InvalidField;

/// The open taps of a control plane.
#[derive(Debug)]
pub struct Taps {
    open_taps: watch::Sender<Arc<Vec<OpenTap>>>,
    /// The ID of the next tap.
    next_id: AtomicU64,
}

/// The records of one proxy for a tap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapRecords {
    /// The workload of the reporting sidecar.
    pub workload: WorkloadName,
    /// Access log lines in JSON, not validated yet.
    pub records: Vec<String>,
    /// The number of requests that the proxy dropped over its rate limit.
    pub dropped: u64,
}

/// The operator's handle of an open tap. Dropping it closes the tap at all sidecars.
#[derive(Debug)]
pub struct ActiveTap {
    taps: Arc<Taps>,
    id: u64,
    receiver: mpsc::Receiver<TapRecords>,
    /// The number of requests without a record since the last call of [`Self::take_lost`].
    lost_count: Arc<AtomicU64>,
}

/// The error of opening a tap while [`MAX_TAPS`] taps are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_TAPS} taps are open already: close one of them")]
pub struct TooManyTaps;

/// The connections' handle of an open tap.
#[derive(Debug, Clone)]
pub(crate) struct OpenTap {
    pub(crate) tap: Tap,
    sender: mpsc::Sender<TapRecords>,
    /// The number of requests without a record, because the queue was full.
    lost_count: Arc<AtomicU64>,
}

impl Taps {
    /// Creates an empty set. IDs count from `first_id`, which should be random: a proxy may still hold records
    /// for a tap of another control plane, or of this one before its restart.
    #[must_use]
    pub fn new(first_id: u64) -> Self {
        Self { open_taps: watch::Sender::default(), next_id: AtomicU64::new(first_id) }
    }

    /// Opens a tap and assigns its `id`.
    ///
    /// # Errors
    /// [`TooManyTaps`] if [`MAX_TAPS`] taps are open.
    pub fn open(self: &Arc<Self>, tap: Tap) -> Result<ActiveTap, TooManyTaps> {
        // Relaxed: an ID has to be unique, and orders no other memory access.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let lost_count = Arc::<AtomicU64>::default();
        let open_tap =
            OpenTap { tap: Tap { id, ..tap }, sender, lost_count: Arc::clone(&lost_count) };
        let has_room = self.open_taps.send_if_modified(|open_taps| {
            let has_room = open_taps.len() < MAX_TAPS;
            if has_room {
                Arc::make_mut(open_taps).push(open_tap);
            }
            has_room
        });
        match has_room {
            true => Ok(ActiveTap { taps: Arc::clone(self), id, receiver, lost_count }),
            false => Err(TooManyTaps),
        }
    }

    /// Subscribes a connection to the open taps.
    pub(crate) fn watch_taps(&self) -> watch::Receiver<Arc<Vec<OpenTap>>> {
        self.open_taps.subscribe()
    }

    fn close(&self, id: u64) {
        self.open_taps.send_modify(|open_taps| {
            Arc::make_mut(open_taps).retain(|open_tap| open_tap.tap.id != id)
        });
    }
}

impl ActiveTap {
    /// Polls for the next records of a proxy.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TapRecords>> {
        self.receiver.poll_recv(context)
    }

    /// Returns the number of lost requests since the last call.
    pub fn take_lost(&self) -> u64 {
        self.lost_count.swap(0, Ordering::Relaxed)
    }
}

impl Drop for ActiveTap {
    fn drop(&mut self) {
        self.taps.close(self.id);
    }
}

impl OpenTap {
    /// Forwards a proxy's records, if the queue has room.
    pub(crate) fn forward_records(&self, tap_records: TapRecords) {
        let count = (tap_records.records.len() as u64).saturating_add(tap_records.dropped);
        if self.sender.try_send(tap_records).is_err() {
            self.record_lost(count);
        }
    }

    /// Counts lost requests. The proxy chooses the number, so the addition saturates.
    pub(crate) fn record_lost(&self, count: u64) {
        // The update always succeeds, because the closure returns a number for every count.
        let add_count = |lost: u64| Some(lost.saturating_add(count));
        self.lost_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_count).ok();
    }
}

pub(crate) fn tap_to_wire(tap: &Tap) -> proto::Tap {
    let side = match tap.side {
        TapSide::Both => proto::TapSide::Both,
        TapSide::Client => proto::TapSide::Client,
        TapSide::Server => proto::TapSide::Server,
    };
    let status = tap
        .status
        .map(|StatusRange { from, to }| proto::StatusRange { from: from.into(), to: to.into() });
    proto::Tap {
        id: tap.id,
        service: tap.service.to_string(),
        side: side.into(),
        path: tap.path.clone(),
        method: tap.method.clone(),
        status,
        from: tap.from.as_ref().map(ServiceAccount::to_string).unwrap_or_default(),
        per_second: tap.per_second,
    }
}

/// Parses the complete set of taps. An invalid tap is skipped: a control plane of a newer release may request
/// taps that this release does not support, and no traffic depends on them.
pub(crate) fn taps_from_wire(wire: Vec<proto::Tap>) -> Vec<Tap> {
    let parse_tap = |tap: proto::Tap| {
        let id = tap.id;
        tap_from_wire(tap).inspect_err(|invalid| {
            tracing::debug!(id, field = %invalid.field, reason = %invalid.reason, "invalid tap ignored");
        })
    };
    wire.into_iter().filter_map(|tap| parse_tap(tap).ok()).take(MAX_TAPS).collect()
}

/// Returns the accepted records of a message, and the number of dropped records: records that are too long,
/// and records over the limit per message.
pub(crate) fn records_from_wire(mut records: Vec<String>) -> (Vec<String>, u64) {
    let received_count = records.len();
    records.truncate(MAX_RECORDS);
    records.retain(|record| record.len() <= MAX_RECORD_BYTES);
    let excluded_count = received_count.saturating_sub(records.len());
    (records, excluded_count as u64)
}

fn tap_from_wire(wire: proto::Tap) -> Result<Tap, InvalidField> {
    let side = match proto::TapSide::try_from(wire.side) {
        Ok(proto::TapSide::Both) => TapSide::Both,
        Ok(proto::TapSide::Client) => TapSide::Client,
        Ok(proto::TapSide::Server) => TapSide::Server,
        Ok(proto::TapSide::Unspecified) | Err(_) => {
            return Err(InvalidField::new("side", format!("{} is not a side", wire.side)));
        }
    };
    for (field, text) in [("path", &wire.path), ("method", &wire.method)] {
        if text.len() > MAX_TAP_TEXT_BYTES {
            return Err(InvalidField::new(field, "is too long"));
        }
    }
    let parse_status = |number: u32| {
        u16::try_from(number)
            .map_err(|_| InvalidField::new("status", format!("{number} is not a status")))
    };
    let status = match wire.status {
        None => None,
        Some(range) => {
            Some(StatusRange { from: parse_status(range.from)?, to: parse_status(range.to)? })
        }
    };
    let from = match wire.from.as_str() {
        "" => None,
        text => Some(crate::resource::parse_account("from", text)?),
    };
    Ok(Tap {
        id: wire.id,
        service: crate::resource::parse_name("service", &wire.service)?,
        side,
        path: wire.path,
        method: wire.method,
        status,
        from,
        per_second: wire.per_second.clamp(1, MAX_TAP_PER_SECOND),
    })
}

/// The maximum number of open taps of a control plane: each costs every sidecar a comparison for each request.
pub const MAX_TAPS: usize = 8;
/// The capacity of a tap's queue: the messages of all proxies within a fraction of a second.
const MAX_QUEUED_MESSAGES: usize = 64;
/// The maximum number of records in a message; a proxy sends at least two messages per second.
pub(crate) const MAX_RECORDS: usize = 512;
/// The maximum length of a record: all its texts are truncated to 1 KiB, and each byte may take six in JSON.
const MAX_RECORD_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn any_tap() -> Tap {
        Tap {
            id: 0,
            service: "shop/stock".parse().unwrap(),
            side: TapSide::Client,
            path: "/orders".into(),
            method: "GET".into(),
            status: StatusRange::parse("5xx"),
            from: Some(ServiceAccount::new("shop", "web").unwrap()),
            per_second: 7,
        }
    }

    /// Returns an empty set; the ID of its second tap wraps around to 0.
    fn wrapping_taps() -> Arc<Taps> {
        Arc::new(Taps::new(u64::MAX))
    }

    fn tapped_records(count: usize) -> TapRecords {
        let workload = "shop/web-1".parse().unwrap();
        TapRecords { workload, records: vec!["{}".to_owned(); count], dropped: 1 }
    }

    #[test]
    fn a_tap_survives_a_round_trip_and_an_invalid_field_is_named() {
        let valid = tap_to_wire(&any_tap());
        assert_eq!(taps_from_wire(vec![valid.clone()]), [any_tap()]);
        type Damage = fn(&mut proto::Tap);
        let cases: [(Damage, &str); 5] = [
            (|tap| tap.service = "stock".into(), "service"),
            (|tap| tap.side = 4, "side"),
            (|tap| tap.from = "web".into(), "from"),
            (|tap| tap.path = "/".repeat(2000), "path"),
            (|tap| tap.status.as_mut().unwrap().to = 70_000, "status"),
        ];
        for (damage, field) in cases {
            let mut wire = valid.clone();
            damage(&mut wire);
            assert_eq!(tap_from_wire(wire.clone()).unwrap_err().field, field);
            assert_eq!(taps_from_wire(vec![wire, valid.clone()]), [any_tap()]);
        }
        assert_eq!(taps_from_wire(vec![valid; MAX_TAPS + 1]).len(), MAX_TAPS);
    }

    #[test]
    fn records_that_are_too_long_or_too_many_are_counted() {
        let long = "x".repeat(MAX_RECORD_BYTES + 1);
        let (records, excluded_count) = records_from_wire(vec!["{}".into(), long, "{}".into()]);
        assert_eq!((records.len(), excluded_count), (2, 1));
        let (records, excluded_count) = records_from_wire(vec!["{}".into(); MAX_RECORDS + 7]);
        assert_eq!((records.len(), excluded_count), (MAX_RECORDS, 7));
    }

    #[test]
    fn numbers_from_a_proxy_do_not_overflow_the_count_of_lost_records() {
        let taps = wrapping_taps();
        let active = taps.open(any_tap()).unwrap();
        let open = taps.watch_taps().borrow().clone();
        for _ in 0..MAX_QUEUED_MESSAGES + 2 {
            open[0].forward_records(TapRecords { dropped: u64::MAX, ..tapped_records(2) });
        }
        assert_eq!((active.take_lost(), active.take_lost()), (u64::MAX, 0));
    }

    #[tokio::test]
    async fn a_tap_is_open_until_it_is_dropped() {
        let taps = wrapping_taps();
        let mut taps_receiver = taps.watch_taps();
        let mut first_tap = taps.open(any_tap()).unwrap();
        let second_tap = taps.open(any_tap()).unwrap();
        let open = taps_receiver.borrow_and_update().clone();
        assert_eq!(open.iter().map(|open| open.tap.id).collect::<Vec<_>>(), [u64::MAX, 0]);
        open[0].forward_records(tapped_records(2));
        let records = std::future::poll_fn(|cx| first_tap.poll_next(cx)).await;
        assert_eq!(records, Some(tapped_records(2)));
        drop((first_tap, second_tap));
        assert!(taps_receiver.has_changed().unwrap() && taps_receiver.borrow().is_empty());
    }

    #[test]
    fn records_beyond_the_queue_are_dropped_and_counted() {
        let taps = wrapping_taps();
        let active = taps.open(any_tap()).unwrap();
        let open = taps.watch_taps().borrow().clone();
        for _ in 0..MAX_QUEUED_MESSAGES + 3 {
            open[0].forward_records(tapped_records(2));
        }
        assert_eq!((active.take_lost(), active.take_lost()), (9, 0));
    }

    #[test]
    fn the_number_of_open_taps_is_limited() {
        let taps = wrapping_taps();
        let open_taps: Vec<_> = (0..MAX_TAPS).map(|_| taps.open(any_tap()).unwrap()).collect();
        assert_eq!(taps.open(any_tap()).unwrap_err(), TooManyTaps);
        drop(open_taps);
        assert!(taps.open(any_tap()).is_ok());
    }
}
