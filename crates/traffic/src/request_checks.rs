//! Compiles the external checks of inbound requests: external authorization, token validation and global rate limits.
//! Decides which checks a request needs, and builds rate limit descriptors; the proxy sends the check requests.

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

pub use header_change::{
    HeaderAction, HeaderChange, InvalidHeaderChange, request_edits, response_edits,
};

/// The compiled external checks of a workload's ports. At least one port has checks.
#[derive(Debug)]
pub struct CompiledChecks {
    ports: BTreeMap<u16, CompiledPortChecks>,
}

/// The checks of one port, in the order of evaluation.
#[derive(Debug, Default)]
pub struct CompiledPortChecks {
    token_validations: Vec<CompiledJwtValidation>,
    authorizations: Vec<CompiledAuthorization>,
    global_limits: Vec<CompiledGlobalLimit>,
}

/// A compiled external authorization policy: the authorization service, and the requests that it checks.
#[derive(Debug)]
pub struct CompiledAuthorization {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The authorization rule that was compiled.
    pub rule: Authorization,
    /// The requests that the service checks.
    requests: CheckedRequests,
    match_slot: Arc<MatchSlot>,
}

/// A compiled token policy: the JSON web tokens that requests may or must carry.
#[derive(Debug)]
pub struct CompiledJwtValidation {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The validation rule that was compiled.
    pub rule: JwtValidation,
    /// The requests that must carry a token; `None` if no request must carry one.
    required: Option<CheckedRequests>,
    match_slot: Arc<MatchSlot>,
}

/// A compiled global rate limit: the rate limit service, and the descriptors that it receives.
#[derive(Debug)]
pub struct CompiledGlobalLimit {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The limit that was compiled.
    pub rule: GlobalLimit,
    /// The response when the limit is exceeded, if the policy sets one.
    pub response: Option<Arc<FixedResponse>>,
    /// The requests of each descriptor, in the order of the rule's descriptors.
    descriptor_requests: Vec<CheckedRequests>,
    match_slot: Arc<MatchSlot>,
}

/// The descriptor that a rate limit service receives for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDescriptor {
    /// The keys and values of the descriptor.
    pub entries: Vec<(String, String)>,
    /// The number of hits that the request counts as.
    pub hits_addend: u32,
}

/// The client of a request. Descriptors may contain its account and address.
#[derive(Debug, Clone, Copy)]
pub struct CheckedClient<'a> {
    /// The calling account, if verified.
    pub account: Option<&'a ServiceAccount>,
    /// The client address of the connection.
    pub address: IpAddr,
}

impl CompiledChecks {
    /// Compiles all checks of a configuration; `None` if the configuration has no checks.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn build(config: &WorkloadConfig) -> Result<Option<Self>, InvalidPattern> {
        let mut ports: BTreeMap<u16, CompiledPortChecks> = BTreeMap::new();
        for (port, checks) in &config.request_checks {
            for policy_check in checks {
                let port_checks = ports.entry(*port).or_default();
                match &policy_check.check {
                    RequestCheck::Authorization(rule) => {
                        port_checks.authorizations.push(CompiledAuthorization {
                            policy: policy_check.policy.clone(),
                            requests: CheckedRequests::compile(
                                &rule.requests,
                                &policy_check.policy,
                            )?,
                            rule: (**rule).clone(),
                            match_slot: Arc::default(),
                        })
                    }
                    RequestCheck::Tokens(rule) => {
                        port_checks
                            .token_validations
                            .push(CompiledJwtValidation::compile(&policy_check.policy, rule)?);
                    }
                }
            }
        }
        for (port, limits) in &config.limits {
            for port_limits in limits {
                let Some(rule) = &port_limits.limits.global else { continue };
                let compiled = CompiledGlobalLimit::compile(&port_limits.policy, rule)?;
                ports.entry(*port).or_default().global_limits.push(compiled);
            }
        }
        Ok((!ports.is_empty()).then_some(Self { ports }))
    }

    /// Returns the checks of a port; `None` if it has none.
    #[must_use]
    pub fn for_port(&self, port: u16) -> Option<&CompiledPortChecks> {
        self.ports.get(&port)
    }
}

impl CompiledPortChecks {
    /// Returns the token validations, which are evaluated before all other decisions.
    #[must_use]
    pub fn token_validations(&self) -> &[CompiledJwtValidation] {
        &self.token_validations
    }

