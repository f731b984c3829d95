//! Conditions that break traffic as findings: closed listeners, crash loops, circuits, state.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::{
    AdminEndpoint, ApplicationResponse, ControlProgram, SidecarProgram, TestApplication, TestMesh,
    TestProgram, eventually, exchange_bytes, free_port, get, get_page, ratings_manifests,
};

use crate::seeing::run_browser;

/// Returns the exit code and output of a command.
fn run_command(mesh: &TestMesh, arguments: &[&str]) -> (Option<i32>, String) {
    let output = mesh.run_leno(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns a client with another listener.
fn other_client(listener: u16) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: client-2, namespace: bookinfo}}\n\
         spec: {{serviceAccount: client, outbound: [{{service: ratings, port: 9080, listen: \"127.0.0.1:{listener}\"}}]}}\n"
    )
}

/// Other programs use the port of a listener, and the port of an application.
#[test]
fn a_closed_listener_and_a_crash_loop_are_findings_in_every_view() {
    let (listener_blocker, port_blocker) =
        (TestApplication::start_echo(), TestApplication::start_echo());
    let port = port_blocker.port();
    // One module only: the program exits immediately while the port is in use, even on a busy machine.
    let program = format!(
        "import socket; s = socket.create_server(('127.0.0.1', {port})); \
         response = b'HTTP/1.1 200 OK\\\\r\\\\ncontent-length: 0\\\\r\\\\nconnection: close\\\\r\\\\n\\\\r\\\\n'; \
         [(c.recv(65536), c.sendall(response), c.close()) for c, _ in iter(s.accept, None)]"
    );
    let command = format!("[\"python3\", \"-I\", \"-S\", \"-c\", \"{program}\"]");
    let listener = free_port();
    let manifests = ratings_manifests(&command, port, listener_blocker.port(), "allow");
    let mesh = TestMesh::up(&format!("{manifests}{}", other_client(listener)));
    let up_line = mesh.up.wait_for_line("The mesh is up", Duration::from_secs(60));
    // The first line names the application or its port: a busy machine restarts the program only once until then.
    let problems = ["application does not stay up", "port is not served by its application"]
        .map(|problem| format!("but 1 listener is closed and 1 {problem}"));
    assert!(problems.iter().any(|problem| up_line.contains(problem)), "{up_line}");
    // No request is forwarded to the process that has the port.
    for _ in 0..20 {
        let response = get(loopback_address(listener), "/").unwrap();
        let body = String::from_utf8_lossy(&response.body).into_owned();
        assert!(
            response.status == 503 && !body.starts_with("GET /"),
            "{}: {body}",
            response.status
        );
    }
    let closed_finding = format!("listener-127.0.0.1:{} is closed", listener_blocker.port());
    let status = eventually("status has both findings", Duration::from_secs(20), || {
        let (code, text) = run_command(&mesh, &["status"]);
        let has_both_findings = text.contains(&closed_finding) && text.contains("keeps exiting");
        (code == Some(1) && has_both_findings).then_some(text)
    });
    assert!(status.0.contains("Address already in use"), "{}", status.0);
    assert_same_findings_on_page(&mesh);
    let (code, text) = run_command(&mesh, &["get", "workloads"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("restarting ×") && text.contains("closed: listener-"), "{text}");
    let workloads = mesh.get_json("workloads");
    let workload = |name: &str| {
        let workloads = workloads.as_array().unwrap();
        workloads.iter().find(|workload| workload["name"] == name).unwrap().clone()
    };
    assert_eq!(workload("bookinfo/client-1")["outbound_listeners"][0]["state"], "closed");
    assert_eq!(workload("bookinfo/client-2")["outbound_listeners"][0]["state"], "open");
    assert_eq!(workload("bookinfo/ratings-1")["application"]["crash_looping"], true);
    let (code, text) = run_command(&mesh, &["diagnose", "bookinfo/client-1"]);
    assert!(code == Some(1) && text.contains("✗ listener"), "{text}");
    let (code, text) = run_command(&mesh, &["diagnose", "bookinfo/ratings-1"]);
    assert!(code == Some(1) && text.contains("✗ application"), "{text}");
    drop((listener_blocker, port_blocker));
    eventually("the application has its port", Duration::from_secs(60), || {
        get(loopback_address(listener), "/").ok().filter(|response| response.status == 200)
    });
    eventually("the listener is open", Duration::from_secs(60), || {
        let (_, text) = run_command(&mesh, &["status"]);
        (!text.contains("is closed")).then_some(())
    });
}

/// Checks that the page has the findings of `leno status`.
fn assert_same_findings_on_page(mesh: &TestMesh) {
    let page = mesh.get_json("status")["page"].as_str().expect("the mesh has a page").to_owned();
    let address: SocketAddr =
        page.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let finding_texts = |findings: &serde_json::Value| -> Vec<String> {
        let findings = findings.as_array().expect("a list").iter();
        findings
            .map(|finding| {
                format!("{}: {} ({})", finding["severity"], finding["message"], finding["hint"])
            })
            .collect()
    };
    // The findings change with each restart of the application.
    eventually("the page and the command have the same findings", Duration::from_secs(60), || {
        let head = format!("Host: {address}\r\nConnection: close\r\n\r\n");
        let response =
            exchange_bytes(address, &format!("GET /api/findings HTTP/1.1\r\n{head}")).unwrap();
        let on_page: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        let (_, text) = run_command(mesh, &["status", "-o", "json"]);
        let in_status: serde_json::Value = serde_json::from_str(&text).unwrap();
        (finding_texts(&on_page) == finding_texts(&in_status["findings"])).then_some(())
    });
    run_browser("conditions", &page);
}

/// Another process binds the port while the application runs and does not listen yet.
#[test]
fn requests_are_not_forwarded_to_a_port_of_another_process() {
    let port_blocker = TestApplication::start_echo();
    let (port, listener) = (port_blocker.port(), free_port());
    let mesh = TestMesh::up(&ratings_manifests("[sleep, \"600\"]", port, listener, "allow"));
    let names_port = |text: &str| text.contains(&format!("port {port} of the application"));
    eventually("status reports the port as in use", Duration::from_secs(20), || {
        let (code, text) = run_command(&mesh, &["status"]);
        (code == Some(1) && names_port(&text)).then_some(())
    });
    for _ in 0..20 {
        let response = get(loopback_address(listener), "/").unwrap();
        let body = String::from_utf8_lossy(&response.body).into_owned();
        assert!(
            response.status == 503 && !body.starts_with("GET /"),
            "{}: {body}",
            response.status
        );
    }
    let proxies = mesh.get_json("proxies");
    let admin_endpoint = AdminEndpoint::for_workload(&proxies, "bookinfo/ratings-1").unwrap();
    assert!(
        admin_endpoint.full_configuration()["application"][port.to_string()]
            .as_str()
            .unwrap()
            .contains("taken by")
    );
}

/// Responds with a word, on a port that others may share.
const SHARED_PORT_SERVER: &str = "import http.server,socket,sys\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 def do_GET(self):\n\
\x20  body=sys.argv[2].encode(); self.send_response(200); self.send_header('content-length',str(len(body))); self.end_headers(); self.wfile.write(body)\n\
\x20 def log_message(self,*a): pass\n\
class S(http.server.ThreadingHTTPServer):\n\
\x20 def server_bind(self):\n\
\x20  self.socket.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEPORT,1); super().server_bind()\n\
S(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

/// The kernel gives each of the two processes a share of the connections.
#[test]
fn requests_are_not_forwarded_to_a_port_shared_with_another_process() {
    let (port, listener) = (free_port(), free_port());
    let python_arguments = |word: &'static str| {
        ["-c".to_owned(), SHARED_PORT_SERVER.to_owned(), port.to_string(), word.to_owned()]
    };
    let application_command =
        [vec!["python3".to_owned()], python_arguments("own").to_vec()].concat();
    let mesh = TestMesh::up(&ratings_manifests(
        &serde_json::json!(application_command).to_string(),
        port,
        listener,
        "allow",
    ));
    eventually("the application responds", Duration::from_secs(60), || {
        get(loopback_address(listener), "/")
            .ok()
            .filter(|response| response.body == b"own")
            .map(drop)
    });
    let mut other_process = std::process::Command::new("python3");
    let _other =
        TestProgram::start("another process", other_process.args(python_arguments("other")));
    eventually("status names the port", Duration::from_secs(60), || {
        let (code, text) = run_command(&mesh, &["status"]);
        (code == Some(1) && text.contains(&format!("port {port} of the application"))).then_some(())
    });
    for _ in 0..20 {
        let response = get(loopback_address(listener), "/").unwrap();
        assert_eq!((response.status, response.rejection_reason()), (503, Some("port-taken")));
    }
}

/// The application's sidecar waits for ten seconds, and the client's sidecar does not repeat the wait.
#[test]
fn a_request_waits_once_for_an_application_that_does_not_listen() {
    let listener = free_port();
    let mesh = TestMesh::up(&ratings_manifests("[sleep, \"600\"]", free_port(), listener, "allow"));
    let response = get(loopback_address(listener), "/").unwrap();
    assert_eq!((response.status, response.rejection_reason()), (503, Some("connect-failed")));
    let client =
        AdminEndpoint::for_workload(&mesh.get_json("proxies"), "bookinfo/client-1").unwrap();
    let metrics = String::from_utf8(get_page(client.address, "/metrics").unwrap().body).unwrap();
    let retries = metrics.lines().find(|line| line.starts_with("leno_retries_total "));
    assert_eq!(retries, Some("leno_retries_total 0"), "{metrics}");
}

/// Requests wait at most 10 s; the application is reported soon after that, before any request has failed.
#[test]
fn an_application_that_never_listens_is_a_finding_without_a_request() {
    let port = free_port();
    let mesh = TestMesh::up(&ratings_manifests("[sleep, \"600\"]", port, free_port(), "allow"));
    let finding =
        format!("port {port} of the application is not served: no process listens on the port");
    eventually("status names the port", Duration::from_secs(40), || {
        let (code, text) = run_command(&mesh, &["status"]);
        (code == Some(1) && text.contains(&finding)).then_some(())
    });
    let (code, text) =
        run_command(&mesh, &["diagnose", "bookinfo/client-1", "--to", "bookinfo/ratings"]);
    let finding =
        format!("bookinfo/ratings-1: port {port} is not served: no process listens on the port");
    assert!(code == Some(1) && text.contains(&format!("✗ application  {finding}")), "{text}");
    assert!(text.contains("✓ connectivity bookinfo/ratings: reached 1 of 1 endpoint"), "{text}");
    let (code, text) = run_command(&mesh, &["get", "workloads"]);
    assert!(code == Some(0) && text.contains("no process listens on the port"), "{text}");
}

#[test]
fn an_open_circuit_is_listed_and_a_finding() {
    let application = TestApplication::start(|_| {
        let head = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
        ApplicationResponse::Bytes(head.as_bytes().to_vec())
    });
    let listener = free_port();
    let circuit_breaker_manifest = "---\napiVersion: leno.dev/v1alpha1\nkind: CircuitBreaker\n\
                   metadata: {name: ratings, namespace: bookinfo}\n\
                   spec: {targetRefs: [{kind: Service, name: ratings}], trip: {failures: [5xx], consecutiveFailures: 3, openDuration: 60s}}\n";
    let manifests = ratings_manifests("", application.port(), listener, "allow");
    let mesh = TestMesh::up(&format!("{manifests}{circuit_breaker_manifest}"));
    assert_eq!(run_command(&mesh, &["get", "circuits", "-o", "json"]).0, Some(0));
    eventually("the circuit opens", Duration::from_secs(20), || {
        let response = get(loopback_address(listener), "/").unwrap();
        response
            .rejection_reason()
            .is_some_and(|reason| reason.contains("circuit-open"))
            .then_some(())
    });
    let (code, text) = run_command(&mesh, &["get", "circuits"]);
    assert!(code == Some(0) && text.contains("bookinfo/ratings:9080"), "{text}");
    assert!(text.contains("open") && text.contains("consecutive"), "{text}");
    eventually("status names the circuit", Duration::from_secs(20), || {
        let (code, text) = run_command(&mesh, &["status"]);
        (code == Some(1) && text.contains("the circuit to bookinfo/ratings:9080 is open"))
            .then_some(())
    });
}

#[test]
fn unwritable_state_of_a_sidecar_is_a_finding_until_it_is_writable() {
    let application = TestApplication::start_echo();
    let (listener, other_listener) = (free_port(), free_port());
    let mesh = TestMesh::up(&ratings_manifests("", application.port(), listener, "allow"));
    eventually("the client responds", Duration::from_secs(20), || {
        get(loopback_address(listener), "/").ok().filter(|response| response.status == 200)
    });
    // A directory in place of the file makes writes fail even for root.
    let config_file = mesh.data_directory().join("proxies/bookinfo/client-1/config.bin");
    eventually("the state cannot be written", Duration::from_secs(20), || {
        std::fs::remove_file(&config_file).ok();
        std::fs::create_dir_all(config_file.join("in the way")).ok()
    });
    mesh.write("other.yaml", other_client(other_listener).trim_start_matches("---\n"));
    let manifests = ratings_manifests("", application.port(), listener, "deny");
    mesh.write("mesh.yaml", &manifests);
    eventually("status names the directory", Duration::from_secs(30), || {
        let (code, text) = run_command(&mesh, &["status"]);
        let is_named = text.contains("the sidecar of bookinfo/client-1 cannot write its state");
        (code == Some(1) && is_named).then_some(())
    });
    std::fs::remove_dir_all(&config_file).unwrap();
    eventually("the state is written again", Duration::from_secs(60), || {
        let (_, text) = run_command(&mesh, &["status"]);
        (!text.contains("cannot write its state")).then_some(())
    });
}

#[test]
fn an_empty_endpoint_list_and_a_rejected_join_are_findings() {
    let listener = free_port();
    let manifests = ratings_manifests("", free_port(), listener, "allow");
    let control = ControlProgram::start(&manifests, &[]);
    let run_leno = |arguments: &[&str]| {
        let output = control.run_leno(arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let token = control.issue_token("bookinfo/client-1");
    let used_token = control.data_directory().join("used.token");
    std::fs::copy(&token, &used_token).unwrap();
    let state_directory = tempfile::tempdir().unwrap();
    let first_sidecar = SidecarProgram::start_unready(
        "bookinfo/client-1",
        &token,
        &state_directory.path().join("one"),
        &[],
    );
    eventually("the first sidecar joins", Duration::from_secs(30), || {
        let proxies = control.get_json("proxies");
        (proxies.as_array()?.len() == 1).then_some(())
    });
    drop(first_sidecar);
    let _second = SidecarProgram::start_unready(
        "bookinfo/client-1",
        &used_token,
        &state_directory.path().join("two"),
        &[],
    );
    eventually("status names the join", Duration::from_secs(30), || {
        let (code, text) = run_leno(&["status"]);
        (code == Some(1) && text.contains("bookinfo/client-1: a joining sidecar is rejected"))
            .then_some(())
    });
    let (code, text) = run_leno(&["diagnose", "bookinfo/client-1"]);
    assert!(code == Some(1) && text.contains("token"), "{text}");
    eventually("status names the endpoints", Duration::from_secs(60), || {
        let (code, text) = run_leno(&["status"]);
        (code == Some(1) && text.contains("bookinfo/ratings:9080 has no endpoint")).then_some(())
    });
}
