//! Evaluation of successful and failed runs.

use std::time::Duration;

use leno_load::{LoadPlan, LoadTarget, ProgressCounters, drive_load};
use leno_telemetry::ProcessUsage;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::super::observe::{PeerConnection, RequestSeries};
use super::*;

#[tokio::test]
async fn a_successful_run_passes_all_checks() {
    let report = sample_findings().await.evaluate();
    assert!(report.has_passed(), "{}", report.to_text());
    assert_eq!((report.mtls, report.denied_status), (true, Some(403)));
    let v3 = report.split.get("reviews-v3").unwrap();
    assert_eq!((v3.requests, v3.share, v3.expected), (100, 0.1, 0.1));
    let ratings = report.services.iter().find(|service| service.name == "ratings").unwrap();
    assert_eq!((ratings.requests, ratings.success_rate), (1_000, Some(1.0)));
    assert_eq!(ratings.p99, Some(Duration::from_millis(3)));
    // 20 ms for the 1,000 requests between the two observations.
    assert_eq!(ratings.sidecar_cpu_us_per_request, Some(20.0));
    assert_eq!(ratings.sidecar_private_kib, Some(2_000));
}

#[tokio::test]
async fn each_failed_check_is_reported() {
    let cases: [(&str, BreakFindings); 8] = [
        ("mutual TLS", |findings| findings.plaintext_accepted.push("ratings-1".to_owned())),
        ("mutual TLS", |findings| findings.after_traffic[0].connections[0].identity.clear()),
        ("mutual TLS", |findings| {
            findings.after_traffic[0].connections[0].identity =
                "spiffe://other/ns/bookinfo/sa/a".to_owned();
        }),
        ("mutual TLS", |findings| findings.after_traffic[0].series[0].peer.clear()),
        ("mutual TLS", |findings| {
            findings
                .after_traffic
                .iter_mut()
                .for_each(|observation| observation.connections.clear())
        }),
        ("every service received requests", |findings| findings.after_traffic[0].series.clear()),
        ("split", |findings| findings.after_traffic[1].series[0].requests = 500),
        ("a client without permission is denied", |findings| findings.denial_outcome = Ok(200)),
    ];
    for (name, break_findings) in cases {
        let mut findings = sample_findings().await;
        break_findings(&mut findings);
        let report = findings.evaluate();
        let failed: Vec<&str> = report
            .checks
            .iter()
            .filter(|check| !check.ok)
            .map(|check| check.name.as_str())
            .collect();
        assert!(failed.contains(&name), "{name}: {failed:?}");
        assert!(!report.has_passed());
    }
}

#[tokio::test]
async fn status_500_is_a_failure() {
    let mut findings = sample_findings().await;
    findings.load_report = run_load("HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n").await;
    let report = findings.evaluate();
    assert!(!report.has_passed());
    assert!(report.to_text().contains("with status 500"), "{}", report.to_text());
}

/// Makes a good run fail.
type BreakFindings = fn(&mut DemoFindings);

async fn sample_findings() -> DemoFindings {
    let after_traffic = vec![
        sample_observation("ratings-1", 1_000),
        sample_observation("reviews-v1-1", 900),
        sample_observation("reviews-v3-1", 100),
    ];
    let before_traffic = after_traffic.iter().cloned().map(|mut observation| {
        observation.series.clear();
        observation.usage = Some(cpu_usage(10));
        observation
    });
    DemoFindings {
        before_traffic: before_traffic.collect(),
        after_traffic,
        load_report: run_load("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await,
        denial_outcome: Ok(403),
        plaintext_accepted: Vec::new(),
    }
}

fn sample_observation(workload: &str, requests: u64) -> Observation {
    Observation {
        workload: workload.to_owned(),
        has_application: true,
        series: vec![RequestSeries {
            direction: "inbound".to_owned(),
            peer: "bookinfo/reviews".to_owned(),
            requests,
            success: requests,
            p50_ms: 1.0,
            p90_ms: 2.0,
            p99_ms: 3.0,
        }],
        connections: vec![PeerConnection {
            direction: "inbound".to_owned(),
            identity: "spiffe://cluster.local/ns/bookinfo/sa/reviews".to_owned(),
        }],
        usage: Some(cpu_usage(30)),
        inbound_listeners: Vec::new(),
    }
}

fn cpu_usage(cpu_ms: u64) -> ProcessUsage {
    ProcessUsage {
        cpu: Duration::from_millis(cpu_ms),
        rss_kib: 4_000,
        pss_kib: 3_000,
        private_kib: 2_000,
        threads: 2,
    }
}

/// Runs the load generator for a few requests that all get this response.
async fn run_load(response: &'static str) -> LoadReport {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let page = LoadTarget::get("page", listener.local_addr().unwrap(), "page", "/");
    let plan = LoadPlan { duration: Duration::from_millis(20), ..LoadPlan::new(vec![page]) };
    let serve = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                stream.write_all(response.as_bytes()).await.unwrap();
            }
        }
    };
    tokio::select! {
        report = drive_load(plan, watch::channel(ProgressCounters::default()).0) => report.unwrap(),
        () = serve => unreachable!("it serves for ever"),
    }
}
