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
    permissive_server_config, server_config,
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

/// Issues a certificate with these DNS names for an external principal of the namespace `shop`.
fn issue(fixture: &TestAuthority, texts: &[&str]) -> Result<ExternalCertificate, AuthorityError> {
    let shop = Name::new("shop").unwrap();
    let (id, names) = (principal_id(), parse_names(texts));
    let subject =
        ExternalSubject { id: &id, names: &names, issuing_scope: SubjectScope::Namespace(&shop) };
    ExternalCertificate::issue(&fixture.authority, subject, DAY, now())
}

/// Returns a client such as nginx or curl, with the contents of the Secret only.
fn external_client_config(issued: &ExternalCertificate, server: &SpiffeId) -> Arc<ClientConfig> {
    let chain = CertificateDer::pem_slice_iter(issued.chain_pem().as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem().as_bytes()).unwrap();
    let roots = Roots::from_pem(issued.roots_pem()).unwrap();
    let verifier = IdentityVerifier::new(&roots, server.clone());
    let config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Arc::new(config.with_client_auth_cert(chain, key).unwrap())
}

#[test]
fn external_principals_are_accepted_where_allowed_and_never_as_members() {
    let fixture = TestAuthority::new("cluster.local");
    let issued = issue(&fixture, &["batch.corp.example", "nginx.shop.cluster.local"]).unwrap();
    let server = workload_id("ratings");
    let credential = fixture.issue_credential(&server);
    let client = external_client_config(&issued, &server);
    for config in [
        external_principal_server_config(&credential, &[]),
        permissive_server_config(&credential, &[]),
    ] {
        let HandshakeResult { client, server } = run_handshake(&client, &config.unwrap());
        client.unwrap();
        let server = server.unwrap();
        let chain = server.peer_certificates().unwrap();
        assert!(matches!(session_peer(Some(chain), now()), Err(VerifyError::InvalidUri(_))));
        let peer = external_principal(&chain[0], now()).unwrap();
        assert_eq!(peer.id, principal_id());
        assert_eq!(peer.names, parse_names(&["batch.corp.example", "nginx.shop.cluster.local"]));
        assert_eq!(external_principal(&chain[0], peer.not_after), Err(VerifyError::Expired));
    }
    // The server of a sidecar, and that of a control plane.
    for config in [server_config(&credential, &[]), join_server_config(&credential, &[])] {
        assert!(run_handshake(&client, &config.unwrap()).server.is_err());
    }
}

