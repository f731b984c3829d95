//! Requests with streams count when the streams begin, at both sidecars, and not again when they end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use leno_model::Protocol;
use leno_telemetry::ExpositionFormat;

use super::fixture::{Application, Client, GET, Mesh, OK, Sidecar, run, wait_until};
use super::http2;
use crate::traffic_report::TrafficReporter;

/// Returns the sum of a metric over all series of a sidecar.
fn metric_sum(sidecar: &Sidecar, metric: &str) -> u64 {
    let mut text = String::new();
    sidecar.telemetry.expose(ExpositionFormat::Prometheus, &mut text);
    let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Returns the numbers of opened and of open streams.
fn stream_counts(sidecar: &Sidecar) -> (u64, u64) {
    (metric_sum(sidecar, "leno_streams_opened_total"), metric_sum(sidecar, "leno_streams"))
}

/// Both sidecars, and the requests that each reports to the control plane.
struct Reports<'a> {
    mesh: &'a Mesh,
    counted: [TrafficReporter; 2],
}

impl<'a> Reports<'a> {
    fn for_mesh(mesh: &'a Mesh) -> Self {
        let counted = [&mesh.client, &mesh.server].map(|sidecar| {
            let mut counted = TrafficReporter::from_telemetry(Arc::clone(&sidecar.telemetry));
            counted.start_stream(Instant::now());
            counted
        });
        Self { mesh, counted }
    }

    /// Returns the requests since the last report, as used for rates, and those that ended.
    fn take_counts(&mut self) -> [(u64, u64); 2] {
        self.counted.each_mut().map(|counted| {
            let series =
                counted.take_report(Instant::now()).map(|report| report.series).unwrap_or_default();
            (
                series.iter().map(|series| series.request_count()).sum(),
                series.iter().map(|series| series.ended_count()).sum(),
            )
        })
    }

    /// Waits until a stream has begun and is counted.
    async fn wait_for_start(&mut self) {
        wait_until(|| self.both_sidecars(|sidecar| stream_counts(sidecar) == (1, 1))).await;
        assert_eq!(self.take_counts(), [(1, 0); 2], "it counts when it begins");
        assert!(self.both_sidecars(|sidecar| sidecar.ended_count() == 0));
    }

    /// Waits until the stream has ended.
    async fn wait_for_end(&mut self, requests: u64) {
        wait_until(|| self.both_sidecars(|sidecar| sidecar.ended_count() == 1)).await;
        assert!(self.both_sidecars(|sidecar| stream_counts(sidecar) == (1, 0)));
        assert_eq!(self.take_counts(), [(requests, 1); 2], "it counts once");
    }

    fn both_sidecars(&self, condition: impl Fn(&Sidecar) -> bool) -> bool {
        condition(&self.mesh.client) && condition(&self.mesh.server)
    }
}

/// Starts an application that sends a head and a first piece, and closes the connection after its client.
async fn start_streaming(head: &'static str) -> Application {
    Application::start(move |mut client| async move {
        drop(client.read_head().await);
        client.send_bytes(head).await;
        drop(client.read_rest().await);
    })
    .await
}

#[test]
fn an_upgraded_connection_counts_at_its_start() {
    run(async {
        let app = start_streaming(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
        )
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut reports = Reports::for_mesh(&mesh);
        let mut client = Client::connect(mesh.listener).await;
        client
            .send_bytes(
                "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            )
            .await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        reports.wait_for_start().await;
        drop(client);
        reports.wait_for_end(0).await;
    });
}

#[test]
fn an_event_stream_counts_at_its_first_pause_and_a_later_failure_separately() {
    run(async {
        let app =
            start_streaming("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
                .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut reports = Reports::for_mesh(&mesh);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        assert_eq!(client.read_head().await.unwrap().status, 200);
        reports.wait_for_start().await;
        client.abandon();
        // A client that disconnects is a failure with a reason.
        reports.wait_for_end(1).await;
        assert_eq!(mesh.client.failure_counts(), BTreeMap::from([("downstream-closed", 1)]));
    });
}

#[test]
fn a_streaming_call_counts_before_the_first_response() {
    run(async {
        let app = http2::start_application(|request, mut respond| async move {
            let (body, _) = http2::read_body(request.into_body()).await;
            assert_eq!(body, b"onetwo");
            let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        let mesh = http2::http2_mesh(app.address, Protocol::Grpc).await;
        let mut reports = Reports::for_mesh(&mesh);
        let (response, mut stream) = http2::open_stream(mesh.listener, "/a.B/C").await;
        http2::send_data(&mut stream, Bytes::from_static(b"one"), false).await;
        reports.wait_for_start().await;
        http2::send_data(&mut stream, Bytes::from_static(b"two"), true).await;
        assert_eq!(response.await.unwrap().status(), 200);
        reports.wait_for_end(0).await;
    });
}

#[test]
fn plain_requests_count_when_they_end() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut reports = Reports::for_mesh(&mesh);
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        wait_until(|| mesh.client.ended_count() == 3 && mesh.server.ended_count() == 3).await;
        assert_eq!(reports.take_counts(), [(3, 3); 2]);
        assert_eq!((stream_counts(&mesh.client), stream_counts(&mesh.server)), ((0, 0), (0, 0)));
    });
}
