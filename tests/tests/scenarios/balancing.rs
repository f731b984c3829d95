//! Load balancing by policies through real sidecars.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config};
use leno_tests::{TestAnswer, TestApplication, TestConnection, TestMesh, eventually, free_port};

/// `stock` with four instances that respond with their number, and an outbound listener for it.
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
    let answer =
        |number: usize| TestApplication::start(move |_| TestAnswer::ok(number.to_string()));
    let instances: Vec<TestApplication> = (0..4).map(answer).collect();
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
    /// Opens a connection to the listener: its requests are handled by one data thread.
    fn open_connection(&self) -> TestConnection {
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, self.listener));
        TestConnection::open(listener).expect("the listener is open")
    }

    /// Returns the instance that serves a user.
    fn serving_instance(&self, connection: &mut TestConnection, user: usize) -> String {
        let request = format!("GET / HTTP/1.1\r\nhost: test\r\ncookie: a=b; user=u{user}\r\n\r\n");
        connection.send(request).expect("it takes a request");
        let answer = connection.receive_response().expect("it is answered");
        assert_eq!(answer.status, 200);
        String::from_utf8(answer.body).expect("text")
    }

    /// Returns the instances of this number of users.
    fn map_users(&self, users: usize) -> Vec<String> {
        let mut connection = self.open_connection();
        (0..users).map(|user| self.serving_instance(&mut connection, user)).collect()
    }
}

fn count_responses(answers: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn in_turn_each_gets_the_same() {
    let shop = start_shop("  algorithm: RoundRobin\n");
    eventually("all four are there", MAX_WAIT, || {
        let mut connection = shop.open_connection();
        let answers: Vec<String> =
            (0..40).map(|_| shop.serving_instance(&mut connection, 0)).collect();
        count_responses(&answers).values().all(|count| *count == 10).then_some(())
    });
}

#[test]
fn a_user_keeps_an_instance_until_it_leaves_and_gets_it_back() {
    for algorithm in ["Maglev", "RingHash"] {
        let shop = start_shop(&format!("  algorithm: {algorithm}\n  key: {{cookie: user}}\n"));
        let (before, _) = eventually("all four are there", MAX_WAIT, || {
            let map = shop.map_users(200);
            (count_responses(&map).len() == 4).then_some(map)
        });
        assert_eq!(shop.map_users(200), before, "every connection and thread finds the same");
        let fair = count_responses(&before);
        assert!(fair.values().all(|count| (20..=90).contains(count)), "{fair:?}");
        // One instance is removed: its users move to others, and few other users move.
        let port = shop.instances[2].port();
        let manifests =
            std::fs::read_to_string(shop.mesh.manifest_file("mesh.yaml")).expect("it is there");
        shop.mesh.write("mesh.yaml", &manifests.replace(&instance_manifest(2, port), ""));
        let (after, _) = eventually("one is gone", MAX_WAIT, || {
            let map = shop.map_users(200);
            (!map.contains(&"2".to_owned())).then_some(map)
        });
        let moved = before.iter().zip(&after).filter(|(was, is)| was != is && *was != "2").count();
        assert!(moved <= 16, "{algorithm}: {moved} moved");
        shop.mesh.write("mesh.yaml", &manifests);
        eventually("everybody is back", MAX_WAIT, || (shop.map_users(200) == before).then_some(()));
    }
}

const MAX_WAIT: Duration = Duration::from_secs(20);
