//! The rules of `leno redirect` in a network namespace, as listed by `nft`.
#![allow(clippy::print_stderr, reason = "a skipped scenario is reported")]

mod boundary;
mod dns_queries;
mod plugin;

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leno_tests::{ControlProgram, TestProgram, eventually, is_root, leno_command};

/// Options for every kind of rule.
const REDIRECT_OPTIONS: &[&str] = &[
    "--exclude-outbound-ports=25,5432",
    "--exclude-outbound-ranges=192.0.2.0/24,10.128.0.0/9,2001:db8::/32,203.0.113.7",
    "--exclude-inbound-ports=9000",
    "--exclude-interfaces=eth1,net.2",
    "--dns",
];

/// A network namespace for this test, deleted when dropped.
struct NetworkNamespace(String);

impl NetworkNamespace {
    fn new(suffix: &str) -> Self {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("lenotest{}-{number}-{suffix}", std::process::id());
        run_ip(&["netns", "add", &name]);
        run_ip(&["-n", &name, "link", "set", "lo", "up"]);
        Self(name)
    }

    fn namespace_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }

    /// Adds a default route, so that the kernel routes the packets that are redirected.
    fn add_default_route(&self) {
        run_ip(&["-n", &self.0, "link", "add", "out0", "type", "veth", "peer", "name", "out1"]);
        run_ip(&["-n", &self.0, "address", "add", "192.0.2.7/24", "dev", "out0"]);
        run_ip(&["-n", &self.0, "link", "set", "out0", "up"]);
    }

    fn run_redirect(&self, options: &[&str]) -> Output {
        let program = leno_command().get_program().to_owned();
        self.namespace_command(program).arg("redirect").args(options).output().unwrap()
    }

    fn nft_rules(&self) -> String {
        let output = self.namespace_command("nft").args(["list", "ruleset"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        run_ip(&["netns", "del", &self.0]);
    }
}

fn run_ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success() || std::thread::panicking(), "ip {arguments:?}");
}

#[test]
fn the_kernel_has_the_printed_rules() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let (redirected, loaded) = (NetworkNamespace::new("ours"), NetworkNamespace::new("theirs"));
    // The second run replaces the rules of the first.
    for options in [&["--exclude-outbound-ports=26"][..], REDIRECT_OPTIONS, REDIRECT_OPTIONS] {
        let output = redirected.run_redirect(options);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let dry_run =
        leno_command().arg("redirect").args(REDIRECT_OPTIONS).arg("--dry-run").output().unwrap();
    let mut nft =
        loaded.namespace_command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(&dry_run.stdout).unwrap();
    assert!(nft.wait().unwrap().success());
    assert!(loaded.nft_rules().contains("redirect to :15001"), "{}", loaded.nft_rules());
    assert_eq!(redirected.nft_rules(), loaded.nft_rules());
}

#[test]
fn without_net_admin_no_rule_is_installed() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = NetworkNamespace::new("without");
    let output = namespace
        .namespace_command("setpriv")
        .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
        .arg(leno_command().get_program())
        .arg("redirect")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("NET_ADMIN"), "{stderr}");
    assert_eq!(namespace.nft_rules(), "");
}

#[test]
fn connections_are_redirected_except_those_of_the_sidecar() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = NetworkNamespace::new("leads");
    namespace.add_default_route();
    assert!(namespace.run_redirect(&["--exclude-outbound-ports=81"]).status.success());
    let script = "
import socket, sys
here = socket.socket()
here.bind(('127.0.0.1', 15001))
here.listen()
def connect(port):
    there = socket.socket()
    there.settimeout(0.3)
    try:
        there.connect(('192.0.2.9', port))
        wanted = here.accept()[0].getsockopt(socket.SOL_IP, 80, 16)
        return 'led, wanted port %d' % int.from_bytes(wanted[2:4], 'big')
    except OSError:
        return 'left alone'
import os
print(connect(80)); print(connect(81))
os.setuid(1500)
print(connect(80))
";
    let output = namespace.namespace_command("python3").args(["-c", script]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, "led, wanted port 80\nleft alone\nleft alone\n", "{output:?}");
}

