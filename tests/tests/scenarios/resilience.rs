//! Everyday machine failures: blocked outputs, signals, missing files, killed meshes.
#![allow(clippy::print_stderr, reason = "a skipped scenario is reported")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic on a failure")]

use std::io::{BufRead as _, BufReader, PipeReader, pipe};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leno_tests::{
    TestApplication, TestConnection, TestMesh, TestProgram, child_processes, eventually, free_port,
    get, leno_command, ratings_manifests,
};
use leno_tests::{is_root, signal_pid};
use rustix::process::Signal;

const MAX_WAIT: Duration = Duration::from_secs(60);

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// `leno up` with both outputs in one pipe, and a reader that may stop reading.
struct PipedMesh {
    up: Child,
    reader: BufReader<PipeReader>,
    _directory: tempfile::TempDir,
}

impl PipedMesh {
    fn start_mesh(manifests: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("mesh.yaml"), manifests).unwrap();
        let (reader, writer) = pipe().unwrap();
        let mut command = leno_command();
        command.arg("up").arg("-f").arg(directory.path().join("mesh.yaml"));
        command.arg("--data").arg(directory.path().join("data")).args(["--access-log", "json"]);
        let up = command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .spawn()
            .unwrap();
        // The command holds the writing end until it is dropped.
        drop(command);
        let mut piped_mesh = Self { up, reader: BufReader::new(reader), _directory: directory };
        let mut line = String::new();
        while !line.contains("The mesh is up") {
            line.clear();
            assert!(piped_mesh.reader.read_line(&mut line).unwrap() > 0, "leno up has ended");
        }
        piped_mesh
    }

    fn wait_for_exit(&mut self) -> std::process::ExitStatus {
        eventually("leno up ends", MAX_WAIT, || self.up.try_wait().unwrap()).0
    }
}

impl Drop for PipedMesh {
    fn drop(&mut self) {
        drop(self.up.kill());
        drop(self.up.wait());
    }
}

#[test]
fn a_blocked_output_delays_neither_requests_nor_the_stop() {
    let (application, listener) = (TestApplication::start_echo(), free_port());
    let mut mesh =
        PipedMesh::start_mesh(&ratings_manifests("", application.port(), listener, "allow"));
    let mut connection = eventually("the listener accepts", MAX_WAIT, || {
        TestConnection::open(loopback_address(listener)).ok()
    })
    .0;
    // The access log lines of these requests exceed the capacity of the pipe and all queues.
    for _ in 0..6000 {
        assert_eq!(connection.get("/").unwrap().status, 200);
    }
    signal_pid(mesh.up.id(), Signal::TERM);
    assert!(mesh.wait_for_exit().success());
}

#[test]
fn unhandled_signals_stop_neither_a_mesh_nor_a_sidecar() {
    let (application, listener) = (TestApplication::start_echo(), free_port());
    let mut mesh = TestMesh::up(&ratings_manifests("", application.port(), listener, "allow"));
    let mut connection = TestConnection::open(loopback_address(listener)).unwrap();
    let sidecar_pid = mesh.sidecar("bookinfo/client-1").pid;
    let signals = [
        Signal::HUP,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::STKFLT,
        Signal::XFSZ,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::WINCH,
        Signal::URG,
    ];
    for signal in signals {
        for pid in [mesh.up.pid(), sidecar_pid] {
            signal_pid(pid, signal);
            assert_eq!(connection.get("/").unwrap().status, 200, "{signal:?}");
        }
    }
    // SIGRTMIN + 1 and SIGRTMAX.
    for signal in ["35", "64"] {
        for pid in [mesh.up.pid(), sidecar_pid] {
            let kill_status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
            assert!(kill_status.unwrap().success());
            assert_eq!(connection.get("/").unwrap().status, 200, "{signal}");
        }
    }
    mesh.up.wait_for_line("SIGHUP: reloading the files", MAX_WAIT);
    assert_eq!(mesh.sidecar("bookinfo/client-1").pid, sidecar_pid, "the same process serves");
    mesh.up.send_signal(Signal::QUIT);
    assert!(mesh.up.wait_for_exit(MAX_WAIT).success());
}

/// A power failure, or the CPU time limit: requests complete, and no process is left over.
#[test]
fn a_terminating_signal_stops_a_mesh_gracefully() {
    for signal in [Signal::POWER, Signal::XCPU] {
        let (application, listener) = (TestApplication::start_echo(), free_port());
        let mut mesh = TestMesh::up(&ratings_manifests("", application.port(), listener, "allow"));
        let children: Vec<u32> =
            child_processes(mesh.up.pid()).iter().map(|child| child.pid).collect();
        assert!(!children.is_empty());
        signal_pid(mesh.up.pid(), signal);
        assert!(mesh.up.wait_for_exit(MAX_WAIT).success(), "{signal:?}");
        for child in children {
            let has_ended = || (!Path::new(&format!("/proc/{child}")).exists()).then_some(());
            eventually("the child has ended", MAX_WAIT, has_ended);
        }
    }
}

