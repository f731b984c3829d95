//! Envoy behind a sidecar, in front of a listener, and as a mesh member without a sidecar, at either end.

use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, server_with_protocol,
};
use leno_tests::{
    ControlProgram, Envoy, EnvoyListener, Response, SidecarProgram, TestApplication, TestMesh,
    TestProgram, eventually, free_port, get, go_program,
};

use super::grpc::{CASES, WHOLE_SERVICE, call_server};
use super::{DEFAULT_POLICIES, loopback_address, run_curl};

/// Two services, `web` with HTTP/1.1 and `grpc`, with outbound listeners of `user`, which policies allow, and
/// of `other`, which policies do not allow.
struct Shop {
    echo: TestApplication,
    /// The port of grpc-go's interop server, and its command line.
    interop_server: (u16, [String; 3]),
    listeners: [u16; 3],
}

impl Shop {
    fn new() -> Self {
        let port = free_port();
        let server = go_program("server").display().to_string();
        let interop_server = (port, [server, "--port".to_owned(), port.to_string()]);
        let listeners = std::array::from_fn(|_| free_port());
        Self { echo: TestApplication::start_echo(), interop_server, listeners }
    }

    /// Returns the manifests with these service ports; `command` runs `web`.
    fn shop_manifests(&self, default_policy: &str, ports: [u16; 2], command: &[String]) -> String {
        let [web, grpc, denied_listener] = self.listeners;
        let web_command: Vec<&str> = command.iter().map(String::as_str).collect();
        let interop_command = self.interop_server.1.each_ref().map(String::as_str);
        // A sidecar forwards only to processes of its own workload's command: if Envoy has the port, the server
        // behind it is a separate workload.
        let grpc_server = match ports[1] == self.interop_server.0 {
            true => server_with_protocol("grpc", ports[1], "GRPC", &interop_command),
            false => {
                let interop_server = server_with_protocol(
                    "interop",
                    self.interop_server.0,
                    "GRPC",
                    &interop_command,
                );
                server_with_protocol("grpc", ports[1], "GRPC", &[]) + &interop_server
            }
        };
        [
            mesh_config(default_policy),
            server_with_protocol("web", ports[0], "HTTP", &web_command),
            grpc_server,
            client_manifest("user", &[], &[("web.shop", web), ("grpc.shop", grpc)]),
            client_manifest("other", &[], &[("web.shop", denied_listener)]),
            http_access_manifest("user", "web", "/open/.*"),
            http_access_manifest("user", "grpc", WHOLE_SERVICE),
        ]
        .concat()
    }
}

/// Waits until both services respond on these ports.
fn wait_for_services(web: u16, grpc: u16) {
    let poll =
        || get(loopback_address(web), "/open/").ok().filter(|response| response.status == 200);
    eventually("the web service responds", MAX_WAIT, poll);
    eventually("a call ends well", MAX_WAIT, || call_server(grpc, "empty_unary").ok());
}

/// Checks all functions of the services on these ports, through an Envoy; `closed_path_status` is the status of a path
/// without a policy.
fn assert_all_calls_served(web: u16, grpc: u16, closed_path_status: u16, cases: &[&str]) {
    wait_for_services(web, grpc);
    let web_url = |path: &str| format!("http://127.0.0.1:{web}{path}");
    for version in ["--http1.0", "--http1.1"] {
        let output = run_curl(&[version, "-i", &web_url("/open/1?q=%2F")]);
        assert!(output.contains("\nserver: envoy\r\n"), "{output}");
        assert!(output.ends_with("\nGET /open/1?q=%2F "), "{output}");
    }
    let body = "0123456789abcdef".repeat(32 * 1024);
    let directory = tempfile::tempdir().unwrap();
    let body_file = directory.path().join("body");
    std::fs::write(&body_file, &body).unwrap();
    let body_file = format!("@{}", body_file.display());
    for body_framing in [&[][..], &["-H", "Transfer-Encoding: chunked"]] {
        let upload = ["-H", "Expect:", "--data-binary", &body_file];
        let output = run_curl(&[&upload[..], body_framing, &[&web_url("/open/2")]].concat());
        assert!(output == format!("POST /open/2 {body}"), "512 KiB arrive unchanged");
    }
    assert_eq!(get(loopback_address(web), "/closed").unwrap().status, closed_path_status);
    for case in cases {
        let outcome = call_server(grpc, case);
        assert!(outcome.is_ok(), "{case}: {}", outcome.unwrap_err());
    }
}

#[test]
fn envoy_as_an_application_is_reached_over_either_http_version() {
    for default_policy in DEFAULT_POLICIES {
        let shop = Shop::new();
        let ports = [free_port(), free_port()];
        let envoy = Envoy::prepare(&[
            EnvoyListener::http1(ports[0], shop.echo.port()),
            EnvoyListener::http2(ports[1], shop.interop_server.0),
        ]);
        let _mesh = TestMesh::up(&shop.shop_manifests(default_policy, ports, &envoy.command()));
        let [web, grpc, denied_listener] = shop.listeners;
        assert_all_calls_served(web, grpc, closed_status(default_policy), CASES);
        wait_for_status(denied_listener, denied_status(default_policy));
    }
}

