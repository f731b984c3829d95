//! Collects the requests for certificates of external principals from AccessCerts and settings of other meshes,
//! validates them, and finds their outcomes for statuses.

use std::sync::Arc;

use leno_model::{ExternalPrincipalId, MeshConfig, Object, SecretName, TrustDomain};
use leno_registry::Warning;

use super::{ObjectOrigin, ObjectStore};
use crate::external_principals::{
    CertificateDecisions, CertificateOutcomes, DesiredCertificates, ExternalCertificateRequest,
    OwnerObject, SecretPermissions, validate_requests,
};
use crate::source::status_record::StatusRecord;

/// The decisions about requests for certificates of external principals, and the outcomes of accepted requests.
#[derive(Default)]
pub(super) struct ExternalPrincipals {
    secret_permissions: SecretPermissions,
    /// The result of the last validation.
    decisions: CertificateDecisions,
    /// The outcomes of accepted requests, which the reconciler publishes.
    outcomes: Arc<CertificateOutcomes>,
    /// True if the requests must be validated again.
    is_stale: bool,
}

impl ExternalPrincipals {
    /// Causes a validation of all requests after the current events.
    pub(super) fn mark_changed(&mut self) {
        self.is_stale = true;
    }

    /// Returns the outcome of the request of the object with this UID: its rejection, or the outcome of the
    /// reconciler. `None` if the object has no request, or its outcome is not known yet.
    fn outcome(&self, uid: &str) -> Option<Result<(), String>> {
        let rejected = self.decisions.rejected.get(uid).cloned().map(Err);
        rejected.or_else(|| self.outcomes.get(uid).cloned())
    }
}

impl ObjectStore {
    /// Sets the namespaces in which this control plane may write Secrets.
    pub(crate) fn set_secret_permissions(&mut self, secret_permissions: SecretPermissions) {
        self.external_principals.secret_permissions = secret_permissions;
        self.external_principals.mark_changed();
    }

    /// Updates the outcomes of accepted requests.
    pub(crate) fn set_outcomes(&mut self, outcomes: Arc<CertificateOutcomes>) {
        self.external_principals.outcomes = outcomes;
        self.statuses_stale = true;
    }

    /// Returns the accepted requests, and the objects with Secrets that stay unchanged.
    pub(crate) fn external_principals(&self) -> &DesiredCertificates {
        &self.external_principals.decisions.desired
    }

    /// Validates the requests if they have changed and all kinds have been listed. Earlier, an older request with
    /// the same Secret may be missing.
    pub(crate) fn validate_external_principals(&mut self) {
        if !self.is_synced() || !std::mem::take(&mut self.external_principals.is_stale) {
            return;
        }
        let config = self.mesh_config();
        let trust_domain =
            config.map_or_else(|| MeshConfig::default().trust_domain, |config| config.trust_domain);
        let requests = self
            .access_cert_requests(&trust_domain)
            .chain(self.foreign_settings_requests(&trust_domain))
            .collect();
        let mut decisions = validate_requests(
            requests,
            &self.external_principals.secret_permissions,
            &trust_domain,
        );
        // The newest version of these objects cannot be read, so their Secrets must not be deleted.
        let invalid_requests =
            self.invalid_gateway_requests().filter_map(|origin| self.records.get(origin));
        decisions
            .desired
            .unchanged_owners
            .extend(invalid_requests.map(|record| record.target.uid.clone()));
        self.statuses_stale |= decisions != self.external_principals.decisions;
        self.external_principals.decisions = decisions;
    }

    /// Returns the requests of AccessCerts, which have the default lifetime.
    fn access_cert_requests(
        &self,
        trust_domain: &TrustDomain,
    ) -> impl Iterator<Item = ExternalCertificateRequest> {
        self.custom_resources.all_in_force().filter_map(|(origin, object, created)| {
            let Object::AccessCert(cert) = object else { return None };
            let namespace = cert.name.namespace.clone();
            let secret = SecretName { namespace, name: cert.secret.clone() };
            Some(ExternalCertificateRequest {
                owner: owner_object(self.records.get(origin)?),
                id: ExternalPrincipalId { trust_domain: trust_domain.clone(), secret },
                names: cert.subjects.clone(),
                lifetime: None,
                created,
            })
        })
    }

    /// Returns the requests of the settings of other meshes, for their ingress gateways.
    fn foreign_settings_requests(
        &self,
        trust_domain: &TrustDomain,
    ) -> impl Iterator<Item = ExternalCertificateRequest> {
        self.ingress_gateways().filter_map(|(origin, request, created)| {
            Some(ExternalCertificateRequest {
                owner: owner_object(self.records.get(origin)?),
                id: ExternalPrincipalId {
                    trust_domain: trust_domain.clone(),
                    secret: request.secret.clone(),
                },
                names: request.names.clone(),
                lifetime: Some(request.lifetime),
                created,
            })
        })
    }

    /// Returns the outcome of an object's request; `None` if it has no request, or the outcome is not known yet.
    pub(super) fn external_principal_outcome(
        &self,
        record: &StatusRecord,
    ) -> Option<Result<(), String>> {
        self.external_principals.outcome(&record.target.uid)
    }

    /// Returns a warning if another mesh's settings request a certificate for their ingress gateway and have none.
    pub(super) fn missing_certificate_warning(&self, origin: &ObjectOrigin) -> Option<Warning> {
        let record = self.records.get(origin)?;
        let reason = self.external_principals.outcome(&record.target.uid)?.err()?;
        // Errors have the form `FIELD: PROBLEM; HINT`, but those of the API server may lack the hint.
        let (field, message) =
            reason.split_once(": ").unwrap_or(("spec.certificate.ingressGateway", &reason));
        let (problem, hint) = message.rsplit_once("; ").unwrap_or((message, "see the log"));
        Some(Warning {
            location: super::mesh_config::settings_location(origin, field),
            problem: problem.to_owned(),
            hint: hint.to_owned(),
        })
    }
}

fn owner_object(record: &StatusRecord) -> OwnerObject {
    OwnerObject {
        api_version: record.resource.api_version.clone(),
        kind: record.target.kind,
        namespace: record.target.namespace.clone(),
        name: record.target.name.clone(),
        uid: record.target.uid.clone(),
    }
}
