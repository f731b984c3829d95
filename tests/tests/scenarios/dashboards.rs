//! Dashboards and alerts: every metric and label in them is one that the mesh has, and alerts fire.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// What `docs/metrics.md` lists, which is generated from the program: each name with its labels.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/metrics.md");
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let mut known = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [name, kind, labels, ..] = &cells[..] else { continue };
        if !["counter", "gauge", "histogram"].contains(&kind.trim()) {
            continue;
        }
        let name = quoted(name).remove(0);
        let mut labels: BTreeSet<String> = quoted(labels).into_iter().collect();
        // What Prometheus adds itself.
        labels.extend(["instance", "job"].map(str::to_owned));
        if *kind == "histogram" {
            let with_limit = labels.iter().cloned().chain(["le".to_owned()]).collect();
            known.insert(format!("{name}_bucket"), with_limit);
            known.insert(format!("{name}_sum"), labels.clone());
            known.insert(format!("{name}_count"), labels);
        } else {
            known.insert(name, labels);
        }
    }
    assert!(known.len() > 40, "{known:?}");
    known
}

/// Names of metrics in an expression, each with the labels that its selector names.
fn used(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for prefix in ["leno_", "process_"] {
        for (at, _) in expression.match_indices(prefix) {
            if expression[..at].ends_with(is_name) {
                continue;
            }
            let rest = &expression[at..];
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (name, rest) = rest.split_at(end);
            let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let selector = selector.map_or("", |(inside, _)| inside);
            let labels = selector.split("\",").filter_map(|part| {
                let label = part.trim().split(['=', '!']).next()?;
                (!label.is_empty()).then(|| label.to_owned())
            });
            found.push((name.to_owned(), labels.collect()));
        }
    }
    found
}

/// Labels that an expression groups by.
fn grouped(expression: &str) -> Vec<String> {
    let groups = expression.split(" by (").skip(1);
    let labels =
        groups.filter_map(|rest| rest.split_once(')')).flat_map(|(list, _)| list.split(','));
    labels.map(|label| label.trim().to_owned()).collect()
}

fn assert_known(place: &str, expression: &str, known: &BTreeMap<String, BTreeSet<String>>) {
    let used = used(expression);
    assert!(!used.is_empty(), "{place} uses no metric of ours: {expression}");
    for (name, labels) in &used {
        let Some(has) = known.get(name) else {
            panic!("{place}: there is no metric {name} in docs/metrics.md: {expression}");
        };
        for label in labels.iter().cloned().chain(grouped(expression)) {
            assert!(has.contains(&label), "{place}: {name} has no label {label}: {expression}");
        }
    }
}

#[test]
fn every_panel_shows_metrics_that_there_are() {
    let known = metrics();
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/leno.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut expressions = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            assert_known(title, target["expr"].as_str().unwrap(), &known);
            expressions += 1;
        }
    }
    assert!(expressions > 25, "{expressions}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["definition"].as_str() else { continue };
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inside.and_then(|inside| inside.split_once(", ")).unwrap();
        assert!(known[metric].contains(label), "{query}");
    }
}

#[test]
fn what_is_not_there_would_be_noticed() {
    let known = metrics();
    for bad in [
        "rate(leno_request_total[5m])",
        "sum by (servce) (leno_requests_total)",
        "leno_links{sid=\"x\"}",
    ] {
        let checked = std::panic::catch_unwind(|| assert_known("a panel", bad, &known));
        assert!(checked.is_err(), "{bad}");
    }
    assert_known("a panel", "sum by (side) (leno_links{side=\"x\", instance=~\"$i\"})", &known);
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    let known = metrics();
    let alerts = read("deploy/prometheus/alerts.yaml");
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    for rule in &rules {
        let name = rule.lines().next().unwrap();
        let (_, expression) = rule.split_once("expr:").unwrap();
        let end = expression.find("\n    labels:").unwrap();
        let expression = expression[..end].split("\n    for:").next().unwrap();
        assert_known(name, expression, &known);
        assert!(read("deploy/prometheus/alerts-test.yaml").contains(name), "{name} is tested");
    }
    assert!(rules.len() >= 8, "{}", rules.len());
    let tested = Command::new("promtool")
        .args(["test", "rules", "alerts-test.yaml"])
        .current_dir(root().join("deploy/prometheus"))
        .output()
        .expect("promtool is installed: ./test installs it");
    let said = String::from_utf8_lossy(&[tested.stdout, tested.stderr].concat()).into_owned();
    assert!(tested.status.success() && said.contains("SUCCESS"), "{said}");
}
