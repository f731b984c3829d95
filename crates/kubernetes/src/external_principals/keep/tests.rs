//! Reconciliation of Secrets of external principals, with a minimal API server.

use k8s_openapi::api::core::v1::Secret;
use leno_identity::AuthoritySource;
use leno_model::{ExternalPrincipalId, Name, TrustDomain};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::external_principals::Owner;
use crate::testing::Server;

const PATH: &str = "/api/v1/namespaces/shop/secrets/batch-tls";
const DAY: Duration = Duration::from_secs(24 * 3600);

fn authority() -> (Authority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let source = AuthoritySource::Own(dir.path().join("authority"));
    let domain = TrustDomain::new("cluster.local").unwrap();
    (source.open_or_create(&domain, SystemTime::now()).unwrap(), dir)
}

fn desired(secret: &str) -> DesiredCertificate {
    DesiredCertificate {
        owner: Owner {
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
struct Led {
    keeper: Keeper,
    reported: watch::Receiver<Arc<Outcomes>>,
}

impl Led {
    fn new(server: &Server) -> Self {
        let (outcomes, reported) = watch::channel(Arc::default());
        let client = server.client.clone();
        let keeper = Keeper { client, lifetime: DAY, kept: BTreeMap::new(), outcomes };
        Self { keeper, reported }
    }

    /// Runs one round of a leader, after any delay.
    async fn round(&mut self, desired: &[DesiredCertificate], authority: &Authority) {
        self.round_leaving(desired, &[], authority).await;
    }

    /// Runs one round in which the objects `left` have invalid requests.
    async fn round_leaving(
        &mut self,
        desired: &[DesiredCertificate],
        left: &[&str],
        authority: &Authority,
    ) {
        let left = left.iter().map(|uid| (*uid).to_owned()).collect();
        self.keeper.want(&DesiredCertificates { wanted: desired.to_vec(), left });
        for kept in self.keeper.kept.values_mut() {
            kept.next = Instant::now();
        }
        for name in self.keeper.due(authority) {
            self.keeper.see_to(&name, authority).await;
        }
        self.keeper.tell();
    }

    fn outcome(&self) -> Option<Result<(), String>> {
        self.reported.borrow().get("u-1").cloned()
    }
}

/// Returns the requests since the last call.
fn asked(server: &Server) -> Vec<String> {
    let asked = std::mem::take(&mut server.store.lock().unwrap().asked);
    asked.into_iter().map(|it| it.replace("/api/v1/namespaces/shop/secrets/", "")).collect()
}

fn held(server: &Server) -> Option<Secret> {
    let store = server.store.lock().unwrap();
    store.objects.get(PATH).map(|it| serde_json::from_value(it.clone()).unwrap())
}

#[tokio::test]
async fn a_secret_is_made_looked_at_and_taken_away() {
    let (server, (authority, _dir)) = (Server::open().await, authority());
    let mut led = Led::new(&server);
    led.round(&[desired("batch-tls")], &authority).await;
    assert_eq!(led.outcome(), Some(Ok(())));
    assert_eq!(asked(&server), ["GET batch-tls", "POST batch-tls"]);
    // It is unchanged: only its metadata is requested.
    led.round(&[desired("batch-tls")], &authority).await;
    assert_eq!(asked(&server), ["GET batch-tls"]);
    // Renamed: the previous one is deleted.
    led.round(&[desired("other-tls")], &authority).await;
    assert!(held(&server).is_none());
    assert_eq!(led.outcome(), Some(Ok(())));
    led.round(&[], &authority).await;
    assert!(server.store.lock().unwrap().objects.is_empty());
    assert_eq!(led.outcome(), None);
    assert!(led.keeper.kept.is_empty());
}

#[tokio::test]
async fn what_somebody_else_made_is_neither_written_nor_removed() {
    let (server, (authority, _dir)) = (Server::open().await, authority());
    let theirs = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "batch-tls", "namespace": "shop", "resourceVersion": "7"},
        "data": {"tls.key": "", "tls.crt": ""},
    });
    server.store.lock().unwrap().objects.insert(PATH.to_owned(), theirs.clone());
    let mut led = Led::new(&server);
    led.round(&[desired("batch-tls")], &authority).await;
    let why = led.outcome().unwrap().unwrap_err();
    assert!(why.contains("exists and was not created for the AccessCert shop/batch"), "{why}");
    led.round(&[], &authority).await;
    assert_eq!(server.store.lock().unwrap().objects[PATH], theirs);
    assert!(led.keeper.kept.is_empty());
}

