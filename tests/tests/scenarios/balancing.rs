//! Load balancing by policies through real sidecars.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config};
use leno_tests::{
    ApplicationResponse, TestApplication, TestConnection, TestMesh, eventually, free_port,
};

/// `stock` with four instances that respond with their number, and an outbound listener for this service.
struct Shop {
    mesh: TestMesh,
    instances: Vec<TestApplication>,
    listener: u16,
}

fn instance_manifest(number: usize, port: u16) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: stock-{number}, namespace: shop, labels: {{app: stock}}}}
spec: {{serviceAccount: stock, ports: [{{name: main, port: {port}, protocol: HTTP}}]}}
"
    )
}

fn start_shop(policy: &str) -> Shop {
    let start_instance = |number: usize| {
        TestApplication::start(move |_| ApplicationResponse::ok(number.to_string()))
    };
    let instances: Vec<TestApplication> = (0..4).map(start_instance).collect();
    let listener = free_port();
    let mut manifests = mesh_config("allow") + &client_manifest("web", &[], &[("stock", listener)]);
    for (number, application) in instances.iter().enumerate() {
        manifests += &instance_manifest(number, application.port());
    }
    let service = "---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {selector: {app: stock}, ports: [{name: main, port: 9080, targetPort: main}]}
";
    let policy = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: LoadBalancing\n\
         metadata: {{name: stock, namespace: shop}}\nspec:\n  targetRefs: [{{name: stock}}]\n{policy}"
    );
    write!(manifests, "{service}{policy}").expect("writing to a String never fails");
    Shop { mesh: TestMesh::up(&manifests), instances, listener }
}

impl Shop {
    /// Opens a connection to the listener: requests on one connection are handled by one data thread.
    fn open_connection(&self) -> TestConnection {
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, self.listener));
        TestConnection::open(listener).expect("the listener is open")
    }

    /// Returns the instance that serves a user.
    fn serving_instance(&self, connection: &mut TestConnection, user: usize) -> String {
        let request = format!("GET / HTTP/1.1\r\nhost: test\r\ncookie: a=b; user=u{user}\r\n\r\n");
        connection.send(request).expect("the connection is open");
        let response = connection.receive_response().expect("a response");
        assert_eq!(response.status, 200);
        String::from_utf8(response.body).expect("text")
    }

    /// Returns the instances of this number of users.
    fn map_users(&self, user_count: usize) -> Vec<String> {
        let mut connection = self.open_connection();
        (0..user_count).map(|user| self.serving_instance(&mut connection, user)).collect()
    }
}

fn count_responses(responses: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for response in responses {
        *counts.entry(response.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn round_robin_gives_each_instance_the_same_number_of_requests() {
    let shop = start_shop("  algorithm: RoundRobin\n");
    eventually("all four instances respond", MAX_WAIT, || {
        let mut connection = shop.open_connection();
        let responses: Vec<String> =
            (0..40).map(|_| shop.serving_instance(&mut connection, 0)).collect();
        count_responses(&responses).values().all(|count| *count == 10).then_some(())
    });
}

#[test]
fn consistent_hashing_moves_only_the_users_of_a_removed_instance() {
    for algorithm in ["Maglev", "RingHash"] {
        let shop = start_shop(&format!("  algorithm: {algorithm}\n  key: {{cookie: user}}\n"));
        let (instances_before, _) = eventually("all four instances respond", MAX_WAIT, || {
            let instances_of_users = shop.map_users(200);
            (count_responses(&instances_of_users).len() == 4).then_some(instances_of_users)
        });
        assert_eq!(
            shop.map_users(200),
            instances_before,
            "each user has the same instance on every connection and thread"
        );
        let counts = count_responses(&instances_before);
        assert!(counts.values().all(|count| (20..=90).contains(count)), "{counts:?}");
        // One instance is removed: its users move to others, and few other users move.
        let port = shop.instances[2].port();
        let manifests = std::fs::read_to_string(shop.mesh.manifest_file("mesh.yaml"))
            .expect("the manifest exists");
        shop.mesh.write("mesh.yaml", &manifests.replace(&instance_manifest(2, port), ""));
        let (instances_after, _) =
            eventually("the removed instance gets no request", MAX_WAIT, || {
                let instances_of_users = shop.map_users(200);
                (!instances_of_users.contains(&"2".to_owned())).then_some(instances_of_users)
            });
        let moved_count = instances_before
            .iter()
            .zip(&instances_after)
            .filter(|(old, new)| old != new && *old != "2")
            .count();
        assert!(moved_count <= 16, "{algorithm}: {moved_count} moved");
        shop.mesh.write("mesh.yaml", &manifests);
        eventually("all users are back", MAX_WAIT, || {
            (shop.map_users(200) == instances_before).then_some(())
        });
    }
}

const MAX_WAIT: Duration = Duration::from_secs(20);
