//! `leno bench` as run by a user: short, and entirely on this machine.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests print what they skip, and panic on a failure"
)]

mod java;

use std::time::Duration;

use leno_tests::{
    PageElement, RenderedPage, TestProgram, child_processes, eventually, is_running, leno_command,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Runs a suite in its shortest form; returns the report and the progress output.
fn run_bench(home: &TempDir, arguments: &[&str]) -> (Value, String) {
    let mut command = leno_command();
    command.arg("bench").args(arguments).args(SHORT_RUN_OPTIONS).args(["-o", "json"]);
    // No contender is installed here.
    command.env("XDG_STATE_HOME", home.path());
    let output = command.output().unwrap();
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{progress}");
    (serde_json::from_slice(&output.stdout).unwrap(), progress)
}

fn number_at_path(value: &Value, path: &[&str]) -> f64 {
    let number = path.iter().fold(value, |value, key| &value[*key]);
    number.as_f64().unwrap_or_else(|| panic!("{path:?} is no number in {value:#}"))
}

#[test]
fn every_contender_gets_every_figure() {
    let home = tempfile::tempdir().unwrap();
    let contenders = "none,floor,leno";
    let (report, progress) = run_bench(
        &home,
        &["sidecar", "--contenders", contenders, "--connections", "8", "--seed", "1"],
    );
    assert_eq!(report["suite"], "sidecar");
    assert!(report["skipped"].as_array().is_some_and(Vec::is_empty), "{}", report["skipped"]);
    assert!(progress.contains("left"), "the remaining time is printed: {progress}");
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
            assert!(number_at_path(outcome, path) > 0.0, "{name} {path:?}: {outcome:#}");
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
        assert!(number_at_path(leno, &path) > 0.0, "{path:?}: {leno:#}");
    }
    let sidecars = &leno["cpu_us_per_request"]["processes"];
    assert!(
        number_at_path(sidecars, &["client"]) > 0.0 && number_at_path(sidecars, &["server"]) > 0.0
    );
    let baseline = number_at_path(leno, &["ratio_to_leno", "cpu_us_per_request"]);
    assert!((baseline - 1.0).abs() < f64::EPSILON, "{baseline}");
    // The report alone suffices to repeat the measurement.
    let contender = report["contenders"].as_array().unwrap();
    let contender = contender.iter().find(|contender| contender["name"] == "leno").unwrap();
    let manifests = &contender["configuration"][0]["files"][0][1];
    assert!(manifests.as_str().is_some_and(|text| text.contains("defaultPolicy: deny")));
}

#[test]
fn missing_contenders_are_named_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let (report, _) = run_bench(&home, &["sidecar", "--contenders", "none,envoy"]);
    if report["cases"][0]["contenders"]["envoy"].is_object() {
        eprintln!("skipped: envoy is installed for all users");
        return;
    }
    let skipped = &report["skipped"][0];
    assert_eq!(skipped["name"], "envoy");
    let reason = skipped["reason"].as_str().unwrap();
    assert!(reason.contains("leno bench install envoy"), "{reason}");
}

#[test]
fn nginx_sidecars_do_the_same_work() {
    let home = tempfile::tempdir().unwrap();
    let (report, _) = run_bench(&home, &["sidecar", "--contenders", "none,nginx"]);
    let nginx = &report["cases"][0]["contenders"]["nginx"];
    if !nginx.is_object() {
        let skip_reason = report["skipped"][0]["reason"].as_str().unwrap_or_default();
        assert!(skip_reason.contains("not installed"), "{}", report["skipped"]);
        eprintln!("skipped: {skip_reason}");
        return;
    }
    assert_eq!(nginx["failed"], 0, "{nginx:#}");
    assert!(number_at_path(nginx, &["cpu_us_per_request", "sum"]) > 0.0);
}

#[test]
fn a_contender_file_of_the_user_is_measured() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("mine.yaml");
    let program = leno_command().get_program().to_string_lossy().into_owned();
    let description = format!(
        "name: mine\nabout: a forwarder\nlayout: http\nprogram: {program}\nversion: [--version]\n\
         processes:\n- name: forwarder\n  command: [\"@program@\", bench, floor, --port, \
         \"@port:entry@\", --to, \"@port:backend@\"]\n"
    );
    std::fs::write(&file, description).unwrap();
    let contender = format!("command:{}", file.display());
    let (report, _) =
        run_bench(&home, &["sidecar", "--contenders", &contender, "--work", "http,fresh"]);
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let contender = &case["contenders"]["mine"];
        assert_eq!(contender["failed"], 0, "{contender:#}");
        assert!(number_at_path(contender, &["rps"]) > 0.0);
    }
}