#[test]
fn installed_rules_are_verified() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = NetworkNamespace::new("verify");
    namespace.add_default_route();
    let output_before = namespace.run_redirect(&["--verify"]);
    assert!(!output_before.status.success());
    assert!(
        String::from_utf8_lossy(&output_before.stderr).contains("delete the pod"),
        "{output_before:?}"
    );
    assert!(namespace.run_redirect(&[]).status.success());
    let output_after = namespace.run_redirect(&["--verify"]);
    assert!(output_after.status.success(), "{output_after:?}");
}

/// Two Pods and an unmeshed client on one network with the control plane.
struct PodNetwork {
    subnet: u32,
    bridge: String,
    directory: tempfile::TempDir,
    namespaces: Vec<NetworkNamespace>,
    control: ControlProgram,
    running_programs: Vec<TestProgram>,
}

// The hosts of the network, by the last byte of their addresses.
const CLIENT: u32 = 2;
const SERVER: u32 = 3;
const EXTERNAL_CLIENT: u32 = 4;
/// The user that sidecars run as.
const SIDECAR_UID: u32 = 1500;

impl PodNetwork {
    fn start_pods() -> Self {
        // Other tests of this process, and other runs, have their own subnets.
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let subnet = 1 + (std::process::id() + number) % 250;
        let bridge = format!("lntp{}{number}", std::process::id());
        run_ip(&["link", "add", &bridge, "type", "bridge"]);
        run_ip(&["address", "add", &format!("10.254.{subnet}.1/24"), "dev", &bridge]);
        run_ip(&["link", "set", &bridge, "up"]);
        let hosts = [(CLIENT, "client"), (SERVER, "server"), (EXTERNAL_CLIENT, "outsider")];
        let namespaces =
            hosts.map(|(host, suffix)| connected_namespace(&bridge, subnet, host, suffix));
        let manifests = POD_MANIFESTS.replace("10.254.0.", &format!("10.254.{subnet}."));
        let control = ControlProgram::start_at(&format!("10.254.{subnet}.1:0"), &manifests, &[]);
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let namespaces = namespaces.into();
        Self { subnet, bridge, directory, namespaces, control, running_programs: Vec::new() }
    }

    fn pod_address(&self, host: u32) -> String {
        format!("10.254.{}.{host}", self.subnet)
    }

    fn host_namespace(&self, host: u32) -> &NetworkNamespace {
        &self.namespaces[(host - CLIENT) as usize]
    }

    /// Redirects the connections of a Pod to an unprivileged sidecar, and starts the sidecar.
    fn start_sidecar(&mut self, host: u32, workload: &str) {
        self.start_sidecar_with(host, workload, &[]);
    }

    /// As [`Self::start_sidecar`], with options for both commands.
    fn start_sidecar_with(&mut self, host: u32, workload: &str, options: &[&str]) {
        let output = self.host_namespace(host).run_redirect(options);
        assert!(output.status.success(), "{output:?}");
        let sidecar_directory = self.directory.path().join(workload);
        std::fs::create_dir(&sidecar_directory).unwrap();
        let token_file = sidecar_directory.join("token");
        let issued_token_file = self.control.issue_token(&format!("shop/{workload}"));
        std::fs::copy(issued_token_file, &token_file).unwrap();
        for path in [&sidecar_directory, &token_file] {
            std::os::unix::fs::chown(path, Some(SIDECAR_UID), Some(SIDECAR_UID)).unwrap();
        }
        let user = SIDECAR_UID.to_string();
        let mut command = self.host_namespace(host).namespace_command("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--bounding-set=-all"]);
        command.arg(leno_command().get_program()).args([
            "proxy",
            "--uid-exempt",
            "--redirect-address",
        ]);
        command.arg(self.pod_address(host)).arg("--workload").arg(format!("shop/{workload}"));
        command.arg("--control").arg(self.control.listen_address().to_string());
        command
            .arg("--token-file")
            .arg(&token_file)
            .arg("--state")
            .arg(sidecar_directory.join("state"));
        command.args(options);
        self.running_programs.push(TestProgram::start(workload, &mut command));
    }

    /// Starts a web server on the address of a Pod.
    fn start_server(&mut self, host: u32, port: u16) {
        let mut command = self.host_namespace(host).namespace_command("python3");
        command.args(["-m", "http.server", &port.to_string(), "--bind", &self.pod_address(host)]);
        self.running_programs.push(TestProgram::start("application", &mut command));
    }

    /// Returns the response to an application in a Pod, or `reset`.
    fn request_from(&self, client_host: u32, host: u32, port: u16) -> String {
        self.curl_from(client_host, &[&format!("http://{}:{port}/", self.pod_address(host))])
    }

    /// Returns the status of a `curl` request from a Pod, `reset`, or curl's error.
    fn curl_from(&self, client_host: u32, arguments: &[&str]) -> String {
        let mut curl = self.host_namespace(client_host).namespace_command("curl");
        curl.args(["-sSv", "-m", "8", "-o", "/dev/null", "-w", "%{http_code}"]).args(arguments);
        let output = curl.output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        // While connecting (7, as for a closed port), sending (55), or waiting (56).
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(7) if stderr.contains("Connection reset by peer") => "reset".to_owned(),
            Some(55 | 56) => "reset".to_owned(),
            _ => stderr.into_owned(),
        }
    }

    fn wait_for_response(&self, client_host: u32, host: u32, port: u16, expected: &str) {
        let condition = format!("{host}:{port} responds {expected} to {client_host}");
        eventually(&condition, Duration::from_secs(30), || {
            Some(()).filter(|()| self.request_from(client_host, host, port) == expected)
        });
    }
}

