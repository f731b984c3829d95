//! The health endpoint for the kubelet, over a real listener.

use std::net::SocketAddr;

use leno_model::{ClientRanges, TrustDomain, WorkloadName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Application, DOMAIN, OK, closed_port, run};
use crate::probes::Probes;
use crate::{Config, Proxy};

async fn send_request(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    exchange_head(address, &format!("{method} {path} HTTP/1.1\r\nhost: x\r\n")).await
}

async fn get_with_host(address: SocketAddr, host: &str, path: &str, fields: &str) -> (u16, String) {
    exchange_head(address, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{fields}")).await
}

async fn exchange_head(address: SocketAddr, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{head}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    (response[9..12].parse().unwrap(), response)
}

#[test]
fn a_sidecar_without_a_certificate_is_live_but_not_ready_and_runs_probes() {
    run(async {
        let healthy = Application::with_response(OK).await;
        let failing = "HTTP/1.1 418 I am a teapot\r\ncontent-length: 6\r\n\r\nsecret";
        let failing = Application::with_response(failing).await;
        let scratch = tempfile::tempdir().unwrap();
        let workload = WorkloadName::new("shop", "cart-1").unwrap();
        let domain = TrustDomain::new(DOMAIN).unwrap();
        let mut config = Config::for_sidecar(workload, domain, scratch.path().join("state"));
        config.health = Some(([127, 0, 0, 1], 0).into());
        config.probes = Probes::from_json(&format!(
            r#"{{"app": {{"readiness": {{"httpGet": {{"port": {}}}}},
                "liveness": {{"httpGet": {{"port": {}}}}},
                "startup": {{"tcpSocket": {{"port": {}}}}}}}}}"#,
            healthy.address.port(),
            failing.address.port(),
            closed_port().port()
        ))
        .unwrap();
        let proxy = Proxy::start(config).await.unwrap();
        let health = proxy.health_address().unwrap();
        let requests = async {
            let mut responses = Vec::new();
            for (method, path) in [
                ("GET", "/livez"),
                ("GET", "/readyz"),
                ("GET", "/metrics"),
                ("GET", "/probe/app/readiness"),
                ("GET", "/probe/app/liveness"),
                ("GET", "/probe/app/startup"),
                ("GET", "/probe/app/other"),
                ("GET", "/config"),
                ("POST", "/livez"),
            ] {
                responses.push(send_request(health, method, path).await);
            }
            responses
        };
        let (stop_sender, stop) = tokio::sync::oneshot::channel();
        let requests = async {
            let responses = requests.await;
            stop_sender.send(()).unwrap();
            responses
        };
        let stopped = async { drop(stop.await) };
        let (result, responses) = tokio::join!(proxy.run(stopped), requests);
        result.unwrap();
        let statuses: Vec<u16> = responses.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [200, 503, 403, 200, 418, 502, 404, 404, 405], "{responses:?}");
        assert!(responses[1].1.contains("waiting for a certificate"), "{responses:?}");
        assert!(responses[2].1.contains("--metrics-from"), "{responses:?}");
        assert!(responses[4].1.contains("status 418") && !responses[4].1.contains("secret"));
        assert!(responses[5].1.contains("accepts no connection on port"), "{responses:?}");
    });
}

#[test]
fn metrics_are_served_to_listed_clients_only() {
    run(async {
        for (clients, host, expected) in [
            ("none", "127.0.0.1", 403),
            ("any", "127.0.0.1", 200),
            ("any", "web-1.shop.svc", 200),
            ("any", "evil.example", 421),
            ("127.0.0.0/8,::1", "127.0.0.1", 200),
            ("10.0.0.0/8", "127.0.0.1", 403),
        ] {
            let scratch = tempfile::tempdir().unwrap();
            let workload = WorkloadName::new("shop", "cart-1").unwrap();
            let domain = TrustDomain::new(DOMAIN).unwrap();
            let mut config = Config::for_sidecar(workload, domain, scratch.path().join("state"));
            config.health = Some(([127, 0, 0, 1], 0).into());
            config.metrics_from = clients.parse().unwrap();
            let proxy = Proxy::start(config).await.unwrap();
            let health = proxy.health_address().unwrap();
            let (stop_sender, stop) = tokio::sync::oneshot::channel();
            let requests = async {
                let responses = [
                    get_with_host(health, host, "/metrics", "").await,
                    get_with_host(health, host, "/metrics", "sec-fetch-site: cross-site\r\n").await,
                    // The kubelet may use any host name.
                    get_with_host(health, host, "/livez", "").await,
                ];
                stop_sender.send(()).unwrap();
                responses.map(|(status, _)| status)
            };
            let (result, responses) = tokio::join!(proxy.run(async { drop(stop.await) }), requests);
            result.unwrap();
            let of_foreign_page = if expected == 200 { 403 } else { expected };
            assert_eq!(responses, [expected, of_foreign_page, 200], "{clients} {host}");
        }
    });
}

