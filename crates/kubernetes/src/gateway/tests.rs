//! Tests the attachment rules of the Gateway API, as tables.

mod listeners;
mod routes;

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use leno_model::{GatewayCertificate, GatewayPortRules, Service, ServiceName};
use leno_registry::{ServedKind, served_kinds};
use serde_json::{Value, json};

use super::inputs::{GatewayInput, GatewayService, ObservedGatewayClass, RouteId};
use super::*;
use crate::read::ServiceReading;
use crate::source::ObjectId;
use crate::status::StatusCondition;

/// A cluster with one class, one gateway `infra/edge`, and services `infra/web` and `other/web`.
struct ClusterFixture {
    inputs: GatewayInputs,
    services: BTreeMap<ServiceName, Service>,
}

fn object_id(namespace: &str, name: &str) -> ObjectId {
    ObjectId { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn served_kind(kind_name: &str) -> ServedKind {
    let kinds = served_kinds().into_iter().chain(GATEWAY_KINDS);
    let mut kinds_of_api = kinds.filter(|kind| kind.group == "gateway.networking.k8s.io");
    kinds_of_api.find(|kind| kind.kind == kind_name).unwrap()
}

impl ClusterFixture {
    /// Creates the cluster with a gateway of these listeners.
    fn new(listeners: Value) -> Self {
        let mut fixture = Self { inputs: GatewayInputs::default(), services: BTreeMap::new() };
        fixture.inputs.classes.insert("leno".to_owned(), ObservedGatewayClass::default());
        for (name, label) in [("infra", "a"), ("other", "b")] {
            let labels = BTreeMap::from([("team".to_owned(), label.to_owned())]);
            fixture.inputs.namespaces.insert(name.to_owned(), labels);
            fixture.add_service(name, "web");
        }
        fixture.add_gateway("edge", json!({"listeners": listeners}));
        fixture
    }

    fn add_service(&mut self, namespace: &str, name: &str) {
        let object = json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIP": "10.0.0.1", "selector": {"app": name}, "ports": [{"port": 80}]},
        });
        let ServiceReading::WithSelector(service, _) =
            crate::read::read_service(&serde_json::from_value(object).unwrap())
        else {
            panic!()
        };
        self.services.insert(service.name.clone(), service);
    }

    /// Adds an object, as a watch would report it.
    fn add_object(&mut self, kind_name: &str, namespace: &str, name: &str, spec: Value) {
        let kind = served_kind(kind_name);
        let created = format!("2025-01-01T00:00:{:02}Z", self.inputs.routes.len());
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": namespace, "uid": "u", "creationTimestamp": created,
            },
            "spec": spec,
        }))
        .unwrap();
        let id = object_id(namespace, name);
        match read_gateway_input(kind, kind.api_versions[0], &object).unwrap() {
            GatewayInput::Gateway(gateway) => drop(self.inputs.gateways.insert(id, *gateway)),
            GatewayInput::Route(kind, route) => {
                self.inputs.routes.insert(RouteId { kind, id }, *route);
            }
            GatewayInput::Grant(grant) => drop(self.inputs.grants.insert(id, grant)),
            GatewayInput::TlsServices(names) => drop(self.inputs.tls_services.insert(id, names)),
            _ => panic!(),
        }
    }

    fn add_gateway(&mut self, name: &str, mut spec: Value) {
        spec["gatewayClassName"] = json!("leno");
        self.add_object("Gateway", "infra", name, spec);
    }

    /// Adds a route to `infra/edge`, with one rule.
    fn add_route(
        &mut self,
        kind_name: &str,
        namespace: &str,
        name: &str,
        parent: Value,
        hosts: &[&str],
    ) {
        let mut parent_ref = parent;
        parent_ref["name"] = json!("edge");
        parent_ref["namespace"] = json!("infra");
        let mut spec = json!({
            "parentRefs": [parent_ref],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        });
        if !hosts.is_empty() {
            spec["hostnames"] = json!(hosts);
        }
        self.add_object(kind_name, namespace, name, spec);
    }

    fn add_certificate(&mut self, namespace: &str, name: &str) {
        let certificate = GatewayCertificate { chain: name.to_owned(), key: String::new() };
        self.inputs.certificates.insert(object_id(namespace, name), Ok(certificate));
    }

    /// Adds the Deployment and the Service of `infra/edge`, ready and with an address.
    fn add_running_objects(&mut self) {
        let object = object_id("infra", "leno-gateway-edge");
        self.inputs.deployments.insert(object.clone(), true);
        let ingress = vec![GatewayAddress::from_ip("192.0.2.7")];
        let gateway_service = GatewayService {
            is_load_balancer: true,
            ingress_addresses: ingress,
            cluster_addresses: Vec::new(),
        };
        self.inputs.gateway_services.insert(object, gateway_service);
    }

    fn resolve_all(&self) -> ResolvedGateways {
        let (resolved, pending_secrets) = (&ResolvedGateways::default(), &BTreeSet::new());
        resolve_gateways(
            &self.inputs,
            &|name| self.services.get(name),
            &PreviousResult { resolved, pending_secrets },
        )
    }

    /// Returns the reasons of `Accepted` and `ResolvedRefs` for the only parent of a route.
    fn parent_reasons(&self, kind_name: &str, namespace: &str, name: &str) -> [&'static str; 2] {
        let resolved = self.resolve_all();
        let route = RouteId { kind: served_kind(kind_name).kind, id: object_id(namespace, name) };
        let parents = &resolved.parent_statuses[&route];
        assert_eq!(parents.len(), 1);
        let conditions = &parents[0].conditions;
        [condition_reason(conditions, "Accepted"), condition_reason(conditions, "ResolvedRefs")]
    }
}

/// Returns the reason of a condition.
fn condition_reason(conditions: &[StatusCondition], name: &str) -> &'static str {
    conditions.iter().find(|condition| condition.name == name).unwrap().reason
}

/// Returns host names and the routes of their rules, at one listener of `infra/edge`.
fn hosts_at_listener(resolved: &ResolvedGateways, listener: &str) -> Vec<(String, Vec<String>)> {
    let gateway = resolved.gateways.values().next().unwrap();
    let listeners_of_all_ports = gateway.ports.iter().flat_map(|port| match &port.serves {
        GatewayPortRules::Http(listeners) | GatewayPortRules::Https(listeners) => {
            listeners.as_slice()
        }
        _ => &[],
    });
    let selected = listeners_of_all_ports
        .into_iter()
        .find(|candidate| candidate.name.as_str() == listener)
        .unwrap();
    let describe_host = |host_rules: &leno_model::HostRules| {
        let name = host_rules.hostname.as_ref().map_or("any".to_owned(), ToString::to_string);
        (name, host_rules.rules.iter().map(|rule| rule.route.name.to_string()).collect())
    };
    selected.hosts.iter().map(describe_host).collect()
}
