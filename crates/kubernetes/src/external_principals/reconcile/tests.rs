//! Tests the reconciliation of Secrets of external principals, with a minimal API server.

use k8s_openapi::api::core::v1::Secret;
use leno_identity::AuthoritySource;
use leno_model::{ExternalPrincipalId, Name, TrustDomain};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::external_principals::OwnerObject;
use crate::testing::Server;

const PATH: &str = "/api/v1/namespaces/shop/secrets/batch-tls";
const DAY: Duration = Duration::from_secs(24 * 3600);

fn create_authority() -> (Authority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let source = AuthoritySource::BuiltIn(dir.path().join("authority"));
    let domain = TrustDomain::new("cluster.local").unwrap();
    (source.open_or_create(&domain, SystemTime::now()).unwrap(), dir)
}

fn certificate_request(secret: &str) -> ExternalCertificateRequest {
    ExternalCertificateRequest {
        owner: OwnerObject {
            api_version: "policy.flomesh.io/v1alpha1".to_owned(),
            kind: "AccessCert",
            namespace: "shop".to_owned(),
            name: "batch".to_owned(),
            uid: "u-1".to_owned(),
        },
        id: ExternalPrincipalId {
            trust_domain: TrustDomain::new("cluster.local").unwrap(),
            secret: SecretName::new("shop", secret).unwrap(),
        },
        names: vec![Name::new("batch.corp.example").unwrap()],
        lifetime: None,
        created: 0,
    }
}

/// A leading control plane and its published outcomes.
struct LeaderFixture {
    reconciler: CertificateReconciler,
    outcomes_receiver: watch::Receiver<Arc<CertificateOutcomes>>,
}

impl LeaderFixture {
    fn new(server: &Server) -> Self {
        let (outcomes, outcomes_receiver) = watch::channel(Arc::default());
        let client = server.client.clone();
        let reconciler =
            CertificateReconciler { client, lifetime: DAY, secrets: BTreeMap::new(), outcomes };
        Self { reconciler, outcomes_receiver }
    }

    /// Runs one round in which all Secrets are due.
    async fn run_round(&mut self, requests: &[ExternalCertificateRequest], authority: &Authority) {
        self.run_round_with_unchanged(requests, &[], authority).await;
    }

    /// Runs one round in which all Secrets are due, and the objects `unchanged` have invalid requests.
    async fn run_round_with_unchanged(
        &mut self,
        requests: &[ExternalCertificateRequest],
        unchanged: &[&str],
        authority: &Authority,
    ) {
        let unchanged = unchanged.iter().map(|uid| (*uid).to_owned()).collect();
        self.reconciler.update_requests(&DesiredCertificates {
            requests: requests.to_vec(),
            unchanged_owners: unchanged,
        });
        for state in self.reconciler.secrets.values_mut() {
            state.next_check = Instant::now();
        }
        for name in self.reconciler.due_secrets(authority) {
            self.reconciler.reconcile_by_name(&name, authority).await;
        }
        self.reconciler.publish_outcomes();
    }

    fn reported_outcome(&self) -> Option<Result<(), String>> {
        self.outcomes_receiver.borrow().get("u-1").cloned()
    }
}

/// Returns the requests to the API server since the last call.
fn take_requests(server: &Server) -> Vec<String> {
    let requests = std::mem::take(&mut server.store.lock().unwrap().requests);
    requests
        .into_iter()
        .map(|request| request.replace("/api/v1/namespaces/shop/secrets/", ""))
        .collect()
}

fn stored_secret(server: &Server) -> Option<Secret> {
    let store = server.store.lock().unwrap();
    store.objects.get(PATH).map(|object| serde_json::from_value(object.clone()).unwrap())
}

#[tokio::test]
async fn a_secret_is_created_checked_and_deleted() {
    let (server, (authority, _dir)) = (Server::start_server().await, create_authority());
    let mut leader = LeaderFixture::new(&server);
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    assert_eq!(leader.reported_outcome(), Some(Ok(())));
    assert_eq!(take_requests(&server), ["GET batch-tls", "POST batch-tls"]);
    // The Secret is unchanged, so the leader requests only its metadata.
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    assert_eq!(take_requests(&server), ["GET batch-tls"]);
    // The request names another Secret: the previous Secret is deleted.
    leader.run_round(&[certificate_request("other-tls")], &authority).await;
    assert!(stored_secret(&server).is_none());
    assert_eq!(leader.reported_outcome(), Some(Ok(())));
    leader.run_round(&[], &authority).await;
    assert!(server.store.lock().unwrap().objects.is_empty());
    assert_eq!(leader.reported_outcome(), None);
    assert!(leader.reconciler.secrets.is_empty());
}

#[tokio::test]
async fn a_foreign_secret_is_neither_written_nor_deleted() {
    let (server, (authority, _dir)) = (Server::start_server().await, create_authority());
    let foreign = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "batch-tls", "namespace": "shop", "resourceVersion": "7"},
        "data": {"tls.key": "", "tls.crt": ""},
    });
    server.store.lock().unwrap().objects.insert(PATH.to_owned(), foreign.clone());
    let mut leader = LeaderFixture::new(&server);
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    let reason = leader.reported_outcome().unwrap().unwrap_err();
    assert!(
        reason.contains("exists and was not created for the AccessCert shop/batch"),
        "{reason}"
    );
    leader.run_round(&[], &authority).await;
    assert_eq!(server.store.lock().unwrap().objects[PATH], foreign);
    assert!(leader.reconciler.secrets.is_empty());
}

