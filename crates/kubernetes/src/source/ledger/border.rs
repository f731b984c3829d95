//! Pods without a sidecar that come in from outside the mesh: those behind services that a policy
//! opens ports to.

use std::collections::BTreeSet;

use leno_model::{IngressPolicy, IngressSource, Object, ObjectKey, ServiceName, Workload};

use super::{Ledger, Origin};
use crate::read::selects;

impl Ledger {
    /// These custom resources may be others than before.
    pub(super) fn touch_customs(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        let mut border = false;
        for key in keys {
            border |= matches!(key, ObjectKey::Ingress(_));
            self.dirty.insert(key);
        }
        if border {
            self.touch_let_in();
        }
    }

    /// Whether a workload is behind a service that a port is open to.
    pub(super) fn is_let_in(&self, workload: &Workload) -> bool {
        let mut near = self.services.near(workload).filter(|it| self.let_in.contains(&it.name));
        near.any(|service| selects(&service.selector, &workload.labels))
    }

    /// Why what opens ports opens one of them to nobody: another does, or nobody is there.
    pub(super) fn shut(&self, origin: &Origin) -> Option<String> {
        let Some(Object::Ingress(policy)) = self.customs.said(origin) else { return None };
        for backend in &policy.backends {
            let same = |other: &IngressPolicy| {
                let mut theirs = other.backends.iter();
                other.name.namespace == policy.name.namespace
                    && other.name < policy.name
                    && theirs.any(|it| (&it.service, it.port) == (&backend.service, backend.port))
            };
            let others = self.customs.all().filter_map(opening);
            if let Some(first) = others.filter(|it| same(it)).min_by_key(|it| &it.name) {
                return Some(format!(
                    "spec.backends: the {} opens port {} of {}; put the sources of both into one",
                    first.name, backend.port, backend.service
                ));
            }
        }
        policy.sources.iter().find_map(|source| match source {
            IngressSource::Service(service) if self.services.get(service).is_none() => {
                Some(format!("endpoints not found for service {service}"))
            }
            IngressSource::Service(_) | IngressSource::Range(_) | IngressSource::Principal(..) => {
                None
            }
        })
    }

    fn touch_let_in(&mut self) {
        // Another of them may be in force, or in its way, now.
        self.unjudged = true;
        let sources = self.customs.all().filter_map(opening).flat_map(|policy| &policy.sources);
        let services = sources.filter_map(|source| match source {
            IngressSource::Service(service) => Some(service.clone()),
            IngressSource::Range(_) | IngressSource::Principal(..) => None,
        });
        let now: BTreeSet<ServiceName> = services.collect();
        let before = std::mem::replace(&mut self.let_in, now);
        let changed: Vec<ServiceName> =
            before.symmetric_difference(&self.let_in).cloned().collect();
        for name in changed {
            let service = self.services.get(&name).cloned();
            self.touch_selected(&name, &[service.as_ref()]);
        }
    }
}

fn opening(object: &Object) -> Option<&IngressPolicy> {
    match object {
        Object::Ingress(policy) => Some(policy),
        _ => None,
    }
}
