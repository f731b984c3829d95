//! What a request costs under each kind of rule, in instructions: 3 % above what was measured fails.
//!
//! Where rules are looked up, among ten and among ten thousand: it costs the same. Measured as the
//! stations of `instructions.rs` are.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "what the macros of gungraun write keeps to none of these"
)]

mod measure;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use gungraun::{library_benchmark, library_benchmark_group};
use leno_model::{
    Abort, BalanceAlgorithm, Caller, Callers, Each, Endpoint, EndpointId, FailureClasses,
    FailureRate, FaultRule, Faults, FieldTest, FixedAnswer, HashKey, LaneMark, LaneRule, Otherwise,
    OutlierRemoval, PortLimits, Rate, RateLimits, RateRule, RemovalAlgorithm, RemovalBackOff,
    RuleOrigin, ServiceAccount, ServiceName, ServicePolicyKind, ServicePolicyName, TagDialect,
    TagMatch, TagRouteName, TagRule, TagRules, TagSet, TagSplit, TagTarget, TagValue, TextRelation,
    TooMany, Trip, ValueTest, WorkloadName,
};
use leno_traffic::balance::hashing::{Places, key};
use leno_traffic::circuit::{Circuit, Shown};
use leno_traffic::fault::FaultPlan;
use leno_traffic::removal::{Removed, Seen};
use leno_traffic::{Lanes, Limits, TagPlan};

use self::measure::{Asked, DRAW, asked, measured};

// A TagRoute of so many rules, each for one value of a header; the last but two decides.
#[library_benchmark]
#[bench::of_10(args = (tag_rules(10), carries("v-7")), config = measured(1_003))]
#[bench::of_10000(args = (tag_rules(10_000), carries("v-9997")), config = measured(996))]
fn tag_route(plan: TagPlan, asked: Asked) -> (TagPlan, Asked) {
    let decision = plan.choose(&asked.view(), &mut || black_box(DRAW));
    assert!(black_box(decision).endpoints.is_some());
    (plan, asked)
}

// A lane that marks six requests in ten.
#[library_benchmark]
#[bench::marks(args = (lanes(), carries("v-0")), config = measured(577))]
fn lane(lanes: Lanes, asked: Asked) -> (Lanes, Asked) {
    let marks = lanes.mark(PORT, &asked.view(), &mut || black_box(DRAW));
    assert!(black_box(marks).rule.is_some());
    (lanes, asked)
}

// An OutlierRemoval sees a request to one of ten endpoints begin, and succeed.
#[library_benchmark]
#[bench::success(args = (removal()), config = measured(139))]
fn outlier_removal(mut removal: Removed) -> Removed {
    let now = Duration::from_millis(1);
    let mut events = Vec::new();
    removal.advance(now, DRAW, &mut events);
    black_box(removal.standing(black_box(3)));
    let probe = removal.begin(black_box(3));
    let seen = Seen { failed: false, probe, now, draw: DRAW };
    removal.learn(black_box(3), seen, &mut events);
    assert!(events.is_empty());
    removal
}

// A CircuitBreaker that opens by a share of failures lets a request through, which succeeds.
#[library_benchmark]
#[bench::closed(args = (circuit()), config = measured(110))]
fn circuit_breaker(mut circuit: Circuit) -> Circuit {
    let now = Duration::from_millis(1);
    let ticket = circuit.admit(black_box(now)).expect("it is closed");
    let turn = circuit.end(ticket, Shown { failed: false, took: now }, now);
    assert!(black_box(turn).is_none());
    circuit
}

// A RateLimit with one bucket for all, and with one for each client.
#[library_benchmark]
#[bench::for_all(args = (limits(Each::Nothing), asking()), config = measured(408))]
#[bench::for_each_client(args = (limits(Each::Client { buckets: 1024 }), asking()), config = measured(1_715))]
fn rate_limit(limits: Limits, asking: Asking) -> (Limits, Asking) {
    let (asked, caller) = &asking;
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit(PORT, (&asked.view(), Some(caller)), now).is_ok());
    (limits, asking)
}

// A FaultInjection that is about the request, and spares it.
#[library_benchmark]
#[bench::spared(args = (faults(), asking()), config = measured(111))]
fn fault_injection(faults: FaultPlan, asking: Asking) -> (FaultPlan, Asking) {
    let (asked, caller) = &asking;
    let injected = faults.inject(&asked.view(), caller, &mut || black_box(u64::MAX));
    assert!(black_box(injected).is_none());
    (faults, asking)
}

// A LoadBalancing by hash finds the endpoint of a key, among ten.
#[library_benchmark]
#[bench::ring(args = (places(BalanceAlgorithm::RingHash)), config = measured(216))]
#[bench::maglev(args = (places(BalanceAlgorithm::Maglev)), config = measured(81))]
fn load_balancing(places: Places) -> Places {
    assert!(places.find(key(black_box("user-42")), |_| true).is_some());
    places
}

library_benchmark_group!(
    name = rules,
    benchmarks = [
        tag_route,
        lane,
        outlier_removal,
        circuit_breaker,
        rate_limit,
        fault_injection,
        load_balancing
    ]
);

