//! Rows of `tests/vectors`, replayed through real sidecars.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, server_manifest};
use leno_tests::{
    ApplicationResponse, TestApplication, TestConnection, TestMesh, eventually, free_port,
};
use serde_json::{Value, json};

/// Groups about access decisions for meshed clients. The other groups, tested in `crates/control`, need fixed
/// ports or an unmeshed client.
const ACCESS_GROUPS: [&str; 8] = [
    "default deny without a policy",
    "a target lets its sources make its requests",
    "headers, all of them and whole",
    "targets add up",
    "without matches nothing is allowed",
    "a TCP rule without ports opens all",
    "default allow: members need no policy",
    "a rule that denies goes before all",
];

/// Groups about the selection of rules.
const ROUTE_GROUPS: [&str; 8] = [
    "an exact path goes before prefixes",
    "a regular expression comes after prefixes, and before any path",
    "a method goes before headers",
    "headers go before query parameters",
    "more query parameters go before fewer",
    "between equals of two routes the first by name decides",
    "weights of zero, or no backends, answer 500",
    "of two kinds the more specific one decides alone",
];

fn find_group(file: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file);
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut groups = vectors["groups"].as_array().unwrap().iter();
    groups.find(|group| group["name"] == name).unwrap_or_else(|| panic!("no {name:?}")).clone()
}

/// Returns the documents of a group as manifests.
fn group_manifests(group: &Value) -> String {
    let documents = group["documents"].as_array().unwrap().iter();
    documents.map(|document| format!("---\n{document}\n")).collect()
}

/// Waits until all results are as expected, and checks again: results that matched by chance before the
/// documents were in force differ then.
fn replay_cases(name: &str, cases: &[&Value], result_of: impl Fn(&Value) -> Value) {
    for case in cases {
        let condition = format!("{name}, {}: {}", case["name"], case["expect"]);
        eventually(&condition, MAX_WAIT, || (result_of(case) == case["expect"]).then_some(()));
    }
    for case in cases {
        assert_eq!(result_of(case), case["expect"], "{name}, {}", case["name"]);
    }
}

/// Returns a request as sent on the wire.
fn wire_request(request: &Value) -> String {
    let text_of = |value: &Value| value.as_str().unwrap().to_owned();
    let query = request["query"].as_str().map(|query| format!("?{query}")).unwrap_or_default();
    let headers = request["headers"].as_array().unwrap().iter();
    let headers: String =
        headers.map(|pair| format!("{}: {}\r\n", text_of(&pair[0]), text_of(&pair[1]))).collect();
    format!(
        "{} {}{query} HTTP/1.1\r\nhost: stock.shop\r\ncontent-length: 0\r\n{headers}\r\n",
        text_of(&request["method"]),
        text_of(&request["path"]),
    )
}

#[test]
fn access_decisions_match_the_vectors() {
    let (stock, byte_application) = (TestApplication::start_echo(), TestApplication::start_echo());
    let listeners = [free_port(), free_port(), free_port(), free_port()];
    let mesh = TestMesh::up(&shop_manifests(stock.port(), byte_application.port(), listeners));
    for name in ACCESS_GROUPS {
        let group = find_group("access/access.json", name);
        let mesh_config = json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "MeshConfig",
            "metadata": {"name": "mesh"},
            "spec": group["config"],
        });
        mesh.write("group.yaml", &format!("{}---\n{mesh_config}\n", group_manifests(&group)));
        let cases = group["cases"].as_array().unwrap().iter();
        let has_sidecars = |case: &&Value| {
            let has_listener = matches!(case["from"].as_str(), Some("shop/web" | "shop/ops"));
            has_listener && case.get("direct").is_none()
        };
        let cases: Vec<&Value> = cases.filter(has_sidecars).collect();
        assert!(!cases.is_empty(), "{name}");
        replay_cases(name, &cases, |case| {
            let first_listener = if case["from"] == "shop/web" { 0 } else { 2 };
            let listener = listeners[first_listener + usize::from(case["port"] == 15432)];
            inbound_result(SocketAddr::from((Ipv4Addr::LOCALHOST, listener)), case)
        });
    }
}

