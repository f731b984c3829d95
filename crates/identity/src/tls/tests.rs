//! Tests of handshakes in memory: accepted and rejected peers, with reasons.

use std::io::Cursor;
use std::time::Duration;

use leno_model::{FailureSide, Reason};
use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, SanType};
use rustls::HandshakeKind;
use rustls::pki_types::CertificateDer;
use rustls::server::ServerConnection;

use super::*;
use crate::authority::CertificateSubject;
use crate::failure_reason::tls_failure_reason;
use crate::key::PrivateKey;
use crate::testing::{
    HandshakeResult, TestAuthority, now, run_handshake, run_handshake_for_name, workload_id,
    workload_name,
};
use crate::verify::session_peer;

const ALPN: &[&[u8]] = &[b"leno-link/1", b"http/1.1"];
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the configuration of a server with the identity `ratings`, and that of the client `productpage`, which expects
/// this server.
fn valid_pair(fixture: &TestAuthority) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    (
        member_server(&fixture.issue_credential(&workload_id("ratings"))),
        member_client(&fixture.issue_credential(&workload_id("productpage"))),
    )
}

fn member_server(credential: &Credential) -> Arc<ServerConfig> {
    server_config(credential, ALPN).unwrap()
}

fn member_client(credential: &Credential) -> Arc<ClientConfig> {
    client_config(credential, &workload_id("ratings"), ALPN).unwrap()
}

/// Returns a subject with this identity, without a workload and an instance.
fn account_subject(id: &SpiffeId) -> CertificateSubject<'_> {
    CertificateSubject { id, workload: None, instance: None }
}

/// Returns a client configuration that presents this chain, without any check of the chain.
fn client_presenting(
    fixture: &TestAuthority,
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKey),
) -> Arc<ClientConfig> {
    let verifier = IdentityVerifier::new(&fixture.authority.roots(), workload_id("ratings"));
    let config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key.to_der())
        .unwrap();
    Arc::new(config)
}

/// Returns a server that presents any chain.
fn server_presenting(
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKey),
) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key.to_der())
        .unwrap();
    Arc::new(config)
}

fn assert_rejected_by_server(outcome: &HandshakeResult, expected: Reason) {
    let error = outcome.server.as_ref().expect_err("the server rejects the client");
    assert_eq!(tls_failure_reason(error, FailureSide::Downstream), expected, "{error}");
    // The client receives the alert, and does not report an identity problem of the server.
    let alert = outcome.client.as_ref().expect_err("the client receives an alert");
    assert_eq!(tls_failure_reason(alert, FailureSide::Upstream), Reason::UpstreamHandshakeFailed);
}

fn assert_rejected_by_client(outcome: &HandshakeResult, expected: Reason) {
    let error = outcome.client.as_ref().expect_err("the client rejects the server");
    assert_eq!(tls_failure_reason(error, FailureSide::Upstream), expected, "{error}");
    let alert = outcome.server.as_ref().expect_err("the server receives an alert");
    assert_eq!(tls_failure_reason(alert, FailureSide::Downstream), Reason::HandshakeFailed);
}

#[test]
fn members_verify_each_other() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    let outcome = run_handshake(&client, &server);
    let (client, server) = (outcome.client.unwrap(), outcome.server.unwrap());
    let peer = session_peer(server.peer_certificates(), now()).unwrap().unwrap();
    assert_eq!(peer.id, workload_id("productpage"));
    assert_eq!(peer.workload, Some(workload_name("productpage-1")));
    let peer = session_peer(client.peer_certificates(), now()).unwrap().unwrap();
    assert_eq!(peer.id, workload_id("ratings"));
    assert_eq!(server.alpn_protocol(), Some(&b"leno-link/1"[..]));
    assert_eq!(server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(
        server.negotiated_cipher_suite().unwrap().suite(),
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256
    );
    assert_eq!(server.server_name(), Some("ratings.bookinfo.svc.cluster.local"));
}

#[test]
fn clients_outside_their_validity_are_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = valid_pair(&fixture);
    for start in [now() - 2 * DAY, now() + DAY] {
        let credential = fixture.issue_credential_at(&workload_id("productpage"), DAY, start);
        assert_rejected_by_server(
            &run_handshake(&member_client(&credential), &server),
            Reason::ExpiredPeer,
        );
    }
}

