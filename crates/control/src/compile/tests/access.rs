//! Compiled access rules of workloads under each default policy, and the clients that may call the workloads.

use leno_model::{Change, DefaultPolicy, Object, Workload};

use super::*;

/// Returns the mesh with these default policies: of the mesh, of the namespace and of the workload
/// `reviews-v1-1`.
fn mesh_with_policies(default_policies: [Option<DefaultPolicy>; 3]) -> Mesh {
    let [mesh_policy, namespace_policy, workload_policy] = default_policies;
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(""));
    let mut config = mesh.config().clone();
    config.default_policy = mesh_policy.unwrap();
    if let Some(default_policy) = namespace_policy {
        let admission =
            leno_model::AdmissionSettings { default_policy: Some(default_policy), mtls: None };
        config.namespaces.insert("bookinfo".parse().unwrap(), admission);
    }
    mesh.apply(Change::Upsert(Object::MeshConfig(config)));
    let mut reviews = mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
    reviews.admission.default_policy = workload_policy;
    mesh.apply(Change::Upsert(Object::Workload(reviews)));
    mesh
}

fn client_config(mesh: &Mesh, client: &str, services: &[&str]) -> CompiledConfig {
    let services = services.iter().map(|name| service_name(name)).collect();
    let client: &Workload = mesh.workload(&workload_name(client)).unwrap();
    compile_config(mesh, client, &services, &mut ServiceConfigCache::default())
}

#[test]
fn the_default_policy_of_the_called_workload_decides() {
    use DefaultPolicy::{Allow, Deny, DryRun};
    for (default_policies, expected, is_allowed) in [
        ([Some(Deny), None, None], Deny, false),
        ([Some(Deny), None, Some(DryRun)], DryRun, true),
        ([Some(Deny), Some(DryRun), None], DryRun, true),
        ([Some(Deny), Some(Allow), None], Allow, true),
        ([Some(Allow), Some(Deny), None], Deny, false),
        ([Some(Allow), Some(Deny), Some(Allow)], Allow, true),
        ([Some(Allow), None, Some(Deny)], Deny, false),
        ([Some(DryRun), None, None], DryRun, true),
    ] {
        let mesh = mesh_with_policies(default_policies);
        let config = client_config(&mesh, "reviews-v1-1", &[]).snapshot.config.clone();
        let actual = match (&config.access, config.inbound.is_dry_run) {
            (Access::AllowAll, false) => Allow,
            (Access::AllowListed(rules), false) if rules.len() == 1 => Deny,
            (Access::AllowListed(rules), true) if rules.len() == 1 => DryRun,
            other => panic!("{default_policies:?}: {other:?}"),
        };
        assert_eq!(actual, expected, "{default_policies:?}");
        // No policy names this client.
        let compiled_config = client_config(&mesh, "stranger-1", &["reviews-v1"]);
        let service_config = &compiled_config.snapshot.services[&service_name("reviews-v1")];
        assert_eq!(
            service_config.client_authorization == ClientAuthorization::Allowed,
            is_allowed,
            "{default_policies:?}"
        );
        let endpoint_count =
            service_config.ports.values().map(|port| port.endpoints.len()).sum::<usize>();
        assert_eq!(endpoint_count, usize::from(is_allowed), "{default_policies:?}");
    }
}

#[test]
fn a_service_without_workloads_is_denied_where_its_namespace_denies_by_default() {
    use DefaultPolicy::{Allow, Deny};
    let empty = "---\napiVersion: v1\nkind: Service\n\
                 metadata: {name: empty, namespace: bookinfo}\n\
                 spec: {selector: {app: nobody}, ports: [{port: 80}]}\n";
    for (default_policies, authorization) in [
        ([Some(Deny), None, None], ClientAuthorization::Denied),
        ([Some(Allow), None, Some(Deny)], ClientAuthorization::Allowed),
        ([Some(Deny), Some(Allow), Some(Deny)], ClientAuthorization::Allowed),
    ] {
        let mut mesh = mesh_with_policies(default_policies);
        mesh.apply(Change::Upsert(crate::fixture::parse_objects(empty).pop().unwrap()));
        let compiled_config = client_config(&mesh, "stranger-1", &["empty"]);
        assert_eq!(
            compiled_config.snapshot.services[&service_name("empty")].client_authorization,
            authorization,
            "{default_policies:?}"
        );
    }
}

#[test]
fn an_access_policy_makes_workloads_that_deny_by_default_visible_to_its_clients() {
    use DefaultPolicy::{Allow, Deny, DryRun};
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
                  metadata: {name: guard, namespace: bookinfo}\n\
                  spec: {serviceAccounts: [reviews], deny: [{ports: [1]}], \
                  allow: [{from: [{serviceAccount: \"stran*\"}]}]}\n";
    for (default_policy, rules) in [(Deny, 2), (DryRun, 2), (Allow, 1)] {
        let mut mesh = mesh_with_policies([Some(default_policy), None, None]);
        mesh.apply(Change::Upsert(crate::fixture::parse_objects(policy).pop().unwrap()));
        let config = client_config(&mesh, "reviews-v1-1", &[]).snapshot.config.clone();
        assert_eq!(config.inbound.rules.len(), rules, "{default_policy:?}");
        let config = client_config(&mesh, "details-1", &[]).snapshot.config.clone();
        assert_eq!(config.inbound.rules.len(), 0, "{default_policy:?}");
        for (client, is_visible) in [("stranger-1", true), ("details-1", default_policy != Deny)] {
            let compiled_config = client_config(&mesh, client, &["reviews-v1"]);
            let service_config = &compiled_config.snapshot.services[&service_name("reviews-v1")];
            assert_eq!(
                service_config.client_authorization == ClientAuthorization::Allowed,
                is_visible,
                "{default_policy:?} {client}"
            );
        }
    }
}
