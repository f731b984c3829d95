//! An unmodified Envoy with a generated configuration that forwards ports to other ports.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::TestProgram;
use crate::installed::envoy_path;

/// A listener on loopback that forwards HTTP of either version to another port.
pub struct EnvoyListener {
    listen_port: u16,
    target_port: u16,
    protocol_options: Value,
    /// The transport socket of accepted connections; plaintext if null.
    downstream_tls: Value,
    /// The transport socket of connections to the target port; plaintext if null.
    upstream_tls: Value,
    /// The HTTP filters before the router.
    filters: Vec<Value>,
}

impl EnvoyListener {
    /// Creates a listener that forwards as HTTP/1.1.
    #[must_use]
    pub fn http1(listen_port: u16, target_port: u16) -> Self {
        let protocol_options = json!({"http_protocol_options": {}});
        let (downstream_tls, upstream_tls) = (Value::Null, Value::Null);
        Self {
            listen_port,
            target_port,
            protocol_options,
            downstream_tls,
            upstream_tls,
            filters: Vec::new(),
        }
    }

    /// Creates a listener that forwards as HTTP/2.
    #[must_use]
    pub fn http2(listen_port: u16, target_port: u16) -> Self {
        let protocol_options = json!({"http2_protocol_options": {}});
        Self { protocol_options, ..Self::http1(listen_port, target_port) }
    }

    /// Connects as the mesh member with state in this folder, and only to the identity `peer_identity`.
    #[must_use]
    pub fn connect_as_member(mut self, state_directory: &Path, peer_identity: &str) -> Self {
        let expected_peer = json!([{"san_type": "URI", "matcher": {"exact": peer_identity}}]);
        self.upstream_tls = json!({"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": format!("{TRANSPORTS}.tls.v3.UpstreamTlsContext"),
            "sni": "member",
            "common_tls_context": member_tls(state_directory, &json!({"match_typed_subject_alt_names": expected_peer})),
        }});
        self
    }

    /// Accepts connections as the mesh member with state in this folder, and only from the identity `peer_identity`.
    #[must_use]
    pub fn accept_as_member(mut self, state_directory: &Path, peer_identity: &str) -> Self {
        self.downstream_tls = json!({"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": format!("{TRANSPORTS}.tls.v3.DownstreamTlsContext"),
            "require_client_certificate": true,
            "common_tls_context": member_tls(state_directory, &json!({})),
        }});
        let principal = json!({"authenticated": {"principal_name": {"exact": peer_identity}}});
        let policy = json!({"permissions": [{"any": true}], "principals": [principal]});
        self.filters.push(json!({"name": "envoy.filters.http.rbac", "typed_config": {
            "@type": format!("{FILTERS}.http.rbac.v3.RBAC"),
            "rules": {"action": "ALLOW", "policies": {"peer": policy}},
        }}));
        self
    }

    fn listener_config(&self) -> Value {
        let router = json!({"name": "envoy.filters.http.router", "typed_config": {
            "@type": format!("{FILTERS}.http.router.v3.Router"),
        }});
        let filters = [&self.filters[..], &[router]].concat();
        // gRPC calls have their own timeouts, and streams have none.
        let route = json!({"match": {"prefix": "/"}, "route": {
            "cluster": self.cluster_name(), "timeout": "0s",
        }});
        let virtual_host = json!({"name": "all", "domains": ["*"], "routes": [route]});
        let connection_manager = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": {
            "@type": format!("{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "http",
            "http_protocol_options": {"accept_http_10": true},
            "route_config": {"virtual_hosts": [virtual_host]},
            "http_filters": filters,
        }});
        let mut filter_chain = json!({"filters": [connection_manager]});
        if !self.downstream_tls.is_null() {
            filter_chain["transport_socket"] = self.downstream_tls.clone();
        }
        json!({"address": loopback_address(self.listen_port), "filter_chains": [filter_chain]})
    }

    fn cluster_config(&self) -> Value {
        let endpoint = json!({"endpoint": {"address": loopback_address(self.target_port)}});
        let options_type =
            "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options_name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options = json!({"@type": options_type, "explicit_http_config": self.protocol_options});
        let mut cluster = json!({
            "name": self.cluster_name(),
            "connect_timeout": "5s",
            "typed_extension_protocol_options": {options_name: options},
            "load_assignment": {
                "cluster_name": self.cluster_name(),
                "endpoints": [{"lb_endpoints": [endpoint]}],
            },
        });
        if !self.upstream_tls.is_null() {
            cluster["transport_socket"] = self.upstream_tls.clone();
        }
        cluster
    }

    fn cluster_name(&self) -> String {
        format!("from-{}", self.listen_port)
    }
}

/// A prepared Envoy.
pub struct Envoy {
    directory: TempDir,
}

impl Envoy {
    /// Writes the configuration of an Envoy with these listeners.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn prepare(envoy_listeners: &[EnvoyListener]) -> Self {
        let envoy = Self { directory: tempfile::tempdir().expect("a folder") };
        let listeners: Vec<_> =
            envoy_listeners.iter().map(EnvoyListener::listener_config).collect();
        let clusters: Vec<_> = envoy_listeners.iter().map(EnvoyListener::cluster_config).collect();
        let config = json!({"static_resources": {"listeners": listeners, "clusters": clusters}});
        std::fs::write(envoy.config_file(), config.to_string()).expect("a file");
        envoy
    }

    /// Returns the command line of Envoy.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let program = envoy_path().display().to_string();
        let options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"];
        let program_arguments = [program, "--config-path".to_owned(), self.config_file()];
        program_arguments.into_iter().chain(options.map(str::to_owned)).collect()
    }

    /// Starts Envoy.
    ///
    /// # Panics
    /// If Envoy cannot be started.
    #[must_use]
    pub fn start(&self) -> TestProgram {
        let command = self.command();
        let (program, arguments) = command.split_first().expect("a command has a program");
        TestProgram::start("Envoy", Command::new(program).args(arguments))
    }

    fn config_file(&self) -> String {
        self.directory.path().join("envoy.json").display().to_string()
    }
}

fn loopback_address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

/// Returns mutual TLS with the certificate and roots of a member; `extra_validation` restricts the peer.
fn member_tls(state_directory: &Path, extra_validation: &Value) -> Value {
    let file = |name: &str| json!({"filename": state_directory.join(name)});
    let mut validation_context = extra_validation.clone();
    validation_context["trusted_ca"] = file("roots.pem");
    json!({
        "alpn_protocols": ["h2"],
        // As a client, Envoy's default maximum version is TLS 1.2.
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "tls_certificates": [{
            "certificate_chain": file("credential.pem"),
            "private_key": file("credential.pem"),
        }],
        "validation_context": validation_context,
    })
}

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters";
const TRANSPORTS: &str = "type.googleapis.com/envoy.extensions.transport_sockets";
