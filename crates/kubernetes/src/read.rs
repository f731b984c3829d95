//! Converts Kubernetes objects into objects of the mesh, one object at a time and without I/O. The source
//! applies the results to its object store.

mod api_server;
mod custom;
mod foreign;
mod image;
mod mesh_parts;
mod namespace;
mod pod;
mod service;
mod sidecar_settings;
mod slice;
mod unknown_annotations;
mod zone_preference;

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use leno_model::{AdmissionSettings, DefaultPolicy, MtlsMode, Protocol};
use leno_registry::{DocumentLocation, RejectedDocument, port_name_protocol};

pub(crate) use api_server::{endpoint_addresses, service_addresses};
pub(crate) use custom::{CustomResource, incomplete_grant, read_custom};
pub use foreign::{
    ALWAYS_ON_FIELDS, EXCLUSION_LISTS, INGRESS_GATEWAY, UNSUPPORTED_FIELDS, enables_feature,
};
pub(crate) use foreign::{FOREIGN_CONFIG_KINDS, ForeignMeshSettings, IngressCertificateRequest};
pub(crate) use mesh_parts::is_service_parent;
pub use namespace::{NamespaceReading, read_namespace};
pub use pod::{MeshPod, pod_addresses, read_pod, with_target_ports};
pub use service::{ServiceReading, read_service};
pub use sidecar_settings::SidecarSettings;
pub(crate) use slice::listed_service;
pub use slice::read_endpoints;
pub(crate) use zone_preference::{
    ZONE_LABEL, ZonePreference, preference_name, preference_rule, read_zone_preference,
    service_of_preference,
};

use crate::well_known::{DEFAULT_POLICY, MTLS};

/// The annotations of a namespace or pod that control the admission of clients, each parsed by itself. This is
/// unrelated to Kubernetes admission control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionReading {
    /// The default policy, or the reason that it is invalid.
    pub default_policy: Result<Option<DefaultPolicy>, Box<RejectedDocument>>,
    /// The mutual TLS mode, or the reason that it is invalid.
    pub mtls: Result<Option<MtlsMode>, Box<RejectedDocument>>,
}

impl AdmissionReading {
    /// The value for an object without these annotations: both are unset.
    pub(crate) const NONE: Self = Self { default_policy: Ok(None), mtls: Ok(None) };

    fn from_annotations(meta: &ObjectMeta, kind: &str) -> Self {
        Self {
            default_policy: read_choice(
                meta,
                kind,
                DEFAULT_POLICY,
                "default policy",
                "deny",
                DefaultPolicy::ALL,
                |policy| policy.as_str(),
            ),
            mtls: read_choice(
                meta,
                kind,
                MTLS,
                "mutual TLS mode",
                "strict",
                MtlsMode::ALL,
                |mode| mode.as_str(),
            ),
        }
    }

    /// Returns the values in force and the rejected ones. A rejected value is replaced by the previous value,
    /// which may be unset. Without `previous` it is replaced by the strictest value: the annotation may have
    /// been the only restriction.
    pub(crate) fn resolve_with(
        self,
        previous: Option<AdmissionSettings>,
    ) -> (AdmissionSettings, Vec<RejectedDocument>) {
        let mut rejected = Vec::new();
        let default_policy = self.default_policy.unwrap_or_else(|reason| {
            rejected.push(*reason);
            previous.map_or(Some(DefaultPolicy::Deny), |previous| previous.default_policy)
        });
        let mtls = self.mtls.unwrap_or_else(|reason| {
            rejected.push(*reason);
            previous.map_or(Some(MtlsMode::Strict), |previous| previous.mtls)
        });
        (AdmissionSettings { default_policy, mtls }, rejected)
    }
}

/// Reads an annotation with one of several values. Returns `None` without the annotation. `noun` and
/// `strictest` are for the message of a rejection.
fn read_choice<T: Copy>(
    meta: &ObjectMeta,
    kind: &str,
    annotation: &str,
    noun: &str,
    strictest: &str,
    choices: &[T],
    as_text: impl Fn(T) -> &'static str,
) -> Result<Option<T>, Box<RejectedDocument>> {
    let Some(text) = meta.annotations.as_ref().and_then(|annotations| annotations.get(annotation))
    else {
        return Ok(None);
    };
    let parsed = choices.iter().copied().find(|choice| as_text(*choice) == text);
    parsed.map(Some).ok_or_else(|| {
        let quoted: String = text.chars().take(MAX_QUOTED_CHARACTERS).collect();
        let names: Vec<&str> = choices.iter().map(|choice| as_text(*choice)).collect();
        Box::new(RejectedDocument {
            location: field_location(meta, kind, &format!("metadata.annotations[{annotation:?}]")),
            problem: format!(
                "{quoted:?} is not a {noun}; the last valid annotations stay in force, or \
                 {strictest} if there are none"
            ),
            hint: format!("use {}, or remove it", names.join(" or ")),
        })
    })
}

/// Returns the protocol that the prefix of a port name declares, such as `grpc` in `grpc-api`. In a cluster,
/// the prefix alone (`grpc`) is a valid port name as well.
fn named_protocol(name: &str) -> Option<Protocol> {
    port_name_protocol(&format!("{name}-"))
}

/// Returns the creation time, in Unix seconds.
fn creation_time(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// Returns the location of a field in an object.
fn field_location(meta: &ObjectMeta, kind: &str, field: &str) -> DocumentLocation {
    DocumentLocation {
        kind: Some(kind.to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        field: Some(field.to_owned()),
        ..DocumentLocation::default()
    }
}

/// Returns true if a port's protocol in Kubernetes notation is TCP.
fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

/// Returns true if labels match a selector; an empty selector matches no labels.
pub(crate) fn matches_selector(
    selector: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The maximum length of a quoted value in a message.
const MAX_QUOTED_CHARACTERS: usize = 80;
