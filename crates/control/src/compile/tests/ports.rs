//! The ports in a workload's configuration, and their protocols: declared, by convention, or detected.

use std::fmt::Write as _;

use leno_model::{Change, Protocol};

use crate::compile::workload_config::compile_workload_config;
use crate::compile::{ClientClass, compile_service};
use crate::fixture::{mesh_with_sidecars, parse_objects, service_name, workload_name};
use crate::mesh::Mesh;

fn application_ports(address: &str, declared: &str, services: &[&str]) -> Vec<(u16, Protocol)> {
    let mut yaml = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: a, namespace: bookinfo, labels: {{app: a}}}}\n\
         spec: {{address: {address}, {declared}}}\n"
    );
    for (number, ports) in services.iter().enumerate() {
        write!(
            yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: bookinfo}}\n\
             spec: {{selector: {{app: a}}, ports: [{{{ports}}}]}}\n"
        )
        .unwrap();
    }
    let mesh = mesh_with_sidecars(&yaml);
    let config = compile_workload_config(&mesh, mesh.workload(&workload_name("a")).unwrap());
    config.ports.iter().map(|port| (port.port, port.protocol)).collect()
}

#[test]
fn services_declare_the_protocols_of_ports_that_an_application_does_not_declare() {
    let grpc = "port: 7070, name: grpc-a";
    assert_eq!(application_ports("192.0.2.7", "", &[grpc]), [(7070, Protocol::Grpc)]);
    assert_eq!(
        application_ports("192.0.2.7", "ports: [{port: 7070}]", &[grpc]),
        [(7070, Protocol::Grpc)]
    );
    let declared = "ports: [{port: 7070, protocol: TCP}]";
    assert_eq!(application_ports("192.0.2.7", declared, &[grpc]), [(7070, Protocol::Tcp)]);
    let http2 = "port: 80, targetPort: 7070, appProtocol: kubernetes.io/h2c";
    assert_eq!(application_ports("192.0.2.7", "", &[grpc, http2]), [(7070, Protocol::Http2)]);
    // No service declares a protocol, or the services do not agree.
    assert_eq!(application_ports("192.0.2.7", "", &["port: 7070"]), [(7070, Protocol::Detect)]);
    let http = "port: 80, targetPort: 7070, name: http-a";
    assert_eq!(application_ports("192.0.2.7", "", &[grpc, http]), [(7070, Protocol::Detect)]);
    // An application with a sidecar on the same machine declares its ports.
    assert_eq!(
        application_ports("127.0.0.1", "ports: [{port: 80}]", &[grpc]),
        [(80, Protocol::Detect)]
    );
}

#[test]
fn well_known_names_and_numbers_of_server_first_protocols_need_no_detection() {
    let tcp = |number: u16| [(number, Protocol::Tcp)];
    for number in [25, 587, 3306, 4444, 6379, 9300, 11211] {
        let port = format!("port: {number}");
        assert_eq!(application_ports("192.0.2.7", "", &[&port]), tcp(number));
        assert_eq!(
            application_ports("127.0.0.1", &format!("ports: [{{{port}}}]"), &[]),
            tcp(number)
        );
        let with_target_port = format!("port: 80, targetPort: {number}");
        assert_eq!(
            (
                application_ports("192.0.2.7", "", &[&with_target_port]),
                client_protocol(&with_target_port)
            ),
            (tcp(number).into(), Protocol::Tcp)
        );
        assert_eq!(client_protocol(&port), Protocol::Tcp);
        // A declaration takes precedence.
        let declared = format!("{port}, appProtocol: http");
        assert_eq!(application_ports("192.0.2.7", "", &[&declared]), [(number, Protocol::Http)]);
        assert_eq!(client_protocol(&declared), Protocol::Http);
    }
    for (name, expected) in [
        ("mysql", Protocol::Tcp),
        ("mongo", Protocol::Tcp),
        ("redis-cache", Protocol::Tcp),
        ("smtp", Protocol::Tcp),
        ("mysqlx", Protocol::Detect),
        ("my-redis", Protocol::Detect),
        ("http-redis", Protocol::Http),
    ] {
        let port = format!("name: {name}, port: 7070");
        assert_eq!(application_ports("192.0.2.7", "", &[&port]), [(7070, expected)], "{name}");
        assert_eq!(client_protocol(&port), expected, "{name}");
        let declared = format!("port: 7070, appProtocol: {name}");
        if expected == Protocol::Tcp && !name.contains('-') {
            assert_eq!(client_protocol(&declared), expected, "{declared}");
        }
    }
}

/// A convention does not hide requests from a policy.
#[test]
fn policies_that_inspect_requests_disable_the_convention() {
    let policies = [
        "AccessPolicy\nmetadata: {name: p, namespace: bookinfo}\n\
         spec: {serviceAccounts: [a], deny: [{requests: [{path: {value: /admin}}]}]}",
        "RateLimit\nmetadata: {name: p, namespace: bookinfo}\n\
         spec: {targetRefs: [{kind: Service, name: s}], concurrency: {requests: 10}}",
    ];
    for policy in policies {
        let yaml = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: bookinfo}\n\
             spec: {selector: {app: a}, ports: [{port: 80, targetPort: 4444}]}\n---\n\
             apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: a, namespace: bookinfo, \
             labels: {app: a}}\nspec: {serviceAccount: a, ports: [{port: 4444}, {port: 6379}]}\n".to_string();
        let document = format!("apiVersion: leno.dev/v1alpha1\nkind: {policy}\n");
        let mut mesh = mesh_with_sidecars(&yaml);
        let protocols = |mesh: &Mesh| {
            let service_config = compile_service(
                mesh,
                &ClientClass::AllClients,
                mesh.service(&service_name("s")).unwrap(),
            );
            let config = compile_workload_config(mesh, mesh.workload(&workload_name("a")).unwrap());
            (
                service_config.ports[&80].protocol,
                config.ports.iter().map(|port| port.protocol).collect(),
            )
        };
        let tcp = (Protocol::Tcp, vec![Protocol::Tcp; 2]);
        assert_eq!(protocols(&mesh), tcp);
        let added = parse_objects(&document).pop().unwrap();
        let key = added.object_key();
        let affected_set = mesh.apply(Change::Upsert(added));
        assert!(
            affected_set.services.contains(&service_name("s")),
            "clients receive the change: {policy}"
        );
        let (client_side_protocol, ports): (Protocol, Vec<Protocol>) = protocols(&mesh);
        assert_eq!(
            (client_side_protocol, ports[0]),
            (Protocol::Detect, Protocol::Detect),
            "{policy}"
        );
        mesh.apply(Change::Remove(key));
        assert_eq!(protocols(&mesh), tcp);
    }
}

/// Returns the protocol of a service with this port, as its clients see it.
fn client_protocol(port: &str) -> Protocol {
    let yaml = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: bookinfo}}\n\
         spec: {{selector: {{app: a}}, ports: [{{{port}}}]}}\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: a, namespace: bookinfo, labels: {{app: a}}}}\nspec: {{ports: [{{port: 9999}}]}}\n"
    );
    let mesh = mesh_with_sidecars(&yaml);
    let service_config =
        compile_service(&mesh, &ClientClass::AllClients, mesh.service(&service_name("s")).unwrap());
    service_config.ports.values().next().unwrap().protocol
}
