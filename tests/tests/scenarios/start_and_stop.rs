//! Start and stop of a mesh without a lost request, and with stable addresses across restarts.

use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use leno_tests::{
    AdminPage, BackgroundLoad, TestMesh, TestProgram, eventually, exchange_bytes, free_port, get,
    leno_command, ratings_manifests,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use serde_json::Value;

/// Responds after two seconds, logs the request immediately, and exits immediately at SIGTERM.
const SLOW_SERVER: &str = "import http.server,sys,time\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 protocol_version='HTTP/1.1'\n\
\x20 def do_GET(self):\n\
\x20  sys.stdout.write('got '+self.path+'.\\n'); sys.stdout.flush()\n\
\x20  time.sleep(2)\n\
\x20  self.send_response(200); self.send_header('content-length','4'); self.end_headers(); self.wfile.write(b'done')\n\
\x20 def log_message(self,*a): pass\n\
class S(http.server.ThreadingHTTPServer):\n\
\x20 request_queue_size=128\n\
S(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

/// Responds with its version; `/slow` waits until a file exists. It exits immediately at SIGTERM, and aborts
/// its requests.
const VERSIONED_SERVER: &str = "import http.server,os,sys,time\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 protocol_version='HTTP/1.1'\n\
\x20 def do_GET(self):\n\
\x20  self.rfile.read(int(self.headers.get('content-length',0)))\n\
\x20  sys.stdout.write('got '+self.path+'.\\n'); sys.stdout.flush()\n\
\x20  while self.path=='/slow' and not os.path.exists(sys.argv[3]): time.sleep(.02)\n\
\x20  self.send_response(200); self.send_header('content-length','2'); self.end_headers(); self.wfile.write(sys.argv[2].encode())\n\
\x20 do_POST=do_GET\n\
\x20 def log_message(self,*a): pass\n\
http.server.ThreadingHTTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

/// Listens after two seconds; ready after two more.
const LATE_SERVER: &str = "import http.server,sys,time\n\
time.sleep(2)\n\
started=time.time()\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 def do_GET(self):\n\
\x20  ready=time.time()-started>2\n\
\x20  self.send_response(200 if ready else 503); self.end_headers()\n\
\x20 def log_message(self,*a): pass\n\
http.server.ThreadingHTTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n";

const MAX_WAIT: Duration = Duration::from_secs(60);

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The command of an application changes during requests.
#[test]
fn a_command_change_completes_requests_and_holds_new_ones() {
    let (port, listener) = (free_port(), free_port());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let version = |version: &str| {
        let arguments = ["python3", "-c", VERSIONED_SERVER, &port.to_string(), version];
        let arguments: Vec<&str> = arguments.into_iter().chain(file.to_str()).collect();
        ratings_manifests(&serde_json::json!(arguments).to_string(), port, listener, "allow")
    };
    let mesh = TestMesh::up_with(&version("v1"), &["--drain-timeout", "120s"]);
    let send_request =
        |path: &'static str| thread::spawn(move || get(loopback_address(listener), path).unwrap());
    assert_eq!(send_request("/").join().unwrap().body, b"v1");
    // Over the sidecar's pooled connections to the application: no request may be lost.
    let load = BackgroundLoad::start_paced(
        "POST",
        loopback_address(listener),
        2,
        Duration::from_millis(5),
    );
    load.wait_for(20);
    let slow = send_request("/slow");
    mesh.up.wait_for_line("got /slow.", MAX_WAIT);
    mesh.write("mesh.yaml", &version("v2"));
    mesh.up.wait_for_line("its requests in progress are completed first", MAX_WAIT);
    // The sidecar holds new requests from now on.
    let sidecar = AdminPage::for_workload(&mesh.get_json("proxies"), "bookinfo/ratings-1").unwrap();
    eventually("no port of the application is open", MAX_WAIT, || {
        sidecar.full_configuration()["application"].as_object()?.is_empty().then_some(())
    });
    let next = send_request("/next");
    std::fs::write(&file, "").unwrap();
    let (slow, next) = (slow.join().unwrap(), next.join().unwrap());
    assert_eq!((slow.status, slow.body), (200, b"v1".to_vec()));
    assert_eq!((next.status, next.body), (200, b"v2".to_vec()));
    load.wait_for(20);
    load.finish_load().assert_no_failures();
}

fn python_command(script: &str, port: u16) -> String {
    serde_json::json!(["python3", "-c", script, port.to_string()]).to_string()
}

#[test]
fn requests_in_progress_complete_before_applications_stop() {
    let (port, listener) = (free_port(), free_port());
    let mut mesh = TestMesh::up(&ratings_manifests(
        &python_command(SLOW_SERVER, port),
        port,
        listener,
        "allow",
    ));
    let clients: Vec<_> = (0..20)
        .map(|number| thread::spawn(move || get(loopback_address(listener), &format!("/{number}"))))
        .collect();
    for number in 0..20 {
        mesh.up.wait_for_line(&format!("got /{number}."), Duration::from_secs(60));
    }
    mesh.up.send_signal(Signal::INT);
    for client in clients {
        let response = client.join().unwrap().unwrap();
        assert_eq!(response.status, 200, "{:?}", response.rejection_reason());
        assert_eq!(response.body, b"done");
    }
    assert!(mesh.up.wait_for_exit(Duration::from_secs(60)).success());
}

#[test]
fn the_first_request_waits_until_the_application_is_ready() {
    let (port, listener) = (free_port(), free_port());
    let plain = ratings_manifests(&python_command(LATE_SERVER, port), port, listener, "allow");
    let checked = plain.replace(
        "\n  run:",
        &format!("\n  readiness: {{httpGet: {{port: {port}, path: /ready}}}}\n  run:"),
    );
    for (manifests, status) in [(&plain, 503), (&checked, 200)] {
        let mut mesh = TestMesh::up(manifests);
        let response = get(loopback_address(listener), "/").unwrap();
        // Without a readiness check the application responds as soon as it listens: with its own 503.
        assert_eq!((response.status, response.rejection_reason()), (status, None));
        assert!(mesh.up.stop(Duration::from_secs(60)).success());
    }
}

#[test]
fn an_application_runs_in_its_directory_as_its_user() {
    let (port, listener) = (free_port(), free_port());
    let directory = tempfile::tempdir().unwrap();
    let script = "import os,time; e = os.environ; print('here', os.getcwd(), os.getuid(), e['USER'] == e['LOGNAME'] and e['HOME'], flush=True); time.sleep(600)";
    let own_uid = rustix::process::getuid().as_raw();
    let user = if own_uid == 0 { 65_534 } else { own_uid };
    let command = serde_json::json!(["python3", "-c", script]).to_string();
    let manifests = ratings_manifests(&command, port, listener, "allow");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let path = directory.path().display();
    let manifests =
        manifests.replace("\n  run:", &format!("\n  cwd: {path}\n  user: {user}\n  run:"));
    let mesh = TestMesh::up(&manifests);
    let line = mesh.up.wait_for_line(&format!("here {path} {user}"), Duration::from_secs(60));
    if own_uid == 0 {
        assert!(!line.trim_end().ends_with("/root"), "the home is the user's: {line}");
    }
}

fn start_mesh(folder: &Path) -> TestProgram {
    let mut command = leno_command();
    command
        .arg("up")
        .arg("-f")
        .arg(folder.join("mesh.yaml"))
        .arg("--data")
        .arg(folder.join("data"));
    let up = TestProgram::start("leno up", &mut command);
    up.wait_for_line("The mesh is up", Duration::from_secs(60));
    up
}

fn get_json(folder: &Path, topic: &str) -> Value {
    let mut command = leno_command();
    let output =
        command.args(["get", topic, "-o", "json", "--data"]).arg(folder.join("data")).output();
    serde_json::from_slice(&output.unwrap().stdout).unwrap()
}

/// The first signal waits for an application that ignores SIGTERM.
#[test]
fn a_second_signal_ends_processes_in_other_sessions() {
    let (port, listener, second_port) = (free_port(), free_port(), free_port());
    let server = |port: u16| format!("setsid python3 -m http.server {port} --bind 127.0.0.1");
    let script = format!(
        "{} & env -i PATH=\"$PATH\" {} & trap '' TERM; wait",
        server(port),
        server(second_port)
    );
    let command = serde_json::json!(["sh", "-c", script]).to_string();
    let mut mesh = TestMesh::up(&ratings_manifests(&command, port, listener, "allow"));
    for port in [port, second_port] {
        eventually("the server responds", Duration::from_secs(60), || {
            get(loopback_address(port), "/").ok()
        });
    }
    mesh.up.send_signal(Signal::INT);
    mesh.up.wait_for_line("a second signal stops immediately", Duration::from_secs(60));
    mesh.up.send_signal(Signal::INT);
    assert!(mesh.up.wait_for_exit(Duration::from_secs(60)).success());
    for port in [port, second_port] {
        assert!(
            std::net::TcpListener::bind(loopback_address(port)).is_ok(),
            "the server has ended"
        );
    }
}

#[test]
fn scrape_addresses_survive_a_restart_and_are_discoverable_by_prometheus() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(folder.path().join("mesh.yaml"), manifests).unwrap();
    let addresses = || {
        let workloads = get_json(folder.path(), "workloads");
        let workloads = workloads.as_array().unwrap().iter();
        workloads
            .map(|workload| workload["admin"].as_str().unwrap().to_owned())
            .collect::<Vec<String>>()
    };
    let page = || get_json(folder.path(), "status")["page"].as_str().unwrap().to_owned();
    let mut first = start_mesh(folder.path());
    let (before, page_before) = (addresses(), page());
    assert_eq!(before.len(), 2);
    assert!(first.stop(Duration::from_secs(60)).success());
    let mut second = start_mesh(folder.path());
    assert_eq!((addresses(), page()), (before.clone(), page_before.clone()));
    let discovered_targets = || {
        let address: SocketAddr =
            page().trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        let request = format!(
            "GET /prometheus/targets HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        );
        let response = exchange_bytes(address, &request).unwrap();
        assert_eq!(response.first_header("content-type"), Some("application/json"));
        let groups: Value = serde_json::from_slice(&response.body).unwrap();
        let groups = groups.as_array().unwrap().iter();
        groups.map(|group| group["targets"][0].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for target in discovered_targets() {
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
        let response = exchange_bytes(target.parse().unwrap(), &request).unwrap();
        assert_eq!(response.status, 200, "{target}");
    }
    assert_eq!(discovered_targets().len(), 2);
    assert!(second.stop(Duration::from_secs(60)).success());
    // An address that is in use meanwhile is replaced, and the log reports it.
    let blocking_listener = std::net::TcpListener::bind(&before[0]).unwrap();
    let third = start_mesh(folder.path());
    third.wait_for_line(
        "the admin endpoint's address of the last run is not available",
        Duration::from_secs(60),
    );
    eventually("both sidecars are connected", Duration::from_secs(30), || {
        let workloads = get_json(folder.path(), "workloads");
        workloads.as_array()?.iter().all(|workload| workload["admin"].is_string()).then_some(())
    });
    assert!(!addresses().contains(&before[0]));
    drop(blocking_listener);
}

/// A proxy with a token takes the name of a workload of `leno up`, and exits.
#[test]
fn a_sidecar_regains_its_name_from_a_foreign_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(folder.path().join("mesh.yaml"), manifests).unwrap();
    let mut first = start_mesh(folder.path());
    let pid = || {
        let proxies = get_json(folder.path(), "proxies");
        let client =
            proxies.as_array()?.iter().find(|proxy| proxy["workload"] == "bookinfo/client-1");
        client?["pid"].as_u64()
    };
    let wait_for_pid = |condition: &str, matches_pid: &dyn Fn(u64) -> bool| {
        eventually(condition, Duration::from_secs(90), || pid().filter(|pid| matches_pid(*pid))).0
    };
    let own_pid = wait_for_pid("the sidecar is connected", &|_| true);
    let data = folder.path().join("data");
    let (token, state) = (folder.path().join("token"), folder.path().join("state"));
    let join_rival_proxy = || {
        let output = leno_command()
            .args(["token", "bookinfo/client-1", "--out"])
            .arg(&token)
            .arg("--data")
            .arg(&data)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut command = leno_command();
        command.args(["proxy", "--workload", "bookinfo/client-1", "--token-file"]).arg(&token);
        let rival_proxy = TestProgram::start("leno proxy", command.arg("--state").arg(&state));
        wait_for_pid("the rival proxy is connected", &|pid| pid == u64::from(rival_proxy.pid()));
        rival_proxy
    };
    let mut rival_proxy = join_rival_proxy();
    eventually("status names the rejected sidecar", Duration::from_secs(60), || {
        let output = leno_command().args(["status", "--data"]).arg(&data).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_named = text.contains("bookinfo/client-1: a joining sidecar is rejected");
        (is_named && text.contains("stop the one that `leno up` does not run")).then_some(())
    });
    rival_proxy.stop(Duration::from_secs(60));
    let new_pid =
        wait_for_pid("the supervised sidecar is back", &|pid| pid != u64::from(rival_proxy.pid()));
    assert_ne!(new_pid, own_pid, "the sidecar joined again");
    // The same across a restart of `leno up`.
    std::fs::remove_dir_all(&state).unwrap();
    let mut rival_proxy = join_rival_proxy();
    rival_proxy.stop(Duration::from_secs(60));
    assert!(first.stop(Duration::from_secs(60)).success());
    let _second = start_mesh(folder.path());
    wait_for_pid("the supervised sidecar is back", &|_| true);
}

/// Returns a shell command that starts a server: the server survives a killed `leno up`, with its port.
fn shell_command(port: u16) -> String {
    let script = format!("python3 -m http.server {port} --bind 127.0.0.1; true");
    serde_json::json!(["sh", "-c", script]).to_string()
}

#[test]
fn leftover_processes_are_ended_by_the_next_start_and_by_clean() {
    let folder = tempfile::tempdir().unwrap();
    let (port, listener) = (free_port(), free_port());
    let command = shell_command(port);
    let manifests = ratings_manifests(&command, port, listener, "allow");
    std::fs::write(folder.path().join("mesh.yaml"), manifests).unwrap();
    let wait_until_responding = || {
        eventually("the application responds", Duration::from_secs(60), || {
            get(loopback_address(listener), "/")
                .ok()
                .filter(|response| response.status == 200)
                .map(drop)
        });
    };
    let kill = |mut mesh: TestProgram| {
        mesh.send_signal(Signal::KILL);
        mesh.wait_for_exit(Duration::from_secs(60));
        assert!(
            std::net::TcpListener::bind(loopback_address(port)).is_err(),
            "the server survives"
        );
    };
    let first = start_mesh(folder.path());
    wait_until_responding();
    // The record of the application is written again after the removal of the data directory.
    let data = folder.path().join("data");
    eventually("the directory is removed", Duration::from_secs(60), || {
        std::fs::remove_dir_all(&data).ok()
    });
    eventually("the record is written again", Duration::from_secs(60), || {
        data.join("applications/bookinfo/ratings-1").exists().then_some(())
    });
    kill(first);
    let second = start_mesh(folder.path());
    second.wait_for_line("that a killed `leno up` left", Duration::from_secs(60));
    wait_until_responding();
    // The applications of a running mesh are kept.
    let clean = || {
        let output = leno_command()
            .args(["up", "--clean", "--data"])
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!clean().contains("ended python3"));
    wait_until_responding();
    kill(second);
    let text = clean();
    assert!(text.contains("ended python3"), "{text}");
    assert!(std::net::TcpListener::bind(loopback_address(port)).is_ok(), "the port is free");
}

/// The child's process group differs from that of the application, and its environment is unchanged.
#[test]
fn a_child_in_its_own_session_ends_with_its_application() {
    let folder = tempfile::tempdir().unwrap();
    let (port, listener) = (free_port(), free_port());
    let script = format!("setsid python3 -m http.server {port} --bind 127.0.0.1 & wait");
    let command = serde_json::json!(["sh", "-c", script]).to_string();
    std::fs::write(
        folder.path().join("mesh.yaml"),
        ratings_manifests(&command, port, listener, "allow"),
    )
    .unwrap();
    let wait_until_responding = || {
        eventually("the application responds", Duration::from_secs(60), || {
            get(loopback_address(listener), "/")
                .ok()
                .filter(|response| response.status == 200)
                .map(drop)
        });
    };
    let is_free = || std::net::TcpListener::bind(loopback_address(port)).is_ok();
    let mut first = start_mesh(folder.path());
    wait_until_responding();
    first.send_signal(Signal::INT);
    first.wait_for_exit(Duration::from_secs(60));
    assert!(is_free(), "Ctrl-C ends the application");
    let mut second = start_mesh(folder.path());
    wait_until_responding();
    second.send_signal(Signal::KILL);
    second.wait_for_exit(Duration::from_secs(60));
    assert!(!is_free(), "the application survives");
    let mut third = start_mesh(folder.path());
    third.wait_for_line("that a killed `leno up` left", Duration::from_secs(60));
    wait_until_responding();
    third.send_signal(Signal::KILL);
    third.wait_for_exit(Duration::from_secs(60));
    let mut clean = leno_command();
    clean.args(["up", "--clean", "--data"]).arg(folder.path().join("data"));
    let text = String::from_utf8(clean.output().unwrap().stdout).unwrap();
    assert!(text.contains("ended python3") && is_free(), "{text}");
}

/// Starts a server as daemons do, which clears its environment as nginx does with its title, and waits until it
/// listens.
const DAEMON_SCRIPT: &str = "import os,socket,sys,time\n\
port=sys.argv[1]\n\
if os.fork()==0:\n\
\x20 os.setsid()\n\
\x20 if os.fork()==0: os.execve(sys.executable,[sys.executable,'-m','http.server',port,'--bind','127.0.0.1'],{})\n\
\x20 os._exit(0)\n\
while True:\n\
\x20 try: socket.create_connection(('127.0.0.1',int(port))).close(); break\n\
\x20 except OSError: time.sleep(.02)\n\
if sys.argv[2]=='stay': time.sleep(600)\n";

#[test]
fn a_daemon_belongs_to_its_application_and_ends_with_it() {
    for mode in ["stay", "end"] {
        let (port, listener) = (free_port(), free_port());
        let command = serde_json::json!(["python3", "-c", DAEMON_SCRIPT, port.to_string(), mode]);
        let mut mesh =
            TestMesh::up(&ratings_manifests(&command.to_string(), port, listener, "allow"));
        if mode == "stay" {
            eventually("the daemon responds", MAX_WAIT, || {
                get(loopback_address(listener), "/")
                    .ok()
                    .filter(|response| response.status == 200)
                    .map(drop)
            });
        } else {
            mesh.up.wait_for_line("the application exited; restarting it", MAX_WAIT);
        }
        mesh.up.send_signal(Signal::INT);
        assert!(mesh.up.wait_for_exit(MAX_WAIT).success());
        assert!(
            std::net::TcpListener::bind(loopback_address(port)).is_ok(),
            "{mode}: the daemon has ended"
        );
    }
}

/// Both cleanups find the processes until they have ended, and neither counts itself among them.
#[test]
fn two_concurrent_cleanups_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let (port, listener) = (free_port(), free_port());
    let command = shell_command(port);
    std::fs::write(
        folder.path().join("mesh.yaml"),
        ratings_manifests(&command, port, listener, "allow"),
    )
    .unwrap();
    let mut killed = start_mesh(folder.path());
    eventually("the application responds", Duration::from_secs(60), || {
        get(loopback_address(listener), "/")
            .ok()
            .filter(|response| response.status == 200)
            .map(drop)
    });
    killed.send_signal(Signal::KILL);
    killed.wait_for_exit(Duration::from_secs(60));
    let clean = || {
        let mut command = leno_command();
        command.args(["up", "--clean", "--data"]).arg(folder.path().join("data"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let count_ended = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        String::from_utf8_lossy(&output.stdout).matches("ended python3").count()
    };
    assert_eq!([clean(), clean()].map(count_ended).iter().sum::<usize>(), 1);
    assert!(std::net::TcpListener::bind(loopback_address(port)).is_ok(), "the port is free");
}

/// Directories that are removed under a running mesh.
#[test]
fn removed_directories_are_recreated_and_a_sidecar_without_state_joins_again() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(folder.path().join("mesh.yaml"), manifests).unwrap();
    let mut first = start_mesh(folder.path());
    let data = folder.path().join("data");
    let root = std::fs::read(data.join("authority/ca.pem")).unwrap();
    // The control plane checks its authority every second.
    let read_root =
        || std::fs::read(data.join("authority/ca.pem")).ok().filter(|content| *content == root);
    let sidecar = || {
        let proxies = get_json(folder.path(), "proxies");
        let client =
            proxies.as_array()?.iter().find(|proxy| proxy["workload"] == "bookinfo/client-1");
        u32::try_from(client?["pid"].as_u64()?).ok()
    };
    let before = eventually("the sidecar is connected", Duration::from_secs(60), sidecar).0;
    // The sidecars write files meanwhile, so one removal may leave a directory.
    eventually("the directory is removed", Duration::from_secs(60), || {
        std::fs::remove_dir_all(&data).ok()
    });
    eventually("the authority is written again", Duration::from_secs(60), read_root);
    // The sidecar may have written its state again.
    drop(std::fs::remove_dir_all(data.join("proxies/bookinfo/client-1")));
    leno_tests::signal_pid(before, Signal::KILL);
    eventually("the sidecar joins again", Duration::from_secs(60), || {
        let pid = data.join("control.sock").exists().then(sidecar)??;
        (pid != before).then_some(())
    });
    // Issuing its token recreated the directory.
    std::fs::remove_dir_all(data.join("tokens")).unwrap();
    let output =
        leno_command().args(["token", "bookinfo/client-1", "--data"]).arg(&data).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // One missing file is not a removal: `leno ca` may be running.
    std::fs::remove_file(data.join("authority/ca.pem")).unwrap();
    eventually("status names the authority", Duration::from_secs(60), || {
        let output = leno_command().args(["status", "--data"]).arg(&data).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_named = text.contains("the files of the authority cannot be used");
        (is_named && output.status.code() == Some(1)).then_some(())
    });
    std::fs::write(data.join("authority/ca.pem"), &root).unwrap();
    assert!(first.stop(Duration::from_secs(60)).success());
    let _second = start_mesh(folder.path());
    assert!(read_root().is_some());
}

/// Another user recreates the removed data directory first.
#[test]
fn a_data_directory_recreated_by_another_user_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(folder.path().join("mesh.yaml"), manifests).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    let mesh = start_mesh(folder.path());
    let [data, other] = ["data", "other"].map(|name| folder.path().join(name));
    std::fs::create_dir(&other).unwrap();
    let (problem, hint) = match leno_tests::is_root() {
        true => {
            std::os::unix::fs::chown(&other, Some(54_321), None).unwrap();
            let problem = format!(
                "the directory {}, on the path to keys, belongs to user 54321",
                data.display()
            );
            (problem, "use a directory that no other user can create")
        }
        // Without permission to change its owner, the directory is one that another user may modify.
        false => {
            std::fs::set_permissions(&other, Permissions::from_mode(0o777)).unwrap();
            (
                format!("other users can write to the directory {}", data.display()),
                "or use another directory",
            )
        }
    };
    // Atomic: no process of the mesh can recreate it in between.
    renameat_with(CWD, &data, CWD, &other, RenameFlags::EXCHANGE).unwrap();
    for log_line in
        ["cannot recreate the admin socket", "the files of the authority cannot be rewritten"]
    {
        let line = mesh.wait_for_line(log_line, Duration::from_secs(60));
        assert!(line.contains(&problem) && line.contains(hint), "{line}");
    }
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
    std::fs::remove_dir(&data).unwrap();
    eventually("the admin socket is recreated", Duration::from_secs(60), || {
        data.join("control.sock").exists().then_some(())
    });
    assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
}
