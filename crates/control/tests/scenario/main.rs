//! Scenarios with a running control plane and simulated proxies, over real TLS on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its fixture too"
)]

#[path = "../../../listen/src/tests/crowd.rs"]
mod crowd;
mod flood;
mod health;
mod instances;
mod object_status;
mod peers;
mod pending_connections;
mod proxy;
mod pushed;
#[path = "../../../outside/src/tests/receiver.rs"]
mod receiver;
mod review;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use leno_control::status::{CertificateStatus, ProxyStatus, ServiceStatus, Status, WorkloadStatus};
use leno_control::{Config, Control, MAX_UPDATES, StartError, admin};
use leno_discovery::{ConfigUpdate, DiscoveryError, JoinError, ProxyRequest};
use leno_identity::{JoinBundle, Roots};
use leno_model::{Access, Change, ClientAuthorization, ObjectKey, ServiceName, WorkloadName};
use leno_telemetry::names::control::{ALIASES, METRICS};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::proxy::{Identity, Proxy, join_with};

const MESH: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client-1, namespace: shop, labels: {app: client}}
spec: {serviceAccount: client}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stock-1, namespace: shop, labels: {app: stock}}
spec: {serviceAccount: stock, ports: [{name: http, port: 8080, protocol: HTTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {selector: {app: stock}, ports: [{name: http, port: 80, targetPort: http}]}
"#;

const DEFAULT_DENY: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: deny}
"#;

/// A data directory, a file of objects, and a control plane that reads it.
struct Shop {
    directory: TempDir,
    control: Control,
}

impl Shop {
    async fn open() -> Self {
        Self::open_with(|_| {}).await
    }

    async fn open_with(edit: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_objects(directory.path(), MESH);
        let mut config = test_config(directory.path());
        edit(&mut config);
        let control = Control::start(config).await.unwrap();
        Self { directory, control }
    }

    /// Replaces the objects.
    fn write_objects(&self, yaml: &str) {
        write_objects(self.directory.path(), yaml);
        self.control.reload_files();
    }

    async fn join(&self, name: &str) -> Identity {
        Identity::join(&self.control, &workload_name(name)).await.unwrap()
    }

    async fn query_json<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) =
            admin::query_admin(self.control.socket_path(), "GET", path).await.unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}

fn write_objects(directory: &Path, yaml: &str) {
    let draft = directory.join("draft");
    std::fs::write(&draft, yaml).unwrap();
    std::fs::rename(draft, directory.join("mesh.yaml")).unwrap();
}

/// Returns a configuration without a startup grace period: tests without a restart have nothing to wait for.
fn test_config(directory: &Path) -> Config {
    let mut config = Config::new(directory.join("data"), vec![directory.join("mesh.yaml")]);
    config.times.startup_grace = Duration::ZERO;
    config.times.disconnect_grace = Duration::from_secs(3600);
    config
}

fn workload_name(name: &str) -> WorkloadName {
    WorkloadName::new("shop", name).unwrap()
}

fn stock_service() -> ServiceName {
    ServiceName::new("shop", "stock").unwrap()
}

fn listener_address() -> SocketAddr {
    "127.0.0.1:18080".parse().unwrap()
}

/// Returns the addresses of the stock service at a client; `None` while it is unknown.
fn stock_addresses(update: &ConfigUpdate) -> Option<Vec<SocketAddr>> {
    let port = update.snapshot.services.get(&stock_service())?.ports.get(&80)?;
    Some(port.endpoints.iter().map(|endpoint| endpoint.address).collect())
}

/// Runs a test with a timeout, so that it cannot hang.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async {
        tokio::time::timeout(MAX_TEST_TIME, test).await.expect("the test ends in time");
    };
    runtime.block_on(LocalSet::new().run_until(bounded));
}

const MAX_TEST_TIME: Duration = Duration::from_secs(30);