#[test]
fn servers_outside_their_validity_are_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (_, client) = valid_pair(&fixture);
    for start in [now() - 2 * DAY, now() + DAY] {
        let credential = fixture.issue_credential_at(&workload_id("ratings"), DAY, start);
        assert_rejected_by_client(
            &run_handshake(&client, &member_server(&credential)),
            Reason::WrongIdentity,
        );
    }
}

#[test]
fn a_slightly_slow_clock_is_tolerated() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = valid_pair(&fixture);
    let issue_time = now() + Duration::from_secs(50);
    let credential = fixture.issue_credential_at(&workload_id("productpage"), DAY, issue_time);
    assert!(run_handshake(&member_client(&credential), &server).server.is_ok());
}

#[test]
fn members_of_a_mesh_with_another_root_are_rejected() {
    let (own_mesh, other_mesh) =
        (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let (own_server, own_client) = valid_pair(&own_mesh);
    let (other_server, _) = valid_pair(&other_mesh);
    // The attacker trusts our roots, so only the server can reject it.
    let key = PrivateKey::generate();
    let request = crate::CertificateRequest::from_der(&key.certificate_request()).unwrap();
    let id = workload_id("productpage");
    let issued = other_mesh.authority.sign(&request, account_subject(&id), DAY, now());
    let chain = issued.unwrap().chain;
    assert_rejected_by_server(
        &run_handshake(&client_presenting(&own_mesh, (chain, key)), &own_server),
        Reason::UntrustedPeer,
    );
    assert_rejected_by_client(&run_handshake(&own_client, &other_server), Reason::WrongIdentity);
}

#[test]
fn another_trust_domain_with_the_same_root_is_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    let forge_other_domain = || {
        fixture.forge_certificate(|parameters| {
            let id = "spiffe://other.local/ns/bookinfo/sa/ratings";
            parameters.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        })
    };
    assert_rejected_by_server(
        &run_handshake(&client_presenting(&fixture, forge_other_domain()), &server),
        Reason::ForeignTrustDomain,
    );
    assert_rejected_by_client(
        &run_handshake(&client, &server_presenting(forge_other_domain())),
        Reason::WrongIdentity,
    );
}

#[test]
fn a_valid_certificate_of_another_service_is_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (_, client) = valid_pair(&fixture);
    for account in ["reviews", "productpage", "ratings-1", "rating"] {
        let server = member_server(&fixture.issue_credential(&workload_id(account)));
        assert_rejected_by_client(&run_handshake(&client, &server), Reason::WrongIdentity);
    }
}

#[test]
fn clients_without_a_certificate_are_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = valid_pair(&fixture);
    let roots = fixture.authority.roots();
    let anonymous = join_client_config(&roots, &workload_id("ratings"), ALPN).unwrap();
    assert_rejected_by_server(&run_handshake(&anonymous, &server), Reason::HandshakeFailed);
}

#[test]
fn certificates_that_are_not_a_members_are_rejected() {
    type Edit = fn(&mut rcgen::CertificateParams);
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let other_uri = move || uri("spiffe://cluster.local/ns/bookinfo/sa/reviews");
    let edits: [(&str, Edit); 4] = [
        ("no URI", |parameters| parameters.subject_alt_names.clear()),
        ("a URI of another form", |parameters| {
            let name = SanType::URI("https://cluster.local/".try_into().unwrap());
            parameters.subject_alt_names = vec![name];
        }),
        ("an authority as leaf", |parameters| {
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }),
        ("another purpose", |parameters| {
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        }),
    ];
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    for (name, edit) in edits {
        let outcome =
            run_handshake(&client_presenting(&fixture, fixture.forge_certificate(edit)), &server);
        let error = outcome.server.as_ref().expect_err(name);
        assert_eq!(
            tls_failure_reason(error, FailureSide::Downstream),
            Reason::UntrustedPeer,
            "{name}: {error}"
        );
        let outcome = run_handshake(&client, &server_presenting(fixture.forge_certificate(edit)));
        assert!(outcome.client.is_err(), "{name}");
    }
    let with_two_uris =
        || fixture.forge_certificate(|parameters| parameters.subject_alt_names.push(other_uri()));
    assert_rejected_by_server(
        &run_handshake(&client_presenting(&fixture, with_two_uris()), &server),
        Reason::UntrustedPeer,
    );
    assert_rejected_by_client(
        &run_handshake(&client, &server_presenting(with_two_uris())),
        Reason::WrongIdentity,
    );
    // The same client with a valid certificate is accepted.
    let valid = fixture.forge_certificate(|_| {});
    assert!(run_handshake(&client_presenting(&fixture, valid), &server).server.is_ok());
    assert!(
        run_handshake(&client, &server_presenting(fixture.forge_certificate(|_| {})))
            .client
            .is_ok()
    );
}

