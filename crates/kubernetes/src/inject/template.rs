//! Injects sidecars into the pod templates of manifests: Deployments, Jobs and other kinds, and lists of
//! objects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    InjectError, InjectionOutcome, InjectionSettings, InjectionTrigger, NamespaceMetadata,
    SkipReason, inject_sidecar,
};

/// A manifest after injection, and the outcome for each of its objects.
#[derive(Debug, Clone, PartialEq)]
pub struct InjectedManifest {
    /// The manifest, with sidecars.
    pub manifest: Value,
    /// For each object with a pod template: its kind and name, and the outcome.
    pub outcomes: Vec<(String, TemplateOutcome)>,
}

/// The outcome of injection for one object with a pod template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateOutcome {
    /// The pods of the object have sidecars, with these warnings.
    Injected(Vec<String>),
    /// The object is unchanged.
    Skipped(SkipReason),
}

/// Returns the namespaces of the manifest's objects with pod templates; an empty string for an object without
/// a namespace.
#[must_use]
pub fn namespaces_of(manifest: &Value) -> BTreeSet<String> {
    if is_list(manifest) {
        return list_items(manifest).flat_map(namespaces_of).collect();
    }
    pod_template(manifest).map(|_| namespace_of(manifest).to_owned()).into_iter().collect()
}

/// Injects sidecars into the pod templates of a manifest; other objects are unchanged. `namespaces` has the
/// known namespaces by name; the empty name stands for objects without a namespace.
///
/// # Errors
/// The errors of [`inject_sidecar`](super::inject_sidecar), with the kind and name of the object.
pub fn inject_manifest(
    mut manifest: Value,
    namespaces: &BTreeMap<String, NamespaceMetadata>,
    settings: &InjectionSettings,
) -> Result<InjectedManifest, (String, InjectError)> {
    let mut outcomes = Vec::new();
    inject_object(&mut manifest, (namespaces, settings), &mut outcomes)?;
    Ok(InjectedManifest { manifest, outcomes })
}

/// Injects sidecars into an object with a pod template, or into each item of a list, and adds the outcomes to
/// `outcomes`. Other objects are unchanged.
fn inject_object(
    object: &mut Value,
    context: (&BTreeMap<String, NamespaceMetadata>, &InjectionSettings),
    outcomes: &mut Vec<(String, TemplateOutcome)>,
) -> Result<(), (String, InjectError)> {
    if is_list(object) {
        for item in object["items"].as_array_mut().into_iter().flatten() {
            inject_object(item, context, outcomes)?;
        }
        return Ok(());
    }
    let Some((kind, pointer)) = pod_template(object) else { return Ok(()) };
    let (namespaces, settings) = context;
    let trigger = InjectionTrigger::User(namespaces.get(namespace_of(object)));
    let object_name = format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default());
    let template =
        object.pointer_mut(pointer).filter(|template| template["spec"]["containers"].is_array());
    let Some(template) = template else {
        return Err((object_name.clone(), InjectError::NoPod(object_name)));
    };
    match inject_sidecar(template, trigger, settings)
        .map_err(|error| (object_name.clone(), error))?
    {
        InjectionOutcome::Injected { pod, warnings } => {
            *template = pod;
            outcomes.push((object_name, TemplateOutcome::Injected(warnings)));
        }
        InjectionOutcome::Skipped(reason) => {
            outcomes.push((object_name, TemplateOutcome::Skipped(reason)))
        }
    }
    Ok(())
}

fn is_list(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
}

fn list_items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// Returns an object's kind and the JSON pointer to its pod template; `None` for kinds without one.
fn pod_template(object: &Value) -> Option<(&'static str, &'static str)> {
    TEMPLATE_PATHS.iter().copied().find(|(kind, _)| object["kind"] == *kind)
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// The JSON pointer to the pod template, by kind.
const TEMPLATE_PATHS: &[(&str, &str)] = &[
    ("Pod", ""),
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];
