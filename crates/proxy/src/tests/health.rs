//! What a sidecar tells the kubelet, over a real listener.

use std::net::SocketAddr;

use leno_model::{TrustDomain, WorkloadName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::fixture::{Application, DOMAIN, OK, closed_port, run};
use crate::probes::Probes;
use crate::{Config, Proxy};

async fn ask(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

#[test]
fn a_sidecar_without_a_certificate_lives_and_is_not_ready_and_probes_all_the_same() {
    run(async {
        let well = Application::canned(OK).await;
        let sick = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 6\r\n\r\nsecret";
        let sick = Application::canned(sick).await;
        let scratch = tempfile::tempdir().unwrap();
        let workload = WorkloadName::new("shop", "cart-1").unwrap();
        let domain = TrustDomain::new(DOMAIN).unwrap();
        let mut config = Config::sidecar(workload, domain, scratch.path().join("state"));
        config.health = Some(([127, 0, 0, 1], 0).into());
        config.probes = Probes::parse(&format!(
            r#"{{"app": {{"readiness": {{"httpGet": {{"port": {}}}}},
                "liveness": {{"httpGet": {{"port": {}}}}}}}}}"#,
            well.address.port(),
            sick.address.port()
        ))
        .unwrap();
        let proxy = Proxy::start(config).await.unwrap();
        let health = proxy.health_address().unwrap();
        let asked = async {
            let mut answers = Vec::new();
            for (method, path) in [
                ("GET", "/livez"),
                ("GET", "/readyz"),
                ("GET", "/metrics"),
                ("GET", "/probe/app/readiness"),
                ("GET", "/probe/app/liveness"),
                ("GET", "/probe/app/startup"),
                ("GET", "/world"),
                ("POST", "/livez"),
            ] {
                answers.push(ask(health, method, path).await);
            }
            answers
        };
        let (done, stop) = tokio::sync::oneshot::channel();
        let asked = async {
            let answers = asked.await;
            done.send(()).unwrap();
            answers
        };
        let stopped = async { drop(stop.await) };
        let (ran, answers) = tokio::join!(proxy.run(stopped), asked);
        ran.unwrap();
        let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [200, 503, 200, 200, 503, 404, 404, 405], "{answers:?}");
        assert!(answers[1].1.contains("waiting for a certificate"), "{answers:?}");
        assert!(answers[2].1.contains("leno_"), "{answers:?}");
        assert!(answers[4].1.contains("status 503") && !answers[4].1.contains("secret"));
    });
}

/// What `/metrics` says to these queries, with an application whose metrics are at this port.
async fn scraped(port: u16, paths: &[&str]) -> Vec<(u16, String)> {
    let scratch = tempfile::tempdir().unwrap();
    let workload = WorkloadName::new("shop", "cart-1").unwrap();
    let domain = TrustDomain::new(DOMAIN).unwrap();
    let mut config = Config::sidecar(workload, domain, scratch.path().join("state"));
    config.health = Some(([127, 0, 0, 1], 0).into());
    config.application_metrics = Some(format!("{port}/own").parse().unwrap());
    let proxy = Proxy::start(config).await.unwrap();
    let health = proxy.health_address().unwrap();
    let (done, stop) = tokio::sync::oneshot::channel();
    let asked = async {
        let mut answers = Vec::new();
        for path in paths {
            answers.push(ask(health, "GET", path).await);
        }
        done.send(()).unwrap();
        answers
    };
    let stopped = async { drop(stop.await) };
    let (ran, answers) = tokio::join!(proxy.run(stopped), asked);
    ran.unwrap();
    answers
}

#[test]
fn the_metrics_of_the_application_stand_behind_ours_or_are_left_out_whole() {
    run(async {
        let page =
            |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let (good, bad) =
            (page("orders_total 7\nleno_links 9\n"), page("orders_total 7\n<html>\n"));
        let well = Application::answering(move |request| {
            assert!(request.head.starts_with("GET /own "), "{}", request.head);
            good.clone()
        });
        let answers = scraped(
            well.await.address.port(),
            &["/metrics", "/metrics?names=osm", "/metrics", "/metrics?names=envoy"],
        )
        .await;
        let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [200, 200, 200, 400]);
        for (_, text) in &answers[..3] {
            assert!(text.contains("\norders_total 7\n") && text.contains("leno_build_info"));
            assert!(!text.contains("leno_links 9"), "{text}");
        }
        assert!(answers[1].1.contains("\nenvoy_server_live 1\n"), "{}", answers[1].1);
        assert!(answers[2].1.contains("leno_application_scrapes_total{result=\"ok\"} 2"));
        assert!(answers[3].1.contains("names=osm or names=fsm"), "{}", answers[3].1);

        let sick = Application::answering(move |_| bad.clone()).await;
        for port in [sick.address.port(), closed_port().port()] {
            let answers = scraped(port, &["/metrics", "/metrics"]).await;
            let (status, text) = &answers[1];
            assert!(*status == 200 && text.contains("leno_build_info") && !text.contains("orders"));
            assert!(text.contains("leno_application_scrapes_total{result=\"failed\"} 1"), "{text}");
        }
    });
}
