//! A simulated proxy, which joins the mesh, and records and acknowledges its configuration updates.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use leno_control::Control;
use leno_discovery::{
    ALPN, ConfigUpdate, DiscoveryError, Hello, InboundListener, IssuedCertificate, JOIN_ALPN,
    JoinError, ProxyRequest, Subscriber, follow_control_plane, join,
};
use leno_identity::{
    CertificateBundle, Credential, JoinBundle, PrivateKey, Roots, client_config, control_id,
    join_client_config,
};
use leno_model::{ServiceName, TrustDomain, WorkloadName};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A workload's key and certificate.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) credential: Credential,
}

impl Identity {
    /// Joins with a new token of this control plane.
    pub(crate) async fn join(control: &Control, name: &WorkloadName) -> Result<Self, JoinError> {
        let bundle = control.mint_bundle(name).unwrap();
        join_with(&bundle, control.listen_address(), name).await
    }

    /// Requests the next certificate, over a stream.
    pub(crate) async fn renew_certificate(&self, proxy: &Proxy) -> Self {
        let key = PrivateKey::generate();
        let (reply_sender, certificate) = oneshot::channel();
        proxy
            .send_request(ProxyRequest::Renew {
                csr: key.certificate_request(),
                reply: reply_sender,
            })
            .await;
        Self::new(key, certificate.await.unwrap().unwrap())
    }

    fn new(key: PrivateKey, issued: IssuedCertificate) -> Self {
        let roots = Roots::new(issued.roots.into_iter().map(Into::into).collect()).unwrap();
        let chain = issued.chain.into_iter().map(Into::into).collect();
        let issued = CertificateBundle::new(chain, roots).unwrap();
        Self { credential: Credential::new(key, issued).unwrap() }
    }
}

pub(crate) async fn join_with(
    bundle: &JoinBundle,
    address: SocketAddr,
    name: &WorkloadName,
) -> Result<Identity, JoinError> {
    let server_id = control_id(&bundle.trust_domain);
    let config = join_client_config(&bundle.roots, &server_id, &[JOIN_ALPN]).unwrap();
    let key = PrivateKey::generate();
    let stream = connect_tls(address, config).await;
    let certificate = join(stream, &bundle.token, name, &key.certificate_request()).await?;
    Ok(Identity::new(key, certificate))
}

/// Joins from another address of this machine.
pub(crate) async fn join_from(
    source: Ipv4Addr,
    bundle: &JoinBundle,
    address: SocketAddr,
    name: &WorkloadName,
) -> Result<Identity, JoinError> {
    let server_id = control_id(&bundle.trust_domain);
    let config = join_client_config(&bundle.roots, &server_id, &[JOIN_ALPN]).unwrap();
    let key = PrivateKey::generate();
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((source, 0)))?;
    let stream = handshake_over(socket.connect(address).await?, address, config).await?;
    let certificate = join(stream, &bundle.token, name, &key.certificate_request()).await?;
    Ok(Identity::new(key, certificate))
}

async fn connect_tls(address: SocketAddr, config: Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(address).await.unwrap();
    handshake_over(tcp, address, config).await.unwrap()
}

async fn handshake_over(
    tcp: TcpStream,
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::IpAddress(address.ip().into());
    TlsConnector::from(config).connect(name, tcp).await
}

/// A proxy's stream; dropping it ends the stream.
pub(crate) struct Proxy {
    requests: mpsc::Sender<ProxyRequest>,
    newest_update: watch::Receiver<Option<ConfigUpdate>>,
    received_updates: Rc<RefCell<Vec<ConfigUpdate>>>,
    task: JoinSet<DiscoveryError>,
}

impl Proxy {
    /// Connects with its own identity.
    pub(crate) async fn connect(
        control: &Control,
        identity: &Identity,
        services: &[ServiceName],
        listeners: &[(u16, SocketAddr)],
    ) -> Self {
        let name = identity.credential.workload().unwrap();
        let stream = connect_member(control, identity).await;
        Self::start(stream, hello_message(name, services, listeners), Subscriber::new())
    }

    /// Connects with its own identity to a control plane in another process.
    pub(crate) async fn connect_to(
        address: SocketAddr,
        trust_domain: &TrustDomain,
        identity: &Identity,
        services: &[ServiceName],
    ) -> Self {
        let name = identity.credential.workload().unwrap();
        let stream = connect_member_to(address, trust_domain, identity).await;
        Self::start(stream, hello_message(name, services, &[]), Subscriber::new())
    }

    /// Connects with its own identity, as the process of this number.
    pub(crate) async fn connect_as_process(
        control: &Control,
        identity: &Identity,
        process: u64,
    ) -> Self {
        let name = identity.credential.workload().unwrap();
        let stream = connect_member(control, identity).await;
        Self::start(stream, Hello { process, ..hello_message(name, &[], &[]) }, Subscriber::new())
    }

