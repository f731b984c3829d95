//! Builds the RBAC objects of the control plane, with the least permissions.

use serde_json::{Value, json};

use super::{InstallOptions, cluster_metadata, kinds, namespaced_metadata};
use crate::read::FOREIGN_CONFIG_KINDS;
use crate::webhook::{INJECTOR, WEBHOOK_SECRET};
use crate::well_known::{AUTHORITY_SECRET, CONTROL, ROOTS_CONFIG_MAP};

/// Returns the control plane's account, its permissions in the cluster, and its permissions in its own
/// namespace.
pub(super) fn access_objects(options: &InstallOptions) -> Vec<Value> {
    let service_account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": namespaced_metadata(CONTROL, options),
    });
    let cluster_role = json!({
        "apiVersion": RBAC_VERSION,
        "kind": "ClusterRole",
        "metadata": cluster_metadata(CONTROL),
        "rules": cluster_permissions(),
    });
    let role_in_namespace = json!({
        "apiVersion": RBAC_VERSION,
        "kind": "Role",
        "metadata": namespaced_metadata(CONTROL, options),
        "rules": namespace_permissions(),
    });
    let subjects =
        json!([{"kind": "ServiceAccount", "name": CONTROL, "namespace": options.namespace}]);
    let build_binding = |kind: &str, role: &str, metadata: Value| {
        json!({
            "apiVersion": RBAC_VERSION,
            "kind": kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": role, "name": CONTROL},
            "subjects": subjects,
        })
    };
    let gateway_role = json!({
        "apiVersion": RBAC_VERSION,
        "kind": "ClusterRole",
        "metadata": cluster_metadata(GATEWAYS_ROLE),
        "rules": gateway_permissions(),
    });
    let mut gateway_binding =
        build_binding("ClusterRoleBinding", "ClusterRole", cluster_metadata(GATEWAYS_ROLE));
    gateway_binding["roleRef"]["name"] = json!(GATEWAYS_ROLE);
    let mut objects = vec![
        service_account,
        cluster_role,
        build_binding("ClusterRoleBinding", "ClusterRole", cluster_metadata(CONTROL)),
    ];
    if options.gateways {
        objects.extend([gateway_role, gateway_binding]);
    }
    objects.extend([
        role_in_namespace,
        build_binding("RoleBinding", "Role", namespaced_metadata(CONTROL, options)),
    ]);
    for namespace in &options.access_certs {
        let mut metadata = cluster_metadata(ACCESS_CERTS_ROLE);
        metadata["namespace"] = json!(namespace.as_str());
        let mut binding = build_binding("RoleBinding", "Role", metadata.clone());
        binding["roleRef"]["name"] = json!(ACCESS_CERTS_ROLE);
        objects.push(json!({
            "apiVersion": RBAC_VERSION,
            "kind": "Role",
            "metadata": metadata,
            "rules": access_cert_permissions(),
        }));
        objects.push(binding);
    }
    objects
}

/// Returns the permissions in the whole cluster: to read the kinds of the mesh, to write their statuses and
/// events, to review tokens, and to maintain the webhook configuration.
fn cluster_permissions() -> Value {
    let own_resources: Vec<String> = kinds::plurals().map(str::to_owned).collect();
    let own_status = status_subresources(&own_resources);
    let policies_status = status_subresources(&POLICY_RESOURCES);
    let routes_status = status_subresources(&ROUTE_RESOURCES);
    json!([
        read_rule(&[""], &["pods", "services", "namespaces", "nodes"]),
        // For the endpoints of the API server and of Services without a selector.
        read_rule(&["discovery.k8s.io"], &["endpointslices"]),
        read_rule(&["apiextensions.k8s.io"], &["customresourcedefinitions"]),
        read_rule(&["leno.dev"], &own_resources),
        policy_rule(&["leno.dev"], &own_status, &["patch"]),
        read_rule(
            &["gateway.networking.k8s.io"],
            &[&ROUTE_RESOURCES[..], &["referencegrants"]].concat()
        ),
        policy_rule(&["gateway.networking.k8s.io"], &routes_status, &["patch"]),
        read_rule(&["access.smi-spec.io"], &["traffictargets"]),
        read_rule(&["specs.smi-spec.io"], &["httproutegroups", "tcproutes"]),
        read_rule(&["split.smi-spec.io"], &["trafficsplits"]),
        read_rule(&[kinds::OSM_GROUP, kinds::FSM_GROUP], &POLICY_RESOURCES),
        policy_rule(&[kinds::OSM_GROUP, kinds::FSM_GROUP], &policies_status, &["patch"]),
        read_rule(&FOREIGN_CONFIG_KINDS.map(|kind| kind.group), &["meshconfigs"]),
        policy_rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
        policy_rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        restrict_to_names(
            policy_rule(
                &["admissionregistration.k8s.io"],
                &["mutatingwebhookconfigurations"],
                &["get", "patch"],
            ),
            &[INJECTOR],
        ),
    ])
}

