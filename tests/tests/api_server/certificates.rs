//! Certificates for external principals in Secrets of a real API server, with the installed permissions.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use leno_identity::{Authority, AuthoritySource};
use leno_kubernetes::api::NamespaceName;
use leno_kubernetes::external_principals::{SecretPermissions, reconcile_external_principals};
use leno_kubernetes::install::{
    InstallOptions, apply_manifests, installation_manifests, remove_secret_permissions,
};
use leno_kubernetes::source::{KubernetesSource, SourceOptions};
use leno_kubernetes::status::{ElectionIdentity, hold_lease, reconcile_statuses};
use leno_model::{Name, TrustDomain};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::server::{ApiServerProcess, run};

/// A control plane that writes Secrets in `shop` with the installed account.
struct CertificateController {
    authority: watch::Sender<Arc<Authority>>,
    directory: TempDir,
    _tasks: JoinSet<()>,
}

impl CertificateController {
    async fn start(server: &ApiServerProcess) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (authority, authority_receiver) =
            watch::channel(Arc::new(create_authority(&directory, "first")));
        let client = server.client_as(ACCOUNT).await;
        let (outcomes, outcomes_receiver) = watch::channel(Arc::default());
        let name = |text| Name::new(text).unwrap();
        let permissions = SecretPermissions {
            namespaces: [name("shop")].into(),
            own_namespace: Some(name("leno-system")),
        };
        let source = KubernetesSource::new(client.clone(), SourceOptions::default())
            .with_secret_permissions(permissions, outcomes_receiver);
        let (leader_sender, is_leader) = watch::channel(false);
        let identity = ElectionIdentity {
            namespace: NamespaceName::from_literal("leno-system"),
            name: "leno-control-a".to_owned(),
            sidecar_facts: watch::Sender::default().subscribe(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(hold_lease(client.clone(), identity, leader_sender, watch::channel(false).1));
        tasks.spawn(reconcile_statuses(
            client.clone(),
            "leno-control-a".to_owned(),
            source.subscribe_statuses(),
            is_leader.clone(),
            watch::Sender::default(),
        ));
        tasks.spawn(reconcile_external_principals(
            client,
            DAY,
            authority_receiver,
            source.subscribe_external_principals(),
            is_leader,
            outcomes,
        ));
        let (update_sender, mut updates) = mpsc::channel(4);
        tasks.spawn(source.send_updates(update_sender));
        tasks.spawn(async move { while updates.recv().await.is_some() {} });
        Self { authority, directory, _tasks: tasks }
    }
}

fn create_authority(directory: &TempDir, name: &str) -> Authority {
    let source = AuthoritySource::BuiltIn(directory.path().join(name));
    let domain = TrustDomain::new("cluster.local").unwrap();
    source.open_or_create(&domain, SystemTime::now()).unwrap()
}

/// Applies an AccessCert for a host of its name, with a Secret in the same namespace.
async fn apply_cert(server: &ApiServerProcess, namespace: &str, name: &str, secret: &str) {
    let host = format!("{name}.corp.example");
    let secret = json!({"namespace": namespace, "name": secret});
    let object = json!({"spec": {"subjectAltNames": [host], "secret": secret}});
    server.apply_object(ACCESS_CERTS, Some(namespace), name, object).await;
}

/// Returns the reason in the status of an AccessCert, once it has the status `error`.
async fn wait_for_error(server: &ApiServerProcess, namespace: &str, name: &str) -> String {
    let is_error = |object: &Value| current_status(object) == "error";
    let object = server.wait_until(ACCESS_CERTS, Some(namespace), name, is_error).await;
    object["status"]["reason"].as_str().unwrap().to_owned()
}

fn current_status(object: &Value) -> &Value {
    &object["status"]["currentStatus"]
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn external_clients_get_certificates_in_secrets() {
    run(async {
        let server = ApiServerProcess::start().await;
        for namespace in ["shop", "other"] {
            server.create_namespace(namespace).await;
        }
        let access_certs = [Name::new("shop").unwrap()].into();
        let domain = TrustDomain::new("cluster.local").unwrap();
        let options = InstallOptions::new("leno:test".to_owned(), domain);
        let options = InstallOptions { access_certs, with_smi: true, ..options };
        apply_manifests(&server.admin_client().await, &installation_manifests(&options), |_| ())
            .await
            .unwrap();
        let controller = CertificateController::start(&server).await;

        apply_cert(&server, "shop", "batch", "batch-tls").await;
        let access_cert = server
            .wait_until(ACCESS_CERTS, Some("shop"), "batch", |request| {
                current_status(request) == "committed"
            })
            .await;
        let secret = server.read(SECRETS, "shop", "batch-tls").await;
        assert_eq!(secret["type"], "kubernetes.io/tls");
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], access_cert["metadata"]["uid"]);
        for key in ["tls.crt", "tls.key", "ca.crt"] {
            assert!(secret["data"][key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
        }

        // Another authority signs: the certificate is replaced immediately.
        controller
            .authority
            .send_replace(Arc::new(create_authority(&controller.directory, "second")));
        let replaced = server.wait_until(SECRETS, Some("shop"), "batch-tls", |current| {
            current["data"]["ca.crt"] != secret["data"]["ca.crt"]
        });
        assert_ne!(replaced.await["data"]["tls.key"], secret["data"]["tls.key"]);

        // Missing permission is reported, and a Secret of another owner is not changed.
        apply_cert(&server, "other", "a", "a").await;
        let reason = wait_for_error(&server, "other", "a").await;
        assert!(reason.contains("--access-certs other"), "{reason}");
        server
            .apply_object(SECRETS, Some("shop"), "theirs", json!({"stringData": {"a": "b"}}))
            .await;
        apply_cert(&server, "shop", "b", "theirs").await;
        let reason = wait_for_error(&server, "shop", "b").await;
        assert!(reason.contains("was not created for the AccessCert shop/b"), "{reason}");
        assert_eq!(server.read(SECRETS, "shop", "theirs").await["data"], json!({"a": "Yg=="}));

        // The Secret is renamed, then deleted.
        apply_cert(&server, "shop", "batch", "new-tls").await;
        server.wait_until(SECRETS, Some("shop"), "batch-tls", Value::is_null).await;
        server
            .wait_until(SECRETS, Some("shop"), "new-tls", |secret| {
                secret["data"]["tls.key"].is_string()
            })
            .await;
        server.delete_object(ACCESS_CERTS, Some("shop"), "batch").await;
        server.wait_until(SECRETS, Some("shop"), "new-tls", Value::is_null).await;

        // A namespace that is no longer listed loses its permission.
        remove_secret_permissions(&server.admin_client().await, &[].into(), |_| ()).await.unwrap();
        // Permission changes take effect in the API server with a short delay.
        let secrets: Api<Secret> = Api::namespaced(server.client_as(ACCOUNT).await, "shop");
        let deadline = Instant::now() + MAX_WAIT;
        while secrets.get_opt("theirs").await.is_ok() {
            assert!(Instant::now() < deadline, "the permission was not revoked");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        apply_cert(&server, "shop", "late", "late-tls").await;
        let reason = wait_for_error(&server, "shop", "late").await;
        assert!(reason.contains("forbidden"), "{reason}");
    });
}

const ACCOUNT: &str = "system:serviceaccount:leno-system:leno-control";
const ACCESS_CERTS: &str = "policy.flomesh.io/v1alpha1/AccessCert";
const SECRETS: &str = "v1/Secret";
const DAY: Duration = Duration::from_secs(24 * 3600);
const MAX_WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
