//! `leno load` against real servers: counts, latencies and output.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic on a failure")]

use std::process::{Command, Output};
use std::sync::{OnceLock, mpsc};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use leno_tests::{
    ApplicationResponse, Nginx, TestApplication, TestProgram, eventually, free_port, get,
    leno_command,
};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn an_open_loop_counts_a_stall_for_all_delayed_requests_and_a_closed_loop_does_not() {
    let run_with_rate = |rate_arguments: &[&str]| {
        let server = start_stalling_server(Duration::from_secs(1), Duration::from_secs(1));
        let url = format!("http://127.0.0.1:{}/", server.port());
        let timing = ["--duration", "4s", "--warmup", "0s", &url];
        run_report(&[rate_arguments, &timing].concat())
    };
    let open_loop = run_with_rate(&["--rate", "100"]);
    assert_eq!(open_loop["requests"], 400);
    assert_eq!(open_loop["errors"], 0);
    // A quarter of the requests was due during the stall and waited for half a second on average; on a busy
    // machine other requests wait as well.
    let latency_ms =
        |report: &Value, name: &str| report["latency_us"][name].as_f64().unwrap() / 1e3;
    assert!(latency_ms(&open_loop, "p90") > 500.0, "{open_loop:#}");
    assert!(latency_ms(&open_loop, "p99") > 900.0, "{open_loop:#}");
    assert!((950.0..5000.0).contains(&latency_ms(&open_loop, "max")), "{open_loop:#}");
    let stalled_intervals = open_loop["timeline"].as_array().unwrap().iter();
    let stalled_intervals = stalled_intervals.filter(|interval| interval["requests"] == 0).count();
    assert!(stalled_intervals >= 2, "{open_loop:#}");

    let closed_loop = run_with_rate(&["--connections", "1"]);
    assert!(latency_ms(&closed_loop, "p99") < latency_ms(&open_loop, "p90"), "{closed_loop:#}");
    assert!(latency_ms(&closed_loop, "max") > 500.0, "{closed_loop:#}");
}

