//! Tests of proxies that exceed their budget, and of regular ones that send much at once.

use super::*;

fn service_list(names: &[&str]) -> proto::Services {
    let names = names.iter().map(|name| format!("shop/{name}")).collect();
    proto::Services { names, ..Default::default() }
}

/// Pairs of a subscription and an unsubscription.
fn subscription_pairs(count: usize) -> Vec<u8> {
    let pair = [
        frame_message(from_proxy::Message::Subscribe(service_list(&["a"]))),
        frame_message(from_proxy::Message::Unsubscribe(service_list(&["a"]))),
    ];
    pair.concat().repeat(count)
}

/// Handles events of a connection until it ends, yielding to the runtime before each.
async fn count_events(state_task: &mut StateTask) -> u64 {
    let mut handled_count = 0;
    while state_task.next_event().await.is_some() {
        handled_count += 1;
        tokio::task::yield_now().await;
    }
    handled_count
}

#[tokio::test(start_paused = true)]
async fn subscriptions_that_cancel_out_are_merged() {
    const PAIRS: usize = 10_000;
    let (server, mut state_task, mut proxy_end) = start_server();
    let flood = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        proxy_end.write_all(&subscription_pairs(PAIRS)).await.unwrap();
        drop(proxy_end);
    };
    let script = async {
        let connected = state_task.next_event().await;
        let Some(Event::Connected(connected)) = connected else { panic!("{connected:?}") };
        // The state task is busy with another connection. The messages of this one wait, and are merged.
        sleep(Duration::from_millis(1)).await;
        let handled_count = count_events(&mut state_task).await;
        drop(connected);
        handled_count
    };
    let (server_result, (), handled_count) = tokio::join!(server, flood, script);
    server_result.unwrap();
    assert!(handled_count < PAIRS as u64 / 10, "{handled_count} events of {PAIRS} pairs");
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_exceeds_its_budget_is_read_more_slowly_and_not_cut_off() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let mut sent_count = 0_u64;
    let start = Instant::now();
    let flood = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let block = subscription_pairs(500);
        while start.elapsed() < Duration::from_secs(60) {
            proxy_end.write_all(&block).await.unwrap();
            sent_count += 1000;
        }
        drop(proxy_end);
    };
    let script = async {
        let connected = state_task.wait_for_connected().await;
        let handled_count = count_events(&mut state_task).await;
        drop(connected);
        handled_count
    };
    let (server_result, (), _) = tokio::join!(server, flood, script);
    server_result.unwrap();
    // A burst of a second of work, then a twentieth: at 16 units per message 62,500 and 3,125 per second.
    assert!(sent_count < 62_500 + 61 * 3_125 + 5_000, "{sent_count} messages were read");
    assert!(sent_count > 100_000, "{sent_count}");
}

#[tokio::test(start_paused = true)]
async fn work_that_the_owner_charges_slows_its_connection_down() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let script = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let queued = state_task.events.recv().await.unwrap();
        queued.turn.charge(u64::MAX, Instant::now());
        drop(queued.turn);
        let start = Instant::now();
        proxy_end
            .write_all(&frame_message(from_proxy::Message::Subscribe(service_list(&["a"]))))
            .await
            .unwrap();
        assert_eq!(state_task.describe_next_event().await, "+services {shop/a}");
        let wait_time = start.elapsed();
        assert!(
            wait_time > Duration::from_secs(4) && wait_time < Duration::from_secs(6),
            "{wait_time:?}"
        );
        drop(queued.event);
    };
    tokio::select! {
        () = script => {}
        server_result = server => panic!("{server_result:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_minutes_ends_the_connection_with_a_reason() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let flood = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let block = subscription_pairs(500);
        // Until the server hangs up.
        while proxy_end.write_all(&block).await.is_ok() {}
    };
    let script = async {
        let connected = state_task.wait_for_connected().await;
        count_events(&mut state_task).await;
        drop(connected);
    };
    let start = Instant::now();
    let (server_result, (), ()) = tokio::join!(server, flood, script);
    assert!(matches!(server_result, Err(ServeError::Overload)), "{server_result:?}");
    assert!(start.elapsed() >= Duration::from_secs(119), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_starts_with_thousands_of_services_does_not_wait() {
    let (server, mut state_task, proxy_end) = start_server();
    let (requests, mut queue) = mpsc::channel(16);
    let mut subscriber = Subscriber::new();
    let mut apply = |_: ConfigUpdate| Ok(());
    let client =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let start = Instant::now();
    let script = async {
        let queued = state_task.events.recv().await.unwrap();
        let Event::Connected(connected) = queued.event else { panic!("not connected") };
        let mut subscribed_count = connected.hello.services.len() as u64;
        queued.turn.charge(subscribed_count, Instant::now());
        drop(queued.turn);
        // The state task takes all events, and charges for a whole configuration each time.
        let receive_all = async {
            let mut received_count = 0;
            while received_count < 3000 {
                let QueuedEvent { event, turn } = state_task.events.recv().await.unwrap();
                if let Event::SubscriptionsChanged { change, .. } = event {
                    received_count += change.added.services.len();
                    subscribed_count += change.added.services.len() as u64;
                    turn.charge(subscribed_count, Instant::now());
                }
            }
        };
        let subscribe_all = async {
            for number in 0..3000 {
                requests
                    .send(ProxyRequest::Subscribe(vec![service_name(&format!("s{number}"))]))
                    .await
                    .unwrap();
            }
        };
        tokio::join!(receive_all, subscribe_all);
        start.elapsed()
    };
    tokio::select! {
        wait_time = script => assert!(wait_time < Duration::from_millis(300), "{wait_time:?}"),
        server_result = server => panic!("{server_result:?}"),
        client_error = client => panic!("{client_error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_messages_of_a_proxy_reach_the_owner() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let listeners = proto::Listeners::default();
    let messages = [
        framed_hello(),
        frame_message(from_proxy::Message::Listeners(listeners)),
        subscription_pairs(1),
    ]
    .concat();
    let script = async {
        proxy_end.write_all(&messages).await.unwrap();
        drop(proxy_end);
        // The state task is busy until the stream has ended.
        sleep(Duration::from_secs(1)).await;
        let _connected = state_task.wait_for_connected().await;
        assert_eq!(state_task.describe_next_event().await, "listeners []");
        assert_eq!(state_task.describe_next_event().await, "disconnected 7");
    };
    let (server_result, ()) = tokio::join!(server, script);
    server_result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn services_that_follow_a_full_hello_belong_to_it() {
    let services: Vec<_> = (0..2500).map(|number| service_name(&format!("s{number}"))).collect();
    let (server_end, proxy_end) = duplex(1 << 20);
    let (sender, events) = event_sender();
    let server = serve_proxy(server_end, CONNECTION, sender, None, OperatorSessions::new(1));
    let mut state_task = StateTask { events };
    let (_requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut apply = |_: ConfigUpdate| Ok(());
    let hello = Hello { services: services.clone(), ..gateway_hello() };
    let client = follow_control_plane(proxy_end, hello, &mut subscriber, &mut queue, &mut apply);
    tokio::select! {
        connected = state_task.wait_for_connected() => assert_eq!(connected.hello.services, services),
        server_result = server => panic!("{server_result:?}"),
        client_error = client => panic!("{client_error}"),
    }
}
