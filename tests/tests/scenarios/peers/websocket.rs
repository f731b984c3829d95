//! WebSocket between unmodified programs, and what their connections live through.

use std::time::Duration;

use leno_tests::manifests::{allowed_http, client, mesh_config, route, server};
use leno_tests::{Dialogue, Mesh, eventually, free_port, get, python, script};

use super::{MODES, loopback};

/// A WebSocket server of Python's behind one sidecar, a client of the same before another.
struct Chat {
    mesh: Mesh,
    door: u16,
    client: Dialogue,
}

fn chat(mode: &str, arguments: &[&str]) -> Chat {
    let (port, door) = (free_port(), free_port());
    let run = [python(), &script("websocket_server.py"), &port.to_string()];
    let manifests = [
        mesh_config(mode),
        server("chat", port, &run),
        client("user", &[], &[("chat.shop", door)]),
        allowed_http("user", "chat", "/room"),
    ];
    let mesh = Mesh::up_with(&manifests.concat(), arguments);
    let client = Dialogue::start(python(), &[&script("websocket_client.py")]);
    let mut chat = Chat { mesh, door, client };
    eventually("the server listens", PATIENCE, || (chat.open("/room") == "open").then_some(()));
    chat
}

impl Chat {
    fn open(&mut self, path: &str) -> String {
        let door = self.door;
        self.client.say(&format!("open ws://127.0.0.1:{door}{path}"))
    }

    /// Waits until new requests for a path are answered by a sidecar, for this reason.
    fn turns(&self, path: &str, reason: &str) {
        let look = || get(loopback(self.door), path).ok().filter(|r| r.reason() == Some(reason));
        eventually(&format!("{path} is answered {reason}"), PATIENCE, look);
    }

    /// Messages of many sizes, as bytes and as text, and pings from both sides.
    fn converses(&mut self) {
        for length in ["0", "1", "125", "126", "65535", "65536", "1048576"] {
            assert_eq!(self.client.say(&format!("echo {length}")), format!("echoed {length}"));
        }
        assert_eq!(self.client.say("text hällo"), "hällo");
        assert_eq!(self.client.say("ping are you there?"), "pong");
        assert_eq!(self.client.say("text ping me"), "you are there");
    }
}

#[test]
fn messages_pings_and_closes_pass_both_ways_in_either_mode() {
    for mode in MODES {
        let mut chat = chat(mode, &[]);
        chat.converses();
        assert_eq!(chat.client.say("close 4001 enough of it"), "closed 4001 enough of it");
        chat.mesh.up.wait_for_line("websocket ended: 4001 enough of it", PATIENCE);
        assert_eq!(chat.open("/room"), "open");
        assert_eq!(chat.client.say("be-closed 4002 go home"), "closed 4002 go home");
        chat.mesh.up.wait_for_line("websocket ended: 4002 go home", PATIENCE);
        // In strict mode the policy speaks of one path only.
        let other = if mode == "strict" { "refused 404" } else { "open" };
        assert_eq!(chat.open("/elsewhere"), other);
    }
}

#[test]
fn many_connections_share_the_way() {
    const CONNECTIONS: usize = 100;
    let mut chat = chat("permissive", &[]);
    for _ in 1..CONNECTIONS {
        assert_eq!(chat.open("/room"), "open");
    }
    assert_eq!(chat.client.say("each 65536"), "1 kind of answer: echoed 65536");
}

#[test]
fn a_connection_outlives_the_rules_that_it_began_under() {
    let mut chat = chat("permissive", &[]);
    let user = chat.mesh.sidecar("shop/user-1").pid;
    let elsewhere = "{matches: [{path: {type: Exact, value: /elsewhere}}], \
                     timeouts: {request: 1s}, backendRefs: [{name: chat, port: 9080}]}";
    chat.mesh.write("route.yaml", &route("chat", &[elsewhere]));
    chat.turns("/room", "no-route");
    chat.converses();
    chat.mesh.remove("route.yaml");
    let manifests = std::fs::read_to_string(chat.mesh.file("mesh.yaml")).unwrap();
    let edited = manifests
        .replace("trafficMode: permissive", "trafficMode: strict")
        .replace("labels: {app: user}", "labels: {app: user, edited: \"yes\"}");
    chat.mesh.write("mesh.yaml", &edited);
    chat.turns("/elsewhere", "no-policy-route");
    chat.converses();
    assert_eq!(chat.mesh.sidecar("shop/user-1").pid, user, "the sidecar was not replaced");
    assert_eq!(chat.client.say("close 1000 done"), "closed 1000 done");
}

#[test]
fn a_connection_outlives_the_certificates_it_began_with() {
    let mut chat = chat("permissive", &["--certificate-lifetime", "4s"]);
    let began = expiries(&chat.mesh);
    let last = began.iter().copied().max().unwrap();
    eventually("all certificates of the beginning have ended", Duration::from_secs(15), || {
        assert_eq!(chat.client.say("echo 1000"), "echoed 1000");
        let now = expiries(&chat.mesh);
        // Renewed at half-life: whose end is a life and a half later than the first one's, was
        // made when that had ended.
        now.iter().all(|end| *end >= last + 4).then_some(())
    });
    chat.converses();
    assert_eq!(chat.client.say("close 1000 done"), "closed 1000 done");
    assert_eq!(chat.open("/room"), "open", "others may begin as before");
}

#[test]
fn a_client_of_http2_reaches_a_server_that_knows_http1_only() {
    for mode in MODES {
        let (port, door) = (free_port(), free_port());
        let run = [python(), &script("websocket_server.py"), &port.to_string()];
        // The service speaks HTTP/2 with its clients, the workload HTTP/1.1 with its sidecar.
        let server = server("chat", port, &run)
            .replace("targetPort: main", "targetPort: main, appProtocol: kubernetes.io/h2c");
        let manifests = [
            mesh_config(mode),
            server,
            client("user", &[], &[("chat.shop", door)]),
            allowed_http("user", "chat", "/room"),
        ];
        let mesh = Mesh::up(&manifests.concat());
        let mut client = Dialogue::start("node", &[&script("websocket_http2.mjs")]);
        let open = format!("open http://127.0.0.1:{door}/room");
        eventually("the server listens", PATIENCE, || (client.say(&open) == "open").then_some(()));
        for length in ["0", "125", "126", "65535", "65536", "1048576"] {
            assert_eq!(client.say(&format!("echo {length}")), format!("echoed {length}"));
        }
        assert_eq!(client.say("text hällo"), "hällo");
        assert_eq!(client.say("close 4001 enough of it"), "closed 4001 enough of it");
        mesh.up.wait_for_line("websocket ended: 4001 enough of it", PATIENCE);
        let other = if mode == "strict" { "refused 404" } else { "open" };
        assert_eq!(client.say(&format!("open http://127.0.0.1:{door}/elsewhere")), other);
    }
}

/// When the certificates end that the control plane knows of.
fn expiries(mesh: &Mesh) -> Vec<u64> {
    let certificates = mesh.ask("certificates");
    let certificates = certificates.as_array().into_iter().flatten();
    certificates.filter_map(|certificate| certificate["not_after"].as_u64()).collect()
}

const PATIENCE: Duration = Duration::from_secs(20);
