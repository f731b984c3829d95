//! The corridor: one request, station by station, in one version of the world.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId, Reason};
use leno_telemetry::Count;
use leno_traffic::retry::{self, Attempt, Sent};

use super::body::Source;
use super::forward::{Progress, forward};
use super::grpc;
use super::request::{Aim, Request};
use super::rescue;
use super::respond::Responder;
use super::route::{Bound, Destination, route};
use crate::error::Failure;
use crate::record::Record;
use crate::session::{Entrance, Session};
use crate::upstream::{Destined, pick::pick};

/// One request on its way through the corridor, and what became of it so far.
pub(crate) struct Exchange<'a, 'io> {
    pub(crate) session: &'a Session,
    pub(crate) request: &'a Request<'a>,
    pub(crate) body: &'a mut Source<'io>,
    pub(crate) responder: &'a mut Responder<'io>,
    pub(crate) record: Record<'a>,
    pub(crate) progress: Progress,
    /// How long the upstream may take to agree to another protocol.
    pub(crate) agree_within: Option<Duration>,
    /// Headers that a lane adds at the entrance of a service.
    pub(crate) marks: Vec<(String, String)>,
}

impl<'a, 'io> Exchange<'a, 'io> {
    pub(crate) fn new(
        session: &'a Session,
        request: &'a Request<'a>,
        body: &'a mut Source<'io>,
        responder: &'a mut Responder<'io>,
    ) -> Self {
        let mut record = Record::open(session, "http");
        if let Some(line) = &mut record.line {
            line.request(request);
        }
        let progress = Progress::default();
        let marks = Vec::new();
        Self { session, request, body, responder, record, progress, agree_within: None, marks }
    }

    /// Carries the request to where it belongs and its answer back. False: the connection that
    /// it came on cannot go on.
    pub(crate) async fn run(mut self) -> bool {
        let Err(failure) = self.walk().await else {
            self.record.succeed();
            return true;
        };
        self.record.reason = Some(failure.reason);
        if self.progress.response_started.get() {
            // Half an answer is out: only a broken connection says that it is not whole.
            self.record.grpc.set(None);
            return false;
        }
        self.record.status = failure.reason.status();
        // Over HTTP/1.1 there is no gRPC.
        if !matches!(self.responder, Responder::Http1 { .. }) && self.request.is_grpc() {
            self.record.grpc.set(Some(grpc::status(failure.reason)));
        }
        if let Some(line) = &mut self.record.line {
            line.policy.clone_from(&failure.policy);
        }
        if !self.body.is_complete() || self.session.worker.is_draining() {
            self.responder.close_after();
        }
        let bodiless = self.request.method() == "HEAD";
        let workload = &self.session.worker.config.workload;
        rescue::answer(&failure, workload, self.responder, bodiless).await
    }

    /// The stations: route → authorize → pick endpoint → lease connection → stream → (retry).
    async fn walk(&mut self) -> Result<(), Failure> {
        let aim = self.request.aim()?;
        let bound = route(self.session, self.request, &aim, &mut self.record).await?;
        self.authorize(&aim, &bound)?;
        self.mark(&aim, &bound);
        // A limit on the request is none on what is said after an upgrade.
        self.agree_within = bound.timeout.filter(|_| self.request.upgrade);
        match bound.timeout.filter(|_| !self.request.upgrade) {
            None => self.attempts(&aim, &bound).await,
            Some(limit) => tokio::time::timeout(limit, self.attempts(&aim, &bound))
                .await
                .unwrap_or_else(|_| Err(Reason::RequestTimeout.into())),
        }
    }

    /// What comes from another sidecar needs a policy's permit; the application may ask.
    fn authorize(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        if self.session.is_inbound() {
            let access = &bound.scene.plans.access;
            let permit = self.session.permit(&bound.scene)?;
            let permit = access.request(&permit, &self.request.view(aim))?;
            if let Some(line) = &mut self.record.line {
                line.policy = access.policy(permit).cloned();
            }
        }
        Ok(())
    }

    /// What comes in may be marked as of a lane, for the application to carry on.
    fn mark(&mut self, aim: &Aim<'_>, bound: &Bound) {
        let Entrance::Inbound { port } = &self.session.entrance else { return };
        let lanes = &bound.scene.plans.lanes;
        if lanes.concern(*port) {
            let view = self.request.view(aim);
            let marks = lanes.mark(*port, &view, &mut || self.session.worker.draw());
            let missing = marks.missing(&view);
            self.marks = missing.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        }
    }

    /// The headers that are added to the request.
    pub(crate) fn added(&self) -> Vec<(&str, &[u8])> {
        self.marks.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
    }

    /// Sends the request, to another endpoint if the first fails in a way that permits it.
    async fn attempts(&mut self, aim: &Aim<'_>, bound: &Bound) -> Result<(), Failure> {
        let mut tried = None;
        loop {
            let reason = match self.attempt(aim, bound, &mut tried).await {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if !self.may_repeat(bound) || !retry::retry(reason, &self.attempt_so_far(aim)) {
                return Err(reason.into());
            }
            self.record.retries += 1;
            self.progress = Progress::default();
            self.session.worker.shard.add(Count::Retries, 1);
        }
    }

    /// There is one application. Whether another is asked is for the client's sidecar to say; a
    /// kept connection that was just closing proves nothing, and is ours alone.
    fn may_repeat(&self, bound: &Bound) -> bool {
        match bound.destination {
            Destination::Application(_) => self.progress.on_reused,
            Destination::Endpoints(_) => true,
        }
    }

    async fn attempt(
        &mut self,
        aim: &Aim<'_>,
        bound: &Bound,
        tried: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let destined = self.pick(&bound.destination, tried.as_ref())?;
        *tried = destined.endpoint();
        let _in_flight = destined.enter();
        if let Some(line) = &mut self.record.line {
            line.upstream = Some(destined.address());
        }
        let lease = destined.lease(&self.session.worker).await?;
        let outcome = forward(self, aim, (&destined, lease)).await;
        destined.learn(&self.session.worker, outcome);
        outcome
    }

    fn pick(
        &self,
        destination: &Destination,
        avoid: Option<&EndpointId>,
    ) -> Result<Destined, Reason> {
        match destination {
            Destination::Application(application) => Ok(Destined::Application(application.clone())),
            Destination::Endpoints(endpoints) => {
                let endpoints: &[Arc<Endpoint>] = endpoints;
                pick(&self.session.worker, endpoints, avoid).map(Destined::Upstream)
            }
        }
    }

    fn attempt_so_far(&self, aim: &Aim<'_>) -> Attempt {
        Attempt {
            sent: if self.progress.request_sent { Sent::HeadOrMore } else { Sent::Nothing },
            idempotent: retry::is_idempotent(aim.method),
            body_replayable: !self.progress.body_taken,
            response_started: self.progress.response_started.get(),
            number: u8::try_from(self.record.retries).unwrap_or(u8::MAX),
        }
    }
}
