//! Tests of messages with several kinds of subscriptions.

use super::*;

#[tokio::test(start_paused = true)]
async fn each_list_of_a_message_is_applied() {
    let every_kind = proto::Services {
        names: vec!["shop/a".into()],
        addresses: vec![vec![10, 0, 0, 1]],
        dns_names: vec!["shop/b".into()],
    };
    let names = proto::Services { dns_names: every_kind.dns_names.clone(), ..Default::default() };
    let steps = [
        (
            from_proxy::Message::Subscribe(every_kind.clone()),
            "+services {shop/a} +addresses {10.0.0.1} +names {shop/b}",
        ),
        (
            from_proxy::Message::Unsubscribe(every_kind),
            "-services {shop/a} -addresses {10.0.0.1} -names {shop/b}",
        ),
        (from_proxy::Message::Subscribe(names), "+names {shop/b}"),
    ];
    let (server, mut state_task, mut proxy_end) = start_server();
    let script = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let _connected = state_task.wait_for_connected().await;
        for (message, expected) in steps {
            proxy_end.write_all(&frame_message(message)).await.unwrap();
            assert_eq!(state_task.describe_next_event().await, expected);
        }
        // An empty message changes nothing.
        let empty = from_proxy::Message::Subscribe(proto::Services::default());
        proxy_end.write_all(&frame_message(empty)).await.unwrap();
        drop(proxy_end);
        assert_eq!(state_task.describe_next_event().await, "disconnected 7");
    };
    let (server_result, ()) = tokio::join!(server, script);
    server_result.unwrap();
}