#[tokio::test]
async fn the_secret_of_an_invalid_request_is_kept() {
    let (server, (authority, _dir)) = (Server::start_server().await, create_authority());
    let mut leader = LeaderFixture::new(&server);
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    take_requests(&server);
    leader.run_round_with_unchanged(&[], &["u-1"], &authority).await;
    assert!(
        stored_secret(&server).is_some()
            && leader.reconciler.secrets.is_empty()
            && take_requests(&server).is_empty()
    );
}

#[tokio::test]
async fn a_transient_error_is_reported_only_if_it_persists() {
    let (server, (first, _dir)) = (Server::start_server().await, create_authority());
    let mut leader = LeaderFixture::new(&server);
    leader.reconciler.update_requests(&DesiredCertificates {
        requests: vec![certificate_request("batch-tls")],
        ..DesiredCertificates::default()
    });
    let name = SecretName::new("shop", "batch-tls").unwrap();
    for (times, expected) in [(2, None), (1, Some(Err("spec.secret: late".to_owned())))] {
        for _ in 0..times {
            leader.reconciler.record_failure(&name, ReconcileError::Transient("late".to_owned()));
        }
        leader.reconciler.publish_outcomes();
        assert_eq!(leader.reported_outcome(), expected);
    }
    // If the new authority cannot issue the certificate, the reconciler does not try again at every check.
    leader.run_round(&[certificate_request("batch-tls")], &first).await;
    let (second, _other) = create_authority();
    assert_eq!(leader.reconciler.due_secrets(&second).len(), 1);
    leader.reconciler.record_failure(&name, ReconcileError::Permanent("no".to_owned()));
    assert_eq!(leader.reconciler.due_secrets(&second).len(), 0);
    // A certificate that is due for renewal does not hide failures.
    leader.run_round(&[certificate_request("batch-tls")], &first).await;
    leader.reconciler.secrets.get_mut(&name).unwrap().renewal_time = Some(SystemTime::now());
    for _ in 0..3 {
        leader.reconciler.record_failure(&name, ReconcileError::Transient("late".to_owned()));
    }
    leader.reconciler.publish_outcomes();
    assert_eq!(leader.reported_outcome(), Some(Err("spec.secret: late".to_owned())));
}

#[tokio::test]
async fn a_damaged_or_outdated_certificate_is_issued_again() {
    let (server, (first, _dir)) = (Server::start_server().await, create_authority());
    let mut leader = LeaderFixture::new(&server);
    leader.run_round(&[certificate_request("batch-tls")], &first).await;
    let before = stored_secret(&server).unwrap().data;
    {
        let mut store = server.store.lock().unwrap();
        let stored = store.objects.get_mut(PATH).unwrap();
        stored["data"]["tls.key"] = json!("");
        stored["metadata"]["resourceVersion"] = json!("999");
    }
    leader.run_round(&[certificate_request("batch-tls")], &first).await;
    let repaired = stored_secret(&server).unwrap().data;
    assert!(repaired != before && leader.reported_outcome() == Some(Ok(())));
    // After a change of the authority, the certificate is due immediately and not only at its renewal time.
    let (second, _other) = create_authority();
    assert_eq!(leader.reconciler.due_secrets(&first).len(), 0);
    assert_eq!(leader.reconciler.due_secrets(&second).len(), 1);
    leader.run_round(&[certificate_request("batch-tls")], &second).await;
    assert!(stored_secret(&server).unwrap().data != repaired);
    // A deleted Secret is recreated.
    server.store.lock().unwrap().objects.clear();
    leader.run_round(&[certificate_request("batch-tls")], &second).await;
    assert!(stored_secret(&server).is_some());
}

#[tokio::test]
async fn a_rejection_by_the_api_server_is_reported_and_retried_later() {
    let (server, (authority, _dir)) = (Server::start_server().await, create_authority());
    server.store.lock().unwrap().forbidden = Some(("POST", "/secrets/"));
    let mut leader = LeaderFixture::new(&server);
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    assert_eq!(leader.reported_outcome(), Some(Err("spec.secret: no".to_owned())));
    assert_eq!(leader.reconciler.due_secrets(&authority).len(), 0, "not at once");
    server.store.lock().unwrap().forbidden = None;
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    assert_eq!(leader.reported_outcome(), Some(Ok(())));
    // A transient error does not change the outcome of a valid certificate.
    let name = SecretName::new("shop", "batch-tls").unwrap();
    leader.reconciler.record_failure(&name, ReconcileError::Transient("late".to_owned()));
    leader.reconciler.publish_outcomes();
    assert_eq!(leader.reported_outcome(), Some(Ok(())));
}

#[tokio::test]
async fn a_control_plane_that_does_not_lead_publishes_no_outcomes() {
    let (server, (authority, _dir)) = (Server::start_server().await, create_authority());
    let mut leader = LeaderFixture::new(&server);
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    leader.reconciler.update_requests(&DesiredCertificates {
        requests: vec![certificate_request("batch-tls")],
        ..DesiredCertificates::default()
    });
    leader.reconciler.reset_checks();
    leader.reconciler.publish_outcomes();
    assert_eq!(leader.reported_outcome(), None);
    // The new leader finds the Secret valid.
    take_requests(&server);
    leader.run_round(&[certificate_request("batch-tls")], &authority).await;
    assert_eq!(
        (take_requests(&server), leader.reported_outcome()),
        (vec!["GET batch-tls".to_owned()], Some(Ok(())))
    );
}
