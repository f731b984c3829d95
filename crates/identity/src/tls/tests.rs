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
use crate::key::PrivateKey;
use crate::rejection::reason_of_tls;
use crate::testing::{
    HandshakeResult, TestAuthority, handshake_with, now, run_handshake, workload_id, workload_name,
};
use crate::verify::session_peer;

const ALPN: &[&[u8]] = &[b"leno-link/1", b"http/1.1"];
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns a server for ratings, and a client that is productpage and expects ratings.
fn good_pair(fixture: &TestAuthority) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    (
        server_of(&fixture.issue_credential(&workload_id("ratings"))),
        client_of(&fixture.issue_credential(&workload_id("productpage"))),
    )
}

fn server_of(credential: &Credential) -> Arc<ServerConfig> {
    server_config(credential, ALPN).unwrap()
}

fn client_of(credential: &Credential) -> Arc<ClientConfig> {
    client_config(credential, &workload_id("ratings"), ALPN).unwrap()
}

/// A subject without an instance.
fn account_of(id: &SpiffeId) -> CertificateSubject<'_> {
    CertificateSubject { id, workload: None, instance: None }
}

/// Returns a client that presents any chain.
fn client_showing(
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
fn server_showing((chain, key): (Vec<CertificateDer<'static>>, PrivateKey)) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key.to_der())
        .unwrap();
    Arc::new(config)
}

fn refused_by_server(outcome: &HandshakeResult, expected: Reason) {
    let error = outcome.server.as_ref().expect_err("the server refuses");
    assert_eq!(reason_of_tls(error, FailureSide::Downstream), expected, "{error}");
    // The client receives the alert, and does not report an identity problem of the server.
    let alert = outcome.client.as_ref().expect_err("the client is told");
    assert_eq!(reason_of_tls(alert, FailureSide::Upstream), Reason::UpstreamHandshakeFailed);
}

fn refused_by_client(outcome: &HandshakeResult, expected: Reason) {
    let error = outcome.client.as_ref().expect_err("the client refuses");
    assert_eq!(reason_of_tls(error, FailureSide::Upstream), expected, "{error}");
    let alert = outcome.server.as_ref().expect_err("the server is told");
    assert_eq!(reason_of_tls(alert, FailureSide::Downstream), Reason::HandshakeFailed);
}

#[test]
fn members_see_each_other() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    let outcome = run_handshake(&client, &server);
    let (client, server) = (outcome.client.unwrap(), outcome.server.unwrap());
    let seen = session_peer(server.peer_certificates(), now()).unwrap().unwrap();
    assert_eq!(seen.id, workload_id("productpage"));
    assert_eq!(seen.workload, Some(workload_name("productpage-1")));
    let seen = session_peer(client.peer_certificates(), now()).unwrap().unwrap();
    assert_eq!(seen.id, workload_id("ratings"));
    assert_eq!(server.alpn_protocol(), Some(&b"leno-link/1"[..]));
    assert_eq!(server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(
        server.negotiated_cipher_suite().unwrap().suite(),
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256
    );
    assert_eq!(server.server_name(), Some("ratings.bookinfo.svc.cluster.local"));
}

#[test]
fn refuses_clients_outside_their_time() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = good_pair(&fixture);
    for at in [now() - 2 * DAY, now() + DAY] {
        let credential = fixture.credential_at(&workload_id("productpage"), DAY, at);
        refused_by_server(&run_handshake(&client_of(&credential), &server), Reason::ExpiredPeer);
    }
}

#[test]
fn refuses_servers_outside_their_time() {
    let fixture = TestAuthority::new("cluster.local");
    let (_, client) = good_pair(&fixture);
    for at in [now() - 2 * DAY, now() + DAY] {
        let credential = fixture.credential_at(&workload_id("ratings"), DAY, at);
        refused_by_client(&run_handshake(&client, &server_of(&credential)), Reason::WrongIdentity);
    }
}

#[test]
fn a_clock_that_is_a_little_behind_is_forgiven() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = good_pair(&fixture);
    let ahead = now() + Duration::from_secs(50);
    let credential = fixture.credential_at(&workload_id("productpage"), DAY, ahead);
    assert!(run_handshake(&client_of(&credential), &server).server.is_ok());
}

