//! Joins, renewals and claims of certificates: the valid token, workload, account and instance.

use std::collections::BTreeSet;

use leno_discovery::{IssuanceFailure, IssuedCertificate};
use leno_identity::{
    Authority, Credential, LEAF_LIFETIME, PrivateKey, Roots, TOKEN_LIFETIME, VerifiedPeer,
    session_peer,
};
use leno_model::{Name, TrustDomain};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::fixture::{BOOKINFO, mesh_with_sidecars, workload_name};
use crate::mesh::Mesh;

struct CertifierFixture {
    certifier: Certifier,
    tokens: Arc<Tokens>,
    mesh: Mesh,
    _data: TempDir,
}

impl CertifierFixture {
    fn open() -> Self {
        let data = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let mesh = mesh_with_sidecars(BOOKINFO);
        let trust_domain = &mesh.config().trust_domain;
        let directory = data.path().join(AUTHORITY_DIRECTORY);
        let authority = Authority::open_or_create(&directory, trust_domain, now).unwrap();
        let join_credentials = open_join_credentials(data.path(), now).unwrap();
        let tokens = Arc::clone(&join_credentials.tokens);
        let authority = tokio::sync::watch::Sender::new(Arc::new(authority)).subscribe();
        let certifier = Certifier::new(authority, Arc::new(join_credentials), LEAF_LIFETIME);
        Self { certifier, tokens, mesh, _data: data }
    }

    fn create_token(&self, name: &str) -> String {
        self.tokens.issue_token(&workload_name(name), TOKEN_LIFETIME, SystemTime::now()).unwrap()
    }

    async fn join(
        &mut self,
        token: &str,
        name: &str,
        csr: Vec<u8>,
    ) -> Result<IssuedCertificate, IssuanceFailure> {
        let (reply_sender, result) = oneshot::channel();
        let workload = workload_name(name);
        let holder = self.mesh.workload(&workload).map(CertificateHolder::from_workload);
        let source = [10, 0, 0, 1].into();
        let pending_join =
            PendingJoin { token: token.to_owned(), workload, csr, source, reply: reply_sender };
        self.certifier.queue_join(pending_join, holder, SystemTime::now());
        result.await.unwrap()
    }

    /// Returns the instance of the certificate for a new token.
    async fn join_workload(&mut self, name: &str) -> Option<Instance> {
        let (token, request) =
            (self.create_token(name), PrivateKey::generate().certificate_request());
        instance_in(self.join(&token, name, request).await.unwrap())
    }

    /// Returns the instance of the renewed certificate after one with this instance.
    async fn renew_certificate(
        &mut self,
        workload: &Workload,
        instance: Option<Instance>,
    ) -> Result<Option<Instance>, IssuanceFailure> {
        // Issued a minute ago.
        let previous = PreviousCertificate {
            instance,
            issued_at: SystemTime::now() - Duration::from_secs(60),
        };
        self.renew_previous(workload, previous).await
    }

    async fn renew_previous(
        &mut self,
        workload: &Workload,
        previous: PreviousCertificate,
    ) -> Result<Option<Instance>, IssuanceFailure> {
        let (reply_sender, result) = oneshot::channel();
        let request = PrivateKey::generate().certificate_request();
        self.certifier.renew_certificate(
            ConnectionId(7),
            workload,
            previous,
            request,
            reply_sender,
            SystemTime::now(),
        );
        result.await.unwrap().map(instance_in)
    }
}

fn certificate_without_instance() -> PreviousCertificate {
    PreviousCertificate { instance: None, issued_at: SystemTime::now() }
}

fn instance_in(issued: IssuedCertificate) -> Option<Instance> {
    let chain: Vec<_> = issued.chain.into_iter().map(Into::into).collect();
    session_peer(Some(&chain), SystemTime::now()).unwrap().unwrap().instance
}

#[tokio::test]
async fn a_join_with_a_new_token_ends_the_renewals_of_former_certificates() {
    let mut fixture = CertifierFixture::open();
    let details = fixture.mesh.workload(&workload_name("details-1")).unwrap().clone();
    // The certificate of an older release, before and after its renewal.
    let unbound = fixture.renew_certificate(&details, None).await.unwrap();
    assert_eq!(unbound, Some(Instance::Registration(0)));
    assert_eq!(fixture.renew_certificate(&details, unbound.clone()).await.unwrap(), unbound);

    let first = fixture.join_workload("details-1").await;
    assert_eq!(fixture.renew_certificate(&details, first.clone()).await.unwrap(), first);
    for former in [None, unbound] {
        let error = fixture.renew_certificate(&details, former).await.unwrap_err().reason;
        assert!(error.contains("bookinfo/details-1 was replaced"), "{error}");
    }
    let second = fixture.join_workload("details-1").await;
    assert!(second > first);
    assert!(fixture.renew_certificate(&details, first).await.is_err());
    assert_eq!(fixture.renew_certificate(&details, second.clone()).await.unwrap(), second);
    // A control plane of an older release has renewed it since.
    let later_certificate = PreviousCertificate {
        instance: None,
        issued_at: SystemTime::now() + Duration::from_secs(2),
    };
    assert_eq!(fixture.renew_previous(&details, later_certificate).await.unwrap(), second);
    // Other workloads are not affected.
    let reviews = fixture.mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
    assert!(fixture.renew_certificate(&reviews, None).await.is_ok());
}

