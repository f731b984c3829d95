//! `leno tap` in a real mesh: live filtered requests in the terminal, only while the command runs.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, TestApplication, TestMesh, TestProgram, eventually, exchange_bytes,
    free_port, leno_command,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A mesh with the service `stock`, and the listener through which `web` calls it.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    _stock: TestApplication,
}

impl Shop {
    fn start_shop() -> Self {
        let stock = TestApplication::start(|request| {
            match request.method_and_target().1.starts_with("/broken") {
                true => ApplicationResponse::Bytes(
                    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_vec(),
                ),
                false => ApplicationResponse::ok("ok"),
            }
        });
        let listener = free_port();
        let manifests = [
            mesh_config("allow"),
            server_manifest("stock", stock.port(), &[]),
            client_manifest("web", &[], &[("stock", listener)]),
        ];
        let mesh = TestMesh::up(&manifests.concat());
        Self { mesh, listener: SocketAddr::from((Ipv4Addr::LOCALHOST, listener)), _stock: stock }
    }

    fn request_status(&self, path: &str) -> u16 {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: stock\r\nauthorization: Bearer hunter2\r\n\
             cookie: session=hunter2\r\nconnection: close\r\n\r\n"
        );
        exchange_bytes(self.listener, &head).expect("a response").status
    }

    fn start_tap(&self, arguments: &[&str]) -> TestProgram {
        let mut command = leno_command();
        command.arg("tap").args(arguments).arg("--data").arg(self.mesh.data_directory());
        TestProgram::start("leno tap", &mut command)
    }
}

