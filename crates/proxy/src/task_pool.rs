//! Task pool for link streams. A new task for each stream would be allocated, moved and freed, which costs more
//! than parsing its request.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::http::server::serve_stream;
use crate::link::Opened;
use crate::session::Session;

/// The idle tasks of one thread.
#[derive(Default)]
pub(crate) struct TaskPool(RefCell<Vec<Rc<Seat>>>);

/// A stream, and the session of its link.
struct Job {
    session: Rc<Session>,
    opened: Opened,
}

/// The slot in which an idle task receives its next job.
#[derive(Default)]
struct Seat {
    job: Cell<Option<Job>>,
    waker: Cell<Option<Waker>>,
}

impl TaskPool {
    /// Serves an HTTP stream in a pooled task: the one that was busy last, or a new one.
    pub(crate) fn serve_stream(session: Rc<Session>, opened: Opened) {
        let job = Job { session, opened };
        let idle = job.session.worker.task_pool.0.borrow_mut().pop();
        match idle {
            Some(seat) => {
                seat.job.set(Some(job));
                if let Some(waker) = seat.waker.take() {
                    waker.wake();
                }
            }
            None => drop(tokio::task::spawn_local(run_jobs(job))),
        }
    }

    /// Adds a task to the idle ones. Returns false if the pool is full.
    fn add_idle(&self, seat: &Rc<Seat>) -> bool {
        let mut idle = self.0.borrow_mut();
        let is_wanted = idle.len() < IDLE_MAX;
        if is_wanted {
            idle.push(seat.clone());
        }
        is_wanted
    }
}

async fn run_jobs(first: Job) {
    let worker = first.session.worker.clone();
    let seat = Rc::new(Seat::default());
    let mut next = Some(first);
    while let Some(Job { session, opened }) = next {
        serve_stream(&session, &opened).await;
        drop((session, opened));
        next = match worker.task_pool.add_idle(&seat) {
            true => Some(seat.next().await),
            false => None,
        };
    }
}

impl Seat {
    async fn next(&self) -> Job {
        poll_fn(|cx| match self.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// The maximum number of idle tasks: as many as one turn of the event loop can use.
const IDLE_MAX: usize = 64;
