//! Messages that ask for several kinds of things at once.

use super::*;

#[tokio::test(start_paused = true)]
async fn no_list_of_a_message_is_lost() {
    let all = proto::Services {
        names: vec!["shop/a".into()],
        addresses: vec![vec![10, 0, 0, 1]],
        looked_up: vec!["shop/b".into()],
    };
    let names = proto::Services { looked_up: all.looked_up.clone(), ..Default::default() };
    let messages = [
        greeting(),
        framed(from_proxy::Message::Subscribe(all.clone())),
        framed(from_proxy::Message::Unsubscribe(all)),
        framed(from_proxy::Message::Subscribe(names)),
        framed(from_proxy::Message::Subscribe(proto::Services::default())),
    ];
    let (_, events) = against(&messages.concat()).await;
    let expected = [
        "connected",
        "ask [10.0.0.1]",
        "look up [shop/b]",
        "subscribe [shop/a]",
        "forget [10.0.0.1]",
        "forget names [shop/b]",
        "unsubscribe [shop/a]",
        "look up [shop/b]",
        "subscribe []",
        "left 7",
    ];
    assert_eq!(events, expected);
}
