//! Starts Leno as a contender: a real control plane, and a real sidecar per workload of the layout.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leno_identity::JoinBundle;
use tokio::time::{Instant, sleep};

use super::TrialEnvironment;
use super::running::{MAX_START_WAIT, ProcessRole, RunningContender};
use crate::bench::layout::Layout;
use crate::bench::readiness::POLL_INTERVAL;
use crate::bench::testbed::{BenchDefaultPolicy, MeshRules};
use crate::get::MeshSocket;

/// The observability settings of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum BenchObservability {
    /// The default: no request logs or exports.
    Nothing,
    /// Traces and the access log with 1 % sampling, and metrics, all exported with OTLP.
    Everything,
}

/// Describes the measured configuration.
pub(super) fn describe_configuration(observability: BenchObservability) -> String {
    let observability = match observability {
        BenchObservability::Nothing => "access log off",
        BenchObservability::Everything => ABOUT_OBSERVABILITY,
    };
    format!("{ABOUT}, {observability}")
}

/// One workload of the measured mesh.
struct MeasuredWorkload {
    name: &'static str,
    /// The service of the workload, and its service account.
    service: &'static str,
    /// The role of the application's port, if the application serves requests.
    served_port_role: Option<&'static str>,
    /// The services that the workload calls, each with the role of its outbound listener's port.
    called_services: &'static [(&'static str, &'static str)],
    /// The role of the sidecar's HTTP proxy port, if the application uses an HTTP proxy.
    http_proxy_role: Option<&'static str>,
}

/// Starts a control plane and a sidecar per workload of the layout.
///
/// # Errors
/// If a process does not start, with the end of its log.
pub(super) async fn start(
    environment: &mut TrialEnvironment<'_, '_>,
    observability: BenchObservability,
) -> anyhow::Result<RunningContender> {
    let workloads = workloads_of_layout(environment.layout);
    let mut running_contender = RunningContender::default();
    let observability_settings = match observability {
        BenchObservability::Nothing => String::new(),
        BenchObservability::Everything => render_observability_settings(
            start_collector(&mut running_contender, environment).await?,
        ),
    };
    let manifests = render_manifests(environment, workloads, &observability_settings)?;
    let manifest_file = environment.dir.join("mesh.yaml");
    std::fs::write(&manifest_file, &manifests)
        .with_context(|| format!("cannot write {}", manifest_file.display()))?;
    let data_directory = environment.dir.join("data");
    let control_address = environment.ports.address_for("control")?;
    let arguments = owned_strings(&[
        "control",
        "--log-level=warn",
        "-f",
        &manifest_file.to_string_lossy(),
        "--data",
        &data_directory.to_string_lossy(),
        "--listen",
        &control_address.to_string(),
    ]);
    let files = vec![("mesh.yaml".to_owned(), manifests)];
    running_contender.start_leno(
        environment,
        ProcessRole::Auxiliary,
        "control",
        arguments,
        files,
    )?;
    let mut admin_addresses = Vec::new();
    for workload in workloads {
        let token_file =
            request_token(&mut running_contender, environment, &data_directory, workload.name)
                .await?;
        admin_addresses.push(start_sidecar(
            &mut running_contender,
            environment,
            workload,
            &token_file,
        )?);
    }
    for admin_address in admin_addresses {
        running_contender.wait_until_ready(admin_address, "/ready").await?;
    }
    Ok(running_contender)
}

/// Starts the collector of exports; returns its address.
async fn start_collector(
    running_contender: &mut RunningContender,
    environment: &mut TrialEnvironment<'_, '_>,
) -> anyhow::Result<SocketAddr> {
    let collector_address = environment.ports.address_for("collector")?;
    let arguments =
        owned_strings(&["bench", "collector", "--port", &collector_address.port().to_string()]);
    running_contender.start_leno(
        environment,
        ProcessRole::Auxiliary,
        "collector",
        arguments,
        Vec::new(),
    )?;
    running_contender.wait_until_ready(collector_address, "/").await?;
    Ok(collector_address)
}

/// Renders the `MeshConfig` settings that enable all exports.
fn render_observability_settings(collector_address: SocketAddr) -> String {
    let export = format!("export: {{otlp: {{endpoint: \"http://{collector_address}\"}}}}");
    format!(
        ", tracing: {{sampling: 1%, {export}}}, accessLog: {{sampling: 1%, {export}}}, metrics: {{{export}}}"
    )
}

fn workloads_of_layout(layout: Layout) -> &'static [MeasuredWorkload] {
    match layout {
        Layout::Http | Layout::Tcp => PAIR,
        Layout::Bookinfo => BOOKINFO,
        Layout::Fan => FAN,
        Layout::Chain | Layout::TaggedChain => CHAIN,
    }
}

