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
    page: SocketAddr,
    data: PathBuf,
}

impl RunningDemo {
    fn start_demo() -> Self {
        let mut command = leno_command();
        command.args(["demo", "--serve", "--duration", "20s"]);
        let program = TestProgram::start("leno demo", &mut command);
        let line = program.wait_for_line("watch it in a browser: http://", MAX_WAIT);
        let (_, page) = line.split_once("http://").unwrap();
        let page = page.trim_end_matches('/').parse().unwrap();
        program.wait_for_line("driving traffic", MAX_WAIT);
        Self { program, page, data: PathBuf::new() }
    }

    /// Waits until the measurement is over and only a little traffic is left.
    fn wait_until_measured(&mut self) {
        let line = self.program.wait_for_line("leno top --data ", MAX_WAIT);
        let (_, data) = line.split_once("--data ").unwrap();
        self.data = PathBuf::from(data.trim());
    }

    fn get_api(&self, path: &str) -> Value {
        let head = format!("Host: {}\r\nConnection: close\r\n\r\n", self.page);
        let response =
            exchange_bytes(self.page, &format!("GET /api{path} HTTP/1.1\r\n{head}")).unwrap();
        assert_eq!(response.status, 200, "{path}");
        serde_json::from_slice(&response.body).unwrap()
    }

    fn run_leno(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = leno_command().args(arguments).arg("--data").arg(&self.data).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
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
    // The host may be a name outside the mesh.
    assert_eq!(get(demo.page, "/api/traffic").unwrap().status, 421);
    demo.wait_until_measured();
    let (code, text) = demo.run_leno(&["status"]);
    assert_eq!(code, Some(0), "{text}");
    // Rejections of the demo itself are red once reported, until they are no longer recent.
    eventually("no request is denied anymore", Duration::from_secs(90), || {
        let traffic = demo.get_api("/traffic");
        let edges = traffic["edges"].as_array()?;
        let denied = edges.iter().find(|edge| edge["from"] == "bookinfo/outsider-1");
        denied?["success"].is_null().then_some(())
    });
    let home = format!("http://{}/", demo.page);
    run_browser("tour", &home);
    run_browser("silent", &home);
    let (code, link) = demo.run_leno(&["tap", "--page"]);
    assert!(code == Some(0) && link.starts_with(&format!("{home}#/live/")), "{link}");
    run_browser("live", link.trim());
    let red_points = |text: &str| -> u32 {
        let (_, number) = text.split_once("red points: ").expect(text);
        number.trim().parse().expect(text)
    };
    let before = red_points(&run_browser("calm", &home));

    deny_calls_of_details(&demo);
    eventually("details fails", Duration::from_secs(90), || {
        let rates = demo.service_rates("bookinfo/details")?;
        rates["success"].as_f64().filter(|success| *success < 0.5)
    });
    let failing = red_points(&run_browser("failing", &home));
    assert!(failing > before + 500, "{before} red points before, {failing} now");
    let (code, text) = demo.run_leno(&["status"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("✗ bookinfo/details") && text.contains("leno explain denied"), "{text}");
    let (code, text) = demo.run_leno(&["top", "--once", "--sort", "success"]);
    // The pages that depend on it fail as well.
    let mut top_lines = text.lines().skip(1).take(2);
    assert!(
        code == Some(0) && top_lines.any(|line| line.starts_with("bookinfo/details")),
        "{text}"
    );
    assert!(text.contains("bookinfo/productpage-1") && text.contains("mCPU"), "{text}");
    assert_decision_counts(&demo);
    assert!(demo.program.stop(MAX_WAIT).code().is_some());
}

/// Removes the policy that allows productpage to call details.
fn deny_calls_of_details(demo: &RunningDemo) {
    let file = demo.data.parent().unwrap().join("bookinfo.yaml");
    let manifests = std::fs::read_to_string(&file).unwrap();
    let is_kept = |document: &&str| {
        !(document.contains("kind: TrafficTarget")
            && document.contains("name: details, namespace: bookinfo}\nspec"))
    };
    let remaining: Vec<&str> = manifests.split("\n---\n").filter(is_kept).collect();
    assert_eq!(remaining.len() + 1, manifests.split("\n---\n").count(), "one policy is removed");
    std::fs::write(&file, remaining.join("\n---\n")).unwrap();
}

fn assert_decision_counts(demo: &RunningDemo) {
    let (_, text) = demo.run_leno(&["get", "routes", "-o", "wide"]);
    assert!(text.contains("REQUESTS") && text.contains("100 %"), "{text}");
    assert!(text.contains("MATCHES 1H") && text.contains("0: "), "{text}");
    let (_, text) = demo.run_leno(&["get", "policies", "-o", "wide"]);
    assert!(text.lines().any(|line| line.ends_with(|last: char| last.is_ascii_digit())), "{text}");
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
    let page = control.get_json("status")["page"].as_str().map(str::to_owned);
    run_browser("crowd", &page.expect("the mesh has a page"));
    assert!(control.program.stop(MAX_WAIT).success());
}

/// Runs a script of `tests/programs/page` in a real browser and returns its output. The environment variable
/// `LENO_PICTURES` names a folder for screenshots.
pub(crate) fn run_browser(config: &str, url: &str) -> String {
    let mut command = page_script(config, url);
    if let Some(folder) = std::env::var_os("LENO_PICTURES") {
        command.arg(folder);
    }
    let mut browser = TestProgram::start(&format!("the scenario {config}"), &mut command);
    let status = browser.wait_for_exit(4 * MAX_WAIT);
    assert!(status.success(), "{config}: {status}\n{}", browser.printed_output());
    browser.printed_output()
}

/// The timeout of conditions, far longer than any step takes.
const MAX_WAIT: Duration = Duration::from_secs(90);
