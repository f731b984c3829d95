//! JSON web tokens of an independent issuer: openssl signs, Python serves the keys over HTTPS.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, Response, TestApplication, TestMesh, TestProgram, eventually,
    exchange_bytes, free_port,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An issuer of tokens with its JWKS endpoint.
struct TokenIssuer {
    directory: TempDir,
    port: u16,
}

impl TokenIssuer {
    /// Creates an issuer with a certificate for `localhost`, without any key.
    fn new() -> Self {
        let issuer = Self { directory: tempfile::tempdir().expect("a folder"), port: free_port() };
        let certified_key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let certified_key = certified_key.expect("a certificate");
        let key_and_certificate =
            certified_key.cert.pem() + &certified_key.signing_key.serialize_pem();
        std::fs::write(issuer.file_path("server.pem"), key_and_certificate).expect("a file");
        std::fs::write(issuer.file_path("roots.pem"), certified_key.cert.pem()).expect("a file");
        std::fs::create_dir(issuer.file_path("www")).expect("a folder");
        issuer
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn path_text(&self, name: &str) -> String {
        self.file_path(name).to_str().expect("a path of text").to_owned()
    }

    /// Generates an RSA key.
    fn generate_key(&self, key_id: &str) {
        let arguments = "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out";
        run_openssl(arguments, &[&self.path_text(key_id)], b"");
    }

    /// Returns a public key as a JWK.
    fn public_jwk(&self, key_id: &str) -> Value {
        let output = run_openssl("rsa -noout -modulus -in", &[&self.path_text(key_id)], b"");
        let modulus_hex = String::from_utf8(output).expect("text");
        let modulus_hex =
            modulus_hex.trim().strip_prefix("Modulus=").expect("a modulus").to_owned();
        let pairs = (0..modulus_hex.len()).step_by(2).map(|index| &modulus_hex[index..index + 2]);
        let modulus = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("a byte"));
        let modulus = URL_SAFE_NO_PAD.encode(modulus.collect::<Vec<_>>());
        json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": key_id, "n": modulus, "e": "AQAB"})
    }

    /// Returns the JWK set of these keys.
    fn key_set(&self, key_ids: &[&str]) -> String {
        let keys: Vec<Value> = key_ids.iter().map(|key_id| self.public_jwk(key_id)).collect();
        json!({"keys": keys}).to_string()
    }

    /// Serves these keys from now on.
    fn publish_keys(&self, key_ids: &[&str]) {
        let new_file = self.file_path("www/new.json");
        std::fs::write(&new_file, self.key_set(key_ids)).expect("a file");
        std::fs::rename(new_file, self.file_path("www/keys.json")).expect("a file");
    }

    fn start_server(&self) -> TestProgram {
        let mut command = Command::new("python3");
        command.args(["-c", KEY_SERVER, &self.port.to_string(), &self.path_text("server.pem")]);
        TestProgram::start("issuer", command.arg(self.path_text("www")))
    }

    /// Returns a token with these claims, signed with a key.
    fn sign_token(&self, key_id: &str, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "RS256", "typ": "JWT", "kid": key_id});
        let signed_part = format!("{}.{}", encode(&header), encode(claims));
        let signature =
            run_openssl("dgst -sha256 -sign", &[&self.path_text(key_id)], signed_part.as_bytes());
        format!("{signed_part}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn run_openssl(arguments: &str, extra_arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).args(extra_arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("openssl runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, input).expect("openssl reads");
    drop(stdin);
    let output = child.wait_with_output().expect("openssl ends");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns valid claims of a user in these groups.
fn valid_claims(groups: &[&str]) -> Value {
    let now_seconds = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    json!({"iss": "https://issuer.example", "aud": ["stock", "cart"], "sub": "ann",
           "exp": now_seconds + 3600, "groups": groups})
}

/// Returns valid claims, except for one changed claim.
fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = valid_claims(&["writers"]);
    claims[name] = value;
    claims
}

