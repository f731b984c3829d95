//! Traces at a real Zipkin server.

use std::process::Command;

use leno_tests::{TestProgram, get, zipkin_path};
use serde_json::Value;

use super::*;

#[test]
#[ignore = "fetches a server of 86 MB with Maven: `./test collectors` runs it"]
fn zipkin_has_the_spans_of_both_sidecars() {
    let port = free_port();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut command = Command::new("java");
    command.args(["-Xmx192m", "-jar"]).arg(zipkin_path());
    let listener_settings =
        ["ip=127.0.0.1".to_owned(), format!("port={port}"), "protocols[0]=http".to_owned()];
    command.args(listener_settings.map(|setting| format!("--armeria.ports[0].{setting}")));
    let _server = TestProgram::start("Zipkin", &mut command);
    let is_healthy = || get(address, "/health").ok().filter(|health| health.status == 200);
    eventually("Zipkin is up", Duration::from_secs(180), is_healthy);
    let shop = Shop::start_shop(&format!(
        "  tracing:\n    sampling: 100%\n    propagation: b3\n    export: {{zipkin: {{endpoint: \
         'http://127.0.0.1:{port}'}}}}\n"
    ));
    shop.wait_for_tracing();
    shop.send_traced("/orders", 1, "01");
    shop.send_traced("/broken", 2, "00");
    for (number, has_error) in [(1, false), (2, true)] {
        let trace_path = format!("/api/v2/trace/{TRACE_ID_PREFIX}{number:02}");
        let spans = eventually("both spans have arrived", MAX_WAIT, || {
            let response =
                get(address, &trace_path).ok().filter(|response| response.status == 200)?;
            let spans: Value = serde_json::from_slice(&response.body).ok()?;
            spans.as_array().filter(|spans| spans.len() == 2).cloned()
        });
        let (spans, _) = spans;
        let span_of =
            |kind| spans.iter().find(|span| span["kind"] == kind).expect("a span of each");
        let (client_span, server_span) = (span_of("CLIENT"), span_of("SERVER"));
        assert_eq!(
            (&client_span["parentId"], &server_span["parentId"]),
            (&PARENT_SPAN_ID.into(), &client_span["id"])
        );
        assert_eq!(client_span["localEndpoint"]["serviceName"], "web.shop");
        assert_eq!(server_span["localEndpoint"]["serviceName"], "stock.shop");
        assert_eq!(server_span["remoteEndpoint"]["serviceName"], "web.shop");
        assert_eq!(server_span["tags"]["error"].is_string(), has_error);
    }
}
