//! The fleet: one sidecar, and perhaps one application, for each workload of this machine.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Workload, WorkloadName};
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinSet};
use tokio::time::sleep;

use super::application::{self, Signals, State};
use super::launcher::Launcher;
use super::placement::Placement;
use super::restart::Restarts;
use super::sidecar;
use crate::proxy::Report;

/// The workloads of this machine, each with its processes.
pub(super) struct Fleet {
    launcher: Rc<Launcher>,
    wanted: BTreeMap<WorkloadName, Arc<Workload>>,
    members: BTreeMap<WorkloadName, Member>,
    tasks: JoinSet<WorkloadName>,
    news: Rc<Notify>,
}

/// One workload and its processes.
struct Member {
    workload: watch::Sender<Arc<Workload>>,
    stage: watch::Sender<Stage>,
    reports: watch::Receiver<Option<Report>>,
    application: watch::Receiver<State>,
    /// The task that keeps its processes.
    task: task::Id,
}

/// How far a member is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It is wanted.
    Running,
    /// Its application stops; its sidecar stays until it is told.
    Quiet,
    /// Its application stops, then its sidecar drains.
    Leaving,
}

/// How a workload is doing.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    /// The workload.
    pub(crate) workload: Arc<Workload>,
    /// What its sidecar reported, while that runs.
    pub(crate) report: Option<Report>,
    /// What its application is doing.
    application: State,
}

impl Standing {
    /// Whether its doors are open and its application runs, if it has one.
    pub(crate) fn is_up(&self) -> bool {
        let runs = match self.application {
            State::Foreign | State::Running(_) => true,
            State::Waiting | State::Stopped => false,
        };
        self.report.is_some() && runs
    }

    /// The process of its application, while that runs.
    pub(crate) fn application_pid(&self) -> Option<i32> {
        match self.application {
            State::Running(pid) => Some(pid),
            State::Foreign | State::Waiting | State::Stopped => None,
        }
    }
}

#[cfg(test)]
impl Standing {
    /// A workload of which nothing runs yet.
    pub(super) fn waiting(workload: Arc<Workload>) -> Self {
        Self { workload, report: None, application: State::Waiting }
    }
}

impl Fleet {
    /// An empty fleet.
    pub(super) fn new(launcher: Rc<Launcher>) -> Self {
        Self {
            launcher,
            wanted: BTreeMap::new(),
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            news: Rc::new(Notify::new()),
        }
    }

    /// Starts, changes and stops members until they are those of the registry.
    pub(super) fn want(&mut self, workloads: &[Workload]) {
        let wanted = |workload: &Workload| (workload.name.clone(), Arc::new(workload.clone()));
        self.wanted = workloads.iter().map(wanted).collect();
        self.converge();
    }

    /// Resolves when something about the members may have changed.
    pub(super) async fn news(&mut self) {
        tokio::select! {
            () = self.news.notified() => {}
            Some(departed) = self.tasks.join_next() => {
                match departed {
                    Ok(name) => drop(self.members.remove(&name)),
                    Err(error) => {
                        tracing::error!(%error, "the supervisor of a workload failed");
                        self.members.retain(|_, member| member.task != error.id());
                    }
                }
                // It may be wanted again, as somebody else.
                self.converge();
            }
        }
    }

    /// How the members are doing.
    pub(super) fn standing(&self) -> Vec<Standing> {
        let standing = |member: &Member| Standing {
            workload: member.workload.borrow().clone(),
            report: member.reports.borrow().clone(),
            application: *member.application.borrow(),
        };
        self.members.values().map(standing).collect()
    }

    /// Stops all applications, then drains all sidecars: the last requests of an application
    /// still have a way.
    pub(super) async fn stop(&mut self) {
        self.wanted.clear();
        for member in self.members.values() {
            member.advance(Stage::Quiet);
        }
        for member in self.members.values() {
            let mut application = member.application.clone();
            // The sender is gone only when the member is.
            drop(application.wait_for(|state| *state == State::Stopped).await);
        }
        for member in self.members.values() {
            member.advance(Stage::Leaving);
        }
        while self.tasks.join_next().await.is_some() {}
        self.members.clear();
    }

