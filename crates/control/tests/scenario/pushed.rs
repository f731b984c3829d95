//! The control plane's metrics export, with collectors that accept it, reject it, or do not respond.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::time::Instant;

use super::receiver::{Receiver, response_with};
use super::*;

/// Starts a shop that exports metrics to this collector at this interval.
async fn open_exporting_shop(collector: SocketAddr, interval: &str) -> Shop {
    let mesh = format!(
        "{MESH}---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec: {{metrics: {{export: {{otlp: {{endpoint: 'http://{collector}', interval: {interval}}}}}}}}}\n"
    );
    let directory = tempfile::tempdir().unwrap();
    write_objects(directory.path(), &mesh);
    let control = Control::start(test_config(directory.path())).await.unwrap();
    Shop { directory, control }
}

impl Shop {
    /// Returns the number of exported points, by result.
    async fn exported_points(&self, result: &str) -> u64 {
        let (_, page) =
            admin::query_admin(self.control.socket_path(), "GET", "/metrics").await.unwrap();
        let series = format!("leno_control_metric_points_total{{result=\"{result}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
    }
}

#[test]
fn the_control_plane_exports_the_scraped_metrics_and_counts_points() {
    run(async {
        let rejection = response_with(400, None, b"not today".to_vec());
        let receiver = Receiver::start(vec![rejection]).await;
        let shop = open_exporting_shop(receiver.address, "1s").await;
        while shop.exported_points("exported").await == 0 {
            tokio::task::yield_now().await;
        }
        assert!(shop.exported_points("rejected").await > 30);
        let requests = receiver.arrived_requests();
        let (path, content_type, body) = requests.last().unwrap();
        assert_eq!((&**path, &**content_type), ("/v1/metrics", "application/x-protobuf"));
        let body = String::from_utf8_lossy(body);
        let (port, name) = (shop.control.listen_address().port(), "service.instance.id");
        for expected_text in ["leno-control", "leno-system", name, &format!(":{port}")] {
            assert!(body.contains(expected_text), "{expected_text}");
        }
        for metric in METRICS.iter().filter(|metric| !metric.name.contains("rejected_total")) {
            assert!(body.contains(metric.name), "{}", metric.name);
        }
    });
}

#[test]
fn the_last_export_is_at_shutdown() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let shop = open_exporting_shop(receiver.address, "1h").await;
        shop.control.shutdown().await;
        let requests = receiver.arrived_requests();
        let [(_, _, body)] = &requests[..] else { panic!("{} pushes", requests.len()) };
        assert!(String::from_utf8_lossy(body).contains("leno_control_workloads"));
    });
}

#[test]
fn a_collector_that_does_not_respond_does_not_delay_the_shutdown() {
    run(async {
        // The kernel accepts the connection, but no process reads from it.
        let silent_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shop = open_exporting_shop(silent_listener.local_addr().unwrap(), "1h").await;
        let start = Instant::now();
        shop.control.shutdown().await;
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    });
}
