//! Tests of observability settings: round trips of every setting, and errors that name the invalid one.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, LogFormat, LogTemplate, MetricsPush, Observability,
    PropagationFormat, Sampling, Signal, Tracing,
};

use super::*;

fn any_sampling() -> impl Strategy<Value = Sampling> {
    (0..=1_000_000_u32).prop_map(|millionths| Sampling::from_millionths(millionths).unwrap())
}

pub(super) fn any_observability() -> impl Strategy<Value = Observability> {
    let propagation = PropagationFormat::ALL.to_vec();
    let url = ("[a-z]{1,9}", 1u16..).prop_map(|(host, port)| format!("http://{host}:{port}"));
    let protocols =
        [CollectorProtocol::OtlpHttp, CollectorProtocol::OtlpGrpc, CollectorProtocol::Zipkin];
    let collector_of = |signal, protocols: &[CollectorProtocol]| {
        (prop::sample::select(protocols.to_vec()), url.clone())
            .prop_map(move |(protocol, url)| Collector::parse(signal, protocol, &url).unwrap())
    };
    let [traces, logs] = [(Signal::Traces, &protocols[..]), (Signal::Logs, &protocols[..2])]
        .map(|(signal, protocols)| collector_of(signal, protocols));
    let collector = collector_of(Signal::Metrics, &protocols[..2]);
    let metrics = (collector, 1_000..=3_600_000_u64).prop_map(|(collector, interval_ms)| {
        MetricsPush { collector, interval: Duration::from_millis(interval_ms) }
    });
    let tracing = (any_sampling(), any::<bool>(), prop::sample::select(propagation), traces)
        .prop_map(|(sampling, errors, propagation, collector)| Tracing {
            sampling,
            errors,
            propagation,
            collector,
        });
    let template = "[a-z {}]{0,9}".prop_map(|text| {
        let text = text.replace('{', "{{").replace('}', "}}");
        LogFormat::Template(LogTemplate::parse(&format!("{text}{{path}}")).unwrap())
    });
    let format = prop_oneof![Just(LogFormat::Json), template];
    let access_log = (any_sampling(), any::<bool>(), format, prop::option::of(logs)).prop_map(
        |(sampling, errors, format, collector)| AccessLog { sampling, errors, format, collector },
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
fn an_invalid_setting_is_rejected_with_its_field() {
    fn observability_mut(config: &mut proto::WorkloadConfig) -> &mut proto::Observability {
        config.sight.as_mut().unwrap()
    }
    fn tracing_mut(config: &mut proto::WorkloadConfig) -> &mut proto::Tracing {
        observability_mut(config).tracing.as_mut().unwrap()
    }
    fn access_log_mut(config: &mut proto::WorkloadConfig) -> &mut proto::AccessLog {
        observability_mut(config).access_log.as_mut().unwrap()
    }
    fn metrics_push_mut(config: &mut proto::WorkloadConfig) -> &mut proto::MetricsPush {
        observability_mut(config).metrics.as_mut().unwrap()
    }
    fn otlp_mut(config: &mut proto::WorkloadConfig) -> &mut proto::Otlp {
        access_log_mut(config).otlp.as_mut().unwrap()
    }
    type Edit = fn(&mut proto::WorkloadConfig);
    let cases: [(Edit, &str); 12] = [
        (|config| tracing_mut(config).sampling = 1_000_001, "sight.tracing.sampling"),
        (|config| tracing_mut(config).begins = 9, "sight.tracing.begins"),
        (|config| tracing_mut(config).protocol = 0, "sight.tracing.protocol"),
        (|config| tracing_mut(config).endpoint = "ftp://c:1".into(), "sight.tracing.endpoint"),
        (|config| access_log_mut(config).template = "{".into(), "sight.access_log.template"),
        (|config| access_log_mut(config).sampling = u32::MAX, "sight.access_log.sampling"),
        (|config| otlp_mut(config).protocol = 3, "sight.access_log.otlp.protocol"),
        (
            |config| otlp_mut(config).endpoint = "http://c:1/v1/metrics".into(),
            "sight.access_log.otlp.endpoint",
        ),
        (|config| metrics_push_mut(config).interval_ms = 999, "sight.metrics.interval_ms"),
        (|config| metrics_push_mut(config).interval_ms = 3_600_001, "sight.metrics.interval_ms"),
        (|config| metrics_push_mut(config).otlp = None, "sight.metrics.otlp"),
        (
            |config| metrics_push_mut(config).otlp.as_mut().unwrap().protocol = 3,
            "sight.metrics.otlp.protocol",
        ),
    ];
    let parse = |signal, protocol| Collector::parse(signal, protocol, "http://c:9411").unwrap();
    let collector = parse(Signal::Traces, CollectorProtocol::Zipkin);
    let metrics = MetricsPush {
        collector: parse(Signal::Metrics, CollectorProtocol::OtlpGrpc),
        interval: MetricsPush::DEFAULT_INTERVAL,
    };
    let logs = parse(Signal::Logs, CollectorProtocol::OtlpGrpc);
    let access_log = AccessLog { collector: Some(logs), ..AccessLog::json() };
    let tracing = Tracing {
        sampling: Sampling::DEFAULT,
        errors: true,
        propagation: PropagationFormat::W3c,
        collector,
    };
    let observability = Observability {
        tracing: Some(tracing),
        access_log: Some(access_log),
        metrics: Some(Box::new(metrics)),
    };
    let config = WorkloadConfig { observability, ..fixture::proxy_config() };
    for (edit, field) in cases {
        check_invalid(ResourceKey::Workload, encode_workload_config(&config), edit, field);
    }
}
