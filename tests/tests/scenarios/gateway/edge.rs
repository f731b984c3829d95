//! A control plane in this process with a gateway, its proxy, and its backends.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::mpsc as blocking;
use std::thread::JoinHandle;
use std::time::Duration;

use leno_control::{Config, Control};
use leno_model::{
    Change, Gateway, GatewayCertificate, GatewayListener, GatewayPort, GatewayPortRules, HostRules,
    Name, Object, PathMatch, RequestMatch, RouteKind, RouteRule, RuleActions, ServiceName,
    WeightedBackend, WorkloadName,
};
use leno_registry::{RegistryUpdate, read_str};
use leno_tests::{
    ApplicationResponse, TestApplication, TestProgram, eventually, free_port, get, leno_command,
};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

/// A gateway `edge` of bookinfo: `meshed` has a sidecar, `plain` has none, `idle` has no endpoints.
pub(super) struct TestGateway {
    update_sender: mpsc::Sender<RegistryUpdate>,
    control: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    health_address: SocketAddr,
    directory: TempDir,
    programs: [TestProgram; 2],
    _applications: [TestApplication; 2],
}

impl TestGateway {
    /// Starts the control plane, the gateway and its backends; the gateway has no ports yet.
    pub(super) fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`Self::start`], with further arguments to the gateway.
    pub(super) fn start_with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let applications = [start_naming_application("meshed"), start_naming_application("plain")];
        let [meshed, plain] = applications.each_ref().map(TestApplication::port);
        let (update_sender, update_receiver) = mpsc::channel(16);
        let changes = read_objects(&mesh_manifests(meshed)).into_iter().map(Change::Upsert);
        let first_update =
            RegistryUpdate { changes: changes.collect(), ..RegistryUpdate::default() };
        update_sender.blocking_send(first_update).expect("there is room");
        let (bundle_sender, bundle_receiver) = blocking::channel();
        let (stop_sender, stop_receiver) = oneshot::channel();
        let config = Config::new(directory.path().join("control"), Vec::new());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let control = Control::start_with_updates(config, update_receiver)
                    .await
                    .expect("a control plane");
                let bundle = |name| control.mint_bundle(&name).expect("a bundle").render();
                let bundles = ["meshed-1", "edge-1"].map(|name| bundle(workload_name(name)));
                bundle_sender.send(bundles).expect("the test waits");
                stop_receiver.await.ok();
                control.shutdown().await;
            });
        });
        let [meshed_bundle, edge_bundle] = bundle_receiver.recv().expect("a control plane");
        let health_address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let health_text = health_address.to_string();
        let sidecar = start_member(&directory, "proxy", "meshed-1", &meshed_bundle, &[]);
        let arguments = [&["--bind", "127.0.0.1", "--health", &health_text], arguments].concat();
        let proxy = start_member(&directory, "gateway", "edge-1", &edge_bundle, &arguments);
        let gateway = Self {
            update_sender,
            control: Some((stop_sender, thread)),
            health_address,
            directory,
            programs: [sidecar, proxy],
            _applications: applications,
        };
        gateway.add_unmeshed("plain", plain);
        gateway
    }

    /// Adds an unmeshed application and its service.
    pub(super) fn add_unmeshed(&self, name: &str, port: u16) {
        let mut objects = read_objects(&format!(
            "{}---\n{}",
            workload_manifest(name, port),
            service_manifest(name)
        ));
        for object in &mut objects {
            if let Object::Workload(workload) = object {
                workload.sidecar = false;
            }
        }
        self.send_update(objects);
    }

    /// Sets the ports of the gateway.
    pub(super) fn set_ports(&self, ports: Vec<(u16, GatewayPortRules)>) {
        let mut ports: Vec<GatewayPort> =
            ports.into_iter().map(|(port, serves)| GatewayPort { port, serves }).collect();
        ports.sort_by_key(|port| port.port);
        let name = "bookinfo/edge".parse().expect("a name");
        self.send_update(vec![Object::Gateway(Gateway { name, ports })]);
    }

    fn send_update(&self, objects: Vec<Object>) {
        let changes = objects.into_iter().map(Change::Upsert).collect();
        let update = RegistryUpdate { changes, ..RegistryUpdate::default() };
        self.update_sender.blocking_send(update).expect("the control plane runs");
    }

    /// Waits until the gateway is ready.
    pub(super) fn wait_until_ready(&self) {
        eventually("the gateway is ready", Duration::from_secs(30), || {
            get(self.health_address, "/readyz").ok().filter(|response| response.status == 200)
        });
    }

    /// Returns the status and body of the gateway's readiness endpoint.
    pub(super) fn get_readiness(&self) -> (u16, String) {
        let response = get(self.health_address, "/readyz").expect("a response");
        (response.status, String::from_utf8_lossy(&response.body).into_owned())
    }

    /// Returns the program of the gateway.
    pub(super) fn gateway_program(&mut self) -> &mut TestProgram {
        &mut self.programs[1]
    }

    /// Returns the process id of the gateway.
    pub(super) fn gateway_pid(&self) -> u32 {
        self.programs[1].pid()
    }

    /// Returns the external address of a port.
    pub(super) fn address_of_port(&self, port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    /// Returns the status and HTTP version reported by curl for `/plain`, with this certificate as the only
    /// trust root.
    pub(super) fn curl(
        &self,
        host: &str,
        port: u16,
        certificate: &GatewayCertificate,
        extra_arguments: &[&str],
    ) -> String {
        let roots_file = self.directory.path().join("roots.pem");
        std::fs::write(&roots_file, &certificate.chain).expect("a file");
        let curl = Command::new("curl")
            .args(["-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"])
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1"), "--cacert"])
            .arg(&roots_file)
            .args(extra_arguments)
            .arg(format!("https://{host}:{port}/plain"))
            .output()
            .expect("curl is installed");
        String::from_utf8_lossy(&curl.stdout).into_owned()
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        if let Some((stop_sender, thread)) = self.control.take() {
            stop_sender.send(()).ok();
            thread.join().ok();
        }
    }
}