#[test]
fn a_client_certificate_is_not_accepted_from_a_server_and_vice_versa() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    let with_purpose = |purpose| {
        fixture.forge_certificate(|parameters| parameters.extended_key_usages = vec![purpose])
    };
    assert_rejected_by_server(
        &run_handshake(
            &client_presenting(&fixture, with_purpose(ExtendedKeyUsagePurpose::ServerAuth)),
            &server,
        ),
        Reason::UntrustedPeer,
    );
    assert_rejected_by_client(
        &run_handshake(
            &client,
            &server_presenting(with_purpose(ExtendedKeyUsagePurpose::ClientAuth)),
        ),
        Reason::WrongIdentity,
    );
}

#[test]
fn a_certificate_without_its_key_is_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = valid_pair(&fixture);
    let (chain, _) = fixture.forge_certificate(|_| {});
    // rustls checks this in its own code, but not in `CertifiedKey::new`.
    let key = PrivateKey::generate();
    let signer = crypto_provider().key_provider.load_private_key(key.to_der()).unwrap();
    let certified_key = rustls::sign::CertifiedKey::new(chain, signer);
    let verifier = IdentityVerifier::new(&fixture.authority.roots(), workload_id("ratings"));
    let client = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified_key)));
    assert_rejected_by_server(&run_handshake(&Arc::new(client), &server), Reason::UntrustedPeer);
}

#[test]
fn tls12_is_rejected_in_both_directions() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    let mut tls12_provider = rustls::crypto::aws_lc_rs::default_provider();
    tls12_provider.kx_groups = crypto_provider().kx_groups.clone();
    let tls12_provider = Arc::new(tls12_provider);
    let verifier = IdentityVerifier::new(&fixture.authority.roots(), workload_id("ratings"));
    let old_client = ClientConfig::builder_with_provider(Arc::clone(&tls12_provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    assert_rejected_by_server(
        &run_handshake(&Arc::new(old_client), &server),
        Reason::HandshakeFailed,
    );
    let (chain, key) = fixture.forge_certificate(|_| {});
    let old_server = ServerConfig::builder_with_provider(tls12_provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key.to_der())
        .unwrap();
    let outcome = run_handshake(&client, &Arc::new(old_server));
    assert!(outcome.client.is_err() && outcome.server.is_err());
}

#[test]
fn a_peer_without_a_common_alpn_protocol_is_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = valid_pair(&fixture);
    let credential = fixture.issue_credential(&workload_id("productpage"));
    let other_client = client_config(&credential, &workload_id("ratings"), &[b"h2"]).unwrap();
    assert_rejected_by_server(&run_handshake(&other_client, &server), Reason::HandshakeFailed);
    let http1_client = client_config(&credential, &workload_id("ratings"), &[b"http/1.1"]).unwrap();
    let outcome = run_handshake(&http1_client, &server);
    let client = outcome.client.unwrap();
    assert_eq!(client.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[test]
fn plaintext_is_distinguished_from_broken_tls() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = valid_pair(&fixture);
    for (first_bytes, expected) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], Reason::PlaintextRejected),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Reason::PlaintextRejected),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Reason::PlaintextRejected),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", Reason::PlaintextRejected),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff", Reason::HandshakeFailed),
        (b"\x15\x03\x03\x00\x02\x02\x28", Reason::HandshakeFailed),
    ] {
        let mut connection = ServerConnection::new(Arc::clone(&server)).unwrap();
        connection.read_tls(&mut Cursor::new(first_bytes)).unwrap();
        let error = connection.process_new_packets().unwrap_err();
        assert_eq!(tls_failure_reason(&error, FailureSide::Downstream), expected, "{error}");
    }
}

