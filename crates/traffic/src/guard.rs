//! Guards: which requests that come in others decide about, and what they are asked.

mod edit;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    Authorization, Descriptor, DescriptorValue, FixedAnswer, GlobalLimit, Guard, JwtValidation,
    ObjectKey, RequestMatch, Required, ServiceAccount, ServicePolicyName, WorkloadPlan,
};

use crate::authorize::Ruling;
use crate::hits::HitSlot;
use crate::matcher::DenialMatcher;
use crate::pattern::BadPattern;
use crate::request::RequestView;
use crate::spelling::{PathKind, Spelling};

pub use edit::{HeaderChange, How, Improper, edits_of, request_edits};

/// The guards of a workload's ports, compiled. There is at least one.
#[derive(Debug)]
pub struct Guards {
    ports: BTreeMap<u16, PortGuards>,
}

/// Who decides about requests at one port, in the order in which they are asked.
#[derive(Debug, Default)]
pub struct PortGuards {
    tokens: Vec<CompiledJwtValidation>,
    authorizations: Vec<CompiledAuthorization>,
    limits: Vec<CompiledGlobalLimit>,
}

/// An authorization service, and when it is asked.
#[derive(Debug)]
pub struct CompiledAuthorization {
    /// The policy that says so.
    pub policy: ServicePolicyName,
    /// What it says.
    pub rule: Authorization,
    requests: Requests,
    hits: Arc<HitSlot>,
}

/// Which JSON web tokens requests may, or must, show.
#[derive(Debug)]
pub struct CompiledJwtValidation {
    /// The policy that says so.
    pub policy: ServicePolicyName,
    /// What it says.
    pub rule: JwtValidation,
    required: Option<Requests>,
    hits: Arc<HitSlot>,
}

/// A rate limit service, and what it is asked.
#[derive(Debug)]
pub struct CompiledGlobalLimit {
    /// The policy that says so.
    pub policy: ServicePolicyName,
    /// What it says.
    pub rule: GlobalLimit,
    /// What is answered, when the policy says.
    pub answer: Option<Arc<FixedAnswer>>,
    descriptors: Vec<Requests>,
    hits: Arc<HitSlot>,
}

/// A descriptor of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its keys and values.
    pub entries: Vec<(String, String)>,
    /// As how many the request counts.
    pub hits: u32,
}

/// Who asks, as descriptors name it.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// The account that calls, if one is proved.
    pub account: Option<&'a ServiceAccount>,
    /// The address that its connection comes from.
    pub address: IpAddr,
}

impl Guards {
    /// Compiles all that a plan says; `None` when nobody else decides about anything.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; it names the policy.
    pub fn build(plan: &WorkloadPlan) -> Result<Option<Self>, BadPattern> {
        let mut ports: BTreeMap<u16, PortGuards> = BTreeMap::new();
        for (port, guards) in &plan.guards {
            for guard in guards {
                let at = ports.entry(*port).or_default();
                match &guard.guard {
                    Guard::Authorization(rule) => at.authorizations.push(CompiledAuthorization {
                        policy: guard.policy.clone(),
                        requests: Requests::compile(&rule.requests, &guard.policy)?,
                        rule: (**rule).clone(),
                        hits: Arc::default(),
                    }),
                    Guard::Tokens(rule) => {
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

    /// Who decides about requests at a port.
    #[must_use]
    pub fn at(&self, port: u16) -> Option<&PortGuards> {
        self.ports.get(&port)
    }
}

impl PortGuards {
    /// Which tokens requests may, or must, show, before anything else is decided.
    #[must_use]
    pub fn tokens(&self) -> &[CompiledJwtValidation] {
        &self.tokens
    }

    /// Who is asked whether a request may come in. Whatever the request may mean to the application
    /// counts, so that no odd spelling gets around a question.
    pub fn authorizations<'a>(
        &'a self,
        request: &RequestView<'a>,
    ) -> impl Iterator<Item = &'a CompiledAuthorization> {
        let request = *request;
        self.authorizations.iter().filter(move |it| it.requests.may_be(&request))
    }

    /// Who is asked whether a request is too much, with what describes it.
    pub fn limits<'a>(
        &'a self,
        request: &RequestView<'a>,
        asking: Asking<'a>,
    ) -> impl Iterator<Item = (&'a CompiledGlobalLimit, Vec<Described>)> {
        let request = *request;
        let described = move |limit: &'a CompiledGlobalLimit| {
            let described = limit.describe(&request, asking);
            (!described.is_empty()).then_some((limit, described))
        };
        self.limits.iter().filter_map(described)
    }
}

impl CompiledAuthorization {
    /// What decided, for those who count and tell.
    #[must_use]
    pub fn ruling(&self) -> Ruling {
        Ruling::whole_policy(&self.policy, &self.hits)
    }
}

impl CompiledJwtValidation {
    fn compile(policy: &ServicePolicyName, rule: &JwtValidation) -> Result<Self, BadPattern> {
        let required = match &rule.required {
            Required::Never => None,
            Required::Always => Some(Requests::compile(&[], policy)?),
            Required::Of(requests) => Some(Requests::compile(requests, policy)?),
        };
        let (policy, rule) = (policy.clone(), rule.clone());
        Ok(Self { policy, rule, required, hits: Arc::default() })
    }