/// Returns an application that responds with its name and the request head.
fn start_naming_application(name: &'static str) -> TestApplication {
    TestApplication::start(move |request| {
        ApplicationResponse::ok(format!("{name} {}\r\n", request.head))
    })
}

/// Starts the proxy of a workload that joins with this bundle.
fn start_member(
    directory: &TempDir,
    command: &str,
    name: &str,
    bundle: &str,
    extra_arguments: &[&str],
) -> TestProgram {
    use std::os::unix::fs::PermissionsExt as _;
    let token_file = directory.path().join(format!("{name}.token"));
    std::fs::write(&token_file, bundle).expect("a file");
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&token_file, owner_only).expect("the test owns the file");
    let state_directory = directory.path().join(name);
    let mut leno = leno_command();
    leno.args([command, "--workload", &workload_name(name).to_string(), "--token-file"]);
    leno.arg(token_file).arg("--state").arg(state_directory).args(extra_arguments);
    TestProgram::start(name, &mut leno)
}

fn workload_name(name: &str) -> WorkloadName {
    WorkloadName::new("bookinfo", name).expect("a name")
}

fn read_objects(yaml: &str) -> Vec<Object> {
    let (objects, rejected) = read_str("gateway.yaml", yaml);
    assert!(rejected.is_empty(), "{rejected:#?}");
    objects.into_iter().map(|(object, _)| object).collect()
}

fn mesh_manifests(meshed_port: u16) -> String {
    let gateway = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: edge-1, namespace: \
                bookinfo, labels: {gateway.networking.k8s.io/gateway-name: edge}}\n\
                spec: {serviceAccount: leno-gateway-edge}\n";
    let (workload, service, idle_service) = (
        workload_manifest("meshed", meshed_port),
        service_manifest("meshed"),
        service_manifest("idle"),
    );
    format!("{gateway}---\n{workload}---\n{service}---\n{idle_service}")
}

fn workload_manifest(name: &str, port: u16) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}-1, namespace: \
         bookinfo, labels: {{app: {name}}}}}\n\
         spec: {{serviceAccount: {name}, ports: [{{name: web, port: {port}}}]}}\n"
    )
}

fn service_manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: bookinfo}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{port: 80, targetPort: web}}]}}\n"
    )
}

pub(super) fn gateway_listener(
    name: &str,
    hostname: &str,
    host: &str,
    rules: Vec<RouteRule>,
) -> GatewayListener {
    let pattern = |text: &str| (!text.is_empty()).then(|| text.parse().expect("a host name"));
    GatewayListener {
        name: Name::new(name).expect("a name"),
        hostname: pattern(hostname),
        certificates: Vec::new(),
        hosts: vec![HostRules { hostname: pattern(host), rules }],
    }
}

/// Adds a certificate to a listener.
pub(super) fn with_certificate(
    listener: GatewayListener,
    certificate: &GatewayCertificate,
) -> GatewayListener {
    GatewayListener { certificates: vec![certificate.clone()], ..listener }
}

pub(super) fn self_signed_certificate(name: &str) -> GatewayCertificate {
    let certificate =
        rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    GatewayCertificate {
        chain: certificate.cert.pem(),
        key: certificate.signing_key.serialize_pem(),
    }
}

pub(super) fn prefix_rule(path: &str, backends: &[WeightedBackend]) -> RouteRule {
    let path = PathMatch::Prefix(path.to_owned());
    RouteRule {
        route: "bookinfo/route".parse().expect("a name"),
        matches: vec![RequestMatch { path, ..RequestMatch::default() }],
        backends: backends.to_vec(),
        request_timeout: None,
        actions: RuleActions::default(),
        kind: RouteKind::Http,
    }
}

pub(super) fn weighted_backends(backend_weights: &[(&str, u32)]) -> Vec<WeightedBackend> {
    let backend = |(name, weight): &(&str, u32)| {
        WeightedBackend::new(ServiceName::new("bookinfo", name).expect("a name"), 80, *weight)
    };
    backend_weights.iter().map(backend).collect()
}
