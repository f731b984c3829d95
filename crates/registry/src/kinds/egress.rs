//! Reads the `Egress` kind of OSM, osm-edge and FSM: destinations outside the mesh that workloads may call.

use leno_model::{
    EgressPolicy, EgressPort, HostPattern, IpRange, MatchedBy, PolicyName, ServiceAccount,
};

use super::ingress::{MAX_LIST, read_groups, read_non_empty_list};
use super::{ObjectMetadata, tls_route};
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `Egress`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<EgressPolicy> {
    let fields = spec.read_fields(&["sources", "hosts", "ipAddresses", "ports", "matches"])?;
    let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
    let sources = read_unique(&fields, "sources", "list the allowed accounts", read_source);
    let ports = read_unique(&fields, "ports", "list the allowed ports", read_port);
    let hosts = read_optional_unique(&fields, "hosts", read_host);
    let ranges = read_optional_unique(&fields, "ipAddresses", read_range);
    let groups = read_groups(&fields, &name.namespace);
    let policy = EgressPolicy {
        name,
        sources: sources?,
        hosts: hosts?,
        ranges: ranges?,
        ports: ports?,
        groups: groups?,
    };
    reject_ineffective(spec, &fields, &policy);
    Some(policy)
}

/// Rejects fields that have no effect in combination with the policy's other fields.
fn reject_ineffective(spec: &Field<'_>, fields: &MapFields<'_>, policy: &EgressPolicy) {
    let has_port_matched_by =
        |matched_by: MatchedBy| policy.ports.iter().any(|port| port.matched_by == matched_by);
    let has_port_with_host_names =
        has_port_matched_by(MatchedBy::Http) || has_port_matched_by(MatchedBy::ServerName);
    if let Some(field) = fields.find("hosts").filter(|_| !has_port_with_host_names) {
        field.reject(
            "has no effect: connections of the protocol tcp have no host name",
            "use `ipAddresses`, or `protocol: http` or `https`",
        );
    }
    if has_port_with_host_names && !policy.hosts.is_empty() && policy.ranges.is_empty() {
        let elements = fields.find("ports").and_then(|field| field.read_list(MAX_LIST));
        let ports = elements.unwrap_or_default().into_iter().zip(&policy.ports);
        for (element, _) in ports.filter(|(_, port)| port.matched_by == MatchedBy::Address) {
            element.reject(
                "is open to every address: `hosts` do not restrict ports of the protocol tcp",
                "split it in two, or write `ipAddresses: [0.0.0.0/0]` if that is intended",
            );
        }
    }
    if let Some(field) = fields.find("matches").filter(|_| !has_port_matched_by(MatchedBy::Http)) {
        field.reject(
            "has no effect: requests are parsed only on ports of the protocol http",
            "remove it, or use `protocol: http`",
        );
    }
    if policy.hosts.is_empty() && policy.ranges.is_empty() && has_port_with_host_names {
        spec.reject(
            "has neither `hosts` nor `ipAddresses`, and would match every destination",
            "name the hosts, or write `ipAddresses: [0.0.0.0/0]` if that is intended",
        );
    }
}

/// Reads a non-empty list without duplicates.
pub(super) fn read_unique<'a, T: PartialEq>(
    fields: &MapFields<'a>,
    key: &str,
    hint: &str,
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    read_unique_elements(fields.require(key)?, hint, read)
}

/// Reads a list without duplicates; empty if the field is absent.
fn read_optional_unique<'a, T: PartialEq>(
    fields: &MapFields<'a>,
    key: &str,
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    match fields.find(key) {
        Some(field) => read_unique_elements(field, "add an element, or leave it out", read),
        None => Some(Vec::new()),
    }
}

/// Reads a non-empty list without duplicates; `None` if an element is invalid.
fn read_unique_elements<'a, T: PartialEq>(
    field: &Field<'a>,
    hint: &str,
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut values = Vec::new();
    let elements = read_non_empty_list(field, hint)?;
    let element_count = elements.len();
    for element in elements {
        let Some(value) = read(&element) else { continue };
        if values.contains(&value) {
            element.reject("is listed twice", "remove one of the two");
        }
        values.push(value);
    }
    // If an element is invalid, there is no list: a shorter list would cause misleading problems with other fields.
    (values.len() == element_count).then_some(values)
}

/// Reads one of the `sources`: the workloads of this account may call the destinations.
fn read_source(element: &Field<'_>) -> Option<ServiceAccount> {
    let fields = element.read_fields(&["kind", "name", "namespace", "mtls"])?;
    fields.reject_unsupported(
        "mtls",
        "is not supported: sidecars present only their own certificates, and only to members of \
         the mesh",
        "use TLS in the application, and use `protocol: https`",
    );
    let kind = fields.require("kind").and_then(|kind| kind.read_choice(&[("ServiceAccount", ())]));
    let name = fields.require("name").and_then(Field::read_name);
    let namespace = fields.require("namespace").and_then(Field::read_label);
    kind?;
    Some(ServiceAccount { namespace: namespace?, name: name? })
}

/// Reads one of the `ports`: a number, and the protocol that decides how connections are matched.
fn read_port(element: &Field<'_>) -> Option<EgressPort> {
    let fields = element.read_fields(&["number", "protocol"])?;
    let port = fields.require("number").and_then(Field::read_port);
    let matched_by = fields.require("protocol").and_then(|field| field.read_choice(PROTOCOLS));
    Some(EgressPort { port: port?, matched_by: matched_by? })
}

/// Reads one of the `hosts`: a host name, or a pattern such as `*.example.com`.
fn read_host(element: &Field<'_>) -> Option<HostPattern> {
    tls_route::read_host(
        element,
        |text| text.parse::<HostPattern>().ok(),
        "use one in lower case without a port, such as api.example.com or *.example.com",
    )
}

/// Reads one of the `ipAddresses`: a range of addresses.
fn read_range(element: &Field<'_>) -> Option<IpRange> {
    element.read_with(
        |text| text.parse::<IpRange>().ok(),
        "a range of addresses",
        "use a CIDR range, such as 10.1.0.0/16 or 10.1.2.3/32",
    )
}

/// The protocols by name. Connections that are matched by address are not inspected, so either side may speak
/// first.
const PROTOCOLS: &[(&str, MatchedBy)] = &[
    ("http", MatchedBy::Http),
    ("https", MatchedBy::ServerName),
    ("tcp", MatchedBy::Address),
    ("tcp-server-first", MatchedBy::Address),
];
