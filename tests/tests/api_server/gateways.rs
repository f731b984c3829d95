//! Gateways with the API's real kinds: configuration, statuses and created objects.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use leno_kubernetes::api::NamespaceName;
use leno_kubernetes::gateway::provision_gateways;
use leno_kubernetes::inject::InjectionSettings;
use leno_kubernetes::source::{KubernetesSource, SourceOptions};
use leno_kubernetes::status::{ElectionIdentity, hold_lease, reconcile_statuses};
use leno_model::{Change, Gateway, GatewayPortRules, Object, ObjectKey, TrustDomain};
use leno_registry::RegistryUpdate;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::server::{ApiServerProcess, run};

/// Returns true if every HTTPS listener serves a host.
fn has_https_hosts(serves: &GatewayPortRules) -> bool {
    match serves {
        GatewayPortRules::Https(listeners) => {
            listeners.iter().all(|listener| !listener.hosts.is_empty())
        }
        _ => false,
    }
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn a_gateway_gets_its_configuration_status_and_resources() {
    run(async {
        let server = ApiServerProcess::start().await;
        for name in ["shop", "leno-system"] {
            server.create_namespace(name).await;
        }
        server.install_kinds("gateway-api.sh");
        let class = json!({"spec": {"controllerName": "leno.dev/gateway-controller"}});
        server.apply_object(GATEWAY_CLASS, None, "leno", class).await;
        let mut updates = GatewayUpdates::start(&server).await;
        create_service_with_endpoints(&server).await;
        let (chain, key) = generate_certificate();
        let data = json!({"tls.crt": chain, "tls.key": key});
        let secret = json!({"type": "kubernetes.io/tls", "stringData": data});
        server.apply_object("v1/Secret", Some("shop"), "cert", secret).await;
        let spec = gateway_spec(json!([http_listener(), https_listener()]));
        server.apply_object(GATEWAY, Some("shop"), "edge", spec).await;
        server.apply_object(HTTP_ROUTE, Some("shop"), "web", route_spec()).await;

        let config = updates.wait_for_gateway("a gateway with two ports and a route", |gateway| {
            gateway.ports.len() == 2 && has_https_hosts(&gateway.ports[1].serves)
        });
        let config = config.await;
        let GatewayPortRules::Https(listeners) = &config.ports[1].serves else {
            panic!("{config:?}")
        };
        assert_eq!(listeners[0].certificates[0].chain, chain);
        assert_eq!(listeners[0].hosts[0].rules[0].backends[0].service.to_string(), "shop/listed");
        // A route references the Service only now.
        updates.wait_until("the endpoint", |objects| objects.iter().any(is_endpoint)).await;

        let gateway = server.wait_until(GATEWAY, Some("shop"), "edge", |gateway| {
            has_condition(gateway, "Programmed", "Pending")
                && gateway["status"]["listeners"][0]["attachedRoutes"] == 1
        });
        let gateway = gateway.await;
        let listener = &gateway["status"]["listeners"][0];
        assert_eq!(listener["supportedKinds"][0]["kind"], "HTTPRoute");
        let owner = &gateway["metadata"]["uid"];
        let budget = "policy/v1/PodDisruptionBudget";
        for kind in ["v1/ServiceAccount", "v1/Service", "apps/v1/Deployment", budget] {
            let created = server
                .wait_until(kind, Some("shop"), RESOURCE_NAME, |object| !object.is_null())
                .await;
            assert_eq!(&created["metadata"]["ownerReferences"][0]["uid"], owner, "{kind}");
        }
        let status = json!({"availableReplicas": 1, "readyReplicas": 1, "replicas": 1});
        server.patch_status("apps/v1/Deployment", "shop", RESOURCE_NAME, status).await;
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
        server.patch_status("v1/Service", "shop", RESOURCE_NAME, ingress).await;
        let is_served = |gateway: &Value| has_condition(gateway, "Programmed", "Programmed");
        let gateway = server.wait_until(GATEWAY, Some("shop"), "edge", is_served).await;
        assert_eq!(gateway["status"]["addresses"][0]["value"], "192.0.2.7");
        let generation = &gateway["metadata"]["generation"];
        assert_eq!(&gateway["status"]["conditions"][0]["observedGeneration"], generation);

        let route = server.wait_until(HTTP_ROUTE, Some("shop"), "web", |route| {
            route["status"]["parents"][0]["conditions"][1]["reason"] == "ResolvedRefs"
        });
        let route = route.await;
        let parent = &route["status"]["parents"][0];
        assert_eq!(parent["controllerName"], "leno.dev/gateway-controller");
        let class = server.wait_until(GATEWAY_CLASS, None, "leno", |class| {
            class["status"]["conditions"][0]["reason"] == "Accepted"
        });
        let features = class.await["status"]["supportedFeatures"].clone();
        assert!(features.as_array().unwrap().contains(&json!({"name": "HTTPRoute"})));
        assert_removal(&server, &mut updates).await;
    });
}

/// Checks that a listener without its key and a deleted gateway are no longer served.
async fn assert_removal(server: &ApiServerProcess, updates: &mut GatewayUpdates) {
    // Removing a listener removes its port, from the Service too; a listener without its key is not served.
    server.delete_object("v1/Secret", Some("shop"), "cert").await;
    updates.wait_for_gateway("a gateway with one port", |gateway| gateway.ports.len() == 1).await;
    let has_one_port =
        |service: &Value| service["spec"]["ports"].as_array().is_some_and(|ports| ports.len() == 1);
    server.wait_until("v1/Service", Some("shop"), RESOURCE_NAME, has_one_port).await;
    server.delete_object(GATEWAY, Some("shop"), "edge").await;
    let belongs_to_gateway = |object: &&Object| is_gateway(object) || is_endpoint(object);
    updates
        .wait_until("no gateway and no endpoint", |objects| !objects.iter().any(belongs_to_gateway))
        .await;
}

/// The tasks of a control plane that gateways need, and the objects in the updates of its source.
struct GatewayUpdates {
    objects: BTreeMap<ObjectKey, Object>,
    update_receiver: mpsc::Receiver<RegistryUpdate>,
    _tasks: JoinSet<()>,
}

impl GatewayUpdates {
    async fn start(server: &ApiServerProcess) -> Self {
        let mut tasks = JoinSet::new();
        let options = SourceOptions { gateways: true, ..SourceOptions::default() };
        let source = KubernetesSource::new(server.admin_client().await, options);
        let (leader_sender, is_leader) = watch::channel(false);
        let name = "leno-control-a".to_owned();
        let identity = ElectionIdentity {
            namespace: NamespaceName::from_literal("leno-system"),
            name: name.clone(),
            sidecar_facts: watch::Sender::default().subscribe(),
        };
        tasks.spawn(hold_lease(
            server.admin_client().await,
            identity,
            leader_sender,
            watch::channel(false).1,
        ));
        let statuses = source.subscribe_statuses();
        tasks.spawn(reconcile_statuses(
            server.admin_client().await,
            name,
            statuses,
            is_leader.clone(),
            watch::Sender::default(),
        ));
        let domain = TrustDomain::new("cluster.local").unwrap();
        let settings = InjectionSettings::new(
            "leno:test".to_owned(),
            NamespaceName::from_literal("leno-system"),
            domain,
            String::new(),
        );
        let settings = watch::channel(settings).1;
        tasks.spawn(provision_gateways(
            server.admin_client().await,
            settings,
            source.subscribe_gateways(),
            is_leader,
        ));
        let (update_sender, update_receiver) = mpsc::channel(4);
        tasks.spawn(source.send_updates(update_sender));
        Self { objects: BTreeMap::new(), update_receiver, _tasks: tasks }
    }

    async fn wait_until(
        &mut self,
        condition_name: &str,
        is_satisfied: impl Fn(&[&Object]) -> bool,
    ) {
        while !is_satisfied(&self.objects.values().collect::<Vec<_>>()) {
            let update = timeout(MAX_WAIT, self.update_receiver.recv()).await;
            let Ok(Some(update)) = update else {
                panic!("{condition_name} never came: {:?}", self.objects.keys().collect::<Vec<_>>())
            };
            for change in update.changes {
                match change {
                    Change::Upsert(object) => {
                        drop(self.objects.insert(object.object_key(), object))
                    }
                    Change::Remove(key) => drop(self.objects.remove(&key)),
                }
            }
        }
    }

    async fn wait_for_gateway(
        &mut self,
        condition_name: &str,
        is_satisfied: impl Fn(&Gateway) -> bool,
    ) -> Gateway {
        let find = |objects: &[&Object]| {
            objects.iter().find_map(|object| match object {
                Object::Gateway(gateway) if is_satisfied(gateway) => Some(gateway.clone()),
                _ => None,
            })
        };
        self.wait_until(condition_name, |objects| find(objects).is_some()).await;
        find(&self.objects.values().collect::<Vec<_>>()).unwrap()
    }
}

fn is_gateway(object: &&Object) -> bool {
    matches!(object, Object::Gateway(_))
}

fn is_endpoint(object: &&Object) -> bool {
    matches!(object, Object::Workload(workload) if !workload.sidecar && workload.address.to_string() == "10.9.0.7")
}

/// Creates a service with manually listed endpoints.
async fn create_service_with_endpoints(server: &ApiServerProcess) {
    let service = json!({"spec": {"ports": [{"port": 80, "protocol": "TCP"}]}});
    server.apply_object("v1/Service", Some("shop"), "listed", service).await;
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "listed"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 3000, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.9.0.7"]}],
    });
    server.apply_object("discovery.k8s.io/v1/EndpointSlice", Some("shop"), "listed-1", slice).await;
}

