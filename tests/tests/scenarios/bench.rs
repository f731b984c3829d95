//! `leno bench` as run by a user: short, and entirely on this machine.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "all of it is tests, which say what they leave out and fail where something is amiss"
)]

mod java;

use std::time::Duration;

use leno_tests::{
    PagePart, RenderedPage, TestProgram, child_processes, eventually, is_running, leno_command,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Runs a suite in its shortest form; returns the report and the progress output.
fn run_bench(home: &TempDir, arguments: &[&str]) -> (Value, String) {
    let mut command = leno_command();
    command.arg("bench").args(arguments).args(SHORT).args(["-o", "json"]);
    // No contender is installed here.
    command.env("XDG_STATE_HOME", home.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

fn number_at(value: &Value, path: &[&str]) -> f64 {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found.as_f64().unwrap_or_else(|| panic!("{path:?} is no number in {value:#}"))
}

#[test]
fn every_contender_gets_every_figure() {
    let home = tempfile::tempdir().unwrap();
    let contenders = "none,floor,leno";
    let (report, said) = run_bench(
        &home,
        &["sidecar", "--contenders", contenders, "--connections", "8", "--seed", "1"],
    );
    assert_eq!(report["suite"], "sidecar");
    assert!(report["skipped"].as_array().is_some_and(Vec::is_empty), "{}", report["skipped"]);
    assert!(said.contains("left"), "it says how long it takes: {said}");
    let case = &report["cases"][0];
    for name in ["none", "floor", "leno"] {
        let outcome = &case["contenders"][name];
        for path in [
            &["rps"][..],
            &["latency_ms", "p50"],
            &["latency_ms", "p90"],
            &["latency_ms", "p99"],
            &["latency_ms", "p999"],
            &["ratio_to_leno", "rps"],
        ] {
            assert!(number_at(outcome, path) > 0.0, "{name} {path:?}: {outcome:#}");
        }
        assert_eq!(outcome["failed"], 0, "{name}: {outcome:#}");
        assert_eq!(outcome["repeats"].as_array().map(Vec::len), Some(1));
    }
    let leno = &case["contenders"]["leno"];
    for path in [
        ["cpu_us_per_request", "sum"],
        ["memory_kib", "idle_private"],
        ["memory_kib", "load_private"],
        ["memory_kib", "load_pss"],
    ] {
        assert!(number_at(leno, &path) > 0.0, "{path:?}: {leno:#}");
    }
    let sidecars = &leno["cpu_us_per_request"]["processes"];
    assert!(number_at(sidecars, &["client"]) > 0.0 && number_at(sidecars, &["server"]) > 0.0);
    let baseline = number_at(leno, &["ratio_to_leno", "cpu_us_per_request"]);
    assert!((baseline - 1.0).abs() < f64::EPSILON, "{baseline}");
    // The report alone suffices to repeat the measurement.
    let facts = report["contenders"].as_array().unwrap();
    let facts = facts.iter().find(|facts| facts["name"] == "leno").unwrap();
    let manifests = &facts["configuration"][0]["files"][0][1];
    assert!(manifests.as_str().is_some_and(|text| text.contains("defaultPolicy: deny")));
}

#[test]
fn missing_contenders_are_named_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let (report, _) = run_bench(&home, &["sidecar", "--contenders", "none,envoy"]);
    if report["cases"][0]["contenders"]["envoy"].is_object() {
        eprintln!("skipped: envoy is installed for everybody here");
        return;
    }
    let skipped = &report["skipped"][0];
    assert_eq!(skipped["name"], "envoy");
    let reason = skipped["reason"].as_str().unwrap();
    assert!(reason.contains("leno bench install envoy"), "{reason}");
}

#[test]
fn a_foreign_pair_of_sidecars_does_the_same_work() {
    let home = tempfile::tempdir().unwrap();
    let (report, _) = run_bench(&home, &["sidecar", "--contenders", "none,nginx"]);
    let nginx = &report["cases"][0]["contenders"]["nginx"];
    if !nginx.is_object() {
        let missing = report["skipped"][0]["reason"].as_str().unwrap_or_default();
        assert!(missing.contains("not installed"), "{}", report["skipped"]);
        eprintln!("skipped: {missing}");
        return;
    }
    assert_eq!(nginx["failed"], 0, "{nginx:#}");
    assert!(number_at(nginx, &["cpu_us_per_request", "sum"]) > 0.0);
}

#[test]
fn a_proxy_that_a_user_brings_is_measured_too() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("mine.yaml");
    let program = leno_command().get_program().to_string_lossy().into_owned();
    let description = format!(
        "name: mine\nabout: a forwarder\nlayout: http\nprogram: {program}\nversion: [--version]\n\
         processes:\n- name: forwarder\n  command: [\"@program@\", bench, floor, --port, \
         \"@port:entry@\", --to, \"@port:backend@\"]\n"
    );
    std::fs::write(&file, description).unwrap();
    let mine = format!("command:{}", file.display());
    let (report, _) = run_bench(&home, &["sidecar", "--contenders", &mine, "--work", "http,fresh"]);
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let mine = &case["contenders"]["mine"];
        assert_eq!(mine["failed"], 0, "{mine:#}");
        assert!(number_at(mine, &["rps"]) > 0.0);
    }
}

