//! The field `targetRefs` of policies: the services that a policy applies to (Gateway API, GEP-713).

use crate::definition::{Definition, LABEL, ManifestBuilder, TextProblem, TextSchema};
use crate::name::{Name, ServiceName};
use crate::route::RouteParent;

/// The `spec` of a policy with targets: `targetRefs`, and the fields of its rule.
#[derive(Debug, Definition)]
pub struct TargetedRule<R: Definition> {
    /// Services of the policy's namespace that the policy applies to.
    #[field(list(1, MAX_TARGETS), required, check = check_different_targets)]
    target_refs: Vec<ServiceTarget>,
    /// The rule.
    #[field(include)]
    rule: R,
}

impl<R: Definition> TargetedRule<R> {
    /// Returns the targets, which are different services or ports, and the rule.
    #[must_use]
    pub fn into_targets_and_rule(self) -> (Vec<RouteParent>, R) {
        (self.target_refs.into_iter().map(|ServiceTarget(target)| target).collect(), self.rule)
    }
}

/// Rejects a second target that is the same service or port.
fn check_different_targets(
    targets: Vec<ServiceTarget>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<ServiceTarget>> {
    let (problem, hint) = ("is listed twice", "remove one of the two");
    builder
        .check_unique("targetRefs", &targets, ServiceTarget::clone, problem, hint)
        .then_some(targets)
}

/// One of the `targetRefs`: a service, and optionally one of its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServiceTarget(RouteParent);

/// A target as written in manifests.
#[derive(Definition)]
#[definition(builds = ServiceTarget)]
struct TargetFields {
    /// API group of the target, which is empty for the core group.
    #[field(text = CORE_GROUP, absent = "the core group")]
    #[expect(dead_code, reason = "the field has one value")]
    group: Option<String>,
    /// Kind of the target.
    #[field(absent = "`Service`")]
    #[expect(dead_code, reason = "the field has one value")]
    kind: Option<TargetKind>,
    /// Name of the service.
    #[field(text = LABEL)]
    name: Name,
    /// Namespace of the service, which is the policy's.
    #[field(text = LABEL, absent = "the policy's namespace")]
    namespace: Option<Name>,
    /// Port of the service.
    #[field(integer(1, 65535), absent = "every port")]
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
        if let Some(other) = self.namespace.filter(|other| *other != namespace) {
            builder.reject_field(
                "namespace",
                format!("\"{other}\" is not the policy's namespace, {namespace}"),
                "put the policy into the namespace of the service",
            );
            return None;
        }
        let service = ServiceName { namespace, name: self.name };
        Some(ServiceTarget(RouteParent { service, port: self.port }))
    }
}

/// The core API group, by its name in manifests or in documents.
const CORE_GROUP: TextSchema = TextSchema::new(4, |text| match text {
    "" | "core" => Ok(()),
    _ => Err(TextProblem::new("is not the group of Service", "use \"\"")),
})
.with_pattern("^(core)?$");
/// Maximum number of targets per policy.
const MAX_TARGETS: usize = 16;
