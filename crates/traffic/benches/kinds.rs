//! Inputs of the benchmarks in `rules.rs`: one rule, or many, of each kind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    AdaptiveConcurrency, BalanceAlgorithm, CallerAttributes, CallerMatch, Concurrency,
    EjectionTime, Endpoint, EndpointId, FailureClasses, FailureRate, FallbackPolicy, FaultAbort,
    FaultRule, FieldTest, FixedResponse, HashKey, LaneMark, LaneRule, LoadBalancing,
    OutlierAlgorithm, OutlierDetection, PortFaults, PortLimits, Rate, RateLimitKey, RateLimits,
    RateRule, RequestThreshold, RouteKind, RouteName, RuleOrigin, SermantCommon, SermantRemoval,
    SermantRule, ServiceAccount, ServiceName, ServicePolicyKind, ServicePolicyName, SlowStart,
    TagDialect, TagMatch, TagRouteName, TagRule, TagRules, TagSet, TagSplit, TagTarget, TagValue,
    TcpRule, TextRelation, TripConditions, ValueTest, WeightedBackend, WorkloadName,
};
use leno_traffic::balance::Balancer;
use leno_traffic::balance::hashing::EndpointHashTable;
use leno_traffic::circuit_breaker::Circuit;
use leno_traffic::fault::CompiledFaults;
use leno_traffic::outlier::OutlierDetector;
use leno_traffic::{CompiledLimits, CompiledTagRules, Lanes};

use crate::sample::{SampleRequest, sample_request};

/// A request and its caller.
pub(crate) type RequestAndCaller = (SampleRequest, ServiceAccount);

pub(crate) fn request_and_caller() -> RequestAndCaller {
    (sample_request("/shop/7"), service_account())
}

pub(crate) fn request_with_version(value: &str) -> SampleRequest {
    let mut sample = sample_request("/shop/carts/42");
    sample.fields.push(("x-version".to_owned(), value.to_owned()));
    sample
}

pub(crate) fn with_version(value: &str) -> TagMatch {
    let texts = vec![value.to_owned()];
    let test = ValueTest::Text { relation: TextRelation::Exact, texts, ignore_case: false };
    let headers = vec![FieldTest { name: "x-version".to_owned(), test }];
    TagMatch { headers, ..TagMatch::default() }
}

pub(crate) fn rule_origin(dialect: TagDialect, index: usize) -> RuleOrigin {
    let name = TagRouteName::new("shop", "orders").expect("the name is valid");
    RuleOrigin { dialect, name, index: u32::try_from(index).expect("the index fits") }
}

pub(crate) fn tag_rules(count: usize) -> CompiledTagRules {
    let rule = |index: usize| {
        let tags = [("version".to_owned(), TagValue::Exact((index % 10).to_string()))];
        TagRule {
            origin: rule_origin(TagDialect::TagRoute, index),
            priority: 0,
            from: CallerMatch::default(),
            request_match: with_version(&format!("v-{index}")),
            split: TagSplit {
                targets: vec![TagTarget { weight: 1, set: TagSet::All(tags.into()) }],
                ..TagSplit::default()
            },
            fallback: TagSplit::default(),
            fallback_policy: vec![FallbackPolicy::Any],
            sticky: None,
        }
    };
    let rules = TagRules {
        rules: (0..count).map(rule).collect(),
        fallback_policy: vec![FallbackPolicy::Default, FallbackPolicy::Any],
        caller_rules: Vec::new(),
    };
    CompiledTagRules::build(&Arc::new(rules), &CallerAttributes::default(), &ten_endpoints(), None)
        .expect("the rules are valid")
}

pub(crate) fn compile_lanes() -> Lanes {
    let mark = |percent, value: &str| LaneMark {
        percent,
        headers: BTreeMap::from([("x-lane".to_owned(), value.to_owned())]),
    };
    let rule = LaneRule {
        origin: rule_origin(TagDialect::Lane, 0),
        priority: 0,
        request_match: with_version("v-0"),
        marks: vec![mark(60, "gray")],
    };
    Lanes::compile(&BTreeMap::from([(PORT, vec![rule])])).expect("the rules are valid")
}

pub(crate) fn outlier_detector() -> OutlierDetector {
    let rule = OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        failure_rate: Some(FailureRate { percent: 50, min_requests: 20 }),
        consecutive_failures: Some(5),
        max_ejection_percent: 50,
        min_healthy: 1,
        ejection_time: EjectionTime {
            base: Duration::from_secs(30),
            max: Duration::from_secs(300),
            jitter_percent: 50,
        },
        probe_requests: 1,
        health_check: None,
    };
    OutlierDetector::new(&OutlierAlgorithm::Native(rule), 10)
}