#[test]
fn proxies_join_subscribe_and_receive_changes() {
    run(async {
        let shop = Shop::open().await;
        let server = shop.join("stock-1").await;
        let mut server =
            Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        shop.control.wait_until_registered(&workload_name("stock-1")).await.unwrap();
        let config = server.wait_for_update(|_| true).await.snapshot.config.clone();
        assert_eq!(
            (config.access.clone(), &config.port_services[&8080]),
            (Access::AllowAll, &stock_service())
        );

        let client = shop.join("client-1").await;
        let mut client = Proxy::connect(&shop.control, &client, &[], &[]).await;
        assert!(client.wait_for_update(|_| true).await.snapshot.services.is_empty());
        client.send_request(ProxyRequest::Subscribe(vec![stock_service()])).await;
        let update = client.wait_for_update(|update| stock_addresses(update).is_some()).await;
        assert_eq!(stock_addresses(&update), Some(vec![listener_address()]));

        shop.write_objects(&format!("{MESH}{DEFAULT_DENY}"));
        let is_denied = |update: &ConfigUpdate| {
            let service_config = update.snapshot.services.get(&stock_service());
            service_config.is_some_and(|service_config| {
                service_config.client_authorization == ClientAuthorization::Denied
                    && service_config.ports.is_empty()
            })
        };
        client.wait_for_update(is_denied).await;
        let no_access = Access::AllowListed(Vec::new());
        server.wait_for_update(|update| update.snapshot.config.access == no_access).await;

        client.send_request(ProxyRequest::Unsubscribe(vec![stock_service()])).await;
        client.wait_for_update(|update| update.snapshot.services.is_empty()).await;
        let mut status = shop.control.watch_status();
        status.wait_for(|status| status.out_of_sync == 0 && status.proxies == 2).await.unwrap();
    });
}

#[test]
fn a_service_that_does_not_exist_is_reported_at_once_and_appears_later() {
    run(async {
        let shop = Shop::open().await;
        let later = ServiceName::new("shop", "later").unwrap();
        let client = shop.join("client-1").await;
        let mut client =
            Proxy::connect(&shop.control, &client, std::slice::from_ref(&later), &[]).await;
        let update = client.wait_for_update(|update| !update.absent.is_empty()).await;
        assert_eq!(update.absent, BTreeSet::from([later.clone()]));
        let later_service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: later, namespace: shop}\n\
                    spec: {selector: {app: later}, ports: [{port: 80}]}\n";
        shop.write_objects(&format!("{MESH}{later_service}"));
        let update = client.wait_for_update(|update| update.absent.is_empty()).await;
        assert!(update.snapshot.services.contains_key(&later));
    });
}

#[test]
fn a_token_is_valid_once_and_only_for_its_workload() {
    run(async {
        let shop = Shop::open().await;
        let (control, address) = (&shop.control, shop.control.listen_address());
        let bundle = control.mint_bundle(&workload_name("client-1")).unwrap();
        assert_eq!(bundle.control_addresses, [address]);
        let expect_rejection = |joined: Result<Identity, JoinError>, expected: &str| match joined {
            Err(JoinError::Rejected { reason, .. }) => {
                assert!(reason.contains(expected), "{reason}")
            }
            other => panic!("{other:?}"),
        };
        let other = join_with(&bundle, address, &workload_name("stock-1")).await;
        expect_rejection(other, "another workload");
        let first = join_with(&bundle, address, &workload_name("client-1")).await.unwrap();
        assert_eq!(first.credential.workload(), Some(&workload_name("client-1")));
        let second = join_with(&bundle, address, &workload_name("client-1")).await;
        expect_rejection(second, "token");
        let mut forged = control.mint_bundle(&workload_name("client-1")).unwrap();
        forged.token = format!("leno-join-{}", "0".repeat(64));
        expect_rejection(join_with(&forged, address, &workload_name("client-1")).await, "token");
        let error = control.mint_bundle(&workload_name("nobody")).unwrap_err();
        assert!(error.to_string().contains("shop/nobody"), "{error}");
    });
}

