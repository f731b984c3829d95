//! Hedging: a second attempt in parallel if the first is slow to respond.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use leno_model::{EndpointId, HedgeRule, Reason, ServiceName};
use leno_telemetry::{Count, GrpcStatus};
use leno_traffic::CompiledActions;
use leno_traffic::hedge::{Hedged, may_hedge};
use leno_traffic::outlier::Ending;
use leno_wire::http1::{Answers, Parsed, ResponseHead};

use super::{Exchange, ResponseObserver};
use crate::error::lost_reason;
use crate::http::again::{self, charge_retry};
use crate::http::forward::{Progress, forward_response};
use crate::http::grpc;
use crate::http::mirror::send_whole;
use crate::http::replay::Hold;
use crate::http::request::Aim;
use crate::http::route::{Bound, Destination};
use crate::http::trailers;
use crate::http2::cancel;
use crate::link::{LinkStream, ReceivedHead};
use crate::record::Hedge;
use crate::session::Session;
use crate::upstream::cluster::Trial;
use crate::upstream::gate::Retrying;
use crate::upstream::pick::pick_endpoint;
use crate::upstream::{Checkout, Destined, Timed, Upstream, Wait};
use crate::worker::Worker;

/// State shared by two parallel attempts.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// The endpoint of the first attempt.
    first: RefCell<Option<EndpointId>>,
    is_answered: Cell<bool>,
    is_sent: Cell<bool>,
    /// True if the first attempt has failed without a response.
    is_alone: Cell<bool>,
}

impl Beside {
    /// Records the endpoint of the first attempt.
    pub(crate) fn record_first(&self, to: Option<EndpointId>) {
        self.first.replace(to);
    }

    /// Records that the client receives the response of the first attempt.
    pub(crate) fn mark_answered(&self) {
        self.is_answered.set(true);
    }

    /// True if the second attempt was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent.get()
    }
}

/// The attempt that ends the race.
enum Raced {
    First(Result<(), Reason>),
    Second(Box<Answered>),
}

impl Exchange<'_, '_> {
    /// Returns the hedging rule that applies to the next attempt.
    #[inline]
    pub(super) fn hedge_rule<'b>(&self, aim: &Aim<'_>, bound: &'b Bound) -> Option<&'b HedgeRule> {
        let hedging = bound.unusual.as_ref()?.hedging.as_ref()?;
        // A second attempt would need a connection that does not belong to the client.
        if self.is_private() {
            return None;
        }
        self.may_hedge(&hedging.rule, aim, bound).then_some(&hedging.rule)
    }

    fn may_hedge(&self, rule: &HedgeRule, aim: &Aim<'_>, bound: &Bound) -> bool {
        let retry = self.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let request = Hedged {
            method: aim.method,
            waits: self.request.upgrade
                || self.request.head.find(&self.request.bytes, "expect").next().is_some(),
            keeps: bound.stay.as_ref().is_some_and(|stay| stay.session_endpoint().is_some()),
            retries: u8::try_from(self.record.retries).unwrap_or(u8::MAX),
        };
        may_hedge(rule, retry, &request)
    }

    /// Makes an attempt, and a second one if the first has no response in time. The client receives the first
    /// response; the other attempt is canceled, and does not count as a failure.
    pub(super) async fn send_hedged(
        &mut self,
        aim: &Aim<'_>,
        bound: &Bound,
        rule: &HedgeRule,
        tried: &mut Option<EndpointId>,
    ) -> Result<(), Reason> {
        let beside = Rc::new(Beside::default());
        let has_body = !self.body.is_empty();
        let session = self.session;
        let second = Second {
            session,
            worker: &session.worker,
            bound,
            head: self.link_head(aim, self.actions.as_deref()).freeze(),
            held: has_body.then(|| self.keep_body()),
            service: self.record.subject.service.clone(),
            actions: self.actions.clone(),
            is_grpc: self.request.is_grpc(),
            beside: beside.clone(),
        };
        if self.actions.as_ref().is_none_or(|actions| actions.retry.is_none()) {
            again::pay_in(&self.session.worker, second.service.as_ref());
        }
        self.observer = Some(ResponseObserver::Beside(beside));
        let raced = self.race_attempts(aim, bound, &mut *tried, rule.after, second).await;
        let answered = match raced {
            Raced::First(outcome) => return outcome,
            Raced::Second(answered) => *answered,
        };
        let Answered { upstream, trial, stream, timed, retrying: _retrying } = answered;
        // The first attempt is not retried, whatever its result; and all of the body was sent.
        self.retrying.give_back();
        self.body.skip_kept();
        self.record_hedge(Hedge::Won);
        session.worker.shard.add(Count::HedgesWon, 1);
        self.progress =
            Progress { request_sent: true, body_taken: has_body, ..Progress::default() };
        self.record.head.rejection.set(None);
        // The guards of the first attempt are dropped without an outcome.
        (self.timed, self.trial) = (Some(timed), trial);
        *tried = Some(upstream.endpoint.id.clone());
        if let Some(trace) = &mut self.record.trace {
            trace.upstream = Some(upstream.endpoint.address);
        }
        if let Some(stay) = &bound.stay {
            self.keeps = self.known_of(stay, tried.as_ref());
        }
        let outcome = forward_response(self, &stream).await;
        Destined::Upstream(upstream).record_outcome(&self.session.worker, outcome);
        self.end_attempt(outcome);
        outcome
    }

