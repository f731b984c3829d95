//! Certificates of external principals: requests and outcomes.

use std::sync::Arc;

use leno_model::{ExternalPrincipalId, MeshConfig, Object, SecretName, TrustDomain};
use leno_registry::Warning;

use super::{ObjectOrigin, ObjectStore};
use crate::external_principals::{
    CertificateDecisions, CertificateOutcomes, DesiredCertificate, DesiredCertificates,
    OwnerObject, SecretPermissions, validate_requests,
};
use crate::source::status_record::StatusRecord;

/// The requests for certificates of external principals, and their outcomes.
#[derive(Default)]
pub(super) struct ExternalPrincipals {
    grants: SecretPermissions,
    judged: CertificateDecisions,
    outcomes: Arc<CertificateOutcomes>,
    /// True if the result may have changed.
    unsettled: bool,
}

impl ExternalPrincipals {
    pub(super) fn mark_changed(&mut self) {
        self.unsettled = true;
    }

    /// Returns the outcome of an object's request, if known.
    fn outcome(&self, uid: &str) -> Option<Result<(), String>> {
        let refused = self.judged.refused.get(uid).cloned().map(Err);
        refused.or_else(|| self.outcomes.get(uid).cloned())
    }
}

impl ObjectStore {
    /// Sets the namespaces in which this control plane may write Secrets.
    pub(crate) fn set_grants(&mut self, grants: SecretPermissions) {
        self.external_principals.grants = grants;
        self.external_principals.mark_changed();
    }

    /// Updates the outcomes of requested certificates.
    pub(crate) fn take_outcomes(&mut self, outcomes: Arc<CertificateOutcomes>) {
        self.external_principals.outcomes = outcomes;
        self.statuses_stale = true;
    }

    /// Returns the requested certificates, and the objects with Secrets that stay unchanged.
    pub(crate) fn external_principals(&self) -> &DesiredCertificates {
        &self.external_principals.judged.desired
    }

    /// Validates the requests when all kinds have been listed.
    pub(crate) fn settle_external_principals(&mut self) {
        if !self.is_settled() || !std::mem::take(&mut self.external_principals.unsettled) {
            return;
        }
        let config = self.mesh_config();
        let domain =
            config.map_or_else(|| MeshConfig::default().trust_domain, |it| it.trust_domain);
        let all = self.wished_by_certs(&domain).chain(self.wished_by_settings(&domain)).collect();
        let mut judged = validate_requests(all, &self.external_principals.grants, &domain);
        let unread = self.unread_gateways().filter_map(|origin| self.records.get(origin));
        judged.desired.left.extend(unread.map(|record| record.target.uid.clone()));
        self.statuses_stale |= judged != self.external_principals.judged;
        self.external_principals.judged = judged;
    }

    fn wished_by_certs(&self, domain: &TrustDomain) -> impl Iterator<Item = DesiredCertificate> {
        self.custom_resources.in_force_all().filter_map(|(origin, object, created)| {
            let Object::AccessCert(cert) = object else { return None };
            let namespace = cert.name.namespace.clone();
            let secret = SecretName { namespace, name: cert.secret.clone() };
            Some(DesiredCertificate {
                owner: owner_of(self.records.get(origin)?),
                id: ExternalPrincipalId { trust_domain: domain.clone(), secret },
                names: cert.subjects.clone(),
                lifetime: None,
                created,
            })
        })
    }

    fn wished_by_settings(&self, domain: &TrustDomain) -> impl Iterator<Item = DesiredCertificate> {
        self.ingress_gateways().filter_map(|(origin, wanted, created)| {
            Some(DesiredCertificate {
                owner: owner_of(self.records.get(origin)?),
                id: ExternalPrincipalId {
                    trust_domain: domain.clone(),
                    secret: wanted.secret.clone(),
                },
                names: wanted.names.clone(),
                lifetime: Some(wanted.lifetime),
                created,
            })
        })
    }

    /// Returns the outcome of an object's request; `None` while it is unknown.
    pub(super) fn external_principal_outcome(
        &self,
        record: &StatusRecord,
    ) -> Option<Result<(), String>> {
        self.external_principals.outcome(&record.target.uid)
    }

    /// Returns the reason that another mesh's settings have no certificate for their ingress gateway, if they
    /// request one.
    pub(super) fn missing_certificate(&self, origin: &ObjectOrigin) -> Option<Warning> {
        let record = self.records.get(origin)?;
        let reason = self.external_principals.outcome(&record.target.uid)?.err()?;
        let (field, rest) =
            reason.split_once(": ").unwrap_or(("spec.certificate.ingressGateway", &reason));
        let (problem, hint) = rest.rsplit_once("; ").unwrap_or((rest, "see the log"));
        Some(Warning {
            at: super::mesh_config::place_of_field(origin, field),
            problem: problem.to_owned(),
            hint: hint.to_owned(),
        })
    }
}

fn owner_of(record: &StatusRecord) -> OwnerObject {
    OwnerObject {
        api_version: record.resource.api_version.clone(),
        kind: record.target.kind,
        namespace: record.target.namespace.clone(),
        name: record.target.name.clone(),
        uid: record.target.uid.clone(),
    }
}