gungraun::main!(library_benchmark_groups = rules);

/// A request, and who makes it.
type Asking = (Asked, ServiceAccount);

fn asking() -> Asking {
    (asked("/shop/7"), account())
}

fn carries(value: &str) -> Asked {
    let mut asked = asked("/shop/carts/42");
    asked.fields.push(("x-version".to_owned(), value.to_owned()));
    asked
}

fn with_version(value: &str) -> TagMatch {
    let texts = vec![value.to_owned()];
    let test = ValueTest::Text { relation: TextRelation::Exact, texts, ignore_case: false };
    let headers = vec![FieldTest { name: "x-version".to_owned(), test }];
    TagMatch { headers, ..TagMatch::default() }
}

fn origin(dialect: TagDialect, index: usize) -> RuleOrigin {
    let name = TagRouteName::new("shop", "orders").expect("a name");
    RuleOrigin { dialect, name, index: u32::try_from(index).expect("a place") }
}

fn tag_rules(count: usize) -> TagPlan {
    let rule = |index: usize| {
        let tags = [("version".to_owned(), TagValue::Is((index % 10).to_string()))];
        TagRule {
            origin: origin(TagDialect::TagRoute, index),
            precedence: 0,
            from: Callers::default(),
            matches: with_version(&format!("v-{index}")),
            split: TagSplit {
                targets: vec![TagTarget { weight: 1, set: TagSet::All(tags.into()) }],
                ..TagSplit::default()
            },
            fallback: TagSplit::default(),
            otherwise: vec![Otherwise::Any],
            sticky: None,
        }
    };
    let rules = TagRules {
        rules: (0..count).map(rule).collect(),
        otherwise: vec![Otherwise::Default, Otherwise::Any],
        by_caller: Vec::new(),
    };
    TagPlan::build(&Arc::new(rules), &Caller::default(), &endpoints(), None).expect("rules")
}

fn lanes() -> Lanes {
    let mark = |percent, value: &str| LaneMark {
        percent,
        headers: BTreeMap::from([("x-lane".to_owned(), value.to_owned())]),
    };
    let rule = LaneRule {
        origin: origin(TagDialect::Lane, 0),
        precedence: 0,
        matches: with_version("v-0"),
        marks: vec![mark(60, "gray")],
    };
    Lanes::compile(&BTreeMap::from([(PORT, vec![rule])])).expect("rules")
}

fn removal() -> Removed {
    let rule = OutlierRemoval {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        steps: 10,
        rate: Some(FailureRate { percent: 50, requests_min: 20 }),
        consecutive: Some(5),
        removed_percent_max: 50,
        keep: 1,
        back_off: RemovalBackOff {
            base: Duration::from_secs(30),
            most: Duration::from_secs(300),
            jitter_percent: 50,
        },
        probes: 1,
    };
    Removed::new(&RemovalAlgorithm::Native(rule), 10)
}

fn circuit() -> Circuit {
    Circuit::new(Trip {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        steps: 10,
        requests_min: 20,
        failed: TooMany { share_ppm: Some(500_000), number: None },
        consecutive: None,
        slow: None,
        open_for: Duration::from_secs(20),
        probes: 2,
    })
}

fn limits(each: Each) -> Limits {
    let rule = RateRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        each,
        rate: Rate { count: 100, time: Duration::from_secs(1), size: 100 },
        is_last: false,
        answer: FixedAnswer::default(),
    };
    let policy = policy(ServicePolicyKind::RateLimit);
    let limits = RateLimits { rules: vec![rule], ..RateLimits::default() };
    let limits = PortLimits { policy, limits };
    Limits::build(&BTreeMap::from([(PORT, vec![limits])]), None).expect("limits")
}

fn faults() -> FaultPlan {
    let abort = Abort { share_ppm: 10_000, answer: FixedAnswer::default(), grpc: None };
    let rule = FaultRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        delay: None,
        abort: Some(abort),
    };
    let policy = policy(ServicePolicyKind::FaultInjection);
    FaultPlan::compile(&Faults { policy, rules: vec![rule] }).expect("faults")
}

fn places(algorithm: fn(HashKey) -> BalanceAlgorithm) -> Places {
    Places::of(&algorithm(HashKey::Source), &endpoints()).expect("it hashes")
}

fn policy(kind: ServicePolicyKind) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", "orders").expect("a name")
}

fn account() -> ServiceAccount {
    ServiceAccount::new("shop", "web").expect("a name")
}

/// Ten, each of a version of its own.
fn endpoints() -> Arc<[Arc<Endpoint>]> {
    let endpoint = |index: u16| {
        Arc::new(Endpoint {
            id: EndpointId {
                service: ServiceName::new("shop", "orders").expect("a name"),
                port: PORT,
                workload: WorkloadName::new("shop", &format!("orders-{index}")).expect("a name"),
            },
            address: ([127, 0, 0, 1], index + 1).into(),
            account: Some(account()),
            tags: BTreeMap::from([("version".to_owned(), index.to_string())]),
        })
    };
    (0..10).map(endpoint).collect()
}

const PORT: u16 = 9080;