#[test]
fn a_resumed_session_retains_the_peer_identity() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    assert!(run_handshake(&client, &server).client.is_ok());
    for _ in 0..3 {
        let outcome = run_handshake(&client, &server);
        let (client, server) = (outcome.client.unwrap(), outcome.server.unwrap());
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Resumed));
        let peer = session_peer(server.peer_certificates(), now()).unwrap().unwrap();
        assert_eq!(peer.id, workload_id("productpage"));
        assert_eq!(peer.workload, Some(workload_name("productpage-1")));
        let peer = session_peer(client.peer_certificates(), now()).unwrap().unwrap();
        assert_eq!(peer.id, workload_id("ratings"));
        assert!(!client.is_early_data_accepted());
    }
}

#[test]
fn sessions_are_not_resumed_after_a_renewal_at_either_end() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    assert!(run_handshake(&client, &server).client.is_ok());
    let (renewed_server, renewed_client) = valid_pair(&fixture);
    for (client, server) in [(&client, &renewed_server), (&renewed_client, &server)] {
        let connection = run_handshake(client, server).client.unwrap();
        assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Full));
    }
}

#[test]
fn a_resumed_session_does_not_outlive_its_certificate() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = valid_pair(&fixture);
    assert!(run_handshake(&client, &server).client.is_ok());
    let resumed = run_handshake(&client, &server).server.unwrap();
    let certificates = resumed.peer_certificates();
    let end = session_peer(certificates, now()).unwrap().unwrap().not_after;
    assert!(session_peer(certificates, end).is_err());
}

#[test]
fn one_port_serves_joining_proxies_and_members() {
    let fixture = TestAuthority::new("cluster.local");
    let trust_domain = fixture.authority.trust_domain();
    let control_plane_id = control_id(trust_domain);
    assert_eq!(
        control_plane_id.to_string(),
        "spiffe://cluster.local/ns/leno-system/sa/leno-control"
    );
    let key = PrivateKey::generate();
    let request = crate::CertificateRequest::from_der(&key.certificate_request()).unwrap();
    let issued = fixture.authority.sign(&request, account_subject(&control_plane_id), DAY, now());
    let control_credential = Credential::new(key, issued.unwrap()).unwrap();
    assert_eq!(control_credential.workload(), None);
    let protocols: &[&[u8]] = &[b"leno-join/1", b"leno-discovery/1"];
    let server = join_server_config(&control_credential, protocols).unwrap();

    let roots = fixture.authority.roots();
    let joining_client = join_client_config(&roots, &control_plane_id, &protocols[..1]).unwrap();
    for _ in 0..2 {
        let connection = run_handshake(&joining_client, &server).server.unwrap();
        assert_eq!(session_peer(connection.peer_certificates(), now()), Ok(None));
        assert_eq!(connection.alpn_protocol(), Some(protocols[0]));
        assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Full));
    }
    let member = fixture.issue_credential(&workload_id("ratings"));
    let member = client_config(&member, &control_plane_id, &protocols[1..]).unwrap();
    for _ in 0..2 {
        let connection = run_handshake(&member, &server).server.unwrap();
        let peer = session_peer(connection.peer_certificates(), now()).unwrap().unwrap();
        assert_eq!(peer.id, workload_id("ratings"));
        assert_eq!(connection.alpn_protocol(), Some(protocols[1]));
    }
    // An optional certificate is still verified.
    let expired = fixture.issue_credential_at(&workload_id("ratings"), DAY, now() - 2 * DAY);
    let expired = client_config(&expired, &control_plane_id, &protocols[1..]).unwrap();
    assert_rejected_by_server(&run_handshake(&expired, &server), Reason::ExpiredPeer);
}

