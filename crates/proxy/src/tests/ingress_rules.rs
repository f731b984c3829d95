//! Ingress rules: only the clients outside the mesh that a policy allows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{ExternalCertificate, ExternalSubject, join_client_config};
use leno_model::{
    Access, ClientCertificateMode, ExternalPrincipalId, IngressProtocol, IngressRule, MtlsMode,
    Name, PathMatch, Protocol, RequestMatch, SecretName, SubjectScope, WorkloadConfig,
    WorkloadPort,
};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, ReceivedMessage, Setup, proxy_config, run,
    service_account, test_service,
};
use super::http2;

impl Mesh {
    /// Sets the access and the ingress rules of the server's configuration.
    fn set_rules(&self, access: Access, ingress_rules: Vec<IngressRule>) {
        let (port, protocol) = (self.server.port, self.setup.protocol);
        let ports = vec![WorkloadPort { name: None, port, protocol }];
        let served = BTreeMap::from([(port, test_service())]);
        let workload_config = WorkloadConfig {
            ports,
            port_services: served,
            ingress_rules,
            ..proxy_config("ratings", access)
        };
        self.server
            .apply_config(WorkloadConfig { mtls: MtlsMode::Strict, ..workload_config }, Vec::new());
    }

    fn ingress_rule(&self, entry: IngressProtocol, range: &str) -> IngressRule {
        IngressRule {
            policy: "IngressBackend bookinfo/web".parse().unwrap(),
            port: self.server.port,
            protocol: entry,
            ranges: Some(vec![range.parse().unwrap()]),
            accounts: Vec::new(),
            external_principals: Vec::new(),
            requests: None,
        }
    }

    /// Connects a TLS client without a certificate.
    async fn external_client(
        &self,
        name: &'static str,
    ) -> std::io::Result<Client<TlsStream<TcpStream>>> {
        let roots = self.server.worker.config_store.credential().unwrap().roots().clone();
        let server = service_account("ratings");
        let id = leno_model::SpiffeId {
            trust_domain: proxy_config("ratings", Access::AllowAll).trust_domain,
            account: server,
        };
        let config = join_client_config(&roots, &id, &[b"http/1.1"]).unwrap();
        let tcp = TcpStream::connect(self.inbound).await?;
        let name = ServerName::try_from(name).unwrap();
        let tls = TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await?;
        Ok(Client::new(tls))
    }
}

