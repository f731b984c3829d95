//! Warns about `Retry` policies: missing accounts and services, other policies that take precedence, and policies without
//! effect.

use leno_model::{NoEffect, NoEffectCause, RetryPolicy, ServiceName, describe_tcp_only_services};

use super::service_policy::no_effect_hint;
use super::suggestion::{existing_objects, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector};

impl ObjectIndex<'_> {
    /// Warns about a source account without workloads, a missing service, a service for which another policy takes
    /// precedence, services and routes with which the policy has no effect, and zero retries.
    pub(super) fn lint_retry(&self, policy: &RetryPolicy, collector: &mut WarningCollector<'_>) {
        let source = &policy.source;
        if !self.accounts.contains(source) {
            collector.add_warning(
                "spec.source.name".to_owned(),
                format!("no workload runs under the account {source}"),
                suggest_name(
                    &source.namespace,
                    &source.name,
                    existing_objects!(self.accounts.iter()),
                    "add a Workload with this account",
                ),
            );
        }
        for (index, service) in policy.services.iter().enumerate() {
            let field = format!("spec.destinations[{index}]");
            let reference =
                ServiceReference { service, port: None, field: field.clone(), name_field: "name" };
            self.lint_reference(&reference, collector);
            // The policy with the smallest `precedence()` applies: the oldest, then the first by name.
            let takes_precedence = |other: &&&RetryPolicy| {
                other.source == *source
                    && other.precedence() < policy.precedence()
                    && other.services.contains(service)
            };
            if let Some(preceding_policy) = self
                .retry_policies
                .iter()
                .filter(takes_precedence)
                .min_by_key(|other| other.precedence())
            {
                collector.add_warning(
                    field,
                    format!(
                        "has no effect: Retry {} applies to the same requests",
                        preceding_policy.name
                    ),
                    "remove one of the two",
                );
            }
        }
        let is_tcp_only = |service: &ServiceName| self.is_opaque_at_each_port(service);
        if policy.services.iter().all(is_tcp_only) {
            collector.add_warning(
                "spec.destinations".to_owned(),
                format!("has no effect: {}", describe_tcp_only_services(&policy.services)),
                "name a service with a port that speaks HTTP, or remove the policy",
            );
        }
        // `NoRequests` means TCP-only ports, which the previous warning reports.
        if let Some(no_effect) = self.find_no_effect(policy)
            && !matches!(no_effect.cause, NoEffectCause::NoRequests(..))
        {
            let index = policy.services.iter().position(|service| *service == no_effect.service);
            let field = format!("spec.destinations[{}]", index.unwrap_or_default());
            collector.add_warning(
                field,
                format!("has no effect: {no_effect}"),
                no_effect_hint(&no_effect),
            );
        }
        let max_retries = policy.rule.attempts;
        if max_retries == 0 {
            collector.add_warning(
                "spec.retryPolicy.numRetries".to_owned(),
                "is 0: no request is retried, including requests that were never sent".to_owned(),
                "raise it, or remove the policy to retry requests that were never sent",
            );
        }
    }

    /// Returns the reason that a policy has no effect on any port of its services; `None` if it has an effect on one of
    /// the ports. A reason about routes takes precedence over a reason about the protocol of a port.
    fn find_no_effect(&self, policy: &RetryPolicy) -> Option<NoEffect> {
        let services = policy.services.iter().filter_map(|service| self.services.get(service));
        let ports = services
            .flat_map(|service| service.ports.iter().map(|port| (&service.name, port.port)));
        NoEffect::detect_for_retry_policy(ports, self)
    }
}