/// Every response contains the workload name, except those to pages of other sites.
#[test]
fn the_admin_page_rejects_requests_of_other_sites() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let workload = WorkloadName::new("shop", "cart-1").unwrap();
        let domain = TrustDomain::new(DOMAIN).unwrap();
        let config = Config::for_sidecar(workload, domain, scratch.path().join("state"));
        let proxy = Proxy::start(config).await.unwrap();
        let admin = proxy.admin_address().unwrap();
        let (stop_sender, stop) = tokio::sync::oneshot::channel();
        let requests = async {
            for path in [
                "/config",
                "/connections",
                "/requests",
                "/ejected",
                "/circuits",
                "/metrics",
                "/ready",
                "/absent",
            ] {
                for (host, fields, expected) in [
                    ("127.0.0.1", "", None),
                    ("localhost:1", "sec-fetch-site: same-origin\r\n", None),
                    ("[::1]", "sec-fetch-site: none\r\n", None),
                    ("evil.example", "", Some(421)),
                    ("web-1.shop.svc", "", Some(421)),
                    ("127.0.0.1", "sec-fetch-site: cross-site\r\n", Some(403)),
                    ("127.0.0.1", "sec-fetch-site: same-site\r\n", Some(403)),
                    (
                        "127.0.0.1",
                        "sec-fetch-site: none\r\nsec-fetch-site: cross-site\r\n",
                        Some(403),
                    ),
                    ("127.0.0.1", "origin: http://evil.example\r\n", Some(403)),
                    ("127.0.0.1", "origin: null\r\n", Some(403)),
                ] {
                    let (status, response) = get_with_host(admin, host, path, fields).await;
                    match expected {
                        Some(expected) => assert_eq!(status, expected, "{path} {host} {fields}"),
                        None => assert!(status != 421 && status != 403, "{path} {host} {fields}"),
                    }
                    // A page of another site cannot read the name either.
                    let is_named = response.contains("leno-workload: shop/cart-1\r\n");
                    assert_eq!(is_named, expected.is_none(), "{response}");
                }
            }
            stop_sender.send(()).unwrap();
        };
        let (result, ()) = tokio::join!(proxy.run(async { drop(stop.await) }), requests);
        result.unwrap();
    });
}

