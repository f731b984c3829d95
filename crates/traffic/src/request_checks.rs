//! External authorization, token validation and global rate limits for inbound requests.

mod header_change;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    Authorization, Descriptor, DescriptorValue, FixedResponse, GlobalLimit, JwtValidation,
    ObjectKey, RequestCheck, RequestMatch, ServiceAccount, ServicePolicyName, TokenRequirement,
    WorkloadConfig,
};

use crate::authorize::PolicyDecision;
use crate::match_slot::MatchSlot;
use crate::matcher::DenialMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::variant::{PathKind, PathVariants};

pub use header_change::{HeaderAction, HeaderChange, InvalidHeaderChange, edits_of, request_edits};

/// The compiled external checks of a workload's ports. At least one port has checks.
#[derive(Debug)]
pub struct CompiledChecks {
    ports: BTreeMap<u16, CompiledPortChecks>,
}

/// The checks of one port, in the order of evaluation.
#[derive(Debug, Default)]
pub struct CompiledPortChecks {
    tokens: Vec<CompiledJwtValidation>,
    authorizations: Vec<CompiledAuthorization>,
    limits: Vec<CompiledGlobalLimit>,
}

/// An external authorization service, and the requests it checks.
#[derive(Debug)]
pub struct CompiledAuthorization {
    /// The policy.
    pub policy: ServicePolicyName,
    /// The rule.
    pub rule: Authorization,
    requests: CheckedRequests,
    match_slot: Arc<MatchSlot>,
}

/// The JSON Web Tokens that requests may or must carry.
#[derive(Debug)]
pub struct CompiledJwtValidation {
    /// The policy.
    pub policy: ServicePolicyName,
    /// The rule.
    pub rule: JwtValidation,
    required: Option<CheckedRequests>,
    match_slot: Arc<MatchSlot>,
}

/// A rate limit service, with the descriptors it receives.
#[derive(Debug)]
pub struct CompiledGlobalLimit {
    /// The policy.
    pub policy: ServicePolicyName,
    /// The rule.
    pub rule: GlobalLimit,
    /// The response when the limit is exceeded, if the policy sets one.
    pub answer: Option<Arc<FixedResponse>>,
    descriptors: Vec<CheckedRequests>,
    match_slot: Arc<MatchSlot>,
}

/// A descriptor of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDescriptor {
    /// Its keys and values.
    pub entries: Vec<(String, String)>,
    /// The number of hits that the request counts for.
    pub hits_addend: u32,
}

/// The caller, for descriptors.
#[derive(Debug, Clone, Copy)]
pub struct CheckedClient<'a> {
    /// The calling account, if verified.
    pub account: Option<&'a ServiceAccount>,
    /// The client address of the connection.
    pub address: IpAddr,
}

impl CompiledChecks {
    /// Compiles all checks of a configuration; `None` if it has none.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn build(plan: &WorkloadConfig) -> Result<Option<Self>, InvalidPattern> {
        let mut ports: BTreeMap<u16, CompiledPortChecks> = BTreeMap::new();
        for (port, guards) in &plan.request_checks {
            for guard in guards {
                let at = ports.entry(*port).or_default();
                match &guard.check {
                    RequestCheck::Authorization(rule) => {
                        at.authorizations.push(CompiledAuthorization {
                            policy: guard.policy.clone(),
                            requests: CheckedRequests::compile(&rule.requests, &guard.policy)?,
                            rule: (**rule).clone(),
                            match_slot: Arc::default(),
                        })
                    }
                    RequestCheck::Tokens(rule) => {
                        at.tokens.push(CompiledJwtValidation::compile(&guard.policy, rule)?);
                    }
                }
            }
        }
        for (port, limits) in &plan.limits {
            for limit in limits {
                let Some(rule) = &limit.limits.global else { continue };
                let compiled = CompiledGlobalLimit::compile(&limit.policy, rule)?;
                ports.entry(*port).or_default().limits.push(compiled);
            }
        }
        Ok((!ports.is_empty()).then_some(Self { ports }))
    }

    /// Returns the checks of a port.
    #[must_use]
    pub fn for_port(&self, port: u16) -> Option<&CompiledPortChecks> {
        self.ports.get(&port)
    }
}

impl CompiledPortChecks {
    /// Returns the token validations, which precede all other decisions.
    #[must_use]
    pub fn token_validations(&self) -> &[CompiledJwtValidation] {
        &self.tokens
    }

    /// Returns the authorization services that must check a request. Every meaning of the request counts, so
    /// that alternative encodings cannot bypass a check.
    pub fn required_authorizations<'a>(
        &'a self,
        request: &RequestView<'a>,
    ) -> impl Iterator<Item = &'a CompiledAuthorization> {
        let request = *request;
        self.authorizations.iter().filter(move |it| it.requests.may_be(&request))
    }

    /// Returns the rate limit services that must check a request, with its descriptors.
    pub fn required_limits<'a>(
        &'a self,
        request: &RequestView<'a>,
        asking: CheckedClient<'a>,
    ) -> impl Iterator<Item = (&'a CompiledGlobalLimit, Vec<RequestDescriptor>)> {
        let request = *request;
        let described = move |limit: &'a CompiledGlobalLimit| {
            let described = limit.describe_request(&request, asking);
            (!described.is_empty()).then_some((limit, described))
        };
        self.limits.iter().filter_map(described)
    }
}

