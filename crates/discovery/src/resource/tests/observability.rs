//! Tests of observability settings: round trips of every setting, and errors that name the invalid one.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, LogFormat, LogTemplate, MetricsPush, Observability,
    PropagationFormat, Sampling, Signal, Tracing,
};

use super::*;

fn any_sampling() -> impl Strategy<Value = Sampling> {
    (0..=1_000_000_u32).prop_map(|millionths| Sampling::of_millionths(millionths).unwrap())
}

pub(super) fn any_observability() -> impl Strategy<Value = Observability> {
    let begins = PropagationFormat::ALL.iter().map(|(_, form)| *form).collect::<Vec<_>>();
    let url = ("[a-z]{1,9}", 1u16..).prop_map(|(host, port)| format!("http://{host}:{port}"));
    let protocols =
        [CollectorProtocol::OtlpHttp, CollectorProtocol::OtlpGrpc, CollectorProtocol::Zipkin];
    let of = |signal, protocols: &[CollectorProtocol]| {
        (prop::sample::select(protocols.to_vec()), url.clone())
            .prop_map(move |(protocol, url)| Collector::parse(signal, protocol, &url).unwrap())
    };
    let [traces, logs] =
        [(Signal::Traces, &protocols[..]), (Signal::Logs, &protocols[..2])].map(|(s, p)| of(s, p));
    let collector = of(Signal::Metrics, &protocols[..2]);
    let metrics = (collector, 1_000..=3_600_000_u64)
        .prop_map(|(collector, ms)| MetricsPush { collector, interval: Duration::from_millis(ms) });
    let tracing = (any_sampling(), any::<bool>(), prop::sample::select(begins), traces).prop_map(
        |(sampling, errors, begins, collector)| Tracing {
            sampling,
            errors,
            propagation: begins,
            collector,
        },
    );
    let template = "[a-z {}]{0,9}".prop_map(|text| {
        let text = text.replace('{', "{{").replace('}', "}}");
        LogFormat::Template(LogTemplate::parse(&format!("{text}{{path}}")).unwrap())
    });
    let form = prop_oneof![Just(LogFormat::Json), template];
    let access_log = (any_sampling(), any::<bool>(), form, prop::option::of(logs)).prop_map(
        |(sampling, errors, form, collector)| AccessLog {
            sampling,
            errors,
            format: form,
            collector,
        },
    );
    (prop::option::of(tracing), prop::option::of(access_log), prop::option::of(metrics)).prop_map(
        |(tracing, access_log, metrics)| Observability {
            tracing,
            access_log,
            metrics: metrics.map(Box::new),
        },
    )
}

#[test]
fn every_wrong_setting_is_named() {
    fn observability_mut(plan: &mut proto::WorkloadConfig) -> &mut proto::Observability {
        plan.sight.as_mut().unwrap()
    }
    fn tracing_mut(plan: &mut proto::WorkloadConfig) -> &mut proto::Tracing {
        observability_mut(plan).tracing.as_mut().unwrap()
    }
    fn access_log_mut(plan: &mut proto::WorkloadConfig) -> &mut proto::AccessLog {
        observability_mut(plan).access_log.as_mut().unwrap()
    }
    fn metrics_push_mut(plan: &mut proto::WorkloadConfig) -> &mut proto::MetricsPush {
        observability_mut(plan).metrics.as_mut().unwrap()
    }
    fn otlp_mut(plan: &mut proto::WorkloadConfig) -> &mut proto::Otlp {
        access_log_mut(plan).otlp.as_mut().unwrap()
    }
    type Edit = fn(&mut proto::WorkloadConfig);
    let cases: [(Edit, &str); 12] = [
        (|p| tracing_mut(p).sampling = 1_000_001, "sight.tracing.sampling"),
        (|p| tracing_mut(p).begins = 9, "sight.tracing.begins"),
        (|p| tracing_mut(p).protocol = 0, "sight.tracing.protocol"),
        (|p| tracing_mut(p).endpoint = "ftp://c:1".into(), "sight.tracing.endpoint"),
        (|p| access_log_mut(p).template = "{".into(), "sight.access_log.template"),
        (|p| access_log_mut(p).sampling = u32::MAX, "sight.access_log.sampling"),
        (|p| otlp_mut(p).protocol = 3, "sight.access_log.otlp.protocol"),
        (
            |p| otlp_mut(p).endpoint = "http://c:1/v1/metrics".into(),
            "sight.access_log.otlp.endpoint",
        ),
        (|p| metrics_push_mut(p).interval_ms = 999, "sight.metrics.interval_ms"),
        (|p| metrics_push_mut(p).interval_ms = 3_600_001, "sight.metrics.interval_ms"),
        (|p| metrics_push_mut(p).otlp = None, "sight.metrics.otlp"),
        (
            |p| metrics_push_mut(p).otlp.as_mut().unwrap().protocol = 3,
            "sight.metrics.otlp.protocol",
        ),
    ];
    let parse = |signal, protocol| Collector::parse(signal, protocol, "http://c:9411").unwrap();
    let collector = parse(Signal::Traces, CollectorProtocol::Zipkin);
    let metrics = MetricsPush {
        collector: parse(Signal::Metrics, CollectorProtocol::OtlpGrpc),
        interval: MetricsPush::INTERVAL,
    };
    let logs = parse(Signal::Logs, CollectorProtocol::OtlpGrpc);
    let access_log = AccessLog { collector: Some(logs), ..AccessLog::json() };
    let tracing = Tracing {
        sampling: Sampling::DEFAULT,
        errors: true,
        propagation: PropagationFormat::W3c,
        collector,
    };
    let sight = Observability {
        tracing: Some(tracing),
        access_log: Some(access_log),
        metrics: Some(Box::new(metrics)),
    };
    let plan = WorkloadConfig { observability: sight, ..fixture::proxy_config() };
    for (edit, field) in cases {
        check_invalid(ResourceKey::Workload, encode_plan(&plan), edit, field);
    }
}
