//! Pods in what makes them: Deployments, Jobs, lists of anything.

use serde_json::Value;

use super::{Demand, InjectError, Outcome, Settings, Skip, inject};

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

/// Puts sidecars into the pods of a manifest; what makes none stays as it is.
///
/// # Errors
/// As [`inject`], with the object.
pub fn inject_manifest(
    mut manifest: Value,
    settings: &Settings,
) -> Result<Injected, (String, InjectError)> {
    let mut told = Vec::new();
    visit(&mut manifest, settings, &mut told)?;
    Ok(Injected { manifest, told })
}

fn visit(
    object: &mut Value,
    settings: &Settings,
    told: &mut Vec<(String, Told)>,
) -> Result<(), (String, InjectError)> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind.ends_with("List") {
        for item in object["items"].as_array_mut().into_iter().flatten() {
            visit(item, settings, told)?;
        }
        return Ok(());
    }
    let Some((_, pointer)) = TEMPLATES.iter().find(|(known, _)| *known == kind) else {
        return Ok(());
    };
    let name = format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default());
    let template = object.pointer_mut(pointer).filter(|it| it["spec"]["containers"].is_array());
    let Some(template) = template else {
        return Err((name.clone(), InjectError::NoPod(name)));
    };
    match inject(template, Demand::Person, settings).map_err(|error| (name.clone(), error))? {
        Outcome::Injected { pod, warnings } => {
            *template = pod;
            told.push((name, Told::Injected(warnings)));
        }
        Outcome::Skipped(skip) => told.push((name, Told::Skipped(skip))),
    }
    Ok(())
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
