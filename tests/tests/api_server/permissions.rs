//! State of a control plane in its own namespace, with only the installed permissions.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_identity::{AuthoritySource, Rotation};
use leno_kubernetes::api::NamespaceName;
use leno_kubernetes::authority::SharedAuthority;
use leno_kubernetes::inject::InjectionSettings;
use leno_kubernetes::webhook::{INJECTOR, ListenOptions, serve_webhook};
use leno_model::TrustDomain;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::installed::{install_objects, test_options};
use crate::server::{ApiServerProcess, run};

fn test_domain() -> TrustDomain {
    TrustDomain::new("cluster.local").unwrap()
}

/// Returns the authority once the API server has applied the account's permissions.
async fn establish_authority(authority: &mut SharedAuthority) -> AuthoritySource {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        match authority.establish_authority().await {
            Ok(source) => return source,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn count_roots(config_map: &Value) -> usize {
    let roots_pem = config_map["data"]["roots.pem"].as_str().unwrap_or_default();
    roots_pem.matches("BEGIN CERTIFICATE").count()
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_ca_is_shared_between_replicas_and_rotated() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let client = server.client_as(ACCOUNT).await;
        let directory = tempfile::tempdir().unwrap();
        let mut tasks = JoinSet::new();
        for name in ["one", "two"] {
            let state_directory = directory.path().join(name);
            let mut shared = SharedAuthority::new(
                client.clone(),
                &NamespaceName::from_literal("mesh"),
                &state_directory,
                test_domain(),
            );
            establish_authority(&mut shared).await;
            tasks.spawn(shared.run_synchronization());
        }
        let created = server
            .wait_until(SECRETS, Some("mesh"), "leno-authority", |secret| !secret.is_null())
            .await;
        server
            .wait_until(CONFIG_MAPS, Some("mesh"), "leno-roots", |map| count_roots(map) == 1)
            .await;
        // A change in one replica is written to the Secret, and from there to the other replica.
        let rotation = |name| Rotation::for_authority(&directory.path().join(name), test_domain());
        rotation("one").add_root(SystemTime::now()).unwrap();
        server
            .wait_until(SECRETS, Some("mesh"), "leno-authority", |secret| {
                secret["data"] != created["data"]
            })
            .await;
        server
            .wait_until(CONFIG_MAPS, Some("mesh"), "leno-roots", |map| count_roots(map) == 2)
            .await;
        let deadline = Instant::now() + MAX_WAIT;
        while rotation("two").stage() != rotation("one").stage() {
            assert!(Instant::now() < deadline, "the other replica does not follow");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_expiring_ca_of_the_webhook_is_replaced_and_published() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["mesh".to_owned()]).unwrap();
        params.not_after = (SystemTime::now() + Duration::from_secs(86_400 * 20)).into();
        let expiring = params.self_signed(&key).unwrap().pem();
        let data = json!({
            "ca.crt": STANDARD.encode(&expiring),
            "ca.key": STANDARD.encode(key.serialize_pem()),
        });
        server.apply_object(SECRETS, Some("mesh"), "leno-webhook", json!({"data": data})).await;
        let settings = InjectionSettings::new(
            "leno:test".to_owned(),
            NamespaceName::from_literal("mesh"),
            test_domain(),
            String::new(),
        );
        let (_settings_sender, settings_receiver) = watch::channel(settings);
        let (_stop_sender, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listen = ListenOptions { address, client_ca: None };
        tasks.spawn(serve_webhook(
            server.client_as(ACCOUNT).await,
            listen,
            settings_receiver,
            stop,
        ));
        let certificate = |secret: &Value| secret["data"]["ca.crt"].clone();
        let is_new = |secret: &Value| certificate(secret) != data["ca.crt"];
        let replaced =
            certificate(&server.wait_until(SECRETS, Some("mesh"), "leno-webhook", is_new).await);
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let configuration =
                server.find_object(WEBHOOK_CONFIGURATIONS, None, INJECTOR).await.unwrap();
            let webhooks = configuration["webhooks"].as_array().unwrap();
            if webhooks.iter().all(|webhook| webhook["clientConfig"]["caBundle"] == replaced) {
                return;
            }
            assert!(Instant::now() < deadline, "the webhook configuration has no new CA bundle");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
}

const ACCOUNT: &str = "system:serviceaccount:mesh:leno-control";
const SECRETS: &str = "v1/Secret";
const CONFIG_MAPS: &str = "v1/ConfigMap";
const WEBHOOK_CONFIGURATIONS: &str = "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration";
const MAX_WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
