//! Metrics and log entries: each exchange is recorded once, with its reason.

use leno_model::{ClientAuthorization, LogFormat, ServiceConfig};
use leno_telemetry::{Count, Gauge};
use serde_json::Value;

use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, Sidecar, closed_port, meshed_endpoint, run,
    service_config, test_service, wait_until,
};
use crate::access_log;
use crate::request_trace::MAX_QUEUED_LOG_LINES;
use crate::session::ListenerKind;

fn read_entry(sidecar: &mut Sidecar) -> Value {
    let entry = sidecar.log.try_recv().expect("a line");
    let mut text = String::new();
    access_log::append_log_line(&entry, &LogFormat::Json, &mut text);
    assert!(text.ends_with('\n'));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn each_request_is_counted_once_on_both_sides() {
    run(async {
        let app = Application::respond_with(|request| match request.head.contains("/bad") {
            true => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            false => OK.to_owned(),
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            client.send_request("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").await;
        }
        client.send_request("GET /bad HTTP/1.1\r\nhost: x\r\n\r\n").await;
        for (sidecar, direction, peer) in
            [(&mesh.client, "outbound", ""), (&mesh.server, "inbound", "bookinfo/productpage")]
        {
            wait_until(|| sidecar.ended_count() == 4).await;
            let [series] = &sidecar.series_summaries()[..] else { panic!("one series") };
            let labels = &series.labels;
            assert_eq!((labels.direction, &*labels.peer), (direction, peer));
            assert_eq!((labels.protocol, &*labels.service), ("http", "bookinfo/ratings"));
            assert_eq!((series.requests, series.success), (4, 3));
            assert_eq!((series.bytes_in, series.bytes_out), (9, 6));
            assert!(series.failures.is_empty(), "a response of the application is no failure");
        }
    });
}

/// The client's own sidecar rejects them before it selects a route: the listener's service and port are known.
#[test]
fn a_request_that_ends_before_its_route_counts_for_the_service_of_the_listener() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let by_address = mesh
            .client
            .open_listener(ListenerKind::Service { service: test_service(), port: PORT })
            .await;
        let oversized_request =
            format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(65_536));
        let requests = [
            (&*oversized_request, "head-too-large"),
            ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "bad-request"),
            ("GET https://x/ HTTP/1.1\r\nhost: x\r\n\r\n", "unsupported"),
        ];
        for address in [mesh.listener, by_address] {
            for (request, reason) in requests {
                let response = Client::connect(address).await.send_request(request).await;
                assert_eq!(response.reason_code(), Some(reason));
            }
        }
        let service = service_config(mesh.setup.protocol, &[mesh.server_endpoint()]);
        mesh.set_client_services(vec![ServiceConfig {
            client_authorization: ClientAuthorization::Denied,
            ..service
        }]);
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(response.reason_code(), Some("denied-outbound"));
        wait_until(|| mesh.client.ended_count() == 7).await;
        let summaries = mesh.client.series_summaries();
        let labels = summaries.iter().map(|series| (&*series.labels.service, series.labels.port));
        assert_eq!(labels.collect::<Vec<_>>(), [("bookinfo/ratings", PORT)]);
        assert_eq!((mesh.client.failure_counts().len(), mesh.server.ended_count()), (4, 0));
    });
}

/// Each request of the HTTP proxy names its service, so none is known before its head is read.
#[test]
fn a_request_that_the_http_proxy_cannot_read_counts_for_no_service() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let oversized_request =
            format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(65_536));
        for (request, reason) in [
            (&*oversized_request, "head-too-large"),
            ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "bad-request"),
        ] {
            let response = Client::connect(proxy).await.send_request(request).await;
            assert_eq!(response.reason_code(), Some(reason));
        }
        wait_until(|| mesh.client.ended_count() == 2).await;
        let summaries = mesh.client.series_summaries();
        let labels = summaries.iter().map(|series| (&*series.labels.service, series.labels.port));
        assert_eq!(labels.collect::<Vec<_>>(), [("", 0)]);
    });
}

#[test]
fn a_retried_request_counts_as_one_request() {
    run(async {
        let mesh = Mesh::permissive(closed_port()).await;
        let dead_endpoint = |name| meshed_endpoint(name, closed_port(), "ratings");
        mesh.route_to(&[dead_endpoint("ratings-1"), dead_endpoint("ratings-2")]);
        Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(mesh.client.ended_count(), 1);
        assert_eq!(mesh.client.failure_counts(), [("connect-failed", 1)].into());
        assert_eq!(mesh.client.telemetry.count(Count::Retries), 1);
    });
}