    /// Returns the authorization services that must check a request. A service must check the request if any
    /// interpretation matches, so that alternative encodings cannot bypass a check.
    pub fn required_authorizations<'a>(
        &'a self,
        request: &RequestView<'a>,
    ) -> impl Iterator<Item = &'a CompiledAuthorization> {
        let request = *request;
        self.authorizations.iter().filter(move |check| check.requests.may_match(&request))
    }

    /// Returns the rate limit services that must check a request, each with the request's descriptors.
    pub fn required_limits<'a>(
        &'a self,
        request: &RequestView<'a>,
        client: CheckedClient<'a>,
    ) -> impl Iterator<Item = (&'a CompiledGlobalLimit, Vec<RequestDescriptor>)> {
        let request = *request;
        let with_descriptors = move |limit: &'a CompiledGlobalLimit| {
            let descriptors = limit.describe_request(&request, client);
            (!descriptors.is_empty()).then_some((limit, descriptors))
        };
        self.global_limits.iter().filter_map(with_descriptors)
    }
}

impl CompiledAuthorization {
    /// Returns the decision of the policy, for metrics and logs.
    #[must_use]
    pub fn policy_decision(&self) -> PolicyDecision {
        PolicyDecision::from_whole_policy(&self.policy, &self.match_slot)
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

    /// True if a request must carry a token, in any interpretation of the request.
    #[must_use]
    pub fn is_required(&self, request: &RequestView<'_>) -> bool {
        self.required.as_ref().is_some_and(|requests| requests.may_match(request))
    }

    /// Returns the decision of the policy, for metrics and logs.
    #[must_use]
    pub fn policy_decision(&self) -> PolicyDecision {
        PolicyDecision::from_whole_policy(&self.policy, &self.match_slot)
    }
}

impl CompiledGlobalLimit {
    fn compile(policy: &ServicePolicyName, rule: &GlobalLimit) -> Result<Self, InvalidPattern> {
        let descriptor_requests = rule
            .descriptors
            .iter()
            .map(|descriptor| CheckedRequests::compile(&descriptor.requests, policy));
        Ok(Self {
            policy: policy.clone(),
            descriptor_requests: descriptor_requests.collect::<Result<_, _>>()?,
            response: (rule.response != FixedResponse::default())
                .then(|| Arc::new(rule.response.clone())),
            rule: rule.clone(),
            match_slot: Arc::default(),
        })
    }

    /// Returns the descriptors of a request; empty if no descriptor applies.
    fn describe_request(
        &self,
        request: &RequestView<'_>,
        client: CheckedClient<'_>,
    ) -> Vec<RequestDescriptor> {
        let descriptors = self.rule.descriptors.iter().zip(&self.descriptor_requests);
        let matching_descriptors = descriptors.filter(|(_, requests)| requests.may_match(request));
        matching_descriptors
            .filter_map(|(descriptor, _)| build_descriptor(descriptor, request, client))
            .collect()
    }

    /// Returns the decision of the policy, for metrics and logs.
    #[must_use]
    pub fn policy_decision(&self) -> PolicyDecision {
        PolicyDecision::from_service_policy(&self.policy, GLOBAL_LIMIT_NAME, &self.match_slot)
    }
}

/// Builds the descriptor of a request; `None` if the value of an entry is absent.
fn build_descriptor(
    descriptor: &Descriptor,
    request: &RequestView<'_>,
    client: CheckedClient<'_>,
) -> Option<RequestDescriptor> {
    let entry_value = |value: &DescriptorValue| match value {
        DescriptorValue::Text(text) => Some(text.clone()),
        DescriptorValue::Header(name) if name == ":authority" => Some(request.authority.to_owned()),
        DescriptorValue::Header(name) => request.fields.joined_values(name).map(Cow::into_owned),
        DescriptorValue::Path => Some(request.path.to_owned()),
        DescriptorValue::Method => Some(request.method.to_owned()),
        DescriptorValue::Client => client.account.map(ToString::to_string),
        DescriptorValue::Address => Some(client.address.to_canonical().to_string()),
    };
    let mut entries = Vec::with_capacity(descriptor.entries.len());
    for entry in &descriptor.entries {
        entries.push((entry.key.clone(), entry_value(&entry.value)?));
    }
    Some(RequestDescriptor { entries, hits_addend: descriptor.hits_addend })
}

/// The requests that a check applies to; all requests when empty.
#[derive(Debug)]
struct CheckedRequests(Box<[DenialMatcher]>);

impl CheckedRequests {
    fn compile(
        requests: &[RequestMatch],
        policy: &ServicePolicyName,
    ) -> Result<Self, InvalidPattern> {
        let compiled = requests.iter().map(DenialMatcher::compile).collect::<Result<_, _>>();
        compiled
            .map(Self)
            .map_err(|error| error.with_object(ObjectKey::ServicePolicy(policy.clone())))
    }

    /// True if an application may interpret the request as one of these requests.
    fn may_match(&self, request: &RequestView<'_>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let variants = PathVariants::from_path(request.path, PathKind::from_path(request.path));
        self.0.iter().any(|matcher| matcher.may_match(request, &variants))
    }
}

/// The name of a policy's global limit in reports, in place of a rule's name.
const GLOBAL_LIMIT_NAME: &str = "global";

#[cfg(test)]
mod tests;
