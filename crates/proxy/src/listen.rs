//! The front doors of one data thread: accept, count, refuse beyond the limit.

use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;

use leno_listen::Listener;
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use crate::connection;
use crate::drain::Phase;
use crate::redirect::Gate;
use crate::worker::Worker;

/// What the control thread tells a data thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Accept connections here.
    Open {
        /// Names the listener until it is closed.
        gate: Gate,
        listener: std::net::TcpListener,
    },
    /// Accept no more connections there; those that are open go on. `closed` is dropped when its
    /// socket is.
    Close { gate: Gate, closed: mpsc::Sender<Infallible> },
}

/// Runs a data thread until it has drained or every sender of commands is gone.
pub(crate) async fn run(worker: Rc<Worker>, mut commands: mpsc::Receiver<Command>) {
    let open = Rc::new(Cell::new(0));
    let mut accepting: HashMap<Gate, JoinHandle<()>> = HashMap::new();
    let mut phase = worker.phase.clone();
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let ports = Rc::clone(&worker);
            let following = tokio::task::spawn_local(async move { ports.follow_ports().await });
            loop {
                let command = tokio::select! {
                    command = commands.recv() => command,
                    _ = phase.wait_for(|phase| *phase == Phase::Draining) => None,
                };
                match command {
                    Some(Command::Open { gate, listener }) => {
                        let accept = accept(worker.clone(), gate.clone(), listener, open.clone());
                        accepting.insert(gate, tokio::task::spawn_local(accept));
                    }
                    Some(Command::Close { gate, closed }) => {
                        if let Some(task) = accepting.remove(&gate) {
                            task.abort();
                            // It ends in no other way.
                            drop(task.await);
                        }
                        drop(closed);
                    }
                    None => break,
                }
            }
            for (_, task) in accepting.drain() {
                task.abort();
            }
            drain(&worker, &open).await;
            following.abort();
        })
        .await;
}

/// Lets what is under way finish, bounded in time.
async fn drain(worker: &Rc<Worker>, open: &Cell<usize>) {
    let finished = async {
        worker.quiet().await;
        worker.retire_upstreams();
        while open.get() > 0 {
            tokio::task::yield_now().await;
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    if tokio::time::timeout(worker.config.limits.drain_timeout, finished).await.is_err() {
        tracing::warn!(open = open.get(), "draining took too long: connections are cut off");
    }
}

async fn accept(
    worker: Rc<Worker>,
    gate: Gate,
    listener: std::net::TcpListener,
    open: Rc<Cell<usize>>,
) {
    let mut listener = match TcpListener::from_std(listener) {
        Ok(listener) => Listener::new("proxy", listener),
        Err(error) => return tracing::error!(?gate, %error, "a listener cannot be used"),
    };
    loop {
        let Some((tcp, peer)) = listener.accept_or_pause().await else {
            worker.shard.add(Count::AcceptPauses, 1);
            continue;
        };
        let max = worker.config.limits.connections_max;
        // Who is sent away needs a moment to go.
        let is_made_room = || open.get() < max + max / 8 && worker.idle.shed();
        if open.get() >= max && !is_made_room() {
            worker.shard.refuse(Reason::TooManyConnections.label());
            continue;
        }
        let guard = Open::new(&open);
        let entrance = match gate.entrance(&worker, &tcp) {
            Ok(entrance) => entrance,
            Err(reason) => {
                worker.shard.refuse(reason.label());
                // Failing means that the client is gone already, which is what we want.
                drop(tcp.set_zero_linger());
                continue;
            }
        };
        let worker = worker.clone();
        tokio::task::spawn_local(async move {
            connection::carry(worker, entrance, tcp, peer).await;
            drop(guard);
        });
    }
}

/// Counts one open connection while it lives.
struct Open(Rc<Cell<usize>>);

impl Open {
    fn new(open: &Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        Self(open.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// How often a draining thread looks whether the last connection has closed.
const DRAIN_LOOK: std::time::Duration = std::time::Duration::from_millis(10);
