//! WebSocket between unmodified programs.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, http_access_manifest, mesh_config, server_manifest};
use leno_tests::{LineClient, TestMesh, eventually, free_port, python_program, script_path};

use super::{DEFAULT_POLICIES, run_curl};

/// A Python WebSocket server behind one sidecar, and a client with another sidecar.
struct Chat {
    mesh: TestMesh,
    listener: u16,
    client: LineClient,
}

fn start_chat(default_policy: &str, client: LineClient) -> Chat {
    let (port, listener) = (free_port(), free_port());
    let server_command = [python_program(), &script_path("websocket_server.py"), &port.to_string()];
    let manifests = [
        mesh_config(default_policy),
        server_manifest("chat", port, &server_command),
        client_manifest("user", &[], &[("chat.shop", listener)]),
        http_access_manifest("user", "chat", "/(room|greeted)"),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let mut chat = Chat { mesh, listener, client };
    eventually("the server listens", MAX_WAIT, || {
        (chat.open_client("/room") == "open").then_some(())
    });
    chat
}

/// Returns a client with Python's `websockets`.
fn python_client() -> LineClient {
    LineClient::start(python_program(), &[&script_path("websocket_client.py")])
}

/// Returns a client with Node's `ws`, installed by Debian in a path that only its own Node searches.
fn node_client() -> LineClient {
    LineClient::start(
        "env",
        &["NODE_PATH=/usr/share/nodejs", "node", &script_path("websocket_ws.cjs")],
    )
}

impl Chat {
    fn open_client(&mut self, path: &str) -> String {
        let listener = self.listener;
        self.client.send_line(&format!("open ws://127.0.0.1:{listener}{path}"))
    }

    /// Sends messages of many sizes, as bytes and as text, and pings from both sides.
    fn exchange_messages(&mut self) {
        for length in ["0", "1", "125", "126", "65535", "65536", "1048576"] {
            assert_eq!(
                self.client.send_line(&format!("echo {length}")),
                format!("echoed {length}")
            );
        }
        assert_eq!(self.client.send_line("text hällo"), "hällo");
        assert_eq!(self.client.send_line("ping are you there?"), "pong");
        assert_eq!(self.client.send_line("text ping me"), "you are there");
    }
}

#[test]
fn messages_pings_and_closes_work_both_ways_in_either_mode() {
    for default_policy in DEFAULT_POLICIES {
        for client in [python_client(), node_client()] {
            let mut chat = start_chat(default_policy, client);
            chat.exchange_messages();
            assert_eq!(
                chat.client.send_line("close 4001 enough of it"),
                "closed 4001 enough of it"
            );
            chat.mesh.up.wait_for_line("websocket ended: 4001 enough of it", MAX_WAIT);
            assert_eq!(chat.open_client("/room"), "open");
            assert_eq!(chat.client.send_line("be-closed 4002 go home"), "closed 4002 go home");
            chat.mesh.up.wait_for_line("websocket ended: 4002 go home", MAX_WAIT);
            // With `defaultPolicy: deny` the policy allows only two paths.
            let expected = if default_policy == "deny" { "refused 404" } else { "open" };
            assert_eq!(chat.open_client("/another"), expected);
        }
    }
}

#[test]
fn curl_receives_the_first_message_of_a_server() {
    for default_policy in DEFAULT_POLICIES {
        let chat = start_chat(default_policy, python_client());
        let url_of = |path: &str| format!("http://127.0.0.1:{}{path}", chat.listener);
        let upgrade_fields =
            ["connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13"];
        let key_field = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
        let mut request_arguments = vec!["-i", "-N", "--http1.1", "-H", key_field];
        upgrade_fields.iter().for_each(|field| request_arguments.extend(["-H", field]));
        let response = run_curl(&[&request_arguments[..], &[&url_of("/greeted")]].concat());
        assert!(response.starts_with("HTTP/1.1 101 "), "{default_policy}: {response}");
        // The key and the accept value of RFC 6455 §4.2.2.
        assert!(response.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{default_policy}: {response}");
        assert!(response.ends_with("\u{7}welcome"), "{default_policy}: {response}");
        let status_arguments = ["-o", "/dev/null", "-w", "%{http_code}"];
        if default_policy == "deny" {
            assert_eq!(
                run_curl(
                    &[&request_arguments[1..], &status_arguments, &[&url_of("/another")]].concat()
                ),
                "404"
            );
        }
    }
}

#[test]
fn many_websockets_are_open_at_the_same_time() {
    const CONNECTIONS: usize = 100;
    let mut chat = start_chat("allow", python_client());
    for _ in 1..CONNECTIONS {
        assert_eq!(chat.open_client("/room"), "open");
    }
    assert_eq!(chat.client.send_line("each 65536"), "1 kind of response: echoed 65536");
}

#[test]
fn an_http2_client_reaches_an_http1_server() {
    for default_policy in DEFAULT_POLICIES {
        let (port, listener) = (free_port(), free_port());
        let server_command =
            [python_program(), &script_path("websocket_server.py"), &port.to_string()];
        // The service uses HTTP/2 with its clients, the workload HTTP/1.1 with its sidecar.
        let server = server_manifest("chat", port, &server_command)
            .replace("targetPort: main", "targetPort: main, appProtocol: kubernetes.io/h2c");
        let manifests = [
            mesh_config(default_policy),
            server,
            client_manifest("user", &[], &[("chat.shop", listener)]),
            http_access_manifest("user", "chat", "/room"),
        ];
        let mesh = TestMesh::up(&manifests.concat());
        let mut client = LineClient::start("node", &[&script_path("websocket_http2.mjs")]);
        let open_line = format!("open http://127.0.0.1:{listener}/room");
        eventually("the server listens", MAX_WAIT, || {
            (client.send_line(&open_line) == "open").then_some(())
        });
        for length in ["0", "125", "126", "65535", "65536", "1048576"] {
            assert_eq!(client.send_line(&format!("echo {length}")), format!("echoed {length}"));
        }
        assert_eq!(client.send_line("text hällo"), "hällo");
        assert_eq!(client.send_line("close 4001 enough of it"), "closed 4001 enough of it");
        mesh.up.wait_for_line("websocket ended: 4001 enough of it", MAX_WAIT);
        let expected = if default_policy == "deny" { "refused 404" } else { "open" };
        assert_eq!(
            client.send_line(&format!("open http://127.0.0.1:{listener}/another")),
            expected
        );
    }
}

/// The application closes its sending direction first and continues to read.
#[test]
fn client_bytes_arrive_after_the_application_ends_its_direction() {
    let application_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, listener) = (application_listener.local_addr().unwrap().port(), free_port());
    let application_thread = std::thread::spawn(move || {
        // Port probes connect as well, and send no bytes.
        for stream in application_listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or_default() == 0 {
                    break;
                }
                head.push(byte[0]);
            }
            if head.starts_with(b"GET /chat ") {
                stream.write_all(SWITCHING_RESPONSE).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut received_bytes = Vec::new();
                stream.read_to_end(&mut received_bytes).unwrap();
                return received_bytes;
            }
        }
        Vec::new()
    });
    let manifests = [
        mesh_config("allow"),
        server_manifest("chat", port, &[]),
        client_manifest("user", &[], &[("chat.shop", listener)]),
    ];
    let _mesh = TestMesh::up(&manifests.concat());
    let mut stream = TcpStream::connect(("127.0.0.1", listener)).unwrap();
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    stream.write_all(UPGRADE_REQUEST).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let response = String::from_utf8_lossy(&response);
    assert!(response.starts_with("HTTP/1.1 101 ") && response.ends_with("hello"), "{response}");
    let payload = vec![7; 1_000_000];
    stream.write_all(&payload).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let received_bytes = application_thread.join().unwrap();
    assert!(received_bytes == payload, "{} bytes", received_bytes.len());
}

const UPGRADE_REQUEST: &[u8] = b"GET /chat HTTP/1.1\r\nhost: chat.shop\r\nconnection: Upgrade\r\n\
                         upgrade: websocket\r\nsec-websocket-key: a\r\n\r\n";
const SWITCHING_RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
                           upgrade: websocket\r\n\r\nhello";
const MAX_WAIT: Duration = Duration::from_secs(20);
