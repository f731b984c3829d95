//! Pods in what makes them: Deployments, Jobs, lists of anything.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Demand, InjectError, NamespaceFacts, Outcome, Settings, Skip, inject};

/// What became of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Injected {
    /// The manifest, with sidecars.
    pub manifest: Value,
    /// For each object that makes pods: which it is, and what was done.
    pub told: Vec<(String, Told)>,
}

/// What was done to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Its pods have sidecars; with what will not work as one may think.
    Injected(Vec<String>),
    /// They stay as they are.
    Skipped(Skip),
}

/// The namespaces that what makes pods is written for: an empty text where it names none.
#[must_use]
pub fn namespaces_of(manifest: &Value) -> BTreeSet<String> {
    if is_list(manifest) {
        return items(manifest).flat_map(namespaces_of).collect();
    }
    pods_of(manifest).map(|_| namespace_of(manifest).to_owned()).into_iter().collect()
}

/// Puts sidecars into the pods of a manifest; what makes none stays as it is. Of the namespaces those count that
/// are given, each under the text that a manifest has for it.
///
/// # Errors
/// As [`inject`], with the object.
pub fn inject_manifest(
    mut manifest: Value,
    namespaces: &BTreeMap<String, NamespaceFacts>,
    settings: &Settings,
) -> Result<Injected, (String, InjectError)> {
    let mut told = Vec::new();
    visit(&mut manifest, (namespaces, settings), &mut told)?;
    Ok(Injected { manifest, told })
}

fn visit(
    object: &mut Value,
    known: (&BTreeMap<String, NamespaceFacts>, &Settings),
    told: &mut Vec<(String, Told)>,
) -> Result<(), (String, InjectError)> {
    if is_list(object) {
        for item in object["items"].as_array_mut().into_iter().flatten() {
            visit(item, known, told)?;
        }
        return Ok(());
    }
    let Some((kind, pointer)) = pods_of(object) else { return Ok(()) };
    let (namespaces, settings) = known;
    let demand = Demand::Person(namespaces.get(namespace_of(object)));
    let name = format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default());
    let template = object.pointer_mut(pointer).filter(|it| it["spec"]["containers"].is_array());
    let Some(template) = template else {
        return Err((name.clone(), InjectError::NoPod(name)));
    };
    match inject(template, demand, settings).map_err(|error| (name.clone(), error))? {
        Outcome::Injected { pod, warnings } => {
            *template = pod;
            told.push((name, Told::Injected(warnings)));
        }
        Outcome::Skipped(skip) => told.push((name, Told::Skipped(skip))),
    }
    Ok(())
}

fn is_list(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// The kind of an object that makes pods, and where in it they stand.
fn pods_of(object: &Value) -> Option<(&'static str, &'static str)> {
    TEMPLATES.iter().copied().find(|(kind, _)| object["kind"] == *kind)
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Where the pods of a kind stand.
const TEMPLATES: &[(&str, &str)] = &[
    ("Pod", ""),
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];