impl Mesh {
    /// Connects an external principal with a certificate, offering these protocols.
    async fn external_principal(
        &self,
        name: &str,
        alpn: &'static [u8],
    ) -> std::io::Result<Client<TlsStream<TcpStream>>> {
        let trust_domain = proxy_config("ratings", Access::AllowAll).trust_domain;
        let secret = SecretName::new("bookinfo", "batch-tls").unwrap();
        let (id, names) =
            (ExternalPrincipalId { trust_domain, secret }, [Name::new(name).unwrap()]);
        let subject = ExternalSubject { id: &id, names: &names, issuing_scope: SubjectScope::Mesh };
        let hour = Duration::from_secs(3600);
        let certificate =
            ExternalCertificate::issue(&self.authority, subject, hour, SystemTime::now());
        let certificate = certificate.unwrap();
        let chain = CertificateDer::pem_slice_iter(certificate.chain_pem().as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(certificate.key_pem().as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(certificate.roots_pem().as_bytes()) {
            roots.add(root.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![alpn.to_vec()];
        let tcp = TcpStream::connect(self.inbound).await?;
        // The name by which an ingress controller reaches the sidecar.
        let name = ServerName::try_from("ratings.bookinfo.cluster.local").unwrap();
        Ok(Client::new(TlsConnector::from(Arc::new(config)).connect(name, tcp).await?))
    }

    /// Returns the status of a request of such a principal.
    async fn status_for_external_principal(&self, name: &str) -> Option<u16> {
        let mut client = self.external_principal(name, b"http/1.1").await.ok()?;
        client.send_bytes(GET).await;
        client.read_head().await.map(|head| head.status)
    }
}

async fn start_mesh() -> (Application, Mesh) {
    let app = Application::respond_with(|_: &ReceivedMessage| OK.to_owned()).await;
    let mesh = Mesh::new(app.address, Setup { protocol: Protocol::Http, ..Setup::default() }).await;
    (app, mesh)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
}

const NO_CLIENTS: Access = Access::AllowListed(Vec::new());

#[test]
fn only_listed_addresses_are_allowed() {
    run(async {
        let (_app, mesh) = start_mesh().await;
        // Ingress rules also apply with `defaultPolicy: deny` and policies that name no client.
        for access in [Access::AllowAll, NO_CLIENTS] {
            mesh.set_rules(
                access.clone(),
                vec![mesh.ingress_rule(IngressProtocol::Http, "10.0.0.0/8")],
            );
            let mut other_client = Client::connect(mesh.inbound).await;
            other_client.send_bytes(GET).await;
            assert_eq!(other_client.read_end().await, End::Reset, "{access:?}");
            mesh.set_rules(
                access.clone(),
                vec![mesh.ingress_rule(IngressProtocol::Http, "127.0.0.0/8")],
            );
            let mut named_client = Client::connect(mesh.inbound).await;
            assert_eq!(named_client.send_request(GET).await.status, 200, "{access:?}");
            // Removing the rule closes open connections.
            mesh.set_rules(access.clone(), Vec::new());
            named_client.read_end().await;
        }
    });
}

#[test]
fn only_listed_requests_are_allowed() {
    run(async {
        let (_app, mesh) = start_mesh().await;
        let path = PathMatch::Exact("/open".to_owned());
        let request =
            RequestMatch { path, methods: Vec::new(), headers: Vec::new(), query: Vec::new() };
        for access in [Access::AllowAll, NO_CLIENTS] {
            let ingress_rule = mesh.ingress_rule(IngressProtocol::Http, "127.0.0.1/32");
            mesh.set_rules(
                access,
                vec![IngressRule { requests: Some(vec![request.clone()]), ..ingress_rule }],
            );
            let mut client = Client::connect(mesh.inbound).await;
            assert_eq!(client.send_request(&get("/open")).await.status, 200);
            let closed_response = client.send_request(&get("/closed")).await;
            assert_eq!(closed_response.verdict(), (404, Some("no-policy-route")));
        }
    });
}

#[test]
fn clients_without_a_certificate_need_an_ingress_rule_for_the_server_name() {
    run(async {
        let (_app, mesh) = start_mesh().await;
        let https = |proof, names: &[&str]| IngressProtocol::Https {
            client_certificate: proof,
            server_names: names.iter().map(ToString::to_string).collect(),
        };
        mesh.set_rules(
            NO_CLIENTS,
            vec![mesh.ingress_rule(
                https(ClientCertificateMode::Skipped, &["a.example"]),
                "127.0.0.1/32",
            )],
        );
        let mut client = mesh.external_client("a.example").await.unwrap();
        assert_eq!(client.send_request(GET).await.status, 200);
        // The rule does not allow plaintext.
        let mut plaintext_client = Client::connect(mesh.inbound).await;
        plaintext_client.send_bytes(GET).await;
        assert_eq!(plaintext_client.read_end().await, End::Reset);
        let mut other_client = mesh.external_client("b.example").await.unwrap();
        assert_eq!(other_client.read_end().await, End::Reset);
        mesh.set_rules(
            NO_CLIENTS,
            vec![mesh.ingress_rule(https(ClientCertificateMode::Required, &[]), "127.0.0.1/32")],
        );
        let is_refused = match mesh.external_client("a.example").await {
            Ok(mut client) => {
                client.send_bytes(GET).await;
                client.read_end().await == End::Reset
            }
            Err(_) => true,
        };
        assert!(is_refused);
    });
}

#[test]
fn a_listed_certificate_needs_no_other_policy() {
    run(async {
        let (_app, mesh) = start_mesh().await;
        let entry = IngressProtocol::Https {
            client_certificate: ClientCertificateMode::Required,
            server_names: Vec::new(),
        };
        for (who, status) in [("productpage", 200), ("reviews", 403)] {
            let ingress_rule = mesh.ingress_rule(entry.clone(), "127.0.0.1/32");
            let accounts = vec![service_account(who)];
            mesh.set_rules(NO_CLIENTS, vec![IngressRule { accounts, ..ingress_rule }]);
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(GET).await.status, status, "{who}");
        }
    });
}

#[test]
fn an_external_principal_is_allowed_only_where_it_is_listed() {
    run(async {
        let (_app, mesh) = start_mesh().await;
        let external_principals = |names: &[&str], proof| IngressRule {
            external_principals: names.iter().map(|name| Name::new(name).unwrap()).collect(),
            ..mesh.ingress_rule(
                IngressProtocol::Https { client_certificate: proof, server_names: Vec::new() },
                "127.0.0.1/32",
            )
        };
        // A mesh that allows every member does not therefore allow external principals.
        for access in [Access::AllowAll, NO_CLIENTS] {
            mesh.set_rules(access.clone(), Vec::new());
            assert_eq!(
                mesh.status_for_external_principal("batch.corp.example").await,
                None,
                "{access:?}"
            );
            let ingress_rule =
                external_principals(&["other.corp.example"], ClientCertificateMode::Required);
            mesh.set_rules(access.clone(), vec![ingress_rule]);
            assert_eq!(
                mesh.status_for_external_principal("batch.corp.example").await,
                None,
                "{access:?}"
            );
            let ingress_rule =
                external_principals(&["batch.corp.example"], ClientCertificateMode::Required);
            let mut other_rule = ingress_rule.clone();
            other_rule.ranges = Some(vec!["10.0.0.0/8".parse().unwrap()]);
            mesh.set_rules(access.clone(), vec![other_rule]);
            assert_eq!(
                mesh.status_for_external_principal("batch.corp.example").await,
                None,
                "{access:?}"
            );
            mesh.set_rules(access.clone(), vec![ingress_rule]);
            assert_eq!(
                mesh.status_for_external_principal("batch.corp.example").await,
                Some(200),
                "{access:?}"
            );
            // A client that needs no certificate may present one.
            mesh.set_rules(
                access.clone(),
                vec![external_principals(&[], ClientCertificateMode::Skipped)],
            );
            assert_eq!(
                mesh.status_for_external_principal("batch.corp.example").await,
                Some(200),
                "{access:?}"
            );
        }
    });
}

#[test]
fn an_external_principal_matches_no_account_and_opens_no_link() {
    run(async {
        let (_app, mesh) = start_mesh().await;
        let entry = IngressProtocol::Https {
            client_certificate: ClientCertificateMode::Required,
            server_names: Vec::new(),
        };
        let ingress_rule = IngressRule {
            accounts: vec![service_account("productpage")],
            external_principals: vec![Name::new("batch.corp.example").unwrap()],
            ..mesh.ingress_rule(entry, "127.0.0.1/32")
        };
        mesh.set_rules(NO_CLIENTS, vec![ingress_rule]);
        let name = "productpage.bookinfo.cluster.local";
        assert_eq!(mesh.status_for_external_principal(name).await, None);
        let mut client = mesh.external_principal("batch.corp.example", b"leno/1").await.unwrap();
        assert_eq!(client.read_end().await, End::Reset);
    });
}

#[test]
fn a_connection_without_a_certificate_ends_with_its_ingress_rule() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await;
            client
                .send_bytes(
                    "HTTP/1.1 101 Go On\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhi",
                )
                .await;
            client.read_rest().await;
        });
        let app = app.await;
        let mesh = Mesh::new(app.address, Setup { protocol: Protocol::Http, ..Setup::default() });
        let mesh = mesh.await;
        let entry = IngressProtocol::Https {
            client_certificate: ClientCertificateMode::Skipped,
            server_names: Vec::new(),
        };
        let ingress_rule = mesh.ingress_rule(entry, "127.0.0.1/32");
        mesh.set_rules(NO_CLIENTS, vec![ingress_rule.clone()]);
        let mut client = mesh.external_client("a.example").await.unwrap();
        client
            .send_bytes(
                "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            )
            .await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        assert_eq!(client.read_exactly(2).await, b"hi");
        // Other rules may change meanwhile.
        let other_rule = IngressRule { port: 1, ..ingress_rule.clone() };
        mesh.set_rules(NO_CLIENTS, vec![other_rule, ingress_rule]);
        let mut second = mesh.external_client("a.example").await.unwrap();
        second
            .send_bytes(
                "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            )
            .await;
        assert_eq!(second.read_head().await.unwrap().status, 101);
        assert_eq!(second.read_exactly(2).await, b"hi");
        // A plaintext rule does not allow clients that use TLS.
        mesh.set_rules(NO_CLIENTS, vec![mesh.ingress_rule(IngressProtocol::Http, "127.0.0.1/32")]);
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(second.read_end().await, End::Reset);
    });
}

#[test]
fn an_ingress_rule_sets_the_protocol_of_an_undeclared_port() {
    run(async {
        let app = http2::start_application(|_, mut respond| async move {
            let head = http::Response::builder().status(204).body(()).unwrap();
            respond.send_response(head, true).unwrap();
        });
        let app = app.await;
        let setup = Setup { protocol: Protocol::Detect, ..Setup::default() };
        let mesh = Mesh::new(app.address, setup).await;
        mesh.set_rules(NO_CLIENTS, vec![mesh.ingress_rule(IngressProtocol::Grpc, "127.0.0.1/32")]);
        let mut client = http2::connect_client(mesh.inbound).await;
        let (response, _) = client.send_request(http2::grpc_request("/Rate"), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 204);
    });
}
