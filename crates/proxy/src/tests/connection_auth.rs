//! A connection that the application authenticates serves no other client.

use super::fixture::{Application, Client, Mesh, run};

/// Starts an application that takes the user of a connection from its first request with credentials, as NTLM
/// does.
async fn start_application(scheme: &'static str) -> Application {
    Application::start(move |mut client| async move {
        let mut user = None;
        while let Some(request) = client.read_head().await {
            if let Some(token) = request.field_value("authorization") {
                match token.rsplit(' ').next() {
                    Some("begin") => {}
                    name => user = name.map(str::to_owned),
                }
            }
            let response = match &user {
                Some(user) => {
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{user}", user.len())
                }
                None => format!(
                    "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"a\"\r\n\
                     WWW-Authenticate: {scheme}\r\ncontent-length: 0\r\n\r\n"
                ),
            };
            client.send_bytes(response).await;
        }
    })
    .await
}

#[test]
fn an_authenticated_connection_serves_no_other_client() {
    run(async {
        for (challenge, scheme) in
            [("NTLM", "NTLM"), ("ntlm Y2hhbGxlbmdl", "ntlm"), ("Negotiate", "Negotiate")]
        {
            for first in ["begin", "alice"] {
                let app = start_application(challenge).await;
                let mesh = Mesh::permissive(app.address).await;
                let mut alice = Client::connect(mesh.listener).await;
                let request_for = |token| {
                    format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: {scheme} {token}\r\n\r\n")
                };
                alice.send_request(&request_for(first)).await;
                // The next request uses the authenticated connection.
                if first == "alice" {
                    let response = alice.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                    assert_eq!(response.body_text(), "alice");
                }
                assert_eq!(alice.send_request(&request_for("alice")).await.body_text(), "alice");
                let mut bob = Client::connect(mesh.listener).await;
                for _ in 0..3 {
                    let response = bob.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                    assert_eq!(response.status, 401, "{scheme}: {}", response.head);
                }
            }
        }
    });
}

#[test]
fn other_credentials_leave_a_connection_shared() {
    run(async {
        let app = Application::with_response(
            "HTTP/1.1 401 No\r\nwww-authenticate: Basic\r\ncontent-length: 0\r\n\r\n",
        )
        .await;
        let mesh = Mesh::permissive(app.address).await;
        for scheme in ["Basic YTpi", "Bearer x", "NTLMish x"] {
            let request = format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: {scheme}\r\n\r\n");
            assert_eq!(
                Client::connect(mesh.listener).await.send_request(&request).await.status,
                401
            );
        }
        assert_eq!(app.accepted.get(), 1);
    });
}

/// Starts an application that authenticates a client by the third message of NTLM, on the connection of its
/// challenge.
async fn start_challenging() -> Application {
    Application::start(move |mut client| async move {
        let (mut challenged, mut user) = (false, None);
        while let Some(request) = client.read_head().await {
            let token = request.field_value("authorization").map(str::to_owned);
            let token = token.as_deref().and_then(|token| token.strip_prefix("NTLM "));
            let response = match (token, &user) {
                (Some("type1"), _) => {
                    challenged = true;
                    CHALLENGE.replace("NTLM", "NTLM type2")
                }
                (Some(name), _) if challenged => {
                    user = Some(name.to_owned());
                    hello_response(name)
                }
                (None, Some(user)) => hello_response(user),
                _ => CHALLENGE.to_owned(),
            };
            client.send_bytes(response).await;
        }
    })
    .await
}

fn hello_response(user: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{user}", user.len())
}

const CHALLENGE: &str =
    "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\ncontent-length: 0\r\n\r\n";

/// The handshake takes three requests on one connection of the client; each client has a connection of its own
/// to the application, and all its later requests are the user's.
#[test]
fn a_client_completes_ntlm_over_its_own_connection() {
    run(async {
        let app = start_challenging().await;
        let mesh = Mesh::permissive(app.address).await;
        let request_for = |token: &str| match token {
            "" => "GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
            token => format!("GET / HTTP/1.1\r\nhost: x\r\nauthorization: NTLM {token}\r\n\r\n"),
        };
        let mut clients = Vec::new();
        for name in ["alice", "bob", "carol"] {
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(&request_for("")).await.status, 401);
            let challenge = client.send_request(&request_for("type1")).await;
            assert!(challenge.head.contains("NTLM type2"), "{}", challenge.head);
            clients.push((name, client));
        }
        // Handshakes of several clients interleave.
        for (name, client) in &mut clients {
            assert_eq!(client.send_request(&request_for(name)).await.body_text(), *name);
        }
        for _ in 0..3 {
            for (name, client) in &mut clients {
                assert_eq!(client.send_request(&request_for("")).await.body_text(), *name);
            }
            assert_eq!(
                Client::connect(mesh.listener).await.send_request(&request_for("")).await.status,
                401
            );
        }
    });
}

/// A proxy before the sidecar sends the requests of its clients over one connection: none of them acts as
/// another.
#[test]
fn users_behind_a_proxy_do_not_share_authenticated_connections() {
    run(async {
        for mark in ["x-forwarded-for: 192.0.2.7", "Via: 1.1 proxy", "forwarded: for=192.0.2.7"] {
            let app = start_application("NTLM").await;
            let mesh = Mesh::permissive(app.address).await;
            let mut proxy = Client::connect(mesh.listener).await;
            let alice = "authorization: NTLM alice\r\n";
            let request_for = |more: &str, mark: &str| {
                format!("GET / HTTP/1.1\r\nhost: x\r\n{more}{mark}\r\n\r\n")
            };
            assert_eq!(proxy.send_request(&request_for(alice, mark)).await.body_text(), "alice");
            assert_eq!(proxy.send_request(&request_for("", mark)).await.status, 401, "{mark}");
            // Other clients do not get a connection that the proxy has authenticated for itself either.
            assert_eq!(
                proxy.send_request(&request_for(alice, "x-other: 1")).await.body_text(),
                "alice"
            );
            assert_eq!(proxy.send_request(&request_for("", mark)).await.status, 401, "{mark}");
            assert_eq!(
                proxy.send_request(&request_for("", "x-other: 1")).await.body_text(),
                "alice"
            );
        }
    });
}