    /// Connects with its own identity and the state of a former stream.
    pub(crate) async fn resume(
        control: &Control,
        identity: &Identity,
        services: &[ServiceName],
        former: &Self,
    ) -> Self {
        let name = identity.credential.workload().unwrap();
        let stream = connect_member(control, identity).await;
        let state = former.newest_update.borrow().as_ref().unwrap().to_bytes();
        let subscriber = Subscriber::from_bytes(&state).unwrap();
        Self::start(stream, hello_message(name, services, &[]), subscriber)
    }

    /// Connects with its own identity and claims to be another workload.
    pub(crate) async fn connect_claiming(
        control: &Control,
        identity: &Identity,
        claimed: &WorkloadName,
    ) -> Self {
        let stream = connect_member(control, identity).await;
        Self::start(stream, hello_message(claimed, &[], &[]), Subscriber::new())
    }

    /// Connects without a certificate.
    pub(crate) async fn connect_anonymous(
        control: &Control,
        bundle: &JoinBundle,
        claimed: &WorkloadName,
    ) -> Self {
        let server_id = control_id(&bundle.trust_domain);
        let config = join_client_config(&bundle.roots, &server_id, &[ALPN]).unwrap();
        let stream = connect_tls(control.listen_address(), config).await;
        Self::start(stream, hello_message(claimed, &[], &[]), Subscriber::new())
    }

    pub(crate) fn listeners_request(listeners: &[(u16, SocketAddr)]) -> ProxyRequest {
        ProxyRequest::Listeners(inbound_listeners(listeners), Default::default())
    }

    pub(crate) async fn send_request(&self, request: ProxyRequest) {
        self.requests.send(request).await.unwrap();
    }

    /// Waits for an update that satisfies the condition.
    pub(crate) async fn wait_for_update(
        &mut self,
        is_expected: impl Fn(&ConfigUpdate) -> bool,
    ) -> ConfigUpdate {
        let newest_update =
            self.newest_update.wait_for(|update| update.as_ref().is_some_and(&is_expected)).await;
        newest_update.expect("the stream is open").clone().unwrap()
    }

    /// Returns all updates so far.
    pub(crate) fn received_updates(&self) -> Vec<ConfigUpdate> {
        self.received_updates.borrow().clone()
    }

    /// Waits for the end of the stream.
    pub(crate) async fn wait_until_ended(&mut self) -> DiscoveryError {
        self.task.join_next().await.unwrap().unwrap()
    }

    fn start(stream: TlsStream<TcpStream>, hello: Hello, mut subscriber: Subscriber) -> Self {
        let (requests, mut request_receiver) = mpsc::channel(16);
        let (sender, newest_update) = watch::channel(None);
        let received_updates = Rc::new(RefCell::new(Vec::new()));
        let recorded_updates = Rc::clone(&received_updates);
        let mut task = JoinSet::new();
        task.spawn_local(async move {
            let mut apply = |update: ConfigUpdate| {
                recorded_updates.borrow_mut().push(update.clone());
                sender.send_replace(Some(update));
                Ok(())
            };
            follow_control_plane(stream, hello, &mut subscriber, &mut request_receiver, &mut apply)
                .await
        });
        Self { requests, newest_update, received_updates, task }
    }
}

pub(crate) async fn connect_member(control: &Control, identity: &Identity) -> TlsStream<TcpStream> {
    connect_member_to(control.listen_address(), control.trust_domain(), identity).await
}

async fn connect_member_to(
    address: SocketAddr,
    trust_domain: &TrustDomain,
    identity: &Identity,
) -> TlsStream<TcpStream> {
    let server_id = control_id(trust_domain);
    let config = client_config(&identity.credential, &server_id, &[ALPN]).unwrap();
    connect_tls(address, config).await
}

fn hello_message(
    workload: &WorkloadName,
    services: &[ServiceName],
    listeners: &[(u16, SocketAddr)],
) -> Hello {
    Hello {
        workload: workload.clone(),
        listeners: inbound_listeners(listeners),
        admin: None,
        pid: 1,
        version: "test".to_owned(),
        services: services.to_vec(),
        addresses: Vec::new(),
        dns_names: Vec::new(),
        session: 1,
        ca_generation: 0,
        process: 0,
        answers_queries: false,
        report: Default::default(),
    }
}

fn inbound_listeners(listeners: &[(u16, SocketAddr)]) -> Vec<InboundListener> {
    let pairs = listeners.iter().copied();
    pairs.map(|(port, address)| InboundListener { port, address }).collect()
}
