//! What a proxy is told at its start: addresses, limits and times, parsed once by the caller.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use leno_identity::Roots;
use leno_model::{AccessLog, ClientRanges, TrustDomain, Upgrades, WorkloadName};

use crate::application_metrics::ApplicationMetrics;
use crate::control_address::ControlAddress;
use crate::look_ups::ClusterDomain;
use crate::probes::Probes;

/// What a proxy is told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// The workload it serves.
    pub workload: WorkloadName,
    /// The mesh's trust domain; needed before the first certificate is there.
    pub trust_domain: TrustDomain,
    /// Control planes, tried in turn.
    pub control: Vec<ControlAddress>,
    /// Where key, certificate and last good snapshot are kept (mode 0700).
    pub state: PathBuf,
    /// The one-time join bundle; read when there is no valid certificate, then removed.
    pub token_file: Option<PathBuf>,
    /// A token that the platform keeps fresh, used in place of a bundle whenever there is no valid
    /// certificate.
    pub account_token: Option<AccountToken>,
    /// How the application's traffic reaches the proxy.
    pub interception: Interception,
    /// Answering the application's name look-ups, where they are redirected too; otherwise they are
    /// left alone.
    pub look_ups: Option<LookUps>,
    /// The loopback address of the admin page; port 0 lets the kernel choose.
    pub admin: SocketAddr,
    /// Where anybody may ask whether it is well, and the kubelet about the application; nowhere when
    /// absent.
    pub health: Option<SocketAddr>,
    /// The clients that get metrics there.
    pub metrics_from: ClientRanges,
    /// The probes of the application that it makes for whoever asks there.
    pub probes: Probes,
    /// Where the application exposes metrics of its own, to be told beside ours.
    pub application_metrics: Option<ApplicationMetrics>,
    /// Roots, as PEM, that vouch for collectors; those of the system when absent.
    pub collector_roots: Option<PathBuf>,
    /// Data threads, each a single-threaded runtime of its own.
    pub cores: usize,
    /// The protocols that a connection may change to.
    pub upgrades: Upgrades,
    /// Which requests are logged, on standard output.
    pub access_log: LogChoice,
    /// What it does when its certificate expires, since no control plane renewed it in time.
    pub on_expiry: OnExpiry,
    /// Limits and times.
    pub limits: Limits,
}

/// A token of the platform's that says which workload its holder is: in Kubernetes, that of a pod
/// and its service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountToken {
    /// Where it is: read at each join, and left there.
    pub file: PathBuf,
    /// Whom the proxy shows it to.
    pub roots: TrustedRoots,
}

/// The roots that a proxy verifies the control plane by before it has a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedRoots {
    /// These.
    Known(Roots),
    /// What is in a file of PEM then.
    File(PathBuf),
}

/// How the application's traffic reaches the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interception {
    /// Through doors: fixed ones, and an HTTP proxy door at this address.
    Doors {
        /// Where the sidecar accepts mutual TLS, one listener per application port.
        inbound: IpAddr,
        /// The HTTP proxy door (absolute-form and `CONNECT`); none when absent.
        http_proxy: Option<SocketAddr>,
    },
    /// By redirection in the workload's own network namespace.
    Redirect {
        /// The address that other workloads reach this namespace by.
        address: IpAddr,
        /// Where redirected outbound connections arrive.
        outbound: SocketAddr,
        /// The same for IPv6; services have addresses of that version when it is given.
        outbound_v6: Option<SocketAddr>,
        /// Where redirected inbound connections arrive.
        inbound: SocketAddr,
        /// The same over the other version of IP, where others reach the namespace by both.
        inbound_other: Option<SocketAddr>,
        /// Where the application's name look-ups arrive. Without it somebody else answers them, and
        /// destinations are recognised by their address, with the control plane's help.
        dns: Option<SocketAddr>,
        /// The firewall mark on the proxy's own connections, which are not redirected again. Without
        /// it they are recognised by the user that the proxy runs as.
        mark: Option<u32>,
    },
    /// None: it is the proxy of a gateway, and listens at the ports of that, at this address.
    Gateway {
        /// The address; `::` stands for all of both versions.
        bind: IpAddr,
    },
}

impl Interception {
    /// Redirection in a namespace reached at `address`, at the ports that OSM's users look for.
    #[must_use]
    pub fn redirected(address: IpAddr, versions: Versions) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self::Redirect {
            address,
            outbound: SocketAddr::new(loopback, OUTBOUND_PORT),
            outbound_v6: (versions == Versions::Both)
                .then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, OUTBOUND_PORT))),
            inbound: SocketAddr::new(address, INBOUND_PORT),
            inbound_other: None,
            dns: Some(SocketAddr::new(loopback, DNS_PORT)),
            mark: Some(MARK),
        }
    }

    /// The same in a pod: the sidecar has no rights that would let it mark its connections, and the
    /// cluster answers name look-ups.
    #[must_use]
    pub fn in_pod(address: IpAddr, versions: Versions) -> Self {
        let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
        let (any, other) = match address {
            IpAddr::V4(_) => (v4, Some(v6).filter(|_| versions == Versions::Both)),
            IpAddr::V6(_) => (v6, Some(v4)),
        };
        match Self::redirected(address, versions) {
            Self::Redirect { address, outbound, outbound_v6, .. } => Self::Redirect {
                address,
                outbound,
                outbound_v6,
                inbound: SocketAddr::new(any, INBOUND_PORT),
                inbound_other: other.map(|other| SocketAddr::new(other, INBOUND_PORT)),
                dns: None,
                mark: None,
            },
            other @ (Self::Doors { .. } | Self::Gateway { .. }) => other,
        }
    }

    /// Whether destinations are recognised by their address alone.
    #[must_use]
    pub fn is_by_address(&self) -> bool {
        matches!(self, Self::Redirect { dns: None, .. })
    }
}