#[tokio::test]
async fn a_certificate_is_renewed_only_for_its_pod() {
    let mut fixture = CertifierFixture::open();
    let mut details = fixture.mesh.workload(&workload_name("details-1")).unwrap().clone();
    let uid = |text: &str| Some(Uid::new(text).unwrap());
    details.uid = uid("former");
    let former = fixture.renew_certificate(&details, None).await.unwrap();
    assert_eq!(former, Some(Instance::Pod(Uid::new("former").unwrap())));
    assert_eq!(fixture.renew_certificate(&details, former.clone()).await.unwrap(), former);
    details.uid = uid("new");
    for held in [former, Some(Instance::Registration(7))] {
        let error = fixture.renew_certificate(&details, held).await.unwrap_err().reason;
        assert!(error.contains("its instance is now `pod:new`"), "{error}");
    }
}

#[tokio::test]
async fn many_guesses_from_one_source_do_not_delay_another() {
    let mut fixture = CertifierFixture::open();
    let token = fixture.create_token("details-1");
    let holder =
        fixture.mesh.workload(&workload_name("details-1")).map(CertificateHolder::from_workload);
    let mut guess_responses = Vec::new();
    let send_join = |fixture: &mut CertifierFixture, token: String, source: [u8; 4]| {
        let (reply_sender, result) = oneshot::channel();
        let (workload, csr) =
            (workload_name("details-1"), PrivateKey::generate().certificate_request());
        let pending_join =
            PendingJoin { token, workload, csr, source: source.into(), reply: reply_sender };
        fixture.certifier.queue_join(pending_join, holder.clone(), SystemTime::now());
        result
    };
    for guess in 0..500 {
        guess_responses.push(send_join(
            &mut fixture,
            format!("leno-join-{guess:064}"),
            [10, 0, 0, 9],
        ));
    }
    let mut response = send_join(&mut fixture, token, [10, 0, 0, 1]);
    let result = loop {
        tokio::select! {
            biased;
            result = &mut response => break result.unwrap(),
            _ = fixture.certifier.next_event() => {}
        }
    };
    assert!(result.is_ok(), "{result:?}");
}

#[tokio::test]
async fn a_token_gives_one_certificate_for_its_workload() {
    let mut fixture = CertifierFixture::open();
    let token = fixture.create_token("details-1");
    let key = PrivateKey::generate();
    let issued = fixture.join(&token, "details-1", key.certificate_request()).await.unwrap();
    let roots = Roots::new(issued.roots.into_iter().map(Into::into).collect()).unwrap();
    let chain = issued.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, CertificateBundle::new(chain, roots).unwrap()).unwrap();
    assert_eq!(credential.workload(), Some(&workload_name("details-1")));
    assert_eq!(credential.id().to_string(), "spiffe://cluster.local/ns/bookinfo/sa/details");
    let CertifierEvent::Signed(signed, reason) = fixture.certifier.next_event().await else {
        panic!()
    };
    assert_eq!(reason, SigningReason::Join);
    assert_eq!((signed.workload, signed.id), (workload_name("details-1"), credential.id().clone()));
    let replayed =
        fixture.join(&token, "details-1", PrivateKey::generate().certificate_request()).await;
    assert!(replayed.unwrap_err().reason.contains("token"));
}

#[tokio::test]
async fn an_invalid_request_does_not_use_up_the_token() {
    let mut fixture = CertifierFixture::open();
    let token = fixture.create_token("details-1");
    let request = PrivateKey::generate().certificate_request();
    let rejected = fixture.join(&token, "details-1", b"nonsense".to_vec()).await;
    assert!(rejected.unwrap_err().reason.contains("PKCS #10"));
    for other in ["reviews-v1-1", "nobody"] {
        assert!(fixture.join(&token, other, request.clone()).await.is_err());
    }
    assert!(fixture.join(&token, "details-1", request).await.is_ok());
}

#[tokio::test]
async fn a_rejection_does_not_reveal_which_workloads_exist() {
    let mut fixture = CertifierFixture::open();
    let token = fixture.create_token("details-1");
    let expired = fixture.tokens.issue_token(
        &workload_name("details-1"),
        TOKEN_LIFETIME,
        SystemTime::now() - 2 * TOKEN_LIFETIME,
    );
    let unknown = format!("leno-join-{}", "0".repeat(64));
    let mut reasons = BTreeSet::new();
    for (token, name) in [
        (&token, "reviews-v1-1"),
        (&token, "nobody"),
        (&unknown, "details-1"),
        (&unknown, "nobody"),
        (&expired.unwrap(), "details-1"),
    ] {
        let request = PrivateKey::generate().certificate_request();
        reasons.insert(fixture.join(token, name, request).await.unwrap_err().reason);
    }
    assert_eq!(reasons.len(), 1, "{reasons:?}");
}

