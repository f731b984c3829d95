//! Driving a plan: workers that take turns, each with one request under way at a time.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::clock::{Alarm, Clock};
use crate::draw::Draw;
use crate::exchange::{Inbox, Response, connect, is_idle};
use crate::ledger::{Counters, Ledger, Outcome};
use crate::plan::{InvalidPlan, Pace, Plan};
use crate::report::{ErrorKind, Report};
use crate::request::Request;
use crate::schedule::{Schedule, Turn};

/// Sends what the plan says and reports what came of it. `progress` is updated ten times a
/// second.
///
/// Everything runs on the calling thread: give it a current-thread runtime of its own, and run
/// several, each with a part of the load, and [`Report::merge`] them if one core is not enough.
/// Dropping the future ends the run without a report.
///
/// # Errors
/// [`DriveError`] when the plan cannot be driven or the system has no timer left.
pub async fn drive(plan: Plan, progress: watch::Sender<Counters>) -> Result<Report, DriveError> {
    let crew = Rc::new(Crew::new(&plan)?);
    let local = LocalSet::new();
    local.run_until(work(&crew, plan.pace.connections(), &progress)).await;
    drop(local);
    let crew = Rc::into_inner(crew).expect("all workers have ended");
    Ok(crew.close(&progress))
}

/// A plan was not driven.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The plan itself cannot be driven.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// The kernel gave no timer.
    #[error("no timer to keep the pace with: raise the limit of open files")]
    Timer(#[source] io::Error),
}

/// Runs the workers until the last has ended.
async fn work(crew: &Rc<Crew>, size: usize, progress: &watch::Sender<Counters>) {
    let mut workers = JoinSet::new();
    for _ in 0..size {
        workers.spawn_local(Worker::new(crew).run());
    }
    let mut tick = interval(PROGRESS_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            ended = workers.join_next() => match ended {
                None => return,
                Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
                Some(_) => {}
            },
            _ = tick.tick() => {
                progress.send_replace(crew.ledger.borrow().counters(crew.clock.now()));
            }
        }
    }
}

/// What the workers of a run share.
struct Crew {
    clock: Clock,
    requests: Vec<Request>,
    /// The address of each request, as an index into `addresses`.
    places: Vec<usize>,
    addresses: Vec<SocketAddr>,
    timeout: Duration,
    warm_up: Duration,
    /// What a worker does after it could not connect; the clock paces an open run anyway.
    pause: Option<Duration>,
    /// Workers that are free queue here; the first of them waits for the next request.
    pacer: Mutex<Pacer>,
    ledger: RefCell<Ledger>,
}

struct Pacer {
    schedule: Schedule,
    draw: Draw,
    alarm: Alarm,
}

/// A request that a worker is to send.
#[derive(Clone, Copy)]
struct Turned {
    target: usize,
    due: Duration,
    measured: bool,
}

impl Crew {
    fn new(plan: &Plan) -> Result<Self, DriveError> {
        plan.check()?;
        let requests: Result<Vec<Request>, InvalidPlan> =
            plan.targets.iter().map(Request::new).collect();
        let mut addresses: Vec<SocketAddr> = plan.targets.iter().map(|t| t.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let place = |address| addresses.iter().position(|other| other == address).unwrap_or(0);
        Ok(Self {
            requests: requests?,
            places: plan.targets.iter().map(|target| place(&target.address)).collect(),
            timeout: plan.timeout,
            warm_up: plan.warm_up,
            pause: matches!(plan.pace, Pace::Closed { .. }).then_some(CONNECT_PAUSE),
            pacer: Mutex::new(Pacer {
                schedule: Schedule::new(plan),
                draw: Draw::new(plan.targets.iter().map(|target| target.weight), plan.seed),
                alarm: Alarm::new().map_err(DriveError::Timer)?,
            }),
            ledger: RefCell::new(Ledger::new(plan.targets.iter().map(|t| t.name.as_str()))),
            addresses,
            clock: Clock::start(),
        })
    }

    /// The next request, when it is due; `None` when the run is over.
    async fn next(&self) -> Option<Turned> {
        let mut pacer = self.pacer.lock().await;
        let Pacer { schedule, draw, alarm } = &mut *pacer;
        loop {
            let now = self.clock.now();
            match schedule.turn(now) {
                Turn::Over => return None,
                Turn::Due(due) => {
                    let measured = schedule.measures(due);
                    return Some(Turned { target: draw.next(), due, measured });
                }
                Turn::Wait(until) => {
                    if alarm.after(until.saturating_sub(now)).await.is_err() {
                        // Coarser, but the run goes on.
                        sleep(until.saturating_sub(now)).await;
                    }
                }
            }
        }
    }

    /// Charges what was due and never sent, and closes the books.
    fn close(self, progress: &watch::Sender<Counters>) -> Report {
        let elapsed = self.clock.now();
        let Pacer { mut schedule, mut draw, .. } = self.pacer.into_inner();
        let mut ledger = self.ledger.into_inner();
        while let Some(due) = schedule.left_over() {
            ledger.record(&Outcome {
                target: draw.next(),
                latency: elapsed.saturating_sub(due),
                result: Err(ErrorKind::Unsent),
                bytes_sent: 0,
                bytes_received: 0,
                measured: schedule.measures(due),
            });
        }
        progress.send_replace(ledger.counters(elapsed));
        ledger.into_report(elapsed.saturating_sub(self.warm_up))
    }
}

/// One request under way at a time, over connections that are kept, one for each address.
struct Worker {
    crew: Rc<Crew>,
    streams: Vec<Option<TcpStream>>,
    inbox: Inbox,
}

impl Worker {
    fn new(crew: &Rc<Crew>) -> Self {
        let streams = crew.addresses.iter().map(|_| None).collect();
        Self { crew: Rc::clone(crew), streams, inbox: Inbox::default() }
    }

    async fn run(mut self) {
        let crew = Rc::clone(&self.crew);
        while let Some(Turned { target, due, measured }) = crew.next().await {
            let Some(request) = crew.requests.get(target) else {
                return;
            };
            let place = crew.places.get(target).copied().unwrap_or(0);
            self.inbox.received = 0;
            let result = self.send(request, place).await;
            let latency = crew.clock.now().saturating_sub(due);
            crew.ledger.borrow_mut().record(&Outcome {
                target,
                latency,
                bytes_sent: result.map_or(0, |_| request.bytes.len() as u64),
                bytes_received: self.inbox.received,
                measured,
                result,
            });
            if let (Err(ErrorKind::Connect), Some(pause)) = (result, crew.pause) {
                sleep(pause).await;
            }
        }
    }

    /// Sends a request on the kept connection to that place, or on a new one.
    async fn send(&mut self, request: &Request, place: usize) -> Result<Response, ErrorKind> {
        let (Some(slot), Some(address)) =
            (self.streams.get_mut(place), self.crew.addresses.get(place))
        else {
            return Err(ErrorKind::Other);
        };
        let limit = self.crew.timeout;
        let mut stream = match slot.take().filter(is_idle) {
            Some(stream) => stream,
            None => match timeout(limit, connect(*address)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(_)) => return Err(ErrorKind::Connect),
                Err(_) => return Err(ErrorKind::ConnectTimeout),
            },
        };
        let response = timeout(limit, self.inbox.exchange(&mut stream, request))
            .await
            .map_err(|_| ErrorKind::Timeout)??;
        if response.reusable {
            *slot = Some(stream);
        }
        Ok(response)
    }
}

/// Often enough to look alive, too seldom to be measured.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Without it a closed run against a port that nobody listens on would do nothing but fail,
/// as fast as the kernel can.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