    /// Records the result of a second attempt, if there was one.
    pub(super) fn record_hedge(&mut self, hedge: Hedge) {
        let hedged = self.observer.take_if(|observer| observer.hedge_state().is_some());
        if hedged.as_ref().and_then(ResponseObserver::hedge_state).is_some_and(Beside::is_sent) {
            self.record.retries += 1;
            self.record.hedge = Some(hedge);
        }
    }

    /// Runs both attempts until one of them has a response, or both have failed.
    async fn race_attempts(
        &mut self,
        aim: &Aim<'_>,
        bound: &Bound,
        tried: &mut Option<EndpointId>,
        after: Duration,
        second: Second<'_>,
    ) -> Raced {
        let client = self.responder.client_connection();
        let beside = second.beside.clone();
        let mut first = Some(Box::pin(self.send_attempt(aim, bound, tried)));
        let mut second = Some(Box::pin(second.await_response(after)));
        let mut failed = None;
        let raced = poll_fn(|cx| {
            if let Some(attempt) = &mut first
                && let Poll::Ready(outcome) = attempt.as_mut().poll(cx)
            {
                first = None;
                match outcome {
                    Err(reason)
                        if second.is_some() && beside.is_sent() && !beside.is_answered.get() =>
                    {
                        failed = Some(reason);
                        beside.is_alone.set(true);
                    }
                    outcome => return Poll::Ready(Raced::First(outcome)),
                }
            }
            if beside.is_answered.get() && second.is_some() {
                let _abandoned = cancel::Attempt;
                cancel::Attempt::mark_abandoned();
                second = None;
            }
            if let Some(attempt) = &mut second
                && let Poll::Ready(answered) = attempt.as_mut().poll(cx)
            {
                second = None;
                match (answered, failed) {
                    (Some(answered), _) => return Poll::Ready(Raced::Second(Box::new(answered))),
                    (None, Some(reason)) => return Poll::Ready(Raced::First(Err(reason))),
                    (None, None) => {}
                }
            }
            match (&client, failed) {
                // The first attempt, which watched for a disconnect, is over.
                (Some(io), Some(_)) if io.poll_gone(cx).is_ready() => {
                    Poll::Ready(Raced::First(Err(Reason::DownstreamClosed)))
                }
                _ => Poll::Pending,
            }
        })
        .await;
        if !matches!(raced, Raced::First(Err(Reason::DownstreamClosed))) {
            let _abandoned = cancel::Attempt;
            cancel::Attempt::mark_abandoned();
            drop((first, second));
        }
        raced
    }
}

/// A second attempt before it is sent.
struct Second<'a> {
    session: &'a Session,
    worker: &'a Rc<Worker>,
    bound: &'a Bound,
    head: Bytes,
    /// The buffered body, if there is one.
    held: Option<Rc<Hold>>,
    service: Option<ServiceName>,
    actions: Option<Arc<CompiledActions>>,
    is_grpc: bool,
    beside: Rc<Beside>,
}

/// A second attempt with a response that has started.
struct Answered {
    upstream: Rc<Upstream>,
    trial: Option<Trial>,
    stream: LinkStream,
    timed: Timed,
    retrying: Retrying,
}

