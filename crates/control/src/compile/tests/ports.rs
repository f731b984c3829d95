//! The ports of an application, and what is spoken there.

use std::fmt::Write as _;

use leno_model::Protocol;

use crate::compile::plan::plan;
use crate::fixture::{mesh, workload};

fn ports(address: &str, declared: &str, services: &[&str]) -> Vec<(u16, Protocol)> {
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
    let mesh = mesh(&yaml);
    let plan = plan(&mesh, mesh.workload(&workload("a")).unwrap());
    plan.ports.iter().map(|port| (port.port, port.protocol)).collect()
}

#[test]
fn services_say_what_an_application_does_not() {
    let grpc = "port: 7070, name: grpc-a";
    assert_eq!(ports("192.0.2.7", "", &[grpc]), [(7070, Protocol::Grpc)]);
    assert_eq!(ports("192.0.2.7", "ports: [{port: 7070}]", &[grpc]), [(7070, Protocol::Grpc)]);
    let said = "ports: [{port: 7070, protocol: TCP}]";
    assert_eq!(ports("192.0.2.7", said, &[grpc]), [(7070, Protocol::Tcp)]);
    let http2 = "port: 80, targetPort: 7070, appProtocol: kubernetes.io/h2c";
    assert_eq!(ports("192.0.2.7", "", &[grpc, http2]), [(7070, Protocol::Http2)]);
    // Nobody says it, or they do not agree.
    assert_eq!(ports("192.0.2.7", "", &["port: 7070"]), [(7070, Protocol::Detect)]);
    let http = "port: 80, targetPort: 7070, name: http-a";
    assert_eq!(ports("192.0.2.7", "", &[grpc, http]), [(7070, Protocol::Detect)]);
    // An application beside its sidecar says where it listens.
    assert_eq!(ports("127.0.0.1", "ports: [{port: 80}]", &[grpc]), [(80, Protocol::Detect)]);
}