#[test]
fn refuses_members_of_a_mesh_with_another_root() {
    let (ours, theirs) = (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let (our_server, our_client) = good_pair(&ours);
    let (their_server, _) = good_pair(&theirs);
    // The attacker trusts our roots, so only the server can reject it.
    let key = PrivateKey::generate();
    let request = crate::CertificateRequest::from_der(&key.certificate_request()).unwrap();
    let id = workload_id("productpage");
    let issued = theirs.authority.sign(&request, account_of(&id), DAY, now());
    let chain = issued.unwrap().chain;
    refused_by_server(
        &run_handshake(&client_showing(&ours, (chain, key)), &our_server),
        Reason::UntrustedPeer,
    );
    refused_by_client(&run_handshake(&our_client, &their_server), Reason::WrongIdentity);
}

#[test]
fn refuses_a_foreign_trust_domain_even_under_a_shared_root() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    let foreign = || {
        fixture.forge_certificate(|parameters| {
            let id = "spiffe://other.local/ns/bookinfo/sa/ratings";
            parameters.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        })
    };
    refused_by_server(
        &run_handshake(&client_showing(&fixture, foreign()), &server),
        Reason::ForeignTrustDomain,
    );
    refused_by_client(&run_handshake(&client, &server_showing(foreign())), Reason::WrongIdentity);
}

#[test]
fn refuses_the_right_certificate_of_the_wrong_service() {
    let fixture = TestAuthority::new("cluster.local");
    let (_, client) = good_pair(&fixture);
    for account in ["reviews", "productpage", "ratings-1", "rating"] {
        let server = server_of(&fixture.issue_credential(&workload_id(account)));
        refused_by_client(&run_handshake(&client, &server), Reason::WrongIdentity);
    }
}

#[test]
fn refuses_clients_without_certificate() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = good_pair(&fixture);
    let roots = fixture.authority.roots();
    let anonymous = join_client_config(&roots, &workload_id("ratings"), ALPN).unwrap();
    refused_by_server(&run_handshake(&anonymous, &server), Reason::HandshakeFailed);
}

#[test]
fn refuses_certificates_that_no_member_has() {
    type Edit = fn(&mut rcgen::CertificateParams);
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let other = move || uri("spiffe://cluster.local/ns/bookinfo/sa/reviews");
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
    let (server, client) = good_pair(&fixture);
    for (name, edit) in edits {
        let outcome =
            run_handshake(&client_showing(&fixture, fixture.forge_certificate(edit)), &server);
        let error = outcome.server.as_ref().expect_err(name);
        assert_eq!(
            reason_of_tls(error, FailureSide::Downstream),
            Reason::UntrustedPeer,
            "{name}: {error}"
        );
        let outcome = run_handshake(&client, &server_showing(fixture.forge_certificate(edit)));
        assert!(outcome.client.is_err(), "{name}");
    }
    let two = || fixture.forge_certificate(|parameters| parameters.subject_alt_names.push(other()));
    refused_by_server(
        &run_handshake(&client_showing(&fixture, two()), &server),
        Reason::UntrustedPeer,
    );
    refused_by_client(&run_handshake(&client, &server_showing(two())), Reason::WrongIdentity);
    // The same client with a valid certificate is accepted.
    let honest = fixture.forge_certificate(|_| {});
    assert!(run_handshake(&client_showing(&fixture, honest), &server).server.is_ok());
    assert!(
        run_handshake(&client, &server_showing(fixture.forge_certificate(|_| {}))).client.is_ok()
    );
}

#[test]
fn a_certificate_for_one_direction_is_refused_in_the_other() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    let only = |purpose| {
        fixture.forge_certificate(|parameters| parameters.extended_key_usages = vec![purpose])
    };
    refused_by_server(
        &run_handshake(
            &client_showing(&fixture, only(ExtendedKeyUsagePurpose::ServerAuth)),
            &server,
        ),
        Reason::UntrustedPeer,
    );
    refused_by_client(
        &run_handshake(&client, &server_showing(only(ExtendedKeyUsagePurpose::ClientAuth))),
        Reason::WrongIdentity,
    );
}

#[test]
fn a_stolen_certificate_is_nothing_without_its_key() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = good_pair(&fixture);
    let (stolen, _) = fixture.forge_certificate(|_| {});
    // rustls checks this in its own code, but not in `CertifiedKey::new`.
    let key = PrivateKey::generate();
    let signer = crypto_provider().key_provider.load_private_key(key.to_der()).unwrap();
    let shown = rustls::sign::CertifiedKey::new(stolen, signer);
    let verifier = IdentityVerifier::new(&fixture.authority.roots(), workload_id("ratings"));
    let thief = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)));
    refused_by_server(&run_handshake(&Arc::new(thief), &server), Reason::UntrustedPeer);
}

