//! What is pushed is what the page of metrics says, in parts that a collector takes.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use leno_model::MetricsPush;
use leno_telemetry::trace::{SpanId, TraceId};
use leno_telemetry::{Form, Gauge, Level, RuleLabels};
use tokio::sync::oneshot;

use super::receiver::{Receiver, answer};
use super::*;
use crate::export::otlp::points::{self, Metric, Pages, Times, Told, number_point};
use crate::export::otlp::{ExportAnswer, KeyValue, PartialSuccess, Resource, any_value};

/// A process that has counted something of every kind.
fn busy(series: u16) -> Arc<Telemetry> {
    let telemetry = Telemetry::new();
    let shard = telemetry.shard();
    for port in 0..series {
        let labels =
            RequestLabels { port: 9080 + port, ..seen("inbound", 200, None).labels.clone() };
        let series = shard.series(&labels);
        for (status, ms, reason) in [(200, 3, None), (503, 90_000, Some("connect-failed"))] {
            let duration = Duration::from_millis(ms);
            let outcome = Outcome {
                status,
                reason,
                grpc: leno_telemetry::GrpcStatus::ALL.first().copied().filter(|_| status == 200),
                duration,
                bytes_in: 5,
                bytes_out: 7,
            };
            shard.record(series, &outcome);
            let ids = (TraceId(7.try_into().unwrap()), SpanId(9.try_into().unwrap()));
            shard.exemplify(series, ids, (duration, UNIX_EPOCH + Duration::from_secs(5)));
        }
        shard.audit(series, "denied");
    }
    let rule = RuleLabels { kind: "HTTPRoute", name: "r\"1\"".to_owned(), ..RuleLabels::default() };
    shard.hit(shard.rule(&rule));
    shard.refuse("too-many");
    shard.add(Count::Retries, 3);
    shard.raise(Gauge::LinksUpstream, 2);
    telemetry.set(Level::ControlConnected, 1);
    telemetry
}

fn times() -> Times {
    let now = UNIX_EPOCH + Duration::from_secs(1000);
    Times { started: UNIX_EPOCH + Duration::from_secs(900), now }
}

fn metrics(requests: &[(Vec<u8>, u64)]) -> Vec<Metric> {
    let mut all = Vec::new();
    for (bytes, _) in requests {
        let request = points::ExportRequest::decode(&**bytes).unwrap();
        let [of_sidecar] = &request.resource_metrics[..] else { panic!("one resource") };
        assert_eq!(of_sidecar.resource, Some(Resource::of(&source())));
        let [of_scope] = &of_sidecar.scope_metrics[..] else { panic!("one scope") };
        all.extend(of_scope.metrics.iter().cloned());
    }
    all
}