/// Returns a mesh that denies by default, in which tokens with a group have access to `stock`.
fn default_deny_manifests(port: u16, listener: u16, jwks: &str) -> String {
    let token_rules = format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: JwtValidation
metadata: {{name: tokens, namespace: shop}}
spec:
  targetRefs: [{{name: stock}}]
  required: true
  issuers:
  - issuer: https://issuer.example
    audiences: [stock]
    jwks: {jwks}
    claimToHeaders: [{{claim: sub, header: x-user}}]
---
apiVersion: leno.dev/v1alpha1
kind: AccessPolicy
metadata: {{name: writers, namespace: shop}}
spec:
  serviceAccounts: [stock]
  allow:
  - {{name: writers, from: [{{serviceAccount: web}}], claims: {{groups: [writers, admins]}}}}
"
    );
    let stock = server_manifest("stock", port, &[]);
    [mesh_config("deny"), stock, client_manifest("web", &[], &[("stock", listener)]), token_rules]
        .concat()
}

/// Returns an application that responds with the forwarded identity of the client.
fn start_stock() -> TestApplication {
    TestApplication::start(|request| {
        let token = request.first_header("authorization").map_or("", |_| " with a token");
        ApplicationResponse::ok(format!(
            "{}{token}",
            request.first_header("x-user").unwrap_or("nobody")
        ))
    })
}

fn send_token(listener: u16, token: &str) -> Option<Response> {
    let request = format!(
        "GET / HTTP/1.1\r\nhost: stock\r\nconnection: close\r\nx-user: eve\r\n\
         authorization: Bearer {token}\r\n\r\n"
    );
    exchange_bytes(SocketAddr::from((Ipv4Addr::LOCALHOST, listener)), &request).ok()
}

/// Waits until a token gets this status, with `challenge_text` in the challenge.
fn wait_for_status(listener: u16, token: &str, status: u16, challenge_text: &str) -> Response {
    let matches_expected = |response: &Response| {
        let challenge = response.first_header("www-authenticate").unwrap_or_default();
        response.status == status && challenge.contains(challenge_text)
    };
    eventually(&format!("{status} {challenge_text}"), MAX_WAIT, || {
        send_token(listener, token).filter(matches_expected)
    })
    .0
}

#[test]
fn tokens_are_verified_with_keys_that_the_control_plane_refreshes() {
    let (issuer, stock, listener) = (TokenIssuer::new(), start_stock(), free_port());
    issuer.generate_key("one");
    issuer.generate_key("two");
    issuer.publish_keys(&["one"]);
    let jwks =
        format!("{{url: \"https://localhost:{}/keys.json\", refreshInterval: 1s}}", issuer.port);
    let roots_file = issuer.path_text("roots.pem");
    let mesh = TestMesh::up_with(
        &default_deny_manifests(stock.port(), listener, &jwks),
        &["--jwks-ca", &roots_file],
    );
    let valid_token = issuer.sign_token("one", &valid_claims(&["readers", "writers"]));
    let early_response = wait_for_status(
        listener,
        &valid_token,
        401,
        "the keys of the token's issuer are not available yet",
    );
    assert_eq!(early_response.rejection_reason(), Some("token-invalid"));
    eventually("the operator is warned", Duration::from_secs(60), || {
        key_problem(&mesh).contains("no token of this issuer is accepted").then_some(())
    });

    let mut server = issuer.start_server();
    assert_eq!(wait_for_status(listener, &valid_token, 200, "").body, b"ann");
    let unsigned_token = {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", encode(&json!({"alg": "none"})), encode(&valid_claims(&["writers"])))
    };
    let sign_claims = |claims: Value| issuer.sign_token("one", &claims);
    let wrongly_signed_token = issuer.sign_token("two", &valid_claims(&["writers"]));
    for (token, status, reason, challenge_text) in [
        (sign_claims(valid_claims(&["readers"])), 403, "denied", ""),
        (sign_claims(valid_claims(&["admins"])), 200, "", ""),
        (String::new(), 401, "token-missing", "Bearer realm="),
        ("abc".to_owned(), 401, "token-invalid", "not a signed JSON web token"),
        (unsigned_token, 401, "token-invalid", "signature algorithm is not"),
        (wrongly_signed_token, 401, "token-invalid", "signature is not"),
        (sign_claims(claims_with("exp", json!(1))), 401, "token-invalid", "has expired"),
        (sign_claims(claims_with("iss", json!("eve"))), 401, "token-invalid", "issuer is not"),
        (sign_claims(claims_with("aud", json!("cart"))), 401, "token-invalid", "audience is not"),
    ] {
        let response = send_token(listener, &token).expect("the listener responds");
        let challenge = response.first_header("www-authenticate").unwrap_or_default();
        assert_eq!(response.status, status, "{token}: {challenge}");
        assert_eq!(response.rejection_reason().unwrap_or_default(), reason, "{token}: {challenge}");
        assert!(challenge.contains(challenge_text), "{token}: {challenge}");
    }

    // The next key is served in addition to the previous one and then replaces it; no process is restarted.
    let next_token = issuer.sign_token("two", &valid_claims(&["writers"]));
    issuer.publish_keys(&["one", "two"]);
    wait_for_status(listener, &next_token, 200, "");
    assert_eq!(send_token(listener, &valid_token).expect("the listener responds").status, 200);
    issuer.publish_keys(&["two"]);
    wait_for_status(listener, &valid_token, 401, "signature is not valid");
    assert_eq!(send_token(listener, &next_token).expect("the listener responds").status, 200);

    // An unavailable issuer does not affect requests.
    server.stop(MAX_WAIT);
    eventually("the rule reports the problem", MAX_WAIT, || {
        key_problem(&mesh).contains("the previous keys remain in force").then_some(())
    });
    assert_eq!(send_token(listener, &next_token).expect("the listener responds").status, 200);
}