/// How the application's name look-ups are answered, which arrive by redirection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUps {
    /// Where they arrive, over UDP and TCP.
    pub at: Vec<SocketAddr>,
    /// Under which services have names.
    pub domain: ClusterDomain,
    /// The file that names those who answer what the mesh does not know.
    pub resolvers: PathBuf,
}

impl LookUps {
    /// As in a pod: where `leno intercept --dns` leads them, passed on by `/etc/resolv.conf`, which
    /// tells the domain too unless one is given.
    #[must_use]
    pub fn in_pod(domain: Option<ClusterDomain>, versions: Versions) -> Self {
        let resolvers = PathBuf::from("/etc/resolv.conf");
        let searched = || {
            let text = std::fs::read_to_string(&resolvers).unwrap_or_default();
            ClusterDomain::searched(&text).unwrap_or_default()
        };
        let domain = domain.unwrap_or_else(searched);
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, LOOK_UP_PORT));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, LOOK_UP_PORT));
        let at = match versions {
            Versions::V4 => vec![v4],
            Versions::Both => vec![v4, v6],
        };
        Self { at, domain, resolvers }
    }
}

/// Which connections of the application are redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    /// Those over IPv4.
    V4,
    /// Those over IPv4 and IPv6.
    Both,
}

/// Where redirected outbound connections arrive.
pub const OUTBOUND_PORT: u16 = 15_001;
/// Where redirected inbound connections arrive.
pub const INBOUND_PORT: u16 = 15_003;
/// Where redirected look-ups of names arrive.
pub const LOOK_UP_PORT: u16 = 15_053;
/// The firewall mark of a proxy's own connections, which redirection leaves alone.
pub const MARK: u32 = 0x1e90;
/// Where resolvers ask (RFC 1035 §4.2).
const DNS_PORT: u16 = 53;

/// What a sidecar does when its certificate expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExpiry {
    /// It goes on with what needs no certificate; peers refuse its new connections.
    Continue,
    /// It drains and ends with an error, so that whoever supervises it notices.
    Fail,
}

/// Who says which requests are logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogChoice {
    /// The control plane.
    Mesh,
    /// Whoever started the sidecar: these, or none.
    Own(Option<AccessLog>),
}

/// Bounds on what strangers can make a proxy hold or wait for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections accepted per data thread, and connections to the application behind it; further
    /// ones are closed at once, or not made.
    pub connections_max: usize,
    /// Clients per data thread that are awaited before they have finished a TLS handshake or begun a
    /// request, half of them of one IPv4 address or IPv6 /64. Beyond it the one that was awaited longest is
    /// closed.
    pub handshakes_max: usize,
    /// From the first byte of a head to its last.
    pub head_timeout: Duration,
    /// A TLS handshake, or the first bytes of a connection whose protocol is to be detected.
    pub handshake_timeout: Duration,
    /// How long the first bytes of a connection are waited for before it is taken as opaque.
    pub detect_timeout: Duration,
    /// A connection attempt to an endpoint, TLS included.
    pub connect_timeout: Duration,
    /// How long the first request to a service waits for the control plane.
    pub discovery_timeout: Duration,
    /// After this time without use a service is unsubscribed.
    pub idle_subscription: Duration,
    /// A kept-alive connection without a request, a TCP connection without a byte either way, and
    /// a link without a stream are closed after this time.
    pub idle_connection: Duration,
    /// The same of a stranger's kept-alive connection to a gateway.
    pub idle_stranger: Duration,
    /// A kept-alive connection that has not been used for this long gives back what it needs to
    /// serve a request, until the next one comes.
    pub rest_after: Duration,
    /// How long a body may stand still: a client that stops in the middle of its request and is
    /// not answered yet, or anybody who takes nothing of what waits for him.
    pub body_stall_timeout: Duration,
    /// How long requests under way may take to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// The time for a last request on a connection that is idle when the drain begins, or new: more than the pause
    /// between two requests of a busy client. No more than half of `drain_timeout`.
    pub last_call: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            handshakes_max: 1024,
            head_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            detect_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(3),
            discovery_timeout: Duration::from_secs(5),
            idle_subscription: Duration::from_secs(600),
            idle_connection: Duration::from_secs(3600),
            idle_stranger: Duration::from_secs(75),
            rest_after: Duration::from_millis(100),
            body_stall_timeout: Duration::from_secs(60),
            last_call: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Where the application is probed: where the kubelet would, or where it is when nothing is
    /// redirected.
    pub(crate) fn probed_at(&self) -> IpAddr {
        match &self.interception {
            Interception::Redirect { address, .. } => *address,
            Interception::Doors { .. } | Interception::Gateway { .. } => {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }
        }
    }

    /// A sidecar with doors on loopback and every default, for `workload`.
    #[must_use]
    pub fn sidecar(workload: WorkloadName, trust_domain: TrustDomain, state: PathBuf) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            workload,
            trust_domain,
            control: Vec::new(),
            state,
            token_file: None,
            account_token: None,
            interception: Interception::Doors {
                inbound: loopback,
                http_proxy: Some(SocketAddr::new(loopback, 0)),
            },
            look_ups: None,
            admin: SocketAddr::new(loopback, 0),
            health: None,
            metrics_from: ClientRanges::None,
            probes: Probes::default(),
            application_metrics: None,
            collector_roots: None,
            cores: 1,
            upgrades: Upgrades::default(),
            access_log: LogChoice::Mesh,
            on_expiry: OnExpiry::Continue,
            limits: Limits::default(),
        }
    }
}
