//! What the kubelet and Prometheus are told over plain HTTP: alive, ready, and the metrics.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use leno_identity::OwnNames;
use leno_listen::{ConcurrencyLimit, Source};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{Questions, ask_owner, metrics};
use crate::answering::{Answering, foreign, serve_all, text};
use crate::control::Control;
use crate::owner::Question;
use crate::share::Share;

/// A listener that anybody may ask: it is there before the control plane is, and says so. Dropping
/// it closes it at once.
#[derive(Debug)]
pub struct Health {
    address: SocketAddr,
    standing: watch::Sender<Standing>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// How the control plane stands.
#[derive(Debug, Clone)]
enum Standing {
    /// Not, for this reason.
    Unready(Cow<'static, str>),
    /// Up; metrics are asked for here.
    Ready(Questions),
}

impl Health {
    /// Begins to answer at an address; with port 0 the kernel chooses.
    ///
    /// # Errors
    /// When the address is taken, or not ours.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = leno_listen::bind(address)?;
        let address = listener.local_addr()?;
        let standing = watch::Sender::new(Standing::Unready("the sources are not read yet".into()));
        let stop = watch::Sender::new(false);
        let share = Share::new(METRICS_PAUSE);
        let scrapes = ConcurrencyLimit::new(SCRAPES_MAX, SCRAPES_OF_SOURCE_MAX);
        let desk = Arc::new(Desk { standing: standing.subscribe(), share, scrapes });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_all(listener, CONNECTIONS_MAX, desk, stop.subscribe()));
        Ok(Self { address, standing, stop, tasks })
    }

    /// Where it answers.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the control plane waits for before it serves.
    pub fn waiting(&self, reason: String) {
        self.standing.send_replace(Standing::Unready(reason.into()));
    }

    /// The control plane has read its sources, and serves.
    pub fn ready(&self, control: &Control) {
        self.standing.send_replace(Standing::Ready(control.questions()));
    }

    /// The control plane is going: nobody new is to come to it.
    pub fn ending(&self) {
        self.standing.send_replace(Standing::Unready("the control plane is shutting down".into()));
    }

    /// Completes the responses in progress, within a bound, and ends.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// What answers.
#[derive(Debug)]
struct Desk {
    standing: watch::Receiver<Standing>,
    /// Any client that the network lets in may scrape.
    share: Share,
    /// Scrapes that wait for their turn: the kubelet needs a connection at the same time.
    scrapes: ConcurrencyLimit,
}

impl Answering for Desk {
    type Body = Full<Bytes>;

    const SERVER: &'static str = "health";

    const LIFE_MAX: Option<Duration> = Some(Duration::from_secs(60));

    async fn answer(&self, request: Request<Incoming>, source: Source) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, INDEX.to_owned());
        }
        // Prometheus may know the pod by the name of a Service.
        let named = (request.uri(), request.headers());
        if let Some(response) = foreign(named, OwnNames::Cluster, false) {
            match request.uri().path() {
                _ if response.status() == StatusCode::BAD_REQUEST => return response,
                "/metrics" => return response,
                // A probe may name any host: it gets the status alone, without the reason (DNS rebinding).
                "/readyz" => {
                    let status = match *self.standing.borrow() {
                        Standing::Ready(_) => StatusCode::OK,
                        Standing::Unready(_) => StatusCode::SERVICE_UNAVAILABLE,
                    };
                    return text(status, format!("{status}\n"));
                }
                _ => {}
            }
        }
        let standing = self.standing.borrow().clone();
        match (request.uri().path(), standing) {
            ("/livez", _) => text(StatusCode::OK, "alive\n".to_owned()),
            ("/readyz", Standing::Ready(_)) => text(StatusCode::OK, "ready\n".to_owned()),
            ("/metrics", Standing::Ready(questions)) => match metrics(&request) {
                Ok(question) => self.scrape(&questions, question, source).await,
                Err(problem) => text(StatusCode::BAD_REQUEST, problem),
            },
            ("/readyz" | "/metrics", Standing::Unready(reason)) => {
                text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
            }
            _ => text(StatusCode::NOT_FOUND, INDEX.to_owned()),
        }
    }
}

impl Desk {
    /// The metrics; 503 while too many scrapes wait for their turn.
    async fn scrape(
        &self,
        questions: &Questions,
        question: Question,
        source: Source,
    ) -> Response<Full<Bytes>> {
        let Some(_permit) = self.scrapes.acquire(source) else {
            return text(StatusCode::SERVICE_UNAVAILABLE, BUSY.to_owned());
        };
        let _turn = self.share.turn().await;
        ask_owner(questions, question).await
    }
}

const INDEX: &str = "leno control: GET /livez /readyz /metrics\n";

/// The pause after a page of metrics, in multiples of its duration: scrapes take a fifth of the owner's
/// time at most.
const METRICS_PAUSE: u32 = 4;

const BUSY: &str = "too many scrapes are in progress: scrape less often\n";

/// Connections at once; more wait.
const CONNECTIONS_MAX: usize = 64;

/// Scrapes in progress at once; more are rejected. Connections that wait for a request make room for others,
/// but these do not, so they are few of the connections: a handful of collectors scrape a control plane.
const SCRAPES_MAX: usize = 8;

/// The same of one source: no client keeps all others from scraping.
const SCRAPES_OF_SOURCE_MAX: usize = SCRAPES_MAX / 2;
