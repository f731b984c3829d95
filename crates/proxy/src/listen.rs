//! The main loop and the listeners of one data thread. Listeners accept connections up to the limit, and close
//! without losing a connection that the kernel has accepted. The thread ends when its requests have completed.

use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;

use leno_listen::{AcceptEvent, Listener};
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::connection;
use crate::drain::{self, Phase};
use crate::redirect::ConnectionClassifier;
use crate::worker::Worker;

/// A command of the control thread to a data thread.
#[derive(Debug)]
pub(crate) enum ListenerCommand {
    /// Accepts connections on a listener.
    Open {
        /// Identifies the listener until it is closed.
        classifier: ConnectionClassifier,
        listener: std::net::TcpListener,
    },
    /// Stops accepting; open connections continue. `closed` is dropped once the socket is closed, which
    /// notifies the control thread.
    Close { classifier: ConnectionClassifier, closed: mpsc::Sender<Infallible> },
}

/// Runs a data thread until the proxy drains or every sender of commands is dropped, then waits for its
/// requests.
pub(crate) async fn run_data_thread(
    worker: Rc<Worker>,
    mut commands: mpsc::Receiver<ListenerCommand>,
) {
    let listener_counts = Rc::new(ListenerCounts::default());
    // A listener closes when its sender is dropped or used. The sent value is dropped after the close.
    let mut open_listeners: HashMap<
        ConnectionClassifier,
        oneshot::Sender<mpsc::Sender<Infallible>>,
    > = HashMap::new();
    let mut phase = worker.phase.clone();
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let port_worker = Rc::clone(&worker);
            let port_task =
                tokio::task::spawn_local(async move { port_worker.follow_port_states().await });
            loop {
                let command = tokio::select! {
                    command = commands.recv() => command,
                    _ = phase.wait_for(|phase| *phase == Phase::Draining) => None,
                };
                match command {
                    Some(ListenerCommand::Open { classifier, listener }) => {
                        let (close_sender, close_request) = oneshot::channel();
                        let accept = accept_connections(
                            worker.clone(),
                            classifier.clone(),
                            listener,
                            listener_counts.clone(),
                            close_request,
                        );
                        tokio::task::spawn_local(accept);
                        open_listeners.insert(classifier, close_sender);
                    }
                    Some(ListenerCommand::Close { classifier, closed }) => {
                        if let Some(close_sender) = open_listeners.remove(&classifier) {
                            // An error means that the listener has already failed.
                            drop(close_sender.send(closed));
                        }
                    }
                    None => break,
                }
            }
            drop(open_listeners);
            wait_for_requests(&worker, &listener_counts).await;
            port_task.abort();
        })
        .await;
}

/// Waits until the requests in progress have finished, at most for the drain timeout.
async fn wait_for_requests(
    worker: &Rc<Worker>,
    ListenerCounts { open_listeners, open_connections }: &ListenerCounts,
) {
    let limits = &worker.config.limits;
    let drain_requests = async {
        wait_until_zero(open_listeners).await;
        // Requests on connections that are idle now still need the upstreams.
        drop(
            tokio::time::timeout(
                drain::last_request_timeout(limits),
                wait_until_zero(open_connections),
            )
            .await,
        );
        worker.wait_until_idle().await;
        worker.retire_upstreams();
        wait_until_zero(open_connections).await;
    };
    if tokio::time::timeout(limits.drain_timeout, drain_requests).await.is_err() {
        tracing::warn!(
            open = open_connections.get(),
            "drain timeout: closing the remaining connections"
        );
    }
}

/// Polls until the count is 0.
async fn wait_until_zero(count: &Cell<usize>) {
    while count.get() > 0 {
        tokio::task::yield_now().await;
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
}

/// Accepts connections until `close_request` resolves, and finally the connections that are already in the
/// kernel's queue.
async fn accept_connections(
    worker: Rc<Worker>,
    classifier: ConnectionClassifier,
    listener: std::net::TcpListener,
    listener_counts: Rc<ListenerCounts>,
    mut close_request: oneshot::Receiver<mpsc::Sender<Infallible>>,
) {
    let _listener_guard =
        CountGuard::new(&listener_counts, |listener_counts| &listener_counts.open_listeners);
    let mut listener = match TcpListener::from_std(listener) {
        Ok(listener) => Listener::new("proxy", listener),
        Err(error) => {
            return tracing::error!(listener = ?classifier, %error, "cannot use a listener");
        }
    };
    let mut closed_sender = None;
    loop {
        let accept_event = tokio::select! {
            biased;
            sender = &mut close_request, if closed_sender.is_none() => {
                listener.close();
                closed_sender = Some(sender);
                continue;
            }
            accept_event = listener.next() => accept_event,
        };
        let (tcp, peer) = match accept_event {
            AcceptEvent::Accepted(tcp, peer) => (tcp, peer),
            AcceptEvent::Paused => {
                worker.metrics.add(Count::AcceptPauses, 1);
                continue;
            }
            AcceptEvent::Closed => break,
        };
        let max_connections = worker.config.limits.max_connections;
        // An evicted connection counts until it has closed, so the limit may be exceeded by an eighth meanwhile.
        let evict_idle = || {
            listener_counts.open_connections.get() < max_connections + max_connections / 8
                && worker.idle_clients.evict_oldest()
        };
        if listener_counts.open_connections.get() >= max_connections && !evict_idle() {
            worker.metrics.count_rejected(Reason::TooManyConnections.label());
            continue;
        }
        let connection_guard =
            CountGuard::new(&listener_counts, |listener_counts| &listener_counts.open_connections);
        let listener_kind = match classifier.listener_kind(&worker, &tcp) {
            Ok(listener_kind) => listener_kind,
            Err(reason) => {
                worker.metrics.count_rejected(reason.label());
                // An error means that the client has already closed.
                drop(tcp.set_zero_linger());
                continue;
            }
        };
        let worker = worker.clone();
        tokio::task::spawn_local(async move {
            connection::serve_connection(worker, listener_kind, tcp, peer).await;
            drop(connection_guard);
        });
    }
    // The drop of the sender reports the close, so the socket is closed before.
    drop(listener);
    drop(closed_sender);
}

/// The numbers of open listeners and open connections of a thread.
#[derive(Default)]
struct ListenerCounts {
    open_listeners: Cell<usize>,
    open_connections: Cell<usize>,
}

/// Counts a listener or a connection while it lives.
struct CountGuard {
    listener_counts: Rc<ListenerCounts>,
    counter: fn(&ListenerCounts) -> &Cell<usize>,
}

impl CountGuard {
    fn new(
        listener_counts: &Rc<ListenerCounts>,
        counter: fn(&ListenerCounts) -> &Cell<usize>,
    ) -> Self {
        counter(listener_counts).set(counter(listener_counts).get() + 1);
        Self { listener_counts: listener_counts.clone(), counter }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        let count = (self.counter)(&self.listener_counts);
        count.set(count.get() - 1);
    }
}

/// The polling period of a draining thread for open connections.
const DRAIN_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);