#[test]
fn refuses_tls12_in_both_directions() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    let mut old = rustls::crypto::aws_lc_rs::default_provider();
    old.kx_groups = crypto_provider().kx_groups.clone();
    let old = Arc::new(old);
    let verifier = IdentityVerifier::new(&fixture.authority.roots(), workload_id("ratings"));
    let old_client = ClientConfig::builder_with_provider(Arc::clone(&old))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    refused_by_server(&run_handshake(&Arc::new(old_client), &server), Reason::HandshakeFailed);
    let (chain, key) = fixture.forge_certificate(|_| {});
    let old_server = ServerConfig::builder_with_provider(old)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key.to_der())
        .unwrap();
    let outcome = run_handshake(&client, &Arc::new(old_server));
    assert!(outcome.client.is_err() && outcome.server.is_err());
}

#[test]
fn refuses_a_peer_that_speaks_no_common_protocol() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = good_pair(&fixture);
    let credential = fixture.issue_credential(&workload_id("productpage"));
    let other = client_config(&credential, &workload_id("ratings"), &[b"h2"]).unwrap();
    refused_by_server(&run_handshake(&other, &server), Reason::HandshakeFailed);
    let fallback = client_config(&credential, &workload_id("ratings"), &[b"http/1.1"]).unwrap();
    let outcome = run_handshake(&fallback, &server);
    let client = outcome.client.unwrap();
    assert_eq!(client.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[test]
fn plaintext_is_reported_from_broken_tls() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, _) = good_pair(&fixture);
    for (first, expected) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], Reason::PlaintextRejected),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Reason::PlaintextRejected),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Reason::PlaintextRejected),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", Reason::PlaintextRejected),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff", Reason::HandshakeFailed),
        (b"\x15\x03\x03\x00\x02\x02\x28", Reason::HandshakeFailed),
    ] {
        let mut connection = ServerConnection::new(Arc::clone(&server)).unwrap();
        connection.read_tls(&mut Cursor::new(first)).unwrap();
        let error = connection.process_new_packets().unwrap_err();
        assert_eq!(reason_of_tls(&error, FailureSide::Downstream), expected, "{error}");
    }
}

#[test]
fn a_resumed_session_keeps_the_identity_and_skips_nothing_else() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    assert!(run_handshake(&client, &server).client.is_ok());
    for _ in 0..3 {
        let outcome = run_handshake(&client, &server);
        let (client, server) = (outcome.client.unwrap(), outcome.server.unwrap());
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Resumed));
        let seen = session_peer(server.peer_certificates(), now()).unwrap().unwrap();
        assert_eq!(seen.id, workload_id("productpage"));
        assert_eq!(seen.workload, Some(workload_name("productpage-1")));
        let seen = session_peer(client.peer_certificates(), now()).unwrap().unwrap();
        assert_eq!(seen.id, workload_id("ratings"));
        assert!(!client.is_early_data_accepted());
    }
}

#[test]
fn nothing_is_resumed_across_a_rotation_at_either_end() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    assert!(run_handshake(&client, &server).client.is_ok());
    let (renewed_server, renewed_client) = good_pair(&fixture);
    for (client, server) in [(&client, &renewed_server), (&renewed_client, &server)] {
        let connection = run_handshake(client, server).client.unwrap();
        assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Full));
    }
}

#[test]
fn a_resumed_session_does_not_outlive_its_certificate() {
    let fixture = TestAuthority::new("cluster.local");
    let (server, client) = good_pair(&fixture);
    assert!(run_handshake(&client, &server).client.is_ok());
    let resumed = run_handshake(&client, &server).server.unwrap();
    let certificates = resumed.peer_certificates();
    let end = session_peer(certificates, now()).unwrap().unwrap().not_after;
    assert!(session_peer(certificates, end).is_err());
}

#[test]
fn one_port_serves_joining_and_members() {
    let fixture = TestAuthority::new("cluster.local");
    let trust_domain = fixture.authority.trust_domain();
    let control = control_id(trust_domain);
    assert_eq!(control.to_string(), "spiffe://cluster.local/ns/leno-system/sa/leno-control");
    let key = PrivateKey::generate();
    let request = crate::CertificateRequest::from_der(&key.certificate_request()).unwrap();
    let issued = fixture.authority.sign(&request, account_of(&control), DAY, now());
    let own = Credential::new(key, issued.unwrap()).unwrap();
    assert_eq!(own.workload(), None);
    let both: &[&[u8]] = &[b"leno-join/1", b"leno-discovery/1"];
    let server = join_server_config(&own, both).unwrap();

    let roots = fixture.authority.roots();
    let joining = join_client_config(&roots, &control, &both[..1]).unwrap();
    for _ in 0..2 {
        let connection = run_handshake(&joining, &server).server.unwrap();
        assert_eq!(session_peer(connection.peer_certificates(), now()), Ok(None));
        assert_eq!(connection.alpn_protocol(), Some(both[0]));
        assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Full));
    }
    let member = fixture.issue_credential(&workload_id("ratings"));
    let member = client_config(&member, &control, &both[1..]).unwrap();
    for _ in 0..2 {
        let connection = run_handshake(&member, &server).server.unwrap();
        let seen = session_peer(connection.peer_certificates(), now()).unwrap().unwrap();
        assert_eq!(seen.id, workload_id("ratings"));
        assert_eq!(connection.alpn_protocol(), Some(both[1]));
    }
    // An optional certificate is still verified.
    let expired = fixture.credential_at(&workload_id("ratings"), DAY, now() - 2 * DAY);
    let expired = client_config(&expired, &control, &both[1..]).unwrap();
    refused_by_server(&run_handshake(&expired, &server), Reason::ExpiredPeer);
}

