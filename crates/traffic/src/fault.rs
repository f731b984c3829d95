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
    /// The rules, if they are evaluated one by one.
    unindexed: Box<[CompiledFaultRule]>,
    /// The rules with their index, if there are many.
    indexed: Option<(MatchIndex, Box<[CompiledFaultRule]>)>,
}

/// A compiled [`FaultRule`].
#[derive(Debug)]
struct CompiledFaultRule {
    rule: FaultRule,
    requests: Box<[RequestMatcher]>,
    response: Option<Arc<FixedResponse>>,
    match_slot: Arc<MatchSlot>,
}

/// The faults of a request: at least one of the two.
#[derive(Debug, PartialEq, Eq)]
pub struct InjectedFaults<'a> {
    /// The name of the policy.
    pub policy: &'a ServicePolicyName,
    /// The name of the rule in the policy.
    pub rule: &'a str,
    /// The delay, if any.
    pub delay: Option<Duration>,
    /// The response that aborts the request, after the delay.
    pub abort: Option<InjectedResponse>,
    /// The counter of the rule's injected faults.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// The response of an abort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedResponse {
    /// The response.
    pub response: Arc<FixedResponse>,
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
        let with_policy =
            |error: InvalidPattern| error.with_object(ObjectKey::ServicePolicy(policy.clone()));
        let rules: Box<[CompiledFaultRule]> = rules.map_err(with_policy)?;
        let conditions = rules.iter().map(|rule| (&*rule.requests, &*rule.rule.peers));
        Ok(match MatchIndex::with_callers(conditions) {
            None => Self { policy, unindexed: rules, indexed: None },
            Some(index) => {
                Self { policy, unindexed: Box::default(), indexed: Some((index, rules)) }
            }
        })
    }

    /// Returns the name of the policy.
    #[must_use]
    pub const fn policy(&self) -> &ServicePolicyName {
        &self.policy
    }

    /// Returns the first rule that matches a request of this caller.
    #[must_use]
    pub fn rule_for(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&FaultRule> {
        self.find_rule(request, caller).map(|compiled| &compiled.rule)
    }

    /// Returns the faults of a request of this caller. Each fault of the matching rule is selected
    /// independently; `random` returns a uniform random number.
    pub fn select_faults(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
        random: &mut impl FnMut() -> u64,
    ) -> Option<InjectedFaults<'_>> {
        let rule = self.find_rule(request, caller)?;
        let mut is_selected = |share_ppm: u32| is_in_share(share_ppm, random());
        let delay = rule.rule.delay.filter(|delay| is_selected(delay.share_ppm));
        let abort = rule.rule.abort.as_ref().filter(|abort| is_selected(abort.share_ppm));
        let abort = abort.and_then(|abort| {
            Some(InjectedResponse { response: rule.response.clone()?, grpc: abort.grpc })
        });
        let injected = InjectedFaults {
            policy: &self.policy,
            rule: &rule.rule.name,
            match_slot: &rule.match_slot,
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
        let is_match = |rule: &&CompiledFaultRule| {
            let matches_request = rule.requests.is_empty()
                || rule.requests.iter().any(|matcher| matcher.matches(request));
            matches_request && rule.rule.matches_caller(caller)
        };
        self.unindexed.iter().find(is_match).or_else(|| self.find_by_index(request, caller))
    }

    /// Returns the first matching rule by the index. Separate, so that a small number of rules does not pay for
    /// it.
    #[inline(never)]
    fn find_by_index(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&CompiledFaultRule> {
        let (index, rules) = self.indexed.as_ref()?;
        let is_match = |rule: usize, match_position: usize| {
            rules.get(rule).is_some_and(|rule| {
                let matches_request = rule
                    .requests
                    .get(match_position)
                    .is_none_or(|matcher| matcher.matches(request));
                matches_request && rule.rule.matches_caller(caller)
            })
        };
        rules.get(
            index.first_match(LookupKeys::as_sent(request).with_caller(Some(caller)), is_match)?,
        )
    }
}

impl CompiledFaultRule {
    fn compile(rule: &FaultRule) -> Result<Self, InvalidPattern> {
        let requests = rule.requests.iter().map(RequestMatcher::compile);
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            response: rule.abort.as_ref().map(|abort| Arc::new(abort.response.clone())),
            match_slot: Arc::default(),
            rule: rule.clone(),
        })
    }
}

/// True if a random number, uniform over 64 bits, falls within a share in millionths.
#[must_use]
pub fn is_in_share(share_ppm: u32, random: u64) -> bool {
    let point = (u128::from(random) * u128::from(ALL_PPM)) >> 64;
    point < u128::from(share_ppm)
}

