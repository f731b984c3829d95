//! Fault injection: delays and aborts.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    FaultRule, FixedResponse, ObjectKey, PortFaults, ServiceAccount, ServicePolicyName,
};

use crate::match_index::MatchIndex;
use crate::match_slot::MatchSlot;
use crate::matcher::RequestMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::LookupKeys;

/// The compiled faults of a port.
#[derive(Debug)]
pub struct CompiledFaults {
    policy: ServicePolicyName,
    /// Rules that are tried one by one.
    few: Box<[CompiledFaultRule]>,
    /// Rules with an index.
    many: Option<(MatchIndex, Box<[CompiledFaultRule]>)>,
}

#[derive(Debug)]
struct CompiledFaultRule {
    rule: FaultRule,
    requests: Box<[RequestMatcher]>,
    answer: Option<Arc<FixedResponse>>,
    match_slot: Arc<MatchSlot>,
}

/// The faults of a request: at least one of the two.
#[derive(Debug, PartialEq, Eq)]
pub struct InjectedFaults<'a> {
    /// The policy.
    pub policy: &'a ServicePolicyName,
    /// The rule in it.
    pub rule: &'a str,
    /// The delay.
    pub delay: Option<Duration>,
    /// The response that aborts the request, after the delay.
    pub abort: Option<InjectedResponse>,
    /// The match counter.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// The response of an abort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedResponse {
    /// The response.
    pub answer: Arc<FixedResponse>,
    /// The status of gRPC calls, if the policy sets it.
    pub grpc: Option<u8>,
}

impl CompiledFaults {
    /// Compiles the faults of a port.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn compile(faults: &PortFaults) -> Result<Self, InvalidPattern> {
        let rules = faults.rules.iter().map(CompiledFaultRule::compile).collect::<Result<_, _>>();
        let policy = faults.policy.clone();
        let within =
            |bad: InvalidPattern| bad.with_object(ObjectKey::ServicePolicy(policy.clone()));
        let rules: Box<[CompiledFaultRule]> = rules.map_err(within)?;
        let about = rules.iter().map(|rule| (&*rule.requests, &*rule.rule.peers));
        Ok(match MatchIndex::with_callers(about) {
            None => Self { policy, few: rules, many: None },
            Some(many) => Self { policy, few: Box::default(), many: Some((many, rules)) },
        })
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &ServicePolicyName {
        &self.policy
    }

    /// Returns the rule for a request of this caller: the first that matches.
    #[must_use]
    pub fn rule_for(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&FaultRule> {
        self.find_rule(request, caller).map(|found| &found.rule)
    }

    /// Returns the faults of a request of this caller. Each fault of the matching rule draws once.
    pub fn draw_faults(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
        chance: &mut impl FnMut() -> u64,
    ) -> Option<InjectedFaults<'_>> {
        let found = self.find_rule(request, caller)?;
        let mut falls_on = |share_ppm: u32| is_drawn(share_ppm, chance());
        let delay = found.rule.delay.filter(|delay| falls_on(delay.share_ppm));
        let abort = found.rule.abort.as_ref().filter(|abort| falls_on(abort.share_ppm));
        let abort = abort.and_then(|abort| {
            Some(InjectedResponse { answer: found.answer.clone()?, grpc: abort.grpc })
        });
        let injected = InjectedFaults {
            policy: &self.policy,
            rule: &found.rule.name,
            match_slot: &found.match_slot,
            delay: delay.map(|delay| delay.time),
            abort,
        };
        (injected.delay.is_some() || injected.abort.is_some()).then_some(injected)
    }

    fn find_rule(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&CompiledFaultRule> {
        let fits = |rule: &&CompiledFaultRule| {
            let asked =
                rule.requests.is_empty() || rule.requests.iter().any(|m| m.matches(request));
            asked && rule.rule.matches_caller(caller)
        };
        self.few.iter().find(fits).or_else(|| self.looked_up(request, caller))
    }

    /// Separate, so that a small number of rules does not pay for it.
    #[inline(never)]
    fn looked_up(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&CompiledFaultRule> {
        let (many, rules) = self.many.as_ref()?;
        let fits = |rule: usize, place: usize| {
            rules.get(rule).is_some_and(|rule| {
                let asked = rule.requests.get(place).is_none_or(|m| m.matches(request));
                asked && rule.rule.matches_caller(caller)
            })
        };
        rules.get(many.first_fitting(LookupKeys::as_sent(request).with_caller(Some(caller)), fits)?)
    }
}

impl CompiledFaultRule {
    fn compile(rule: &FaultRule) -> Result<Self, InvalidPattern> {
        let requests = rule.requests.iter().map(RequestMatcher::compile);
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            answer: rule.abort.as_ref().map(|abort| Arc::new(abort.response.clone())),
            match_slot: Arc::default(),
            rule: rule.clone(),
        })
    }
}

/// True if a draw, uniform over 64 bits, falls within a share in millionths.
#[must_use]
pub fn is_drawn(share_ppm: u32, draw: u64) -> bool {
    let point = (u128::from(draw) * u128::from(WHOLE_PPM)) >> 64;
    point < u128::from(share_ppm)
}