/// Returns a server with an HTTP and a TCP port, and two clients with outbound listeners for both.
fn shop_manifests(web_port: u16, database_port: u16, listeners: [u16; 4]) -> String {
    let workload_manifest = |name: &str, listeners: &[u16]| {
        format!(
            "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: {name}-1, namespace: shop}}
spec:
  serviceAccount: {name}
  outbound:
  - {{service: stock, port: 9080, listen: \"127.0.0.1:{}\"}}
  - {{service: stock, port: 15432, listen: \"127.0.0.1:{}\"}}
",
            listeners[0], listeners[1]
        )
    };
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: stock-1, namespace: shop, labels: {{app: stock}}}}
spec:
  serviceAccount: stock
  ports: [{{name: web, port: {web_port}, protocol: HTTP}}, {{name: db, port: {database_port}, protocol: TCP}}]
---
apiVersion: v1
kind: Service
metadata: {{name: stock, namespace: shop}}
spec:
  selector: {{app: stock}}
  ports: [{{name: web, port: 9080, targetPort: web}}, {{name: db, port: 15432, targetPort: db}}]
{}{}",
        workload_manifest("web", &listeners[..2]),
        workload_manifest("ops", &listeners[2..])
    )
}

/// Returns the result for a client in the form of an expectation. The application responds even to bytes that
/// are not requests.
fn inbound_result(listener: SocketAddr, case: &Value) -> Value {
    let request = &case["request"];
    let head = match request.is_null() {
        true => "\u{1}\u{2}\r\n\r\n".to_owned(),
        false => wire_request(request),
    };
    let result = TestConnection::open(listener).and_then(|mut connection| {
        connection.send(head)?;
        connection.receive_response()
    });
    let reset_result = || {
        // A reset has no reason text.
        let expected = &case["expect"]["reset"];
        if expected.is_null() { json!("reset") } else { json!({"reset": expected}) }
    };
    match result {
        Ok(response) if response.status == 200 => json!("allowed"),
        Ok(response) => json!({"status": response.status, "reason": response.rejection_reason()}),
        Err(_) => reset_result(),
    }
}

#[test]
fn route_decisions_match_the_vectors() {
    let service_names = ["stock", "a", "b", "c"];
    let applications =
        service_names.map(|name| TestApplication::start(move |_| ApplicationResponse::ok(name)));
    let listener = free_port();
    let mut manifests = leno_tests::manifests::mesh_config("allow");
    for (name, application) in service_names.iter().zip(&applications) {
        manifests += &server_manifest(name, application.port(), &[]);
    }
    manifests += &client_manifest("web", &[], &[("stock.shop", listener)]);
    let mesh = TestMesh::up(&manifests);
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    for name in ROUTE_GROUPS {
        let group = find_group("routes/precedence.json", name);
        mesh.write("group.yaml", &group_manifests(&group));
        let cases: Vec<&Value> = group["cases"].as_array().unwrap().iter().collect();
        replay_cases(name, &cases, |case| routing_result(listener, &case["request"]));
    }
}

/// Returns the backend that responds, or the reason that none does.
fn routing_result(listener: SocketAddr, request: &Value) -> Value {
    let result = TestConnection::open(listener).and_then(|mut connection| {
        connection.send(wire_request(request))?;
        connection.receive_response()
    });
    match result {
        Ok(response) if response.status == 200 => {
            json!(format!("shop/{}", String::from_utf8_lossy(&response.body)))
        }
        Ok(response) => json!(response.rejection_reason()),
        Err(error) => json!(error.to_string()),
    }
}

const MAX_WAIT: Duration = Duration::from_secs(20);