/// The share of all requests, in millionths.
const ALL_PPM: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use leno_model::{
        FaultAbort, FaultDelay, NamePattern, PathMatch, PeerMatch, RequestMatch, ServicePolicyKind,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::match_index::tests::{any_match, any_request};

    fn compile_faults(rules: Vec<FaultRule>) -> CompiledFaults {
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
                share_ppm: ALL_PPM,
                response: FixedResponse::default(),
                grpc: None,
            }),
        }
    }

    fn inject_faults(
        faults: &CompiledFaults,
        path: &str,
        from: &str,
        random_numbers: [u64; 2],
    ) -> Option<(String, bool, bool)> {
        let fields = Vec::new();
        let request =
            RequestView { method: "GET", path, query: None, authority: "", fields: &fields };
        let mut random_numbers = random_numbers.into_iter();
        let caller = ServiceAccount::new("shop", from).unwrap();
        let injected =
            faults.select_faults(&request, &caller, &mut || random_numbers.next().unwrap())?;
        let InjectedFaults { rule, delay, abort, .. } = injected;
        Some((rule.to_owned(), delay.is_some(), abort.is_some()))
    }

    #[test]
    fn only_the_first_matching_rule_applies() {
        let pattern = |text| NamePattern::new(text).unwrap();
        let peers = vec![PeerMatch { namespace: pattern("shop"), account: pattern("web") }];
        let faults = compile_faults(vec![
            FaultRule { peers, ..fault_rule("a", "/x") },
            fault_rule("b", "/x"),
            fault_rule("c", "/y"),
        ]);
        let fault = |path, from| inject_faults(&faults, path, from, [0, 0]).map(|(rule, ..)| rule);
        assert_eq!(fault("/x/1", "web").as_deref(), Some("a"));
        assert_eq!(fault("/x/1", "app").as_deref(), Some("b"));
        assert_eq!(fault("/y", "web").as_deref(), Some("c"));
        assert_eq!(fault("/z", "web"), None);
    }

    #[test]
    fn faults_are_selected_independently() {
        let delay = Some(FaultDelay { share_ppm: 500_000, time: Duration::from_secs(1) });
        let mut rule_with_abort = fault_rule("a", "/");
        rule_with_abort.abort.as_mut().unwrap().share_ppm = 500_000;
        let faults = compile_faults(vec![FaultRule { delay, ..rule_with_abort }]);
        let (low, high) = (u64::MAX / 2 - 1, u64::MAX / 2 + 100);
        let injected = |random_numbers| {
            inject_faults(&faults, "/", "web", random_numbers)
                .map(|(_, delay, abort)| (delay, abort))
        };
        assert_eq!(injected([low, low]), Some((true, true)));
        assert_eq!(injected([low, high]), Some((true, false)));
        assert_eq!(injected([high, low]), Some((false, true)));
        assert_eq!(injected([high, high]), None);
    }

    #[test]
    fn a_share_is_exact_at_its_bounds() {
        for (share_ppm, random, expected) in [
            (0, 0, false),
            (1, 0, true),
            (ALL_PPM, u64::MAX, true),
            (ALL_PPM - 1, u64::MAX, false),
            (500_000, 1 << 63, false),
            (500_000, (1 << 63) - 1, true),
        ] {
            assert_eq!(is_in_share(share_ppm, random), expected, "{share_ppm} {random}");
        }
    }

    proptest! {
        #[test]
        fn indexed_lookup_agrees_with_sequential_evaluation(
            rules in prop::collection::vec(
                (
                    prop::collection::vec(any_match(), 0..3),
                    prop::collection::vec(prop::sample::select(vec!["web", "api", "w*"]), 0..3),
                ),
                0..16,
            ),
            sample_request in any_request(),
        ) {
            let pattern = |text| NamePattern::new(text).unwrap();
            let peer = |name| PeerMatch { namespace: pattern("shop"), account: pattern(name) };
            let rules = rules.into_iter().enumerate().map(|(n, (requests, named))| FaultRule {
                requests,
                peers: named.into_iter().map(peer).collect(),
                ..fault_rule(&format!("r{n}"), "")
            });
            let rules: Vec<FaultRule> = rules.collect();
            let request = sample_request.request_view();
            let faults = compile_faults(rules.clone());
            for caller in ["web", "app"] {
                let caller = ServiceAccount::new("shop", caller).unwrap();
                let matches = |request_match| RequestMatcher::compile(request_match).unwrap().matches(&request);
                let expected = rules.iter().find(|rule| {
                    let matches_request = rule.requests.is_empty() || rule.requests.iter().any(matches);
                    matches_request && rule.matches_caller(&caller)
                });
                prop_assert_eq!(faults.rule_for(&request, &caller), expected);
            }
        }
    }
}
