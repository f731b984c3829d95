//! Tests of vouching and signing.

use std::collections::BTreeSet;

use leno_discovery::IssuedBytes;
use leno_identity::{Authority, Credential, LEAF_LIFETIME, PrivateKey, Roots, TOKEN_LIFETIME};
use leno_model::Name;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::fixture::{BOOKINFO, mesh, workload};
use crate::mesh::Mesh;

struct Office {
    certifier: Certifier,
    tokens: Arc<Tokens>,
    mesh: Mesh,
    _data: TempDir,
}

impl Office {
    fn open() -> Self {
        let data = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let mesh = mesh(BOOKINFO);
        let trust_domain = &mesh.config().trust_domain;
        let directory = data.path().join(AUTHORITY_DIRECTORY);
        let authority = Authority::open_or_create(&directory, trust_domain, now).unwrap();
        let tokens = Arc::new(open_tokens(data.path(), now).unwrap());
        let certifier = Certifier::new(
            tokio::sync::watch::Sender::new(Arc::new(authority)).subscribe(),
            Arc::clone(&tokens),
            LEAF_LIFETIME,
        );
        Self { certifier, tokens, mesh, _data: data }
    }

    fn token(&self, name: &str) -> String {
        self.tokens.mint(&workload(name), TOKEN_LIFETIME, SystemTime::now()).unwrap()
    }

    async fn join(&mut self, token: &str, name: &str, csr: Vec<u8>) -> Result<IssuedBytes, String> {
        let (answer, answered) = oneshot::channel();
        let workload = workload(name);
        let account = self.mesh.workload(&workload).map(|workload| workload.account.clone());
        let joining = Joining { token: token.to_owned(), workload, csr, answer };
        self.certifier.join(joining, account, SystemTime::now());
        answered.await.unwrap()
    }
}

#[tokio::test]
async fn a_token_gives_one_certificate_for_its_workload() {
    let mut office = Office::open();
    let token = office.token("details-1");
    let key = PrivateKey::generate();
    let issued = office.join(&token, "details-1", key.request()).await.unwrap();
    let roots = Roots::new(issued.roots.into_iter().map(Into::into).collect()).unwrap();
    let chain = issued.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, Issued::new(chain, roots).unwrap()).unwrap();
    assert_eq!(credential.workload(), Some(&workload("details-1")));
    assert_eq!(credential.id().to_string(), "spiffe://cluster.local/ns/bookinfo/sa/details");
    let Done::Signed(signed, occasion) = office.certifier.next().await else { panic!() };
    assert_eq!(occasion, Occasion::Join);
    assert_eq!((signed.workload, signed.id), (workload("details-1"), credential.id().clone()));
    let replayed = office.join(&token, "details-1", PrivateKey::generate().request()).await;
    assert!(replayed.unwrap_err().contains("token"));
}

#[tokio::test]
async fn a_bad_request_does_not_cost_the_token() {
    let mut office = Office::open();
    let token = office.token("details-1");
    let request = PrivateKey::generate().request();
    let refused = office.join(&token, "details-1", b"nonsense".to_vec()).await;
    assert!(refused.unwrap_err().contains("PKCS #10"));
    for other in ["reviews-v1-1", "nobody"] {
        assert!(office.join(&token, other, request.clone()).await.is_err());
    }
    assert!(office.join(&token, "details-1", request).await.is_ok());
}

#[tokio::test]
async fn a_stranger_does_not_learn_from_a_guess_what_there_is() {
    let mut office = Office::open();
    let token = office.token("details-1");
    let expired = office.tokens.mint(
        &workload("details-1"),
        TOKEN_LIFETIME,
        SystemTime::now() - 2 * TOKEN_LIFETIME,
    );
    let unknown = format!("leno-join-{}", "0".repeat(64));
    let mut answers = BTreeSet::new();
    for (token, name) in [
        (&token, "reviews-v1-1"),
        (&token, "nobody"),
        (&unknown, "details-1"),
        (&unknown, "nobody"),
        (&expired.unwrap(), "details-1"),
    ] {
        let request = PrivateKey::generate().request();
        answers.insert(office.join(token, name, request).await.unwrap_err());
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn a_certificate_that_nobody_waits_for_is_not_a_refusal() {
    let mut office = Office::open();
    let details = office.mesh.workload(&workload("details-1")).unwrap().clone();
    let (answer, _) = oneshot::channel();
    let request = PrivateKey::generate().request();
    office.certifier.renew((ConnectionId(7), &details), request, answer, SystemTime::now());
    while office.certifier.issued == 0 {
        tokio::select! {
            biased;
            told = office.certifier.next() => panic!("{told:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(office.certifier.refused, 0);
    assert_eq!(office.certifier.known().count(), 0);
}

#[tokio::test]
async fn a_renewal_is_for_the_account_of_the_workload_now() {
    let mut office = Office::open();
    let mut details = office.mesh.workload(&workload("details-1")).unwrap().clone();
    details.account.name = Name::new("other").unwrap();
    let (answer, answered) = oneshot::channel();
    let request = PrivateKey::generate().request();
    office.certifier.renew((ConnectionId(1), &details), request, answer, SystemTime::now());
    assert!(answered.await.unwrap().is_ok());
    let Done::Signed(signed, _) = office.certifier.next().await else { panic!() };
    assert_eq!(signed.id.account.name.as_str(), "other");
}

#[test]
fn vouches_only_for_the_workload_and_account_of_the_certificate() {
    let mesh = mesh(BOOKINFO);
    let details = mesh.workload(&workload("details-1"));
    let peer = |id: &str, name: Option<&str>| Peer {
        id: format!("spiffe://{id}").parse().unwrap(),
        workload: name.map(workload),
        not_before: SystemTime::UNIX_EPOCH,
        not_after: SystemTime::UNIX_EPOCH,
    };
    let domain = TrustDomain::new("cluster.local").unwrap();
    let good = "cluster.local/ns/bookinfo/sa/details";
    for (peer, found, expected) in [
        (peer(good, Some("details-1")), details, None),
        (peer(good, Some("details-2")), details, Some("that of workload `bookinfo/details-2`")),
        (peer(good, None), details, Some("that of workload ``")),
        (peer(good, Some("details-1")), None, Some("no Workload bookinfo/details-1")),
        (peer("cluster.local/ns/bookinfo/sa/x", Some("details-1")), details, Some("join again")),
        (peer("other.local/ns/bookinfo/sa/details", Some("details-1")), details, Some("other")),
    ] {
        let vouched = vouch(&peer, &workload("details-1"), found, &domain);
        let error = vouched.err().map(|error| error.to_string());
        match (&error, expected) {
            (None, None) => {}
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            _ => panic!("{peer:?}: {error:?}"),
        }
    }
}
