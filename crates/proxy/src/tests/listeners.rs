//! Outbound listeners of an application: one per service, and the HTTP proxy.

use leno_model::{Access, Egress, Protocol, WorkloadConfig};

use super::fixture::{
    Application, Client, End, GET, Mesh, Setup, proxy_config, run, service_config, wait_until,
};
use crate::application_ports::{PortState, PortStates};
use crate::session::ListenerKind;

/// Starts an application that responds with the head of the request.
async fn start_mirror() -> Application {
    Application::respond_with(|request| {
        let head = &request.head;
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len())
    })
    .await
}

#[test]
fn an_outbound_listener_sets_the_host_of_its_service() {
    run(async {
        let mesh = Mesh::permissive(start_mirror().await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for request in [
            "GET /a HTTP/1.1\r\nhost: 127.0.0.1:19081\r\n\r\n",
            "GET /a HTTP/1.1\r\nhost:\r\n\r\n",
            "GET http://else.where/a HTTP/1.1\r\nhost: else.where\r\n\r\n",
        ] {
            let response = client.send_request(request).await;
            assert_eq!(response.body_text(), "GET /a HTTP/1.1\r\nhost: ratings.bookinfo:9080");
        }
        let response = client.send_request("GET /a HTTP/1.0\r\n\r\n").await;
        assert_eq!(response.body_text(), "GET /a HTTP/1.1\r\nhost: ratings.bookinfo:9080");
    });
}

#[test]
fn the_http_proxy_routes_by_the_target_of_each_request() {
    run(async {
        let app = start_mirror().await;
        let mesh = Mesh::permissive(app.address).await;
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let mut client = Client::connect(proxy).await;
        for (request, expected) in [
            (
                "GET http://ratings.bookinfo:9080/a?b HTTP/1.1\r\nhost: ratings\r\n\r\n",
                "GET /a?b HTTP/1.1\r\nhost: ratings.bookinfo:9080",
            ),
            (
                "GET http://ratings.bookinfo.svc.cluster.local:9080 HTTP/1.1\r\nhost: a\r\n\r\n",
                "GET / HTTP/1.1\r\nhost: ratings.bookinfo.svc.cluster.local:9080",
            ),
            (
                "GET http://ratings:9080?b HTTP/1.1\r\nhost: a\r\nproxy-connection: close\r\n\r\n",
                "GET /?b HTTP/1.1\r\nhost: ratings:9080",
            ),
            (
                "OPTIONS http://ratings:9080 HTTP/1.1\r\nhost: a\r\n\r\n",
                "OPTIONS * HTTP/1.1\r\nhost: ratings:9080",
            ),
            (
                "OPTIONS * HTTP/1.1\r\nhost: ratings:9080\r\n\r\n",
                "OPTIONS * HTTP/1.1\r\nhost: ratings:9080",
            ),
            (
                "GET /a HTTP/1.1\r\nhost: ratings:9080\r\n\r\n",
                "GET /a HTTP/1.1\r\nhost: ratings:9080",
            ),
        ] {
            assert_eq!(client.send_request(request).await.body_text(), expected, "{request}");
        }
    });
}

#[test]
fn the_http_proxy_reaches_only_services_without_egress() {
    run(async {
        let mesh = Mesh::permissive(start_mirror().await.address).await;
        let workload_config = WorkloadConfig {
            egress: Egress::Deny,
            ..proxy_config("productpage", Access::AllowAll)
        };
        mesh.client.apply_config(
            workload_config,
            vec![service_config(Protocol::Http, &[mesh.server_endpoint()])],
        );
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        for (authority, verdict) in [
            ("www.example.com", (403, Some("egress-denied"))),
            ("127.0.0.1:22", (403, Some("egress-denied"))),
            ("[::1]:9080", (403, Some("egress-denied"))),
            ("absent.bookinfo:9080", (404, Some("unknown-service"))),
            // A port that the existing service does not have.
            ("ratings.bookinfo:9081", (404, Some("unknown-service"))),
            ("ratings.bookinfo", (404, Some("unknown-service"))),
            ("unheard-of.bookinfo:9080", (503, Some("discovery-timeout"))),
        ] {
            let mut client = Client::connect(proxy).await;
            let get = format!("GET http://{authority}/ HTTP/1.1\r\nhost: {authority}\r\n\r\n");
            assert_eq!(client.send_request(&get).await.verdict(), verdict, "{authority}");
            if authority.contains(':') {
                let connect = format!("CONNECT {authority} HTTP/1.1\r\nhost: a\r\n\r\n");
                assert_eq!(client.send_request(&connect).await.verdict(), verdict, "{authority}");
                assert_eq!(client.read_end().await, End::Clean);
            }
        }
        // Names invented by an application are counted, but never under a label of their own.
        let services: Vec<_> = mesh
            .client
            .series_summaries()
            .into_iter()
            .map(|series| series.labels.service)
            .collect();
        assert_eq!(mesh.client.ended_count(), 12);
        assert!(services.iter().all(|name| ["", "bookinfo/ratings"].contains(&&**name)));
    });
}

/// A name of two labels is a service, `NAME.NAMESPACE`, or an external host.
#[test]
fn a_host_of_two_labels_without_a_known_namespace_is_external() {
    run(async {
        let mesh = Mesh::permissive(start_mirror().await.address).await;
        let workload_config = WorkloadConfig {
            egress: Egress::Deny,
            ..proxy_config("productpage", Access::AllowAll)
        };
        mesh.client.apply_config(
            workload_config,
            vec![service_config(Protocol::Http, &[mesh.server_endpoint()])],
        );
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let (denied, unknown) = ((403, Some("egress-denied")), (404, Some("unknown-service")));
        for (authority, verdict) in [
            ("example.com:80", denied),
            ("example.com:8080", denied),
            ("absent.bookinfo:9080", unknown),
            ("absent.other:9080", denied),
            ("absent.other.svc:9080", unknown),
            ("absent.other.svc.cluster.local:9080", unknown),
            ("absent:9080", unknown),
        ] {
            let mut client = Client::connect(proxy).await;
            let get = format!("GET http://{authority}/ HTTP/1.1\r\nhost: {authority}\r\n\r\n");
            assert_eq!(client.send_request(&get).await.verdict(), verdict, "{authority}");
            let connect = format!("CONNECT {authority} HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(client.send_request(&connect).await.verdict(), verdict, "{authority}");
        }
    });
}

#[test]
fn the_http_proxy_forwards_requests_to_allowed_external_hosts() {
    run(async {
        let outside_app = start_mirror().await;
        let mesh = Mesh::permissive(start_mirror().await.address).await;
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        // The port states of the sidecar's own application do not affect external destinations.
        let states = PortStates { otherwise: PortState::Down, ..PortStates::default() };
        mesh.client.worker.config_store.application_ports.set_states(states);
        let port = outside_app.address.port();
        let mut client = Client::connect(proxy).await;
        for host in ["127.0.0.1", "localhost"] {
            let get = format!("GET http://{host}:{port}/a?b HTTP/1.1\r\nhost: else\r\n\r\n");
            let expected = format!("GET /a?b HTTP/1.1\r\nhost: {host}:{port}");
            assert_eq!(client.send_request(&get).await.body_text(), expected);
            let service = "GET http://ratings.bookinfo:9080/ HTTP/1.1\r\nhost: a\r\n\r\n";
            assert_eq!(client.send_request(service).await.status, 200);
            let mut tunnel = Client::connect(proxy).await;
            tunnel.send_bytes(format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
            assert_eq!(tunnel.read_head().await.unwrap().status, 200);
            assert_eq!(
                tunnel.send_request(GET).await.body_text(),
                "GET /ratings/1 HTTP/1.1\r\nhost: x"
            );
        }
        // A request without an absolute URI is for the proxy itself, even if the proxy sent it to itself.
        let origin = format!("GET / HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n");
        assert_eq!(client.send_request(&origin).await.verdict(), (404, Some("unknown-service")));
        let request_to_proxy = format!("GET http://{proxy}/ HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(
            client.send_request(&request_to_proxy).await.verdict(),
            (404, Some("unknown-service"))
        );
        let of_cluster = "GET http://absent.bookinfo.svc:9080/ HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(client.send_request(of_cluster).await.verdict(), (404, Some("unknown-service")));
        let closed_address = super::fixture::closed_port();
        let request_to_closed_port =
            format!("GET http://{closed_address}/ HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(
            client.send_request(&request_to_closed_port).await.verdict(),
            (503, Some("connect-failed"))
        );
    });
}

#[test]
fn a_target_with_another_scheme_is_not_forwarded_in_plaintext() {
    run(async {
        let app = start_mirror().await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.accept_plaintext(Access::AllowAll);
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let outside_address = app.address.to_string();
        for (at, authority) in [
            (proxy, &*outside_address),
            (proxy, "ratings.bookinfo:9080"),
            (mesh.listener, "ratings.bookinfo:9080"),
            // Without mutual TLS.
            (mesh.inbound, "ratings.bookinfo:9080"),
        ] {
            let mut client = Client::connect(at).await;
            for (scheme, hint) in [
                ("https", "CONNECT"),
                ("HTTPS", "CONNECT"),
                ("ftp", "ftp://"),
                ("ws", "ws://"),
                ("wss", "wss://"),
            ] {
                let request = format!("GET {scheme}://{authority}/a HTTP/1.1\r\nhost: a\r\n\r\n");
                let response = client.send_request(&request).await;
                assert_eq!(response.verdict(), (501, Some("unsupported")), "{request}");
                assert!(response.body_text().contains(hint), "{}", response.body_text());
            }
            let request = format!("GET HTTP://{authority}/a HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(client.send_request(&request).await.status, 200, "{request}");
        }
        assert_eq!(app.received_requests().len(), 4);
    });
}

#[test]
fn a_tunnel_reaches_the_service_of_its_target() {
    run(async {
        let app = start_mirror().await;
        for protocol in [Protocol::Http, Protocol::Detect, Protocol::Tcp] {
            let setup = Setup { protocol, ..Setup::default() };
            let mesh = Mesh::new(app.address, setup).await;
            let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
            let mut client = Client::connect(proxy).await;
            client.send_bytes("CONNECT ratings.bookinfo:9080 HTTP/1.1\r\nhost: a\r\n\r\n").await;
            assert_eq!(client.read_head().await.unwrap().status, 200);
            // A client that named the service itself keeps its own `Host`.
            for _ in 0..2 {
                let response = client.send_request(GET).await;
                assert_eq!(response.body_text(), "GET /ratings/1 HTTP/1.1\r\nhost: x");
            }
        }
    });
}

#[test]
fn a_client_may_send_through_a_tunnel_before_it_is_open() {
    run(async {
        let mesh = Mesh::permissive(start_mirror().await.address).await;
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        let mut client = Client::connect(proxy).await;
        client.send_bytes(format!("CONNECT ratings:9080 HTTP/1.1\r\nhost: a\r\n\r\n{GET}")).await;
        assert_eq!(client.read_head().await.unwrap().status, 200);
        assert_eq!(client.read_response().await.status, 200);
    });
}

#[test]
fn a_tunnel_to_an_invalid_target_is_rejected() {
    run(async {
        let mesh = Mesh::permissive(start_mirror().await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        let connect = "CONNECT ratings:9080 HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(client.send_request(connect).await.verdict(), (501, Some("unsupported")));
        assert_eq!(client.send_request(GET).await.status, 200);
        wait_until(|| mesh.client.ended_count() == 2).await;
    });
}
