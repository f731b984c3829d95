//! Builds the ValidatingAdmissionPolicies by which the API server itself rejects meaningless rules of SMI, OSM
//! and FSM, or warns about them.
//!
//! The policies apply only in namespaces of the mesh.
//!
//! Clusters before 1.30 lack such policies. In every cluster, the status of the object also reports the errors.
//! Rules that may have a meaning for another mesh in the cluster cause a warning, not a rejection.

use serde_json::{Value, json};

use super::admission::selector_requirement;
use super::{cluster_metadata, kinds};
use crate::well_known::MEMBERSHIPS;

/// A check of one kind of rule.
struct RuleCheck {
    kind: &'static str,
    /// A CEL expression that is true for valid objects.
    expression: &'static str,
    /// The message for an object that fails the check: the field, the problem, and the solution.
    message: &'static str,
}

/// Returns the policies and their bindings.
pub(super) fn policy_objects() -> Vec<Value> {
    let policy_with_bindings = |name: &str, action: &str, checks: &[RuleCheck]| {
        let mut objects = vec![admission_policy(name, checks)];
        objects.extend(policy_bindings(name, action));
        objects
    };
    [
        policy_with_bindings("leno-rejects", "Deny", REJECTED_RULES),
        policy_with_bindings("leno-warns", "Warn", WARNING_RULES),
    ]
    .concat()
}

/// Returns true for the kinds of admission policies, which clusters before 1.30 lack.
pub(super) fn is_policy_kind(kind: &str) -> bool {
    kind == POLICY_KIND || kind == BINDING_KIND
}

/// Returns the policy with these checks. Each check applies only to objects of its kind, and only if the spec
/// is new or has changed.
fn admission_policy(name: &str, checks: &[RuleCheck]) -> Value {
    let rule = |groups: &[&str], resources: &[&str]| {
        json!({
            "apiGroups": groups,
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": resources,
        })
    };
    let validation = |check: &RuleCheck| {
        let RuleCheck { kind, expression, message } = check;
        json!({
            "expression": format!("object.kind != '{kind}' || {UNCHANGED_EXPRESSION} || ({expression})"),
            "message": message,
            "reason": "Invalid",
        })
    };
    json!({
        "apiVersion": ADMISSION_VERSION,
        "kind": POLICY_KIND,
        "metadata": cluster_metadata(name),
        "spec": {
            // Errors that cannot be evaluated here are reported in the status of the object.
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [
                rule(&["access.smi-spec.io"], &["traffictargets"]),
                rule(&[kinds::OSM_GROUP, kinds::FSM_GROUP], &["ingressbackends", "egresses"]),
            ]},
            "validations": checks.iter().map(validation).collect::<Vec<_>>(),
        },
    })
}

/// Returns a binding for each membership label of namespaces: a selector cannot express "any of several
/// labels". The bindings are disjoint, so that a namespace with two labels causes one warning only.
fn policy_bindings(name: &str, action: &str) -> impl Iterator<Item = Value> {
    // The suffixes are in the order of `MEMBERSHIPS`.
    ["", "-osm", "-fsm"].into_iter().enumerate().map(move |(index, suffix)| {
        let (preceding_labels, label) = (MEMBERSHIPS.iter().take(index), MEMBERSHIPS[index]);
        let mut namespace_requirements = vec![selector_requirement(label, "Exists", &[])];
        namespace_requirements.extend(preceding_labels.map(|label| selector_requirement(label, "DoesNotExist", &[])));
        json!({
            "apiVersion": ADMISSION_VERSION,
            "kind": BINDING_KIND,
            "metadata": cluster_metadata(&format!("{name}{suffix}")),
            "spec": {
                "policyName": name,
                "validationActions": [action],
                "matchResources": {"namespaceSelector": {"matchExpressions": namespace_requirements}},
            },
        })
    })
}

/// Rules that every mesh with these kinds rejects.
const REJECTED_RULES: &[RuleCheck] = &[
    RuleCheck {
        kind: "TrafficTarget",
        expression: "!has(object.spec.destination) || !has(object.spec.destination.namespace) || \
                object.spec.destination.namespace == request.namespace",
        message: "spec.destination.namespace: is not the namespace of the TrafficTarget; put it into \
                  the namespace of its destination",
    },
    RuleCheck {
        kind: "IngressBackend",
        expression: "has(object.spec.sources) && size(object.spec.sources) > 0",
        message: "spec.sources: is empty, which allows no client; name a Service, an IPRange, or \
                  with `protocol: https` an AuthenticatedPrincipal",
    },
    RuleCheck {
        kind: "IngressBackend",
        expression: "has(object.spec.backends) && size(object.spec.backends) > 0",
        message: "spec.backends: is empty, which opens no port; name a Service and a port",
    },
];

/// Rules that Leno ignores, although their author intended an effect.
const WARNING_RULES: &[RuleCheck] = &[
    RuleCheck {
        kind: "IngressBackend",
        expression: "!has(object.spec.backends) || !has(object.spec.sources) || \
                object.spec.sources.exists(it, it.kind in ['Service', 'IPRange']) || \
                object.spec.backends.all(it, has(it.port) && has(it.port.protocol) && \
                it.port.protocol.lowerAscii() == 'https')",
        message: "spec.sources: allow no client: clients without TLS are identified by address \
                  only; add a source of the kind Service or IPRange, or use `protocol: https`. \
                  Leno rejects the policy",
    },
    RuleCheck {
        kind: "Egress",
        expression: "(has(object.spec.hosts) && size(object.spec.hosts) > 0) || \
                (has(object.spec.ipAddresses) && size(object.spec.ipAddresses) > 0)",
        message: "spec: has neither `hosts` nor `ipAddresses`, and would match every destination; \
                  name the hosts, or write `ipAddresses: [0.0.0.0/0]`. Leno rejects the policy",
    },
    RuleCheck {
        kind: "Egress",
        expression: "!has(object.spec.ports) || !has(object.spec.hosts) || size(object.spec.hosts) == 0 || \
                (has(object.spec.ipAddresses) && size(object.spec.ipAddresses) > 0) || \
                object.spec.ports.all(it, has(it.protocol) && \
                it.protocol.lowerAscii() in ['http', 'https'])",
        message: "spec.ports: a port of the protocol tcp is not restricted by `hosts`; add \
                  `ipAddresses`, or use `protocol: http` or `https`. Leno rejects the policy",
    },
];

/// A CEL expression that is true for an update that does not change the spec: objects that were invalid before
/// the policy existed can still be labeled, and lose their finalizers.
const UNCHANGED_EXPRESSION: &str = "(oldObject != null && has(object.spec) && has(oldObject.spec) && \
                         object.spec == oldObject.spec)";
const ADMISSION_VERSION: &str = "admissionregistration.k8s.io/v1";
const POLICY_KIND: &str = "ValidatingAdmissionPolicy";
const BINDING_KIND: &str = "ValidatingAdmissionPolicyBinding";
