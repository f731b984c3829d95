//! Reads the `leno.dev/v1alpha1` `Workload` kind. A function that returns `None` has recorded a problem with the field, and
//! the document is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use leno_model::{
    AdmissionSettings, HttpGet, Name, OutboundListener, Protocol, RunOptions, RunUser,
    ServiceAccount, ServiceName, Weight, Workload, WorkloadName, WorkloadPort,
};

use super::ObjectMetadata;
use super::service_policy::read_number_or;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};
use crate::schema_reader::read_included;

/// Reads the `spec` of a `Workload`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<Workload> {
    let fields = spec.read_fields(SUPPORTED_FIELDS)?;
    let account = match fields.find("serviceAccount") {
        Some(field) => field.read_name(),
        None => Name::new(DEFAULT_ACCOUNT).ok(),
    };
    let address = match fields.find("address") {
        Some(field) => read_address(field),
        None => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    let ports = read_ports(&fields);
    let admission: Option<AdmissionSettings> = read_included(&fields, &metadata.namespace);
    let run = fields.find("run").map(read_command).unwrap_or_default();
    let run_options = Box::new(read_run_options(&fields, &ports));
    let account = account.filter(|name| check_account(&fields, &metadata.namespace, name));
    let address = address?;
    let (default_weight, max_weight) = (Weight::DEFAULT.into(), Weight::MAX.into());
    let weight = read_number_or(&fields, "weight", 1, max_weight, default_weight);
    let outbound_listeners = read_listeners(&fields, &metadata.namespace);
    reject_listeners_on_own_ports(&fields, &outbound_listeners, address, &ports);
    Some(Workload {
        account: ServiceAccount { namespace: metadata.namespace.clone(), name: account? },
        name: WorkloadName { namespace: metadata.namespace, name: metadata.name },
        uid: None,
        labels: metadata.labels,
        ports,
        address,
        other_addresses: BTreeSet::new(),
        run,
        run_options,
        outbound_listeners,
        admission: admission?,
        weight: u16::try_from(weight?).ok().and_then(Weight::new)?,
        // Only Pods are unready, terminating or without a sidecar.
        ready: true,
        terminating: false,
        sidecar: true,
    })
}

/// Returns true if a workload may have this account. Rejects the control plane's account, and returns false: sidecars would
/// accept a workload with this account as the control plane.
fn check_account(fields: &MapFields<'_>, namespace: &Name, name: &Name) -> bool {
    let is_reserved = namespace.as_str() == CONTROL_NAMESPACE && name.as_str() == CONTROL_ACCOUNT;
    if is_reserved {
        let field = fields.find("serviceAccount");
        field.unwrap_or(fields.map_field()).reject(
            format!("{CONTROL_NAMESPACE}/{CONTROL_ACCOUNT} is the account of the control plane"),
            "use another account or another namespace",
        );
    }
    !is_reserved
}

/// Reads the address at which the sidecar reaches the application.
fn read_address(field: &Field<'_>) -> Option<IpAddr> {
    let address: IpAddr = field.read_with(
        |text| text.parse().ok(),
        "an IP address",
        "use one such as 127.0.0.1 or ::1",
    )?;
    if address.is_unspecified() || address.is_multicast() {
        field.reject(
            format!("{address} is not an address that a sidecar can connect to"),
            "use the address that the application listens on, such as 127.0.0.1",
        );
        return None;
    }
    Some(address)
}

/// Reads the ports of the application; empty if the field is absent. Numbers and names must be distinct.
fn read_ports(fields: &MapFields<'_>) -> Vec<WorkloadPort> {
    let Some(elements) = fields.find("ports").and_then(|ports| ports.read_list(MAX_PORTS)) else {
        return Vec::new();
    };
    let mut ports: Vec<WorkloadPort> = Vec::new();
    for element in elements {
        let Some(port) = read_port(&element) else {
            continue;
        };
        if ports.iter().any(|existing| existing.port == port.port) {
            element.reject(format!("port {} is listed twice", port.port), "remove one of the two");
        }
        if port.name.is_some() && ports.iter().any(|existing| existing.name == port.name) {
            element.reject("its name is used by another port", "use another name");
        }
        ports.push(port);
    }
    ports
}

/// Reads one of the `ports`. Without `protocol`, the sidecar detects the protocol of each connection.
fn read_port(element: &Field<'_>) -> Option<WorkloadPort> {
    let fields = element.read_fields(&["name", "port", "protocol"])?;
    let name = fields.find("name").map(Field::read_label);
    let port = fields.require("port").and_then(Field::read_port);
    let protocol = match fields.find("protocol") {
        Some(field) => field.read_choice(&[
            ("HTTP", Protocol::Http),
            ("HTTP2", Protocol::Http2),
            ("GRPC", Protocol::Grpc),
            ("TCP", Protocol::Tcp),
            ("detect", Protocol::Detect),
        ])?,
        None => Protocol::Detect,
    };
    Some(WorkloadPort { name: name.flatten(), port: port?, protocol })
}

