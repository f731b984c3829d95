//! Taps receive matching requests within their rate limit.

use leno_model::{Observability, ServiceAccount, StatusRange, Tap, TapSide};

use super::fixture::{Application, Client, GET, Mesh, OK, Setup, Sidecar, run, wait_until};

fn test_tap(id: u64) -> Tap {
    Tap {
        id,
        service: "bookinfo/ratings".parse().unwrap(),
        side: TapSide::Both,
        path: String::new(),
        method: String::new(),
        status: None,
        from: None,
        per_second: 1000,
    }
}

/// Returns the tapped requests since the last call, each with path and status.
fn take_reported(sidecar: &mut Sidecar) -> Vec<(u64, String, u16)> {
    let matched_requests = std::iter::from_fn(|| sidecar.taps.try_recv().ok());
    matched_requests
        .map(|matched| {
            (
                matched.tap.matcher.tap().id,
                matched.trace_entry.path.clone(),
                matched.trace_entry.outcome.status,
            )
        })
        .collect()
}

async fn tapped_mesh() -> Mesh {
    let app = Application::respond_with(|request| match request.head.contains("/bad") {
        true => "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
        false => OK.to_owned(),
    });
    Mesh::new(
        app.await.address,
        Setup { observability: Observability::default(), ..Setup::default() },
    )
    .await
}

#[test]
fn each_tap_receives_its_requests_on_both_sides() {
    run(async {
        let mut mesh = tapped_mesh().await;
        let caller = Some(ServiceAccount::new("bookinfo", "productpage").unwrap());
        let other_account = Some(ServiceAccount::new("bookinfo", "other").unwrap());
        let taps = [
            Tap { from: caller, ..test_tap(1) },
            Tap { status: StatusRange::parse("5xx"), side: TapSide::Server, ..test_tap(2) },
            Tap { path: "/ratings".into(), side: TapSide::Client, ..test_tap(3) },
            Tap { from: other_account, ..test_tap(4) },
            Tap { service: "bookinfo/reviews".parse().unwrap(), ..test_tap(5) },
        ];
        for sidecar in [&mesh.client, &mesh.server] {
            sidecar.worker.config_store.observability.replace_taps(&taps);
        }
        let mut client = Client::connect(mesh.listener).await;
        client.send_request(GET).await;
        client.send_request("GET /bad?token=x HTTP/1.1\r\nhost: x\r\n\r\n").await;
        wait_until(|| mesh.client.ended_count() == 2 && mesh.server.ended_count() == 2).await;
        let expected_request = |id, path: &str, status| (id, path.to_owned(), status);
        assert_eq!(
            take_reported(&mut mesh.client),
            [
                expected_request(1, "/ratings/1", 200),
                expected_request(3, "/ratings/1", 200),
                expected_request(1, "/bad", 503)
            ]
        );
        assert_eq!(
            take_reported(&mut mesh.server),
            [
                expected_request(1, "/ratings/1", 200),
                expected_request(1, "/bad", 503),
                expected_request(2, "/bad", 503)
            ]
        );
        for sidecar in [&mesh.client, &mesh.server] {
            sidecar.worker.config_store.observability.replace_taps(&[]);
        }
        client.send_request(GET).await;
        wait_until(|| mesh.server.ended_count() == 3).await;
        assert!(
            take_reported(&mut mesh.client).is_empty()
                && take_reported(&mut mesh.server).is_empty()
        );
    });
}

#[test]
fn a_tap_receives_no_more_requests_than_its_rate() {
    run(async {
        let mut mesh = tapped_mesh().await;
        mesh.client
            .worker
            .config_store
            .observability
            .replace_taps(&[Tap { per_second: 3, ..test_tap(1) }]);
        let mut client = Client::connect(mesh.listener).await;
        let start_time = tokio::time::Instant::now();
        for _ in 0..50 {
            client.send_request(GET).await;
        }
        wait_until(|| mesh.client.ended_count() == 50).await;
        let seconds = usize::try_from(start_time.elapsed().as_secs()).unwrap();
        let reported = take_reported(&mut mesh.client).len();
        assert!(reported >= 3 && reported <= 3 * (seconds + 1), "{reported} in {seconds} s");
    });
}
