//! Defines the configuration of a control plane: addresses, files, limits and times.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::MAX_SUBSCRIPTIONS;
use leno_identity::{AuthoritySource, LEAF_LIFETIME, TOKEN_LIFETIME};
use leno_model::WorkloadName;
use tokio::sync::watch;

use crate::certify::AUTHORITY_DIRECTORY;
use crate::explanation::Explainer;
use crate::keys::KeyAccess;
use crate::review::Reviewer;

/// Configuration of a control plane.
#[derive(Debug, Clone)]
pub struct Config {
    /// The listen address for proxies; with port 0 the kernel selects the port.
    pub listen: SocketAddr,
    /// The address in join bundles if proxies reach the control plane at another address than `listen`; `None` if they
    /// reach it at `listen`.
    pub advertise: Option<SocketAddr>,
    /// Other control planes of the same mesh, with the same files and authority. Join bundles list them too.
    pub peers: Vec<SocketAddr>,
    /// Further control planes, discovered at run time; join bundles do not list them.
    pub discovered_peers: Option<watch::Receiver<BTreeSet<SocketAddr>>>,
    /// The reviewer of tokens of another issuer; if absent, only this mesh's own tokens are accepted.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// The data directory (mode 0700), with the admin socket.
    pub data: PathBuf,
    /// The directory of the authority's root and of unused tokens that several control planes share; `data` if absent.
    pub shared: Option<PathBuf>,
    /// The directory of an intermediate authority that an external issuer, such as cert-manager, maintains. If absent,
    /// the control plane has its own root.
    pub issuer: Option<PathBuf>,
    /// The YAML files and directories with the objects of the mesh.
    pub sources: Vec<PathBuf>,
    /// CA certificates (PEM) used to verify JWKS servers and the metrics collector; the system's roots if
    /// absent.
    pub jwks_ca: Option<PathBuf>,
    /// The servers and files that JWKS may be read from.
    pub key_access: KeyAccess,
    /// The lifetime of certificates, including that of the control plane.
    pub certificate_lifetime: Duration,
    /// The lifetime of an unused join token.
    pub token_lifetime: Duration,
    /// The pod of the control plane, as reported to a metrics collector; its machine and port if absent.
    pub pod: Option<WorkloadName>,
    /// The interval of sidecars' traffic reports; none if absent.
    pub report_interval: Option<Duration>,
    /// The address of the browser page; none if absent.
    pub page: Option<SocketAddr>,
    /// The dry-run engine for requests, for the browser page and `leno explain`; none if absent.
    pub explainer: Option<Explainer>,
    /// True if a supervisor in this process runs the sidecar of each workload.
    pub supervised: bool,
    /// True in Kubernetes, where sidecars are containers of Pods.
    pub kubernetes: bool,
    /// Timeouts and intervals.
    pub times: Times,
    /// Resource limits against unauthenticated clients.
    pub limits: Limits,
}

/// Timeouts and intervals of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The debounce time: a change is sent when no other change follows for this long.
    pub debounce: Duration,
    /// The maximum debounce time: a change is sent at the latest after this long.
    pub max_debounce: Duration,
    /// The grace period in which endpoints stay after their sidecar's stream has broken.
    pub disconnect_grace: Duration,
    /// The startup grace period: the maximum time for sidecars to reconnect, in which clients keep the
    /// endpoints of those that have not reported yet.
    pub startup_grace: Duration,
    /// The time that an authenticated proxy waits for the sources to report its workload.
    pub join_timeout: Duration,
    /// The drain timeout of connections at shutdown.
    pub drain_timeout: Duration,
}

/// Resource limits of a control plane against unauthenticated clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum concurrent connections; more wait in the kernel.
    pub connections: usize,
    /// Maximum concurrent connections that wait for their peer: for a part of the TLS handshake, for `Hello`, or for a
    /// join. At the limit, the connection that has waited longest is closed.
    pub waiting_connections: usize,
    /// Maximum of these connections per IPv4 address or IPv6 /64.
    pub waiting_connections_per_source: usize,
    /// The timeout for the first byte of a TLS handshake.
    pub first_byte_timeout: Duration,
    /// The timeout for a whole TLS handshake.
    pub handshake_timeout: Duration,
    /// Maximum service subscriptions of one proxy.
    pub subscriptions: usize,
}

impl Config {
    /// Returns the configuration of a control plane on loopback, with all defaults.
    #[must_use]
    pub fn new(data: PathBuf, sources: Vec<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            advertise: None,
            peers: Vec::new(),
            discovered_peers: None,
            reviewer: None,
            data,
            shared: None,
            issuer: None,
            sources,
            jwks_ca: None,
            key_access: KeyAccess::for_operator(),
            certificate_lifetime: LEAF_LIFETIME,
            token_lifetime: TOKEN_LIFETIME,
            pod: None,
            report_interval: Some(REPORT_INTERVAL),
            page: None,
            explainer: None,
            supervised: false,
            kubernetes: false,
            times: Times::default(),
            limits: Limits::default(),
        }
    }

    /// Returns the directory of the authority and unused tokens.
    pub(crate) fn shared_directory(&self) -> &Path {
        self.shared.as_deref().unwrap_or(&self.data)
    }

    /// Returns the source of the authority.
    pub(crate) fn authority_source(&self) -> AuthoritySource {
        match &self.issuer {
            Some(directory) => AuthoritySource::Intermediate(directory.clone()),
            None => AuthoritySource::BuiltIn(self.shared_directory().join(AUTHORITY_DIRECTORY)),
        }
    }

    /// Returns the file of all intermediates that members trust: the current one and earlier ones.
    pub(crate) fn intermediates_file(&self) -> PathBuf {
        self.shared_directory().join(INTERMEDIATES_FILE)
    }

    /// Returns the path of the admin socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.data.join(SOCKET_FILE)
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            debounce: Duration::from_millis(20),
            max_debounce: Duration::from_millis(200),
            disconnect_grace: Duration::from_secs(10),
            // A sidecar waits up to 5 s between two attempts, and each connection may take 3 s.
            startup_grace: Duration::from_secs(10),
            // Together with the maximum duration of a token review, less than the client's timeout.
            join_timeout: Duration::from_secs(4),
            drain_timeout: Duration::from_secs(3),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            waiting_connections: 1024,
            waiting_connections_per_source: 512,
            first_byte_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(10),
            subscriptions: MAX_SUBSCRIPTIONS,
        }
    }
}

/// The default interval of traffic reports: short enough to follow live, and cheap with thousands of sidecars.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The file of intermediates that members trust, in the directory of the tokens.
const INTERMEDIATES_FILE: &str = "issuers.pem";

/// The file name of the admin socket in the data directory.
const SOCKET_FILE: &str = "control.sock";