/// Reads `env`, the environment variables of the command in `run`. Without `run`, the field is rejected.
fn read_env(fields: &MapFields<'_>) -> BTreeMap<String, String> {
    let Some(field) = fields.find("env") else {
        return BTreeMap::new();
    };
    if fields.find("run").is_none() {
        field.reject(
            "applies to the command in `run`, which is not set",
            "add `run`, or set the variables where the application is started",
        );
    }
    let mut env = BTreeMap::new();
    for (key, value) in field.read_entries().unwrap_or_default() {
        if key.is_empty() || key.contains(['=', '\0']) {
            value.reject(
                format!("{key:?} cannot be the name of a variable"),
                "use one without `=` and NUL",
            );
        }
        if let Some(text) = value.read_literal() {
            env.insert(key.to_owned(), text);
        }
    }
    env
}

/// Reads the command in `run`: the program and its arguments. Empty if the field is invalid.
fn read_command(field: &Field<'_>) -> Vec<String> {
    let NodeValue::Text(text) = field.value() else {
        return field.read_each(MAX_COMMAND_ARGUMENTS, Field::read_literal);
    };
    field.reject(format!("is {}, not a list", field.quoted_value()), command_hint(text));
    Vec::new()
}

/// Returns the hint for a command that is one text: the list of its words, if a shell would interpret none of its
/// characters.
fn command_hint(text: &str) -> String {
    let is_literal =
        |character: char| character.is_ascii_alphanumeric() || " -_./:=@%+,".contains(character);
    let words: Vec<String> = text.split_whitespace().map(|word| format!("{word:?}")).collect();
    let list_text = match text.chars().all(is_literal) && text.len() <= MAX_HINT_COMMAND_BYTES {
        true if !words.is_empty() => format!(": [{}]", words.join(", ")),
        _ => "; for a shell: [\"sh\", \"-c\", \"COMMAND\"]".to_owned(),
    };
    format!("write the program and each argument as an element{list_text}")
}

/// Reads the settings of the command in `run`: `env`, `cwd`, `user` and `readiness`. Without `run`, each of them is rejected.
fn read_run_options(fields: &MapFields<'_>, ports: &[WorkloadPort]) -> RunOptions {
    for name in ["cwd", "user", "readiness"] {
        if let Some(field) = fields.find(name)
            && fields.find("run").is_none()
        {
            field.reject(
                "applies to the command in `run`, which is not set",
                "add `run`, or set it where the application is started",
            );
        }
    }
    RunOptions {
        env: read_env(fields),
        cwd: fields.find("cwd").and_then(read_directory),
        user: fields.find("user").and_then(read_user),
        readiness: fields.find("readiness").and_then(|field| read_readiness(field, ports)),
    }
}

/// Reads the absolute path of the command's working directory.
fn read_directory(field: &Field<'_>) -> Option<String> {
    let text = field.read_literal()?;
    if !text.starts_with('/') {
        field.reject(
            format!("{text:?} is not an absolute path"),
            "write the whole path, such as /srv/app",
        );
        return None;
    }
    Some(text)
}

/// Reads the user that runs the command.
fn read_user(field: &Field<'_>) -> Option<RunUser> {
    let text = field.read_literal()?;
    let user = parse_user(&text);
    if user.is_none() {
        field.reject(
            format!("{text:?} is not a user"),
            "use a name such as www-data, or numbers such as 1000 or \"1000:1000\"",
        );
    }
    user
}

/// Parses a user name as permitted by useradd(8), a number, or two numbers separated by `:`.
fn parse_user(text: &str) -> Option<RunUser> {
    if text.starts_with(|character: char| character.is_ascii_digit()) {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group.parse().ok()?)),
            None => (text, None),
        };
        return Some(RunUser::Numbered(user.parse().ok()?, group));
    }
    let is_name_character =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.');
    let is_name = !text.is_empty() && text.len() <= MAX_USER_BYTES && !text.starts_with('-');
    (is_name && text.chars().all(is_name_character)).then(|| RunUser::Named(text.to_owned()))
}

/// Reads the readiness check of the command: an HTTP GET to a port of the workload; the default path is `/`.
fn read_readiness(field: &Field<'_>, ports: &[WorkloadPort]) -> Option<HttpGet> {
    let fields = field.read_fields(&["httpGet"])?;
    let http_get_fields = fields.require("httpGet")?.read_fields(&["port", "path"])?;
    let port_field = http_get_fields.require("port")?;
    let port_number = port_field.read_port()?;
    if !ports.iter().any(|workload_port| workload_port.port == port_number) {
        port_field.reject(
            format!("{port_number} is not a port of the workload"),
            "use the number of one of `ports`",
        );
    }
    let path = match http_get_fields.find("path") {
        None => "/".to_owned(),
        Some(field) => {
            let path = field.read_literal()?;
            let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_path {
                field.reject(format!("{path:?} is not a path"), "use one such as /ready");
                return None;
            }
            path
        }
    };
    Some(HttpGet { port: port_number, path })
}