/// Starts the sidecar of a workload. Returns the sidecar's admin address.
fn start_sidecar(
    running_contender: &mut RunningContender,
    environment: &mut TrialEnvironment<'_, '_>,
    workload: &MeasuredWorkload,
    token_file: &Path,
) -> anyhow::Result<SocketAddr> {
    let name = workload.name;
    let admin_address = environment.ports.address_for(&format!("{name}-admin"))?;
    let http_proxy = match workload.http_proxy_role {
        Some(role) => environment.ports.address_for(role)?.to_string(),
        None => "off".to_owned(),
    };
    let arguments = owned_strings(&[
        "proxy",
        "--log-level=warn",
        "--workload",
        &format!("{}/{name}-1", environment.layout.namespace()),
        "--token-file",
        &token_file.to_string_lossy(),
        "--state",
        &environment.dir.join(name).to_string_lossy(),
        "--admin",
        &admin_address.to_string(),
        "--http-proxy",
        &http_proxy,
        "--cores",
        &environment.testbed.proxy_threads().to_string(),
        "--drain-timeout=0s",
    ]);
    running_contender.start_leno(environment, ProcessRole::Proxy, name, arguments, Vec::new())?;
    Ok(admin_address)
}

/// Requests a join token from the control plane, which may still be starting. Returns the path of the token file.
async fn request_token(
    running_contender: &mut RunningContender,
    environment: &mut TrialEnvironment<'_, '_>,
    data_directory: &Path,
    name: &str,
) -> anyhow::Result<PathBuf> {
    let workload = format!("{}/{name}-1", environment.layout.namespace());
    let mesh_socket = MeshSocket::from_data(data_directory);
    let deadline = Instant::now() + MAX_START_WAIT;
    let path = format!("/token?workload={workload}");
    let token_response = loop {
        match mesh_socket.send_request("POST", &path).await {
            Ok(token_response) => break token_response,
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context(running_contender.log_tail()));
            }
            // The control plane does not listen yet, or has exited.
            Err(_) => running_contender.check_alive()?,
        }
        sleep(POLL_INTERVAL).await;
    };
    let mut bundle = JoinBundle::parse(&token_response).context("no token")?;
    bundle.control_addresses = vec![environment.ports.address_for("control")?];
    let token_file = environment.dir.join(format!("{name}.token"));
    bundle.save(&token_file).context("cannot write a token file")?;
    Ok(token_file)
}

fn owned_strings(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

/// Returns the manifests as a user would write them.
fn render_manifests(
    environment: &mut TrialEnvironment<'_, '_>,
    workloads: &[MeasuredWorkload],
    observability_settings: &str,
) -> anyhow::Result<String> {
    let default_policy = environment.testbed.default_policy;
    let mut manifests = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec: {{defaultPolicy: {}{observability_settings}}}\n",
        default_policy.as_str()
    );
    for workload in workloads {
        write_workload(&mut manifests, environment, workload)?;
    }
    let servers = workloads.iter().filter(|workload| workload.served_port_role.is_some());
    let services: BTreeSet<&str> = servers.map(|workload| workload.service).collect();
    let namespace = environment.layout.namespace();
    for service in &services {
        write!(
            manifests,
            "---\napiVersion: v1\nkind: Service\n\
             metadata: {{name: {service}, namespace: {namespace}}}\n\
             spec: {{selector: {{app: {service}}}, ports: [{{port: 9080, targetPort: main}}]}}\n"
        )?;
    }
    if environment.testbed.rules == MeshRules::OutlierDetection {
        for service in &services {
            write!(
                manifests,
                "---\napiVersion: leno.dev/v1alpha1\nkind: OutlierDetection\n\
                 metadata: {{name: {service}, namespace: {namespace}}}\n\
                 spec: {{targetRefs: [{{kind: Service, name: {service}}}]}}\n"
            )?;
        }
    }
    if environment.layout == Layout::TaggedChain {
        manifests.push_str(TAG_ROUTE);
    }
    if default_policy == BenchDefaultPolicy::Deny {
        write_policies(&mut manifests, workloads, &services, environment.layout)?;
    }
    Ok(manifests)
}

fn write_workload(
    manifests: &mut String,
    environment: &mut TrialEnvironment<'_, '_>,
    workload: &MeasuredWorkload,
) -> anyhow::Result<()> {
    let MeasuredWorkload { name, service, .. } = workload;
    let namespace = environment.layout.namespace();
    write!(
        manifests,
        "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}-1, namespace: {namespace}, \
         labels: {{app: {service}, instance: {name}}}}}\n\
         spec:\n  serviceAccount: {service}\n"
    )?;
    if let Some(role) = workload.served_port_role {
        let port = environment.ports.port_for(role)?;
        let protocol = if environment.layout == Layout::Tcp { "TCP" } else { "HTTP" };
        writeln!(manifests, "  ports: [{{name: main, port: {port}, protocol: {protocol}}}]")?;
    }
    if !workload.called_services.is_empty() {
        manifests.push_str("  outbound:\n");
    }
    for (called_service, role) in workload.called_services {
        let listener_address = environment.ports.address_for(role)?;
        writeln!(
            manifests,
            "  - {{service: {called_service}.{namespace}, port: 9080, listen: \"{listener_address}\"}}"
        )?;
    }
    Ok(())
}

