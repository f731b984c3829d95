//! Egress rules: destinations allowed when the default is deny.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{Access, AddressEntry, Egress, EgressRule, MatchedBy, PolicyName, WorkloadConfig};

use super::fixture::{
    Application, Client, End, Mesh, OK, ReceivedMessage, proxy_config, run, service_config,
    wait_until,
};
use crate::session::ListenerKind;

impl Mesh {
    /// Sets the client's egress rules; `address` is outside the mesh.
    fn set_egress_rules(&self, address: SocketAddr, egress_rules: Vec<EgressRule>) {
        self.client.addresses.borrow_mut().insert(address.ip(), Arc::new(AddressEntry::External));
        let workload_config = proxy_config("productpage", Access::AllowAll);
        let workload_config =
            WorkloadConfig { egress: Egress::Deny, egress_rules, ..workload_config };
        self.client.apply_config(
            workload_config,
            vec![service_config(self.setup.protocol, &[self.server_endpoint()])],
        );
    }

    async fn connect_outside(&self, address: SocketAddr) -> Client<tokio::net::TcpStream> {
        Client::connect(self.client.open_listener(ListenerKind::Address(address)).await).await
    }
}

fn egress_rule(matched_by: MatchedBy, address: SocketAddr, hosts: &[&str]) -> EgressRule {
    EgressRule {
        policy: PolicyName::new("bookinfo", "out").unwrap(),
        port: address.port(),
        matched_by,
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        ranges: vec![leno_model::IpRange::from(address.ip())],
        requests: None,
    }
}

fn request_for(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn each_request_is_allowed_or_denied_by_its_host() {
    run(async {
        let app = Application::respond_with(|_: &ReceivedMessage| OK.to_owned()).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_egress_rules(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["api.example"])],
        );
        let mut client = mesh.connect_outside(app.address).await;
        assert_eq!(client.send_request(&request_for("api.example")).await.status, 200);
        let response = client.send_request(&request_for("else.example")).await;
        assert_eq!(response.verdict(), (403, Some("egress-denied")));
        assert_eq!(client.send_request(&request_for("API.example")).await.status, 200);
        let hosts: Vec<_> = app
            .received_requests()
            .iter()
            .map(|request| request.field_value("host").map(str::to_owned))
            .collect();
        assert_eq!(hosts, [Some("api.example".to_owned()), Some("API.example".to_owned())]);
        // Requests for another host at the same address are rejected one by one.
        mesh.set_egress_rules(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["new.example"])],
        );
        let response = client.send_request(&request_for("api.example")).await;
        assert_eq!(response.verdict(), (403, Some("egress-denied")));
        // A rule by address applies without a host.
        mesh.set_egress_rules(app.address, vec![egress_rule(MatchedBy::Address, app.address, &[])]);
        assert_eq!(client.send_request(&request_for("api.example")).await.status, 200);
    });
}

#[test]
fn a_connection_is_closed_once_no_request_is_allowed() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await;
            client
                .send_bytes(
                    "HTTP/1.1 101 Go On\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhi",
                )
                .await;
            client.read_rest().await;
        });
        let app = app.await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_egress_rules(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["api.example"])],
        );
        let mut client = mesh.connect_outside(app.address).await;
        let upgrade = "GET / HTTP/1.1\r\nhost: api.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        client.send_bytes(upgrade).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        assert_eq!(client.read_exactly(2).await, b"hi");
        let other_rule = EgressRule {
            port: app.address.port() ^ 1,
            ..egress_rule(MatchedBy::Http, app.address, &["api.example"])
        };
        mesh.set_egress_rules(app.address, vec![other_rule]);
        client.read_end().await;
    });
}

#[test]
fn opaque_bytes_are_not_allowed_by_a_request_rule() {
    run(async {
        let app = Application::respond_with(|_: &ReceivedMessage| OK.to_owned()).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_egress_rules(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["api.example"])],
        );
        let mut client = mesh.connect_outside(app.address).await;
        client.send_bytes("\x16\x03\x01 no request").await;
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(app.accepted.get(), 0);
        wait_until(|| mesh.client.failure_counts().get("egress-denied") == Some(&1)).await;
    });
}

#[test]
fn an_allowed_address_needs_no_inspection_and_is_closed_once_denied() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("220 ready\r\n").await;
            client.read_end().await;
        });
        let app = app.await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_egress_rules(app.address, vec![egress_rule(MatchedBy::Address, app.address, &[])]);
        let mut client = mesh.connect_outside(app.address).await;
        assert_eq!(client.read_exactly(11).await, b"220 ready\r\n");
        // Other rules may change meanwhile.
        let unchanged_rule = egress_rule(MatchedBy::Address, app.address, &[]);
        let other_rule = EgressRule { port: 1, ..unchanged_rule.clone() };
        mesh.set_egress_rules(app.address, vec![unchanged_rule, other_rule]);
        let mut second = mesh.connect_outside(app.address).await;
        assert_eq!(second.read_exactly(11).await, b"220 ready\r\n");
        mesh.set_egress_rules(app.address, Vec::new());
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(second.read_end().await, End::Reset);
    });
}
