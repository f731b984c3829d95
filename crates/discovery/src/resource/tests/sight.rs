//! What operators see of requests: every setting survives the journey, and a wrong one is named.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, ContextForm, LogForm, LogTemplate, Sampling, Sight,
    Tracing,
};

use super::*;

fn sampling() -> impl Strategy<Value = Sampling> {
    (0..=1_000_000_u32).prop_map(|millionths| Sampling::of_millionths(millionths).unwrap())
}

pub(super) fn sight() -> impl Strategy<Value = Sight> {
    let begins = ContextForm::ALL.iter().map(|(_, form)| *form).collect::<Vec<_>>();
    let url = ("[a-z]{1,9}", 1u16..).prop_map(|(host, port)| format!("http://{host}:{port}"));
    let protocols =
        [CollectorProtocol::OtlpHttp, CollectorProtocol::OtlpGrpc, CollectorProtocol::Zipkin];
    let collector = (prop::sample::select(protocols.to_vec()), url)
        .prop_map(|(protocol, url)| Collector::parse(protocol, &url).unwrap());
    let tracing = (sampling(), any::<bool>(), prop::sample::select(begins), collector).prop_map(
        |(sampling, errors, begins, collector)| Tracing { sampling, errors, begins, collector },
    );
    let template = "[a-z {}]{0,9}".prop_map(|text| {
        let text = text.replace('{', "{{").replace('}', "}}");
        LogForm::Template(LogTemplate::parse(&format!("{text}{{path}}")).unwrap())
    });
    let form = prop_oneof![Just(LogForm::Json), template];
    let access_log = (sampling(), any::<bool>(), form)
        .prop_map(|(sampling, errors, form)| AccessLog { sampling, errors, form });
    (prop::option::of(tracing), prop::option::of(access_log))
        .prop_map(|(tracing, access_log)| Sight { tracing, access_log })
}

#[test]
fn every_wrong_setting_is_named() {
    fn sight(plan: &mut proto::Plan) -> &mut proto::Sight {
        plan.sight.as_mut().unwrap()
    }
    fn tracing(plan: &mut proto::Plan) -> &mut proto::Tracing {
        sight(plan).tracing.as_mut().unwrap()
    }
    fn log(plan: &mut proto::Plan) -> &mut proto::AccessLog {
        sight(plan).access_log.as_mut().unwrap()
    }
    type Edit = fn(&mut proto::Plan);
    let cases: [(Edit, &str); 6] = [
        (|p| tracing(p).sampling = 1_000_001, "sight.tracing.sampling"),
        (|p| tracing(p).begins = 9, "sight.tracing.begins"),
        (|p| tracing(p).protocol = 0, "sight.tracing.protocol"),
        (|p| tracing(p).endpoint = "ftp://c:1".into(), "sight.tracing.endpoint"),
        (|p| log(p).template = "{".into(), "sight.access_log.template"),
        (|p| log(p).sampling = u32::MAX, "sight.access_log.sampling"),
    ];
    let collector = Collector::parse(CollectorProtocol::Zipkin, "http://c:9411").unwrap();
    let tracing =
        Tracing { sampling: Sampling::DEFAULT, errors: true, begins: ContextForm::W3c, collector };
    let sight = Sight { tracing: Some(tracing), access_log: Some(AccessLog::json()) };
    let plan = WorkloadPlan { sight, ..fixture::plan() };
    for (edit, field) in cases {
        check(ResourceKey::Plan, encode_plan(&plan), edit, field);
    }
}
