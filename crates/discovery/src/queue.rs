//! The queue from all connections to the mesh owner, with at most one event of each connection at a time.
//!
//! A connection that has another event to send waits until the owner has handled its last one, and then goes to
//! the end of the queue. So the owner serves connections in turn, and a connection with many events delays
//! another by at most one event.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::budget::Budget;
use crate::event::Event;

/// Creates the queue, with room for one event of each of `max_connections` connections.
#[must_use]
pub fn event_queue(max_connections: usize) -> (EventQueue, mpsc::Receiver<QueuedEvent>) {
    let (sender, receiver) = mpsc::channel(max_connections);
    (EventQueue(sender), receiver)
}

/// The sending end of the queue.
#[derive(Debug, Clone)]
pub struct EventQueue(mpsc::Sender<QueuedEvent>);

impl EventQueue {
    /// Creates the sending end of one connection. Its work is charged to a budget.
    #[must_use]
    pub fn create_sender(&self, budget: Arc<Budget>) -> EventSender {
        EventSender { queue: self.0.clone(), turns: Arc::new(Semaphore::new(1)), budget }
    }

    /// True if the mesh owner is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// An event, and the turn of its connection.
#[derive(Debug)]
pub struct QueuedEvent {
    /// The event.
    pub event: Event,
    /// The turn of the connection; held until all work for the event is done.
    pub turn: ConnectionTurn,
}

/// The turn of a connection. The connection sends no other event before this is dropped.
#[derive(Debug)]
pub struct ConnectionTurn {
    _permit: OwnedSemaphorePermit,
    budget: Arc<Budget>,
}

impl ConnectionTurn {
    /// Charges the connection's budget for work caused by its event.
    pub fn charge(&self, units: u64, now: Instant) {
        self.budget.charge_work(units, now);
    }
}

/// The sending end of one connection.
#[derive(Debug)]
pub struct EventSender {
    queue: mpsc::Sender<QueuedEvent>,
    /// Has one permit: the turn of the connection.
    turns: Arc<Semaphore>,
    budget: Arc<Budget>,
}

/// The error of a send after the mesh owner task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerGone;

/// A slot in the queue, for one event.
#[derive(Debug)]
pub(crate) struct EventSlot<'a> {
    permit: mpsc::Permit<'a, QueuedEvent>,
    turn: ConnectionTurn,
}

impl EventSlot<'_> {
    /// Puts an event into the slot.
    pub(crate) fn send_event(self, event: Event) {
        self.permit.send(QueuedEvent { event, turn: self.turn });
    }
}

impl EventSender {
    /// Returns the budget of the connection.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Waits until the owner has handled the connection's last event. Cancel-safe.
    pub(crate) async fn reserve_slot(&self) -> Result<EventSlot<'_>, OwnerGone> {
        // The semaphore is never closed.
        let turn_permit = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| OwnerGone)?;
        let permit = self.queue.reserve().await.map_err(|_| OwnerGone)?;
        Ok(EventSlot {
            permit,
            turn: ConnectionTurn { _permit: turn_permit, budget: Arc::clone(&self.budget) },
        })
    }

    /// Sends an event when it is the connection's turn.
    pub(crate) async fn send_event(&self, event: Event) -> Result<(), OwnerGone> {
        self.reserve_slot().await?.send_event(event);
        Ok(())
    }

    /// Sends an event when it is the connection's turn.
    ///
    /// # Errors
    /// [`ServeError::Stopped`](crate::ServeError::Stopped) if the mesh owner task has ended.
    pub async fn send(&self, event: Event) -> Result<(), crate::ServeError> {
        self.send_event(event).await.map_err(|OwnerGone| crate::ServeError::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ConnectionId;

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_many_events_delays_another_by_at_most_one_event() {
        let (queue, mut events) = event_queue(8);
        let connect = || queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let (busy, quiet) = (connect(), connect());
        let [busy_id, single_id] = [1, 2].map(ConnectionId);
        let flood = async {
            for _ in 0..1000 {
                busy.send_event(Event::Disconnected { connection: busy_id }).await.unwrap();
            }
        };
        let single = async {
            // The other connection sends first.
            tokio::task::yield_now().await;
            quiet.send_event(Event::Disconnected { connection: single_id }).await.unwrap();
        };
        let owner = async {
            tokio::task::yield_now().await;
            let mut earlier_events = 0;
            loop {
                let Some(QueuedEvent { event: Event::Disconnected { connection }, turn }) =
                    events.recv().await
                else {
                    panic!("the queue ended")
                };
                if connection == single_id {
                    return earlier_events;
                }
                earlier_events += 1;
                drop(turn);
            }
        };
        let earlier_events = tokio::select! {
            earlier_events = owner => earlier_events,
            ((), ()) = async { tokio::join!(flood, single) } => panic!("no event is handled"),
        };
        assert!(earlier_events <= 2, "{earlier_events} events of another connection came first");
    }
}
