//! A mesh workload with inbound authorization only.

use leno_model::{Access, ServiceAccount, TrustDomain, WorkloadConfig, WorkloadName};

pub(crate) fn proxy_config(access: Access) -> WorkloadConfig {
    WorkloadConfig::identity_only(
        WorkloadName::new("shop", "carts-1").expect("a name"),
        ServiceAccount::new("shop", "carts").expect("a name"),
        TrustDomain::new("cluster.local").expect("a name"),
        [127, 0, 0, 1].into(),
        access,
    )
}
