//! Tests of the proxy's end against control planes that are silent, malicious or gone.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::timeout;

use super::*;
use crate::envelope::delta_to_wire;
use crate::fixture::{bookinfo_update, gateway_hello, service_config, service_name, update_with};
use crate::keepalive::MAX_SILENCE;
use crate::key::ChangeId;
use crate::publisher::Publisher;

/// Follows a control plane that sends these bytes and then stays silent.
async fn follow_bytes(bytes: &[u8], subscriber: &mut Subscriber) -> DiscoveryError {
    let (proxy_end, mut server_end) = duplex(1 << 20);
    server_end.write_all(bytes).await.unwrap();
    let (_requests, mut queue) = mpsc::channel(1);
    let error = follow_control_plane(
        proxy_end,
        gateway_hello(),
        subscriber,
        &mut queue,
        &mut |_: ConfigUpdate| Ok(()),
    )
    .await;
    drop(server_end);
    error
}

fn frame_message(message: to_proxy::Message) -> Vec<u8> {
    let message = proto::ToProxy { message: Some(message) }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap();
    [&length.to_be_bytes()[..], &message].concat()
}

fn delta_for(update: ConfigUpdate) -> Vec<u8> {
    let mut publisher = Publisher::new(Vec::new());
    publisher.set_update(update);
    frame_message(to_proxy::Message::Delta(delta_to_wire(publisher.next_delta().unwrap())))
}

