//! Inputs of the benchmarks in `rules.rs` other than routes: retries, hedges, CORS and external checks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use leno_model::{
    Access, AllowedNames, Authorization, CheckService, CheckServiceAddress, Cors, Descriptor,
    DescriptorEntry, DescriptorValue, FailureMode, FixedResponse, GlobalLimit, HedgeRule,
    JwtValidation, OriginPattern, PathMatch, PortCheck, PortLimits, RateLimits, RequestCheck,
    RequestMatch, RetryRule, Server, ServicePolicyKind, ServicePolicyName, TokenRequirement,
    WorkloadConfig,
};
use leno_traffic::budget::RetryBudget;
use leno_traffic::hedge::HedgeConditions;
use leno_traffic::request_checks::CompiledChecks;
use leno_traffic::{FailedAttempt, SentPart};

use crate::member::proxy_config;
use crate::sample::{SampleRequest, sample_request};

/// Returns a rule with two retries of responses with any of three statuses, and a budget.
pub(crate) fn retry_rule() -> (RetryRule, RetryBudget) {
    let rule =
        RetryRule { codes: vec![502, 503, 504], attempts: 2, backoff: Duration::from_millis(25) };
    (rule, RetryBudget::new(now()))
}

/// A first attempt with an idempotent method.
pub(crate) const ATTEMPT: FailedAttempt = FailedAttempt {
    sent: SentPart::HeadOrMore,
    idempotent: true,
    body_replayable: true,
    response_started: false,
    earlier_attempts: 0,
    other_endpoints: 0,
    waited: Duration::ZERO,
};

pub(crate) fn hedge_rule() -> HedgeRule {
    HedgeRule { after: Duration::from_millis(20), methods: [].into() }
}

pub(crate) const HEDGE_CONDITIONS: HedgeConditions<'_> =
    HedgeConditions { method: "GET", is_unrepeatable: false, has_affinity: false, retries: 0 };

/// Returns a CORS rule for one origin, with two methods.
pub(crate) fn cors_rule() -> Cors {
    Cors {
        origins: vec![OriginPattern::new("https://shop.example").expect("an origin")],
        allows_credentials: false,
        methods: AllowedNames::Only(vec!["PUT".to_owned(), "DELETE".to_owned()]),
        headers: AllowedNames::default(),
        exposed_headers: AllowedNames::default(),
        max_age_seconds: 5,
    }
}

/// Returns a request from a page of the origin that [`cors_rule`] allows.
pub(crate) fn cross_origin_request() -> SampleRequest {
    let mut sample = sample_request("/shop/7");
    sample.fields.push(("origin".to_owned(), "https://shop.example".to_owned()));
    sample
}

/// Returns checks for requests to one path: a required token, external authorization, and a global rate limit by
/// client.
pub(crate) fn compile_checks() -> CompiledChecks {
    let requests = || {
        vec![RequestMatch {
            path: PathMatch::Exact("/shop/7".to_owned()),
            ..RequestMatch::default()
        }]
    };
    let authorization = Authorization {
        check_service: check_service(),
        requests: requests(),
        headers: None,
        context_extensions: Vec::new(),
        body: None,
    };
    let tokens =
        JwtValidation { issuers: Vec::new(), required: TokenRequirement::Matching(requests()) };
    let checks = [
        (
            ServicePolicyKind::ExternalAuthorization,
            RequestCheck::Authorization(Box::new(authorization)),
        ),
        (ServicePolicyKind::JwtValidation, RequestCheck::Tokens(Box::new(tokens))),
    ];
    let checks = checks.map(|(kind, check)| PortCheck { policy: policy_name(kind), check });
    let entry = DescriptorEntry { key: "method".to_owned(), value: DescriptorValue::Method };
    let global = GlobalLimit {
        check_service: check_service(),
        domain: "shop".to_owned(),
        descriptors: vec![Descriptor {
            requests: requests(),
            entries: vec![entry],
            hits_addend: 1,
        }],
        response: FixedResponse::default(),
        rate_limit_headers: false,
    };
    let limits = RateLimits { global: Some(Box::new(global)), ..RateLimits::default() };
    let limits = PortLimits { policy: policy_name(ServicePolicyKind::RateLimit), limits };
    let config = WorkloadConfig {
        request_checks: BTreeMap::from([(PORT, checks.to_vec())]),
        limits: BTreeMap::from([(PORT, vec![limits])]),
        ..proxy_config(Access::AllowAll)
    };
    CompiledChecks::build(&config).expect("the checks are valid").expect("there are checks")
}

fn check_service() -> CheckService {
    let server = Server::parse("http://192.0.2.2:9000").expect("the server is valid");
    let timeout = Duration::from_millis(200);
    CheckService {
        address: CheckServiceAddress::External(server),
        timeout,
        failure_mode: FailureMode::Deny,
    }
}

fn policy_name(kind: ServicePolicyKind) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", "orders").expect("the name is valid")
}

#[expect(clippy::disallowed_methods, reason = "a budget requires a start time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

const PORT: u16 = crate::kinds::PORT;
pub(crate) const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
