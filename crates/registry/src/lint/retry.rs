//! Warnings about retry policies: references, and policies that take precedence.

use leno_model::{NoEffect, NoEffectCause, RetryPolicy, ServiceName, no_requests};

use super::service_policy::idle_hint;
use super::suggestion::{known, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector};

impl ObjectIndex<'_> {
    pub(super) fn lint_retry(&self, policy: &RetryPolicy, lint: &mut WarningCollector<'_>) {
        let source = &policy.source;
        if !self.accounts.contains(source) {
            lint.add_warning(
                "spec.source.name".to_owned(),
                format!("no workload runs under the account {source}"),
                suggest_name(
                    &source.namespace,
                    &source.name,
                    known!(self.accounts.iter()),
                    "add a Workload with this account",
                ),
            );
        }
        for (index, service) in policy.services.iter().enumerate() {
            let field = format!("spec.destinations[{index}]");
            let reference =
                ServiceReference { service, port: None, field: field.clone(), name_field: "name" };
            self.lint_reference(&reference, lint);
            let before = |it: &&&RetryPolicy| {
                it.source == *source
                    && it.precedence() < policy.precedence()
                    && it.services.contains(service)
            };
            if let Some(first) = self.retries.iter().filter(before).min_by_key(|it| it.precedence())
            {
                lint.add_warning(
                    field,
                    format!("has no effect: Retry {} applies to the same requests", first.name),
                    "remove one of the two",
                );
            }
        }
        let is_opaque = |service: &ServiceName| self.is_opaque_at_each_port(service);
        if policy.services.iter().all(is_opaque) {
            lint.add_warning(
                "spec.destinations".to_owned(),
                format!("has no effect: {}", no_requests(&policy.services)),
                "name a service with a port that speaks HTTP, or remove the policy",
            );
        }
        if let Some(idle) = self.idle_retry(policy)
            && !matches!(idle.cause, NoEffectCause::NoRequests(..))
        {
            let index = policy.services.iter().position(|it| *it == idle.service);
            let field = format!("spec.destinations[{}]", index.unwrap_or_default());
            lint.add_warning(field, format!("has no effect: {idle}"), idle_hint(&idle));
        }
        if policy.rule.attempts == 0 {
            lint.add_warning(
                "spec.retryPolicy.numRetries".to_owned(),
                "is 0: no request is retried, including requests that were never sent".to_owned(),
                "raise it, or remove the policy to retry requests that were never sent",
            );
        }
    }

    /// Returns the reason that a policy has no effect on any port of its services; a reason about routes
    /// precedes one about ports.
    fn idle_retry(&self, policy: &RetryPolicy) -> Option<NoEffect> {
        let services = policy.services.iter().filter_map(|it| self.services.get(it));
        let ports = services.flat_map(|it| it.ports.iter().map(|port| (&it.name, port.port)));
        NoEffect::of_all_retries(ports, self)
    }
}