#[tokio::test(start_paused = true)]
async fn a_silent_control_plane_is_disconnected_after_the_limit() {
    let start = Instant::now();
    let error = follow_bytes(&[], &mut Subscriber::new()).await;
    assert!(matches!(error, DiscoveryError::Timeout), "{error}");
    assert_eq!(start.elapsed(), MAX_SILENCE);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_message_ends_the_stream_with_a_reason() {
    let without_key =
        proto::Delta { upserts: vec![proto::Upsert::default()], ..Default::default() };
    let cases = [
        (frame_message(to_proxy::Message::Delta(without_key)), "key: is missing"),
        (vec![0, 0, 0, 0], "without content"),
        (vec![0, 0, 0, 2, 0xff, 0xff], "invalid message"),
        (vec![0x7f, 0, 0, 0], "exceeds the limit of 4194304"),
        (
            frame_message(to_proxy::Message::Certificate(proto::Certificate::default())),
            "without content",
        ),
        (
            frame_message(to_proxy::Message::Goodbye(proto::Goodbye { reason: "moving".into() })),
            "ended the stream: moving",
        ),
    ];
    for (bytes, reason) in cases {
        let error = follow_bytes(&bytes, &mut Subscriber::new()).await;
        assert!(error.to_string().contains(reason), "{error} should say {reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_stream_is_distinguished_from_a_broken_one() {
    for (bytes, is_closed) in [(&[][..], true), (&[0, 0, 0, 9, 1][..], false)] {
        let (proxy_end, mut server_end) = duplex(1024);
        server_end.write_all(bytes).await.unwrap();
        server_end.shutdown().await.unwrap();
        let (_requests, mut queue) = mpsc::channel(1);
        let mut subscriber = Subscriber::new();
        let error = follow_control_plane(
            proxy_end,
            gateway_hello(),
            &mut subscriber,
            &mut queue,
            &mut |_: ConfigUpdate| Ok(()),
        )
        .await;
        assert_eq!(matches!(error, DiscoveryError::Closed), is_closed, "{error}");
        assert_eq!(matches!(error, DiscoveryError::Io(_)), !is_closed, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_keeps_the_applied_config() {
    let (proxy_end, mut server_end) = duplex(1 << 20);
    server_end.write_all(&delta_for(bookinfo_update())).await.unwrap();
    let (_requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut applied = Vec::new();
    let mut apply = |update: ConfigUpdate| {
        applied.push(update.change);
        Ok(())
    };
    let following =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    assert!(timeout(Duration::from_secs(1), following).await.is_err());
    assert_eq!(applied, [ChangeId(1)]);
    assert_eq!(subscriber.current_update(), Some(&bookinfo_update()));
    assert_eq!(server_end.read(&mut [0; 4]).await.unwrap(), 4, "the hello was sent");
}

#[tokio::test(start_paused = true)]
async fn a_config_with_too_many_held_versions_is_requested_in_full() {
    let mut subscriber = Subscriber::new();
    let large = update_with(1, [service_config(&"a".repeat(40), 12_000)]);
    let mut publisher = Publisher::new(Vec::new());
    publisher.set_update(large);
    while let Some(delta) = publisher.next_delta() {
        let nonce = delta.nonce;
        let staged_delta = subscriber.stage(delta).unwrap();
        subscriber.commit(staged_delta);
        publisher.acknowledge(nonce).unwrap();
    }
    let (proxy_end, server_end) = duplex(1 << 20);
    let (requests, mut queue) = mpsc::channel(1);
    let mut apply = |_: ConfigUpdate| Ok(());
    let following =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let reading = async {
        let mut reader = FrameReader::new(server_end, MAX_REQUEST_BYTES);
        let frame = reader.next().await.unwrap().unwrap();
        drop(requests);
        (proto::FromProxy::decode(frame).unwrap().message, reader)
    };
    let (error, (first_message, _reader)) = tokio::join!(following, reading);
    assert!(matches!(error, DiscoveryError::Stopped), "{error}");
    match first_message {
        Some(from_proxy::Message::Hello(hello)) => assert!(hello.held.is_empty()),
        message => panic!("not a hello: {message:?}"),
    }
    assert!(subscriber.held_versions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_while_another_is_pending_is_rejected_at_once() {
    let (proxy_end, _server_end) = duplex(1 << 20);
    let (requests, mut queue) = mpsc::channel(16);
    let mut receivers = Vec::new();
    for size in [100, 100, MAX_CSR_BYTES + 1] {
        let (reply, receiver) = tokio::sync::oneshot::channel();
        requests.send(ProxyRequest::Renew { csr: vec![0; size], reply }).await.unwrap();
        receivers.push(receiver);
    }
    drop(requests);
    let mut subscriber = Subscriber::new();
    follow_control_plane(
        proxy_end,
        gateway_hello(),
        &mut subscriber,
        &mut queue,
        &mut |_: ConfigUpdate| Ok(()),
    )
    .await;
    let mut reasons = Vec::new();
    for receiver in receivers {
        reasons
            .push(receiver.await.map_or_else(|_| String::new(), |reply| reply.unwrap_err().reason));
    }
    assert_eq!(reasons[0], "", "it waits until the stream ends");
    assert!(reasons[1].contains("request is pending"), "{}", reasons[1]);
    assert!(reasons[2].contains("64 KiB"), "{}", reasons[2]);
}

#[tokio::test(start_paused = true)]
async fn many_services_are_subscribed_in_messages_within_the_size_limit() {
    let mut hello = gateway_hello();
    hello.services =
        (0..3000).map(|index| service_name(&format!("{}-{index}", "s".repeat(50)))).collect();
    let (proxy_end, server_end) = duplex(1 << 20);
    let (requests, mut queue) = mpsc::channel(1);
    let (mut subscriber, expected) = (Subscriber::new(), hello.services.clone());
    let mut apply = |_: ConfigUpdate| Ok(());
    let following = follow_control_plane(proxy_end, hello, &mut subscriber, &mut queue, &mut apply);
    let reading = async {
        let mut reader = FrameReader::new(server_end, MAX_REQUEST_BYTES);
        let mut names = Vec::new();
        while names.len() < expected.len() {
            let frame = reader.next().await.unwrap().unwrap();
            match proto::FromProxy::decode(frame).unwrap().message.unwrap() {
                from_proxy::Message::Hello(hello) => names.extend(hello.services),
                from_proxy::Message::Subscribe(services) => names.extend(services.names),
                message => panic!("unexpected {message:?}"),
            }
        }
        drop(requests);
        names
    };
    let (_, names) = tokio::join!(following, reading);
    assert_eq!(names, expected.iter().map(ToString::to_string).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn hostile_bytes_end_the_stream_and_never_panic(
        bytes in vec(any::<u8>(), 0..200),
        index in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut damaged = delta_for(bookinfo_update());
        let index = index.index(damaged.len());
        damaged[index] = value;
        let framed_bytes = [&[0, 0, 0, u8::try_from(bytes.len()).unwrap()][..], &bytes].concat();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        for bytes in [&bytes, &framed_bytes, &damaged] {
            runtime.block_on(follow_bytes(bytes, &mut Subscriber::new()));
        }
    }
}