#[test]
fn a_joining_proxy_rejects_a_false_control_plane() {
    let (own_mesh, other_mesh) =
        (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let control_plane_id = control_id(own_mesh.authority.trust_domain());
    let joining_client =
        join_client_config(&own_mesh.authority.roots(), &control_plane_id, ALPN).unwrap();
    let member_server_credential = own_mesh.issue_credential(&workload_id("ratings"));
    let other_mesh_server = other_mesh.issue_credential(&control_workload(&control_plane_id));
    for server in [member_server_credential, other_mesh_server] {
        let server = join_server_config(&server, ALPN).unwrap();
        assert_rejected_by_client(&run_handshake(&joining_client, &server), Reason::WrongIdentity);
    }
}

/// Any identity is accepted in a mesh with another root.
fn control_workload(control: &SpiffeId) -> SpiffeId {
    let mut id = workload_id("leno-control");
    id.trust_domain = control.trust_domain.clone();
    id
}

#[test]
fn the_old_and_the_new_root_are_trusted_during_a_rotation() {
    let (old, new) = (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let merged = old.authority.roots().merge_with(&new.authority.roots()).unwrap();
    let credential_with_both_roots = |fixture: &TestAuthority, account: &str| {
        let key = PrivateKey::generate();
        let request = crate::CertificateRequest::from_der(&key.certificate_request()).unwrap();
        let id = workload_id(account);
        let issued = fixture.authority.sign(&request, account_subject(&id), DAY, now());
        let mut issued = issued.unwrap();
        issued.roots = merged.clone();
        Credential::new(key, issued).unwrap()
    };
    for (server_mesh, client_mesh) in [(&old, &new), (&new, &old), (&old, &old), (&new, &new)] {
        let server = member_server(&credential_with_both_roots(server_mesh, "ratings"));
        let client = member_client(&credential_with_both_roots(client_mesh, "productpage"));
        let outcome = run_handshake(&client, &server);
        assert!(outcome.client.is_ok() && outcome.server.is_ok());
    }
    // Once the old root is retired, its certificates are rejected.
    let retired = member_client(&credential_with_both_roots(&old, "productpage"));
    let server = member_server(&new.issue_credential(&workload_id("ratings")));
    assert_rejected_by_server(&run_handshake(&retired, &server), Reason::UntrustedPeer);
}

#[test]
fn server_names_are_dns_names_of_services() {
    let server_name_of =
        |namespace: &str, name: &str| server_name(&ServiceName::new(namespace, name).unwrap());
    assert_eq!(
        server_name_of("bookinfo", "ratings").unwrap().to_str(),
        "ratings.bookinfo.svc.cluster.local"
    );
    let long_name = vec!["a".repeat(60); 4].join(".");
    let error = server_name_of("bookinfo", &long_name).unwrap_err();
    assert!(matches!(error, TlsError::LongName { .. }), "{error}");
}

/// Returns a third-party client that verifies names, with a certificate of the mesh.
fn third_party_client(fixture: &TestAuthority) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for der in fixture.authority.roots().certificates() {
        roots.add(der.clone()).unwrap();
    }
    let (chain, key) = fixture.forge_certificate(|_| {});
    let config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key.to_der())
        .unwrap();
    Arc::new(config)
}

#[test]
fn clients_that_verify_names_accept_the_dns_name_of_the_account() {
    let fixture = TestAuthority::new("cluster.local");
    let server = member_server(&fixture.issue_credential(&workload_id("ratings")));
    let client = third_party_client(&fixture);
    let outcome = run_handshake_for_name("ratings.bookinfo.cluster.local", &client, &server);
    assert!(outcome.client.is_ok() && outcome.server.is_ok(), "{:?}", outcome.client.err());
    for other_name in
        ["reviews.bookinfo.cluster.local", "ratings.shop.cluster.local", "bookinfo.cluster.local"]
    {
        let outcome = run_handshake_for_name(other_name, &client, &server);
        let error = outcome.client.expect_err(other_name).to_string();
        assert!(error.contains("not valid for name"), "{other_name}: {error}");
    }
    // Accounts with an ambiguous name have no DNS name.
    let dotted_account_server =
        member_server(&fixture.issue_credential(&workload_id("ratings.v1")));
    assert!(
        run_handshake_for_name(
            "ratings.v1.bookinfo.cluster.local",
            &client,
            &dotted_account_server
        )
        .client
        .is_err()
    );
}
