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
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn count_roots(map: &Value) -> usize {
    let text = map["data"]["roots.pem"].as_str().unwrap_or_default();
    text.matches("BEGIN CERTIFICATE").count()
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_ca_is_created_followed_and_changed() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let client = server.client_as(ACCOUNT).await;
        let directory = tempfile::tempdir().unwrap();
        let mut tasks = JoinSet::new();
        for name in ["one", "two"] {
            let place = directory.path().join(name);
            let mut shared = SharedAuthority::new(
                client.clone(),
                &NamespaceName::from_literal("mesh"),
                &place,
                test_domain(),
            );
            establish_authority(&mut shared).await;
            tasks.spawn(shared.run_synchronization());
        }
        let made =
            server.wait_until(SECRETS, Some("mesh"), "leno-authority", |it| !it.is_null()).await;
        server.wait_until(MAPS, Some("mesh"), "leno-roots", |it| count_roots(it) == 1).await;
        // A change in one replica is written to the Secret, and from there to the other replica.
        let rotation = |name| Rotation::for_authority(&directory.path().join(name), test_domain());
        rotation("one").add_root(SystemTime::now()).unwrap();
        server
            .wait_until(SECRETS, Some("mesh"), "leno-authority", |it| it["data"] != made["data"])
            .await;
        server.wait_until(MAPS, Some("mesh"), "leno-roots", |it| count_roots(it) == 2).await;
        let deadline = Instant::now() + MAX_WAIT;
        while rotation("two").stage() != rotation("one").stage() {
            assert!(Instant::now() < deadline, "the other replica does not follow");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn the_certificates_of_the_webhook_are_replaced_and_published() {
    run(async {
        let server = ApiServerProcess::start().await;
        install_objects(&server, &test_options()).await;
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["mesh".to_owned()]).unwrap();
        params.not_after = (SystemTime::now() + Duration::from_secs(86_400 * 20)).into();
        let old = params.self_signed(&key).unwrap().pem();
        let data = json!({
            "ca.crt": STANDARD.encode(&old),
            "ca.key": STANDARD.encode(key.serialize_pem()),
        });
        server.apply_object(SECRETS, Some("mesh"), "leno-webhook", json!({"data": data})).await;
        let settings = InjectionSettings::new(
            "leno:test".to_owned(),
            NamespaceName::from_literal("mesh"),
            test_domain(),
            String::new(),
        );
        let (_settings, output) = watch::channel(settings);
        let (_stop, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listen = ListenOptions { address, client_ca: None };
        tasks.spawn(serve_webhook(server.client_as(ACCOUNT).await, listen, output, stop));
        let certificate = |it: &Value| it["data"]["ca.crt"].clone();
        let is_new = |it: &Value| certificate(it) != data["ca.crt"];
        let new =
            certificate(&server.wait_until(SECRETS, Some("mesh"), "leno-webhook", is_new).await);
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let found = server.find_object(WEBHOOKS, None, INJECTOR).await.unwrap();
            let webhooks = found["webhooks"].as_array().unwrap();
            if webhooks.iter().all(|it| it["clientConfig"]["caBundle"] == new) {
                return;
            }
            assert!(Instant::now() < deadline, "the API server is not told whom to trust");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

const ACCOUNT: &str = "system:serviceaccount:mesh:leno-control";
const SECRETS: &str = "v1/Secret";
const MAPS: &str = "v1/ConfigMap";
const WEBHOOKS: &str = "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration";
const MAX_WAIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
