//! Floods of unauthenticated connections, and members that open many connections.

use std::time::Duration;

use leno_control::Config;
use leno_discovery::ProxyRequest;
use tokio::io::AsyncReadExt as _;

use crate::crowd::{Sent, expect_served};
use crate::proxy::{Proxy, connect_member};
use crate::{Shop, run, stock_service};

/// A small limit, so that ten times as many connections need few descriptors.
const CLIENT_LIMIT: usize = 8;

/// A limit of a few connections; none ends because of a timeout.
fn set_low_limit(config: &mut Config) {
    config.limits.connections = 10 * CLIENT_LIMIT;
    config.limits.waiting_connections = CLIENT_LIMIT;
    config.limits.waiting_connections_per_source = CLIENT_LIMIT;
    config.limits.first_byte_timeout = Duration::from_secs(3600);
    config.limits.handshake_timeout = Duration::from_secs(3600);
}

/// A high limit: only the share of one identity applies.
fn set_high_limit(config: &mut Config) {
    set_low_limit(config);
    config.limits.waiting_connections = 1000;
    config.limits.waiting_connections_per_source = 1000;
    config.limits.connections = 10_000;
}

#[test]
fn joins_and_members_are_served_despite_ten_times_as_many_silent_clients() {
    run(async {
        let shop = Shop::open_with(set_low_limit).await;
        let stock_1 = shop.join("stock-1").await;
        for sent in [&Sent::REQUESTS[..], &Sent::HANDSHAKES].concat() {
            expect_served(
                shop.control.listen_address(),
                10 * CLIENT_LIMIT,
                sent,
                leno_discovery::JOIN_ALPN,
                async || {
                    shop.join("client-1").await;
                    let mut proxy =
                        Proxy::connect(&shop.control, &stock_1, &[stock_service()], &[]).await;
                    proxy.wait_for_update(|_| true).await;
                },
            )
            .await;
        }
    });
}

#[test]
fn a_member_that_sends_no_hello_does_not_block_others() {
    run(async {
        let shop = Shop::open_with(set_low_limit).await;
        let (silent, other) = (shop.join("client-1").await, shop.join("stock-1").await);
        let mut first_stream = Proxy::connect(&shop.control, &other, &[stock_service()], &[]).await;
        first_stream.wait_for_update(|_| true).await;
        let mut streams = Vec::new();
        for _ in 0..20 * CLIENT_LIMIT {
            streams.push(connect_member(&shop.control, &silent).await);
        }
        let mut second_stream =
            Proxy::connect(&shop.control, &other, &[stock_service()], &[]).await;
        second_stream.wait_for_update(|_| true).await;
        drop(streams);
    });
}

#[test]
fn each_identity_has_a_limited_number_of_connections() {
    run(async {
        let shop = Shop::open_with(set_high_limit).await;
        let member_1 = shop.join("client-1").await;
        let mut streams = Vec::new();
        for _ in 0..64 {
            streams.push(connect_member(&shop.control, &member_1).await);
        }
        for stream in &mut streams[..32] {
            // The connection may end in any way.
            assert!(!matches!(stream.read(&mut [0]).await, Ok(1..)));
        }
    });
}

#[test]
fn connections_without_a_hello_end_before_the_stream_of_their_identity() {
    run(async {
        let shop = Shop::open_with(set_high_limit).await;
        let member_1 = shop.join("client-1").await;
        let mut connected = Proxy::connect(&shop.control, &member_1, &[], &[]).await;
        connected.wait_for_update(|_| true).await;
        let mut streams = Vec::new();
        for _ in 0..64 {
            streams.push(connect_member(&shop.control, &member_1).await);
        }
        for stream in &mut streams[..30] {
            // The connection may end in any way.
            assert!(!matches!(stream.read(&mut [0]).await, Ok(1..)));
        }
        connected.send_request(ProxyRequest::Subscribe(vec![stock_service()])).await;
        connected
            .wait_for_update(|update| update.snapshot.services.contains_key(&stock_service()))
            .await;
    });
}