impl Second<'_> {
    /// Waits, makes the attempt and waits for its response; `None` if there is none.
    async fn await_response(self, after: Duration) -> Option<Answered> {
        tokio::time::sleep(after).await;
        let body = match &self.held {
            None => Vec::new(),
            Some(held) => {
                let kept = held.wait_for_body().await?;
                trailers::permitted_of(self.session, self.actions.as_deref(), kept)
            }
        };
        let cluster = self.bound.cluster.as_ref();
        let upstream = self.pick_endpoint()?;
        let retrying = Retrying::default();
        if !retrying.try_claim(cluster.map(|cluster| &**cluster)) {
            return None;
        }
        let trial = match cluster {
            None => None,
            Some(cluster) => Some(cluster.start_attempt(&upstream, Some(|it| &it.requests)).ok()?),
        };
        let timed = upstream.start_timed();
        match self.send_request(&upstream, trial.as_ref(), &timed, body).await {
            Ok(Some(stream)) => Some(Answered { upstream, trial, stream, timed, retrying }),
            // No request was sent, so the endpoint has not failed.
            Ok(None) => None,
            Err(ending) => {
                if let Ending::Broken(reason) = ending {
                    timed.record_failure(reason);
                }
                if let Some(trial) = trial {
                    trial.finish(self.worker, ending);
                }
                None
            }
        }
    }

    /// Picks an endpoint with a sidecar, other than that of the first attempt; `None` if there is none.
    fn pick_endpoint(&self) -> Option<Rc<Upstream>> {
        let first = self.beside.first.borrow().clone()?;
        let Destination::Endpoints(priorities) = &self.bound.destination else { return None };
        let (cluster, hashed) = (self.bound.cluster.as_deref(), self.bound.hashed.as_ref());
        let upstream =
            pick_endpoint(self.worker, priorities, cluster, hashed, Some(&first)).ok()?;
        let is_fit =
            upstream.endpoint.id != first && !upstream.is_plain() && !upstream.is_foreign();
        is_fit.then_some(upstream)
    }

    /// Sends the request, and waits for a response that may be forwarded; `None` if there is no link, or if the
    /// retry budget is exhausted.
    async fn send_request(
        &self,
        upstream: &Rc<Upstream>,
        trial: Option<&Trial>,
        timed: &Timed,
        body: Vec<crate::http::body::Piece>,
    ) -> Result<Option<LinkStream>, Ending> {
        let wait = Wait::for_cluster(self.bound.cluster.as_deref(), || Wait::Short);
        let checkout = upstream.acquire(self.worker, Some(timed), wait);
        let checkout = match &self.bound.cluster {
            None => checkout.await,
            Some(cluster) => cluster.wait_for_connection(checkout).await,
        };
        let Checkout::Link(link) = checkout.map_err(Ending::Broken)? else { return Ok(None) };
        if !charge_retry(self.worker, self.service.as_ref()) {
            return Ok(None);
        }
        self.beside.is_sent.set(true);
        self.worker.shard.add(Count::Hedges, 1);
        let sent = send_whole(self.worker, &link, &self.head, body).await;
        let stream = sent.map_err(Ending::Broken)?;
        timed.mark_waiting();
        let head = stream.final_head().await;
        let head = head.map_err(|lost| Ending::Broken(lost_reason(lost)))?;
        match self.check_response(&head, trial, timed) {
            Ok(()) => Ok(Some(stream)),
            Err(ending) => {
                stream.abandon();
                Err(ending)
            }
        }
    }

    /// Decides if a response may be forwarded. Malformed and retriable responses are not, nor are errors while
    /// the first attempt is pending: errors are often faster than successes.
    fn check_response(
        &self,
        received: &ReceivedHead,
        trial: Option<&Trial>,
        timed: &Timed,
    ) -> Result<(), Ending> {
        let mut head = ResponseHead::default();
        let bytes = &received.bytes;
        match head.parse(bytes, Answers::Other) {
            Ok(Parsed::Complete(_)) => {}
            Ok(Parsed::Partial) | Err(_) => return Err(Ending::Broken(Reason::UpstreamMalformed)),
        }
        if let (Some(trial), Some(reason)) = (trial, received.rejection_reason(&head)) {
            trial.record_rejection(reason);
        }
        let status = match self.is_grpc {
            true => grpc::stands_for(bytes, &head),
            false => head.status,
        };
        let rule = self.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let is_error = matches!(status, 429 | 500..) && !self.beside.is_alone.get();
        if is_error || rule.is_some_and(|rule| rule.codes.contains(&status)) {
            timed.record_response(status);
            let grpc = grpc::head_status(bytes, &head).map(GrpcStatus::code);
            return Err(Ending::Answered { status: head.status, grpc });
        }
        Ok(())
    }
}
