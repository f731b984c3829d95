//! Tests of handshakes of external principals with mesh servers, and of stored certificates.

use std::time::Duration;

use leno_model::{SecretName, SpiffeId, TrustDomain};
use rcgen::SanType;
use rustls::ClientConfig;
use rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::testing::{HandshakeResult, TestAuthority, now, run_handshake, workload_id};
use crate::tls::{
    client_config, control_id, external_principal_server_config, join_server_config,
    open_server_config, server_config,
};
use crate::verifier::IdentityVerifier;
use crate::verify::session_peer;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn principal_id() -> ExternalPrincipalId {
    ExternalPrincipalId {
        trust_domain: TrustDomain::new("cluster.local").unwrap(),
        secret: SecretName::new("shop", "batch-client-tls").unwrap(),
    }
}

fn parse_names(texts: &[&str]) -> Vec<Name> {
    texts.iter().map(|text| Name::new(text).unwrap()).collect()
}

fn issue(fixture: &TestAuthority, texts: &[&str]) -> Result<ExternalCertificate, AuthorityError> {
    let shop = Name::new("shop").unwrap();
    let (id, names) = (principal_id(), parse_names(texts));
    let subject =
        ExternalSubject { id: &id, names: &names, sponsor: SubjectScope::Namespace(&shop) };
    ExternalCertificate::issue(&fixture.authority, subject, DAY, now())
}

