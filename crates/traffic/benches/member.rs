//! The configuration of a mesh workload with inbound authorization only, for the benchmarks.

use leno_model::{Access, ServiceAccount, TrustDomain, WorkloadConfig, WorkloadName};

pub(crate) fn proxy_config(access: Access) -> WorkloadConfig {
    WorkloadConfig::identity_only(
        WorkloadName::new("shop", "carts-1").expect("the name is valid"),
        ServiceAccount::new("shop", "carts").expect("the name is valid"),
        TrustDomain::new("cluster.local").expect("the name is valid"),
        [127, 0, 0, 1].into(),
        access,
    )
}