    /// Whether a request must show one. Whatever it may mean to the application counts.
    #[must_use]
    pub fn is_required(&self, request: &RequestView<'_>) -> bool {
        self.required.as_ref().is_some_and(|requests| requests.may_be(request))
    }

    /// What decided, for those who count and tell.
    #[must_use]
    pub fn ruling(&self) -> Ruling {
        Ruling::whole_policy(&self.policy, &self.hits)
    }
}

impl CompiledGlobalLimit {
    fn compile(policy: &ServicePolicyName, rule: &GlobalLimit) -> Result<Self, BadPattern> {
        let descriptors = rule.descriptors.iter().map(|it| Requests::compile(&it.requests, policy));
        Ok(Self {
            policy: policy.clone(),
            descriptors: descriptors.collect::<Result<_, _>>()?,
            answer: (rule.answer != FixedAnswer::default()).then(|| Arc::new(rule.answer.clone())),
            rule: rule.clone(),
            hits: Arc::default(),
        })
    }

    fn describe(&self, request: &RequestView<'_>, asking: Asking<'_>) -> Vec<Described> {
        let rules = self.rule.descriptors.iter().zip(&self.descriptors);
        let about = rules.filter(|(_, requests)| requests.may_be(request));
        about.filter_map(|(descriptor, _)| described(descriptor, request, asking)).collect()
    }

    /// What decided, for those who count and tell.
    #[must_use]
    pub fn ruling(&self) -> Ruling {
        Ruling::service_policy(&self.policy, GLOBAL, &self.hits)
    }
}

/// The descriptor of a request; `None` when it lacks what an entry is made of.
fn described(
    descriptor: &Descriptor,
    request: &RequestView<'_>,
    asking: Asking<'_>,
) -> Option<Described> {
    let value = |value: &DescriptorValue| match value {
        DescriptorValue::Text(text) => Some(text.clone()),
        DescriptorValue::Header(name) if name == ":authority" => Some(request.authority.to_owned()),
        DescriptorValue::Header(name) => request.fields.find(name).map(Cow::into_owned),
        DescriptorValue::Path => Some(request.path.to_owned()),
        DescriptorValue::Method => Some(request.method.to_owned()),
        DescriptorValue::Client => asking.account.map(ToString::to_string),
        DescriptorValue::Address => Some(asking.address.to_canonical().to_string()),
    };
    let mut entries = Vec::with_capacity(descriptor.entries.len());
    for entry in &descriptor.entries {
        entries.push((entry.key.clone(), value(&entry.value)?));
    }
    Some(Described { entries, hits: descriptor.hits })
}

/// Requests, any of which a rule is about; all when there are none.
#[derive(Debug)]
struct Requests(Box<[DenialMatcher]>);

impl Requests {
    fn compile(requests: &[RequestMatch], policy: &ServicePolicyName) -> Result<Self, BadPattern> {
        let compiled = requests.iter().map(DenialMatcher::compile).collect::<Result<_, _>>();
        compiled.map(Self).map_err(|bad| bad.within(ObjectKey::ServicePolicy(policy.clone())))
    }

    /// Whether an application may take the request for one of them.
    fn may_be(&self, request: &RequestView<'_>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let spelling = Spelling::of(request.path, PathKind::of(request.path));
        self.0.iter().any(|it| it.may_mean(request, &spelling))
    }
}

/// The part of a `RateLimit` that a service decides, in place of a rule's name.
const GLOBAL: &str = "global";

#[cfg(test)]
mod tests;
