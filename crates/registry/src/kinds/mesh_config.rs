//! Reads `leno.dev/v1alpha1` `MeshConfig`.

use leno_model::{MeshConfig, TrafficMode, TrustDomain};

use super::smi::read_account;
use crate::field::Field;

pub(super) fn read(spec: &Field<'_>) -> Option<MeshConfig> {
    let fields = spec.fields(&["trustDomain", "trafficMode", "revoked"])?;
    let mut config = MeshConfig::default();
    if let Some(field) = fields.find("trustDomain") {
        config.trust_domain = TrustDomain(field.name()?);
    }
    if let Some(field) = fields.find("trafficMode") {
        config.mode = field.word(&[
            (TrafficMode::Permissive.as_str(), TrafficMode::Permissive),
            (TrafficMode::Strict.as_str(), TrafficMode::Strict),
        ])?;
    }
    config.revoked.extend(fields.each("revoked", REVOKED_MAX, read_account));
    Some(config)
}

/// The most accounts that can be revoked: each sidecar is told of all of them.
const REVOKED_MAX: usize = 1024;