/// Labels as the page has them, without those that are empty.
fn labels(attributes: &[KeyValue], limit: Option<String>) -> String {
    let of = |it: &KeyValue| match it.value.as_ref().and_then(|it| it.value.as_ref()) {
        Some(any_value::Value::Text(text)) => {
            format!("{}=\"{}\"", it.key, text.replace('"', "\\\""))
        }
        other => panic!("{other:?}"),
    };
    let limit = limit.map(|limit| format!("le=\"{limit}\""));
    let all: Vec<_> = attributes.iter().map(of).chain(limit).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

/// What is pushed, in the lines of the page.
fn as_lines(metrics: &[Metric]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for Metric { name, told, .. } in metrics {
        let (numbers, histograms) = match told.clone().unwrap() {
            Told::Gauge(gauge) => (gauge.points, Vec::new()),
            Told::Sum(sum) => {
                assert!(sum.is_monotonic && sum.temporality == 2, "{name}");
                (sum.points, Vec::new())
            }
            Told::Histogram(histogram) => (Vec::new(), histogram.points),
        };
        for point in numbers {
            let value = match point.value.unwrap() {
                number_point::Value::Fraction(value) => value.to_string(),
                number_point::Value::Whole(value) => value.to_string(),
            };
            lines.insert(format!("{name}{} {value}", labels(&point.attributes, None)));
        }
        for point in histograms {
            let limits = point.explicit_bounds.iter().map(ToString::to_string);
            let mut below = 0;
            for (limit, count) in limits.chain(["+Inf".to_owned()]).zip(&point.bucket_counts) {
                below += count;
                let labels = labels(&point.attributes, Some(limit));
                lines.insert(format!("{name}_bucket{labels} {below}"));
            }
            assert_eq!(below, point.count);
            let labels = labels(&point.attributes, None);
            lines.insert(format!("{name}_sum{labels} {}", point.sum.unwrap()));
            lines.insert(format!("{name}_count{labels} {}", point.count));
        }
    }
    lines
}

/// The page without what is empty, and without what changes while one looks.
fn page(telemetry: &Telemetry) -> BTreeSet<String> {
    let mut page = String::new();
    telemetry.expose(Form::Prometheus, &mut page);
    let lines = page.lines().filter(|line| !line.starts_with(['#']));
    let told = lines.filter(|line| !line.starts_with("process_"));
    told.map(|line| {
        let Some((name, rest)) = line.split_once('{') else { return line.to_owned() };
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        let labels: Vec<_> = labels.split(',').filter(|it| !it.ends_with("=\"\"")).collect();
        format!("{name}{{{}}} {value}", labels.join(","))
    })
    .collect()
}

#[test]
fn a_push_says_what_the_page_says() {
    let telemetry = busy(2);
    let requests = points::encode(&source(), &telemetry, times());
    let metrics = metrics(&requests);
    let own = |line: &String| !line.starts_with("process_");
    let told: BTreeSet<_> = as_lines(&metrics).into_iter().filter(own).collect();
    assert_eq!(told, page(&telemetry));
    let units = metrics.iter().map(|metric| (metric.name.as_str(), metric.unit.as_str()));
    let units: std::collections::BTreeMap<_, _> = units.collect();
    for (name, unit) in [
        ("leno_request_duration_seconds", "s"),
        ("process_cpu_seconds_total", "s"),
        ("leno_request_bytes_total", "By"),
        ("leno_requests_total", ""),
    ] {
        assert_eq!(units.get(name), Some(&unit), "{name}");
    }
}

#[test]
fn points_have_their_times_and_examples() {
    let metrics = metrics(&points::encode(&source(), &busy(1), times()));
    let of = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap().told.clone();
    let Some(Told::Sum(sum)) = of("leno_retries_total") else { panic!("a sum") };
    let point = &sum.points[0];
    let seconds = |ns: u64| ns / 1_000_000_000;
    assert_eq!(seconds(point.start_time_unix_nano), 900);
    assert_eq!(seconds(point.time_unix_nano), 1000);
    let Some(Told::Gauge(gauge)) = of("leno_links") else { panic!("a gauge") };
    assert_eq!(gauge.points[0].start_time_unix_nano, 0);
    let Some(Told::Histogram(histogram)) = of("leno_request_duration_seconds") else {
        panic!("a histogram")
    };
    let point = &histogram.points[0];
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    let [quick, slow] = &point.exemplars[..] else { panic!("{:?}", point.exemplars) };
    assert_eq!((quick.seconds, slow.seconds), (Some(0.003), Some(90.0)));
    assert_eq!(quick.trace_id, 7_u128.to_be_bytes());
    assert_eq!(quick.span_id, 9_u64.to_be_bytes());
    assert_eq!(seconds(quick.time_unix_nano), 5);
}

#[test]
fn what_is_large_goes_in_several_requests_and_nothing_is_lost() {
    let telemetry = busy(300);
    let whole = points::encode(&source(), &telemetry, times());
    assert_eq!(whole.len(), 1);
    let mut pages = Pages::new(Resource::of(&source()), times(), 20_000);
    telemetry.read(&mut pages);
    let parts = pages.finish();
    assert!(parts.len() > 20, "{}", parts.len());
    for (bytes, _) in &parts {
        // The last point, the resource, and names of metrics come on top.
        assert!(bytes.len() < 25_000, "{}", bytes.len());
    }
    let points = |requests: &[(Vec<u8>, u64)]| requests.iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!(points(&parts), points(&whole));
    let own = |line: &String| !line.starts_with("process_");
    let lines = |requests| as_lines(&metrics(requests)).into_iter().filter(own).collect::<Vec<_>>();
    assert_eq!(lines(&parts), lines(&whole));
}

/// What one push comes to at a collector that answers so: points that it took, points that it did
/// not, and what arrived.
async fn pushed(
    answers: Vec<hyper::Response<http_body_util::Full<bytes::Bytes>>>,
) -> (u64, u64, Vec<receiver::Arrived>) {
    let receiver = Receiver::start(answers).await;
    let directory = tempfile::tempdir().unwrap();
    let (world, _wanted) = World::new(Names::default(), std::time::Instant::now());
    let url = format!("http://{}", receiver.address);
    let collector = Collector::parse(Signal::Metrics, CollectorProtocol::OtlpHttp, &url).unwrap();
    let push = MetricsPush { collector, interval: MetricsPush::INTERVAL_MAX };
    let metrics = Some(Box::new(push));
    world.sights.say(&Sight { metrics, ..Sight::default() });
    let telemetry = busy(1);
    let courier = courier(&world, directory.path(), &telemetry);
    let (over, ended) = oneshot::channel();
    // The first is due within an hour; the last one is sent now.
    drop(over);
    push_metrics(Rc::new(courier), (UNIX_EPOCH, u64::MAX), ended).await;
    let [taken, refused] = [Count::PointsExported, Count::PointsRefused];
    (telemetry.count(taken), telemetry.count(refused), receiver.arrived())
}

fn courier(world: &Arc<World>, directory: &std::path::Path, telemetry: &Arc<Telemetry>) -> Courier {
    let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
    let config = Config::sidecar(workload("a"), domain, directory.to_owned());
    Courier::new(Arc::new(config), world.clone(), telemetry.shard())
}

#[test]
fn the_last_push_is_when_the_data_threads_are_gone() {
    run(async {
        let (taken, refused, arrived) = pushed(Vec::new()).await;
        assert!(taken > 50 && refused == 0, "{taken} {refused}");
        let [(path, kind, body)] = &arrived[..] else { panic!("one push") };
        assert_eq!((&**path, &**kind), ("/v1/metrics", "application/x-protobuf"));
        assert!(points::ExportRequest::decode(body.clone()).is_ok());
    });
}

#[test]
fn what_a_collector_refuses_of_a_push_is_counted() {
    run(async {
        let partial = PartialSuccess { rejected: 2, message: "no".to_owned() };
        let body = ExportAnswer { partial_success: Some(partial) }.encode_to_vec();
        let (taken, refused, arrived) = pushed(vec![answer(200, None, body)]).await;
        assert!(taken > 50 && refused == 2 && arrived.len() == 1, "{taken} {refused}");
    });
}

#[test]
fn a_collector_that_wants_to_be_left_alone_is() {
    run(async {
        // Longer than anything waits: it is not asked again.
        let (taken, refused, arrived) = pushed(vec![answer(503, Some("3600"), Vec::new())]).await;
        assert!(taken == 0 && refused > 50 && arrived.len() == 1, "{}", arrived.len());
        // A moment: it is.
        let (taken, refused, arrived) = pushed(vec![answer(429, Some("0"), Vec::new())]).await;
        assert!(taken > 50 && refused == 0 && arrived.len() == 2, "{}", arrived.len());
        // Not for what would be the same the next time.
        let (taken, refused, arrived) = pushed(vec![answer(400, None, b"no".to_vec())]).await;
        assert!(taken == 0 && refused > 50 && arrived.len() == 1, "{}", arrived.len());
    });
}

#[test]
fn pushing_begins_and_ends_with_what_the_mesh_says() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let directory = tempfile::tempdir().unwrap();
        let (world, _wanted) = World::new(Names::default(), std::time::Instant::now());
        let telemetry = busy(1);
        let courier = Rc::new(courier(&world, directory.path(), &telemetry));
        let (over, ended) = oneshot::channel();
        // Seed 0: the first push is due at once.
        let pushing = tokio::task::spawn_local(push_metrics(courier, (UNIX_EPOCH, 0), ended));
        let url = format!("http://{}/tenant", receiver.address);
        let collector = Collector::parse(Signal::Metrics, CollectorProtocol::OtlpHttp, &url);
        let metrics =
            MetricsPush { collector: collector.unwrap(), interval: MetricsPush::INTERVAL_MAX };
        world.sights.say(&Sight { metrics: Some(Box::new(metrics)), ..Sight::default() });
        crate::tests::fixture::until(|| telemetry.count(Count::PointsExported) > 0).await;
        world.sights.say(&Sight::default());
        drop(over);
        pushing.await.unwrap();
        let arrived = receiver.arrived();
        let paths: Vec<_> = arrived.iter().map(|(path, ..)| &**path).collect();
        assert_eq!(paths, ["/tenant"], "nobody wanted a last one");
    });
}