/// Reads the `outbound` listeners: addresses at which the sidecar accepts the application's connections to one
/// service.
fn read_listeners(fields: &MapFields<'_>, namespace: &Name) -> Vec<OutboundListener> {
    let elements = fields.find("outbound").and_then(|field| field.read_list(MAX_LISTENERS));
    let mut outbound_listeners: Vec<OutboundListener> = Vec::new();
    for element in elements.unwrap_or_default() {
        let Some(listener) = read_listener(&element, namespace) else {
            continue;
        };
        if outbound_listeners.iter().any(|existing| existing.listen == listener.listen) {
            element.reject(
                format!("two outbound listeners use {}", listener.listen),
                "use another port for one of them",
            );
        }
        outbound_listeners.push(listener);
    }
    outbound_listeners
}

/// Reads one of the `outbound` listeners. The service's namespace defaults to the workload's.
fn read_listener(element: &Field<'_>, namespace: &Name) -> Option<OutboundListener> {
    let fields = element.read_fields(&["service", "port", "listen"])?;
    let service = fields.require("service").and_then(|field| {
        field.read_with(
            |text| parse_service_name(text, namespace),
            "the name of a service",
            "use `name.namespace`, such as details.bookinfo",
        )
    });
    let port = fields.require("port").and_then(Field::read_port);
    let listen_address = fields.require("listen").and_then(read_listen_address);
    Some(OutboundListener { service: service?, port: port?, listen: listen_address? })
}

/// Reads the address and port of an outbound listener.
fn read_listen_address(field: &Field<'_>) -> Option<SocketAddr> {
    let listen_address: SocketAddr = field.read_with(
        |text| text.parse().ok(),
        "an address and port",
        "use one such as \"127.0.0.1:19081\"",
    )?;
    if listen_address.port() == 0 {
        field.reject("has port 0", "use a number from 1 to 65535");
        return None;
    }
    if listen_address.ip().is_multicast() {
        field.reject("is a multicast address", "use a loopback address");
        return None;
    }
    if !listen_address.ip().is_loopback() {
        field.warn(
            "is not a loopback address: clients that reach it send requests with this workload's \
             identity",
            "use 127.0.0.1 unless that is intended",
        );
    }
    Some(listen_address)
}

/// Rejects outbound listeners on an address and port of the application itself.
fn reject_listeners_on_own_ports(
    fields: &MapFields<'_>,
    outbound_listeners: &[OutboundListener],
    address: IpAddr,
    ports: &[WorkloadPort],
) {
    for OutboundListener { listen: listen_address, .. } in outbound_listeners {
        let is_same_address =
            listen_address.ip() == address || listen_address.ip().is_unspecified();
        if is_same_address
            && ports.iter().any(|port| port.port == listen_address.port())
            && let Some(field) = fields.find("outbound")
        {
            field.reject(
                format!(
                    "an outbound listener uses {listen_address}, the address of the application"
                ),
                "use another port for the listener",
            );
        }
    }
}

/// Parses `name`, `name.namespace` and the longer forms up to `name.namespace.svc.cluster.local`; without a namespace, the
/// service is in `namespace`.
fn parse_service_name(text: &str, namespace: &Name) -> Option<ServiceName> {
    let mut labels = text.split('.');
    let name = Name::new(labels.next()?).ok()?;
    let namespace = match labels.next() {
        Some(label) => Name::new(label).ok()?,
        None => namespace.clone(),
    };
    let suffix: Vec<&str> = labels.collect();
    let cluster_suffix = ["svc", "cluster", "local"];
    cluster_suffix.starts_with(&suffix).then_some(ServiceName { namespace, name })
}

/// The supported fields of `spec`.
const SUPPORTED_FIELDS: &[&str] = &[
    "serviceAccount",
    "ports",
    "address",
    "run",
    "env",
    "cwd",
    "user",
    "readiness",
    "outbound",
    "defaultPolicy",
    "mtls",
    "weight",
];
/// The default service account, the same as in Kubernetes.
const DEFAULT_ACCOUNT: &str = "default";
/// The namespace of the control plane's own account.
const CONTROL_NAMESPACE: &str = "leno-system";
/// The name of the control plane's own account.
const CONTROL_ACCOUNT: &str = "leno-control";
/// Maximum number of ports per workload.
const MAX_PORTS: usize = 256;
/// Maximum number of outbound listeners per workload; each is a listening socket.
const MAX_LISTENERS: usize = 1024;
/// Maximum length of a user name (useradd(8)).
const MAX_USER_BYTES: usize = 32;
/// Maximum length of a command that a hint repeats as a list.
const MAX_HINT_COMMAND_BYTES: usize = 200;
/// Maximum number of arguments per command.
const MAX_COMMAND_ARGUMENTS: usize = 4096;