/// Returns the account of the Job that retracts statuses after `helm uninstall`, with its permissions. Helm
/// deletes them together with the Job.
pub(super) fn retraction_objects(options: &InstallOptions) -> Vec<Value> {
    let own_resources: Vec<&str> = kinds::plurals().collect();
    let gateway_resources = [&ROUTE_RESOURCES[..], &["gatewayclasses", "gateways"]].concat();
    let resources_with_status: [(&[&str], &[&str]); 3] = [
        (&["leno.dev"], &own_resources),
        (&["gateway.networking.k8s.io"], &gateway_resources),
        (&[kinds::OSM_GROUP, kinds::FSM_GROUP], &POLICY_RESOURCES),
    ];
    let cluster_rules = resources_with_status.map(|(groups, resources)| {
        let statuses = policy_rule(groups, &status_subresources(resources), &["patch"]);
        [policy_rule(groups, resources, &["get", "list"]), statuses]
    });
    let namespace_rules = json!([
        policy_rule(&[""], &["pods"], &["list"]),
        restrict_to_names(
            policy_rule(&["coordination.k8s.io"], &["leases"], &["delete"]),
            &[CONTROL]
        ),
    ]);
    let mut cluster_object_metadata = cluster_metadata(RETRACTION);
    cluster_object_metadata["labels"]["app.kubernetes.io/name"] = json!(RETRACTION);
    let mut namespaced_object_metadata = namespaced_metadata(RETRACTION, options);
    namespaced_object_metadata["labels"] = cluster_object_metadata["labels"].clone();
    let role = |kind: &str, metadata: &Value, rules: Value| json!({"apiVersion": RBAC_VERSION, "kind": kind, "metadata": metadata, "rules": rules});
    let binding = |kind: &str, role: &str, metadata: &Value| {
        json!({
            "apiVersion": RBAC_VERSION,
            "kind": kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": role, "name": RETRACTION},
            "subjects": [{"kind": "ServiceAccount", "name": RETRACTION, "namespace": options.namespace}],
        })
    };
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced_object_metadata}),
        role("ClusterRole", &cluster_object_metadata, json!(cluster_rules.concat())),
        binding("ClusterRoleBinding", "ClusterRole", &cluster_object_metadata),
        role("Role", &namespaced_object_metadata, namespace_rules),
        binding("RoleBinding", "Role", &namespaced_object_metadata),
    ]
}

fn status_subresources<T: AsRef<str>>(resources: &[T]) -> Vec<String> {
    resources.iter().map(|resource| format!("{}/status", resource.as_ref())).collect()
}

/// Returns the permissions for gateways. They are a separate role, created only if gateways are enabled,
/// because permission to create Deployments and to read Secrets in all namespaces amounts to cluster-admin. A
/// role cannot restrict Secrets by type. The control plane requests only Secrets of type `kubernetes.io/tls`,
/// and none while no gateway refers to any.
fn gateway_permissions() -> Value {
    let write_verbs = ["get", "create", "patch"];
    json!([
        read_rule(
            &["gateway.networking.k8s.io"],
            &["gatewayclasses", "gateways", "backendtlspolicies"]
        ),
        policy_rule(
            &["gateway.networking.k8s.io"],
            &["gatewayclasses/status", "gateways/status"],
            &["patch"],
        ),
        policy_rule(&[""], &["secrets"], &["list", "watch"]),
        policy_rule(&["apps"], &["deployments"], &[&write_verbs[..], &["list", "watch"]].concat()),
        policy_rule(&[""], &["services", "serviceaccounts"], &write_verbs),
        policy_rule(&["policy"], &["poddisruptionbudgets"], &write_verbs),
    ])
}

/// Returns the permissions for Secrets of external principals, created only if they are enabled. A role cannot
/// restrict Secrets by owner. The control plane requests only Secrets that objects name, and lists none.
fn access_cert_permissions() -> Value {
    json!([policy_rule(&[""], &["secrets"], &["get", "create", "update", "delete"])])
}

/// Returns the permissions in the control plane's namespace. The `create` verb cannot be restricted to a name.
fn namespace_permissions() -> Value {
    let read_and_update_verbs = ["get", "list", "watch", "update"];
    json!([
        // Control planes discover each other by the EndpointSlices of their Service.
        read_rule(&["discovery.k8s.io"], &["endpointslices"]),
        policy_rule(&[""], &["secrets"], &["create"]),
        restrict_to_names(
            policy_rule(&[""], &["secrets"], &read_and_update_verbs),
            &[AUTHORITY_SECRET]
        ),
        restrict_to_names(policy_rule(&[""], &["secrets"], &["get", "update"]), &[WEBHOOK_SECRET]),
        policy_rule(&[""], &["configmaps"], &["create"]),
        restrict_to_names(
            policy_rule(&[""], &["configmaps"], &["get", "patch"]),
            &[ROOTS_CONFIG_MAP]
        ),
        policy_rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        restrict_to_names(
            policy_rule(&["coordination.k8s.io"], &["leases"], &["get", "list", "watch", "update"]),
            &[CONTROL]
        ),
    ])
}

/// Returns an RBAC rule with the permissions to read and watch resources.
fn read_rule<T: AsRef<str>>(groups: &[&str], resources: &[T]) -> Value {
    policy_rule(groups, resources, &["get", "list", "watch"])
}

/// Returns an RBAC rule with the permissions to use these verbs on resources.
fn policy_rule<T: AsRef<str>>(groups: &[&str], resources: &[T], verbs: &[&str]) -> Value {
    let resources: Vec<&str> = resources.iter().map(AsRef::as_ref).collect();
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn restrict_to_names(mut rule: Value, names: &[&str]) -> Value {
    rule["resourceNames"] = json!(names);
    rule
}

/// The role for Secrets of external principals, one in each listed namespace.
pub(super) const ACCESS_CERTS_ROLE: &str = "leno-access-certs";
/// The role for gateways.
pub(super) const GATEWAYS_ROLE: &str = "leno-gateways";
/// The account, roles and Job that retract statuses after `helm uninstall`.
pub(super) const RETRACTION: &str = "leno-uninstall";
/// The Gateway API routes with a status.
const ROUTE_RESOURCES: [&str; 4] = ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"];
/// The policies of OSM and FSM, each with a status.
const POLICY_RESOURCES: [&str; 7] = [
    "upstreamtrafficsettings",
    "ingressbackends",
    "accesscontrols",
    "egresses",
    "retries",
    "accesscerts",
    "trafficwarmups",
];
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";