#[test]
fn suites_fill_the_tables_that_others_have_published() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, columns, rows) in [
        (&["latency", "--rates", "100,200"][..], 3, 10),
        (&["router", "--delay", "0s"], 8, 2),
        (&["scale", "--sidecars", "140", "--real", "20", "--services", "10,100"], 2, 14),
    ] {
        let ours = ["--contenders", "none,leno"];
        let (report, said) = run_bench(&home, &[arguments, &ours].concat());
        let table = &report["tables"][0];
        assert_eq!(table["columns"].as_array().map(Vec::len), Some(columns), "{said}{table:#}");
        assert_eq!(table["rows"].as_array().map(Vec::len), Some(rows), "{said}{table:#}");
        let complete = |row: &Value| !row.as_array().unwrap().contains(&Value::Null);
        assert!(table["rows"].as_array().unwrap().iter().all(complete), "{said}{table:#}");
        assert!(!report["published"].as_array().unwrap().is_empty());
        assert!(!report["not_shown"].as_array().unwrap().is_empty());
    }
}

#[test]
fn the_page_shows_tables_and_plots_in_a_browser() {
    let home = tempfile::tempdir().unwrap();
    let page = home.path().join("report.html");
    let shown = page.to_str().unwrap();
    let arguments =
        ["gateway-ratings", "--contenders", "none,leno", "--cores", "1", "--html", shown];
    run_bench(&home, &arguments);
    let text = std::fs::read_to_string(&page).unwrap();
    let outside = ["src=", "href=\"http", "@import", "<script"];
    assert!(!outside.iter().any(|part| text.contains(part)), "the page is complete in itself");
    let shown = RenderedPage::open_page(&page, home.path());
    for part in ["Two links of bookinfo", "leno, 1 CPU", "3395"] {
        assert!(shown.document.contains(part), "{part} is missing in {}", shown.document);
    }
    let large = |tag: &str| {
        let parts = shown.parts.iter().filter(|part| part.tag == tag);
        let large: Vec<&PagePart> =
            parts.filter(|part| part.width >= 300 && part.height >= 60).collect();
        for part in &large {
            assert!(shown.count_colors(part) >= COLOURS_MIN, "nothing is to be seen of {part:?}");
        }
        large.len()
    };
    // Our table in the published form, one for each link, and the published one; four plots.
    assert!(large("table") >= 4 && large("svg") >= 4, "{:#?}", shown.parts);
}

#[test]
fn nothing_is_left_running_when_it_is_interrupted() {
    let mut command = leno_command();
    command.args(["bench", "sidecar", "--contenders", "leno", "--duration", "60s"]);
    let mut bench = TestProgram::start("leno bench", &mut command);
    bench.wait_for_line("leno, repeat 1", MAX_WAIT);
    // Control plane, two sidecars, backend and load generator.
    let (started, _) = eventually("everything runs", MAX_WAIT, || {
        let started = child_processes(bench.pid());
        (started.len() == 5).then_some(started)
    });
    bench.send_signal(Signal::INT);
    assert!(!bench.wait_for_exit(MAX_WAIT).success());
    assert!(
        bench.printed_output().contains("stopped before the end"),
        "{}",
        bench.printed_output()
    );
    for child in started {
        eventually(&format!("{} has ended", child.command), MAX_WAIT, || {
            (!is_running(child.pid)).then_some(())
        });
    }
}

const SHORT: [&str; 6] = ["--duration", "2s", "--warmup", "200ms", "--repeats", "1"];
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Background, lines, text and antialiasing.
const COLOURS_MIN: usize = 8;
