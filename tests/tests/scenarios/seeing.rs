//! Seeing the mesh: what sidecars tell, in the terminal and in a real browser.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_tests::{Driven, Program, eventually, exchange, get, leno, live_document, live_picture};
use serde_json::Value;

/// The demo, kept running with a little traffic.
struct Demo {
    program: Program,
    page: SocketAddr,
    data: PathBuf,
}

impl Demo {
    fn serve() -> Self {
        let mut command = leno();
        command.args(["demo", "--serve", "--duration", "20s"]);
        let program = Program::start("leno demo", &mut command);
        let line = program.wait_for_line("watch it in a browser: http://", PATIENCE);
        let (_, page) = line.split_once("http://").unwrap();
        let page = page.trim_end_matches('/').parse().unwrap();
        program.wait_for_line("driving traffic", PATIENCE);
        Self { program, page, data: PathBuf::new() }
    }

    /// Waits until the measurement is over and only a little traffic flows.
    fn calm(&mut self) {
        let line = self.program.wait_for_line("leno top --data ", PATIENCE);
        let (_, data) = line.split_once("--data ").unwrap();
        self.data = PathBuf::from(data.trim());
    }

    fn ask(&self, path: &str) -> Value {
        let head = format!("Host: {}\r\nConnection: close\r\n\r\n", self.page);
        let answer = exchange(self.page, &format!("GET /api{path} HTTP/1.1\r\n{head}")).unwrap();
        assert_eq!(answer.status, 200, "{path}");
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn leno(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = leno().args(arguments).arg("--data").arg(&self.data).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    }

    /// The rates of a service, once somebody told of it.
    fn service(&self, name: &str) -> Option<Value> {
        let traffic = self.ask("/traffic");
        let services = traffic["services"].as_array()?;
        services.iter().find(|service| service["name"] == name).cloned()
    }
}

#[test]
fn the_page_shows_who_calls_whom_and_what_fails() {
    let mut demo = Demo::serve();
    let called = ["productpage", "details", "reviews", "ratings", "gateway-ratings"];
    eventually("every service of bookinfo has a rate", Duration::from_secs(10), || {
        let has_rate = |name: &&str| {
            let rates = demo.service(&format!("bookinfo/{name}"))?;
            rates["per_second"].as_f64().filter(|rate| *rate > 1.0)
        };
        called.iter().map(has_rate).collect::<Option<Vec<_>>>()
    });
    // Asked for by a name that may be somebody else's.
    assert_eq!(get(demo.page, "/api/traffic").unwrap().status, 421);
    let folder = tempfile::tempdir().unwrap();
    let home = format!("http://{}/", demo.page);
    let document = live_document(&home, folder.path());
    for name in called.iter().chain(&["reviews-v1", "reviews-v3"]) {
        let node = tag(&document, &format!("data-node=\"bookinfo/{name}\""));
        assert!(node.contains("class=\"node service good\""), "{name}: {node}");
        assert!(node.contains("/s · 100 %"), "{name}: {node}");
    }
    for (from, to) in
        [("productpage", "details"), ("productpage", "reviews"), ("reviews-v3", "ratings")]
    {
        let row = format!("<td>bookinfo/{from}</td><td>bookinfo/{to}</td>");
        let (_, row) = document.split_once(&row).unwrap_or_else(|| panic!("{row} in {document}"));
        let (row, _) = row.split_once("</tr>").unwrap();
        assert!(row.contains("<td>mutual TLS</td>"), "{from} → {to}: {row}");
    }

    demo.calm();
    // Nobody may call details any more: the requests of productpage fail from now on.
    let (code, said) = demo.leno(&["status"]);
    assert_eq!(code, Some(0), "{said}");
    // What the demo itself was denied is red until it is no longer now.
    eventually("nobody is denied any more", Duration::from_secs(90), || {
        let traffic = demo.ask("/traffic");
        let edges = traffic["edges"].as_array()?;
        let denied = edges.iter().find(|edge| edge["from"] == "bookinfo/stranger-1");
        denied.is_none_or(|edge| edge["success"].is_null()).then_some(())
    });
    let calm = live_picture(&home, folder.path(), "1400,900").red();
    let file = demo.data.parent().unwrap().join("bookinfo.yaml");
    let manifests = std::fs::read_to_string(&file).unwrap();
    let keep = |document: &&str| {
        !(document.contains("kind: TrafficTarget")
            && document.contains("name: details, namespace: bookinfo}\nspec"))
    };
    let without: Vec<&str> = manifests.split("\n---\n").filter(keep).collect();
    assert_eq!(without.len() + 1, manifests.split("\n---\n").count(), "one policy is taken away");
    std::fs::write(&file, without.join("\n---\n")).unwrap();
    eventually("details fails", Duration::from_secs(90), || {
        let rates = demo.service("bookinfo/details")?;
        rates["success"].as_f64().filter(|success| *success < 0.5)
    });
    let document = live_document(&home, folder.path());
    let node = tag(&document, "data-node=\"bookinfo/details\"");
    assert!(node.contains("class=\"node service bad\""), "{node}");
    assert!(tag(&document, "data-node=\"bookinfo/ratings\"").contains("node service good"));
    let failing = live_picture(&home, folder.path(), "1400,900").red();
    assert!(failing > calm + 500, "{calm} red points before, {failing} now");

    let service = live_document(&format!("{home}#/service/bookinfo/details"), folder.path());
    for part in ["Traffic", "Latency", "Errors", "denied", "class=\"area bad\"", "failing"] {
        assert!(service.contains(part), "{part} in {service}");
    }
    let (code, said) = demo.leno(&["status"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("✗ bookinfo/details") && said.contains("leno explain denied"), "{said}");
    let (code, said) = demo.leno(&["top", "--once", "--sort", "success"]);
    // The pages that need it fail as well.
    let mut first = said.lines().skip(1).take(2);
    assert!(code == Some(0) && first.any(|line| line.starts_with("bookinfo/details")), "{said}");
    assert!(said.contains("bookinfo/productpage-1") && said.contains("mCPU"), "{said}");
    rules_say_how_often_they_decided(&demo, &home, folder.path());
    assert!(demo.program.stop(PATIENCE).code().is_some());
}

/// On the command line and on the page.
fn rules_say_how_often_they_decided(demo: &Demo, home: &str, folder: &Path) {
    let (_, said) = demo.leno(&["get", "routes", "-o", "wide"]);
    assert!(said.contains("REQUESTS") && said.contains("100 %"), "{said}");
    assert!(said.contains("HITS 1H") && said.contains("0: "), "{said}");
    let (_, said) = demo.leno(&["get", "policies", "-o", "wide"]);
    assert!(said.lines().any(|line| line.ends_with(|last: char| last.is_ascii_digit())), "{said}");
    let (_, said) = demo.leno(&["get", "rules"]);
    let decided = |kind: &str| said.lines().any(|line| line.starts_with(kind));
    assert!(decided("HTTPRoute") && decided("TrafficTarget"), "{said}");
    let document = live_document(&format!("{home}#/rules"), folder);
    assert!(document.contains("TrafficTarget") && document.contains("Hits, 1 h"), "{document}");
}

#[test]
fn live_requests_are_shown_on_the_page_to_who_may_tap() {
    let mut demo = Demo::serve();
    demo.calm();
    let folder = tempfile::tempdir().unwrap();
    let (code, link) = demo.leno(&["tap", "--page"]);
    let home = format!("http://{}/#/live", demo.page);
    assert!(code == Some(0) && link.starts_with(&home), "{link}");
    let mut browser = Driven::open(&home, folder.path());
    let rows = "document.querySelectorAll('.live tbody tr').length > 2";
    let note = |text: &str| {
        format!("document.querySelector('.note[role=status]').textContent.includes('{text}')")
    };
    // By keyboard alone: the first field has a name, and Enter begins.
    let begin = |browser: &mut Driven, status: &str| {
        browser.wait_for("document.querySelector('.live-ask input') !== null");
        assert!(browser.ask("(document.querySelector('.live-ask input').focus(), true)") == true);
        browser.write("bookinfo/reviews");
        browser.press("Tab");
        browser.write("/");
        browser.press("Tab");
        browser.write(status);
        browser.press("Enter");
    };
    begin(&mut browser, "2xx");
    browser.wait_for(&note("leno tap --page"));
    drop(browser);

    let mut browser = Driven::open(link.trim(), folder.path());
    begin(&mut browser, "2xx");
    browser.wait_for(rows);
    assert_eq!(browser.ask("location.hash"), "#/live", "the token is not left in the address");
    let cells = "[...document.querySelectorAll('.live tbody tr')].every((row) => {\
        const cells = [...row.cells].map((cell) => cell.textContent);\
        return cells[3] === 'GET' && cells[4].startsWith('/') && cells[5] === '200'; })";
    assert!(browser.ask(cells) == true, "{}", browser.ask("document.body.innerText"));
    browser.press("Escape");
    browser.wait_for(&note("Stopped."));
    let seen = browser.ask("document.querySelectorAll('.live tbody tr').length");
    // What is wrong with a filter is told where it was typed.
    assert!(
        browser.ask("(document.querySelectorAll('.live-ask input')[2].value = '', true)") == true
    );
    assert!(browser.ask("(document.querySelectorAll('.live-ask input')[2].focus(), true)") == true);
    browser.write("9xx");
    browser.press("Enter");
    browser.wait_for(&note("use 503, 5xx or 400-499"));
    assert!(seen.as_u64().is_some_and(|seen| seen > 2), "{seen}");
    assert!(demo.program.stop(PATIENCE).code().is_some());
}

/// From the tag that has an attribute to the end of the group that it opens.
fn tag<'a>(document: &'a str, attribute: &str) -> &'a str {
    let at = document.find(attribute).unwrap_or_else(|| panic!("{attribute} in {document}"));
    let start = document[..at].rfind('<').unwrap();
    let end = document[at..].find("</g>").map_or(document.len(), |end| at + end);
    &document[start..end]
}

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);
