//! Reads `leno.dev/v1alpha1` `MeshConfig`.

use leno_model::{MeshConfig, TrafficMode, TrustDomain};

use crate::field::Field;

pub(super) fn read(spec: &Field<'_>) -> Option<MeshConfig> {
    let fields = spec.fields(&["trustDomain", "trafficMode"])?;
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
    Some(config)
}
