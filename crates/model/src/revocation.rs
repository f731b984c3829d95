//! Revocations of accounts and single workloads, which are no longer members of the mesh despite valid
//! certificates.

use std::collections::BTreeSet;

use crate::definition::{Definition, LABEL, ManifestBuilder};
use crate::identity::ServiceAccount;
use crate::instance::{Instance, Uid};
use crate::name::{Name, WorkloadName};

/// A revoked workload of an account that is not revoked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevokedWorkload {
    /// The name of the workload.
    pub workload: WorkloadName,
    /// The UID of the revoked pod; every pod and proxy of this name when absent.
    pub uid: Option<Uid>,
}

impl RevokedWorkload {
    /// True if the revocation covers a certificate of this instance. A certificate without an instance (`None`) is
    /// always covered, because it may belong to the revoked pod.
    fn covers_instance(&self, instance: Option<&Instance>) -> bool {
        match (&self.uid, instance) {
            (None, _) | (_, None) => true,
            (Some(uid), Some(Instance::Pod(certified_uid))) => uid == certified_uid,
            (Some(_), Some(Instance::Registration(_))) => false,
        }
    }
}

/// An element of the field `revoked`.
pub(crate) enum Revocation {
    /// A revoked account.
    Account(ServiceAccount),
    /// A revoked workload.
    Workload(RevokedWorkload),
}

/// The fields of a revocation.
#[derive(Definition)]
#[definition(builds = Revocation)]
struct RevocationFields {
    /// Kind of the object: a service account with all of its workloads, or one workload or pod.
    kind: RevokedKind,
    /// Name of the object.
    name: Name,
    /// Namespace of the object.
    #[field(text = LABEL)]
    namespace: Name,
    /// UID of a pod. It limits the entry to this pod, without others of the same name.
    #[field(absent = "every pod of this name")]
    uid: Option<Uid>,
}

/// The kind of a revoked object.
#[derive(Definition)]
enum RevokedKind {
    ServiceAccount,
    Workload,
    Pod,
}

impl RevocationFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<Revocation> {
        let Self { kind, name, namespace, uid } = self;
        match kind {
            RevokedKind::ServiceAccount if uid.is_some() => {
                builder.reject_field("uid", "is not supported for a ServiceAccount", "remove it");
                None
            }
            RevokedKind::ServiceAccount => {
                Some(Revocation::Account(ServiceAccount { namespace, name }))
            }
            RevokedKind::Workload | RevokedKind::Pod => {
                let workload = WorkloadName { namespace, name };
                Some(Revocation::Workload(RevokedWorkload { workload, uid }))
            }
        }
    }
}

/// The revoked accounts and workloads of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Revocations {
    /// Revoked accounts.
    pub accounts: BTreeSet<ServiceAccount>,
    /// Revoked workloads of accounts that are not revoked.
    pub workloads: BTreeSet<RevokedWorkload>,
}

impl Revocations {
    /// True if a certificate of this instance of a workload is revoked; `None` is a certificate without an instance.
    #[must_use]
    pub fn covers_workload(&self, workload: &WorkloadName, instance: Option<&Instance>) -> bool {
        // `None` is ordered before every UID.
        let range_start = RevokedWorkload { workload: workload.clone(), uid: None };
        let mut revocations = self
            .workloads
            .range(range_start..)
            .take_while(|revocation| revocation.workload == *workload);
        revocations.any(|revocation| revocation.covers_instance(instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_uid_covers_its_pod_and_certificates_without_instance() {
        let name = |text: &str| text.parse::<WorkloadName>().unwrap();
        let uid = |text: &str| Uid::new(text).unwrap();
        let revoked = |workload, uid| RevokedWorkload { workload: name(workload), uid };
        let workloads = [revoked("shop/web-1", None), revoked("shop/web-2", Some(uid("a")))];
        let revocations = Revocations { workloads: workloads.into(), ..Revocations::default() };
        let pod = |text: &str| Some(Instance::Pod(uid(text)));
        let registration = Some(Instance::Registration(7));
        for (workload, instance, covered) in [
            ("shop/web-1", pod("x"), true),
            ("shop/web-1", registration.clone(), true),
            ("shop/web-2", pod("a"), true),
            ("shop/web-2", pod("b"), false),
            ("shop/web-2", registration, false),
            ("shop/web-2", None, true),
            ("shop/web-3", None, false),
            ("shop/web-0", None, false),
        ] {
            let is_covered = revocations.covers_workload(&name(workload), instance.as_ref());
            assert_eq!(is_covered, covered, "{workload} {instance:?}");
        }
    }
}
