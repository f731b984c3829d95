//! Pool of tasks that serve link streams. Spawning and freeing a task for each stream would cost more than
//! parsing its request.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::http::server::serve_stream;
use crate::link::OpenedStream;
use crate::session::Session;

/// The idle tasks of one thread.
#[derive(Default)]
pub(crate) struct TaskPool(RefCell<Vec<Rc<IdleTask>>>);

/// A stream, and the session of its link.
struct StreamJob {
    session: Rc<Session>,
    opened: OpenedStream,
}

/// The slot in which an idle task receives its next job.
#[derive(Default)]
struct IdleTask {
    job: Cell<Option<StreamJob>>,
    waker: Cell<Option<Waker>>,
}

impl TaskPool {
    /// Serves an HTTP stream in a pooled task: the one that was busy last, or a new one.
    pub(crate) fn serve_stream(session: Rc<Session>, opened: OpenedStream) {
        let job = StreamJob { session, opened };
        let available_task = job.session.worker.task_pool.0.borrow_mut().pop();
        match available_task {
            Some(idle_task) => {
                idle_task.job.set(Some(job));
                if let Some(waker) = idle_task.waker.take() {
                    waker.wake();
                }
            }
            None => drop(tokio::task::spawn_local(run_jobs(job))),
        }
    }

    /// Adds a task to the idle ones. Returns false if the pool is full: then the task ends.
    fn add_idle(&self, idle_task: &Rc<IdleTask>) -> bool {
        let mut idle_tasks = self.0.borrow_mut();
        let has_room = idle_tasks.len() < MAX_IDLE_TASKS;
        if has_room {
            idle_tasks.push(idle_task.clone());
        }
        has_room
    }
}

/// Runs jobs: after each, the task waits in the pool for the next one, or ends if the pool is full.
async fn run_jobs(first_job: StreamJob) {
    let worker = first_job.session.worker.clone();
    let idle_task = Rc::new(IdleTask::default());
    let mut next_job = Some(first_job);
    while let Some(StreamJob { session, opened }) = next_job {
        serve_stream(&session, &opened).await;
        drop((session, opened));
        next_job = match worker.task_pool.add_idle(&idle_task) {
            true => Some(idle_task.next().await),
            false => None,
        };
    }
}

impl IdleTask {
    async fn next(&self) -> StreamJob {
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
const MAX_IDLE_TASKS: usize = 64;
