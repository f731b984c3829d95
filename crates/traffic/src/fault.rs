//! Compiles the fault rules of a port, and selects at random the faults to inject into a request: a delay, an abort or
//! both. The client's sidecar selects faults for each of its requests.

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
    /// The rules, if they are evaluated one by one; empty if `indexed` has them.
    unindexed: Box<[CompiledFaultRule]>,
    /// The rules with their index, if [`MatchIndex`] indexes this number of rules.
    indexed: Option<(MatchIndex, Box<[CompiledFaultRule]>)>,
}

/// A compiled [`FaultRule`].
#[derive(Debug)]
struct CompiledFaultRule {
    /// The rule as configured.
    config: FaultRule,
    /// The requests that the rule matches; all when empty.
    request_matchers: Box<[RequestMatcher]>,
    /// The response of the rule's abort, if any.
    response: Option<Arc<FixedResponse>>,
    /// The cached index of the counter for the rule's injected faults.
    match_slot: Arc<MatchSlot>,
}

/// The faults that are injected into a request; at least one of `delay` and `abort` is set.
#[derive(Debug, PartialEq, Eq)]
pub struct InjectedFaults<'a> {
    /// The name of the policy.
    pub policy: &'a ServicePolicyName,
    /// The name of the rule in the policy.
    pub rule_name: &'a str,
    /// The delay, if any.
    pub delay: Option<Duration>,
    /// The response that aborts the request, after the delay.
    pub abort: Option<InjectedResponse>,
    /// The cached index of the counter for the rule's injected faults.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// The response to an aborted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedResponse {
    /// The HTTP response. If `grpc_status` is `None`, gRPC calls fail with the gRPC status for its HTTP status.
    pub response: Arc<FixedResponse>,
    /// The gRPC status for gRPC calls, if the policy sets it.
    pub grpc_status: Option<u8>,
}

impl CompiledFaults {
    /// Compiles the faults of a port.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn compile(faults: &PortFaults) -> Result<Self, InvalidPattern> {
        let rules = faults.rules.iter().map(CompiledFaultRule::compile).collect::<Result<_, _>>();
        let policy = faults.policy.clone();
        let add_policy =
            |error: InvalidPattern| error.with_object(ObjectKey::ServicePolicy(policy.clone()));
        let rules: Box<[CompiledFaultRule]> = rules.map_err(add_policy)?;
        let matchers_and_callers =
            rules.iter().map(|rule| (&*rule.request_matchers, &*rule.config.peers));
        Ok(match MatchIndex::with_callers(matchers_and_callers) {
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

    /// Returns the first rule that matches a request of this caller; `None` if no rule matches.
    #[must_use]
    pub fn rule_for(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&FaultRule> {
        self.find_rule(request, caller).map(|compiled| &compiled.config)
    }

    /// Selects the faults to inject into a request of this caller; `None` if there are none. The delay and the abort
    /// of the matching rule are selected independently. `next_random` returns random numbers, uniform over `u64`.
    pub fn select_faults(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
        next_random: &mut impl FnMut() -> u64,
    ) -> Option<InjectedFaults<'_>> {
        let compiled = self.find_rule(request, caller)?;
        let mut is_selected = |share_ppm: u32| is_in_share(share_ppm, next_random());
        let delay = compiled.config.delay.filter(|delay| is_selected(delay.share_ppm));
        let abort = compiled.config.abort.as_ref().filter(|abort| is_selected(abort.share_ppm));
        let injected_response = abort.and_then(|abort| {
            Some(InjectedResponse { response: compiled.response.clone()?, grpc_status: abort.grpc })
        });
        let injected_faults = InjectedFaults {
            policy: &self.policy,
            rule_name: &compiled.config.name,
            match_slot: &compiled.match_slot,
            delay: delay.map(|delay| delay.duration),
            abort: injected_response,
        };
        (injected_faults.delay.is_some() || injected_faults.abort.is_some())
            .then_some(injected_faults)
    }

    /// Returns the first rule that matches a request of this caller; `None` if no rule matches.
    fn find_rule(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&CompiledFaultRule> {
        let is_match = |rule: &&CompiledFaultRule| {
            let matches_request = rule.request_matchers.is_empty()
                || rule.request_matchers.iter().any(|matcher| matcher.matches(request));
            matches_request && rule.config.matches_caller(caller)
        };
        // If the rules are indexed, `unindexed` is empty.
        self.unindexed.iter().find(is_match).or_else(|| self.find_indexed(request, caller))
    }

    /// Returns the first matching rule, found by the index. This is a separate function so that ports with few rules
    /// do not need its stack space.
    #[inline(never)]
    fn find_indexed(
        &self,
        request: &RequestView<'_>,
        caller: &ServiceAccount,
    ) -> Option<&CompiledFaultRule> {
        let (match_index, rules) = self.indexed.as_ref()?;
        let is_match = |rule_position: usize, match_position: usize| {
            rules.get(rule_position).is_some_and(|rule| {
                let matches_request = rule
                    .request_matchers
                    .get(match_position)
                    .is_none_or(|matcher| matcher.matches(request));
                matches_request && rule.config.matches_caller(caller)
            })
        };
        let keys = LookupKeys::as_sent(request).with_caller(Some(caller));
        rules.get(match_index.first_match(keys, is_match)?)
    }
}

impl CompiledFaultRule {
    fn compile(rule: &FaultRule) -> Result<Self, InvalidPattern> {
        let request_matchers = rule.requests.iter().map(RequestMatcher::compile);
        Ok(Self {
            request_matchers: request_matchers.collect::<Result<_, _>>()?,
            response: rule.abort.as_ref().map(|abort| Arc::new(abort.response.clone())),
            match_slot: Arc::default(),
            config: rule.clone(),
        })
    }
}

/// Returns true for this share, in millionths, of all values of `random`: the probability of true if `random` is
/// uniform over `u64`.
#[must_use]
pub fn is_in_share(share_ppm: u32, random: u64) -> bool {
    // Scales the random number, which is a fraction of 2^64, to the range from 0 to 999,999.
    let point = (u128::from(random) * u128::from(ALL_PPM)) >> 64;
    point < u128::from(share_ppm)
}

/// 100 % in millionths (parts per million).
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
        caller_name: &str,
        random_numbers: [u64; 2],
    ) -> Option<(String, bool, bool)> {
        let fields = Vec::new();
        let request =
            RequestView { method: "GET", path, query: None, authority: "", fields: &fields };
        let mut random_numbers = random_numbers.into_iter();
        let caller = ServiceAccount::new("shop", caller_name).unwrap();
        let injected_faults =
            faults.select_faults(&request, &caller, &mut || random_numbers.next().unwrap())?;
        let InjectedFaults { rule_name, delay, abort, .. } = injected_faults;
        Some((rule_name.to_owned(), delay.is_some(), abort.is_some()))
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
        let delay = Some(FaultDelay { share_ppm: 500_000, duration: Duration::from_secs(1) });
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
            let rules = rules.into_iter().enumerate().map(|(n, (requests, account_patterns))| FaultRule {
                requests,
                peers: account_patterns.into_iter().map(peer).collect(),
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
