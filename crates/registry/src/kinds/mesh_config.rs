//! Reads the `leno.dev/v1alpha1` `MeshConfig` kind.

use std::collections::BTreeMap;

use leno_model::{
    AdmissionSettings, DefaultPolicy, Egress, MeshConfig, MtlsMode, Name, RevokedWorkload,
    SecurityFloor, ServiceAccount, TrustDomain, Uid, WorkloadName, repository_of,
};

use super::observability;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};
use crate::suggest::join_with_or;

/// Reads the `spec` of a `MeshConfig`.
pub(super) fn read(spec: &Field<'_>) -> Option<MeshConfig> {
    const KNOWN_FIELDS: &[&str] = &[
        "trustDomain",
        "defaultPolicy",
        "revoked",
        "namespaces",
        "tracing",
        "accessLog",
        "metrics",
        "egress",
        "apiServerEgress",
        "mtls",
        "floor",
    ];
    let fields = spec.read_fields(KNOWN_FIELDS)?;
    let mut config = MeshConfig::default();
    if let Some(field) = fields.find("trustDomain") {
        config.trust_domain = TrustDomain(field.read_name()?);
    }
    if let Some(field) = fields.find("floor") {
        config.floor = Box::new(read_floor(field)?);
    }
    let admission = read_admission(&fields)?;
    // The mesh-wide setting may be below the floor only if namespaces are exempt: it applies to these namespaces, and the
    // floor replaces it in all others.
    if config.floor.except_namespaces.is_empty() {
        reject_below_floor(
            &fields,
            &config.floor,
            admission,
            "list the namespaces that need it in spec.floor.exceptNamespaces",
        );
    }
    config.default_policy = admission.default_policy.unwrap_or(config.default_policy);
    config.mtls = admission.mtls.unwrap_or(config.mtls);
    if let Some(field) = fields.find("egress") {
        config.egress = field.read_choice(&named_choices(Egress::ALL, Egress::as_str))?;
    }
    if let Some(field) = fields.find("apiServerEgress") {
        config.api_server_egress =
            field.read_choice(&named_choices(Egress::ALL, Egress::as_str))?;
    }
    for revoked in fields.read_each("revoked", MAX_REVOKED_WORKLOADS, read_revoked) {
        match revoked {
            RevokedEntry::Account(account) => drop(config.revoked.insert(account)),
            RevokedEntry::Workload(workload) => drop(config.revoked_workloads.insert(workload)),
        }
    }
    if let Some(field) = fields.find("namespaces") {
        config.namespaces = read_namespaces(field, &config.floor)?;
    }
    config.observability = Box::new(observability::read(&fields)?);
    Some(config)
}

/// An element of the field `revoked`.
enum RevokedEntry {
    Account(ServiceAccount),
    Workload(RevokedWorkload),
}

/// Reads an element of the field `revoked`: an account, or one workload. Sidecars reject its certificates.
fn read_revoked(field: &Field<'_>) -> Option<RevokedEntry> {
    let kinds = [("ServiceAccount", false), ("Workload", true), ("Pod", true)];
    let fields = field.read_fields(&["kind", "name", "namespace", "uid"])?;
    // True for a workload, false for an account.
    let is_workload = fields.require("kind").and_then(|kind| kind.read_choice(&kinds));
    let name = fields.require("name").and_then(Field::read_name);
    let namespace = fields.require("namespace").and_then(Field::read_label);
    if !is_workload? {
        fields.reject_unsupported("uid", "is not supported for a ServiceAccount", "remove it");
        return Some(RevokedEntry::Account(ServiceAccount { namespace: namespace?, name: name? }));
    }
    let uid = match fields.find("uid") {
        None => None,
        Some(field) => Some(read_uid(field)?),
    };
    let workload = WorkloadName { namespace: namespace?, name: name? };
    Some(RevokedEntry::Workload(RevokedWorkload { workload, uid }))
}

/// Reads the UID of a pod.
fn read_uid(field: &Field<'_>) -> Option<Uid> {
    let uid = Uid::new(field.read_text()?).ok();
    if uid.is_none() {
        field.reject(
            "is not the UID of a pod",
            "use `metadata.uid` of the pod: letters, digits and `-`",
        );
    }
    uid
}

/// Reads the inbound authorization settings of a mesh, namespace or workload.
pub(super) fn read_admission(fields: &MapFields<'_>) -> Option<AdmissionSettings> {
    let default_policy = match fields.find("defaultPolicy") {
        Some(field) => {
            Some(field.read_choice(&named_choices(DefaultPolicy::ALL, DefaultPolicy::as_str))?)
        }
        None => None,
    };
    let mtls = match fields.find("mtls") {
        Some(field) => Some(field.read_choice(&named_choices(MtlsMode::ALL, MtlsMode::as_str))?),
        None => None,
    };
    Some(AdmissionSettings { default_policy, mtls })
}

/// Returns the choices for [`Field::read_choice`]: each value with its name.
fn named_choices<T: Copy>(
    values: &[T],
    name: impl Fn(T) -> &'static str,
) -> Vec<(&'static str, T)> {
    values.iter().map(|value| (name(*value), *value)).collect()
}