#[test]
fn envoy_before_a_listener_reaches_services_over_either_http_version() {
    for default_policy in DEFAULT_POLICIES {
        let shop = Shop::new();
        let ports = [shop.echo.port(), shop.interop_server.0];
        let mesh = TestMesh::up(&shop.shop_manifests(default_policy, ports, &[]));
        let [web, grpc, _] = shop.listeners;
        wait_for_services(web, grpc);
        let [envoy_web, envoy_grpc] = std::array::from_fn(|_| free_port());
        let envoy = Envoy::prepare(&[
            EnvoyListener::http1(envoy_web, web),
            EnvoyListener::http2(envoy_grpc, grpc),
        ]);
        let _envoy_program = envoy.start();
        assert_all_calls_served(envoy_web, envoy_grpc, closed_status(default_policy), CASES);
        drop(mesh);
    }
}

#[test]
fn envoy_as_a_member_calls_sidecars_over_http2() {
    for default_policy in DEFAULT_POLICIES {
        let shop = Shop::new();
        let ports = [shop.echo.port(), shop.interop_server.0];
        let mesh = TestMesh::up(&shop.shop_manifests(default_policy, ports, &[]));
        let [web, grpc, denied_listener] = shop.listeners;
        wait_for_services(web, grpc);
        // The services' sidecars have their certificates by now.
        wait_for_status(denied_listener, denied_status(default_policy));
        let inbound = |name: &str| mesh.sidecar(&format!("shop/{name}-1")).inbound.unwrap().port();
        let [envoy_web, envoy_grpc, envoy_others] = std::array::from_fn(|_| free_port());
        let member_listener = |listen_port, (client_name, server_name): (&str, &str)| {
            let state_directory =
                mesh.data_directory().join(format!("proxies/shop/{client_name}-1"));
            EnvoyListener::http2(listen_port, inbound(server_name))
                .connect_as_member(&state_directory, &account_identity(server_name))
        };
        let envoy = Envoy::prepare(&[
            member_listener(envoy_web, ("user", "web")),
            member_listener(envoy_grpc, ("user", "grpc")),
            member_listener(envoy_others, ("other", "web")),
        ]);
        let _envoy_program = envoy.start();
        assert_all_calls_served(envoy_web, envoy_grpc, closed_status(default_policy), CASES);
        wait_for_status(envoy_others, denied_status(default_policy));
    }
}

#[test]
fn envoy_as_a_member_is_called_by_sidecars_over_http2() {
    for default_policy in DEFAULT_POLICIES {
        let shop = Shop::new();
        let ports = [shop.echo.port(), shop.interop_server.0];
        let mut control =
            ControlProgram::start(&shop.shop_manifests(default_policy, ports, &[]), &[]);
        let mut interop_command = Command::new(&shop.interop_server.1[0]);
        let _interop_program = TestProgram::start(
            "grpc-go's server",
            interop_command.args(&shop.interop_server.1[1..]),
        );
        let mut servers =
            ["shop/web-1", "shop/grpc-1"].map(|name| SidecarProgram::join(&control, name, &[]));
        let _clients =
            ["shop/user-1", "shop/other-1"].map(|name| SidecarProgram::join(&control, name, &[]));
        let [web, grpc, denied_listener] = shop.listeners;
        wait_for_services(web, grpc);
        wait_for_status(denied_listener, denied_status(default_policy));

        // Envoy takes over the addresses of both sidecars while the control plane cannot update the clients.
        control.kill();
        let inbound = [0, 1].map(|index: usize| {
            servers[index].admin_endpoint.inbound_listener(ports[index]).port()
        });
        servers.iter_mut().for_each(SidecarProgram::kill);
        let state_directory = |name: &str| control.state_directory(&format!("shop/{name}-1"));
        let envoy = Envoy::prepare(&[
            EnvoyListener::http1(inbound[0], ports[0])
                .accept_as_member(&state_directory("web"), &account_identity("user")),
            EnvoyListener::http2(inbound[1], ports[1])
                .accept_as_member(&state_directory("grpc"), &account_identity("user")),
        ]);
        let _envoy_program = envoy.start();
        // Envoy decides itself which paths its clients may request.
        assert_all_calls_served(web, grpc, 200, CASES);
        // With `defaultPolicy: allow` Envoy rejects clients by the identity in their sidecar's certificate.
        let rejected = wait_for_status(denied_listener, 403);
        let reason = if default_policy == "deny" { Some("denied-outbound") } else { None };
        assert_eq!(rejected.rejection_reason(), reason, "{rejected:?}");
    }
}

/// Waits until unauthorized clients get this status.
fn wait_for_status(listener: u16, status: u16) -> Response {
    let poll = || {
        get(loopback_address(listener), "/open/").ok().filter(|response| response.status == status)
    };
    eventually(&format!("clients outside the policy get {status}"), MAX_WAIT, poll).0
}

/// Returns the status for a client without a policy.
fn denied_status(default_policy: &str) -> u16 {
    if default_policy == "deny" { 403 } else { 200 }
}

/// Returns the status for a path without a policy.
fn closed_status(default_policy: &str) -> u16 {
    if default_policy == "deny" { 404 } else { 200 }
}

/// Returns the identity of an account in the mesh of these tests.
fn account_identity(account: &str) -> String {
    format!("spiffe://cluster.local/ns/shop/sa/{account}")
}

/// The timeout of conditions: Envoy and the gRPC server start in a second or two.
const MAX_WAIT: Duration = Duration::from_secs(20);
