//! Network namespaces: unmodified applications, with no way to bypass the mesh.
#![allow(clippy::print_stderr, reason = "a skipped scenario is reported")]

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leno_tests::{
    TestMesh, TestProgram, eventually, free_port, get, get_page, is_root, leno_command,
};

const MANIFESTS: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: ratings-1, namespace: bookinfo, labels: {app: ratings}}
spec:
  serviceAccount: ratings
  ports: [{name: http, port: 9080, protocol: HTTP}]
  run: [\"python3\", \"-m\", \"http.server\", \"9080\"]
---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: bookinfo}
spec: {selector: {app: ratings}, ports: [{name: http, port: 9080}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client-1, namespace: bookinfo, labels: {app: client}}
spec: {serviceAccount: client}
";

/// A UDP server that responds with the datagram and its source address.
const UDP_ECHO: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo-1, namespace: bookinfo, labels: {app: echo}}
spec:
  serviceAccount: echo
  run:
  - python3
  - "-c"
  - |
    import socket
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", 5353))
    print("udp listens", flush=True)
    while True:
        data, peer = server.recvfrom(65535)
        server.sendto(repr(peer).encode() + b" " + data, peer)
"#;

/// A UDP client that sends datagrams of several sizes, the largest in fragments, and prints the complete
/// responses.
const UDP_CLIENT: &str = r#"
import os, socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(5)
client.connect((sys.argv[1], 5353))
for length in [0, 1, 512, 1400, 9000]:
    data = os.urandom(length)
    client.send(data)
    response = client.recv(65535)
    expected = repr(client.getsockname()).encode() + b" " + data
    print(length, "same" if response == expected else "other")
"#;

/// A mesh in network namespaces, on a subnet that no other test uses.
struct NamespacedMesh {
    test_mesh: TestMesh,
    client_address: Ipv4Addr,
    server_address: Ipv4Addr,
    echo_address: Ipv4Addr,
}

impl NamespacedMesh {
    fn start_mesh(excluded_port: u16) -> Self {
        let subnet = format!("{}.0.0/16", free_network_prefix());
        let excluded_text = excluded_port.to_string();
        let options =
            ["--netns", "--netns-subnet", &subnet, "--exclude-outbound-ports", &excluded_text];
        let mesh = TestMesh::up_with(&[MANIFESTS, UDP_ECHO].concat(), &options);
        let [client_address, server_address, echo_address] =
            ["client-1", "ratings-1", "echo-1"].map(|workload| workload_address(&mesh, workload));
        Self { test_mesh: mesh, client_address, server_address, echo_address }
    }

    /// Runs unmodified curl without a proxy in the namespace of the client's application.
    fn curl_from_client(&self, url: &str) -> Output {
        self.run_in_client_namespace(&[
            "curl",
            "-sS",
            "-m",
            "8",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            url,
        ])
    }

    /// Runs a program in the namespace of the client's application.
    fn run_in_client_namespace(&self, command: &[&str]) -> Output {
        let [.., third_octet, fourth_octet] = self.client_address.octets();
        let host = u16::from_be_bytes([third_octet, fourth_octet]);
        let namespace = format!("leno{}-{host}", self.test_mesh.up.pid());
        Command::new("ip")
            .args(["netns", "exec", &namespace])
            .args(command)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .unwrap()
    }
}

/// Returns the first two bytes, such as `10.56`, of a /16 network without a route on this machine: a different one for each
/// call.
fn free_network_prefix() -> String {
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    let next_byte =
        || 56 + (std::process::id() * 3 + NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)) % 200;
    let is_free = |network: &String| {
        let subnet = format!("{network}.0.0/16");
        let routes = ["-4", "route", "show", "table", "all", "root", &subnet];
        let routes = Command::new("ip").args(routes).output().unwrap();
        assert!(routes.status.success(), "{routes:?}");
        routes.stdout.is_empty()
    };
    let mut networks = std::iter::repeat_with(next_byte).take(200).map(|byte| format!("10.{byte}"));
    networks.find(is_free).expect("an unused network")
}