#[test]
fn suites_report_their_figures_in_the_form_of_published_tables() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, columns, rows) in [
        (&["latency", "--rates", "100,200"][..], 3, 10),
        (&["router", "--delay", "0s"], 8, 2),
        (&["scale", "--sidecars", "140", "--real", "20", "--services", "10,100"], 2, 14),
    ] {
        let contenders = ["--contenders", "none,leno"];
        let (report, progress) = run_bench(&home, &[arguments, &contenders].concat());
        let table = &report["tables"][0];
        assert_eq!(table["columns"].as_array().map(Vec::len), Some(columns), "{progress}{table:#}");
        assert_eq!(table["rows"].as_array().map(Vec::len), Some(rows), "{progress}{table:#}");
        let is_complete = |row: &Value| !row.as_array().unwrap().contains(&Value::Null);
        assert!(table["rows"].as_array().unwrap().iter().all(is_complete), "{progress}{table:#}");
        assert!(!report["published"].as_array().unwrap().is_empty());
        assert!(!report["not_shown"].as_array().unwrap().is_empty());
    }
}

#[test]
fn the_page_shows_tables_and_plots_in_a_browser() {
    let home = tempfile::tempdir().unwrap();
    let page = home.path().join("report.html");
    let page_path = page.to_str().unwrap();
    let arguments =
        ["gateway-ratings", "--contenders", "none,leno", "--cores", "1", "--html", page_path];
    run_bench(&home, &arguments);
    let text = std::fs::read_to_string(&page).unwrap();
    let external_references = ["src=", "href=\"http", "@import", "<script"];
    assert!(
        !external_references.iter().any(|reference| text.contains(reference)),
        "the page refers to no other file"
    );
    let rendered = RenderedPage::open_page(&page, home.path());
    for text in ["Two call paths of bookinfo", "leno, 1 CPU", "3395"] {
        assert!(rendered.document.contains(text), "{text} is missing in {}", rendered.document);
    }
    let count_large_elements = |tag: &str| {
        let elements = rendered.elements.iter().filter(|element| element.tag == tag);
        let large_elements: Vec<&PageElement> =
            elements.filter(|element| element.width >= 300 && element.height >= 60).collect();
        for element in &large_elements {
            assert!(
                rendered.count_colors(element) >= MIN_COLORS,
                "{element:?} has no visible content"
            );
        }
        large_elements.len()
    };
    // The table in the published form, one table for each of the two cases, and the published table; four plots.
    assert!(
        count_large_elements("table") >= 4 && count_large_elements("svg") >= 4,
        "{:#?}",
        rendered.elements
    );
}

#[test]
fn an_interrupted_benchmark_leaves_no_process() {
    let mut command = leno_command();
    command.args(["bench", "sidecar", "--contenders", "leno", "--duration", "60s"]);
    let mut bench = TestProgram::start("leno bench", &mut command);
    bench.wait_for_line("leno, repeat 1", MAX_WAIT);
    // Control plane, two sidecars, backend and load generator.
    let (processes, _) = eventually("all programs run", MAX_WAIT, || {
        let processes = child_processes(bench.pid());
        (processes.len() == 5).then_some(processes)
    });
    bench.send_signal(Signal::INT);
    assert!(!bench.wait_for_exit(MAX_WAIT).success());
    assert!(
        bench.printed_output().contains("stopped before the end"),
        "{}",
        bench.printed_output()
    );
    for child in processes {
        eventually(&format!("{} has ended", child.command), MAX_WAIT, || {
            (!is_running(child.pid)).then_some(())
        });
    }
}

const SHORT_RUN_OPTIONS: [&str; 6] = ["--duration", "2s", "--warmup", "200ms", "--repeats", "1"];
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The minimum number of colors of a visible element: background, lines, text and antialiasing.
const MIN_COLORS: usize = 8;
