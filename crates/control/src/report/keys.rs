//! Reports failed JWKS fetches as warnings about the JWT policies that name the endpoint, and the issuers without keys.

use leno_model::{KeySource, ObjectKey, RequestCheck, ServicePolicy, TokenRequirement};
use leno_registry::{DocumentLocation, Warning};

use super::Report;
use crate::keys::issuer_sources;
use crate::status::MissingKeysStatus;

impl Report<'_> {
    /// Returns the number of JWKS endpoints, and of those without keys.
    pub(crate) fn key_sources(&self) -> (usize, usize) {
        let without_keys = self.mesh.key_sources().filter(|source| !self.mesh.has_keys(source));
        (self.mesh.key_sources().count(), without_keys.count())
    }

    /// Returns a warning for each issuer with a failed last JWKS fetch.
    pub(super) fn missing_key_warnings(&self) -> impl Iterator<Item = Warning> {
        let policies = self.mesh.service_policies();
        policies.flat_map(|policy| {
            let sources = issuer_sources(policy);
            sources.filter_map(|(issuer_index, source)| {
                self.missing_key_warning(policy, issuer_index, source)
            })
        })
    }

    /// Returns the issuers of a policy without keys, because no fetch has succeeded so far. While the first fetch is in
    /// progress, an issuer is not listed. `None` if no issuer is listed, or the policy checks no tokens.
    pub(super) fn missing_keys(&self, policy: &ServicePolicy) -> Option<MissingKeysStatus> {
        let Some(RequestCheck::Tokens(rule)) = policy.rule.server_check() else { return None };
        let missing_sources = issuer_sources(policy)
            .filter(|(_, source)| !self.mesh.has_keys(source))
            .filter_map(|(index, source)| {
                let (issuer, reason) =
                    (rule.issuers.get(index)?, self.jwks_fetches.failure_cause(source)?);
                Some(format!("{} ({source} {reason})", issuer.issuer))
            });
        let issuers: Vec<String> = missing_sources.collect();
        let requests = match (&rule.required, issuers.len() == rule.issuers.len()) {
            (TokenRequirement::Always, true) => "every request",
            (TokenRequirement::Matching(_), true) => "every request that has or requires a token",
            (TokenRequirement::Never, true) => "every request with a token",
            (_, false) => "every request with a token of these issuers",
        };
        (!issuers.is_empty()).then(|| MissingKeysStatus { requests: requests.to_owned(), issuers })
    }

    fn missing_key_warning(
        &self,
        policy: &ServicePolicy,
        issuer_index: usize,
        source: &KeySource,
    ) -> Option<Warning> {
        let reason = self.jwks_fetches.failure_cause(source)?;
        let (field, hint) = match source {
            KeySource::File(_) => ("file", "write the issuer's JWK set to this file"),
            KeySource::Server(_) => {
                ("url", "make sure that this URL returns a JWK set to the control plane")
            }
        };
        let consequence = match self.mesh.has_keys(source) {
            true => "the previous keys remain in force",
            false => "no token of this issuer is accepted",
        };
        let key = ObjectKey::ServicePolicy(policy.name.clone());
        Some(Warning {
            location: DocumentLocation::for_object(
                &key,
                format!("spec.issuers[{issuer_index}].jwks.{field}"),
            ),
            problem: format!("{source} {reason}; {consequence}"),
            hint: hint.to_owned(),
        })
    }
}
