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
/// Its response: 203.0.113.77.
const FOREIGN: &str = "203.0.113.77";

/// The files that `ip netns exec` mounts over the machine's in a namespace, deleted when dropped.
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
    fn look_up(&self, name: &str) -> String {
        let output = self
            .namespace_of(CLIENT)
            .namespace_command("getent")
            .args(["ahostsv4", name])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.split_whitespace().next().unwrap_or("nothing").to_owned()
    }
}

#[test]
fn names_of_the_mesh_are_answered_by_the_sidecar_and_others_by_name_servers() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = PodNetwork::start_pods();
    let server = pods.pod_address(EXTERNAL_CLIENT);
    let text = format!(
        "nameserver {server}\nsearch shop.svc.cluster.local svc.cluster.local\noptions ndots:5"
    );
    let files = NamespaceFiles::new(&pods.namespace_of(CLIENT).0, &format!("{text}\n"));
    let mut command = pods.namespace_of(EXTERNAL_CLIENT).namespace_command("python3");
    command.args(["-c", NAME_SERVER, &server]);
    pods.running.push(TestProgram::start("name server", &mut command));
    pods.start_server(SERVER, 8080);
    pods.start_sidecar(SERVER, "server");
    // Without a sidecar, and with a sidecar that does not intercept DNS, queries reach the DNS server.
    eventually("the name server answers", Duration::from_secs(10), || {
        (pods.look_up("server") == FOREIGN).then_some(())
    });
    pods.mesh_with(CLIENT, "client", &["--dns"]);
    let there = pods.pod_address(SERVER);
    eventually("the sidecar answers", Duration::from_secs(30), || {
        (pods.look_up("server") == there).then_some(())
    });
    assert_eq!(pods.look_up("server.shop.svc.cluster.local."), there);
    assert_eq!(pods.look_up("nobody.shop.svc.cluster.local."), FOREIGN);
    assert_eq!(pods.look_up("example.com."), FOREIGN);
    let over_tcp = format!("{text} use-vc\n");
    std::fs::write(files.0.join("resolv.conf"), over_tcp).unwrap();
    assert_eq!(pods.look_up("server"), there);
    assert_eq!(pods.look_up("example.com."), FOREIGN);
    // The connection that follows uses the mesh: other clients are rejected there.
    let url = "http://server:8080/";
    eventually("it is reached by its name", Duration::from_secs(30), || {
        (pods.curl_from(CLIENT, &[url]) == "200").then_some(())
    });
    let resolve = format!("server:8080:{there}");
    assert_eq!(pods.curl_from(EXTERNAL_CLIENT, &["--resolve", &resolve, url]), "reset");
}
