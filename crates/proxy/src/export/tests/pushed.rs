//! Metrics of a sidecar are pushed to the configured collector, and once more when it ends.

use std::time::UNIX_EPOCH;

use leno_model::MetricsPush;

use super::receiver::Receiver;
use super::*;

/// Returns the metrics of a process that has counted requests.
fn telemetry_with_counts() -> Arc<Telemetry> {
    let telemetry = Telemetry::new();
    telemetry.new_shard().add(Count::Retries, 3);
    telemetry
}

fn push_settings(url: &str) -> Observability {
    let collector = Collector::parse(Signal::Metrics, CollectorProtocol::OtlpHttp, url).unwrap();
    let push = MetricsPush { collector, interval: MetricsPush::MAX_INTERVAL };
    Observability { metrics: Some(Box::new(push)), ..Observability::default() }
}

fn test_exporter(
    config_store: &Arc<ConfigStore>,
    directory: &std::path::Path,
    telemetry: &Arc<Telemetry>,
) -> TelemetryExporter {
    let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
    let config = Config::for_sidecar(workload_name("a"), domain, directory.to_owned());
    TelemetryExporter::new(Arc::new(config), config_store.clone(), telemetry.new_shard())
}

#[test]
fn the_last_push_follows_the_end_of_the_data_threads() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let directory = tempfile::tempdir().unwrap();
        let (config_store, _requested_services) =
            ConfigStore::new(VirtualAddresses::default(), std::time::Instant::now());
        config_store
            .observability
            .apply_settings(&push_settings(&format!("http://{}", receiver.address)));
        let telemetry = telemetry_with_counts();
        let exporter = test_exporter(&config_store, directory.path(), &telemetry);
        let (stop_sender, ended) = oneshot::channel();
        // The first push is due within an hour; the last one is sent now.
        drop(stop_sender);
        push_metrics(Rc::new(exporter), UNIX_EPOCH, u64::MAX, ended).await;
        assert!(telemetry.count(Count::PointsExported) > 30);
        assert_eq!(telemetry.count(Count::PointsRejected), 0);
        let arrived = receiver.arrived_requests();
        let [(path, kind, body)] = &arrived[..] else { panic!("one push") };
        assert_eq!((&**path, &**kind), ("/v1/metrics", "application/x-protobuf"));
        let body = String::from_utf8_lossy(body);
        for reported in ["service.instance.id", "bookinfo/a", "leno_retries_total"] {
            assert!(body.contains(reported), "{reported}");
        }
    });
}

#[test]
fn pushing_starts_and_ends_with_the_configuration() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let directory = tempfile::tempdir().unwrap();
        let (config_store, _requested_services) =
            ConfigStore::new(VirtualAddresses::default(), std::time::Instant::now());
        let telemetry = telemetry_with_counts();
        let exporter = Rc::new(test_exporter(&config_store, directory.path(), &telemetry));
        let (stop_sender, ended) = oneshot::channel();
        // Seed 0: the first push is due at once.
        let push_task = tokio::task::spawn_local(push_metrics(exporter, UNIX_EPOCH, 0, ended));
        config_store
            .observability
            .apply_settings(&push_settings(&format!("http://{}/tenant", receiver.address)));
        crate::tests::fixture::wait_until(|| telemetry.count(Count::PointsExported) > 0).await;
        config_store.observability.apply_settings(&Observability::default());
        drop(stop_sender);
        push_task.await.unwrap();
        let arrived = receiver.arrived_requests();
        let paths: Vec<_> = arrived.iter().map(|(path, ..)| &**path).collect();
        assert_eq!(paths, ["/tenant"], "no last push was requested");
    });
}
