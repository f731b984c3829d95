//! A workload of the mesh that nothing is said about but who may come in.

use std::collections::BTreeMap;

use leno_model::{Access, ServiceAccount, TrustDomain, WorkloadName, WorkloadPlan};

pub(crate) fn plan(access: Access) -> WorkloadPlan {
    WorkloadPlan {
        workload: WorkloadName::new("shop", "carts-1").expect("a name"),
        account: ServiceAccount::new("shop", "carts").expect("a name"),
        trust_domain: TrustDomain::new("cluster.local").expect("a name"),
        address: [127, 0, 0, 1].into(),
        ports: Vec::new(),
        served: BTreeMap::new(),
        doors: Vec::new(),
        access,
        revoked: Default::default(),
        edition: 0,
        caller: Default::default(),
        lanes: BTreeMap::new(),
        limits: BTreeMap::new(),
        inbound: Default::default(),
        sight: Default::default(),
        egress: Default::default(),
        plaintext: Default::default(),
        gateway: None,
        openings: Vec::new(),
        outlets: Vec::new(),
        guards: Default::default(),
        retries: Default::default(),
    }
}
