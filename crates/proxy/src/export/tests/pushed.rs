//! Metrics of a sidecar are pushed to the configured collector, and once more when it ends.

use std::time::UNIX_EPOCH;

use leno_model::MetricsPush;

use super::receiver::Receiver;
use super::*;

/// Returns the metrics of a process that has counted requests.
fn busy() -> Arc<Telemetry> {
    let telemetry = Telemetry::new();
    telemetry.shard().add(Count::Retries, 3);
    telemetry
}

fn metrics(url: &str) -> Sight {
    let collector = Collector::parse(Signal::Metrics, CollectorProtocol::OtlpHttp, url).unwrap();
    let push = MetricsPush { collector, interval: MetricsPush::INTERVAL_MAX };
    Sight { metrics: Some(Box::new(push)), ..Sight::default() }
}

fn courier(world: &Arc<World>, directory: &std::path::Path, telemetry: &Arc<Telemetry>) -> Courier {
    let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
    let config = Config::sidecar(workload("a"), domain, directory.to_owned());
    Courier::new(Arc::new(config), world.clone(), telemetry.shard())
}

#[test]
fn the_last_push_is_when_the_data_threads_are_gone() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let directory = tempfile::tempdir().unwrap();
        let (world, _wanted) = World::new(Names::default(), std::time::Instant::now());
        world.sights.say(&metrics(&format!("http://{}", receiver.address)));
        let telemetry = busy();
        let courier = courier(&world, directory.path(), &telemetry);
        let (over, ended) = oneshot::channel();
        // The first push is due within an hour; the last one is sent now.
        drop(over);
        push_metrics(Rc::new(courier), (UNIX_EPOCH, u64::MAX), ended).await;
        assert!(telemetry.count(Count::PointsExported) > 30);
        assert_eq!(telemetry.count(Count::PointsRefused), 0);
        let arrived = receiver.arrived();
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
        let telemetry = busy();
        let courier = Rc::new(courier(&world, directory.path(), &telemetry));
        let (over, ended) = oneshot::channel();
        // Seed 0: the first push is due at once.
        let pushing = tokio::task::spawn_local(push_metrics(courier, (UNIX_EPOCH, 0), ended));
        world.sights.say(&metrics(&format!("http://{}/tenant", receiver.address)));
        crate::tests::fixture::until(|| telemetry.count(Count::PointsExported) > 0).await;
        world.sights.say(&Sight::default());
        drop(over);
        pushing.await.unwrap();
        let arrived = receiver.arrived();
        let paths: Vec<_> = arrived.iter().map(|(path, ..)| &**path).collect();
        assert_eq!(paths, ["/tenant"], "nobody wanted a last one");
    });
}
