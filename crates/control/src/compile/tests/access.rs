//! Access rules of workloads, and the clients that see them.

use leno_model::{Change, Object, TrafficMode, Workload};

use super::*;

/// Returns the mesh in this mode, with the namespace and the workload `reviews-v1-1` in modes of their own.
fn mesh_with_modes(modes: [Option<TrafficMode>; 3]) -> Mesh {
    let [whole, namespace, own] = modes;
    let mut mesh = mesh_with_sidecars(&strict_bookinfo(""));
    let mut config = mesh.config().clone();
    config.mode = whole.unwrap();
    if let Some(mode) = namespace {
        let admission = leno_model::Admission { mode: Some(mode), plaintext: None };
        config.namespaces.insert("bookinfo".parse().unwrap(), admission);
    }
    mesh.apply(Change::Upsert(Object::MeshConfig(config)));
    let mut reviews = mesh.workload(&workload_name("reviews-v1-1")).unwrap().clone();
    reviews.admission.mode = own;
    mesh.apply(Change::Upsert(Object::Workload(reviews)));
    mesh
}

fn client_config(mesh: &Mesh, client: &str, services: &[&str]) -> World {
    let services = services.iter().map(|name| service_name(name)).collect();
    let client: &Workload = mesh.workload(&workload_name(client)).unwrap();
    compile_config(mesh, client, &services, &mut Views::default())
}

#[test]
fn the_mode_of_the_workload_that_is_called_decides() {
    use TrafficMode::{Audit, Permissive, Strict};
    for (modes, decides, reaches) in [
        ([Some(Strict), None, None], Strict, false),
        ([Some(Strict), None, Some(Audit)], Audit, true),
        ([Some(Strict), Some(Audit), None], Audit, true),
        ([Some(Strict), Some(Permissive), None], Permissive, true),
        ([Some(Permissive), Some(Strict), None], Strict, false),
        ([Some(Permissive), Some(Strict), Some(Permissive)], Permissive, true),
        ([Some(Permissive), None, Some(Strict)], Strict, false),
        ([Some(Audit), None, None], Audit, true),
    ] {
        let mesh = mesh_with_modes(modes);
        let plan = client_config(&mesh, "reviews-v1-1", &[]).snapshot.plan.clone();
        let found = match (&plan.access, plan.inbound.is_audited) {
            (Access::Permissive, false) => Permissive,
            (Access::Strict(rules), false) if rules.len() == 1 => Strict,
            (Access::Strict(rules), true) if rules.len() == 1 => Audit,
            other => panic!("{modes:?}: {other:?}"),
        };
        assert_eq!(found, decides, "{modes:?}");
        // No policy names this client.
        let world = client_config(&mesh, "outsider-1", &["reviews-v1"]);
        let view = &world.snapshot.services[&service_name("reviews-v1")];
        assert_eq!(view.reach == Reach::Allowed, reaches, "{modes:?}");
        let seen = view.ports.values().map(|port| port.endpoints.len()).sum::<usize>();
        assert_eq!(seen, usize::from(reaches), "{modes:?}");
    }
}

#[test]
fn a_service_without_workloads_is_denied_where_its_namespace_is_strict() {
    use TrafficMode::{Permissive, Strict};
    let empty = "---\napiVersion: v1\nkind: Service\n\
                 metadata: {name: empty, namespace: bookinfo}\n\
                 spec: {selector: {app: nobody}, ports: [{port: 80}]}\n";
    for (modes, reach) in [
        ([Some(Strict), None, None], Reach::Denied),
        ([Some(Permissive), None, Some(Strict)], Reach::Allowed),
        ([Some(Strict), Some(Permissive), Some(Strict)], Reach::Allowed),
    ] {
        let mut mesh = mesh_with_modes(modes);
        mesh.apply(Change::Upsert(crate::fixture::parse_objects(empty).pop().unwrap()));
        let world = client_config(&mesh, "outsider-1", &["empty"]);
        assert_eq!(world.snapshot.services[&service_name("empty")].reach, reach, "{modes:?}");
    }
}

#[test]
fn an_access_policy_shows_strict_workloads_to_whom_it_allows_something() {
    use TrafficMode::{Audit, Permissive, Strict};
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
                  metadata: {name: guard, namespace: bookinfo}\n\
                  spec: {serviceAccounts: [reviews], deny: [{ports: [1]}], \
                  allow: [{from: [{serviceAccount: \"stran*\"}]}]}\n";
    for (mode, rules) in [(Strict, 2), (Audit, 2), (Permissive, 1)] {
        let mut mesh = mesh_with_modes([Some(mode), None, None]);
        mesh.apply(Change::Upsert(crate::fixture::parse_objects(policy).pop().unwrap()));
        let plan = client_config(&mesh, "reviews-v1-1", &[]).snapshot.plan.clone();
        assert_eq!(plan.inbound.rules.len(), rules, "{mode:?}");
        let plan = client_config(&mesh, "details-1", &[]).snapshot.plan.clone();
        assert_eq!(plan.inbound.rules.len(), 0, "{mode:?}");
        for (client, sees) in [("outsider-1", true), ("details-1", mode != Strict)] {
            let world = client_config(&mesh, client, &["reviews-v1"]);
            let view = &world.snapshot.services[&service_name("reviews-v1")];
            assert_eq!(view.reach == Reach::Allowed, sees, "{mode:?} {client}");
        }
    }
}
