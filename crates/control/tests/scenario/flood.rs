//! Members that send more than their share of requests: other members are served meanwhile, and the log stays
//! bounded.

mod figures;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use super::*;

/// Returns a mesh with this number of services in addition to those of the shop.
fn large_mesh(service_count: usize) -> String {
    let mut yaml = MESH.to_owned();
    for number in 0..service_count {
        write!(
            yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: shop}}\n\
             spec: {{selector: {{app: s{number}}}, ports: [{{port: 80}}]}}\n"
        )
        .unwrap();
    }
    yaml
}

fn numbered_service(number: usize) -> ServiceName {
    ServiceName::new("shop", &format!("s{number}")).unwrap()
}

async fn open_shop(yaml: &str) -> Shop {
    let directory = tempfile::tempdir().unwrap();
    write_objects(directory.path(), yaml);
    let control = Control::start(test_config(directory.path())).await.unwrap();
    Shop { directory, control }
}

/// Returns a counter of the control plane.
async fn read_counter(shop: &Shop, name: &str) -> u64 {
    let (_, page) =
        admin::query_admin(shop.control.socket_path(), "GET", "/metrics").await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect(name).parse().unwrap()
}

#[test]
fn pairs_of_subscriptions_are_combined_while_others_are_served() {
    const SERVICES: usize = 200;
    const PAIRS: usize = 20_000;
    run(async {
        let shop = open_shop(&large_mesh(SERVICES)).await;
        let external_client = shop.join("client-1").await;
        let server = shop.join("stock-1").await;
        let mut server = Proxy::connect(&shop.control, &server, &[], &[]).await;
        server.wait_for_update(|_| true).await;
        let all_services: Vec<ServiceName> = (0..SERVICES).map(numbered_service).collect();
        let mut flooding_proxy =
            Proxy::connect(&shop.control, &external_client, &all_services, &[]).await;
        flooding_proxy.wait_for_update(|update| update.snapshot.services.len() == SERVICES).await;
        let before = read_counter(&shop, "leno_control_snapshots_compiled_total").await;
        let send_flood = async {
            for _ in 0..PAIRS {
                flooding_proxy.send_request(ProxyRequest::Subscribe(vec![stock_service()])).await;
                flooding_proxy.send_request(ProxyRequest::Unsubscribe(vec![stock_service()])).await;
            }
        };
        let serve_other_proxy = async {
            server.send_request(Proxy::listeners_request(&[(8080, listener_address())])).await;
            server.send_request(ProxyRequest::Subscribe(vec![stock_service()])).await;
            let update = server.wait_for_update(|update| stock_addresses(update).is_some()).await;
            assert!(stock_addresses(&update).is_some());
        };
        tokio::join!(send_flood, serve_other_proxy);
        let compiled = read_counter(&shop, "leno_control_snapshots_compiled_total").await - before;
        // If pairs were not combined, each pair would cause a compilation.
        assert!(compiled < PAIRS as u64 / 2, "{compiled} configurations for {PAIRS} pairs");
    });
}

#[test]
fn alternating_listeners_are_limited_by_the_budget_of_their_proxy() {
    const TIMES: usize = 10_000;
    run(async {
        let shop = Shop::open().await;
        let client = shop.join("client-1").await;
        let mut client = Proxy::connect(&shop.control, &client, &[stock_service()], &[]).await;
        let server = shop.join("stock-1").await;
        let server =
            Proxy::connect(&shop.control, &server, &[], &[(8080, listener_address())]).await;
        client
            .wait_for_update(|update| stock_addresses(update) == Some(vec![listener_address()]))
            .await;
        let other: SocketAddr = "127.0.0.1:18081".parse().unwrap();
        let before = read_counter(&shop, "leno_control_changes_total").await;
        for _ in 0..TIMES {
            server.send_request(Proxy::listeners_request(&[(8080, other)])).await;
            server.send_request(Proxy::listeners_request(&[(8080, listener_address())])).await;
        }
        server.send_request(Proxy::listeners_request(&[(8080, other)])).await;
        // The client receives the listeners that were reported last.
        client.wait_for_update(|update| stock_addresses(update) == Some(vec![other])).await;
        let changes = read_counter(&shop, "leno_control_changes_total").await - before;
        assert!(changes < TIMES as u64, "{changes} changes for {TIMES} times");
    });
}

#[test]
fn a_proxy_with_many_services_receives_them_at_once_and_does_not_delay_others() {
    // More services than a `Hello` may contain.
    const SERVICES: usize = 1100;
    run(async {
        let shop = open_shop(&large_mesh(SERVICES)).await;
        let large = shop.join("client-1").await;
        let small = shop.join("stock-1").await;
        let all_services: Vec<ServiceName> = (0..SERVICES).map(numbered_service).collect();
        let mut large = Proxy::connect(&shop.control, &large, &all_services, &[]).await;
        let mut small = Proxy::connect(&shop.control, &small, &[numbered_service(1)], &[]).await;
        small.wait_for_update(|update| update.snapshot.services.len() == 1).await;
        large.wait_for_update(|update| update.snapshot.services.len() == SERVICES).await;
        // No update contained only some of the services.
        assert!(
            large
                .received_updates()
                .iter()
                .all(|update| update.snapshot.services.len() == SERVICES)
        );
        // The same services one after another, as applications use them.
        for number in 0..SERVICES {
            large.send_request(ProxyRequest::Unsubscribe(vec![numbered_service(number)])).await;
        }
        large.wait_for_update(|update| update.snapshot.services.is_empty()).await;
        for number in 0..SERVICES {
            large.send_request(ProxyRequest::Subscribe(vec![numbered_service(number)])).await;
        }
        large.wait_for_update(|update| update.snapshot.services.len() == SERVICES).await;
    });
}

/// Counts log lines of the default level.
struct LineCounter(Arc<AtomicUsize>);

impl Subscriber for LineCounter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("leno")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_member_cannot_fill_the_log() {
    const TIMES: usize = 200;
    let lines = Arc::<AtomicUsize>::default();
    let _logging = tracing::subscriber::set_default(LineCounter(Arc::clone(&lines)));
    run(async {
        let shop = Shop::open_with(|config| config.limits.subscriptions = 1).await;
        let client = shop.join("client-1").await;
        let mut proxy = Proxy::connect(&shop.control, &client, &[], &[]).await;
        proxy.wait_for_update(|_| true).await;
        let before = lines.load(Ordering::Relaxed);
        // Exceeds the limit of subscriptions repeatedly.
        for number in 0..TIMES {
            proxy
                .send_request(ProxyRequest::Subscribe(vec![
                    numbered_service(number),
                    stock_service(),
                ]))
                .await;
            proxy
                .send_request(ProxyRequest::Unsubscribe(vec![
                    numbered_service(number),
                    stock_service(),
                ]))
                .await;
            // The response arrives after the subscriptions were processed.
            let _: Status = shop.query_json("/status").await;
        }
        // Connects many times, with another workload's name and with its own.
        for _ in 0..TIMES {
            Proxy::connect_claiming(&shop.control, &client, &workload_name("stock-1"))
                .await
                .wait_until_ended()
                .await;
            let mut proxy = Proxy::connect(&shop.control, &client, &[], &[]).await;
            proxy.wait_for_update(|_| true).await;
        }
        let written_lines = lines.load(Ordering::Relaxed) - before;
        assert!((3..60).contains(&written_lines), "{written_lines} lines");
    });
}
