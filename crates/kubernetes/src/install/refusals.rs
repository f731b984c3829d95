//! What the API server refuses by itself, or warns of, before anything of ours reads it: rules of SMI, OSM
//! and FSM that can mean nothing.
//!
//! That holds in namespaces of the mesh alone: of others it is none of ours.
//!
//! Clusters before 1.30 have no such policies: there the status of the object says it, as everywhere.
//! What another mesh in the cluster may mean something by is warned of and not refused.

use serde_json::{Value, json};

use super::admission::expression;
use super::{cluster_metadata, kinds};
use crate::words::MEMBERSHIPS;

/// A check of one kind of rule.
struct Check {
    kind: &'static str,
    /// In CEL: what holds for objects that are right.
    holds: &'static str,
    /// The field, what is wrong with it, and what to do.
    message: &'static str,
}

/// The policies, and where they hold.
pub(super) fn objects() -> Vec<Value> {
    let of = |name: &str, action: &str, checks: &[Check]| {
        let mut all = vec![policy(name, checks)];
        all.extend(bindings(name, action));
        all
    };
    [of("leno-refuses", "Deny", REFUSED), of("leno-warns", "Warn", WARNED)].concat()
}

/// Whether an object is one that clusters before 1.30 do not have.
pub(super) fn is_kind(kind: &str) -> bool {
    kind == POLICY || kind == BINDING
}

fn policy(name: &str, checks: &[Check]) -> Value {
    let rule = |groups: &[&str], resources: &[&str]| {
        json!({
            "apiGroups": groups,
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": resources,
        })
    };
    let validation = |check: &Check| {
        let Check { kind, holds, message } = check;
        json!({
            "expression": format!("object.kind != '{kind}' || {UNCHANGED} || ({holds})"),
            "message": message,
            "reason": "Invalid",
        })
    };
    json!({
        "apiVersion": VERSION,
        "kind": POLICY,
        "metadata": cluster_metadata(name),
        "spec": {
            // What cannot be judged here the status of the object tells.
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [
                rule(&["access.smi-spec.io"], &["traffictargets"]),
                rule(&[kinds::OSM, kinds::FSM], &["ingressbackends", "egresses"]),
            ]},
            "validations": checks.iter().map(validation).collect::<Vec<_>>(),
        },
    })
}

/// One for each label by which a namespace is in the mesh: a selector has no word for one of several. A namespace
/// that has two of them is matched once, so that nobody is warned twice.
fn bindings(name: &str, action: &str) -> impl Iterator<Item = Value> {
    ["", "-osm", "-fsm"].into_iter().enumerate().map(move |(index, suffix)| {
        let (before, label) = (MEMBERSHIPS.iter().take(index), MEMBERSHIPS[index]);
        let mut namespaces = vec![expression(label, "Exists", &[])];
        namespaces.extend(before.map(|label| expression(label, "DoesNotExist", &[])));
        json!({
            "apiVersion": VERSION,
            "kind": BINDING,
            "metadata": cluster_metadata(&format!("{name}{suffix}")),
            "spec": {
                "policyName": name,
                "validationActions": [action],
                "matchResources": {"namespaceSelector": {"matchExpressions": namespaces}},
            },
        })
    })
}

/// What every mesh that reads these kinds refuses.
const REFUSED: &[Check] = &[
    Check {
        kind: "TrafficTarget",
        holds: "!has(object.spec.destination) || !has(object.spec.destination.namespace) || \
                object.spec.destination.namespace == request.namespace",
        message: "spec.destination.namespace: is not the namespace of the TrafficTarget; put it into \
                  the namespace of its destination",
    },
    Check {
        kind: "IngressBackend",
        holds: "has(object.spec.sources) && size(object.spec.sources) > 0",
        message: "spec.sources: is empty, so that nobody could come in; name a Service, an IPRange, or \
                  with `protocol: https` an AuthenticatedPrincipal",
    },
    Check {
        kind: "IngressBackend",
        holds: "has(object.spec.backends) && size(object.spec.backends) > 0",
        message: "spec.backends: is empty, so that nothing is opened; name a Service and a port",
    },
];

/// What opens nothing here, or everything, although its author meant something.
const WARNED: &[Check] = &[
    Check {
        kind: "IngressBackend",
        holds: "!has(object.spec.backends) || !has(object.spec.sources) || \
                object.spec.sources.exists(it, it.kind in ['Service', 'IPRange']) || \
                object.spec.backends.all(it, has(it.port) && has(it.port.protocol) && \
                it.port.protocol.lowerAscii() == 'https')",
        message: "spec.sources: let nobody in: who comes without TLS is known by the address alone; add \
                  a source of the kind Service or IPRange, or use `protocol: https`. Leno opens nothing",
    },
    Check {
        kind: "Egress",
        holds: "(has(object.spec.hosts) && size(object.spec.hosts) > 0) || \
                (has(object.spec.ipAddresses) && size(object.spec.ipAddresses) > 0)",
        message: "spec: says neither `hosts` nor `ipAddresses`, so that everything is meant; name the \
                  hosts, or write `ipAddresses: [0.0.0.0/0]`. Leno opens nothing",
    },
    Check {
        kind: "Egress",
        holds: "!has(object.spec.ports) || !has(object.spec.hosts) || size(object.spec.hosts) == 0 || \
                (has(object.spec.ipAddresses) && size(object.spec.ipAddresses) > 0) || \
                object.spec.ports.all(it, has(it.protocol) && \
                it.protocol.lowerAscii() in ['http', 'https'])",
        message: "spec.ports: a port of the protocol tcp is not bounded by `hosts`; add `ipAddresses`, or \
                  use `protocol: http` or `https`. Leno opens nothing",
    },
];

/// In CEL: what was wrong before this policy was there may be labelled, and lose its finalizers.
const UNCHANGED: &str = "(oldObject != null && has(object.spec) && has(oldObject.spec) && \
                         object.spec == oldObject.spec)";
const VERSION: &str = "admissionregistration.k8s.io/v1";
const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";
