//! `leno bench` with Java programs, built with Maven on first use.

use std::path::PathBuf;

use leno_tests::leno_command;
use serde_json::Value;
use tempfile::TempDir;

use super::{SHORT_RUN_OPTIONS, number_at_path, run_bench};

#[test]
fn requirements_of_java_parts_are_checked_before_measuring() {
    let home = tempfile::tempdir().unwrap();
    for options in [["--driver", "jmeter"], ["--app", "spring"]] {
        let mut command = leno_command();
        command
            .args(["bench", "gateway-ratings", "--contenders", "none"])
            .args(options)
            .args(SHORT_RUN_OPTIONS);
        command.args(["--cache", home.path().to_str().unwrap()]);
        // No program is found with an empty `PATH`.
        let output = command.env("PATH", home.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{stderr}");
        for hint in ["requires `java`", "a JDK, 17 or later", "default-jdk-headless maven"] {
            assert!(stderr.contains(hint), "`{hint}` is missing: {stderr}");
        }
    }
}

#[test]
#[ignore = "fetches Apache JMeter with Maven: `./test jmeter` runs it"]
fn jmeter_measures_the_same_figures_as_leno_load() {
    let home = tempfile::tempdir().unwrap();
    let (report, _) = gateway_ratings(&home, &["--driver", "jmeter", "--contenders", "none,leno"]);
    assert_eq!(report["settings"]["driver"], "jmeter");
    let version = report["settings"]["driver_version"].as_str().unwrap();
    assert!(version.starts_with("Apache JMeter 5.6.3"), "{version}");
    for case in report["cases"].as_array().unwrap() {
        for name in ["none", "leno"] {
            let outcome = &case["contenders"][name];
            let trial = &outcome["repeats"][0];
            assert_eq!(trial["errors"], 0, "{name}: {trial:#}");
            assert_eq!(trial["statuses"]["200"], trial["requests"], "{name}: {trial:#}");
            // In one second with eight clients, the numbers of completed and started requests differ by at most eight.
            let (rps, requests) =
                (number_at_path(trial, &["rps"]), number_at_path(trial, &["requests"]));
            assert!((rps - requests).abs() <= 8.0, "{name}: {trial:#}");
            // Each of eight clients has one request in flight, for one second plus the last request.
            let waited = requests * number_at_path(trial, &["latency_ms", "mean"]);
            let bound = 8.0 * (1000.0 + number_at_path(trial, &["latency_ms", "max"]));
            assert!(waited > 0.0 && waited <= bound, "{waited} ms: {trial:#}");
            for percentile in ["p50", "p90", "p95", "p99", "p999", "max"] {
                let ms = number_at_path(trial, &["latency_ms", percentile]);
                assert!(ms.fract() == 0.0, "{name} {percentile}: {ms} is no whole millisecond");
            }
        }
        assert!(number_at_path(&case["contenders"]["leno"], &["cpu_us_per_request", "sum"]) > 0.0);
    }
    let (_, progress) =
        gateway_ratings(&home, &["--driver", "jmeter", "--contenders", "none,leno"]);
    assert!(!progress.contains("building"), "the program is built once: {progress}");
}

#[test]
#[ignore = "fetches Spring Cloud with Maven: `./test spring` runs it"]
fn spring_applications_do_the_same_work_through_our_sidecars() {
    let home = tempfile::tempdir().unwrap();
    let (report, _) = gateway_ratings(&home, &["--app", "spring", "--contenders", "leno"]);
    assert_eq!(report["skipped"], serde_json::json!([]));
    let notes = report["notes"].to_string();
    assert!(notes.contains("Spring Boot 3.3.8, Spring Cloud 2023.0.5"), "{notes}");
    let cases = report["cases"].as_array().unwrap();
    let costs = cases.iter().map(|case| {
        let trial = &case["contenders"]["leno"]["repeats"][0];
        assert_eq!(trial["errors"], 0, "{trial:#}");
        assert_eq!(trial["statuses"]["200"], trial["requests"], "{trial:#}");
        let sidecar_cost =
            |name: &str| number_at_path(trial, &["cpu_us_per_request", "processes", name]);
        (sidecar_cost("client"), sidecar_cost("gateway"), sidecar_cost("ratings"))
    });
    let [ratings, gateway] = costs.collect::<Vec<_>>().try_into().unwrap();
    // The sidecar of the gateway is busy only behind the gateway; the sidecar of ratings is busy in both cases.
    assert!(gateway.1 > 3.0 * ratings.1.max(0.1), "{gateway:?} {ratings:?}");
    assert!(gateway.2 > 0.0 && ratings.2 > 0.0, "{gateway:?} {ratings:?}");
}

/// Runs the suite gateway-ratings with eight clients, and all sidecars on one core; returns the report and the progress
/// messages.
fn gateway_ratings(home: &TempDir, arguments: &[&str]) -> (Value, String) {
    let cache = cache_folder();
    let suite_arguments = ["gateway-ratings", "--cores", "1"];
    let fixed_options = ["--connections", "8", "--cache", cache.to_str().unwrap()];
    run_bench(home, &[suite_arguments.as_slice(), &fixed_options, arguments].concat())
}

/// Returns a folder next to cargo's output, with the same lifetime.
fn cache_folder() -> PathBuf {
    let test_binary = std::env::current_exe().unwrap();
    test_binary.ancestors().nth(3).unwrap().join("bench-cache")
}
