//! Reads `leno.dev/v1alpha1` `MeshConfig`.

use std::collections::BTreeMap;

use leno_model::{Admission, Egress, MeshConfig, Name, Plaintext, TrafficMode, TrustDomain};

use super::sight;
use super::smi::read_account;
use crate::field::{Field, Fields};

pub(super) fn read(spec: &Field<'_>) -> Option<MeshConfig> {
    const KNOWN: &[&str] = &[
        "trustDomain",
        "trafficMode",
        "revoked",
        "namespaces",
        "tracing",
        "accessLog",
        "metrics",
        "egress",
        "plaintext",
    ];
    let fields = spec.fields(KNOWN)?;
    let mut config = MeshConfig::default();
    if let Some(field) = fields.find("trustDomain") {
        config.trust_domain = TrustDomain(field.name()?);
    }
    let admission = admission(&fields)?;
    config.mode = admission.mode.unwrap_or(config.mode);
    config.plaintext = admission.plaintext.unwrap_or(config.plaintext);
    if let Some(field) = fields.find("egress") {
        config.egress = field.word(&words(Egress::ALL, Egress::as_str))?;
    }
    config.revoked.extend(fields.each("revoked", REVOKED_MAX, read_account));
    if let Some(field) = fields.find("namespaces") {
        config.namespaces = namespaces(field)?;
    }
    config.sight = sight::read(&fields)?;
    Some(config)
}

/// What a mesh, a namespace or a workload says about who is let in.
pub(super) fn admission(fields: &Fields<'_>) -> Option<Admission> {
    let mode = match fields.find("trafficMode") {
        Some(field) => Some(field.word(&words(TrafficMode::ALL, TrafficMode::as_str))?),
        None => None,
    };
    let plaintext = match fields.find("plaintext") {
        Some(field) => Some(field.word(&words(Plaintext::ALL, Plaintext::as_str))?),
        None => None,
    };
    Some(Admission { mode, plaintext })
}

fn words<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> Vec<(&'static str, T)> {
    all.iter().map(|meaning| (word(*meaning), *meaning)).collect()
}

fn namespaces(field: &Field<'_>) -> Option<BTreeMap<Name, Admission>> {
    let mut namespaces = BTreeMap::new();
    for element in field.list(NAMESPACES_MAX)? {
        let Some(fields) = element.fields(&["name", "trafficMode", "plaintext"]) else { continue };
        let name = fields.require("name").and_then(Field::label);
        let admission = admission(&fields);
        let (Some(name), Some(admission)) = (name, admission) else { continue };
        if admission == Admission::default() {
            element.refuse("says nothing about the namespace", "add `trafficMode` or `plaintext`");
        }
        if namespaces.insert(name, admission).is_some() {
            element.refuse("is about a namespace that is listed already", "remove one of the two");
        }
    }
    Some(namespaces)
}

/// The most accounts that can be revoked: each sidecar is told of all of them.
const REVOKED_MAX: usize = 1024;
/// The most namespaces that differ from the mesh.
const NAMESPACES_MAX: usize = 1024;