/// Returns a client such as nginx or curl, with the contents of the Secret only.
fn external_client_config(made: &ExternalCertificate, server: &SpiffeId) -> Arc<ClientConfig> {
    let chain = CertificateDer::pem_slice_iter(made.chain_pem().as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(made.key_pem().as_bytes()).unwrap();
    let roots = Roots::from_pem(made.roots_pem()).unwrap();
    let verifier = IdentityVerifier::new(&roots, server.clone());
    let config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Arc::new(config.with_client_auth_cert(chain, key).unwrap())
}

#[test]
fn a_external_principal_is_let_in_where_external_principals_are_and_is_never_a_member() {
    let fixture = TestAuthority::new("cluster.local");
    let made = issue(&fixture, &["batch.corp.example", "nginx.shop.cluster.local"]).unwrap();
    let server = workload_id("ratings");
    let credential = fixture.issue_credential(&server);
    let client = external_client_config(&made, &server);
    for config in
        [external_principal_server_config(&credential, &[]), open_server_config(&credential, &[])]
    {
        let HandshakeResult { client, server } = run_handshake(&client, &config.unwrap());
        client.unwrap();
        let server = server.unwrap();
        let shown = server.peer_certificates().unwrap();
        assert!(matches!(session_peer(Some(shown), now()), Err(VerifyError::Uri(_))));
        let external_principal = external_principal(&shown[0], now()).unwrap();
        assert_eq!(external_principal.id, principal_id());
        assert_eq!(
            external_principal.names,
            parse_names(&["batch.corp.example", "nginx.shop.cluster.local"])
        );
        assert_eq!(
            super::external_principal(&shown[0], external_principal.not_after),
            Err(VerifyError::Expired)
        );
    }
    // The server of a sidecar, and that of a control plane.
    for config in [server_config(&credential, &[]), join_server_config(&credential, &[])] {
        assert!(run_handshake(&client, &config.unwrap()).server.is_err());
    }
}

#[test]
fn no_server_can_be_run_with_it() {
    let fixture = TestAuthority::new("cluster.local");
    let made = issue(&fixture, &["nginx.shop.cluster.local"]).unwrap();
    let chain = CertificateDer::pem_slice_iter(made.chain_pem().as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any);
    let key = PrivateKeyDer::from_pem_slice(made.key_pem().as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let id = workload_id("ratings");
    let member =
        client_config(&fixture.issue_credential(&workload_id("reviews")), &id, &[]).unwrap();
    assert!(run_handshake(&member, &Arc::new(config)).client.is_err());
}

#[test]
fn external_principals_of_others_and_certificates_of_others_for_such_names_are_refused() {
    let (fixture, other) =
        (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let server = workload_id("ratings");
    let credential = fixture.issue_credential(&server);
    let config = external_principal_server_config(&credential, &[]).unwrap();
    // A certificate of another authority.
    let external_client = issue(&other, &["batch.corp.example"]).unwrap();
    let external_client =
        ExternalCertificate { roots: fixture.authority.roots().to_pem(), ..external_client };
    assert!(
        run_handshake(&external_client_config(&external_client, &server), &config).server.is_err()
    );
    // Certificates of the same root with another name, or for an external principal of another mesh, are
    // rejected.
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let dns = SanType::DnsName("batch.corp.example".try_into().unwrap());
    let ours = "leno://cluster.local/guest/shop/batch";
    for (alternatives, is_let_in) in [
        (vec![dns.clone()], false),
        (vec![uri("leno://other/guest/shop/batch"), dns.clone()], false),
        (vec![uri("https://cluster.local/guest/shop/batch"), dns.clone()], false),
        (vec![uri(ours), uri(ours), dns.clone()], false),
        (vec![uri(ours)], false),
        (vec![uri(ours), dns], true),
    ] {
        let (chain, key) =
            fixture.forge_certificate(|parameters| parameters.subject_alt_names = alternatives);
        let mut text = String::new();
        write(&mut text, CERTIFICATE, &chain[0]);
        let roots = fixture.authority.roots().to_pem();
        let forged = ExternalCertificate { key, chain: text, roots, not_after: now() + DAY };
        let met = run_handshake(&external_client_config(&forged, &server), &config);
        assert_eq!(met.server.is_ok(), is_let_in, "{forged:?}");
    }
}

#[test]
fn names_that_are_not_its_own_to_have_are_not_signed() {
    let fixture = TestAuthority::new("cluster.local");
    for bad in [
        "ratings.bookinfo.cluster.local",
        "web.shop.svc.cluster.local",
        "shop.cluster.local",
        "cluster.local",
    ] {
        let error = issue(&fixture, &["batch.corp.example", bad]).unwrap_err();
        assert!(matches!(error, AuthorityError::Subject { .. }), "{bad}: {error}");
    }
    assert!(matches!(issue(&fixture, &[]), Err(AuthorityError::Nameless(_))));
    let foreign =
        ExternalPrincipalId { trust_domain: TrustDomain::new("other").unwrap(), ..principal_id() };
    let names = parse_names(&["batch.corp.example"]);
    let subject = ExternalSubject { id: &foreign, names: &names, sponsor: SubjectScope::Mesh };
    let made = ExternalCertificate::issue(&fixture.authority, subject, DAY, now());
    assert!(matches!(made, Err(AuthorityError::ForeignTrustDomain { .. })));
    let subject =
        ExternalSubject { id: &principal_id(), names: &names, sponsor: SubjectScope::Mesh };
    let made = ExternalCertificate::issue(&fixture.authority, subject, DAY * 91, now());
    assert!(matches!(made, Err(AuthorityError::Lifetime(_))));
}

#[test]
fn what_is_kept_is_good_for_two_thirds_of_its_life_if_it_is_as_it_would_be_made() {
    let fixture = TestAuthority::new("cluster.local");
    let (id, shop) = (principal_id(), Name::new("shop").unwrap());
    let (called, otherwise) =
        (parse_names(&["batch.corp.example"]), parse_names(&["other.corp.example"]));
    let subject =
        |names| ExternalSubject { id: &id, names, sponsor: SubjectScope::Namespace(&shop) };
    let made = issue(&fixture, &["batch.corp.example"]).unwrap();
    let again = issue(&fixture, &["batch.corp.example"]).unwrap();
    let (key, others_key) = (made.key_pem(), again.key_pem());
    let held = StoredCertificate { key: &key, chain: made.chain_pem(), roots: made.roots_pem() };
    let until = held.good_until(&fixture.authority, subject(&called), DAY).unwrap();
    let close = |left: SystemTime, right: SystemTime| {
        let apart = left.duration_since(right).unwrap_or_else(|error| error.duration());
        apart < Duration::from_secs(5)
    };
    assert!(close(until, now() + Duration::from_secs(16 * 3600)));
    // A shorter lifetime configured later takes effect.
    let hour = Duration::from_secs(3600);
    let until = held.good_until(&fixture.authority, subject(&called), hour).unwrap();
    assert!(close(until, now() + Duration::from_secs(2400)));
    assert_eq!(held.good_until(&fixture.authority, subject(&otherwise), DAY), None);
    let damaged = [
        StoredCertificate { key: &others_key, ..held },
        StoredCertificate { key: "", ..held },
        StoredCertificate { chain: "", ..held },
        StoredCertificate { chain: made.roots_pem(), ..held },
        StoredCertificate { roots: "", ..held },
    ];
    for held in damaged {
        assert_eq!(held.good_until(&fixture.authority, subject(&called), DAY), None);
    }
    let other = TestAuthority::new("cluster.local");
    assert_eq!(held.good_until(&other.authority, subject(&called), DAY), None);
    // The roots are those of the other authority, the signer is not.
    let theirs = other.authority.roots().to_pem();
    let held = StoredCertificate { roots: &theirs, ..held };
    assert_eq!(held.good_until(&other.authority, subject(&called), DAY), None);
}

#[test]
fn a_external_principal_cannot_be_the_control_plane() {
    let fixture = TestAuthority::new("cluster.local");
    let made = issue(&fixture, &["batch.corp.example"]).unwrap();
    let chain = CertificateDer::pem_slice_iter(made.chain_pem().as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let control = control_id(fixture.authority.trust_domain());
    assert_ne!(ExternalPrincipal::read(&chain[0]).unwrap().id.to_string(), control.to_string());
    assert!(!format!("{made:?}").contains("PRIVATE"));
}