#[test]
fn connections_are_counted_while_they_are_open() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut first = Client::connect(mesh.listener).await;
        let mut second = Client::connect(mesh.listener).await;
        first.send_request(GET).await;
        second.send_request(GET).await;
        let gauge = |sidecar: &Sidecar, gauge| sidecar.telemetry.gauge(gauge);
        assert_eq!(gauge(&mesh.client, Gauge::ConnectionsDownstream), 2);
        assert_eq!(gauge(&mesh.client, Gauge::ConnectionsUpstream), 1);
        assert_eq!(gauge(&mesh.client, Gauge::LinksUpstream), 1);
        assert_eq!(gauge(&mesh.server, Gauge::ConnectionsDownstream), 1);
        assert_eq!(gauge(&mesh.server, Gauge::ConnectionsUpstream), 1);
        assert_eq!(gauge(&mesh.server, Gauge::LinksDownstream), 1);
        drop((first, second));
        mesh.client.worker.retire_upstreams();
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| gauge(sidecar, Gauge::ConnectionsDownstream) == 0).await;
            assert_eq!(gauge(sidecar, Gauge::RequestsInFlight), 0);
        }
        wait_until(|| gauge(&mesh.client, Gauge::ConnectionsUpstream) == 0).await;
        assert_eq!(gauge(&mesh.client, Gauge::LinksUpstream), 0);
        for (count, expected) in [
            (Count::DownstreamOpened, 2),
            (Count::UpstreamOpened, 1),
            (Count::UpstreamHandshake, 1),
            (Count::UpstreamConnected, 1),
            (Count::CheckoutOpened, 1),
            (Count::CheckoutReused, 1),
        ] {
            assert_eq!(mesh.client.telemetry.count(count), expected, "{count:?}");
        }
        assert_eq!(mesh.server.telemetry.count(Count::DownstreamHandshake), 1);
    });
}

#[test]
fn a_log_line_has_the_outcome_without_the_query() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client
            .send_request(
                "POST /ratings/1?token=secret HTTP/1.1\r\nhost: x\r\nuser-agent: curl\r\n\
                 x-request-id: 42\r\ncontent-length: 3\r\n\r\nabc",
            )
            .await;
        wait_until(|| mesh.server.ended_count() == 1).await;
        let outbound = read_entry(&mut mesh.client);
        assert!(!outbound.to_string().contains("secret"), "{outbound}");
        for (name, expected) in [
            ("direction", "outbound"),
            ("method", "POST"),
            ("path", "/ratings/1"),
            ("protocol", "http"),
            ("upstream_cluster", "bookinfo/ratings"),
            ("user_agent", "curl"),
            ("request_id", "42"),
            ("upstream_host", &mesh.inbound.to_string()),
            ("downstream_remote", &client.stream.local_addr().unwrap().to_string()),
        ] {
            assert_eq!(outbound[name], expected, "{name}");
        }
        assert_eq!(outbound["response_code"], 200);
        assert_eq!(outbound["response_code_details"], Value::Null);
        assert_eq!((&outbound["bytes_received"], &outbound["bytes_sent"]), (&3.into(), &2.into()));
        let inbound = read_entry(&mut mesh.server);
        assert_eq!(inbound["peer"], "bookinfo/productpage");
        assert_eq!(inbound["upstream_host"], app.address.to_string());
        assert_eq!(inbound["authority"], "ratings.bookinfo:9080");
        assert!(mesh.client.log.try_recv().is_err(), "one line for one request");
    });
}

#[test]
fn a_log_line_has_the_reason_of_a_rejection() {
    run(async {
        let app = Application::with_response(OK).await;
        let allow_none = leno_model::Access::AllowListed(Vec::new());
        let mut mesh = Mesh::with_access(app.address, allow_none).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_request(GET).await;
        let line = read_entry(&mut mesh.server);
        assert_eq!(line["response_code"], 403);
        assert_eq!(line["response_code_details"], "denied");
        assert_eq!(line["upstream_host"], Value::Null);
        assert_eq!(line["method"], "GET");
    });
}

#[test]
fn an_unread_log_loses_lines_and_no_requests() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..MAX_QUEUED_LOG_LINES + 76 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert_eq!(mesh.client.telemetry.count(Count::AccessLogLinesDropped), 76);
    });
}
