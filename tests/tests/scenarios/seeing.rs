//! Observability of the mesh: metrics of sidecars, in the terminal and in a real browser.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use leno_tests::{
    ControlProgram, TestProgram, eventually, exchange_bytes, get, leno_command, page_script,
};
use serde_json::Value;

/// The demo, kept running with a little traffic.
struct RunningDemo {
    program: TestProgram,
    page_address: SocketAddr,
    data_directory: PathBuf,
}

impl RunningDemo {
    fn start_demo() -> Self {
        let mut command = leno_command();
        command.args(["demo", "--serve", "--duration", "20s"]);
        let program = TestProgram::start("leno demo", &mut command);
        let line = program.wait_for_line("watch it in a browser: http://", MAX_WAIT);
        let (_, page_address) = line.split_once("http://").unwrap();
        let page_address = page_address.trim_end_matches('/').parse().unwrap();
        program.wait_for_line("driving traffic", MAX_WAIT);
        Self { program, page_address, data_directory: PathBuf::new() }
    }

    /// Waits until the measurement is over and only a little traffic is left.
    fn wait_until_measured(&mut self) {
        let line = self.program.wait_for_line("leno top --data ", MAX_WAIT);
        let (_, data_directory) = line.split_once("--data ").unwrap();
        self.data_directory = PathBuf::from(data_directory.trim());
    }

    fn get_api(&self, path: &str) -> Value {
        let head = format!("Host: {}\r\nConnection: close\r\n\r\n", self.page_address);
        let response =
            exchange_bytes(self.page_address, &format!("GET /api{path} HTTP/1.1\r\n{head}"))
                .unwrap();
        assert_eq!(response.status, 200, "{path}");
        serde_json::from_slice(&response.body).unwrap()
    }

    fn run_leno(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = leno_command()
            .args(arguments)
            .arg("--data")
            .arg(&self.data_directory)
            .output()
            .unwrap();
        let output_text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&output_text).into_owned())
    }

    /// Returns the rates of a service, once a sidecar has reported them.
    fn service_rates(&self, name: &str) -> Option<Value> {
        let traffic = self.get_api("/traffic");
        let services = traffic["services"].as_array()?;
        services.iter().find(|service| service["name"] == name).cloned()
    }
}

#[test]
fn the_page_shows_calls_failures_and_live_requests() {
    let mut demo = RunningDemo::start_demo();
    let services = ["productpage", "details", "reviews", "ratings", "gateway-ratings"];
    eventually("every service of bookinfo has a rate", Duration::from_secs(60), || {
        let has_rate = |name: &&str| {
            let rates = demo.service_rates(&format!("bookinfo/{name}"))?;
            rates["per_second"].as_f64().filter(|rate| *rate > 1.0)
        };
        services.iter().map(has_rate).collect::<Option<Vec<_>>>()
    });
    // The page rejects a host name that is not its own.
    assert_eq!(get(demo.page_address, "/api/traffic").unwrap().status, 421);
    demo.wait_until_measured();
    let (exit_code, text) = demo.run_leno(&["status"]);
    assert_eq!(exit_code, Some(0), "{text}");
    // Rejections of the demo itself are red once reported, until they are no longer recent.
    eventually("no request is denied anymore", Duration::from_secs(90), || {
        let traffic = demo.get_api("/traffic");
        let edges = traffic["edges"].as_array()?;
        let denied_edge = edges.iter().find(|edge| edge["from"] == "bookinfo/outsider-1");
        denied_edge?["success"].is_null().then_some(())
    });
    let home_url = format!("http://{}/", demo.page_address);
    run_browser("tour", &home_url);
    run_browser("silent", &home_url);
    let (exit_code, page_link) = demo.run_leno(&["tap", "--page"]);
    assert!(
        exit_code == Some(0) && page_link.starts_with(&format!("{home_url}#/live/")),
        "{page_link}"
    );
    run_browser("live", page_link.trim());
    let count_red_points = |text: &str| -> u32 {
        let (_, number) = text.split_once("red points: ").expect(text);
        number.trim().parse().expect(text)
    };
    let calm_points = count_red_points(&run_browser("calm", &home_url));

    deny_calls_of_details(&demo);
    eventually("details fails", Duration::from_secs(90), || {
        let rates = demo.service_rates("bookinfo/details")?;
        rates["success"].as_f64().filter(|success| *success < 0.5)
    });
    let failing_points = count_red_points(&run_browser("failing", &home_url));
    assert!(
        failing_points > calm_points + 500,
        "{calm_points} red points before, {failing_points} now"
    );
    let (exit_code, text) = demo.run_leno(&["status"]);
    assert_eq!(exit_code, Some(1), "{text}");
    assert!(text.contains("✗ bookinfo/details") && text.contains("leno explain denied"), "{text}");
    let (exit_code, text) = demo.run_leno(&["top", "--once", "--sort", "success"]);
    // The pages that depend on details fail as well.
    let mut top_lines = text.lines().skip(1).take(2);
    assert!(
        exit_code == Some(0) && top_lines.any(|line| line.starts_with("bookinfo/details")),
        "{text}"
    );
    assert!(text.contains("bookinfo/productpage-1") && text.contains("mCPU"), "{text}");
    assert_decision_counts(&demo);
    assert!(demo.program.stop(MAX_WAIT).code().is_some());
}

