//! Members that exceed their share, the service of others meanwhile, and the log.

mod figures;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use super::*;

/// Returns a mesh with so many services in addition to those of the shop.
fn large(services: usize) -> String {
    let mut yaml = MESH.to_owned();
    for number in 0..services {
        write!(
            yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: shop}}\n\
             spec: {{selector: {{app: s{number}}}, ports: [{{port: 80}}]}}\n"
        )
        .unwrap();
    }
    yaml
}

fn numbered(number: usize) -> ServiceName {
    ServiceName::new("shop", &format!("s{number}")).unwrap()
}

async fn open(yaml: &str) -> Shop {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), yaml);
    let control = Control::start(config(directory.path())).await.unwrap();
    Shop { directory, control }
}

/// Returns a counter of the control plane.
async fn counted(shop: &Shop, name: &str) -> u64 {
    let (_, page) = admin::ask(shop.control.socket(), "GET", "/metrics").await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect(name).parse().unwrap()
}

#[test]
fn pairs_of_subscriptions_are_put_together_while_others_are_served() {
    const SERVICES: usize = 200;
    const PAIRS: usize = 20_000;
    run(async {
        let shop = open(&large(SERVICES)).await;
        let external_client = shop.join("client-1").await;
        let server = shop.join("stock-1").await;
        let mut server = Proxy::connect(&shop.control, &server, &[], &[]).await;
        server.update(|_| true).await;
        let all: Vec<ServiceName> = (0..SERVICES).map(numbered).collect();
        let mut flooding = Proxy::connect(&shop.control, &external_client, &all, &[]).await;
        flooding.update(|update| update.snapshot.services.len() == SERVICES).await;
        let before = counted(&shop, "leno_control_compiled_total").await;
        let flood = async {
            for _ in 0..PAIRS {
                flooding.say(Request::Subscribe(vec![stock()])).await;
                flooding.say(Request::Unsubscribe(vec![stock()])).await;
            }
        };
        let others = async {
            server.say(Proxy::listeners(&[(8080, listener())])).await;
            server.say(Request::Subscribe(vec![stock()])).await;
            let update = server.update(|update| addresses(update).is_some()).await;
            assert!(addresses(&update).is_some());
        };
        tokio::join!(flood, others);
        let compiled = counted(&shop, "leno_control_compiled_total").await - before;
        // A burst, and a second's allowance, many times over.
        assert!(compiled < PAIRS as u64 / 2, "{compiled} worlds for {PAIRS} pairs");
    });
}

#[test]
fn listeners_that_alternate_are_changes_within_the_budget_of_their_proxy() {
    const TIMES: usize = 10_000;
    run(async {
        let shop = Shop::open().await;
        let client = shop.join("client-1").await;
        let mut client = Proxy::connect(&shop.control, &client, &[stock()], &[]).await;
        let server = shop.join("stock-1").await;
        let server = Proxy::connect(&shop.control, &server, &[], &[(8080, listener())]).await;
        client.update(|update| addresses(update) == Some(vec![listener()])).await;
        let other: SocketAddr = "127.0.0.1:18081".parse().unwrap();
        let before = counted(&shop, "leno_control_changes_total").await;
        for _ in 0..TIMES {
            server.say(Proxy::listeners(&[(8080, other)])).await;
            server.say(Proxy::listeners(&[(8080, listener())])).await;
        }
        server.say(Proxy::listeners(&[(8080, other)])).await;
        // The last listeners win.
        client.update(|update| addresses(update) == Some(vec![other])).await;
        let changes = counted(&shop, "leno_control_changes_total").await - before;
        assert!(changes < TIMES as u64, "{changes} changes for {TIMES} times");
    });
}

#[test]
fn a_proxy_of_thousands_of_services_has_them_all_at_once_and_no_other_waits_for_it() {
    // More than a Hello holds.
    const SERVICES: usize = 1100;
    run(async {
        let shop = open(&large(SERVICES)).await;
        let large = shop.join("client-1").await;
        let small = shop.join("stock-1").await;
        let all: Vec<ServiceName> = (0..SERVICES).map(numbered).collect();
        let mut large = Proxy::connect(&shop.control, &large, &all, &[]).await;
        let mut small = Proxy::connect(&shop.control, &small, &[numbered(1)], &[]).await;
        small.update(|update| update.snapshot.services.len() == 1).await;
        large.update(|update| update.snapshot.services.len() == SERVICES).await;
        // It never received only a part of them.
        assert!(large.seen().iter().all(|update| update.snapshot.services.len() == SERVICES));
        // The same one by one, as applications first use them.
        for number in 0..SERVICES {
            large.say(Request::Unsubscribe(vec![numbered(number)])).await;
        }
        large.update(|update| update.snapshot.services.is_empty()).await;
        for number in 0..SERVICES {
            large.say(Request::Subscribe(vec![numbered(number)])).await;
        }
        large.update(|update| update.snapshot.services.len() == SERVICES).await;
    });
}

/// Counts log lines of the default level.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
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
fn no_member_fills_the_log() {
    const TIMES: usize = 200;
    let lines = Arc::<AtomicUsize>::default();
    let _logging = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    run(async {
        let shop = Shop::open_with(|config| config.limits.subscriptions = 1).await;
        let client = shop.join("client-1").await;
        let mut proxy = Proxy::connect(&shop.control, &client, &[], &[]).await;
        proxy.update(|_| true).await;
        let before = lines.load(Ordering::Relaxed);
        // Repeatedly more than the limit.
        for number in 0..TIMES {
            proxy.say(Request::Subscribe(vec![numbered(number), stock()])).await;
            proxy.say(Request::Unsubscribe(vec![numbered(number), stock()])).await;
            // Until it has been processed.
            let _: Status = shop.ask("/status").await;
        }
        // Under a false name, and under its own, on many connections.
        for _ in 0..TIMES {
            Proxy::claim(&shop.control, &client, &workload("stock-1")).await.ended().await;
            let mut proxy = Proxy::connect(&shop.control, &client, &[], &[]).await;
            proxy.update(|_| true).await;
        }
        let written = lines.load(Ordering::Relaxed) - before;
        assert!((3..60).contains(&written), "{written} lines");
    });
}