/// Returns the address of a workload's namespace.
fn workload_address(mesh: &TestMesh, workload: &str) -> Ipv4Addr {
    let line_start = format!("workload=bookinfo/{workload} admin=");
    let line = mesh.up.wait_for_line(&line_start, Duration::from_secs(10));
    let address = line.split("admin=").nth(1).unwrap().split_whitespace().next().unwrap();
    match address.parse::<SocketAddr>().unwrap() {
        SocketAddr::V4(address) => *address.ip(),
        SocketAddr::V6(_) => panic!("an IPv4 address was expected"),
    }
}

fn printed_status(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The admin endpoint of the sidecar is in a separate network.
#[test]
fn a_sidecar_with_an_unreachable_admin_endpoint_responds_over_its_stream() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mesh = NamespacedMesh::start_mesh(free_port());
    let rules = "add table inet closed; add chain inet closed input { type filter hook input priority -300; }; \
                 add rule inet closed input tcp dport 15000 drop";
    let nft_output = mesh.run_in_client_namespace(&["nft", rules]);
    assert!(nft_output.status.success(), "{nft_output:?}");
    let admin = SocketAddr::from((mesh.client_address, 15_000));
    let reached = std::net::TcpStream::connect_timeout(&admin, Duration::from_millis(200));
    assert!(reached.is_err(), "its admin endpoint is closed");
    eventually("curl by name gets a response", Duration::from_secs(90), || {
        (printed_status(&mesh.curl_from_client("http://ratings.bookinfo:9080/")) == "200")
            .then_some(())
    });
    let connections = mesh.test_mesh.get_json("connections");
    let is_client = |row: &&serde_json::Value| row["workload"] == "bookinfo/client-1";
    let row = connections.as_array().unwrap().iter().find(is_client).unwrap();
    assert!(row["open"].is_u64(), "{row}");
    let diagnose_output =
        mesh.test_mesh.run_leno(&["diagnose", "bookinfo/client-1", "--to", "bookinfo/ratings"]);
    let diagnosis = printed_status(&diagnose_output);
    assert!(diagnose_output.status.success(), "{diagnosis}");
    let reached = "✓ connectivity bookinfo/ratings: reached 1 of 1 endpoint, with mutual TLS";
    assert!(diagnosis.contains("✓ sidecar") && diagnosis.contains(reached), "{diagnosis}");
}

#[test]
fn unmodified_programs_are_meshed_and_cannot_bypass_the_sidecar() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let external_server = TcpListener::bind("0.0.0.0:0").unwrap();
    let external_port = external_server.local_addr().unwrap().port();
    let mesh = NamespacedMesh::start_mesh(external_port);

    eventually("curl by name gets a response", Duration::from_secs(90), || {
        (printed_status(&mesh.curl_from_client("http://ratings.bookinfo:9080/")) == "200")
            .then_some(())
    });
    assert_eq!(
        printed_status(&mesh.curl_from_client("http://ratings:9080/")),
        "200",
        "the short name"
    );
    let metrics = get_page(SocketAddr::from((mesh.server_address, 15_000)), "/metrics").unwrap();
    let metrics = String::from_utf8(metrics.body).unwrap();
    let is_counted = metrics.lines().any(|line| {
        line.starts_with("leno_requests_total")
            && line.contains("direction=\"inbound\"")
            && line.contains("peer=\"bookinfo/client\"")
    });
    assert!(is_counted, "the server's sidecar saw the client's identity:\n{metrics}");

    if std::fs::exists("/proc/net/if_inet6").unwrap() {
        let ipv6_curl = ["curl", "-6", "-sS", "-m", "8", "-o", "/dev/null", "-w", "%{http_code}"];
        let get_ipv6_status = |url: &str| {
            printed_status(&mesh.run_in_client_namespace(&[&ipv6_curl[..], &[url]].concat()))
        };
        assert_eq!(get_ipv6_status("http://ratings.bookinfo:9080/"), "200", "by name, over IPv6");
        // Addresses of the service network, of a neighboring network, and of an unused network.
        for address in ["fd6c:656e:6f00:f0::7", "fd6c:656e:6f00:1::2", "2001:db8::1"] {
            assert_eq!(get_ipv6_status(&format!("http://[{address}]:9080/")), "000", "{address}");
        }
    }

    let unresolved = mesh.curl_from_client("http://missing.bookinfo:9080/");
    assert_eq!(
        unresolved.status.code(),
        Some(6),
        "an unknown name does not resolve: {unresolved:?}"
    );

    // The reset may reach curl while it connects (7), sends or waits (56): no data was transferred.
    let bypass = mesh.curl_from_client(&format!("http://{}:9080/", mesh.server_address));
    assert!(
        matches!(bypass.status.code(), Some(7 | 56)),
        "the application's own address: {bypass:?}"
    );
    assert_eq!(printed_status(&bypass), "000", "the application's own address: {bypass:?}");
    for port in [9080, 15_003] {
        let host_result = get(SocketAddr::from((mesh.server_address, port)), "/");
        let error = host_result.expect_err("nothing answers in plaintext");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "port {port}: {error}");
    }

    let [first_octet, second_octet, ..] = mesh.server_address.octets();
    let gateway = Ipv4Addr::new(first_octet, second_octet, 0, 1);
    let responder_thread = std::thread::spawn(move || {
        let (mut stream, _) = external_server.accept().unwrap();
        stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").unwrap();
    });
    let excluded_output = mesh.curl_from_client(&format!("http://{gateway}:{external_port}/"));
    assert_eq!(
        printed_status(&excluded_output),
        "204",
        "connections to an excluded port are not redirected: {excluded_output:?}"
    );
    responder_thread.join().unwrap();

    let NamespacedMesh { mut test_mesh, .. } = mesh;
    let name = format!("leno{}", test_mesh.up.pid());
    assert!(test_mesh.up.stop(Duration::from_secs(20)).success());
    let namespaces = Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&namespaces.stdout).contains(&name), "namespaces are removed");
}