#[test]
fn a_proxy_cannot_claim_another_workload_or_be_anonymous() {
    run(async {
        let shop = Shop::open().await;
        let client = shop.join("client-1").await;
        let mut impostor =
            Proxy::connect_claiming(&shop.control, &client, &workload_name("stock-1")).await;
        match impostor.wait_until_ended().await {
            DiscoveryError::Goodbye(reason) => {
                assert!(reason.contains("issued to workload `shop/client-1`"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        let bundle = shop.control.mint_bundle(&workload_name("stock-1")).unwrap();
        let mut anonymous =
            Proxy::connect_anonymous(&shop.control, &bundle, &workload_name("stock-1")).await;
        assert!(matches!(
            anonymous.wait_until_ended().await,
            DiscoveryError::Io(_) | DiscoveryError::Closed
        ));
        let (_, metrics) =
            admin::query_admin(shop.control.socket_path(), "GET", "/metrics").await.unwrap();
        let line = "leno_control_connections_rejected_total{reason=\"untrusted-peer\"} 1";
        assert!(metrics.contains(line), "{metrics}");
    });
}

#[test]
fn a_stream_ends_when_its_workload_is_removed_or_changes_its_account() {
    run(async {
        let shop = Shop::open().await;
        let (server, client) = (shop.join("stock-1").await, shop.join("client-1").await);
        let mut stream =
            Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        stream.wait_for_update(|_| true).await;
        let mut watcher = Proxy::connect(&shop.control, &client, &[stock_service()], &[]).await;
        watcher
            .wait_for_update(|update| stock_addresses(update) == Some(vec![listener_address()]))
            .await;
        shop.write_objects(&MESH.replace("serviceAccount: stock", "serviceAccount: other"));
        let reason = stream.wait_until_ended().await.to_string();
        assert!(reason.contains("join again"), "{reason}");
        // The grace period of an hour does not apply to a sidecar that lost its identity.
        watcher.wait_for_update(|update| stock_addresses(update) == Some(Vec::new())).await;
        drop(watcher);
        let mut stream =
            Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        let reason = stream.wait_until_ended().await.to_string();
        assert!(reason.contains("join again"), "{reason}");

        let mut stream = Proxy::connect(&shop.control, &client, &[], &[]).await;
        stream.wait_for_update(|_| true).await;
        shop.write_objects(&MESH.replace("name: client-1", "name: client-2"));
        let reason = stream.wait_until_ended().await.to_string();
        assert!(reason.contains("no Workload shop/client-1"), "{reason}");
    });
}

#[test]
fn endpoints_stay_for_a_grace_period_after_a_stream_ends_but_not_while_a_sidecar_drains() {
    run(async {
        let shop = Shop::open_with(|config| {
            config.times.disconnect_grace = Duration::from_millis(300);
        })
        .await;
        let (server, client) = (shop.join("stock-1").await, shop.join("client-1").await);
        let listeners = [(8080, listener_address())];
        let stream = Proxy::connect(&shop.control, &server, &[], &listeners).await;
        let mut client = Proxy::connect(&shop.control, &client, &[stock_service()], &[]).await;
        let is_present =
            |update: &ConfigUpdate| stock_addresses(update) == Some(vec![listener_address()]);
        let is_absent = |update: &ConfigUpdate| stock_addresses(update) == Some(Vec::new());
        client.wait_for_update(is_present).await;
        drop(stream);
        let before = tokio::time::Instant::now();
        client.wait_for_update(is_absent).await;
        assert!(before.elapsed() >= Duration::from_millis(290), "{:?}", before.elapsed());

        let stream = Proxy::connect(&shop.control, &server, &[], &listeners).await;
        client.wait_for_update(is_present).await;
        stream.send_request(ProxyRequest::Listeners(Vec::new(), Default::default())).await;
        client.wait_for_update(is_absent).await;
    });
}

#[test]
fn a_sidecar_that_reconnects_with_another_address_keeps_its_endpoint() {
    run(async {
        let shop = Shop::open().await;
        let (server, client) = (shop.join("stock-1").await, shop.join("client-1").await);
        let mut old =
            Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        let mut client = Proxy::connect(&shop.control, &client, &[stock_service()], &[]).await;
        client
            .wait_for_update(|update| stock_addresses(update) == Some(vec![listener_address()]))
            .await;
        // It reconnects before the old stream has ended, and has not opened its listeners yet.
        let new = Proxy::connect(&shop.control, &server, &[], &[]).await;
        assert!(old.wait_until_ended().await.to_string().contains("newer stream"));
        let new_address: SocketAddr = "127.0.0.1:18081".parse().unwrap();
        new.send_request(Proxy::listeners_request(&[(8080, new_address)])).await;
        client.wait_for_update(|update| stock_addresses(update) == Some(vec![new_address])).await;
        let received_updates = client.received_updates();
        assert!(
            !received_updates.iter().any(|update| stock_addresses(update) == Some(Vec::new())),
            "{received_updates:?}"
        );
    });
}

#[test]
fn certificates_are_renewed_over_the_stream() {
    run(async {
        let shop = Shop::open().await;
        let client = shop.join("client-1").await;
        let stream = Proxy::connect(&shop.control, &client, &[], &[]).await;
        let renewed = client.renew_certificate(&stream).await;
        assert_eq!(renewed.credential.id(), client.credential.id());
        assert_ne!(renewed.credential.chain(), client.credential.chain());
        let mut renewed_stream = Proxy::connect(&shop.control, &renewed, &[], &[]).await;
        renewed_stream.wait_for_update(|_| true).await;
        let (reply_sender, response) = oneshot::channel();
        renewed_stream
            .send_request(ProxyRequest::Renew { csr: vec![0; 100], reply: reply_sender })
            .await;
        assert!(response.await.unwrap().unwrap_err().reason.contains("PKCS #10"));
    });
}

#[test]
fn a_restarted_control_plane_keeps_the_endpoints_of_its_members() {
    run(async {
        let shop = Shop::open().await;
        let (server, client) = (shop.join("stock-1").await, shop.join("client-1").await);
        let old = Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        let mut first = Proxy::connect(&shop.control, &client, &[stock_service()], &[]).await;
        first
            .wait_for_update(|update| stock_addresses(update) == Some(vec![listener_address()]))
            .await;
        let Shop { directory, control } = shop;
        control.shutdown().await;
        assert!(first.wait_until_ended().await.to_string().contains("shutting down"));
        drop(old);

        // Meanwhile the objects change, and the sidecar of stock is slow to reconnect.
        let later = "---\napiVersion: v1\nkind: Service\nmetadata: {name: later, namespace: shop}\n\
                     spec: {selector: {app: stock}, ports: [{port: 80, targetPort: http}]}\n";
        write_objects(directory.path(), &format!("{MESH}{DEFAULT_DENY}{later}"));
        let mut config = test_config(directory.path());
        config.times.startup_grace = Duration::from_secs(3600);
        let control = Control::start(config).await.unwrap();
        assert!(control.watch_status().borrow().starting);
        let roots: Roots = control.mint_bundle(&workload_name("client-1")).unwrap().roots;
        assert_eq!(roots.certificates(), client.credential.roots().certificates());
        let mut stream = Proxy::resume(&control, &client, &[stock_service()], &first).await;
        let is_denied = |update: &ConfigUpdate| {
            update.snapshot.services.get(&stock_service()).is_some_and(|service_config| {
                service_config.client_authorization == ClientAuthorization::Denied
            })
        };
        stream.wait_for_update(is_denied).await;

        write_objects(directory.path(), &format!("{MESH}{later}"));
        control.reload_files();
        let mut status = control.watch_status();
        status.wait_for(|status| status.default_policy == "allow").await.unwrap();
        let later = ServiceName::new("shop", "later").unwrap();
        let mut stream =
            Proxy::resume(&control, &client, &[stock_service(), later.clone()], &first).await;
        let deny_all = Access::AllowListed(Vec::new());
        stream.wait_for_update(|update| update.snapshot.config.access != deny_all).await;
        let update = stream.received_updates().pop().unwrap();
        assert_eq!(
            stock_addresses(&update),
            Some(vec![listener_address()]),
            "the previous endpoints"
        );
        assert!(!update.snapshot.services.contains_key(&later), "no endpoint is known");

        let new_address: SocketAddr = "127.0.0.1:18081".parse().unwrap();
        let _server = Proxy::connect(&control, &server, &[], &[(8080, new_address)]).await;
        let update =
            stream.wait_for_update(|update| update.snapshot.services.contains_key(&later)).await;
        assert_eq!(stock_addresses(&update), Some(vec![new_address]));
        let received_updates = stream.received_updates();
        let lacks_endpoints = |update: &&ConfigUpdate| {
            stock_addresses(update).is_none_or(|addresses| addresses.is_empty())
        };
        assert_eq!(
            received_updates.iter().find(lacks_endpoints),
            None,
            "it never receives a service without endpoints"
        );
    });
}

#[test]
fn a_sidecar_that_does_not_reconnect_loses_its_endpoints_in_the_end() {
    run(async {
        let shop = Shop::open().await;
        let (server, client) = (shop.join("stock-1").await, shop.join("client-1").await);
        let old = Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        let mut first = Proxy::connect(&shop.control, &client, &[stock_service()], &[]).await;
        first
            .wait_for_update(|update| stock_addresses(update) == Some(vec![listener_address()]))
            .await;
        let Shop { directory, control } = shop;
        control.shutdown().await;
        drop(old);

        let mut config = test_config(directory.path());
        config.times.startup_grace = Duration::from_millis(300);
        let control = Control::start(config).await.unwrap();
        let mut stream = Proxy::resume(&control, &client, &[stock_service()], &first).await;
        stream.wait_for_update(|update| stock_addresses(update) == Some(Vec::new())).await;
        control.watch_status().wait_for(|status| !status.starting).await.unwrap();
    });
}

#[test]
fn operators_use_a_socket_of_their_own() {
    run(async {
        let shop = Shop::open().await;
        let socket = shop.control.socket_path().to_owned();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let server = shop.join("stock-1").await;
        let _server =
            Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        shop.control.wait_until_registered(&workload_name("stock-1")).await.unwrap();
        shop.write_objects(&format!("{MESH}---\nkind: Nonsense\n"));
        shop.control.watch_status().wait_for(|status| status.rejected == 1).await.unwrap();

        let status: Status = shop.query_json("/status").await;
        assert_eq!((status.workloads, status.registered, status.proxies), (2, 1, 1));
        let workloads: Vec<WorkloadStatus> = shop.query_json("/workloads").await;
        let sidecars: Vec<&str> =
            workloads.iter().map(|workload| workload.sidecar.as_str()).collect();
        assert_eq!(sidecars, ["absent", "connected"]);
        let services: Vec<ServiceStatus> = shop.query_json("/services").await;
        assert_eq!(services[0].ports[0].endpoints[0].address, listener_address().to_string());
        let certificates: Vec<CertificateStatus> = shop.query_json("/certificates").await;
        assert!(certificates[0].issued > 0 && certificates[0].age_seconds < 3600);
        assert_eq!(certificates[0].identity, "spiffe://cluster.local/ns/shop/sa/stock");
        let proxies: Vec<ProxyStatus> = shop.query_json("/proxies").await;
        assert_eq!(proxies[0].workload, "shop/stock-1");
        let rejected: serde_json::Value = shop.query_json("/rejected").await;
        assert_eq!(rejected["rejected"].as_array().unwrap().len(), 1, "{rejected}");
        let (_, metrics) = admin::query_admin(&socket, "GET", "/metrics").await.unwrap();
        let exposed = metrics.lines().filter_map(|line| line.strip_prefix("# HELP "));
        let exposed: Vec<String> = exposed.map(str::to_owned).collect();
        let documented = METRICS.iter().map(|metric| format!("{} {}", metric.name, metric.help));
        assert_eq!(exposed, documented.collect::<Vec<_>>());
        for (names, prefix) in [("osm", "osm"), ("fsm", "fsm")] {
            let path = format!("/metrics?names={names}");
            let (_, metrics) = admin::query_admin(&socket, "GET", &path).await.unwrap();
            for line in [
                format!("{prefix}_proxy_connect_count 1"),
                format!("{prefix}_cert_issued_count 1"),
                format!("{prefix}_events_queued 0"),
                format!("{prefix}_resource_namespace_count 1"),
                format!("{prefix}_version_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
                "leno_control_proxies 1".to_owned(),
            ] {
                assert!(
                    metrics.lines().any(|metric_line| metric_line == line),
                    "{line}: {metrics}"
                );
            }
            // No request was rejected.
            for alias in ALIASES.iter().filter(|alias| alias.name != "error_err_code_count") {
                let name = format!("\n{prefix}_{}", alias.name);
                assert!(metrics.contains(&name), "{name}: {metrics}");
            }
        }
        let (status, problem) =
            admin::query_admin(&socket, "GET", "/metrics?names=istio").await.unwrap();
        assert!(status == 400 && problem.contains("use names=osm or names=fsm"), "{problem}");
        for path in ["/routes", "/policies"] {
            assert_eq!(shop.query_json::<Vec<serde_json::Value>>(path).await.len(), 0, "{path}");
        }
    });
}

#[test]
fn operators_get_tokens_and_descriptions_of_their_mistakes() {
    run(async {
        let shop = Shop::open().await;
        let socket = shop.control.socket_path().to_owned();
        let (status, body) =
            admin::query_admin(&socket, "POST", "/token?workload=shop/client-1").await.unwrap();
        assert_eq!(status, 200, "{body}");
        let bundle = JoinBundle::parse(&body).unwrap();
        join_with(&bundle, bundle.control_addresses[0], &workload_name("client-1")).await.unwrap();
        for (method, path, expected) in [
            ("POST", "/token", 400),
            ("POST", "/token?workload=nonsense", 400),
            ("POST", "/token?workload=shop/client-1&lifetime_ms=0", 400),
            ("POST", "/token?workload=shop/client-1&lifetime_ms=86400001", 400),
            ("POST", "/token?workload=shop/nobody", 404),
            ("POST", "/status", 405),
            ("GET", "/token?workload=shop/client-1", 404),
            ("GET", "/", 404),
            ("POST", "/reload", 202),
        ] {
            let (status, body) = admin::query_admin(&socket, method, path).await.unwrap();
            assert_eq!(status, expected, "{method} {path}: {body}");
            let is_explained = body.contains("use up to 24 h");
            assert_eq!(is_explained, path.contains("lifetime_ms"), "{path}: {body}");
        }
    });
}

#[test]
fn two_control_planes_cannot_share_a_data_directory_unless_one_has_ended() {
    run(async {
        let shop = Shop::open().await;
        let second_start = Control::start(test_config(shop.directory.path())).await;
        assert!(matches!(second_start, Err(StartError::Admin { .. })), "{second_start:?}");
        let Shop { directory, control } = shop;
        // Dropped, not shut down: its socket file remains.
        let socket = control.socket_path().to_owned();
        drop(control);
        assert!(socket.exists());
        let next_control = Control::start(test_config(directory.path())).await.unwrap();
        next_control.shutdown().await;
        assert!(!socket.exists());
    });
}

#[test]
fn a_mesh_with_an_invalid_configuration_does_not_start() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        write_objects(directory.path(), &format!("{MESH}{}", DEFAULT_DENY.replace("deny", "Deny")));
        match Control::start(test_config(directory.path())).await {
            Err(StartError::MeshConfig(rejected)) => {
                assert!(rejected[0].to_string().contains("MeshConfig mesh"), "{rejected:?}");
            }
            other => panic!("{other:?}"),
        }
        write_objects(directory.path(), &format!("{MESH}{DEFAULT_DENY}"));
        let control = Control::start(test_config(directory.path())).await.unwrap();
        // The last valid configuration stays in force: a mistake does not open a running mesh.
        write_objects(directory.path(), &format!("{MESH}{}", DEFAULT_DENY.replace("deny", "Deny")));
        control.reload_files();
        let mut status = control.watch_status();
        let status = status.wait_for(|status| status.rejected == 1).await.unwrap();
        assert_eq!(status.default_policy, "deny");
    });
}

#[test]
fn the_trust_domain_of_a_running_mesh_does_not_change() {
    run(async {
        let shop = Shop::open().await;
        shop.write_objects(
            &format!("{MESH}{DEFAULT_DENY}").replace("cluster.local", "other.example"),
        );
        let mut status = shop.control.watch_status();
        let status = status.wait_for(|status| status.default_policy == "deny").await.unwrap();
        assert_eq!(status.trust_domain, "cluster.local");
        drop(status);
        let rejected: serde_json::Value = shop.query_json("/rejected").await;
        let message = rejected["trust_domain"].as_str().unwrap();
        assert!(
            message.contains("other.example") && message.contains("data directory"),
            "{message}"
        );
    });
}

#[test]
fn updates_may_come_from_another_source() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let parse_update = |yaml: &str| {
            let (objects, rejected) = leno_registry::read_str("mesh", yaml);
            assert_eq!(rejected, []);
            let changes = objects.into_iter().map(|(object, _)| Change::Upsert(object)).collect();
            leno_registry::RegistryUpdate { changes, ..leno_registry::RegistryUpdate::default() }
        };
        let (updates_sender, updates) = mpsc::channel(MAX_UPDATES);
        let default_deny_update = DEFAULT_DENY.replace("cluster.local", "other.example");
        updates_sender.send(parse_update(&default_deny_update)).await.unwrap();
        let config = Config::new(directory.path().join("data"), Vec::new());
        let control = Control::start_with_updates(config, updates).await.unwrap();
        assert_eq!(control.trust_domain().to_string(), "other.example");
        updates_sender.send(parse_update(MESH)).await.unwrap();
        let mut workloads = control.watch_workloads();
        workloads.wait_for(|current| current.len() == 2).await.unwrap();
        let key = ObjectKey::Workload(workload_name("client-1"));
        let changes = vec![Change::Remove(key)];
        let update =
            leno_registry::RegistryUpdate { changes, ..leno_registry::RegistryUpdate::default() };
        updates_sender.send(update).await.unwrap();
        drop(updates_sender);
        let remaining = workloads.wait_for(|current| current.len() == 1).await.unwrap();
        assert_eq!(remaining[0].name, workload_name("stock-1"));
        drop(remaining);
        // The sender of updates was dropped, and the objects of its last update remain.
        let (status, _) =
            admin::query_admin(control.socket_path(), "GET", "/status").await.unwrap();
        assert_eq!(status, 200);
    });
}
