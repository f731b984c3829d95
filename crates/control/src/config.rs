//! What a control plane is told at its start: addresses, files, limits and times.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::SUBSCRIPTIONS_MAX;
use leno_identity::{AuthoritySource, LEAF_LIFETIME, TOKEN_LIFETIME};
use leno_model::WorkloadName;
use tokio::sync::watch;

use crate::certify::AUTHORITY_DIRECTORY;
use crate::keys::KeyAccess;
use crate::playground::Playground;
use crate::review::Reviewer;

/// What a control plane is told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens for proxies; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The address that join bundles name, when proxies reach it by another one than `listen`.
    pub advertise: Option<SocketAddr>,
    /// Other control planes of the same mesh, on the same files and with the same authority. Join
    /// bundles name them too.
    pub peers: Vec<SocketAddr>,
    /// Further ones, that come and go while this one runs; join bundles do not name them.
    pub found_peers: Option<watch::Receiver<BTreeSet<SocketAddr>>>,
    /// Who knows whose a token is that was not made here; only our own are taken when absent.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// Where the admin socket is, and what else is kept (mode 0700).
    pub data: PathBuf,
    /// Where the authority's root and unused tokens are kept, when control planes share them;
    /// `data` when absent.
    pub shared: Option<PathBuf>,
    /// Where an intermediate authority is that somebody else makes; its own root when absent.
    pub issuer: Option<PathBuf>,
    /// Files and directories of YAML with the facts.
    pub sources: Vec<PathBuf>,
    /// Who vouches for servers that keys of issuers are read from, and for the collector that metrics are
    /// pushed to: a file of PEM; the system's roots when absent.
    pub key_roots: Option<PathBuf>,
    /// The servers and files that keys of issuers may be read from.
    pub key_access: KeyAccess,
    /// How long certificates live, its own included.
    pub certificate_lifetime: Duration,
    /// How long a join token may wait for its use.
    pub token_lifetime: Duration,
    /// The pod that it is, as a collector of metrics is told; its machine and its port when absent.
    pub pod: Option<WorkloadName>,
    /// How often sidecars tell what they counted; not at all when absent.
    pub report_every: Option<Duration>,
    /// Where the page for browsers is; none when absent.
    pub page: Option<SocketAddr>,
    /// What explains requests, on that page and to `leno explain`; nothing does when absent.
    pub playground: Option<Playground>,
    /// A supervisor in this process runs the sidecar of each workload.
    pub supervised: bool,
    /// It runs in Kubernetes, where sidecars are containers of Pods.
    pub kubernetes: bool,
    /// How long it waits for what.
    pub times: Times,
    /// Bounds on what strangers can make it hold.
    pub limits: Limits,
}

/// How long a control plane waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// A change is sent when nothing else has changed for this long,
    pub quiet: Duration,
    /// and at the latest after this long.
    pub quiet_max: Duration,
    /// How long endpoints stay when the stream of their sidecar ended without a word.
    pub grace: Duration,
    /// How long after the start, at most, sidecars that were not heard of yet may be on their way
    /// back: clients keep their endpoints that long.
    pub settle: Duration,
    /// How long somebody who proved who it is waits for the sources to tell of its workload.
    pub newcomer: Duration,
    /// How long connections may take to end at a shutdown.
    pub drain: Duration,
}

/// Bounds on what strangers can make a control plane hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; more wait in the kernel.
    pub connections: usize,
    /// Connections at once that wait for a peer without a proven identity: for a part of its handshake,
    /// its `Hello` or its join. Beyond it the one that has waited longest is ended.
    pub strangers: usize,
    /// Of these, how many may be of one IPv4 address or one IPv6 /64.
    pub strangers_per_source: usize,
    /// Until the first byte of a TLS handshake.
    pub first_byte: Duration,
    /// All of a TLS handshake.
    pub handshake: Duration,
    /// Services that one proxy may be subscribed to.
    pub subscriptions: usize,
}

impl Config {
    /// A control plane on loopback with every default.
    #[must_use]
    pub fn new(data: PathBuf, sources: Vec<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            advertise: None,
            peers: Vec::new(),
            found_peers: None,
            reviewer: None,
            data,
            shared: None,
            issuer: None,
            sources,
            key_roots: None,
            key_access: KeyAccess::of_operator(),
            certificate_lifetime: LEAF_LIFETIME,
            token_lifetime: TOKEN_LIFETIME,
            pod: None,
            report_every: Some(REPORT_EVERY),
            page: None,
            playground: None,
            supervised: false,
            kubernetes: false,
            times: Times::default(),
            limits: Limits::default(),
        }
    }

    /// Where the authority and unused tokens are.
    pub(crate) fn keep(&self) -> &Path {
        self.shared.as_deref().unwrap_or(&self.data)
    }

    /// Where the authority comes from.
    pub(crate) fn authority(&self) -> AuthoritySource {
        match &self.issuer {
            Some(dir) => AuthoritySource::Issuer(dir.clone()),
            None => AuthoritySource::Own(self.keep().join(AUTHORITY_DIRECTORY)),
        }
    }

    /// The file of the intermediates that members trust, old and new.
    pub(crate) fn pins(&self) -> PathBuf {
        self.keep().join(PINS_FILE)
    }

    /// Where the admin socket is.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.data.join(SOCKET_FILE)
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(20),
            quiet_max: Duration::from_millis(200),
            grace: Duration::from_secs(10),
            // A sidecar waits up to 5 s between two attempts, and each connection may take 3 s.
            settle: Duration::from_secs(10),
            // With what finding out whose a token is may take, less than the answer is waited for.
            newcomer: Duration::from_secs(4),
            drain: Duration::from_secs(3),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            strangers: 1024,
            strangers_per_source: 512,
            first_byte: Duration::from_secs(2),
            handshake: Duration::from_secs(10),
            subscriptions: SUBSCRIPTIONS_MAX,
        }
    }
}

/// Often enough to watch, and seldom enough not to be noticed with thousands of sidecars.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The file of intermediates that members trust, in the directory of the tokens.
const PINS_FILE: &str = "issuers.pem";

/// The admin socket's name in the data directory.
const SOCKET_FILE: &str = "control.sock";