const WHOLE_PPM: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use leno_model::{
        FaultAbort, FaultDelay, NamePattern, PathMatch, PeerMatch, RequestMatch, ServicePolicyKind,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::match_index::tests::{any_match, any_request};

    fn fault_plan(rules: Vec<FaultRule>) -> CompiledFaults {
        let policy = ServicePolicyName::new(ServicePolicyKind::FaultInjection, "shop", "f");
        CompiledFaults::compile(&PortFaults { policy: policy.unwrap(), rules }).unwrap()
    }

    fn fault_rule(name: &str, path: &str) -> FaultRule {
        let path = PathMatch::Prefix(path.to_owned());
        FaultRule {
            name: name.to_owned(),
            requests: vec![RequestMatch { path, ..RequestMatch::default() }],
            peers: Vec::new(),
            delay: None,
            abort: Some(FaultAbort {
                share_ppm: WHOLE_PPM,
                response: FixedResponse::default(),
                grpc: None,
            }),
        }
    }

    fn inject_faults(
        plan: &CompiledFaults,
        path: &str,
        from: &str,
        draws: [u64; 2],
    ) -> Option<(String, bool, bool)> {
        let fields = Vec::new();
        let request =
            RequestView { method: "GET", path, query: None, authority: "", fields: &fields };
        let mut draws = draws.into_iter();
        let caller = ServiceAccount::new("shop", from).unwrap();
        let injected = plan.draw_faults(&request, &caller, &mut || draws.next().unwrap())?;
        let InjectedFaults { rule, delay, abort, .. } = injected;
        Some((rule.to_owned(), delay.is_some(), abort.is_some()))
    }

    #[test]
    fn the_first_rule_that_fits_decides_alone() {
        let pattern = |text| NamePattern::new(text).unwrap();
        let peers = vec![PeerMatch { namespace: pattern("shop"), account: pattern("web") }];
        let plan = fault_plan(vec![
            FaultRule { peers, ..fault_rule("a", "/x") },
            fault_rule("b", "/x"),
            fault_rule("c", "/y"),
        ]);
        let fault = |path, from| inject_faults(&plan, path, from, [0, 0]).map(|(rule, ..)| rule);
        assert_eq!(fault("/x/1", "web").as_deref(), Some("a"));
        assert_eq!(fault("/x/1", "app").as_deref(), Some("b"));
        assert_eq!(fault("/y", "web").as_deref(), Some("c"));
        assert_eq!(fault("/z", "web"), None);
    }

    #[test]
    fn each_fault_draws_for_itself() {
        let delay = Some(FaultDelay { share_ppm: 500_000, time: Duration::from_secs(1) });
        let mut both = fault_rule("a", "/");
        both.abort.as_mut().unwrap().share_ppm = 500_000;
        let plan = fault_plan(vec![FaultRule { delay, ..both }]);
        let (low, high) = (u64::MAX / 2 - 1, u64::MAX / 2 + 100);
        let faults =
            |draws| inject_faults(&plan, "/", "web", draws).map(|(_, delay, abort)| (delay, abort));
        assert_eq!(faults([low, low]), Some((true, true)));
        assert_eq!(faults([low, high]), Some((true, false)));
        assert_eq!(faults([high, low]), Some((false, true)));
        assert_eq!(faults([high, high]), None);
    }

    #[test]
    fn a_share_is_exact_at_its_ends() {
        for (share_ppm, draw, expected) in [
            (0, 0, false),
            (1, 0, true),
            (WHOLE_PPM, u64::MAX, true),
            (WHOLE_PPM - 1, u64::MAX, false),
            (500_000, 1 << 63, false),
            (500_000, (1 << 63) - 1, true),
        ] {
            assert_eq!(is_drawn(share_ppm, draw), expected, "{share_ppm} {draw}");
        }
    }

    proptest! {
        #[test]
        fn what_is_looked_up_is_what_asking_in_order_finds(
            rules in prop::collection::vec(
                (
                    prop::collection::vec(any_match(), 0..3),
                    prop::collection::vec(prop::sample::select(vec!["web", "api", "w*"]), 0..3),
                ),
                0..16,
            ),
            made in any_request(),
        ) {
            let pattern = |text| NamePattern::new(text).unwrap();
            let peer = |name| PeerMatch { namespace: pattern("shop"), account: pattern(name) };
            let rules = rules.into_iter().enumerate().map(|(n, (requests, named))| FaultRule {
                requests,
                peers: named.into_iter().map(peer).collect(),
                ..fault_rule(&format!("r{n}"), "")
            });
            let rules: Vec<FaultRule> = rules.collect();
            let request = made.request_view();
            let plan = fault_plan(rules.clone());
            for caller in ["web", "app"] {
                let caller = ServiceAccount::new("shop", caller).unwrap();
                let matches = |it| RequestMatcher::compile(it).unwrap().matches(&request);
                let in_order = rules.iter().find(|rule| {
                    let fits = rule.requests.is_empty() || rule.requests.iter().any(matches);
                    fits && rule.matches_caller(&caller)
                });
                prop_assert_eq!(plan.rule_for(&request, &caller), in_order);
            }
        }
    }
}