#[test]
fn udp_datagrams_pass_between_namespaces_unchanged() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mesh = NamespacedMesh::start_mesh(1);
    mesh.test_mesh.up.wait_for_line("udp listens", Duration::from_secs(20));
    let output = mesh.run_in_client_namespace(&[
        "python3",
        "-c",
        UDP_CLIENT,
        &mesh.echo_address.to_string(),
    ]);
    let client_output = String::from_utf8_lossy(&output.stdout);
    assert_eq!(client_output, "0 same\n1 same\n512 same\n1400 same\n9000 same\n", "{output:?}");
    // Datagrams are not requests of the mesh, and are not counted.
    for sidecar_address in [mesh.client_address, mesh.echo_address] {
        let metrics = get_page(SocketAddr::from((sidecar_address, 15_000)), "/metrics").unwrap();
        let metrics = String::from_utf8(metrics.body).unwrap();
        assert!(!metrics.contains("\nleno_requests_total{"), "{metrics}");
    }
}

#[test]
fn a_subnet_with_another_route_is_rejected() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let network = free_network_prefix();
    let bridge = TestBridge::with_address(&format!("{network}.7.1/24"));
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("mesh.yaml"), MANIFESTS).unwrap();
    let mut up = leno_command();
    up.arg("up").arg("-f").arg(directory.path().join("mesh.yaml"));
    up.arg("--data").arg(directory.path().join("data"));
    up.args(["--netns", "--netns-subnet", &format!("{network}.0.0/16")]);
    let mut up = TestProgram::start("leno up", &mut up);
    assert_eq!(up.wait_for_exit(Duration::from_secs(20)).code(), Some(1));
    let expected = format!(
        "{network}.0.0/16 is in use: this machine already routes {network}.7.0/24 through {}; choose another /16 \
         with --netns-subnet",
        bridge.0
    );
    up.wait_for_line(&expected, Duration::from_secs(5));
}

/// A bridge with an address on a network, deleted when dropped.
struct TestBridge(String);

impl TestBridge {
    fn with_address(address: &str) -> Self {
        let name = format!("lt{}", std::process::id());
        let bridge = Self(name.clone());
        for arguments in [
            &["link", "add", &name, "type", "bridge"][..],
            &["address", "add", address, "dev", &name],
            &["link", "set", &name, "up"],
        ] {
            assert!(Command::new("ip").args(arguments).status().unwrap().success());
        }
        bridge
    }
}

impl Drop for TestBridge {
    fn drop(&mut self) {
        let _status = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}
