//! The field `targetRefs` of policies: the services that a policy applies to (Gateway API, GEP-713).

use crate::definition::{Definition, ManifestBuilder, TextProblem, TextSchema, check_name};
use crate::name::{Name, ServiceName};
use crate::route::RouteParent;

/// The `spec` of a policy with targets: `targetRefs`, and the fields of its rule.
#[derive(Debug, Definition)]
pub struct TargetedRule<R: Definition> {
    /// Services of the policy's namespace that the policy applies to.
    #[field(include)]
    pub targets: PolicyTargets,
    /// The rule.
    #[field(include)]
    pub rule: R,
}

/// The targets of a policy: services or ports of services, at least one, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyTargets(Vec<RouteParent>);

impl PolicyTargets {
    /// Returns the targets.
    #[must_use]
    pub fn into_targets(self) -> Vec<RouteParent> {
        self.0
    }
}

/// The field of the targets.
#[derive(Definition)]
#[definition(builds = PolicyTargets)]
struct PolicyTargetFields {
    /// Services of the policy's namespace that the policy applies to.
    #[field(list(1, 16), required)]
    target_refs: Vec<ServiceTarget>,
}

impl PolicyTargetFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<PolicyTargets> {
        let targets: Vec<RouteParent> =
            self.target_refs.into_iter().map(|ServiceTarget(target)| target).collect();
        let is_repeated = |index: &usize| targets[..*index].contains(&targets[*index]);
        let repeated: Vec<usize> = (0..targets.len()).filter(is_repeated).collect();
        builder.build_below("targetRefs", |builder| {
            for index in &repeated {
                builder.reject_element(*index, "is listed twice", "remove one of the two");
            }
        });
        repeated.is_empty().then_some(PolicyTargets(targets))
    }
}

/// One of the `targetRefs`: a service, and optionally one of its ports.
struct ServiceTarget(RouteParent);

/// A target as written in manifests.
#[derive(Definition)]
#[definition(builds = ServiceTarget)]
struct TargetFields {
    /// API group of the target: the core group, which is empty.
    #[field(text = CORE_GROUP)]
    #[expect(dead_code, reason = "the field has one value")]
    group: Option<String>,
    /// Kind of the target.
    #[expect(dead_code, reason = "the field has one value")]
    kind: Option<TargetKind>,
    /// Name of the service.
    #[field(text = LABEL)]
    name: String,
    /// Namespace of the service, which is the policy's.
    #[field(text = LABEL)]
    namespace: Option<String>,
    /// Port of the service. Without it, the policy applies to every port.
    #[field(integer(1, 65535))]
    port: Option<u16>,
}

/// The only kind of target.
#[derive(Definition)]
enum TargetKind {
    Service,
}

impl TargetFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<ServiceTarget> {
        let namespace = builder.namespace().clone();
        if let Some(other) = self.namespace.filter(|other| *other != namespace.as_str()) {
            builder.reject_field(
                "namespace",
                format!("{other:?} is not the policy's namespace, {namespace}"),
                "put the policy into the namespace of the service",
            );
            return None;
        }
        let service = ServiceName { namespace, name: Name::new(&self.name).ok()? };
        Some(ServiceTarget(RouteParent { service, port: self.port }))
    }
}

/// The core API group, by its name in manifests or in documents.
const CORE_GROUP: TextSchema = TextSchema {
    max_bytes: 4,
    pattern: Some("^(core)?$"),
    check: |text| match text {
        "" | "core" => Ok(()),
        _ => Err(TextProblem::new("is not the group of Service", "use \"\"")),
    },
};
/// A name without dots, as required for services and namespaces, which are parts of host names.
const LABEL: TextSchema = TextSchema {
    max_bytes: 63,
    pattern: Some("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    check: |text| {
        check_name(text)?;
        match text.contains('.') {
            true => {
                let hint = "use at most 63 lower-case letters, digits or `-`";
                Err(TextProblem::new("has a dot", hint))
            }
            false => Ok(()),
        }
    },
};
