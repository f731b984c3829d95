//! A gateway for a workload with a sidecar, one without, and a service without endpoints.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{
    Access, Endpoint, Gateway, GatewayCertificate, GatewayListener, GatewayPort, GatewayPortRules,
    HostRules, Name, PathMatch, Protocol, RequestMatch, RouteKind, RouteRule, RuleActions,
    ServiceConfig, ServiceName, TcpRule, WeightedBackend, WorkloadConfig,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, server};

use crate::config::Limits;
use crate::session::ListenerKind;
use crate::tests::fixture::{Mesh, PORT, Setup, meshed_endpoint, proxy_config, service_config};

/// Ports of gateways; in tests the kernel selects the actual port.
pub(super) const HTTP: u16 = 8080;
pub(super) const HTTPS: u16 = 443;
pub(super) const TLS: u16 = 8443;
pub(super) const TCP: u16 = 5432;

/// A mesh with a gateway in place of the client.
pub(super) struct GatewayFixture {
    pub(super) mesh: Mesh,
    plain: (Protocol, RefCell<Vec<Endpoint>>),
}

impl GatewayFixture {
    /// Creates a gateway: `ratings` has a sidecar and the first address, `plain` has none and the other
    /// address.
    pub(super) async fn new(meshed: SocketAddr, protocol: Protocol, plain: SocketAddr) -> Self {
        Self::with_limits(Setup::default().limits, meshed, protocol, plain).await
    }

    /// Creates a gateway like [`Self::new`], with these limits.
    pub(super) async fn with_limits(
        limits: Limits,
        meshed: SocketAddr,
        protocol: Protocol,
        plain: SocketAddr,
    ) -> Self {
        let setup = Setup { protocol, limits, ..Default::default() };
        let mesh = Mesh::new(meshed, setup).await;
        Self { mesh, plain: (protocol, RefCell::new(vec![unmeshed_endpoint("plain-1", plain)])) }
    }

    /// Adds an endpoint to `plain`.
    pub(super) fn add_endpoint_at(&self, address: SocketAddr) {
        self.plain.1.borrow_mut().push(unmeshed_endpoint("plain-2", address));
    }

    /// Replaces the ports of the gateway.
    pub(super) fn set_ports(&self, ports: Vec<(u16, GatewayPortRules)>) {
        let ports = ports.into_iter().map(|(port, serves)| GatewayPort { port, serves });
        let gateway = Gateway { name: "bookinfo/edge".parse().unwrap(), ports: ports.collect() };
        let workload_config = WorkloadConfig {
            gateway: Some(Arc::new(gateway)),
            ..proxy_config("productpage", Access::AllowAll)
        };
        let (protocol, endpoints) = &self.plain;
        let meshed = service_config(*protocol, &[self.mesh.server_endpoint()]);
        let plain = named_service("plain", service_config(*protocol, &endpoints.borrow()));
        self.mesh.client.apply_config(
            workload_config,
            vec![meshed, plain, named_service("idle", service_config(*protocol, &[]))],
        );
    }

    /// Returns the address of a port for external clients.
    pub(super) async fn port_address(&self, port: u16) -> SocketAddr {
        self.mesh.client.open_listener(ListenerKind::Gateway { port }).await
    }
}

fn service_name(name: &str) -> ServiceName {
    ServiceName::new("bookinfo", name).unwrap()
}

fn named_service(name: &str, service_config: ServiceConfig) -> ServiceConfig {
    ServiceConfig { name: service_name(name), ..service_config }
}

fn unmeshed_endpoint(workload: &str, address: SocketAddr) -> Endpoint {
    let mut endpoint = meshed_endpoint(workload, address, "nobody");
    endpoint.id.service = service_name("plain");
    Endpoint { account: None, ..endpoint }
}

pub(super) fn http_port(port: u16, listeners: Vec<GatewayListener>) -> (u16, GatewayPortRules) {
    (port, GatewayPortRules::Http(listeners))
}

pub(super) fn gateway_listener(
    name: &str,
    hostname: &str,
    hosts: Vec<HostRules>,
) -> GatewayListener {
    GatewayListener {
        name: Name::new(name).unwrap(),
        hostname: (!hostname.is_empty()).then(|| hostname.parse().unwrap()),
        certificates: Vec::new(),
        hosts,
    }
}

pub(super) fn host_rules(hostname: &str, rules: Vec<RouteRule>) -> HostRules {
    let hostname = (!hostname.is_empty()).then(|| hostname.parse().unwrap());
    HostRules { hostname, rules }
}

pub(super) fn path_rule(path: &str, backends: Vec<WeightedBackend>) -> RouteRule {
    let path = PathMatch::Prefix(path.to_owned());
    RouteRule {
        route: "bookinfo/route".parse().unwrap(),
        matches: vec![RequestMatch { path, ..RequestMatch::default() }],
        backends,
        request_timeout: None,
        actions: RuleActions::default(),
        kind: RouteKind::Http,
    }
}

pub(super) fn backends_to(name: &str) -> Vec<WeightedBackend> {
    vec![WeightedBackend::new(service_name(name), PORT, 1)]
}

pub(super) fn tcp_rule(backends: Vec<WeightedBackend>) -> TcpRule {
    TcpRule {
        route: "bookinfo/route".parse().unwrap(),
        kind: RouteKind::Tcp,
        backends,
        ungranted_weight: 0,
    }
}

/// Returns a self-signed certificate.
pub(super) fn self_signed(names: &[&str]) -> GatewayCertificate {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    GatewayCertificate {
        chain: certificate.cert.pem(),
        key: certificate.signing_key.serialize_pem(),
    }
}

/// Opens a session in which the server must have this certificate, or fail.
pub(super) async fn connect_tls(
    address: SocketAddr,
    name: &str,
    certificate: &GatewayCertificate,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.chain.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// Accepts a TLS session as a server with this certificate.
pub(super) async fn accept_tls(
    tcp: TcpStream,
    certificate: &GatewayCertificate,
) -> std::io::Result<server::TlsStream<TcpStream>> {
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes());
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config)).accept(tcp).await
}
