//! The demo, as run by a new user.

use leno_tests::leno_command;
use serde_json::Value;

#[test]
fn the_demo_reports_successful_services_with_mutual_tls() {
    let demo_output =
        leno_command().args(["demo", "--duration", "3s", "-o", "json"]).output().unwrap();
    let printed_output = String::from_utf8_lossy(&demo_output.stdout).into_owned();
    assert!(
        demo_output.status.success(),
        "{printed_output}\n{}",
        String::from_utf8_lossy(&demo_output.stderr)
    );
    let report: Value = serde_json::from_str(&printed_output).unwrap();
    assert_eq!((&report["mtls"], &report["denied_status"]), (&true.into(), &403.into()));
    let services = report["services"].as_array().expect("services");
    assert!(services.len() >= 6, "{services:?}");
    for service in services {
        let figure = |key: &str| {
            service[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {service}"))
        };
        assert!(service["name"].is_string(), "{service}");
        assert!((figure("success_rate") - 1.0).abs() < f64::EPSILON, "{service}");
        for positive in ["requests", "p99_ms", "sidecar_cpu_us_per_request", "sidecar_private_kib"]
        {
            assert!(figure(positive) > 0.0, "{positive}: {service}");
        }
    }
}