/// The application responds after the client has half-closed (RFC 9112 §9.6).
#[test]
fn a_client_that_half_closes_gets_its_response_from_each_page() {
    run(async {
        let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = application.local_addr().unwrap().port();
        let scratch = tempfile::tempdir().unwrap();
        let workload = WorkloadName::new("shop", "cart-1").unwrap();
        let domain = TrustDomain::new(DOMAIN).unwrap();
        let mut config = Config::for_sidecar(workload, domain, scratch.path().join("state"));
        config.health = Some(([127, 0, 0, 1], 0).into());
        config.application_metrics = Some(port.to_string().parse().unwrap());
        let probes = format!(r#"{{"app": {{"readiness": {{"httpGet": {{"port": {port}}}}}}}}}"#);
        config.probes = Probes::from_json(&probes).unwrap();
        let proxy = Proxy::start(config).await.unwrap();
        let pages = [
            (proxy.health_address().unwrap(), "/probe/app/readiness", "ok\n"),
            (proxy.admin_address().unwrap(), "/metrics", "of_application 7"),
        ];
        let (stop_sender, stop) = tokio::sync::oneshot::channel();
        let requests = async {
            for (page, path, expected) in pages {
                let mut client = TcpStream::connect(page).await.unwrap();
                let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
                let (mut called, _) = application.accept().await.unwrap();
                client.shutdown().await.unwrap();
                // The page reads the half-close before the application responds.
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                let response = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\
                                content-length: 17\r\n\r\nof_application 7\n";
                called.write_all(response.as_bytes()).await.unwrap();
                let mut reply = String::new();
                client.read_to_string(&mut reply).await.unwrap();
                assert!(reply.contains(expected), "{path}: {reply}");
            }
            stop_sender.send(()).unwrap();
        };
        let (result, ()) = tokio::join!(proxy.run(async { drop(stop.await) }), requests);
        result.unwrap();
    });
}

/// The host name may be that of another site (DNS rebinding).
#[test]
fn a_health_page_omits_the_reason_for_the_host_name_of_a_web_site() {
    run(async {
        let healthy = Application::with_response(OK).await;
        let scratch = tempfile::tempdir().unwrap();
        let workload = WorkloadName::new("shop", "cart-1").unwrap();
        let domain = TrustDomain::new(DOMAIN).unwrap();
        let mut config = Config::for_sidecar(workload, domain, scratch.path().join("state"));
        config.health = Some(([127, 0, 0, 1], 0).into());
        let port = healthy.address.port();
        let probes = format!(r#"{{"app": {{"readiness": {{"httpGet": {{"port": {port}}}}}}}}}"#);
        config.probes = Probes::from_json(&probes).unwrap();
        let proxy = Proxy::start(config).await.unwrap();
        let health = proxy.health_address().unwrap();
        let (stop_sender, stop) = tokio::sync::oneshot::channel();
        let requests = async {
            for (host, path, fields, status, text) in [
                ("evil.example", "/readyz", "", 503, "503 Service Unavailable\n"),
                ("10.0.0.1:15020", "/readyz", "", 503, "waiting for a certificate\n"),
                // The kubelet probes with the `Host` in the pod's specification.
                ("evil.example", "/probe/app/readiness", "", 200, "200 OK\n"),
                ("web", "/probe/app/readiness", "", 200, "ok\n"),
                (
                    "web",
                    "/probe/app/readiness",
                    "sec-fetch-site: cross-site\r\n",
                    403,
                    "browser itself\n",
                ),
                ("web", "/readyz", "origin: http://evil.example\r\n", 403, "browser itself\n"),
                ("web", "/readyz", "host: web\r\n", 400, "send one\n"),
                ("10.0.0.1", "http://evil.example/readyz", "", 503, "503 Service Unavailable\n"),
            ] {
                let (actual_status, response) = get_with_host(health, host, path, fields).await;
                assert_eq!(actual_status, status, "{host} {path}: {response}");
                assert!(response.ends_with(text), "{host} {path}: {response}");
            }
            stop_sender.send(()).unwrap();
        };
        let (result, ()) = tokio::join!(proxy.run(async { drop(stop.await) }), requests);
        result.unwrap();
    });
}

/// Returns the responses to these `/metrics` queries, with an application that exposes metrics on this port.
async fn scrape_paths(port: u16, paths: &[&str]) -> Vec<(u16, String)> {
    let scratch = tempfile::tempdir().unwrap();
    let workload = WorkloadName::new("shop", "cart-1").unwrap();
    let domain = TrustDomain::new(DOMAIN).unwrap();
    let mut config = Config::for_sidecar(workload, domain, scratch.path().join("state"));
    config.health = Some(([127, 0, 0, 1], 0).into());
    config.metrics_from = ClientRanges::Any;
    config.application_metrics = Some(format!("{port}/own").parse().unwrap());
    let proxy = Proxy::start(config).await.unwrap();
    let health = proxy.health_address().unwrap();
    let (stop_sender, stop) = tokio::sync::oneshot::channel();
    let requests = async {
        let mut responses = Vec::new();
        for path in paths {
            responses.push(send_request(health, "GET", path).await);
        }
        stop_sender.send(()).unwrap();
        responses
    };
    let stopped = async { drop(stop.await) };
    let (result, responses) = tokio::join!(proxy.run(stopped), requests);
    result.unwrap();
    responses
}

#[test]
fn application_metrics_are_appended_completely_or_omitted() {
    run(async {
        let page =
            |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let (valid_page, invalid_page) =
            (page("orders_total 7\nleno_links 9\n"), page("orders_total 7\n<html>\n"));
        let healthy = Application::respond_with(move |request| {
            assert!(request.head.starts_with("GET /own "), "{}", request.head);
            valid_page.clone()
        });
        let responses = scrape_paths(
            healthy.await.address.port(),
            &["/metrics", "/metrics?names=osm", "/metrics", "/metrics?names=envoy"],
        )
        .await;
        let statuses: Vec<u16> = responses.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [200, 200, 200, 400]);
        for (_, text) in &responses[..3] {
            assert!(text.contains("\norders_total 7\n") && text.contains("leno_build_info"));
            assert!(!text.contains("leno_links 9"), "{text}");
        }
        assert!(responses[1].1.contains("\nenvoy_server_live 1\n"), "{}", responses[1].1);
        assert!(responses[2].1.contains("leno_application_scrapes_total{result=\"ok\"} 2"));
        assert!(responses[3].1.contains("names=osm or names=fsm"), "{}", responses[3].1);

        let failing = Application::respond_with(move |_| invalid_page.clone()).await;
        for port in [failing.address.port(), closed_port().port()] {
            let responses = scrape_paths(port, &["/metrics", "/metrics"]).await;
            let (status, text) = &responses[1];
            assert!(*status == 200 && text.contains("leno_build_info") && !text.contains("orders"));
            assert!(text.contains("leno_application_scrapes_total{result=\"failed\"} 1"), "{text}");
        }
    });
}
