//! DNS queries redirected to a sidecar: resolved there, or forwarded.

use std::path::PathBuf;
use std::time::Duration;

use leno_tests::{TestProgram, eventually, is_root};

use super::{CLIENT, EXTERNAL_CLIENT, PodNetwork, SERVER};

/// A DNS server with one address for every name, over UDP and TCP.
const NAME_SERVER: &str = "
import socket, sys, threading
def answer(query):
    return query[:2] + b'\\x81\\x80\\0\\1\\0\\1\\0\\0\\0\\0' + query[12:query.index(b'\\0', 12) + 5] \\
        + b'\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\1\\0\\4\\xcb\\0\\x71\\x4d'
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((sys.argv[1], 53))
tcp = socket.create_server((sys.argv[1], 53))
def stream():
    while True:
        c, _ = tcp.accept()
        length = int.from_bytes(c.recv(2), 'big')
        reply = answer(c.recv(length))
        c.sendall(len(reply).to_bytes(2, 'big') + reply)
        c.close()
threading.Thread(target=stream, daemon=True).start()
while True:
    query, who = udp.recvfrom(4096)
    udp.sendto(answer(query), who)
";
/// The address in the responses of the name server.
const EXTERNAL_ADDRESS: &str = "203.0.113.77";

/// The files that `ip netns exec` mounts over the machine's files in a namespace, deleted when dropped.
struct NamespaceFiles(PathBuf);

impl NamespaceFiles {
    fn new(namespace: &str, resolv_conf: &str) -> Self {
        let directory = PathBuf::from("/etc/netns").join(namespace);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("resolv.conf"), resolv_conf).unwrap();
        Self(directory)
    }
}

impl Drop for NamespaceFiles {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

impl PodNetwork {
    /// Returns the first address of a name, as resolved by the C library.
    fn resolve_name(&self, name: &str) -> String {
        let output = self
            .host_namespace(CLIENT)
            .namespace_command("getent")
            .args(["ahostsv4", name])
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        stdout.split_whitespace().next().unwrap_or("nothing").to_owned()
    }
}

#[test]
fn the_sidecar_resolves_mesh_names_and_forwards_other_queries() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = PodNetwork::start_pods();
    let server = pods.pod_address(EXTERNAL_CLIENT);
    let resolver_settings = format!(
        "nameserver {server}\nsearch shop.svc.cluster.local svc.cluster.local\noptions ndots:5"
    );
    let namespace_files =
        NamespaceFiles::new(&pods.host_namespace(CLIENT).0, &format!("{resolver_settings}\n"));
    let mut command = pods.host_namespace(EXTERNAL_CLIENT).namespace_command("python3");
    command.args(["-c", NAME_SERVER, &server]);
    pods.running_programs.push(TestProgram::start("name server", &mut command));
    pods.start_server(SERVER, 8080);
    pods.start_sidecar(SERVER, "server");
    // Without a sidecar, and with a sidecar that does not intercept DNS, queries reach the DNS server.
    eventually("the name server responds", Duration::from_secs(10), || {
        (pods.resolve_name("server") == EXTERNAL_ADDRESS).then_some(())
    });
    pods.start_sidecar_with(CLIENT, "client", &["--dns"]);
    let server_address = pods.pod_address(SERVER);
    eventually("the sidecar responds", Duration::from_secs(30), || {
        (pods.resolve_name("server") == server_address).then_some(())
    });
    assert_eq!(pods.resolve_name("server.shop.svc.cluster.local."), server_address);
    assert_eq!(pods.resolve_name("nobody.shop.svc.cluster.local."), EXTERNAL_ADDRESS);
    assert_eq!(pods.resolve_name("example.com."), EXTERNAL_ADDRESS);
    let tcp_settings = format!("{resolver_settings} use-vc\n");
    std::fs::write(namespace_files.0.join("resolv.conf"), tcp_settings).unwrap();
    assert_eq!(pods.resolve_name("server"), server_address);
    assert_eq!(pods.resolve_name("example.com."), EXTERNAL_ADDRESS);
    // The connection that follows uses the mesh: other clients of the service are rejected.
    let url = "http://server:8080/";
    eventually("the service is reachable by its name", Duration::from_secs(30), || {
        (pods.curl_from(CLIENT, &[url]) == "200").then_some(())
    });
    let resolve_argument = format!("server:8080:{server_address}");
    assert_eq!(pods.curl_from(EXTERNAL_CLIENT, &["--resolve", &resolve_argument, url]), "reset");
}