#[test]
fn a_server_cannot_use_the_certificate() {
    let fixture = TestAuthority::new("cluster.local");
    let issued = issue(&fixture, &["nginx.shop.cluster.local"]).unwrap();
    let chain = CertificateDer::pem_slice_iter(issued.chain_pem().as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any);
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem().as_bytes()).unwrap();
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
fn certificates_of_other_authorities_and_ids_are_rejected() {
    let (fixture, other) =
        (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let server = workload_id("ratings");
    let credential = fixture.issue_credential(&server);
    let config = external_principal_server_config(&credential, &[]).unwrap();
    // A certificate of another authority.
    let external_client = issue(&other, &["batch.corp.example"]).unwrap();
    let external_client =
        ExternalCertificate { roots_pem: fixture.authority.roots().to_pem(), ..external_client };
    assert!(
        run_handshake(&external_client_config(&external_client, &server), &config).server.is_err()
    );
    // Certificates of the same root with another name, or for an external principal of another mesh, are
    // rejected.
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let dns = SanType::DnsName("batch.corp.example".try_into().unwrap());
    let own_uri = "leno://cluster.local/guest/shop/batch";
    for (alternatives, is_accepted) in [
        (vec![dns.clone()], false),
        (vec![uri("leno://other/guest/shop/batch"), dns.clone()], false),
        (vec![uri("https://cluster.local/guest/shop/batch"), dns.clone()], false),
        (vec![uri(own_uri), uri(own_uri), dns.clone()], false),
        (vec![uri(own_uri)], false),
        (vec![uri(own_uri), dns], true),
    ] {
        let (chain, key) =
            fixture.forge_certificate(|parameters| parameters.subject_alt_names = alternatives);
        let mut chain_pem = String::new();
        write_pem(&mut chain_pem, CERTIFICATE_LABEL, &chain[0]);
        let roots = fixture.authority.roots().to_pem();
        let forged =
            ExternalCertificate { key, chain_pem, roots_pem: roots, not_after: now() + DAY };
        let handshake = run_handshake(&external_client_config(&forged, &server), &config);
        assert_eq!(handshake.server.is_ok(), is_accepted, "{forged:?}");
    }
}

#[test]
fn names_of_the_mesh_are_not_signed() {
    let fixture = TestAuthority::new("cluster.local");
    for name in [
        "ratings.bookinfo.cluster.local",
        "web.shop.svc.cluster.local",
        "shop.cluster.local",
        "cluster.local",
    ] {
        let error = issue(&fixture, &["batch.corp.example", name]).unwrap_err();
        assert!(matches!(error, AuthorityError::InvalidSubject { .. }), "{name}: {error}");
    }
    assert!(matches!(issue(&fixture, &[]), Err(AuthorityError::ExternalPrincipalWithoutName(_))));
    let other_domain_id =
        ExternalPrincipalId { trust_domain: TrustDomain::new("other").unwrap(), ..principal_id() };
    let names = parse_names(&["batch.corp.example"]);
    let subject =
        ExternalSubject { id: &other_domain_id, names: &names, issuing_scope: SubjectScope::Mesh };
    let issued = ExternalCertificate::issue(&fixture.authority, subject, DAY, now());
    assert!(matches!(issued, Err(AuthorityError::ForeignTrustDomain { .. })));
    let subject =
        ExternalSubject { id: &principal_id(), names: &names, issuing_scope: SubjectScope::Mesh };
    let issued = ExternalCertificate::issue(&fixture.authority, subject, DAY * 91, now());
    assert!(matches!(issued, Err(AuthorityError::LifetimeOutOfRange(_))));
}

#[test]
fn a_current_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
    let fixture = TestAuthority::new("cluster.local");
    let (id, shop) = (principal_id(), Name::new("shop").unwrap());
    let (own_names, other_names) =
        (parse_names(&["batch.corp.example"]), parse_names(&["other.corp.example"]));
    let subject =
        |names| ExternalSubject { id: &id, names, issuing_scope: SubjectScope::Namespace(&shop) };
    let issued = issue(&fixture, &["batch.corp.example"]).unwrap();
    let other_issued = issue(&fixture, &["batch.corp.example"]).unwrap();
    let (key, other_key) = (issued.key_pem(), other_issued.key_pem());
    let stored = StoredCertificate {
        key_pem: &key,
        chain_pem: issued.chain_pem(),
        roots_pem: issued.roots_pem(),
    };
    let renewal_time = stored.renewal_time(&fixture.authority, subject(&own_names), DAY).unwrap();
    let is_close = |first: SystemTime, second: SystemTime| {
        let distance = first.duration_since(second).unwrap_or_else(|error| error.duration());
        distance < Duration::from_secs(5)
    };
    assert!(is_close(renewal_time, now() + Duration::from_secs(16 * 3600)));
    // A shorter lifetime configured later takes effect.
    let hour = Duration::from_secs(3600);
    let renewal_time = stored.renewal_time(&fixture.authority, subject(&own_names), hour).unwrap();
    assert!(is_close(renewal_time, now() + Duration::from_secs(2400)));
    assert_eq!(stored.renewal_time(&fixture.authority, subject(&other_names), DAY), None);
    let damaged = [
        StoredCertificate { key_pem: &other_key, ..stored },
        StoredCertificate { key_pem: "", ..stored },
        StoredCertificate { chain_pem: "", ..stored },
        StoredCertificate { chain_pem: issued.roots_pem(), ..stored },
        StoredCertificate { roots_pem: "", ..stored },
    ];
    for stored in damaged {
        assert_eq!(stored.renewal_time(&fixture.authority, subject(&own_names), DAY), None);
    }
    let other_authority = TestAuthority::new("cluster.local");
    assert_eq!(stored.renewal_time(&other_authority.authority, subject(&own_names), DAY), None);
    // The roots are those of the other authority, the signer is not.
    let other_roots = other_authority.authority.roots().to_pem();
    let stored = StoredCertificate { roots_pem: &other_roots, ..stored };
    assert_eq!(stored.renewal_time(&other_authority.authority, subject(&own_names), DAY), None);
}

#[test]
fn an_external_principal_cannot_be_the_control_plane() {
    let fixture = TestAuthority::new("cluster.local");
    let issued = issue(&fixture, &["batch.corp.example"]).unwrap();
    let chain = CertificateDer::pem_slice_iter(issued.chain_pem().as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let control_plane_id = control_id(fixture.authority.trust_domain());
    assert_ne!(
        ExternalPrincipal::read(&chain[0]).unwrap().id.to_string(),
        control_plane_id.to_string()
    );
    assert!(!format!("{issued:?}").contains("PRIVATE"));
}