/// Adds a `TrafficTarget` per service, which allows the requests of all workloads that call the service.
fn write_policies(
    manifests: &mut String,
    workloads: &[MeasuredWorkload],
    services: &BTreeSet<&str>,
    layout: Layout,
) -> anyhow::Result<()> {
    let namespace = layout.namespace();
    let (rules, rule_reference) = match layout {
        Layout::Tcp => (TCP_RULES, "{kind: TCPRoute, name: all}"),
        _ => (HTTP_RULES, "{kind: HTTPRouteGroup, name: all, matches: [all]}"),
    };
    manifests.push_str(&rules.replace("NAMESPACE", namespace));
    for service in services {
        write!(
            manifests,
            "---\napiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\n\
             metadata: {{name: {service}, namespace: {namespace}}}\nspec:\n  destination: \
             {{kind: ServiceAccount, name: {service}, namespace: {namespace}}}\n  sources:\n"
        )?;
        for client in workloads {
            if client.called_services.iter().any(|(called_service, _)| called_service == service) {
                let name = client.service;
                let source =
                    format!("{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}");
                writeln!(manifests, "  - {source}")?;
            }
        }
        writeln!(manifests, "  rules: [{rule_reference}]")?;
    }
    Ok(())
}

/// Creates a workload that only calls services.
const fn client_workload(
    name: &'static str,
    called_services: &'static [(&'static str, &'static str)],
) -> MeasuredWorkload {
    MeasuredWorkload {
        name,
        service: name,
        served_port_role: None,
        called_services,
        http_proxy_role: None,
    }
}

/// Creates a workload that only serves, as part of a service.
const fn server_workload(
    name: &'static str,
    service: &'static str,
    role: &'static str,
) -> MeasuredWorkload {
    MeasuredWorkload {
        name,
        service,
        served_port_role: Some(role),
        called_services: &[],
        http_proxy_role: None,
    }
}

const PAIR: &[MeasuredWorkload] = &[
    client_workload("client", &[("server", "entry")]),
    server_workload("server", "server", "backend"),
];

const BOOKINFO: &[MeasuredWorkload] = &[
    client_workload("client", &[("ratings", "entry-ratings"), ("gateway", "entry-gateway")]),
    MeasuredWorkload {
        name: "gateway",
        service: "gateway",
        served_port_role: Some("gateway"),
        called_services: &[("ratings", "gateway-entry")],
        http_proxy_role: Some("outbound"),
    },
    server_workload("ratings", "ratings", "ratings"),
];

const FAN: &[MeasuredWorkload] = &[
    client_workload(
        "client",
        &[("echo-1", "entry-1"), ("echo-2", "entry-2"), ("echo-3", "entry-3")],
    ),
    server_workload("echo-1", "echo-1", "backend-1"),
    server_workload("echo-2", "echo-2", "backend-2"),
    server_workload("echo-3", "echo-3", "backend-3"),
];

const CHAIN: &[MeasuredWorkload] = &[
    client_workload("consumer", &[("provider", "listener-1")]),
    server_workload("provider-1", "provider", "provider-1"),
    server_workload("provider-2", "provider", "provider-2"),
    server_workload("provider-3", "provider", "provider-3"),
];

/// A header rule that the load does not match, and a weighted rule for two providers.
const TAG_ROUTE: &str = "---\napiVersion: leno.dev/v1alpha1\nkind: TagRoute\n\
     metadata: {name: provider, namespace: bench}\nspec:\n  service: provider\n  \
     fallbackPolicy: default\n  rules:\n  - precedence: 2\n    match: {headers: {x-user-tier: gold}}\n    \
     split: [{tags: {instance: provider-3}}]\n  - precedence: 1\n    split:\n    \
     - {weight: 50, tags: {instance: provider-1}}\n    \
     - {weight: 50, tags: {instance: provider-2}}\n";

const ABOUT: &str = "a leno sidecar for each workload, configured by a leno control plane: mutual \
     TLS 1.3, a policy for the peer's SPIFFE id and the path, one multiplexed link between two \
     sidecars, Prometheus metrics on";
const ABOUT_OBSERVABILITY: &str = "traces and the access log of one request in a hundred, trace context in all of \
                    them, errors always, and metrics every minute, all exported to a collector by \
                    OTLP";

const HTTP_RULES: &str = "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\n\
     metadata: {name: all, namespace: NAMESPACE}\n\
     spec: {matches: [{name: all, pathRegex: \"/.*\", methods: [\"*\"]}]}\n";

const TCP_RULES: &str = "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute\n\
     metadata: {name: all, namespace: NAMESPACE}\nspec: {matches: {}}\n";
