//! Defines the start options of a proxy: addresses, limits and timeouts. The command line creates them; they do not
//! change while the proxy runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use leno_identity::Roots;
use leno_model::{AccessLog, ClientRanges, TrustDomain, Upgrades, WorkloadName};

use crate::application_metrics::ApplicationMetrics;
use crate::control_address::ControlAddress;
use crate::dns_proxy::ClusterDomain;
use crate::probes::Probes;

/// Start options of a proxy.
#[derive(Debug, Clone)]
pub struct Config {
    /// The workload of this proxy, `namespace/name`.
    pub workload: WorkloadName,
    /// The trust domain of the mesh; needed before the first certificate exists.
    pub trust_domain: TrustDomain,
    /// The addresses of the control planes. The proxy connects to one of them, and to the next one if that
    /// fails.
    pub control: Vec<ControlAddress>,
    /// The state directory (mode 0700), which contains the key, the certificate and the last applied snapshot.
    pub state: PathBuf,
    /// The file of the one-time join bundle. It is read if there is no valid certificate, and removed after the
    /// join.
    pub token_file: Option<PathBuf>,
    /// A token that the platform renews, used instead of a join bundle whenever there is no valid certificate.
    pub account_token: Option<AccountToken>,
    /// The way in which the application's traffic reaches the proxy.
    pub interception: Interception,
    /// The DNS server for redirected queries of the application; `None` if queries are not redirected.
    pub dns_proxy: Option<DnsProxy>,
    /// The loopback address of the admin endpoint; with port 0 the kernel selects the port.
    pub admin: SocketAddr,
    /// The address of health checks and of application probes for the kubelet; `None` disables it.
    pub health: Option<SocketAddr>,
    /// The clients that may read metrics at the health address.
    pub metrics_from: ClientRanges,
    /// The application probes that the proxy runs at the health address.
    pub probes: Probes,
    /// The address of the application's own metrics, which are appended to the proxy's metrics.
    pub application_metrics: Option<ApplicationMetrics>,
    /// The file of CA certificates (PEM) with which collectors and check services are verified; `None` uses the
    /// system's certificates.
    pub collector_ca: Option<PathBuf>,
    /// The number of data threads, each with its own single-threaded runtime.
    pub cores: usize,
    /// The protocols to which a connection may be upgraded.
    pub upgrades: Upgrades,
    /// The access log on standard output.
    pub access_log: AccessLogSource,
    /// The behavior if the certificate expires because no control plane renewed it in time.
    pub on_expiry: OnExpiry,
    /// The limits and timeouts, which have defaults for every proxy.
    pub limits: Limits,
}

/// A platform token that identifies its workload: in Kubernetes, by its pod and service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountToken {
    /// The file of the token: read at each join, and never removed.
    pub file: PathBuf,
    /// The trust roots of the servers that may receive the token.
    pub roots: TrustedRoots,
}

/// The roots that a proxy verifies the control plane with before it has a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedRoots {
    /// Roots that are passed at the start.
    Known(Roots),
    /// A PEM file, read at each join.
    File(PathBuf),
}

/// The way in which the application's traffic reaches the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interception {
    /// Through listeners: one for each configured service, and an HTTP proxy listener.
    Listeners {
        /// The address on which the sidecar accepts mutual TLS, with one listener per application port.
        inbound: IpAddr,
        /// The HTTP proxy listener (absolute-form and `CONNECT`); `None` disables it.
        http_proxy: Option<SocketAddr>,
    },
    /// By redirection in the network namespace of the workload.
    Redirect {
        /// The address of this namespace for other workloads.
        address: IpAddr,
        /// The listener of redirected outbound connections.
        outbound: SocketAddr,
        /// The listener of outbound connections redirected over IPv6; if present, services have IPv6 addresses
        /// as well.
        outbound_v6: Option<SocketAddr>,
        /// The listener of redirected inbound connections.
        inbound: SocketAddr,
        /// The listener of inbound connections over the IP version that `address` does not have, if other
        /// workloads use both versions.
        inbound_other: Option<SocketAddr>,
        /// The listener of the application's DNS queries. Without it another server answers them, and
        /// destinations are identified by their address, with the help of the control plane.
        dns: Option<SocketAddr>,
        /// The firewall mark on the proxy's own connections, which exempts them from redirection. Without it
        /// they are identified by the user ID of the proxy.
        mark: Option<u32>,
    },
    /// No interception: the proxy has no application and serves the ports of a gateway.
    Gateway {
        /// The address on which all ports of the gateway listen; `::` stands for all addresses of both IP
        /// versions.
        bind: IpAddr,
    },
}