#[test]
fn every_request_is_counted_by_target_status_and_kind() {
    let server = TestApplication::start(|request| match request.method_and_target() {
        ("POST", "/good") if request.first_header("x-a") == Some("b") => {
            ApplicationResponse::ok(&request.body)
        }
        (_, "/silent") => ApplicationResponse::NoResponse,
        _ => ApplicationResponse::Bytes(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n".to_vec()),
    });
    let root = format!("http://127.0.0.1:{}", server.port());
    let [good_target, bad_target] = [format!("{root}/good=3"), format!("{root}/bad=1")];
    let load_arguments =
        ["-n", "400", "-c", "4", "-H", "x-a: b", "--body-size", "1KiB", &good_target, &bad_target];
    let report = run_report(&load_arguments);
    assert_eq!(report["requests"], 400);
    let errors = report["errors"].as_u64().unwrap();
    assert!((40..160).contains(&errors), "{report:#}");
    assert_eq!(report["errors_by_kind"], serde_json::json!({"status-503": errors}));
    assert_eq!(report["statuses"], serde_json::json!({"200": 400 - errors, "503": errors}));
    assert_eq!(report["targets"][0]["url"], format!("{root}/good"));
    assert_eq!(report["targets"][0]["errors"], 0);
    assert_eq!(report["targets"][1]["errors"], errors);
    assert!(report["bytes_out"].as_u64().unwrap() > 400 * 1024);
    assert!(report["bytes_in"].as_u64().unwrap() > (400 - errors) * 1024);
    assert!(report["own_cpu_us_per_request"].as_f64().unwrap() > 0.0);
    for name in ["min", "mean", "p50", "p90", "p95", "p99", "p999", "max"] {
        assert!(report["latency_us"][name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert_eq!((report["connections"].as_u64(), &report["rate"]), (Some(4), &Value::Null));

    let silent_url = format!("{root}/silent");
    let (report, code) =
        report_and_code(&["-n", "4", "-c", "4", "--timeout", "100ms", &silent_url]);
    assert_eq!(report["errors_by_kind"], serde_json::json!({"timeout": 4}));
    assert_eq!((&report["latency_us"]["p50"], code), (&Value::Null, Some(1)));
}

#[test]
fn exit_codes_distinguish_success_failure_and_wrong_usage() {
    let server = TestApplication::start(|request| match request.method_and_target() {
        (_, "/bad") => {
            ApplicationResponse::Bytes(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n".to_vec())
        }
        _ => ApplicationResponse::ok("ok"),
    });
    let root = format!("http://127.0.0.1:{}", server.port());
    let bad_url = format!("{root}/bad");
    let unused_url = format!("http://127.0.0.1:{}/", free_port());
    let exit_code = |arguments: &[&str]| run_load(arguments).status.code();
    assert_eq!(exit_code(&["-n", "20", &root]), Some(0));
    assert_eq!(exit_code(&["-n", "20", &root, &bad_url]), Some(0));
    assert_eq!(exit_code(&["-n", "20", "--max-errors", "1%", &root, &bad_url]), Some(1));
    assert_eq!(exit_code(&["-n", "20", &bad_url]), Some(1));
    assert_eq!(exit_code(&["-n", "2", &unused_url]), Some(1));
    for usage in [
        &["--rate", "0", &root] as &[&str],
        &["--connections", "0", &root],
        &["--grpc", "--http", "1.1", &root],
        &["--streams", "2", &root],
        &["-H", "bad name: x", &root],
        &["--body", "a", "--body-size", "1", &root],
        &["https://127.0.0.1/"],
        &[&root, &root],
        &[],
    ] {
        assert_eq!(exit_code(usage), Some(2), "{usage:?}");
    }
}

#[test]
fn several_rates_are_reported_separately_and_the_page_is_self_contained() {
    let server = TestApplication::start(|_| ApplicationResponse::ok("ok"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    let url = format!("http://127.0.0.1:{}/?<b>", server.port());
    let url = url.replace("<b>", "q=%3Cb%3E&r='");
    let rate_arguments = ["--rate", "100:300:100", "--step-duration", "500ms", "--warmup", "100ms"];
    let page = ["-c", "4", "-o", "csv", "--html", file.to_str().unwrap(), &url];
    let output = run_load(&[&rate_arguments[..], &page].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..3], ["rate", "requests", "errors"]);
    let counts: Vec<&[&str]> = rows[1..].iter().map(|row| &row[..3]).collect();
    assert_eq!(counts, [["100", "50", "0"], ["200", "100", "0"], ["300", "150", "0"]]);

    let page = std::fs::read_to_string(&file).unwrap();
    assert_eq!(page.matches("<svg ").count(), 3);
    for text in ["Latency by percentile", "Throughput and errors", "300/s", "prefers-color-scheme"]
    {
        assert!(page.contains(text), "{text}");
    }
    for external in ["<script", "<link", "<img", "src=", "href=", "url(", "@import", "NaN", "inf\""]
    {
        assert!(!page.contains(external), "{external}");
    }
    assert!(page.contains("r=&#39;"), "the URL is escaped");

    let report = run_report(&[&rate_arguments[..], &["-c", "4", &url]].concat());
    assert_eq!((report["requests"].as_u64(), &report["rate"]), (Some(300), &Value::Null));
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(
        steps.iter().map(|step| step["rate"].as_f64()).collect::<Vec<_>>(),
        [Some(100.0), Some(200.0), Some(300.0)]
    );
    assert!(steps.iter().all(|step| step.get("steps").is_none()), "{report:#}");
}

#[test]
fn a_signal_ends_the_run_early_with_a_report() {
    let (request_sender, request_receiver) = mpsc::channel();
    let server = TestApplication::start(move |_| {
        // The receiver is gone after 20 requests.
        request_sender.send(()).ok();
        ApplicationResponse::ok("ok")
    });
    let url = format!("http://127.0.0.1:{}/", server.port());
    let load_arguments =
        ["load", "-c", "2", "--rate", "100", "-d", "10m", "--warmup", "0s", "-o", "csv"];
    let mut program =
        TestProgram::start("leno load", leno_command().args(load_arguments).arg(&url));
    for _ in 0..20 {
        request_receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    program.send_signal(Signal::INT);
    assert!(
        program.wait_for_exit(Duration::from_secs(20)).success(),
        "{}",
        program.printed_output()
    );
    let row = program.wait_for_line("100,", Duration::from_secs(20));
    let requests: u32 = row.split(',').nth(1).unwrap().parse().unwrap();
    assert!((20..6000).contains(&requests), "{row}");
}

#[test]
fn http2_and_grpc_work_with_nginx() {
    let port = free_port();
    // Closes the server block of the fixture and opens another.
    let nginx = Nginx::prepare(&format!(
        "location / {{ return 200 ok; }} }}
         server {{
           listen 127.0.0.1:{port} http2;
           location /plain {{ return 200 hello; }}
           location /shop.Cart/Get {{
             default_type application/grpc;
             add_header grpc-status 14;
             return 204;
           }}"
    ));
    let [binary, arguments @ ..] = nginx.command();
    let _running = TestProgram::start("nginx", Command::new(binary).args(arguments));
    let nginx_address = ([127, 0, 0, 1], nginx.port).into();
    eventually("nginx responds", Duration::from_secs(20), || get(nginx_address, "/").ok());
    let root = format!("http://127.0.0.1:{port}");
    let http2 = ["--http", "2", "-c", "2", "--streams", "5", "-n", "500"];
    let report = run_report(&[&http2[..], &[&format!("{root}/plain")]].concat());
    assert_eq!(report["statuses"], serde_json::json!({"200": 500}), "{report:#}");
    assert!(report["bytes_in"].as_u64().unwrap() > 2500);

    let call_url = format!("{root}/shop.Cart/Get");
    let (report, code) =
        report_and_code(&["--grpc", "-n", "20", "-c", "2", "--body", "message", &call_url]);
    assert_eq!(report["errors_by_kind"], serde_json::json!({"grpc-unavailable": 20}));
    assert_eq!(code, Some(1));

    // The server closes each connection, so client ports are not exhausted.
    let nginx_url = format!("http://127.0.0.1:{}/", nginx.port);
    let report = run_report(&["--disable-keepalive", "-c", "4", "-n", "200", &nginx_url]);
    assert_eq!(report["errors"], 0, "{report:#}");
}

/// Returns a server that stalls for this duration, some time after its first request.
fn start_stalling_server(stall_start: Duration, stall_duration: Duration) -> TestApplication {
    let first_request_at = OnceLock::new();
    TestApplication::start(move |_| {
        let stall_start = *first_request_at.get_or_init(Instant::now) + stall_start;
        let stall_period = stall_start..stall_start + stall_duration;
        while stall_period.contains(&Instant::now()) {
            park_timeout(stall_period.end.saturating_duration_since(Instant::now()));
        }
        ApplicationResponse::ok("ok")
    })
}

/// Returns the JSON report of a successful run.
fn run_report(arguments: &[&str]) -> Value {
    let (report, code) = report_and_code(arguments);
    assert_eq!(code, Some(0), "{report:#}");
    report
}

/// Returns the JSON report of a run, and its exit code.
fn report_and_code(arguments: &[&str]) -> (Value, Option<i32>) {
    let output = run_load(&[arguments, &["-o", "json"]].concat());
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|error| panic!("{error}: {output:?}")), output.status.code())
}

fn run_load(arguments: &[&str]) -> Output {
    leno_command().arg("load").args(arguments).output().unwrap()
}
