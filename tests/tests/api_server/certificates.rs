//! Certificates for external principals in Secrets of a real API server, with the installed permissions.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use leno_identity::{Authority, AuthoritySource};
use leno_kubernetes::api::NamespaceName;
use leno_kubernetes::external_principals::{Grants, keep_external_principals};
use leno_kubernetes::install::{Options as Installing, apply, manifests, withdraw};
use leno_kubernetes::source::{Options, Source};
use leno_kubernetes::status::{Writer, hold, keep_statuses};
use leno_model::{Name, TrustDomain};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::server::{Server, run};

/// A control plane that writes Secrets in `shop` with the installed account.
struct Control {
    authority: watch::Sender<Arc<Authority>>,
    directory: TempDir,
    _tasks: JoinSet<()>,
}

impl Control {
    async fn start(server: &Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (authority, current) = watch::channel(Arc::new(made(&directory, "first")));
        let client = server.client_as(ACCOUNT).await;
        let (outcomes, became) = watch::channel(Arc::default());
        let name = |text| Name::new(text).unwrap();
        let grants = Grants { namespaces: [name("shop")].into(), own: Some(name("leno-system")) };
        let source = Source::new(client.clone(), Options::default()).granting(grants, became);
        let (leads, leading) = watch::channel(false);
        let writer = Writer {
            namespace: NamespaceName::literal("leno-system"),
            name: "leno-control-a".to_owned(),
            facts: watch::Sender::default().subscribe(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(hold(client.clone(), writer, leads, watch::channel(false).1));
        let said = (source.statements(), leading.clone());
        tasks.spawn(keep_statuses(
            client.clone(),
            "leno-control-a".to_owned(),
            said.0,
            said.1,
            watch::Sender::default(),
        ));
        let desireds = (source.external_principals(), leading);
        tasks.spawn(keep_external_principals(client, DAY, current, desireds, outcomes));
        let (output, mut queue) = mpsc::channel(4);
        tasks.spawn(source.follow(output));
        tasks.spawn(async move { while queue.recv().await.is_some() {} });
        Self { authority, directory, _tasks: tasks }
    }
}

fn made(directory: &TempDir, name: &str) -> Authority {
    let source = AuthoritySource::Own(directory.path().join(name));
    let domain = TrustDomain::new("cluster.local").unwrap();
    source.open_or_create(&domain, SystemTime::now()).unwrap()
}

fn cert(name: &str, secret: (&str, &str)) -> Value {
    json!({"spec": {"subjectAltNames": [name], "secret": {"namespace": secret.0, "name": secret.1}}})
}

fn current(object: &Value) -> &Value {
    &object["status"]["currentStatus"]
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn a_client_outside_has_a_certificate_in_a_secret_of_its_own() {
    run(async {
        let server = Server::start().await;
        for namespace in ["shop", "other"] {
            server.namespace(namespace).await;
        }
        let access_certs = [Name::new("shop").unwrap()].into();
        let domain = TrustDomain::new("cluster.local").unwrap();
        let installed = Installing::new("leno:test".to_owned(), domain);
        let installed = Installing { access_certs, with_smi: true, ..installed };
        apply(&server.client().await, &manifests(&installed), |_| ()).await.unwrap();
        let control = Control::start(&server).await;

        server
            .apply(CERTS, Some("shop"), "batch", cert("batch.corp.example", ("shop", "batch-tls")))
            .await;
        let said =
            server.until((CERTS, Some("shop"), "batch"), |it| current(it) == "committed").await;
        let secret = server.read(SECRETS, "shop", "batch-tls").await;
        assert_eq!(secret["type"], "kubernetes.io/tls");
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], said["metadata"]["uid"]);
        for key in ["tls.crt", "tls.key", "ca.crt"] {
            assert!(secret["data"][key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
        }

        // Another authority signs: the certificate is replaced immediately.
        control.authority.send_replace(Arc::new(made(&control.directory, "second")));
        let again = server.until((SECRETS, Some("shop"), "batch-tls"), |it| {
            it["data"]["ca.crt"] != secret["data"]["ca.crt"]
        });
        assert_ne!(again.await["data"]["tls.key"], secret["data"]["tls.key"]);

        // Missing permission is reported, and a Secret of another owner is not changed.
        server.apply(CERTS, Some("other"), "a", cert("a.corp.example", ("other", "a"))).await;
        let said = server.until((CERTS, Some("other"), "a"), |it| current(it) == "error").await;
        let reason = said["status"]["reason"].as_str().unwrap();
        assert!(reason.contains("--access-certs other"), "{reason}");
        server.apply(SECRETS, Some("shop"), "theirs", json!({"stringData": {"a": "b"}})).await;
        server.apply(CERTS, Some("shop"), "b", cert("b.corp.example", ("shop", "theirs"))).await;
        let said = server.until((CERTS, Some("shop"), "b"), |it| current(it) == "error").await;
        let reason = said["status"]["reason"].as_str().unwrap();
        assert!(reason.contains("was not created for the AccessCert shop/b"), "{reason}");
        assert_eq!(server.read(SECRETS, "shop", "theirs").await["data"], json!({"a": "Yg=="}));

        // The Secret is renamed, then deleted.
        server
            .apply(CERTS, Some("shop"), "batch", cert("batch.corp.example", ("shop", "new-tls")))
            .await;
        server.until((SECRETS, Some("shop"), "batch-tls"), Value::is_null).await;
        server
            .until((SECRETS, Some("shop"), "new-tls"), |it| it["data"]["tls.key"].is_string())
            .await;
        server.delete(CERTS, Some("shop"), "batch").await;
        server.until((SECRETS, Some("shop"), "new-tls"), Value::is_null).await;

        // A namespace that is no longer listed loses its permission.
        withdraw(&server.client().await, &[].into(), |_| ()).await.unwrap();
        // Permission changes take effect in the API server with a short delay.
        let secrets: Api<Secret> = Api::namespaced(server.client_as(ACCOUNT).await, "shop");
        let deadline = Instant::now() + MAX_WAIT;
        while secrets.get_opt("theirs").await.is_ok() {
            assert!(Instant::now() < deadline, "the right is still there");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        server
            .apply(CERTS, Some("shop"), "late", cert("late.corp.example", ("shop", "late-tls")))
            .await;
        let said = server.until((CERTS, Some("shop"), "late"), |it| current(it) == "error").await;
        let reason = said["status"]["reason"].as_str().unwrap();
        assert!(reason.contains("forbidden"), "{reason}");
    });
}

const ACCOUNT: &str = "system:serviceaccount:leno-system:leno-control";
const CERTS: &str = "policy.flomesh.io/v1alpha1/AccessCert";
const SECRETS: &str = "v1/Secret";
const DAY: Duration = Duration::from_secs(24 * 3600);
const MAX_WAIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