impl Interception {
    /// Creates a redirection in the network namespace with this address, with the same ports as OSM.
    #[must_use]
    pub fn redirect_to(address: IpAddr, versions: IpVersions) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self::Redirect {
            address,
            outbound: SocketAddr::new(loopback, OUTBOUND_PORT),
            outbound_v6: (versions == IpVersions::Both)
                .then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, OUTBOUND_PORT))),
            inbound: SocketAddr::new(address, INBOUND_PORT),
            inbound_other: None,
            dns: Some(SocketAddr::new(loopback, DNS_PORT)),
            mark: Some(FIREWALL_MARK),
        }
    }

    /// Creates a redirection in a pod with this address: the sidecar has no privilege to mark its connections,
    /// and the DNS server of the cluster answers queries.
    #[must_use]
    pub fn in_pod(address: IpAddr, versions: IpVersions) -> Self {
        let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
        let (unspecified, other_unspecified) = match address {
            IpAddr::V4(_) => (v4, Some(v6).filter(|_| versions == IpVersions::Both)),
            IpAddr::V6(_) => (v6, Some(v4)),
        };
        match Self::redirect_to(address, versions) {
            Self::Redirect { address, outbound, outbound_v6, .. } => Self::Redirect {
                address,
                outbound,
                outbound_v6,
                inbound: SocketAddr::new(unspecified, INBOUND_PORT),
                inbound_other: other_unspecified.map(|other| SocketAddr::new(other, INBOUND_PORT)),
                dns: None,
                mark: None,
            },
            other @ (Self::Listeners { .. } | Self::Gateway { .. }) => other,
        }
    }

    /// True if destinations are identified by their address alone, since another server answers DNS queries.
    #[must_use]
    pub fn identifies_by_address(&self) -> bool {
        matches!(self, Self::Redirect { dns: None, .. })
    }
}

/// Options of the DNS server for redirected queries of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsProxy {
    /// The listener addresses, for UDP and TCP.
    pub listen_addresses: Vec<SocketAddr>,
    /// The domain of service names.
    pub domain: ClusterDomain,
    /// The file with the upstream resolvers for names that the mesh does not know.
    pub resolvers: PathBuf,
}

impl DnsProxy {
    /// Creates the options for a pod: queries arrive at the port that `leno redirect --dns` redirects to,
    /// unknown names are forwarded to the resolvers in `/etc/resolv.conf`, and that file also gives the domain
    /// unless one is passed.
    #[must_use]
    pub fn in_pod(domain: Option<ClusterDomain>, versions: IpVersions) -> Self {
        let resolvers = PathBuf::from("/etc/resolv.conf");
        let read_domain = || {
            let text = std::fs::read_to_string(&resolvers).unwrap_or_default();
            ClusterDomain::from_resolv_conf(&text).unwrap_or_default()
        };
        let domain = domain.unwrap_or_else(read_domain);
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, DNS_PROXY_PORT));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, DNS_PROXY_PORT));
        let listen_addresses = match versions {
            IpVersions::V4 => vec![v4],
            IpVersions::Both => vec![v4, v6],
        };
        Self { listen_addresses, domain, resolvers }
    }
}

/// The IP versions of the application's redirected connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpVersions {
    /// Only IPv4.
    V4,
    /// IPv4 and IPv6.
    Both,
}

/// The port of redirected outbound connections, as in OSM.
pub const OUTBOUND_PORT: u16 = 15_001;
/// The port of redirected inbound connections, as in OSM.
pub const INBOUND_PORT: u16 = 15_003;
/// The port of redirected DNS queries.
pub const DNS_PROXY_PORT: u16 = 15_053;
/// The firewall mark of a proxy's own connections, which redirection exempts.
pub const FIREWALL_MARK: u32 = 0x1e90;
/// The port of DNS servers (RFC 1035 §4.2).
const DNS_PORT: u16 = 53;

