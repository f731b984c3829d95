//! A fresh installation without meshed Pods: no command warns.

use leno_tests::cluster::{expect_stdout, kubectl};
use leno_tests::leno_command;
use serde_json::Value;

/// `./test kubernetes` runs it first, while the cluster has only its own Services.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_installation_without_workloads_has_no_warning() {
    let output = leno_command().args(["check", "--kubernetes", "-o", "json"]).output().unwrap();
    let findings: Vec<Value> = serde_json::from_str(&expect_stdout(&output)).expect("findings");
    let unexpected: Vec<&Value> =
        findings.iter().filter(|finding| finding["verdict"] != "ok").collect();
    assert!(!findings.is_empty() && unexpected.is_empty(), "{unexpected:?}");
    let pods = ["get", "pods", "-l", "app.kubernetes.io/name=leno-control"];
    let names = ["-o", "jsonpath={.items[*].metadata.name}"];
    let pods = expect_stdout(&kubectl(&[&["-n", "leno-system"], &pods[..], &names].concat()));
    for pod in pods.split_whitespace() {
        let run_leno = |arguments: &[&str]| {
            let exec = ["-n", "leno-system", "exec", pod, "--", "/leno"];
            let data = ["--data", "/var/lib/leno/control"];
            let output = kubectl(&[&exec[..], arguments, &data].concat());
            // A warning would be on standard error.
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(stderr, "", "{arguments:?}");
            expect_stdout(&output)
        };
        let rejected = run_leno(&["get", "rejected"]);
        assert!(rejected.contains("nothing is rejected"), "{rejected}");
        let status: Value = serde_json::from_str(&run_leno(&["status", "-o", "json"])).unwrap();
        assert_eq!(status["findings"], serde_json::json!([]), "{status}");
        assert_eq!(status["healthy"], true, "{status}");
        let text = run_leno(&["status"]);
        assert!(text.contains("healthy") && !text.contains("warning"), "{text}");
        for topic in TOPICS {
            run_leno(&["get", topic]);
        }
        run_leno(&["top", "--once"]);
    }
}

const TOPICS: &[&str] = &[
    "status",
    "workloads",
    "services",
    "certificates",
    "connections",
    "circuits",
    "ejected",
    "proxies",
    "changes",
    "routes",
    "policies",
    "rules",
];
