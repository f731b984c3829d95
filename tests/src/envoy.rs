//! An unmodified Envoy with a generated configuration that forwards one port to another.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::TestProgram;
use crate::installed::envoy_path;

/// A listener on loopback that forwards HTTP of either version to another port.
pub struct EnvoyListener {
    at: u16,
    to: u16,
    version: Value,
    /// The transport sockets of incoming and outgoing connections; plaintext if null.
    inside: Value,
    outside: Value,
    /// The HTTP filters.
    filters: Vec<Value>,
}

impl EnvoyListener {
    /// Creates a listener that forwards as HTTP/1.1.
    #[must_use]
    pub fn http1(at: u16, to: u16) -> Self {
        let version = json!({"http_protocol_options": {}});
        let (inside, outside) = (Value::Null, Value::Null);
        Self { at, to, version, inside, outside, filters: Vec::new() }
    }

    /// Creates a listener that forwards as HTTP/2.
    #[must_use]
    pub fn http2(at: u16, to: u16) -> Self {
        let version = json!({"http2_protocol_options": {}});
        Self { version, ..Self::http1(at, to) }
    }

    /// Connects as the mesh member with state in this folder, and only to the identity `peer`.
    #[must_use]
    pub fn to_member(mut self, state: &Path, peer: &str) -> Self {
        let only = json!([{"san_type": "URI", "matcher": {"exact": peer}}]);
        self.outside = json!({"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": format!("{TRANSPORTS}.tls.v3.UpstreamTlsContext"),
            "sni": "member",
            "common_tls_context": member_tls(state, &json!({"match_typed_subject_alt_names": only})),
        }});
        self
    }

    /// Accepts connections as that member, and only from the identity `peer`.
    #[must_use]
    pub fn from_member(mut self, state: &Path, peer: &str) -> Self {
        self.inside = json!({"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": format!("{TRANSPORTS}.tls.v3.DownstreamTlsContext"),
            "require_client_certificate": true,
            "common_tls_context": member_tls(state, &json!({})),
        }});
        let principal = json!({"authenticated": {"principal_name": {"exact": peer}}});
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
        let host = json!({"name": "all", "domains": ["*"], "routes": [route]});
        let http = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": {
            "@type": format!("{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "http",
            "http_protocol_options": {"accept_http_10": true},
            "route_config": {"virtual_hosts": [host]},
            "http_filters": filters,
        }});
        let mut chain = json!({"filters": [http]});
        if !self.inside.is_null() {
            chain["transport_socket"] = self.inside.clone();
        }
        json!({"address": loopback_address(self.at), "filter_chains": [chain]})
    }

    fn cluster_config(&self) -> Value {
        let endpoint = json!({"endpoint": {"address": loopback_address(self.to)}});
        let options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options = json!({"@type": options, "explicit_http_config": self.version});
        let mut cluster = json!({
            "name": self.cluster_name(),
            "connect_timeout": "5s",
            "typed_extension_protocol_options": {name: options},
            "load_assignment": {
                "cluster_name": self.cluster_name(),
                "endpoints": [{"lb_endpoints": [endpoint]}],
            },
        });
        if !self.outside.is_null() {
            cluster["transport_socket"] = self.outside.clone();
        }
        cluster
    }

    fn cluster_name(&self) -> String {
        format!("from-{}", self.at)
    }
}

/// A prepared Envoy.
pub struct Envoy {
    folder: TempDir,
}

impl Envoy {
    /// Writes its configuration.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn prepare(passages: &[EnvoyListener]) -> Self {
        let envoy = Self { folder: tempfile::tempdir().expect("a folder") };
        let listeners: Vec<_> = passages.iter().map(EnvoyListener::listener_config).collect();
        let clusters: Vec<_> = passages.iter().map(EnvoyListener::cluster_config).collect();
        let all = json!({"static_resources": {"listeners": listeners, "clusters": clusters}});
        std::fs::write(envoy.config_file(), all.to_string()).expect("a file");
        envoy
    }

    /// Returns its command line.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let program = envoy_path().display().to_string();
        let options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"];
        let own = [program, "--config-path".to_owned(), self.config_file()];
        own.into_iter().chain(options.map(str::to_owned)).collect()
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(&self) -> TestProgram {
        let command = self.command();
        let (program, arguments) = command.split_first().expect("a command has a program");
        TestProgram::start("Envoy", Command::new(program).args(arguments))
    }

    fn config_file(&self) -> String {
        self.folder.path().join("envoy.json").display().to_string()
    }
}

fn loopback_address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

/// Returns mutual TLS with the certificate and roots of a member; `more` restricts the peer.
fn member_tls(state: &Path, more: &Value) -> Value {
    let file = |name: &str| json!({"filename": state.join(name)});
    let mut trust = more.clone();
    trust["trusted_ca"] = file("roots.pem");
    json!({
        "alpn_protocols": ["h2"],
        // As a client, Envoy's default maximum is 1.2.
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "tls_certificates": [{
            "certificate_chain": file("credential.pem"),
            "private_key": file("credential.pem"),
        }],
        "validation_context": trust,
    })
}

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters";
const TRANSPORTS: &str = "type.googleapis.com/envoy.extensions.transport_sockets";