#[tokio::test]
async fn who_wants_what_cannot_be_keeps_what_there_is() {
    let (server, (authority, _dir)) = (Server::open().await, authority());
    let mut led = Led::new(&server);
    led.round(&[desired("batch-tls")], &authority).await;
    asked(&server);
    led.round_leaving(&[], &["u-1"], &authority).await;
    assert!(held(&server).is_some() && led.keeper.kept.is_empty() && asked(&server).is_empty());
}

#[tokio::test]
async fn what_passes_is_reported_when_it_has_not_passed() {
    let (server, (first, _dir)) = (Server::open().await, authority());
    let mut led = Led::new(&server);
    led.keeper.want(&DesiredCertificates {
        wanted: vec![desired("batch-tls")],
        ..DesiredCertificates::default()
    });
    let name = SecretName::new("shop", "batch-tls").unwrap();
    for (times, reported) in [(2, None), (1, Some(Err("spec.secret: late".to_owned())))] {
        for _ in 0..times {
            led.keeper.put_off(&name, Trouble::Passing("late".to_owned()));
        }
        led.keeper.tell();
        assert_eq!(led.outcome(), reported);
    }
    // A certificate that another authority cannot issue is not retried at every check.
    led.round(&[desired("batch-tls")], &first).await;
    let (second, _other) = authority();
    assert_eq!(led.keeper.due(&second).len(), 1);
    led.keeper.put_off(&name, Trouble::Reported("no".to_owned()));
    assert_eq!(led.keeper.due(&second).len(), 0);
    // A certificate that is due for renewal is no longer valid.
    led.round(&[desired("batch-tls")], &first).await;
    led.keeper.kept.get_mut(&name).unwrap().due = Some(SystemTime::now());
    for _ in 0..3 {
        led.keeper.put_off(&name, Trouble::Passing("late".to_owned()));
    }
    led.keeper.tell();
    assert_eq!(led.outcome(), Some(Err("spec.secret: late".to_owned())));
}

#[tokio::test]
async fn what_is_damaged_or_of_another_signer_is_made_anew() {
    let (server, (first, _dir)) = (Server::open().await, authority());
    let mut led = Led::new(&server);
    led.round(&[desired("batch-tls")], &first).await;
    let before = held(&server).unwrap().data;
    {
        let mut store = server.store.lock().unwrap();
        let held = store.objects.get_mut(PATH).unwrap();
        held["data"]["tls.key"] = json!("");
        held["metadata"]["resourceVersion"] = json!("999");
    }
    led.round(&[desired("batch-tls")], &first).await;
    let mended = held(&server).unwrap().data;
    assert!(mended != before && led.outcome() == Some(Ok(())));
    // Immediately, and not only at its renewal time.
    let (second, _other) = authority();
    assert_eq!(led.keeper.due(&first).len(), 0);
    assert_eq!(led.keeper.due(&second).len(), 1);
    led.round(&[desired("batch-tls")], &second).await;
    assert!(held(&server).unwrap().data != mended);
    // A deleted Secret is recreated.
    server.store.lock().unwrap().objects.clear();
    led.round(&[desired("batch-tls")], &second).await;
    assert!(held(&server).is_some());
}

#[tokio::test]
async fn what_the_api_server_forbids_is_reported_and_tried_again_later() {
    let (server, (authority, _dir)) = (Server::open().await, authority());
    server.store.lock().unwrap().forbidden = Some(("POST", "/secrets/"));
    let mut led = Led::new(&server);
    led.round(&[desired("batch-tls")], &authority).await;
    assert_eq!(led.outcome(), Some(Err("spec.secret: no".to_owned())));
    assert_eq!(led.keeper.due(&authority).len(), 0, "not at once");
    server.store.lock().unwrap().forbidden = None;
    led.round(&[desired("batch-tls")], &authority).await;
    assert_eq!(led.outcome(), Some(Ok(())));
    // A transient error does not invalidate a valid certificate.
    let name = SecretName::new("shop", "batch-tls").unwrap();
    led.keeper.put_off(&name, Trouble::Passing("late".to_owned()));
    led.keeper.tell();
    assert_eq!(led.outcome(), Some(Ok(())));
}

#[tokio::test]
async fn whoever_does_not_lead_asks_nothing_and_tells_nothing() {
    let (server, (authority, _dir)) = (Server::open().await, authority());
    let mut led = Led::new(&server);
    led.round(&[desired("batch-tls")], &authority).await;
    led.keeper.want(&DesiredCertificates {
        wanted: vec![desired("batch-tls")],
        ..DesiredCertificates::default()
    });
    led.keeper.forget();
    led.keeper.tell();
    assert_eq!(led.outcome(), None);
    // The new leader finds the Secret valid.
    asked(&server);
    led.round(&[desired("batch-tls")], &authority).await;
    assert_eq!((asked(&server), led.outcome()), (vec!["GET batch-tls".to_owned()], Some(Ok(()))));
}