pub(crate) fn sermant_removal() -> OutlierDetector {
    let rule = SermantRemoval {
        common: SermantCommon {
            failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
            expire: Duration::from_secs(60),
            recovery: Duration::from_secs(30),
            window: Duration::from_secs(10),
            windows: 10,
        },
        rule: SermantRule {
            scale_up_limit_ppm: 600_000,
            min_instances: 1,
            error_rate_ppm: 600_000,
        },
    };
    OutlierDetector::new(&OutlierAlgorithm::Sermant(rule), 10)
}

pub(crate) fn test_circuit() -> Circuit {
    Circuit::new(TripConditions {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        min_requests: 20,
        failure_threshold: RequestThreshold { share_ppm: Some(500_000), count: None },
        consecutive_failures: None,
        slow_requests: None,
        open_duration: Duration::from_secs(20),
        half_open_requests: 2,
    })
}

pub(crate) fn compile_limits(key: RateLimitKey) -> CompiledLimits {
    let rule = RateRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        key,
        rate: Rate { count: 100, period: Duration::from_secs(1), burst: 100 },
        stop: false,
        response: FixedResponse::default(),
    };
    compile_rate_limits(RateLimits { rules: vec![rule], ..RateLimits::default() })
}

pub(crate) fn concurrency_limits(is_adaptive: bool) -> CompiledLimits {
    let adaptive = is_adaptive
        .then_some(AdaptiveConcurrency { min_concurrency: 4, latency_tolerance_percent: 50 });
    let concurrency = Concurrency { requests: 1000, adaptive, ..Concurrency::default() };
    compile_rate_limits(RateLimits { concurrency: Some(concurrency), ..RateLimits::default() })
}

fn compile_rate_limits(limits: RateLimits) -> CompiledLimits {
    let limits = PortLimits { policy: policy_name(ServicePolicyKind::RateLimit), limits };
    CompiledLimits::build(&BTreeMap::from([(PORT, vec![limits])]), None)
        .expect("the limits are valid")
}

pub(crate) fn compile_faults() -> CompiledFaults {
    let abort = FaultAbort { share_ppm: 10_000, response: FixedResponse::default(), grpc: None };
    let rule = FaultRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        delay: None,
        abort: Some(abort),
    };
    let policy = policy_name(ServicePolicyKind::FaultInjection);
    CompiledFaults::compile(&PortFaults { policy, rules: vec![rule] })
        .expect("the faults are valid")
}

pub(crate) fn hash_table(algorithm: fn(HashKey) -> BalanceAlgorithm) -> EndpointHashTable {
    EndpointHashTable::for_endpoints(&algorithm(HashKey::Source), &ten_endpoints())
        .expect("the algorithm has a hash table")
}

/// Returns a balancer with slow start from 10 % to 100 % within a minute.
pub(crate) fn slow_start_balancer() -> Balancer {
    let slow_start = Some(SlowStart { duration: Duration::from_secs(60), min_percent: 10 });
    let algorithm = BalanceAlgorithm::PeakEwma { choices: 2 };
    Balancer::new(LoadBalancing { algorithm, slow_start })
}

/// Returns a rule that forwards 90 % of connections to one backend, and 10 % to another.
pub(crate) fn tcp_rule() -> TcpRule {
    let backend = |(name, weight)| {
        let service = ServiceName::new("shop", name).expect("the name is valid");
        WeightedBackend::new(service, PORT, weight)
    };
    TcpRule {
        route: RouteName::new("shop", "orders").expect("the name is valid"),
        kind: RouteKind::default(),
        backends: [("orders-v1", 90), ("orders-v2", 10)].map(backend).to_vec(),
        ungranted_weight: 0,
    }
}

pub(crate) fn policy_name(kind: ServicePolicyKind) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", "orders").expect("the name is valid")
}

pub(crate) fn service_account() -> ServiceAccount {
    ServiceAccount::new("shop", "web").expect("the name is valid")
}

/// Returns ten endpoints, each with its own version.
pub(crate) fn ten_endpoints() -> Arc<[Arc<Endpoint>]> {
    let endpoint = |index: u16| {
        Arc::new(Endpoint {
            id: EndpointId {
                service: ServiceName::new("shop", "orders").expect("the name is valid"),
                port: PORT,
                workload: WorkloadName::new("shop", &format!("orders-{index}"))
                    .expect("the name is valid"),
            },
            address: ([127, 0, 0, 1], index + 1).into(),
            account: Some(service_account()),
            tags: BTreeMap::from([("version".to_owned(), index.to_string())]),
            weight: None,
        })
    };
    (0..10).map(endpoint).collect()
}

pub(crate) const PORT: u16 = 9080;