#[test]
fn changes_of_a_key_file_apply_live() {
    let (issuer, stock, listener) = (TokenIssuer::new(), start_stock(), free_port());
    issuer.generate_key("one");
    let mesh = TestMesh::up(&default_deny_manifests(stock.port(), listener, "{file: keys.jwks}"));
    let valid_token = issuer.sign_token("one", &valid_claims(&["writers"]));
    wait_for_status(
        listener,
        &valid_token,
        401,
        "the keys of the token's issuer are not available yet",
    );
    mesh.write("keys.jwks", &issuer.key_set(&["one"]));
    wait_for_status(listener, &valid_token, 200, "");
    assert_eq!(key_problem(&mesh), "");
    mesh.write("keys.jwks", "{}");
    eventually("the rule reports the problem", MAX_WAIT, || {
        key_problem(&mesh).contains("is not a JWK set").then_some(())
    });
    assert_eq!(send_token(listener, &valid_token).expect("the listener responds").status, 200);
}

#[test]
fn keys_are_read_only_from_permitted_sources() {
    let (stock, listener) = (start_stock(), free_port());
    let request_count = Arc::new(AtomicU32::new(0));
    let request_counter = Arc::clone(&request_count);
    let issuer = TestApplication::start(move |_| {
        request_counter.fetch_add(1, Ordering::Relaxed);
        ApplicationResponse::ok("{}")
    });
    for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]"] {
        let jwks =
            format!("{{url: \"http://{host}:{}/keys.json\", refreshInterval: 1s}}", issuer.port());
        let mesh = TestMesh::up_with(
            &default_deny_manifests(stock.port(), listener, &jwks),
            &["--jwks-allow", "10.0.0.0/8"],
        );
        eventually("the rule reports the problem", MAX_WAIT, || {
            key_problem(&mesh).contains("--jwks-allow").then_some(())
        });
    }
    let directory = tempfile::tempdir().expect("a folder");
    let directory = directory.path().to_str().expect("a path of text");
    let mesh = TestMesh::up_with(
        &default_deny_manifests(stock.port(), listener, "{file: keys.jwks}"),
        &["--jwks-files", directory],
    );
    eventually("the rule reports the problem", MAX_WAIT, || {
        key_problem(&mesh).contains("--jwks-files").then_some(())
    });
    assert_eq!(request_count.load(Ordering::Relaxed), 0, "requests to the issuer");
}

/// Returns the reported problem of keys that cannot be read.
fn key_problem(mesh: &TestMesh) -> String {
    let rejected = mesh.get_json("rejected");
    let warnings = rejected["warnings"].as_array().expect("warnings");
    let is_key_warning =
        |warning: &&Value| warning["field"].as_str().is_some_and(|field| field.contains("jwks"));
    let warning = warnings.iter().find(is_key_warning);
    warning.map(|warning| warning["problem"].as_str().expect("text").to_owned()).unwrap_or_default()
}

/// An HTTPS server for the files of a folder.
const KEY_SERVER: &str = "
import functools, http.server, ssl, sys
port, pem, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
server = http.server.ThreadingHTTPServer(('127.0.0.1', port), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(pem)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
";

const MAX_WAIT: Duration = Duration::from_secs(60);