#[test]
fn a_slow_start_endpoint_shows_nothing_to_a_false_control_plane() {
    let (ours, theirs) = (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let control = control_id(ours.authority.trust_domain());
    let joining = join_client_config(&ours.authority.roots(), &control, ALPN).unwrap();
    let member = ours.issue_credential(&workload_id("ratings"));
    let foreign = theirs.issue_credential(&control_workload(&control));
    for server in [member, foreign] {
        let server = join_server_config(&server, ALPN).unwrap();
        refused_by_client(&run_handshake(&joining, &server), Reason::WrongIdentity);
    }
}

/// Any identity is accepted in a mesh with another root.
fn control_workload(control: &SpiffeId) -> SpiffeId {
    let mut id = workload_id("leno-control");
    id.trust_domain = control.trust_domain.clone();
    id
}

#[test]
fn old_and_new_root_are_both_trusted_while_they_overlap() {
    let (old, new) = (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let both = old.authority.roots().merge_with(&new.authority.roots()).unwrap();
    let overlapping = |fixture: &TestAuthority, account: &str| {
        let key = PrivateKey::generate();
        let request = crate::CertificateRequest::from_der(&key.certificate_request()).unwrap();
        let id = workload_id(account);
        let issued = fixture.authority.sign(&request, account_of(&id), DAY, now());
        let mut issued = issued.unwrap();
        issued.roots = both.clone();
        Credential::new(key, issued).unwrap()
    };
    for (left, right) in [(&old, &new), (&new, &old), (&old, &old), (&new, &new)] {
        let server = server_of(&overlapping(left, "ratings"));
        let client = client_of(&overlapping(right, "productpage"));
        let outcome = run_handshake(&client, &server);
        assert!(outcome.client.is_ok() && outcome.server.is_ok());
    }
    // Once the old root is retired, its certificates are rejected.
    let retired = client_of(&overlapping(&old, "productpage"));
    let server = server_of(&new.issue_credential(&workload_id("ratings")));
    refused_by_server(&run_handshake(&retired, &server), Reason::UntrustedPeer);
}

#[test]
fn names_services_as_dns_does() {
    let name =
        |namespace: &str, name: &str| server_name(&ServiceName::new(namespace, name).unwrap());
    assert_eq!(name("bookinfo", "ratings").unwrap().to_str(), "ratings.bookinfo.svc.cluster.local");
    let long = vec!["a".repeat(60); 4].join(".");
    let error = name("bookinfo", &long).unwrap_err();
    assert!(matches!(error, TlsError::LongName { .. }), "{error}");
}

/// Returns a third-party client that verifies names, with a certificate of the mesh.
fn foreign_client(fixture: &TestAuthority) -> Arc<ClientConfig> {
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
fn who_verifies_names_knows_a_workload_by_its_account() {
    let fixture = TestAuthority::new("cluster.local");
    let server = server_of(&fixture.issue_credential(&workload_id("ratings")));
    let client = foreign_client(&fixture);
    let outcome = handshake_with("ratings.bookinfo.cluster.local", &client, &server);
    assert!(outcome.client.is_ok() && outcome.server.is_ok(), "{:?}", outcome.client.err());
    for other in
        ["reviews.bookinfo.cluster.local", "ratings.shop.cluster.local", "bookinfo.cluster.local"]
    {
        let outcome = handshake_with(other, &client, &server);
        let error = outcome.client.expect_err(other).to_string();
        assert!(error.contains("not valid for name"), "{other}: {error}");
    }
    // Accounts with an ambiguous name have no DNS name.
    let dotted = server_of(&fixture.issue_credential(&workload_id("ratings.v1")));
    assert!(handshake_with("ratings.v1.bookinfo.cluster.local", &client, &dotted).client.is_err());
}
