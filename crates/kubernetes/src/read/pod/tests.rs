//! Tests the conversion of pods as they appear in clusters.

use std::collections::BTreeMap;

use leno_model::DefaultPolicy;
use serde_json::{Value, json};

use super::*;
use crate::read::ServiceReading;
use crate::read::read_service;

fn pod_with_changes(changes: &[(&str, Value)]) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": "reviews-7d4-x2", "namespace": "bookinfo",
            "labels": {"app": "reviews", "pod-template-hash": "7d4", "leno.dev/meshed": "sidecar"},
        },
        "spec": {
            "serviceAccountName": "bookinfo-reviews",
            "containers": [
                {"name": "reviews", "ports": [
                    {"name": "http-web", "containerPort": 9080},
                    {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                ]},
                {"name": "metrics", "ports": [
                    {"name": "http-web", "containerPort": 9100, "protocol": "TCP"},
                    {"containerPort": 9080},
                ]},
                {"name": "leno-proxy", "ports": [{"name": "inbound", "containerPort": 15003}]},
            ],
            "initContainers": [
                {"name": "leno-init"},
                {"name": "migrate", "ports": [{"containerPort": 1}]},
                {"name": "shipper", "restartPolicy": "Always", "ports": [
                    {"name": "tcp-logs", "containerPort": 5170},
                ]},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.1.0.7",
            "podIPs": [{"ip": "10.1.0.7"}, {"ip": "fd00::7"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn workload_with_changes(changes: &[(&str, Value)]) -> Option<Workload> {
    let workload = read_pod(&pod_with_changes(changes)).unwrap().map(|member| member.workload);
    workload.filter(|workload| workload.sidecar)
}

#[test]
fn a_pod_that_is_replaced_by_one_of_the_same_name_is_another_instance() {
    let with_uid = |uid: &str| workload_with_changes(&[("/metadata/uid", json!(uid))]).unwrap();
    let (former, new) = (with_uid("0b5f"), with_uid("77aa"));
    assert_eq!(former.uid.as_ref().map(Uid::as_str), Some("0b5f"));
    assert_eq!(former.name, new.name);
    assert_ne!(former, new);
}

fn ports_of(workload: &Workload) -> Vec<(u16, Option<&str>, &str)> {
    let protocol_name = |port: &WorkloadPort| port.protocol.as_str();
    let ports = workload.ports.iter();
    ports
        .map(|port| (port.port, port.name.as_ref().map(Name::as_str), protocol_name(port)))
        .collect()
}

#[test]
fn a_pod_with_a_sidecar_is_a_workload() {
    let workload = workload_with_changes(&[]).unwrap();
    assert_eq!(workload.name.to_string(), "bookinfo/reviews-7d4-x2");
    assert_eq!(workload.account.to_string(), "bookinfo/bookinfo-reviews");
    assert_eq!(workload.address.to_string(), "10.1.0.7");
    assert_eq!(workload.labels.get("app").unwrap(), "reviews");
    assert!(workload.ready);
    assert_eq!(
        ports_of(&workload),
        [(5170, Some("tcp-logs"), "TCP"), (9080, Some("http-web"), "HTTP"), (9100, None, "HTTP")]
    );
}

#[test]
fn a_pod_has_the_weight_of_its_annotation() {
    let weight = |annotations: Value| {
        workload_with_changes(&[("/metadata/annotations", annotations)]).unwrap().weight.as_u16()
    };
    assert_eq!(weight(json!({})), 100);
    assert_eq!(weight(json!({"leno.dev/weight": "250"})), 250);
    for invalid in ["0", "1001", "-1", "much", ""] {
        assert_eq!(weight(json!({"leno.dev/weight": invalid})), 100, "{invalid}");
    }
}

#[test]
fn mapped_addresses_are_read_as_ipv4() {
    let mapped = json!([{"ip": "::ffff:10.1.0.7"}, {"ip": "fd00::7"}]);
    let changes = [("/status/podIP", json!("::ffff:10.1.0.7")), ("/status/podIPs", mapped)];
    let workload = workload_with_changes(&changes).unwrap();
    assert_eq!(workload.address.to_string(), "10.1.0.7");
    assert_eq!(workload.other_addresses.len(), 1);
    assert_eq!(pod_addresses(&pod_with_changes(&changes)), pod_addresses(&pod_with_changes(&[])));
}

#[test]
fn a_pod_is_a_workload_only_as_a_running_member() {
    for (changes, expected) in [
        (vec![], true),
        // The container identifies a member without the label.
        (vec![("/metadata/labels", json!({}))], true),
        (
            vec![("/metadata/labels", json!({})), ("/spec/containers", json!([{"name": "a"}]))],
            false,
        ),
        (vec![("/metadata/labels", json!({})), ("/spec/hostNetwork", json!(true))], false),
        (vec![("/spec/hostNetwork", json!(true))], true),
        (
            vec![
                ("/metadata/labels", json!({})),
                ("/spec/containers", json!([{"name": "a"}])),
                ("/spec/initContainers", json!([{"name": "leno-proxy"}])),
            ],
            true,
        ),
        (vec![("/status/podIP", json!(null))], false),
        (vec![("/status/phase", json!("Succeeded"))], false),
        (vec![("/status/phase", json!("Failed"))], false),
        (vec![("/status/phase", json!("Pending"))], true),
    ] {
        assert_eq!(workload_with_changes(&changes).is_some(), expected, "{changes:?}");
    }
}

#[test]
fn a_pod_without_a_sidecar_is_an_endpoint() {
    let unmeshed = |more_changes: &[(&str, Value)]| {
        let mut changes = vec![
            ("/metadata/labels", json!({"app": "a"})),
            ("/spec/containers", json!([{"name": "a"}])),
        ];
        changes.extend_from_slice(more_changes);
        read_pod(&pod_with_changes(&changes)).unwrap().map(|pod| pod.workload)
    };
    let workload = unmeshed(&[]).unwrap();
    assert!(!workload.sidecar && workload.ready);
    assert_eq!(workload.address.to_string(), "10.1.0.7");
    for (change, expected) in [
        (("/spec/hostNetwork", json!(true)), true),
        (("/status/podIP", json!(null)), false),
        (("/status/phase", json!("Failed")), false),
        // Invalid as a member, but it is not meshed.
        (("/metadata/namespace", json!("NO")), false),
        (("/metadata/annotations", json!({"leno.dev/default-policy": "odd"})), true),
    ] {
        let workload = unmeshed(std::slice::from_ref(&change));
        assert_eq!(workload.is_some(), expected, "{change:?}");
    }
}

/// As without a mesh, the pod is an endpoint of its services, at the address of its node.
#[test]
fn a_pod_in_the_network_of_its_node_is_an_endpoint_without_a_sidecar() {
    let changes = [
        ("/metadata/labels", json!({"app": "a", "leno.dev/injection": "disabled"})),
        ("/spec/hostNetwork", json!(true)),
        ("/status/podIP", json!("192.0.2.7")),
        ("/status/podIPs", json!([{"ip": "192.0.2.7"}])),
    ];
    // A container name makes no pod in the host network a member, because its connections are not redirected.
    let member = read_pod(&pod_with_changes(&changes)).unwrap().unwrap();
    assert!(
        !member.sidecar_settings.may_be_overridden(),
        "a host network pod cannot have a sidecar"
    );
    let workload = member.workload;
    assert!(!workload.sidecar && workload.ready);
    assert_eq!(workload.address.to_string(), "192.0.2.7");
    assert!(workload.labels.contains_key(NODE_NETWORK_LABEL));
    // The address is shared by all pods in the host network.
    assert_eq!(pod_addresses(&pod_with_changes(&changes)), BTreeSet::new());
}

#[test]
fn a_deleted_pod_that_still_serves_is_terminating() {
    let unready = json!([{"type": "Ready", "status": "False"}]);
    let deleted = || ("/metadata/deletionTimestamp", json!("2025-01-01T00:00:00Z"));
    for (changes, expected) in [
        (vec![], (true, false)),
        (vec![deleted()], (false, true)),
        (vec![deleted(), ("/status/conditions", unready.clone())], (false, false)),
        (vec![("/status/conditions", unready)], (false, false)),
    ] {
        let workload = workload_with_changes(&changes).unwrap();
        assert_eq!((workload.ready, workload.terminating), expected, "{changes:?}");
    }
}

#[test]
fn a_pod_is_ready_only_while_it_can_receive_requests() {
    let unready = json!([{"type": "Ready", "status": "False"}]);
    let deletion = json!("2025-01-01T00:00:00Z");
    for (changes, expected) in [
        (vec![], true),
        (vec![("/status/conditions", unready)], false),
        (vec![("/status/conditions", json!([]))], false),
        (vec![("/metadata/deletionTimestamp", deletion)], false),
    ] {
        assert_eq!(workload_with_changes(&changes).unwrap().ready, expected, "{changes:?}");
    }
}

#[test]
fn the_account_is_default_when_none_is_named_and_never_that_of_the_control_plane() {
    let workload = workload_with_changes(&[("/spec/serviceAccountName", json!(null))]).unwrap();
    assert_eq!(workload.account.to_string(), "bookinfo/default");
    let reserved_account = [
        ("/metadata/namespace", json!("leno-system")),
        ("/spec/serviceAccountName", json!("leno-control")),
    ];
    let rejected = read_pod(&pod_with_changes(&reserved_account)).unwrap_err().to_string();
    assert!(rejected.starts_with("Pod leno-system/reviews-7d4-x2: spec.serviceAccountName:"));
}

#[test]
fn ports_of_services_need_not_be_declared() {
    let service = |selector: Value, target: Value| {
        let object = json!({
            "metadata": {"name": "s", "namespace": "bookinfo"},
            "spec": {"clusterIP": "10.0.0.1", "selector": selector,
                     "ports": [{"port": 80, "targetPort": target}]},
        });
        match read_service(&serde_json::from_value(object).unwrap()) {
            ServiceReading::WithSelector(service, _) => service,
            other => panic!("{other:?}"),
        }
    };
    let services = [
        service(json!({"app": "reviews"}), json!(7000)),
        service(json!({"app": "reviews"}), json!(9080)),
        service(json!({"app": "reviews"}), json!("http-web")),
        service(json!({"app": "ratings"}), json!(7001)),
    ];
    let gateway = json!({
        "app": "reviews", "leno.dev/meshed": "gateway", "gateway.networking.k8s.io/gateway-name": "g",
    });
    let gateway = workload_with_changes(&[("/metadata/labels", gateway)]).unwrap();
    assert_eq!(with_target_ports(&gateway, services.iter()).ports, gateway.ports);
    let meshed = workload_with_changes(&[]).unwrap();
    let with_ports = with_target_ports(&meshed, services.iter());
    let numbers: Vec<u16> = with_ports.ports.iter().map(|port| port.port).collect();
    assert_eq!(numbers, [5170, 7000, 9080, 9100]);
    let mut other_namespace = meshed.clone();
    other_namespace.name.namespace = Name::new("other").unwrap();
    assert_eq!(with_target_ports(&other_namespace, services.iter()).ports, meshed.ports);
    assert_eq!(meshed.run_options.env, BTreeMap::new());
}

#[test]
fn the_default_policy_of_the_annotation_is_read() {
    let policy_of = |value: &str| {
        let annotations = json!({"leno.dev/default-policy": value});
        read_pod(&pod_with_changes(&[("/metadata/annotations", annotations)]))
            .unwrap()
            .unwrap()
            .admission
            .default_policy
    };
    assert_eq!(policy_of("deny"), Ok(Some(DefaultPolicy::Deny)));
    assert!(policy_of("of-course").is_err());
}
