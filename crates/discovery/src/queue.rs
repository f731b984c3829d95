//! Queues the events of all connections for the state task: the single task that owns the state of the control
//! plane and handles one event at a time.
//!
//! The queue contains at most one event of each connection. A connection that has another event to send waits
//! until the state task has handled its previous event, and then goes to the end of the queue. So the state task serves
//! connections in turn, and a connection with many events delays an event of any other connection by at most
//! one event.

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

/// The sending end of the queue, shared by all connections. It creates an [`EventSender`] for each connection.
#[derive(Debug, Clone)]
pub struct EventQueue(mpsc::Sender<QueuedEvent>);

impl EventQueue {
    /// Creates the sender of one connection. The work that the connection causes is charged to `budget`, the
    /// budget of the client.
    #[must_use]
    pub fn create_sender(&self, budget: Arc<Budget>) -> EventSender {
        EventSender { queue: self.0.clone(), turn_semaphore: Arc::new(Semaphore::new(1)), budget }
    }

    /// True if the state task has ended.
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

/// The turn of a connection: its right to have one event in the queue or at the state task. The connection
/// sends no other event before its turn is dropped.
#[derive(Debug)]
pub struct ConnectionTurn {
    _turn_permit: OwnedSemaphorePermit,
    budget: Arc<Budget>,
}

impl ConnectionTurn {
    /// Charges the client's budget for the state task's work for the event.
    pub fn charge(&self, units: u64, now: Instant) {
        self.budget.charge_work(units, now);
    }
}

/// Sends the events of one connection, one at a time.
#[derive(Debug)]
pub struct EventSender {
    queue: mpsc::Sender<QueuedEvent>,
    /// A semaphore with one permit, which stands for the turn of the connection.
    turn_semaphore: Arc<Semaphore>,
    budget: Arc<Budget>,
}

/// The error of sending an event after the state task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateTaskStopped;

/// A reserved slot in the queue for one event, and the connection's turn.
#[derive(Debug)]
pub(crate) struct EventSlot<'a> {
    queue_permit: mpsc::Permit<'a, QueuedEvent>,
    turn: ConnectionTurn,
}

impl EventSlot<'_> {
    /// Puts an event into the slot.
    pub(crate) fn send_event(self, event: Event) {
        self.queue_permit.send(QueuedEvent { event, turn: self.turn });
    }
}

impl EventSender {
    /// Returns the budget of the connection's client.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Waits until the state task has handled the connection's previous event, and reserves a slot for the next
    /// one. Cancel-safe.
    pub(crate) async fn reserve_slot(&self) -> Result<EventSlot<'_>, StateTaskStopped> {
        // The semaphore is never closed.
        let turn_permit =
            Arc::clone(&self.turn_semaphore).acquire_owned().await.map_err(|_| StateTaskStopped)?;
        let queue_permit = self.queue.reserve().await.map_err(|_| StateTaskStopped)?;
        let budget = Arc::clone(&self.budget);
        Ok(EventSlot { queue_permit, turn: ConnectionTurn { _turn_permit: turn_permit, budget } })
    }

    /// Waits for the connection's turn and queues an event. Callers in this crate choose their own error for a
    /// stopped state task.
    pub(crate) async fn send_event(&self, event: Event) -> Result<(), StateTaskStopped> {
        self.reserve_slot().await?.send_event(event);
        Ok(())
    }

    /// Waits for the connection's turn and queues an event, for the server and for callers outside this crate.
    ///
    /// # Errors
    /// [`ServeError::Stopped`](crate::ServeError::Stopped) if the state task has ended.
    pub async fn send(&self, event: Event) -> Result<(), crate::ServeError> {
        self.send_event(event).await.map_err(|StateTaskStopped| crate::ServeError::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ConnectionId;

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_many_events_delays_another_by_at_most_one_event() {
        let (queue, mut events) = event_queue(8);
        let create_sender = || queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let (busy_sender, quiet_sender) = (create_sender(), create_sender());
        let [busy_id, quiet_id] = [1, 2].map(ConnectionId);
        let send_busy_events = async {
            for _ in 0..1000 {
                busy_sender.send_event(Event::Disconnected { connection: busy_id }).await.unwrap();
            }
        };
        let send_quiet_event = async {
            // The busy connection sends first.
            tokio::task::yield_now().await;
            quiet_sender.send_event(Event::Disconnected { connection: quiet_id }).await.unwrap();
        };
        let state_task = async {
            tokio::task::yield_now().await;
            let mut earlier_events = 0;
            loop {
                let Some(QueuedEvent { event: Event::Disconnected { connection }, turn }) =
                    events.recv().await
                else {
                    panic!("the queue ended")
                };
                if connection == quiet_id {
                    return earlier_events;
                }
                earlier_events += 1;
                drop(turn);
            }
        };
        let earlier_events = tokio::select! {
            earlier_events = state_task => earlier_events,
            ((), ()) = async { tokio::join!(send_busy_events, send_quiet_event) } => {
                panic!("no event is handled")
            }
        };
        // The state task may take one event before the quiet connection sends its own. One more may then precede it.
        assert!(earlier_events <= 2, "{earlier_events} events of the busy connection came first");
    }
}