impl CompiledAuthorization {
    /// Returns the decision, for metrics and logs.
    #[must_use]
    pub fn policy_decision(&self) -> PolicyDecision {
        PolicyDecision::whole_policy(&self.policy, &self.match_slot)
    }
}

impl CompiledJwtValidation {
    fn compile(policy: &ServicePolicyName, rule: &JwtValidation) -> Result<Self, InvalidPattern> {
        let required = match &rule.required {
            TokenRequirement::Never => None,
            TokenRequirement::Always => Some(CheckedRequests::compile(&[], policy)?),
            TokenRequirement::Matching(requests) => {
                Some(CheckedRequests::compile(requests, policy)?)
            }
        };
        let (policy, rule) = (policy.clone(), rule.clone());
        Ok(Self { policy, rule, required, match_slot: Arc::default() })
    }

    /// True if a request must carry a token. Every meaning of the request counts.
    #[must_use]
    pub fn is_required(&self, request: &RequestView<'_>) -> bool {
        self.required.as_ref().is_some_and(|requests| requests.may_be(request))
    }

    /// Returns the decision, for metrics and logs.
    #[must_use]
    pub fn policy_decision(&self) -> PolicyDecision {
        PolicyDecision::whole_policy(&self.policy, &self.match_slot)
    }
}

impl CompiledGlobalLimit {
    fn compile(policy: &ServicePolicyName, rule: &GlobalLimit) -> Result<Self, InvalidPattern> {
        let descriptors =
            rule.descriptors.iter().map(|it| CheckedRequests::compile(&it.requests, policy));
        Ok(Self {
            policy: policy.clone(),
            descriptors: descriptors.collect::<Result<_, _>>()?,
            answer: (rule.response != FixedResponse::default())
                .then(|| Arc::new(rule.response.clone())),
            rule: rule.clone(),
            match_slot: Arc::default(),
        })
    }

    fn describe_request(
        &self,
        request: &RequestView<'_>,
        asking: CheckedClient<'_>,
    ) -> Vec<RequestDescriptor> {
        let rules = self.rule.descriptors.iter().zip(&self.descriptors);
        let about = rules.filter(|(_, requests)| requests.may_be(request));
        about.filter_map(|(descriptor, _)| build_descriptor(descriptor, request, asking)).collect()
    }

    /// Returns the decision, for metrics and logs.
    #[must_use]
    pub fn policy_decision(&self) -> PolicyDecision {
        PolicyDecision::service_policy(&self.policy, GLOBAL, &self.match_slot)
    }
}

/// Returns the descriptor of a request; `None` if a value of an entry is absent.
fn build_descriptor(
    descriptor: &Descriptor,
    request: &RequestView<'_>,
    asking: CheckedClient<'_>,
) -> Option<RequestDescriptor> {
    let value = |value: &DescriptorValue| match value {
        DescriptorValue::Text(text) => Some(text.clone()),
        DescriptorValue::Header(name) if name == ":authority" => Some(request.authority.to_owned()),
        DescriptorValue::Header(name) => request.fields.joined_values(name).map(Cow::into_owned),
        DescriptorValue::Path => Some(request.path.to_owned()),
        DescriptorValue::Method => Some(request.method.to_owned()),
        DescriptorValue::Client => asking.account.map(ToString::to_string),
        DescriptorValue::Address => Some(asking.address.to_canonical().to_string()),
    };
    let mut entries = Vec::with_capacity(descriptor.entries.len());
    for entry in &descriptor.entries {
        entries.push((entry.key.clone(), value(&entry.value)?));
    }
    Some(RequestDescriptor { entries, hits_addend: descriptor.hits_addend })
}

/// The requests of a rule; empty for all requests.
#[derive(Debug)]
struct CheckedRequests(Box<[DenialMatcher]>);

impl CheckedRequests {
    fn compile(
        requests: &[RequestMatch],
        policy: &ServicePolicyName,
    ) -> Result<Self, InvalidPattern> {
        let compiled = requests.iter().map(DenialMatcher::compile).collect::<Result<_, _>>();
        compiled.map(Self).map_err(|bad| bad.with_object(ObjectKey::ServicePolicy(policy.clone())))
    }

    /// True if an application may interpret the request as one of them.
    fn may_be(&self, request: &RequestView<'_>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let variant = PathVariants::from_path(request.path, PathKind::from_path(request.path));
        self.0.iter().any(|it| it.may_mean(request, &variant))
    }
}

/// The part of a `RateLimit` that a service decides, in place of a rule's name.
const GLOBAL: &str = "global";

#[cfg(test)]
mod tests;