/// Reads the settings of namespaces. A setting below the `floor` is rejected, unless the namespace is exempt from the
/// floor.
fn read_namespaces(
    field: &Field<'_>,
    floor: &SecurityFloor,
) -> Option<BTreeMap<Name, AdmissionSettings>> {
    let mut namespaces = BTreeMap::new();
    for element in field.read_list(MAX_NAMESPACES)? {
        let Some(fields) = element.read_fields(&["name", "defaultPolicy", "mtls"]) else {
            continue;
        };
        let name = fields.require("name").and_then(Field::read_label);
        let admission = read_admission(&fields);
        let (Some(name), Some(admission)) = (name, admission) else { continue };
        if admission == AdmissionSettings::default() {
            element.reject("has no settings", "add `defaultPolicy` or `mtls`");
        }
        if !floor.except_namespaces.contains(&name) {
            let hint = format!("add {name} to spec.floor.exceptNamespaces");
            reject_below_floor(&fields, floor, admission, &hint);
        }
        if namespaces.insert(name, admission).is_some() {
            element.reject("names a namespace that is already listed", "remove one of the two");
        }
    }
    Some(namespaces)
}

/// Reads `floor`, the minimum security settings that namespaces and workloads cannot weaken.
fn read_floor(field: &Field<'_>) -> Option<SecurityFloor> {
    const KNOWN_FIELDS: &[&str] =
        &["defaultPolicy", "mtls", "injection", "exclusions", "sidecarImages", "exceptNamespaces"];
    let fields = field.read_fields(KNOWN_FIELDS)?;
    let default_policy = match fields.find("defaultPolicy") {
        Some(field) => {
            Some(field.read_choice(&named_choices(DefaultPolicy::ALL, DefaultPolicy::as_str))?)
        }
        None => None,
    };
    // Each field accepts only the strict word: the other word would be the same as no minimum.
    let read_requirement = |key: &str, required_word: &'static str| match fields.find(key) {
        Some(field) => field.read_choice(&[(required_word, true)]),
        None => Some(false),
    };
    let floor = SecurityFloor {
        default_policy,
        mtls_strict: read_requirement("mtls", MtlsMode::Strict.as_str())?,
        injection_required: read_requirement("injection", "required")?,
        exclusions_forbidden: read_requirement("exclusions", "forbidden")?,
        sidecar_images: fields
            .read_each("sidecarImages", MAX_FLOOR_IMAGES, read_repository)
            .into_iter()
            .collect(),
        except_namespaces: fields
            .read_each("exceptNamespaces", MAX_NAMESPACES, Field::read_label)
            .into_iter()
            .collect(),
    };
    // An empty list would permit any image, while its author may intend none.
    let is_empty_list =
        |field: &&Field<'_>| matches!(field.value(), NodeValue::List(list) if list.is_empty());
    if let Some(images) = fields.find("sidecarImages").filter(is_empty_list) {
        images.reject("permits no image", "name repositories, or remove it");
    }
    if matches!(field.value(), NodeValue::Map(map) if map.is_empty()) {
        field.reject("sets no floor", format!("remove it, or use {}", join_with_or(KNOWN_FIELDS)));
    }
    Some(floor)
}

/// Reads an image repository without a tag or digest.
fn read_repository(element: &Field<'_>) -> Option<String> {
    let text = element.read_text()?;
    let is_invalid_character = |c: char| c.is_whitespace() || c.is_control();
    let repository = repository_of(text);
    if text.is_empty() || text.len() > MAX_REPOSITORY_BYTES || text.contains(is_invalid_character) {
        element.reject(
            format!("{} is not a repository", element.quoted_value()),
            "use one such as registry.example.org/leno, or registry.example.org/mesh/ for all below",
        );
        return None;
    }
    if repository != text {
        element.reject(
            format!("{} has a tag or a digest", element.quoted_value()),
            format!("use the repository: {repository}"),
        );
        return None;
    }
    Some(text.to_owned())
}

/// Rejects the settings in `fields` that are below the mesh's minimum, `floor`.
fn reject_below_floor(
    fields: &MapFields<'_>,
    floor: &SecurityFloor,
    admission: AdmissionSettings,
    hint: &str,
) {
    for setting in floor.overridden_settings(admission) {
        if let Some(field) = fields.find(setting.field) {
            field.reject(
                format!("is below spec.floor.{}", setting.field),
                format!("use {}, or {hint}", setting.effective),
            );
        }
    }
}

/// Maximum number of revoked accounts and workloads: every sidecar receives all of them.
const MAX_REVOKED_WORKLOADS: usize = 1024;
/// Maximum number of namespaces with their own settings.
const MAX_NAMESPACES: usize = 1024;
/// Maximum number of sidecar image repositories.
const MAX_FLOOR_IMAGES: usize = 64;
/// Maximum length of a repository name.
const MAX_REPOSITORY_BYTES: usize = 255;
