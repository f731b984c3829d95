//! Pools the tasks that serve the HTTP streams of links. Spawning and freeing a task for each stream would cost more
//! than parsing its request.

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

/// A stream to serve, and the session of its link.
struct StreamJob {
    session: Rc<Session>,
    opened_stream: OpenedStream,
}

/// The slot in which an idle task receives its next job.
#[derive(Default)]
struct IdleTask {
    /// The next job, until the task takes it.
    job: Cell<Option<StreamJob>>,
    /// Wakes the task; `None` while it is not waiting.
    waker: Cell<Option<Waker>>,
}

impl TaskPool {
    /// Serves an HTTP stream in the idle task that was busy last, or in a new task.
    pub(crate) fn serve_stream(session: Rc<Session>, opened_stream: OpenedStream) {
        let job = StreamJob { session, opened_stream };
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

    /// Adds a task to the idle tasks. Returns false if the pool is full; the task must then end.
    fn add_idle(&self, idle_task: &Rc<IdleTask>) -> bool {
        let mut idle_tasks = self.0.borrow_mut();
        let has_room = idle_tasks.len() < MAX_IDLE_TASKS;
        if has_room {
            idle_tasks.push(idle_task.clone());
        }
        has_room
    }
}

/// Runs jobs: after each job, the task waits in the pool for the next job, or ends if the pool is full.
async fn run_jobs(first_job: StreamJob) {
    let worker = first_job.session.worker.clone();
    let idle_task = Rc::new(IdleTask::default());
    let mut next_job = Some(first_job);
    while let Some(StreamJob { session, opened_stream }) = next_job {
        serve_stream(&session, &opened_stream).await;
        // An idle task must not keep its last stream open.
        drop((session, opened_stream));
        next_job = match worker.task_pool.add_idle(&idle_task) {
            true => Some(idle_task.next_job().await),
            false => None,
        };
    }
}

impl IdleTask {
    /// Waits for the next job.
    async fn next_job(&self) -> StreamJob {
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