#[test]
fn missing_configuration_is_reported_and_deletes_nothing() {
    let (application, listener) = (TestApplication::start_echo(), free_port());
    let mesh = TestMesh::up(&ratings_manifests("", application.port(), listener, "allow"));
    let manifest_directory = mesh.manifest_file("").parent().unwrap().join("mesh");
    let moved_directory = manifest_directory.with_file_name("away");
    std::fs::rename(&manifest_directory, &moved_directory).unwrap();
    eventually("status has a finding", MAX_WAIT, || {
        let status_output = mesh.run_leno(&["status"]);
        let stdout = String::from_utf8_lossy(&status_output.stdout).into_owned();
        (stdout.contains(&*manifest_directory.to_string_lossy()) && !status_output.status.success())
            .then_some(())
    });
    assert_eq!(get(loopback_address(listener), "/").unwrap().status, 200);
    std::fs::rename(&moved_directory, &manifest_directory).unwrap();
    eventually("status has no finding", MAX_WAIT, || {
        mesh.run_leno(&["status"]).status.success().then_some(())
    });
    mesh.remove("mesh.yaml");
    eventually("the listener closes", MAX_WAIT, || {
        TestConnection::open(loopback_address(listener)).err()
    });
}

#[test]
fn a_removed_socket_is_recreated() {
    let (application, listener) = (TestApplication::start_echo(), free_port());
    let mesh = TestMesh::up(&ratings_manifests("", application.port(), listener, "allow"));
    std::fs::remove_file(mesh.data_directory().join("control.sock")).unwrap();
    eventually("status succeeds", MAX_WAIT, || {
        mesh.run_leno(&["status"]).status.success().then_some(())
    });
}

#[test]
fn a_long_data_directory_path_and_empty_homes_work() {
    let directory = tempfile::tempdir().unwrap();
    let data_directory = directory.path().join("a-directory-with-a-long-name".repeat(4)).join("d");
    let manifest_file = directory.path().join("mesh.yaml");
    std::fs::write(&manifest_file, ratings_manifests("", free_port(), free_port(), "allow"))
        .unwrap();
    let mut command = leno_command();
    command.env("HOME", "").env("XDG_STATE_HOME", "");
    let up = TestProgram::start(
        "leno up",
        command.args(["up", "-f"]).arg(&manifest_file).arg("--data").arg(&data_directory),
    );
    up.wait_for_line("The mesh is up", MAX_WAIT);
    let status_output = leno_command()
        .args(["get", "workloads", "--data"])
        .arg(&data_directory)
        .env("HOME", "")
        .output();
    assert!(status_output.unwrap().status.success());
}

/// Returns `leno up --netns` in its own network and mount namespaces.
fn netns_command(directory: &Path) -> Command {
    let script = "ip link set lo up && mkdir -p /run/netns /run/leno && mount -t tmpfs tmpfs /run/netns \
                  && mount -t tmpfs tmpfs /run/leno && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-n", "-m", "sh", "-c", script, "sh", "python3", "-c", KILL_SCRIPT]);
    command.arg(leno_command().get_program()).arg(directory);
    command
}

/// Starts a mesh, kills it, and starts the next one while the first is a zombie; then kills that mesh, removes
/// the leftovers, and prints those that remain.
const KILL_SCRIPT: &str = r#"
import os, subprocess, sys
leno, directory = sys.argv[1:]
def start():
    up = subprocess.Popen([leno, "up", "-f", directory + "/mesh.yaml", "--netns", "--data", directory + "/data"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = ""
    for line in up.stdout:
        printed += line
        if "The mesh is up" in line:
            return up
    sys.exit("no mesh: " + printed)
def leftovers():
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [l.split(":")[1].strip() for l in links.splitlines() if ": l" in l and ": lo:" not in l] + spaces.split()
first = start()
first.kill()                       # not waited for: a zombie
second = start()
print("first left", [l for l in leftovers() if str(first.pid) in l])
second.kill()
clean = subprocess.run([leno, "up", "--clean"], capture_output=True, text=True)
print(clean.stdout, clean.stderr, clean.returncode)
print("second left", [l for l in leftovers() if str(second.pid) in l])
third = start()
third.terminate()
print("stopped", third.wait(), [l for l in leftovers() if str(third.pid) in l])
"#;

#[test]
fn a_killed_namespaced_mesh_does_not_block_the_next_start() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let directory = tempfile::tempdir().unwrap();
    let workload = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                    metadata: {name: a-1, namespace: shop}\nspec: {serviceAccount: a}\n";
    std::fs::write(directory.path().join("mesh.yaml"), workload).unwrap();
    let started = Instant::now();
    let output = netns_command(directory.path()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let outputs = (stdout.clone(), String::from_utf8_lossy(&output.stderr).into_owned());
    for line in ["first left []", "second left []", "stopped 0 []"] {
        assert!(stdout.contains(line), "{line}: {outputs:?} after {:?}", started.elapsed());
    }
}

/// A server and a client in one namespace: the client calls the service of its own workload.
const OWN_SERVICE_SCRIPT: &str = r#"
import http.server, threading, time, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 9000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
while True:
    try:
        print("own service", opener.open("http://own.shop:9000/", timeout=5).status, flush=True)
    except OSError as error:
        print("no response", error, flush=True)
    time.sleep(0.2)
"#;

#[test]
fn a_workload_in_a_namespace_reaches_its_own_service() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let indented_script = OWN_SERVICE_SCRIPT.replace('\n', "\n    ");
    let manifests = format!(
        "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: own-1, namespace: shop, labels: {{app: own}}}}
spec:
  serviceAccount: own
  ports: [{{port: 9000, protocol: HTTP}}]
  run:
  - python3
  - \"-c\"
  - |
    {indented_script}
---
apiVersion: v1
kind: Service
metadata: {{name: own, namespace: shop}}
spec: {{selector: {{app: own}}, ports: [{{name: http, port: 9000}}]}}
"
    );
    let subnet = "10.55.0.0/16";
    let mesh = TestMesh::up_with(&manifests, &["--netns", "--netns-subnet", subnet]);
    mesh.up.wait_for_line("own service 200", MAX_WAIT);
}