#[tokio::test]
async fn a_certificate_without_a_receiver_is_not_a_rejection() {
    let mut fixture = CertifierFixture::open();
    let details = fixture.mesh.workload(&workload_name("details-1")).unwrap().clone();
    let (reply_sender, _) = oneshot::channel();
    let request = PrivateKey::generate().certificate_request();
    fixture.certifier.renew_certificate(
        ConnectionId(7),
        &details,
        certificate_without_instance(),
        request,
        reply_sender,
        SystemTime::now(),
    );
    while fixture.certifier.issued_count == 0 {
        tokio::select! {
            biased;
            event = fixture.certifier.next_event() => panic!("{event:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(fixture.certifier.rejected_count, 0);
    assert_eq!(fixture.certifier.latest_certificates().count(), 0);
}

#[tokio::test]
async fn a_renewal_is_for_the_current_account_of_the_workload() {
    let mut fixture = CertifierFixture::open();
    let mut details = fixture.mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.account.name = Name::new("other").unwrap();
    let (reply_sender, result) = oneshot::channel();
    let request = PrivateKey::generate().certificate_request();
    fixture.certifier.renew_certificate(
        ConnectionId(1),
        &details,
        certificate_without_instance(),
        request,
        reply_sender,
        SystemTime::now(),
    );
    assert!(result.await.unwrap().is_ok());
    let CertifierEvent::Signed(signed, _) = fixture.certifier.next_event().await else { panic!() };
    assert_eq!(signed.id.account.name.as_str(), "other");
}

#[test]
fn a_claim_is_valid_only_for_the_workload_and_account_of_the_certificate() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let details = mesh.workload(&workload_name("details-1"));
    let peer = |id: &str, name: Option<&str>| VerifiedPeer {
        id: format!("spiffe://{id}").parse().unwrap(),
        workload: name.map(workload_name),
        instance: None,
        not_before: SystemTime::UNIX_EPOCH,
        not_after: SystemTime::UNIX_EPOCH,
    };
    let domain = TrustDomain::new("cluster.local").unwrap();
    let valid_id = "cluster.local/ns/bookinfo/sa/details";
    for (peer, existing_workload, expected) in [
        (peer(valid_id, Some("details-1")), details, None),
        (
            peer(valid_id, Some("details-2")),
            details,
            Some("issued to workload `bookinfo/details-2`"),
        ),
        (peer(valid_id, None), details, Some("issued to workload ``")),
        (peer(valid_id, Some("details-1")), None, Some("no Workload bookinfo/details-1")),
        (peer("cluster.local/ns/bookinfo/sa/x", Some("details-1")), details, Some("join again")),
        (peer("other.local/ns/bookinfo/sa/details", Some("details-1")), details, Some("other")),
    ] {
        let instance = Instance::Registration(0);
        let result = verify_claim(
            &peer,
            &workload_name("details-1"),
            existing_workload.map(|existing_workload| (existing_workload, &instance)),
            &domain,
        );
        let error = result.err().map(|error| error.to_string());
        match (&error, expected) {
            (None, None) => {}
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            _ => panic!("{peer:?}: {error:?}"),
        }
    }
}

#[test]
fn a_claim_of_a_former_instance_of_the_workload_is_rejected() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let details = mesh.workload(&workload_name("details-1")).unwrap();
    let domain = TrustDomain::new("cluster.local").unwrap();
    let is_valid = |held: Option<Instance>, current: &Instance| {
        let peer = VerifiedPeer {
            id: "spiffe://cluster.local/ns/bookinfo/sa/details".parse().unwrap(),
            workload: Some(workload_name("details-1")),
            instance: held,
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
        };
        verify_claim(&peer, &workload_name("details-1"), Some((details, current)), &domain).is_ok()
    };
    let pod = |text: &str| Instance::Pod(Uid::new(text).unwrap());
    let registration = Instance::Registration;
    assert!(is_valid(Some(pod("a")), &pod("a")) && !is_valid(Some(pod("a")), &pod("b")));
    assert!(is_valid(Some(registration(5_000)), &registration(5_000)));
    assert!(!is_valid(Some(registration(4_000)), &registration(5_000)));
    // A certificate of an older release is valid until its workload joins again.
    assert!(is_valid(None, &pod("a")) && is_valid(None, &registration(0)));
    assert!(!is_valid(None, &registration(5_000)));
    assert!(
        !is_valid(Some(pod("a")), &registration(0))
            && !is_valid(Some(registration(5_000)), &pod("a"))
    );
}