/// Removes the policy that allows productpage to call details.
fn deny_calls_of_details(demo: &RunningDemo) {
    let manifest_file = demo.data_directory.parent().unwrap().join("bookinfo.yaml");
    let manifests = std::fs::read_to_string(&manifest_file).unwrap();
    let is_kept = |document: &&str| {
        !(document.contains("kind: TrafficTarget")
            && document.contains("name: details, namespace: bookinfo}\nspec"))
    };
    let remaining_documents: Vec<&str> = manifests.split("\n---\n").filter(is_kept).collect();
    assert_eq!(
        remaining_documents.len() + 1,
        manifests.split("\n---\n").count(),
        "one policy is removed"
    );
    std::fs::write(&manifest_file, remaining_documents.join("\n---\n")).unwrap();
}

fn assert_decision_counts(demo: &RunningDemo) {
    let (_, text) = demo.run_leno(&["get", "routes", "-o", "wide"]);
    assert!(text.contains("REQUESTS") && text.contains("100 %"), "{text}");
    assert!(text.contains("MATCHES 1H") && text.contains("0: "), "{text}");
    let (_, text) = demo.run_leno(&["get", "policies", "-o", "wide"]);
    assert!(
        text.lines()
            .any(|line| line.ends_with(|last_character: char| last_character.is_ascii_digit())),
        "{text}"
    );
    let (_, text) = demo.run_leno(&["get", "rules"]);
    let is_listed = |kind: &str| text.lines().any(|line| line.starts_with(kind));
    assert!(is_listed("HTTPRoute") && is_listed("TrafficTarget"), "{text}");
}

#[test]
fn the_page_is_usable_within_a_second_with_a_thousand_services() {
    let service = |number: u32| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: service-{number:04}, namespace: \
             crowd}}\nspec: {{selector: {{app: none}}, ports: [{{port: 80}}]}}\n---\n"
        )
    };
    let manifests: String = (0..1000).map(service).collect();
    let mut control = ControlProgram::start(&manifests, &["--page", "127.0.0.1:0"]);
    let page_url = control.get_json("status")["page"].as_str().map(str::to_owned);
    run_browser("crowd", &page_url.expect("the mesh has a page"));
    assert!(control.program.stop(MAX_WAIT).success());
}

/// Runs a script of `tests/programs/page` in a real browser and returns its output. The environment variable
/// `LENO_PICTURES` names a folder for screenshots.
pub(crate) fn run_browser(scenario: &str, url: &str) -> String {
    let mut command = page_script(scenario, url);
    if let Some(pictures_directory) = std::env::var_os("LENO_PICTURES") {
        command.arg(pictures_directory);
    }
    let mut browser = TestProgram::start(&format!("the scenario {scenario}"), &mut command);
    let status = browser.wait_for_exit(4 * MAX_WAIT);
    assert!(status.success(), "{scenario}: {status}\n{}", browser.printed_output());
    browser.printed_output()
}

/// The timeout of conditions, far longer than any step takes.
const MAX_WAIT: Duration = Duration::from_secs(90);
