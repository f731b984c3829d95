//! Compiled retry policies for a workload's requests.

use leno_model::{Change, ObjectKey, PolicyName, WorkloadConfig};

use super::*;

fn workload_config(mesh: &Mesh, name: &str) -> Arc<WorkloadConfig> {
    let workload = mesh.workload(&workload_name(name)).unwrap();
    compile_config(mesh, workload, &Default::default(), &mut ServiceConfigCache::default())
        .snapshot
        .config
        .clone()
}

/// Applies a policy for requests of productpage to these services.
fn apply_retry(
    mesh: &mut Mesh,
    name: &str,
    services: &[&str],
    attempts: u8,
) -> crate::mesh::AffectedSet {
    let services: Vec<String> = services
        .iter()
        .map(|name| format!("{{kind: Service, name: {name}, namespace: bookinfo}}"))
        .collect();
    let yaml = format!(
        "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Retry\n\
         metadata: {{name: {name}, namespace: bookinfo}}\n\
         spec: {{source: {{kind: ServiceAccount, name: productpage, namespace: bookinfo}}, \
         destinations: [{}], retryPolicy: {{retryOn: 5xx, numRetries: {attempts}}}}}",
        services.join(", ")
    );
    mesh.apply(Change::Upsert(crate::fixture::parse_objects(&yaml).pop().unwrap()))
}

/// Returns the services, each with its policy and attempts.
fn service_attempts(mesh: &Mesh, name: &str) -> Vec<String> {
    let config = workload_config(mesh, name);
    let attempts_of_services = config.retries.iter().map(|(service, retry)| {
        format!("{} {} {}", service.name, retry.policy.name, retry.rule.attempts)
    });
    attempts_of_services.collect()
}

#[test]
fn the_first_policy_of_the_clients_account_decides() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let affected_set = apply_retry(&mut mesh, "z", &["reviews", "details"], 2);
    assert_eq!(affected_set.workloads, [workload_name("productpage-1")].into());
    apply_retry(&mut mesh, "a", &["reviews"], 5);
    assert_eq!(service_attempts(&mesh, "productpage-1"), ["details z 2", "reviews a 5"]);
    assert_eq!(service_attempts(&mesh, "details-1"), [""; 0]);
    let affected_set = apply_retry(&mut mesh, "a", &["ratings"], 5);
    assert_eq!(affected_set.workloads, [workload_name("productpage-1")].into());
    assert_eq!(
        service_attempts(&mesh, "productpage-1"),
        ["details z 2", "ratings a 5", "reviews z 2"]
    );
    // An equal policy is not a change.
    assert_eq!(apply_retry(&mut mesh, "a", &["ratings"], 5).workloads, [].into());
    mesh.apply(Change::Remove(ObjectKey::Retry(PolicyName::new("bookinfo", "z").unwrap())));
    assert_eq!(service_attempts(&mesh, "productpage-1"), ["ratings a 5"]);
}