fn gateway_spec(listeners: Value) -> Value {
    json!({"spec": {"gatewayClassName": "leno", "listeners": listeners}})
}

fn http_listener() -> Value {
    json!({"name": "http", "port": 80, "protocol": "HTTP"})
}

fn https_listener() -> Value {
    let tls = json!({"certificateRefs": [{"name": "cert"}]});
    json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls})
}

fn route_spec() -> Value {
    json!({"spec": {
        "parentRefs": [{"name": "edge"}],
        "rules": [{"backendRefs": [{"name": "listed", "port": 80}]}],
    }})
}

/// Returns a self-signed certificate and its key.
fn generate_certificate() -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let (chain, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
    let arguments =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=a.b";
    let mut openssl = Command::new("openssl");
    openssl.args(arguments.split(' ')).arg("-out").arg(&chain).arg("-keyout").arg(&key);
    let output = openssl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path| std::fs::read_to_string(path).unwrap();
    (read(chain), read(key))
}

/// Returns true if a condition of an object has this reason.
fn has_condition(object: &Value, condition: &str, reason: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let matches = |entry: &Value| entry["type"] == condition && entry["reason"] == reason;
    conditions.is_some_and(|conditions| conditions.iter().any(matches))
}

const GATEWAY_CLASS: &str = "gateway.networking.k8s.io/v1/GatewayClass";
const GATEWAY: &str = "gateway.networking.k8s.io/v1/Gateway";
const HTTP_ROUTE: &str = "gateway.networking.k8s.io/v1/HTTPRoute";
const RESOURCE_NAME: &str = "leno-gateway-edge";
const MAX_WAIT: Duration = Duration::from_secs(120);
