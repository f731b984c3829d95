//! Tests of the proxy's end against control planes that are silent, malicious or gone.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::timeout;

use super::*;
use crate::envelope::delta_to_wire;
use crate::fixture::{bookinfo_update, gateway_hello, service_config, service_name, update_with};
use crate::keepalive::SILENCE_MAX;
use crate::key::ChangeId;
use crate::publisher::Publisher;

/// Follows a control plane that sends these bytes and then stays silent.
async fn follow_bytes(bytes: &[u8], subscriber: &mut Subscriber) -> DiscoveryError {
    let (near, mut far) = duplex(1 << 20);
    far.write_all(bytes).await.unwrap();
    let (_requests, mut queue) = mpsc::channel(1);
    let error = follow_control_plane(
        near,
        gateway_hello(),
        subscriber,
        &mut queue,
        &mut |_: ConfigUpdate| Ok(()),
    )
    .await;
    drop(far);
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
async fn a_mute_control_plane_is_left_after_a_bounded_silence() {
    let start = Instant::now();
    let error = follow_bytes(&[], &mut Subscriber::new()).await;
    assert!(matches!(error, DiscoveryError::Silent), "{error}");
    assert_eq!(start.elapsed(), SILENCE_MAX);
}

#[tokio::test(start_paused = true)]
async fn whatever_is_not_of_the_protocol_ends_the_stream_with_a_reason() {
    let no_key = proto::Delta { upserts: vec![proto::Upsert::default()], ..Default::default() };
    let cases = [
        (frame_message(to_proxy::Message::Delta(no_key)), "key: is missing"),
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
async fn a_closed_stream_is_reported_from_a_broken_one() {
    for (bytes, closed) in [(&[][..], true), (&[0, 0, 0, 9, 1][..], false)] {
        let (near, mut far) = duplex(1024);
        far.write_all(bytes).await.unwrap();
        far.shutdown().await.unwrap();
        let (_requests, mut queue) = mpsc::channel(1);
        let mut subscriber = Subscriber::new();
        let error = follow_control_plane(
            near,
            gateway_hello(),
            &mut subscriber,
            &mut queue,
            &mut |_: ConfigUpdate| Ok(()),
        )
        .await;
        assert_eq!(matches!(error, DiscoveryError::Closed), closed, "{error}");
        assert_eq!(matches!(error, DiscoveryError::Io(_)), !closed, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_keeps_what_was_applied() {
    let (near, mut far) = duplex(1 << 20);
    far.write_all(&delta_for(bookinfo_update())).await.unwrap();
    let (_requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut applied = Vec::new();
    let mut apply = |update: ConfigUpdate| {
        applied.push(update.change);
        Ok(())
    };
    let following =
        follow_control_plane(near, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    assert!(timeout(Duration::from_secs(1), following).await.is_err());
    assert_eq!(applied, [ChangeId(1)]);
    assert_eq!(subscriber.current_update(), Some(&bookinfo_update()));
    assert_eq!(far.read(&mut [0; 4]).await.unwrap(), 4, "the hello was sent");
}

#[tokio::test(start_paused = true)]
async fn a_world_that_is_too_large_to_be_listed_is_asked_for_anew() {
    let mut subscriber = Subscriber::new();
    let large = update_with(1, [service_config(&"a".repeat(40), 12_000)]);
    let mut publisher = Publisher::new(Vec::new());
    publisher.set_update(large);
    while let Some(delta) = publisher.next_delta() {
        let nonce = delta.nonce;
        let staged = subscriber.stage(delta).unwrap();
        subscriber.commit(staged);
        publisher.acknowledge(nonce).unwrap();
    }
    let (near, far) = duplex(1 << 20);
    let (requests, mut queue) = mpsc::channel(1);
    let mut apply = |_: ConfigUpdate| Ok(());
    let following =
        follow_control_plane(near, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let reading = async {
        let mut reader = FrameReader::new(far, REQUEST_BYTES_MAX);
        let frame = reader.next().await.unwrap().unwrap();
        drop(requests);
        (proto::FromProxy::decode(frame).unwrap().message, reader)
    };
    let (error, (first, _reader)) = tokio::join!(following, reading);
    assert!(matches!(error, DiscoveryError::Stopped), "{error}");
    match first {
        Some(from_proxy::Message::Hello(hello)) => assert!(hello.held.is_empty()),
        other => panic!("not a hello: {other:?}"),
    }
    assert!(subscriber.held_versions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_while_another_waits_is_refused_at_once() {
    let (near, _far) = duplex(1 << 20);
    let (requests, mut queue) = mpsc::channel(16);
    let mut waiting = Vec::new();
    for size in [100, 100, CSR_BYTES_MAX + 1] {
        let (answer, receiver) = tokio::sync::oneshot::channel();
        requests.send(ProxyRequest::Renew { csr: vec![0; size], answer }).await.unwrap();
        waiting.push(receiver);
    }
    drop(requests);
    let mut subscriber = Subscriber::new();
    follow_control_plane(
        near,
        gateway_hello(),
        &mut subscriber,
        &mut queue,
        &mut |_: ConfigUpdate| Ok(()),
    )
    .await;
    let mut answers = Vec::new();
    for receiver in waiting {
        answers.push(
            receiver.await.map_or_else(|_| String::new(), |answer| answer.unwrap_err().reason),
        );
    }
    assert_eq!(answers[0], "", "it waits until the stream ends");
    assert!(answers[1].contains("request is pending"), "{}", answers[1]);
    assert!(answers[2].contains("64 KiB"), "{}", answers[2]);
}

#[tokio::test(start_paused = true)]
async fn many_services_are_subscribed_in_messages_that_fit() {
    let mut hello = gateway_hello();
    hello.services = (0..3000).map(|n| service_name(&format!("{}-{n}", "s".repeat(50)))).collect();
    let (near, far) = duplex(1 << 20);
    let (requests, mut queue) = mpsc::channel(1);
    let (mut subscriber, wanted) = (Subscriber::new(), hello.services.clone());
    let mut apply = |_: ConfigUpdate| Ok(());
    let following = follow_control_plane(near, hello, &mut subscriber, &mut queue, &mut apply);
    let reading = async {
        let mut reader = FrameReader::new(far, REQUEST_BYTES_MAX);
        let mut names = Vec::new();
        while names.len() < wanted.len() {
            let frame = reader.next().await.unwrap().unwrap();
            match proto::FromProxy::decode(frame).unwrap().message.unwrap() {
                from_proxy::Message::Hello(hello) => names.extend(hello.services),
                from_proxy::Message::Subscribe(services) => names.extend(services.names),
                other => panic!("unexpected {other:?}"),
            }
        }
        drop(requests);
        names
    };
    let (_, names) = tokio::join!(following, reading);
    assert_eq!(names, wanted.iter().map(ToString::to_string).collect::<Vec<_>>());
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
        let announced = [&[0, 0, 0, u8::try_from(bytes.len()).unwrap()][..], &bytes].concat();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        for bytes in [&bytes, &announced, &damaged] {
            runtime.block_on(follow_bytes(bytes, &mut Subscriber::new()));
        }
    }
}
