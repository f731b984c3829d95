//! Egress rules: destinations allowed when the default is deny.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{Access, AddressEntry, Egress, EgressRule, MatchedBy, PolicyName, WorkloadConfig};

use super::fixture::{
    Answer, Application, Client, End, Mesh, OK, proxy_config, run, service_config, wait_until,
};
use crate::session::ListenerKind;

impl Mesh {
    /// Sets the client's egress rules; `at` is outside the mesh.
    fn let_out(&self, at: SocketAddr, egress_rules: Vec<EgressRule>) {
        self.client.addresses.borrow_mut().insert(at.ip(), Arc::new(AddressEntry::External));
        let plan = proxy_config("productpage", Access::AllowAll);
        let plan = WorkloadConfig { egress: Egress::Deny, egress_rules, ..plan };
        self.client.apply_config(
            plan,
            vec![service_config(self.setup.protocol, &[self.server_endpoint()])],
        );
    }

    async fn out_to(&self, at: SocketAddr) -> Client<tokio::net::TcpStream> {
        Client::connect(self.client.open_listener(ListenerKind::Address(at)).await).await
    }
}

fn egress_rule(matched_by: MatchedBy, at: SocketAddr, hosts: &[&str]) -> EgressRule {
    EgressRule {
        policy: PolicyName::new("bookinfo", "out").unwrap(),
        port: at.port(),
        matched_by,
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        ranges: vec![leno_model::IpRange::from(at.ip())],
        requests: None,
    }
}

fn request_for(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn requests_are_let_out_by_their_host_each_for_itself() {
    run(async {
        let app = Application::respond_with(|_: &Answer| OK.to_owned()).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.let_out(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["api.example"])],
        );
        let mut client = mesh.out_to(app.address).await;
        assert_eq!(client.send_request(&request_for("api.example")).await.status, 200);
        let refused = client.send_request(&request_for("else.example")).await;
        assert_eq!(refused.verdict(), (403, Some("egress-denied")));
        assert_eq!(client.send_request(&request_for("API.example")).await.status, 200);
        let hosts: Vec<_> = app
            .received_requests()
            .iter()
            .map(|it| it.field_value("host").map(str::to_owned))
            .collect();
        assert_eq!(hosts, [Some("api.example".to_owned()), Some("API.example".to_owned())]);
        // Requests for another host at the same address are rejected one by one.
        mesh.let_out(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["new.example"])],
        );
        let refused = client.send_request(&request_for("api.example")).await;
        assert_eq!(refused.verdict(), (403, Some("egress-denied")));
        // A rule by address needs no host.
        mesh.let_out(app.address, vec![egress_rule(MatchedBy::Address, app.address, &[])]);
        assert_eq!(client.send_request(&request_for("api.example")).await.status, 200);
    });
}

#[test]
fn what_requests_opened_is_cut_when_none_is_let_out_any_more() {
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
        mesh.let_out(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["api.example"])],
        );
        let mut client = mesh.out_to(app.address).await;
        let upgrade = "GET / HTTP/1.1\r\nhost: api.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        client.send_bytes(upgrade).await;
        assert_eq!(client.read_head().await.unwrap().status, 101);
        assert_eq!(client.read_exactly(2).await, b"hi");
        let other = EgressRule {
            port: app.address.port() ^ 1,
            ..egress_rule(MatchedBy::Http, app.address, &["api.example"])
        };
        mesh.let_out(app.address, vec![other]);
        client.read_end().await;
    });
}

#[test]
fn what_is_no_request_is_not_let_out_as_one() {
    run(async {
        let app = Application::respond_with(|_: &Answer| OK.to_owned()).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.let_out(
            app.address,
            vec![egress_rule(MatchedBy::Http, app.address, &["api.example"])],
        );
        let mut client = mesh.out_to(app.address).await;
        client.send_bytes("\x16\x03\x01 no request").await;
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(app.accepted.get(), 0);
        wait_until(|| mesh.client.failure_counts().get("egress-denied") == Some(&1)).await;
    });
}

#[test]
fn an_address_is_let_out_without_a_look_and_cut_when_it_is_not_any_more() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("220 ready\r\n").await;
            client.read_end().await;
        });
        let app = app.await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.let_out(app.address, vec![egress_rule(MatchedBy::Address, app.address, &[])]);
        let mut client = mesh.out_to(app.address).await;
        assert_eq!(client.read_exactly(11).await, b"220 ready\r\n");
        // Other rules may change meanwhile.
        let same = egress_rule(MatchedBy::Address, app.address, &[]);
        let other = EgressRule { port: 1, ..same.clone() };
        mesh.let_out(app.address, vec![same, other]);
        let mut second = mesh.out_to(app.address).await;
        assert_eq!(second.read_exactly(11).await, b"220 ready\r\n");
        mesh.let_out(app.address, Vec::new());
        assert_eq!(client.read_end().await, End::Reset);
        assert_eq!(second.read_end().await, End::Reset);
    });
}