/// Returns the requests that a tap has printed.
fn printed_requests(tap: &TestProgram) -> Vec<Value> {
    let printed_output = tap.printed_output();
    printed_output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn both_sidecars_report_requests_without_secrets() {
    let shop = Shop::start_shop();
    let mut tap =
        shop.start_tap(&["shop/stock", "-o", "json", "--path", "/orders", "--count", "2"]);
    // Sidecars receive a tap with a delay: requests are sent until both have reported a request.
    let poll = || {
        shop.request_status("/other");
        shop.request_status("/orders/7?token=hunter2");
        let records = printed_requests(&tap);
        let has_record_of = |side: &str| records.iter().any(|record| record["direction"] == side);
        (records.len() >= 2 || (has_record_of("inbound") && has_record_of("outbound")))
            .then_some(records)
    };
    let (records, _) = eventually("two requests are shown", MAX_WAIT, poll);
    assert!(tap.wait_for_exit(MAX_WAIT).success(), "the tap ends after two requests");
    assert!(!tap.printed_output().contains("hunter2"), "{}", tap.printed_output());
    for record in &records {
        assert_eq!((&record["path"], &record["response_code"]), (&"/orders/7".into(), &200.into()));
        let workload = match record["direction"].as_str() {
            Some("inbound") => "shop/stock-1",
            _ => "shop/web-1",
        };
        assert_eq!(record["workload"], workload);
    }
}

#[test]
fn filters_are_applied_by_sidecars_and_the_table_shows_matches() {
    let shop = Shop::start_shop();
    let filters = ["--status", "5xx", "--from", "shop/web", "--side", "server"];
    let tap = shop.start_tap(&[&["stock.shop"][..], &filters].concat());
    tap.wait_for_line("WORKLOAD", MAX_WAIT);
    let poll = || {
        assert_eq!((shop.request_status("/orders"), shop.request_status("/broken")), (200, 503));
        tap.printed_output().contains("/broken").then_some(())
    };
    eventually("a failure is shown", MAX_WAIT, poll);
    let printed_output = tap.printed_output();
    let line = printed_output
        .lines()
        .find(|line| line.contains("/broken"))
        .expect("the line of the failure");
    for word in ["shop/stock-1", "inbound", "shop/web", "503", "GET"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(!printed_output.contains("/orders"), "{printed_output}");
}

#[test]
fn sidecars_have_a_tap_only_while_its_command_runs() {
    let shop = Shop::start_shop();
    let tap_count = || -> usize {
        let admin = shop.mesh.sidecar("shop/stock-1").admin;
        let configuration =
            leno_tests::get_page(admin, "/config").expect("the admin endpoint responds");
        let configuration: Value =
            serde_json::from_slice(&configuration.body).expect("the configuration is JSON");
        configuration["taps"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(tap_count(), 0);
    let mut first_tap = shop.start_tap(&["shop/stock", "-o", "json"]);
    let second_tap = shop.start_tap(&["shop/stock", "-o", "json", "--method", "GET"]);
    eventually("the sidecar has both taps", MAX_WAIT, || (tap_count() == 2).then_some(()));
    first_tap.stop(MAX_WAIT);
    eventually("the first tap has ended", MAX_WAIT, || (tap_count() == 1).then_some(()));
    eventually("the second tap continues", MAX_WAIT, || {
        shop.request_status("/orders");
        (!printed_requests(&second_tap).is_empty()).then_some(())
    });
    drop(second_tap);
    eventually("all taps have ended", MAX_WAIT, || (tap_count() == 0).then_some(()));
}

/// A reader that stops reading, as in `leno tap | less`.
#[test]
fn a_tap_with_a_blocked_reader_ends_at_a_signal() {
    let shop = Shop::start_shop();
    for signal in [Signal::TERM, Signal::INT] {
        let (reader, writer) = full_pipe();
        let mut command = leno_command();
        command
            .args(["tap", "shop/stock"])
            .arg("--data")
            .arg(shop.mesh.data_directory())
            .stdout(writer);
        let mut tap = command.spawn().unwrap();
        // Signals are handled from here on, and the table header is its next output.
        eventually("the tap catches signals", MAX_WAIT, || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", tap.id())).ok()?;
            let caught_signals = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            let caught_signals = u64::from_str_radix(caught_signals.trim(), 16).ok()?;
            (caught_signals & (1 << (signal.as_raw() - 1)) != 0).then_some(())
        });
        kill_process(Pid::from_child(&tap), signal).unwrap();
        eventually("the tap has ended", MAX_WAIT, || tap.try_wait().unwrap());
        drop(reader);
    }
}

/// A command keeps running after `kubectl exec` has lost its connection.
#[test]
fn a_tap_ends_after_its_duration_even_with_a_blocked_reader() {
    let shop = Shop::start_shop();
    let tap_command = |arguments: &[&str]| {
        let mut command = leno_command();
        command
            .args(["tap", "shop/stock"])
            .args(arguments)
            .arg("--data")
            .arg(shop.mesh.data_directory());
        command
    };
    let (reader, writer) = full_pipe();
    let mut blocked_tap = tap_command(&["--duration", "1s"]).stdout(writer).spawn().unwrap();
    eventually("the blocked tap has ended", MAX_WAIT, || blocked_tap.try_wait().unwrap());
    drop(reader);
    let output = tap_command(&["--duration", "1s"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("the tap ends after 1s"), "{stderr}");
}

/// There are no requests, so no write to the closed output occurs.
#[test]
fn a_tap_ends_soon_after_its_reader_or_terminal_closes() {
    let shop = Shop::start_shop();
    let mut command = leno_command();
    command.args(["tap", "shop/stock"]).arg("--data").arg(shop.mesh.data_directory());
    let mut piped_tap = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(piped_tap.stdout.take().unwrap());
    let mut header = String::new();
    reader.read_line(&mut header).unwrap();
    assert!(header.contains("WORKLOAD"), "{header}");
    drop(reader);
    let exit_status = || piped_tap.try_wait().unwrap();
    let (status, elapsed) = eventually("the tap without a reader has ended", MAX_WAIT, exit_status);
    assert!(status.success() && elapsed < MAX_EXIT_WAIT, "{status:?} after {elapsed:?}");
    // A closed terminal sends SIGHUP only to processes of its session, and `nohup` ignores it.
    let mut python_command = Command::new("python3");
    python_command
        .args(["-c", TERMINAL_SCRIPT])
        .arg(leno_command().get_program())
        .arg(shop.mesh.data_directory());
    let output = python_command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.trim(), "ended 0", "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a tap on a terminal, outside its session, and closes the terminal after the first output.
const TERMINAL_SCRIPT: &str = r#"
import os, pty, signal, subprocess, sys
leader, terminal = pty.openpty()
signal.signal(signal.SIGHUP, signal.SIG_IGN)
command = [sys.argv[1], "tap", "shop/stock", "--data", sys.argv[2]]
tap = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
os.close(terminal)
os.read(leader, 1)
os.close(leader)
try:
    print("ended", tap.wait(timeout=10))
except subprocess.TimeoutExpired:
    tap.kill()
    print("goes on")
"#;

/// Returns a full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn invalid_tap_filters_are_rejected_immediately() {
    let shop = Shop::start_shop();
    let run_rejected_tap = |arguments: &[&str]| {
        let output = shop.mesh.run_leno(&[&["tap"], arguments].concat());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unknown_service = run_rejected_tap(&["shop/stok"]);
    assert!(
        unknown_service.contains("no service shop/stok; the mesh has shop/stock"),
        "{unknown_service}"
    );
    let invalid_status = run_rejected_tap(&["shop/stock", "--status", "6xx"]);
    assert!(invalid_status.contains("use 503, 5xx or 400-499"), "{invalid_status}");
}

const MAX_WAIT: Duration = Duration::from_secs(30);
/// The maximum time until a tap ends, far shorter than the hour after which it ends by itself.
const MAX_EXIT_WAIT: Duration = Duration::from_secs(10);
