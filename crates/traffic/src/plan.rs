//! Plans: a snapshot with all its rules compiled, built once when the snapshot arrives.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{Endpoint, PortView, Protocol, ServiceName, ServiceView, Snapshot};

use crate::authorize::InboundAccess;
use crate::pattern::BadPattern;
use crate::route::PortRoutes;

/// A snapshot, compiled. What did not change since the previous one is taken over from it.
#[derive(Debug)]
pub struct Plans {
    /// What it was compiled from.
    pub snapshot: Arc<Snapshot>,
    /// Who may come in.
    pub access: Arc<InboundAccess>,
    /// Where requests go, by the service that they are for.
    pub services: BTreeMap<ServiceName, Arc<ServicePlan>>,
}

impl Plans {
    /// Compiles a snapshot.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; nothing is built then.
    pub fn build(snapshot: Arc<Snapshot>, previous: Option<&Self>) -> Result<Self, BadPattern> {
        let mut services = BTreeMap::new();
        for (name, view) in &snapshot.services {
            let old = previous.and_then(|plans| plans.services.get(name));
            services.insert(name.clone(), ServicePlan::build(view, old)?);
        }
        Ok(Self { access: build_access(&snapshot, previous)?, snapshot, services })
    }

    /// The plan of a service, if the snapshot knows it.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServicePlan>> {
        self.services.get(name)
    }
}

/// A service, compiled.
#[derive(Debug)]
pub struct ServicePlan {
    /// What it was compiled from.
    pub view: Arc<ServiceView>,
    /// Its ports, by number.
    pub ports: BTreeMap<u16, PortPlan>,
}

impl ServicePlan {
    /// Compiles a service; the plan before it is kept as it is when nothing changed.
    fn build(view: &Arc<ServiceView>, old: Option<&Arc<Self>>) -> Result<Arc<Self>, BadPattern> {
        if let Some(old) = old
            && (Arc::ptr_eq(view, &old.view) || *view == old.view)
        {
            return Ok(Arc::clone(old));
        }
        let mut ports = BTreeMap::new();
        for (number, port) in &view.ports {
            let old_view = old.and_then(|plan| plan.view.ports.get(number));
            let old_plan = old.and_then(|plan| plan.ports.get(number));
            ports.insert(*number, PortPlan::build(port, old_view.zip(old_plan))?);
        }
        let view = Arc::clone(view);
        Ok(Arc::new(Self { view, ports }))
    }
}

/// One port of a service, compiled.
#[derive(Debug)]
pub struct PortPlan {
    /// Where its requests go.
    pub routes: Arc<PortRoutes>,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where it can be reached, ordered by id.
    pub endpoints: Arc<[Arc<Endpoint>]>,
}

impl PortPlan {
    /// Endpoints come and go more often than rules: the rules are compiled only when they changed.
    fn build(view: &PortView, old: Option<(&PortView, &Self)>) -> Result<Self, BadPattern> {
        let same_rules =
            |before: &PortView| before.routed == view.routed && before.rules == view.rules;
        let routes = match old {
            Some((before, plan)) if same_rules(before) => Arc::clone(&plan.routes),
            _ => Arc::new(PortRoutes::compile(view)?),
        };
        Ok(Self { routes, protocol: view.protocol, endpoints: view.endpoints.as_slice().into() })
    }
}

/// Permits stay current as long as the access rules stay the same.
fn build_access(
    snapshot: &Snapshot,
    previous: Option<&Plans>,
) -> Result<Arc<InboundAccess>, BadPattern> {
    let plan = &snapshot.plan;
    match previous {
        Some(Plans { snapshot: old, access, .. })
            if old.plan.access == plan.access
                && old.plan.trust_domain == plan.trust_domain
                && old.plan.revoked == plan.revoked =>
        {
            Ok(Arc::clone(access))
        }
        _ => {
            let access = InboundAccess::compile(&plan.access, &plan.trust_domain)?;
            Ok(Arc::new(access.without(plan.revoked.clone())))
        }
    }
}

#[cfg(test)]
mod tests;