    fn converge(&mut self) {
        for (name, member) in &self.members {
            let current = member.workload.borrow().clone();
            match self.wanted.get(name) {
                // A certificate names the account: with another one it is somebody else.
                Some(wanted) if wanted.account == current.account => {
                    if *wanted != current {
                        member.workload.send_replace(Arc::clone(wanted));
                    }
                }
                _ => member.advance(Stage::Leaving),
            }
        }
        for (name, workload) in &self.wanted {
            if self.members.contains_key(name) {
                continue;
            }
            let with = (Rc::clone(&self.launcher), Rc::clone(&self.news));
            let member = Member::start(with, workload, &mut self.tasks);
            self.members.insert(name.clone(), member);
        }
    }
}

impl Member {
    fn start(
        (launcher, news): (Rc<Launcher>, Rc<Notify>),
        workload: &Arc<Workload>,
        tasks: &mut JoinSet<WorkloadName>,
    ) -> Self {
        let name = workload.name.clone();
        let (workload, workloads) = watch::channel(Arc::clone(workload));
        let (stage, stages) = watch::channel(Stage::Running);
        let (report, reports) = watch::channel(None);
        let (state, application) = watch::channel(State::Waiting);
        let mut posts = Posts { workloads, stages, report, state, news };
        let task = tasks.spawn_local(async move {
            if let Some(placement) = posts.place(&launcher, &name).await {
                posts.keep(&launcher, &placement).await;
            }
            launcher.placements().release(&name).await;
            name
        });
        Self { workload, stage, reports, application, task: task.id() }
    }

    fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let further = *stage < to;
            *stage = to.max(*stage);
            further
        });
    }
}

/// The ends of a member's channels that belong to its task.
struct Posts {
    workloads: watch::Receiver<Arc<Workload>>,
    stages: watch::Receiver<Stage>,
    report: watch::Sender<Option<Report>>,
    state: watch::Sender<State>,
    news: Rc<Notify>,
}

impl Posts {
    /// Where the member's processes run, as soon as there is a place; `None` when it is not
    /// wanted any more.
    async fn place(&mut self, launcher: &Launcher, name: &WorkloadName) -> Option<Placement> {
        let mut restarts = Restarts::default();
        loop {
            let error = match launcher.placements().place(name).await {
                Ok(placement) => return Some(placement),
                Err(error) => error,
            };
            let delay = restarts.after(Duration::ZERO);
            tracing::error!(%name, ?delay, "there is no place for it, tried again: {error:#}");
            tokio::select! {
                () = sleep(delay) => {}
                _ = self.stages.wait_for(|stage| *stage >= Stage::Quiet) => return None,
            }
        }
    }

    /// Keeps both processes until the member has left.
    async fn keep(self, launcher: &Launcher, placement: &Placement) {
        let first = self.workloads.borrow().clone();
        let (stop_application, application_stops) = watch::channel(false);
        let (stop_sidecar, sidecar_stops) = watch::channel(false);
        let signals = Signals {
            workload: self.workloads,
            reports: self.report.subscribe(),
            stop: application_stops,
        };
        let leave = leave(self.stages, self.state.subscribe(), |what| match what {
            Part::Application => drop(stop_application.send_replace(true)),
            Part::Sidecar => drop(stop_sidecar.send_replace(true)),
        });
        let tell = tell(self.report.subscribe(), self.state.subscribe(), &self.news);
        let both = async {
            tokio::join!(
                application::keep(launcher, placement, signals, &self.state),
                sidecar::keep((launcher, placement), &first, &self.report, sidecar_stops),
                leave,
            )
        };
        tokio::select! {
            _ = both => {}
            () = tell => {}
        }
        self.news.notify_one();
    }
}

/// A process of a member.
#[derive(Debug, Clone, Copy)]
enum Part {
    Application,
    Sidecar,
}

/// Stops the parts of a member in their order, as it advances from stage to stage.
async fn leave(
    mut stages: watch::Receiver<Stage>,
    mut application: watch::Receiver<State>,
    stop: impl Fn(Part),
) {
    // A fleet that is gone wants nothing either.
    drop(stages.wait_for(|stage| *stage >= Stage::Quiet).await);
    stop(Part::Application);
    drop(stages.wait_for(|stage| *stage >= Stage::Leaving).await);
    drop(application.wait_for(|state| *state == State::Stopped).await);
    stop(Part::Sidecar);
}

/// Makes news of what the processes of a member do; never ends.
async fn tell(
    mut reports: watch::Receiver<Option<Report>>,
    mut application: watch::Receiver<State>,
    news: &Notify,
) {
    loop {
        tokio::select! {
            Ok(()) = reports.changed() => {}
            Ok(()) = application.changed() => {}
            else => std::future::pending().await,
        }
        news.notify_one();
    }
}
