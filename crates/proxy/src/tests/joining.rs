//! A sidecar joins with a token that the platform renews in a file.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leno_discovery::{
    Budget, Event, IssuedCertificate, JOIN_ALPN, QueuedEvent, event_queue, serve_join,
};
use leno_identity::{
    Authority, CertificateRequest, CertificateSubject, Credential, PrivateKey, control_id,
    join_server_config,
};
use leno_model::{SpiffeId, TrustDomain, WorkloadName};
use leno_telemetry::Telemetry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::fixture::{DOMAIN, run, service_account, test_authority};
use crate::config::{AccountToken, Config, TrustedRoots};
use crate::config_store::ConfigStore;
use crate::control_address::ControlAddress;
use crate::control_client::{self, ControlClient};
use crate::state::StateDir;

/// A control plane that accepts every join, and reports the token.
struct ControlServer {
    address: ControlAddress,
    tokens: mpsc::Receiver<String>,
    _tasks: JoinSet<()>,
}

impl ControlServer {
    async fn start(authority: Authority) -> Self {
        let id = control_id(authority.trust_domain());
        let key = PrivateKey::generate();
        let issued = sign_csr(
            &authority,
            &key.certificate_request(),
            CertificateSubject { id: &id, workload: None, instance: None },
        );
        let credential = Credential::new(key, issued).unwrap();
        let tls = TlsAcceptor::from(join_server_config(&credential, &[JOIN_ALPN]).unwrap());
        let listener = TcpListener::bind(("localhost", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (events, mut requests) = event_queue(1);
        let (reported, tokens) = mpsc::channel(8);
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                // The client does not trust this server, or has closed the connection.
                let Ok(tls) = tls.accept(tcp).await else { continue };
                let budget = Arc::new(Budget::new(tokio::time::Instant::now()));
                let source = [127, 0, 0, 1].into();
                drop(serve_join(tls, source, events.create_sender(budget)).await);
            }
        });
        tasks.spawn_local(async move {
            while let Some(QueuedEvent { event: Event::JoinRequested(joining), turn: _turn }) =
                requests.recv().await
            {
                let account = service_account("ratings");
                let id = SpiffeId { trust_domain: authority.trust_domain().clone(), account };
                let subject = CertificateSubject {
                    id: &id,
                    workload: Some(&joining.workload),
                    instance: None,
                };
                let issued = sign_csr(&authority, &joining.csr, subject);
                let bytes = IssuedCertificate {
                    chain: issued.chain.iter().map(|der| der.to_vec()).collect(),
                    roots: issued.roots.certificates().iter().map(|der| der.to_vec()).collect(),
                };
                reported.send(joining.token).await.unwrap();
                joining.reply.send(Ok(bytes)).ok();
            }
        });
        let address = ControlAddress::Name { host: "localhost".to_owned(), port };
        Self { address, tokens, _tasks: tasks }
    }
}

fn sign_csr(
    authority: &Authority,
    csr: &[u8],
    subject: CertificateSubject<'_>,
) -> leno_identity::CertificateBundle {
    let request = CertificateRequest::from_der(csr).unwrap();
    authority.sign(&request, subject, Duration::from_secs(600), SystemTime::now()).unwrap()
}

fn workload_name() -> WorkloadName {
    let account = service_account("ratings");
    WorkloadName { namespace: account.namespace, name: "ratings-1".parse().unwrap() }
}

/// Creates a sidecar with a state directory of its own.
fn start_sidecar(
    scratch: &Path,
    name: &str,
    roots: TrustedRoots,
    control: &ControlServer,
) -> Rc<ControlClient> {
    let path = scratch.join(name);
    let domain = TrustDomain::new(DOMAIN).unwrap();
    let mut config = Config::for_sidecar(workload_name(), domain, path.clone());
    config.account_token = Some(AccountToken { file: scratch.join("token"), roots });
    config.control = vec![control.address.clone()];
    let state = StateDir::open(&path).unwrap();
    let (config_store, _) = ConfigStore::new(state.stored_virtual_addresses(), Instant::now());
    let admin = ([127, 0, 0, 1], 0).into();
    Rc::new(ControlClient::new(Arc::new(config), Telemetry::new(), config_store, state, admin, 0))
}

#[test]
fn a_platform_token_is_read_at_each_join_and_not_removed() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let authority = test_authority(scratch.path(), DOMAIN);
        let (roots, file) = (authority.roots(), scratch.path().join("roots.pem"));
        let mut control_server = ControlServer::start(authority).await;
        std::fs::write(&file, roots.to_pem()).unwrap();
        for (token, trusted) in
            [("one", TrustedRoots::Known(roots)), ("two", TrustedRoots::File(file))]
        {
            std::fs::write(scratch.path().join("token"), format!("{token}\n")).unwrap();
            let control_client = start_sidecar(scratch.path(), token, trusted, &control_server);
            let joined =
                control_client::ensure_credential(&control_client, &control_server.address)
                    .await
                    .unwrap();
            assert_eq!(joined.workload(), Some(&workload_name()));
            assert_eq!(control_server.tokens.recv().await.unwrap(), token);
            assert!(scratch.path().join("token").exists());
            // A valid certificate causes no request.
            control_client::ensure_credential(&control_client, &control_server.address)
                .await
                .unwrap();
            assert!(control_server.tokens.try_recv().is_err());
        }
    });
}

#[test]
fn a_token_is_sent_to_trusted_servers_only() {
    run(async {
        let (scratch, other_scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut control_server = ControlServer::start(test_authority(scratch.path(), DOMAIN)).await;
        std::fs::write(scratch.path().join("token"), "one").unwrap();
        let roots = TrustedRoots::Known(test_authority(other_scratch.path(), DOMAIN).roots());
        let control_client = start_sidecar(scratch.path(), "state", roots, &control_server);
        let result =
            control_client::ensure_credential(&control_client, &control_server.address).await;
        assert!(matches!(result, Err(control_client::ControlError::Untrusted { .. })));
        assert!(control_server.tokens.try_recv().is_err());
    });
}

#[test]
fn a_sidecar_retries_the_join_until_a_token_exists() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let authority = test_authority(scratch.path(), DOMAIN);
        let roots = TrustedRoots::Known(authority.roots());
        let mut control_server = ControlServer::start(authority).await;
        let control_client = start_sidecar(scratch.path(), "state", roots, &control_server);
        let missing =
            control_client::ensure_credential(&control_client, &control_server.address).await;
        let Err(reason) = missing else { panic!() };
        assert!(reason.to_string().contains("token"), "{reason}");
        let (_requests, inbox) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn_local(control_client::follow_control(control_client.clone(), inbox));
        std::fs::write(scratch.path().join("token"), "late").unwrap();
        assert_eq!(control_server.tokens.recv().await.unwrap(), "late");
        let mut changes = control_client.config_store.subscribe();
        while control_client.config_store.credential().is_none() {
            changes.changed().await.unwrap();
        }
    });
}
