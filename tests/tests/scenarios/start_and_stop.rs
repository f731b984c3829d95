//! Start and stop of a mesh without a lost request, and with stable addresses across restarts.

mod servers;

use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use leno_tests::{
    AdminEndpoint, BackgroundLoad, TestMesh, TestProgram, eventually, exchange_bytes, free_port,
    get, leno_command, ratings_manifests,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use serde_json::Value;
use servers::{DAEMON_SCRIPT, LATE_SERVER, SLOW_SERVER, VERSIONED_SERVER};

const MAX_WAIT: Duration = Duration::from_secs(60);

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The command of an application changes during requests.
#[test]
fn a_command_change_completes_requests_and_holds_new_ones() {
    let (port, listener) = (free_port(), free_port());
    let directory = tempfile::tempdir().unwrap();
    let release_file = directory.path().join("go");
    let manifests_of_version = |version: &str| {
        let arguments = ["python3", "-c", VERSIONED_SERVER, &port.to_string(), version];
        let arguments: Vec<&str> = arguments.into_iter().chain(release_file.to_str()).collect();
        ratings_manifests(&serde_json::json!(arguments).to_string(), port, listener, "allow")
    };
    let mesh = TestMesh::up_with(&manifests_of_version("v1"), &["--drain-timeout", "120s"]);
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
    let slow_request = send_request("/slow");
    mesh.up.wait_for_line("got /slow.", MAX_WAIT);
    mesh.write("mesh.yaml", &manifests_of_version("v2"));
    mesh.up.wait_for_line("its requests in progress are completed first", MAX_WAIT);
    // The sidecar holds new requests from now on.
    let sidecar =
        AdminEndpoint::for_workload(&mesh.get_json("proxies"), "bookinfo/ratings-1").unwrap();
    eventually("no port of the application is open", MAX_WAIT, || {
        sidecar.full_configuration()["application"].as_object()?.is_empty().then_some(())
    });
    let held_request = send_request("/next");
    std::fs::write(&release_file, "").unwrap();
    let (slow_request, held_request) = (slow_request.join().unwrap(), held_request.join().unwrap());
    assert_eq!((slow_request.status, slow_request.body), (200, b"v1".to_vec()));
    assert_eq!((held_request.status, held_request.body), (200, b"v2".to_vec()));
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
    let manifests_without_check =
        ratings_manifests(&python_command(LATE_SERVER, port), port, listener, "allow");
    let manifests_with_check = manifests_without_check.replace(
        "\n  run:",
        &format!("\n  readiness: {{httpGet: {{port: {port}, path: /ready}}}}\n  run:"),
    );
    for (manifests, status) in [(&manifests_without_check, 503), (&manifests_with_check, 200)] {
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
    let user_id = if own_uid == 0 { 65_534 } else { own_uid };
    let command = serde_json::json!(["python3", "-c", script]).to_string();
    let manifests = ratings_manifests(&command, port, listener, "allow");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let directory_path = directory.path().display();
    let manifests = manifests
        .replace("\n  run:", &format!("\n  cwd: {directory_path}\n  user: {user_id}\n  run:"));
    let mesh = TestMesh::up(&manifests);
    let line =
        mesh.up.wait_for_line(&format!("here {directory_path} {user_id}"), Duration::from_secs(60));
    if own_uid == 0 {
        assert!(!line.trim_end().ends_with("/root"), "the home is the user's: {line}");
    }
}

/// Starts `leno up` with `mesh.yaml` of this directory and waits until the mesh is ready.
fn start_mesh(directory: &Path) -> TestProgram {
    let mut command = leno_command();
    command
        .arg("up")
        .arg("-f")
        .arg(directory.join("mesh.yaml"))
        .arg("--data")
        .arg(directory.join("data"));
    let up = TestProgram::start("leno up", &mut command);
    up.wait_for_line("The mesh is up", Duration::from_secs(60));
    up
}

/// Returns the output of `leno get TOPIC` for the mesh in this directory.
fn get_json(directory: &Path, topic: &str) -> Value {
    let mut command = leno_command();
    let output =
        command.args(["get", topic, "-o", "json", "--data"]).arg(directory.join("data")).output();
    serde_json::from_slice(&output.unwrap().stdout).unwrap()
}

/// The first signal waits for an application that ignores SIGTERM.
#[test]
fn a_second_signal_ends_processes_in_other_sessions() {
    let (port, listener, second_port) = (free_port(), free_port(), free_port());
    let server_command =
        |port: u16| format!("setsid python3 -m http.server {port} --bind 127.0.0.1");
    let script = format!(
        "{} & env -i PATH=\"$PATH\" {} & trap '' TERM; wait",
        server_command(port),
        server_command(second_port)
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
    let directory = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(directory.path().join("mesh.yaml"), manifests).unwrap();
    let admin_addresses = || {
        let workloads = get_json(directory.path(), "workloads");
        let workloads = workloads.as_array().unwrap().iter();
        workloads
            .map(|workload| workload["admin"].as_str().unwrap().to_owned())
            .collect::<Vec<String>>()
    };
    let page_url = || get_json(directory.path(), "status")["page"].as_str().unwrap().to_owned();
    let mut first_mesh = start_mesh(directory.path());
    let (addresses_before, page_before) = (admin_addresses(), page_url());
    assert_eq!(addresses_before.len(), 2);
    assert!(first_mesh.stop(Duration::from_secs(60)).success());
    let mut second_mesh = start_mesh(directory.path());
    assert_eq!((admin_addresses(), page_url()), (addresses_before.clone(), page_before.clone()));
    let discovered_targets = || {
        let address: SocketAddr =
            page_url().trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        let request = format!(
            "GET /prometheus/targets HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        );
        let response = exchange_bytes(address, &request).unwrap();
        assert_eq!(response.first_header("content-type"), Some("application/json"));
        let target_groups: Value = serde_json::from_slice(&response.body).unwrap();
        let target_groups = target_groups.as_array().unwrap().iter();
        target_groups
            .map(|group| group["targets"][0].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for target in discovered_targets() {
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
        let response = exchange_bytes(target.parse().unwrap(), &request).unwrap();
        assert_eq!(response.status, 200, "{target}");
    }
    assert_eq!(discovered_targets().len(), 2);
    assert!(second_mesh.stop(Duration::from_secs(60)).success());
    // An address that is in use meanwhile is replaced, and the log reports it.
    let blocking_listener = std::net::TcpListener::bind(&addresses_before[0]).unwrap();
    let third_mesh = start_mesh(directory.path());
    third_mesh.wait_for_line(
        "the admin endpoint's address of the last run is not available",
        Duration::from_secs(60),
    );
    eventually("both sidecars are connected", Duration::from_secs(30), || {
        let workloads = get_json(directory.path(), "workloads");
        workloads.as_array()?.iter().all(|workload| workload["admin"].is_string()).then_some(())
    });
    assert!(!admin_addresses().contains(&addresses_before[0]));
    drop(blocking_listener);
}

/// A proxy with a token takes the name of a workload of `leno up`, and exits.
#[test]
fn a_sidecar_regains_its_name_from_a_foreign_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(directory.path().join("mesh.yaml"), manifests).unwrap();
    let mut first_mesh = start_mesh(directory.path());
    let client_pid = || {
        let proxies = get_json(directory.path(), "proxies");
        let client =
            proxies.as_array()?.iter().find(|proxy| proxy["workload"] == "bookinfo/client-1");
        client?["pid"].as_u64()
    };
    let wait_for_pid = |condition: &str, matches_pid: &dyn Fn(u64) -> bool| {
        eventually(condition, Duration::from_secs(90), || {
            client_pid().filter(|pid| matches_pid(*pid))
        })
        .0
    };
    let own_pid = wait_for_pid("the sidecar is connected", &|_| true);
    let data_directory = directory.path().join("data");
    let (token_file, state_directory) =
        (directory.path().join("token"), directory.path().join("state"));
    let join_rival_proxy = || {
        let output = leno_command()
            .args(["token", "bookinfo/client-1", "--out"])
            .arg(&token_file)
            .arg("--data")
            .arg(&data_directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut command = leno_command();
        command.args(["proxy", "--workload", "bookinfo/client-1", "--token-file"]).arg(&token_file);
        let rival_proxy =
            TestProgram::start("leno proxy", command.arg("--state").arg(&state_directory));
        wait_for_pid("the rival proxy is connected", &|pid| pid == u64::from(rival_proxy.pid()));
        rival_proxy
    };
    let mut rival_proxy = join_rival_proxy();
    eventually("status names the rejected sidecar", Duration::from_secs(60), || {
        let output =
            leno_command().args(["status", "--data"]).arg(&data_directory).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_named = text.contains("bookinfo/client-1: a joining sidecar is rejected");
        (is_named && text.contains("stop the one that `leno up` does not run")).then_some(())
    });
    rival_proxy.stop(Duration::from_secs(60));
    let new_pid =
        wait_for_pid("the supervised sidecar is back", &|pid| pid != u64::from(rival_proxy.pid()));
    assert_ne!(new_pid, own_pid, "the sidecar joined again");
    // The sidecar also regains its name across a restart of `leno up`.
    std::fs::remove_dir_all(&state_directory).unwrap();
    let mut rival_proxy = join_rival_proxy();
    rival_proxy.stop(Duration::from_secs(60));
    assert!(first_mesh.stop(Duration::from_secs(60)).success());
    let _second_mesh = start_mesh(directory.path());
    wait_for_pid("the supervised sidecar is back", &|_| true);
}

/// Returns a shell command that starts a server: the server survives a killed `leno up`, with its port.
fn shell_command(port: u16) -> String {
    let script = format!("python3 -m http.server {port} --bind 127.0.0.1; true");
    serde_json::json!(["sh", "-c", script]).to_string()
}

#[test]
fn leftover_processes_are_ended_by_the_next_start_and_by_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (port, listener) = (free_port(), free_port());
    let command = shell_command(port);
    let manifests = ratings_manifests(&command, port, listener, "allow");
    std::fs::write(directory.path().join("mesh.yaml"), manifests).unwrap();
    let wait_until_responding = || {
        eventually("the application responds", Duration::from_secs(60), || {
            get(loopback_address(listener), "/")
                .ok()
                .filter(|response| response.status == 200)
                .map(drop)
        });
    };
    let kill_mesh = |mut mesh: TestProgram| {
        mesh.send_signal(Signal::KILL);
        mesh.wait_for_exit(Duration::from_secs(60));
        assert!(
            std::net::TcpListener::bind(loopback_address(port)).is_err(),
            "the server survives"
        );
    };
    let first_mesh = start_mesh(directory.path());
    wait_until_responding();
    // The record of the application is written again after the removal of the data directory.
    let data_directory = directory.path().join("data");
    eventually("the directory is removed", Duration::from_secs(60), || {
        std::fs::remove_dir_all(&data_directory).ok()
    });
    eventually("the record is written again", Duration::from_secs(60), || {
        data_directory.join("applications/bookinfo/ratings-1").exists().then_some(())
    });
    kill_mesh(first_mesh);
    let second_mesh = start_mesh(directory.path());
    second_mesh.wait_for_line("that a killed `leno up` left", Duration::from_secs(60));
    wait_until_responding();
    // The applications of a running mesh are kept.
    let run_clean = || {
        let output = leno_command()
            .args(["up", "--clean", "--data"])
            .arg(directory.path().join("data"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!run_clean().contains("ended python3"));
    wait_until_responding();
    kill_mesh(second_mesh);
    let text = run_clean();
    assert!(text.contains("ended python3"), "{text}");
    assert!(std::net::TcpListener::bind(loopback_address(port)).is_ok(), "the port is free");
}

/// The child's process group differs from that of the application, and its environment is unchanged.
#[test]
fn a_child_in_its_own_session_ends_with_its_application() {
    let directory = tempfile::tempdir().unwrap();
    let (port, listener) = (free_port(), free_port());
    let script = format!("setsid python3 -m http.server {port} --bind 127.0.0.1 & wait");
    let command = serde_json::json!(["sh", "-c", script]).to_string();
    std::fs::write(
        directory.path().join("mesh.yaml"),
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
    let mut first_mesh = start_mesh(directory.path());
    wait_until_responding();
    first_mesh.send_signal(Signal::INT);
    first_mesh.wait_for_exit(Duration::from_secs(60));
    assert!(is_free(), "Ctrl-C ends the application");
    let mut second_mesh = start_mesh(directory.path());
    wait_until_responding();
    second_mesh.send_signal(Signal::KILL);
    second_mesh.wait_for_exit(Duration::from_secs(60));
    assert!(!is_free(), "the application survives");
    let mut third_mesh = start_mesh(directory.path());
    third_mesh.wait_for_line("that a killed `leno up` left", Duration::from_secs(60));
    wait_until_responding();
    third_mesh.send_signal(Signal::KILL);
    third_mesh.wait_for_exit(Duration::from_secs(60));
    let mut clean_command = leno_command();
    clean_command.args(["up", "--clean", "--data"]).arg(directory.path().join("data"));
    let text = String::from_utf8(clean_command.output().unwrap().stdout).unwrap();
    assert!(text.contains("ended python3") && is_free(), "{text}");
}

#[test]
fn a_daemon_belongs_to_its_application_and_ends_with_it() {
    for daemon_option in ["stay", "end"] {
        let (port, listener) = (free_port(), free_port());
        let command =
            serde_json::json!(["python3", "-c", DAEMON_SCRIPT, port.to_string(), daemon_option]);
        let mut mesh =
            TestMesh::up(&ratings_manifests(&command.to_string(), port, listener, "allow"));
        if daemon_option == "stay" {
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
            "{daemon_option}: the daemon has ended"
        );
    }
}

/// Both cleanups find the processes until they have ended, and neither counts itself among them.
#[test]
fn two_concurrent_cleanups_succeed() {
    let directory = tempfile::tempdir().unwrap();
    let (port, listener) = (free_port(), free_port());
    let command = shell_command(port);
    std::fs::write(
        directory.path().join("mesh.yaml"),
        ratings_manifests(&command, port, listener, "allow"),
    )
    .unwrap();
    let mut killed_mesh = start_mesh(directory.path());
    eventually("the application responds", Duration::from_secs(60), || {
        get(loopback_address(listener), "/")
            .ok()
            .filter(|response| response.status == 200)
            .map(drop)
    });
    killed_mesh.send_signal(Signal::KILL);
    killed_mesh.wait_for_exit(Duration::from_secs(60));
    let run_clean = || {
        let mut command = leno_command();
        command.args(["up", "--clean", "--data"]).arg(directory.path().join("data"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let count_ended = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        String::from_utf8_lossy(&output.stdout).matches("ended python3").count()
    };
    assert_eq!([run_clean(), run_clean()].map(count_ended).iter().sum::<usize>(), 1);
    assert!(std::net::TcpListener::bind(loopback_address(port)).is_ok(), "the port is free");
}

/// Directories that are removed under a running mesh.
#[test]
fn removed_directories_are_recreated_and_a_sidecar_without_state_joins_again() {
    let directory = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(directory.path().join("mesh.yaml"), manifests).unwrap();
    let mut first_mesh = start_mesh(directory.path());
    let data_directory = directory.path().join("data");
    let root_certificate = std::fs::read(data_directory.join("authority/ca.pem")).unwrap();
    // The control plane checks its authority every second.
    let read_root = || {
        std::fs::read(data_directory.join("authority/ca.pem"))
            .ok()
            .filter(|content| *content == root_certificate)
    };
    let sidecar = || {
        let proxies = get_json(directory.path(), "proxies");
        let client =
            proxies.as_array()?.iter().find(|proxy| proxy["workload"] == "bookinfo/client-1");
        u32::try_from(client?["pid"].as_u64()?).ok()
    };
    let pid_before = eventually("the sidecar is connected", Duration::from_secs(60), sidecar).0;
    // The sidecars write files meanwhile, so one removal may leave a directory.
    eventually("the directory is removed", Duration::from_secs(60), || {
        std::fs::remove_dir_all(&data_directory).ok()
    });
    eventually("the authority is written again", Duration::from_secs(60), read_root);
    // The sidecar may have written its state again.
    drop(std::fs::remove_dir_all(data_directory.join("proxies/bookinfo/client-1")));
    leno_tests::signal_pid(pid_before, Signal::KILL);
    eventually("the sidecar joins again", Duration::from_secs(60), || {
        let pid = data_directory.join("control.sock").exists().then(sidecar)??;
        (pid != pid_before).then_some(())
    });
    // Issuing its token recreated the directory.
    std::fs::remove_dir_all(data_directory.join("tokens")).unwrap();
    let output = leno_command()
        .args(["token", "bookinfo/client-1", "--data"])
        .arg(&data_directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // One missing file is not a removal: `leno ca` may be running.
    std::fs::remove_file(data_directory.join("authority/ca.pem")).unwrap();
    eventually("status names the authority", Duration::from_secs(60), || {
        let output =
            leno_command().args(["status", "--data"]).arg(&data_directory).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_named = text.contains("the files of the authority cannot be used");
        (is_named && output.status.code() == Some(1)).then_some(())
    });
    std::fs::write(data_directory.join("authority/ca.pem"), &root_certificate).unwrap();
    assert!(first_mesh.stop(Duration::from_secs(60)).success());
    let _second_mesh = start_mesh(directory.path());
    assert!(read_root().is_some());
}

/// Another user recreates the removed data directory first.
#[test]
fn a_data_directory_recreated_by_another_user_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let manifests = ratings_manifests("", free_port(), free_port(), "allow");
    std::fs::write(directory.path().join("mesh.yaml"), manifests).unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
    let mesh = start_mesh(directory.path());
    let [data_directory, other_directory] =
        ["data", "other"].map(|name| directory.path().join(name));
    std::fs::create_dir(&other_directory).unwrap();
    let (problem, hint) = match leno_tests::is_root() {
        true => {
            std::os::unix::fs::chown(&other_directory, Some(54_321), None).unwrap();
            let problem = format!(
                "the directory {}, on the path to keys, belongs to user 54321",
                data_directory.display()
            );
            (problem, "use a directory that no other user can create")
        }
        // Without permission to change its owner, the test makes it writable for other users.
        false => {
            std::fs::set_permissions(&other_directory, Permissions::from_mode(0o777)).unwrap();
            (
                format!("other users can write to the directory {}", data_directory.display()),
                "or use another directory",
            )
        }
    };
    // Atomic: no process of the mesh can recreate it in between.
    renameat_with(CWD, &data_directory, CWD, &other_directory, RenameFlags::EXCHANGE).unwrap();
    for log_line in
        ["cannot recreate the admin socket", "the files of the authority cannot be rewritten"]
    {
        let line = mesh.wait_for_line(log_line, Duration::from_secs(60));
        assert!(line.contains(&problem) && line.contains(hint), "{line}");
    }
    assert_eq!(std::fs::read_dir(&data_directory).unwrap().count(), 0);
    std::fs::remove_dir(&data_directory).unwrap();
    eventually("the admin socket is recreated", Duration::from_secs(60), || {
        data_directory.join("control.sock").exists().then_some(())
    });
    assert_eq!(std::fs::metadata(&data_directory).unwrap().permissions().mode() & 0o777, 0o700);
}