/// The behavior of a sidecar when its certificate expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExpiry {
    /// The proxy continues to serve traffic that needs no certificate; peers reject its new connections.
    Continue,
    /// Drains and exits with an error, which its supervisor detects.
    Fail,
}

/// The source of the access log's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogSource {
    /// The settings of the control plane.
    Mesh,
    /// The start options of the sidecar: this log, or none.
    Own(Option<AccessLog>),
}

/// Bounds on the resources that clients can make a proxy hold, and on the time that it waits for them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The maximum number of accepted connections per data thread, and of connections to the application.
    /// Further accepted connections are closed at once; further connections to the application are not opened.
    pub max_connections: usize,
    /// The maximum number of clients per data thread that have not finished a TLS handshake or begun a request;
    /// at most half of them from one IPv4 address or IPv6 /64. Beyond the limit, the client that has waited
    /// longest is disconnected.
    pub max_handshakes: usize,
    /// The time from the first byte of a head to its last.
    pub head_timeout: Duration,
    /// The time for a TLS handshake, or for the first bytes of a connection if its protocol is detected.
    pub handshake_timeout: Duration,
    /// The time to wait for the first bytes of a connection before it is treated as opaque.
    pub detect_timeout: Duration,
    /// The time for a connection attempt to an endpoint, including TLS.
    pub connect_timeout: Duration,
    /// The time for which the first request to a service waits for the control plane.
    pub discovery_timeout: Duration,
    /// The time without use after which a service is unsubscribed.
    pub idle_subscription: Duration,
    /// The time after which a kept-alive connection without a request, a TCP connection without a byte in
    /// either direction, and a link without a stream are closed.
    pub idle_connection: Duration,
    /// The time after which a kept-alive connection of an external client to a gateway is closed without a
    /// request.
    pub idle_external_client: Duration,
    /// The time without use after which a kept-alive connection frees the memory that serves a request, until
    /// the next request.
    pub rest_after: Duration,
    /// The maximum time without progress of a body: for a client that stops in the middle of a request that has
    /// no response yet, and for a receiver that does not read.
    pub body_stall_timeout: Duration,
    /// The time for requests in progress to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// The time for a last request on a connection that is idle or new when the drain begins: more than the
    /// pause between two requests of a busy client. At most half of `drain_timeout`.
    pub last_request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_handshakes: 1024,
            head_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            detect_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(3),
            discovery_timeout: Duration::from_secs(5),
            idle_subscription: Duration::from_secs(600),
            idle_connection: Duration::from_secs(3600),
            idle_external_client: Duration::from_secs(75),
            rest_after: Duration::from_millis(100),
            body_stall_timeout: Duration::from_secs(60),
            last_request_timeout: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Returns the IP address at which the sidecar probes and scrapes the application: the pod's address, which the
    /// kubelet would use, or loopback if nothing is redirected.
    pub(crate) fn probe_address(&self) -> IpAddr {
        match &self.interception {
            Interception::Redirect { address, .. } => *address,
            Interception::Listeners { .. } | Interception::Gateway { .. } => {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }
        }
    }

    /// Creates the options of a sidecar for `workload`, with listeners on loopback and all defaults.
    #[must_use]
    pub fn for_sidecar(workload: WorkloadName, trust_domain: TrustDomain, state: PathBuf) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            workload,
            trust_domain,
            control: Vec::new(),
            state,
            token_file: None,
            account_token: None,
            interception: Interception::Listeners {
                inbound: loopback,
                http_proxy: Some(SocketAddr::new(loopback, 0)),
            },
            dns_proxy: None,
            admin: SocketAddr::new(loopback, 0),
            health: None,
            metrics_from: ClientRanges::None,
            probes: Probes::default(),
            application_metrics: None,
            collector_ca: None,
            cores: 1,
            upgrades: Upgrades::default(),
            access_log: AccessLogSource::Mesh,
            on_expiry: OnExpiry::Continue,
            limits: Limits::default(),
        }
    }
}