impl Drop for PodNetwork {
    fn drop(&mut self) {
        self.running_programs.clear();
        self.namespaces.clear();
        run_ip(&["link", "del", &self.bridge]);
    }
}

/// Returns a namespace with an address on the bridge.
fn connected_namespace(bridge: &str, subnet: u32, host: u32, suffix: &str) -> NetworkNamespace {
    let namespace = NetworkNamespace::new(suffix);
    let bridge_interface = format!("{bridge}-{host}");
    run_ip(&[
        "link",
        "add",
        &bridge_interface,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        &namespace.0,
    ]);
    run_ip(&["link", "set", &bridge_interface, "master", bridge, "up"]);
    let address = format!("10.254.{subnet}.{host}/24");
    run_ip(&["-n", &namespace.0, "address", "add", &address, "dev", "eth0"]);
    run_ip(&["-n", &namespace.0, "link", "set", "eth0", "up"]);
    namespace
}

const POD_MANIFESTS: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {serviceAccount: client, address: 10.254.0.2}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: server, namespace: shop, labels: {app: server}}
spec: {serviceAccount: server, address: 10.254.0.3}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: shop}
spec: {selector: {app: server}, ports: [{name: http-web, port: 80, targetPort: 8080}]}
";

/// There is no DNS server, and the sidecars are unprivileged, as in Pods.
#[test]
fn pods_reach_each_other_and_external_servers_by_address() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = PodNetwork::start_pods();
    pods.start_server(SERVER, 8080);
    pods.start_server(EXTERNAL_CLIENT, 8080);
    pods.start_sidecar(CLIENT, "client");
    pods.start_sidecar(SERVER, "server");
    // Mutual TLS to the workload; its application listens on the Pod's address.
    pods.wait_for_response(CLIENT, SERVER, 8080, "200");
    // An unmeshed client is rejected, and reachable as before.
    pods.wait_for_response(EXTERNAL_CLIENT, SERVER, 8080, "reset");
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8080, "200");
    // A Pod reaches itself without its sidecar.
    pods.wait_for_response(SERVER, SERVER, 8080, "200");
    // The sidecar's listeners for redirected traffic forward no direct connections.
    for port in [15_001, 15_003] {
        assert_ne!(pods.request_from(EXTERNAL_CLIENT, SERVER, port), "200");
        assert_ne!(pods.request_from(CLIENT, CLIENT, port), "200");
    }
    let settings = "apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {egress: deny, mtls: permissive}
";
    pods.control.write("settings.yaml", settings);
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8080, "reset");
    pods.wait_for_response(EXTERNAL_CLIENT, SERVER, 8080, "200");
    pods.wait_for_response(CLIENT, SERVER, 8080, "200");
}
