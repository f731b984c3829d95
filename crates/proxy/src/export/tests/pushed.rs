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

fn push_settings(url: &str) -> Sight {
    let collector = Collector::parse(Signal::Metrics, CollectorProtocol::OtlpHttp, url).unwrap();
    let push = MetricsPush { collector, interval: MetricsPush::INTERVAL_MAX };
    Sight { metrics: Some(Box::new(push)), ..Sight::default() }
}

fn test_exporter(
    world: &Arc<World>,
    directory: &std::path::Path,
    telemetry: &Arc<Telemetry>,
) -> Courier {
    let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
    let config = Config::for_sidecar(workload_name("a"), domain, directory.to_owned());
    Courier::new(Arc::new(config), world.clone(), telemetry.new_shard())
}

#[test]
fn the_last_push_is_when_the_data_threads_are_gone() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let directory = tempfile::tempdir().unwrap();
        let (world, _wanted) = World::new(Names::default(), std::time::Instant::now());
        world.sights.apply_settings(&push_settings(&format!("http://{}", receiver.address)));
        let telemetry = telemetry_with_counts();
        let courier = test_exporter(&world, directory.path(), &telemetry);
        let (over, ended) = oneshot::channel();
        // The first push is due within an hour; the last one is sent now.
        drop(over);
        push_metrics(Rc::new(courier), (UNIX_EPOCH, u64::MAX), ended).await;
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
fn pushing_begins_and_ends_with_what_the_mesh_says() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let directory = tempfile::tempdir().unwrap();
        let (world, _wanted) = World::new(Names::default(), std::time::Instant::now());
        let telemetry = telemetry_with_counts();
        let courier = Rc::new(test_exporter(&world, directory.path(), &telemetry));
        let (over, ended) = oneshot::channel();
        // Seed 0: the first push is due at once.
        let pushing = tokio::task::spawn_local(push_metrics(courier, (UNIX_EPOCH, 0), ended));
        world.sights.apply_settings(&push_settings(&format!("http://{}/tenant", receiver.address)));
        crate::tests::fixture::wait_until(|| telemetry.count(Count::PointsExported) > 0).await;
        world.sights.apply_settings(&Sight::default());
        drop(over);
        pushing.await.unwrap();
        let arrived = receiver.arrived_requests();
        let paths: Vec<_> = arrived.iter().map(|(path, ..)| &**path).collect();
        assert_eq!(paths, ["/tenant"], "nobody wanted a last one");
    });
}
