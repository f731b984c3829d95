//! RBAC objects of the control plane, with the least permissions.

use serde_json::{Value, json};

use super::{Options, cluster_metadata, kinds, metadata};
use crate::read::FOREIGN_CONFIGS;
use crate::webhook::{INJECTOR, WEBHOOK_SECRET};
use crate::words::{AUTHORITY_SECRET, CONTROL, ROOTS_CONFIG_MAP};

/// Returns the account, its permissions in the cluster, and those in its own namespace.
pub(super) fn objects(options: &Options) -> Vec<Value> {
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(CONTROL, options),
    });
    let everywhere = json!({
        "apiVersion": GROUP_VERSION,
        "kind": "ClusterRole",
        "metadata": cluster_metadata(CONTROL),
        "rules": everywhere(),
    });
    let here = json!({
        "apiVersion": GROUP_VERSION,
        "kind": "Role",
        "metadata": metadata(CONTROL, options),
        "rules": here(),
    });
    let subjects =
        json!([{"kind": "ServiceAccount", "name": CONTROL, "namespace": options.namespace}]);
    let binding = |kind: &str, role: &str, metadata: Value| {
        json!({
            "apiVersion": GROUP_VERSION,
            "kind": kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": GROUP, "kind": role, "name": CONTROL},
            "subjects": subjects,
        })
    };
    let gateways = json!({
        "apiVersion": GROUP_VERSION,
        "kind": "ClusterRole",
        "metadata": cluster_metadata(GATEWAYS),
        "rules": gateways(),
    });
    let mut of_gateways = binding("ClusterRoleBinding", "ClusterRole", cluster_metadata(GATEWAYS));
    of_gateways["roleRef"]["name"] = json!(GATEWAYS);
    let mut objects = vec![
        account,
        everywhere,
        binding("ClusterRoleBinding", "ClusterRole", cluster_metadata(CONTROL)),
    ];
    if options.gateways {
        objects.extend([gateways, of_gateways]);
    }
    objects.extend([here, binding("RoleBinding", "Role", metadata(CONTROL, options))]);
    for namespace in &options.access_certs {
        let mut metadata = cluster_metadata(ACCESS_CERTS);
        metadata["namespace"] = json!(namespace.as_str());
        let mut binding = binding("RoleBinding", "Role", metadata.clone());
        binding["roleRef"]["name"] = json!(ACCESS_CERTS);
        objects.push(json!({
            "apiVersion": GROUP_VERSION,
            "kind": "Role",
            "metadata": metadata,
            "rules": access_certs(),
        }));
        objects.push(binding);
    }
    objects
}

fn everywhere() -> Value {
    let own: Vec<String> = kinds::plurals().map(str::to_owned).collect();
    let own_status = statuses_of(&own);
    let policies_status = statuses_of(&POLICIES);
    let routes_status = statuses_of(&ROUTES);
    json!([
        read(&[""], &["pods", "services", "namespaces", "nodes"]),
        // For the endpoints of the API server and of Services without a selector.
        read(&["discovery.k8s.io"], &["endpointslices"]),
        read(&["apiextensions.k8s.io"], &["customresourcedefinitions"]),
        read(&["leno.dev"], &own),
        rule(&["leno.dev"], &own_status, &["patch"]),
        read(&["gateway.networking.k8s.io"], &[&ROUTES[..], &["referencegrants"]].concat()),
        rule(&["gateway.networking.k8s.io"], &routes_status, &["patch"]),
        read(&["access.smi-spec.io"], &["traffictargets"]),
        read(&["specs.smi-spec.io"], &["httproutegroups", "tcproutes"]),
        read(&["split.smi-spec.io"], &["trafficsplits"]),
        read(&[kinds::OSM, kinds::FSM], &POLICIES),
        rule(&[kinds::OSM, kinds::FSM], &policies_status, &["patch"]),
        read(&FOREIGN_CONFIGS.map(|kind| kind.group), &["meshconfigs"]),
        rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        named(
            rule(
                &["admissionregistration.k8s.io"],
                &["mutatingwebhookconfigurations"],
                &["get", "patch"],
            ),
            &[INJECTOR],
        ),
    ])
}

/// Returns the account of the Job that retracts statuses after `helm uninstall`, with its permissions. They
/// exist as long as the Job.
pub(super) fn retraction(options: &Options) -> Vec<Value> {
    let own: Vec<String> = kinds::plurals().map(str::to_owned).collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let edge = [&ROUTES[..], &["gatewayclasses", "gateways"]].concat();
    let kinds: [(&[&str], &[&str]); 3] = [
        (&["leno.dev"], &own),
        (&["gateway.networking.k8s.io"], &edge),
        (&[kinds::OSM, kinds::FSM], &POLICIES),
    ];
    let everywhere = kinds.map(|(groups, resources)| {
        let statuses = rule(groups, &statuses_of(resources), &["patch"]);
        [rule(groups, resources, &["get", "list"]), statuses]
    });
    let here = json!([
        rule(&[""], &["pods"], &["list"]),
        named(rule(&["coordination.k8s.io"], &["leases"], &["delete"]), &[CONTROL]),
    ]);
    let mut in_cluster = cluster_metadata(RETRACTION);
    in_cluster["labels"]["app.kubernetes.io/name"] = json!(RETRACTION);
    let mut in_namespace = metadata(RETRACTION, options);
    in_namespace["labels"] = in_cluster["labels"].clone();
    let role = |kind: &str, metadata: &Value, rules: Value| json!({"apiVersion": GROUP_VERSION, "kind": kind, "metadata": metadata, "rules": rules});
    let binding = |kind: &str, role: &str, metadata: &Value| {
        json!({
            "apiVersion": GROUP_VERSION,
            "kind": kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": GROUP, "kind": role, "name": RETRACTION},
            "subjects": [{"kind": "ServiceAccount", "name": RETRACTION, "namespace": options.namespace}],
        })
    };
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": in_namespace}),
        role("ClusterRole", &in_cluster, json!(everywhere.concat())),
        binding("ClusterRoleBinding", "ClusterRole", &in_cluster),
        role("Role", &in_namespace, here),
        binding("RoleBinding", "Role", &in_namespace),
    ]
}

fn statuses_of<T: AsRef<str>>(resources: &[T]) -> Vec<String> {
    resources.iter().map(|it| format!("{}/status", it.as_ref())).collect()
}

/// Returns the permissions for gateways. They are a separate role, created only if gateways are enabled,
/// because permission to create Deployments and to read Secrets in all namespaces amounts to cluster-admin. A
/// role cannot restrict Secrets by type. The control plane requests only Secrets of type `kubernetes.io/tls`,
/// and none while no gateway refers to any.
fn gateways() -> Value {
    let write = ["get", "create", "patch"];
    json!([
        read(&["gateway.networking.k8s.io"], &["gatewayclasses", "gateways", "backendtlspolicies"]),
        rule(
            &["gateway.networking.k8s.io"],
            &["gatewayclasses/status", "gateways/status"],
            &["patch"],
        ),
        rule(&[""], &["secrets"], &["list", "watch"]),
        rule(&["apps"], &["deployments"], &[&write[..], &["list", "watch"]].concat()),
        rule(&[""], &["services", "serviceaccounts"], &write),
        rule(&["policy"], &["poddisruptionbudgets"], &write),
    ])
}

/// Returns the permissions for Secrets of external principals, created only if they are enabled. A role cannot
/// restrict Secrets by owner. The control plane requests only Secrets that objects name, and lists none.
fn access_certs() -> Value {
    json!([rule(&[""], &["secrets"], &["get", "create", "update", "delete"])])
}

/// Returns the permissions in the control plane's namespace. The `create` verb cannot be restricted to a name.
fn here() -> Value {
    let followed = ["get", "list", "watch", "update"];
    json!([
        // Control planes discover each other by these.
        read(&["discovery.k8s.io"], &["endpointslices"]),
        rule(&[""], &["secrets"], &["create"]),
        named(rule(&[""], &["secrets"], &followed), &[AUTHORITY_SECRET]),
        named(rule(&[""], &["secrets"], &["get", "update"]), &[WEBHOOK_SECRET]),
        rule(&[""], &["configmaps"], &["create"]),
        named(rule(&[""], &["configmaps"], &["get", "patch"]), &[ROOTS_CONFIG_MAP]),
        rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        named(
            rule(&["coordination.k8s.io"], &["leases"], &["get", "list", "watch", "update"]),
            &[CONTROL]
        ),
    ])
}

fn read<T: AsRef<str>>(groups: &[&str], resources: &[T]) -> Value {
    rule(groups, resources, &["get", "list", "watch"])
}

fn rule<T: AsRef<str>>(groups: &[&str], resources: &[T], verbs: &[&str]) -> Value {
    let resources: Vec<&str> = resources.iter().map(AsRef::as_ref).collect();
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn named(mut rule: Value, names: &[&str]) -> Value {
    rule["resourceNames"] = json!(names);
    rule
}

/// The role for Secrets of external principals, one in each listed namespace.
pub(super) const ACCESS_CERTS: &str = "leno-access-certs";
/// The role for gateways.
pub(super) const GATEWAYS: &str = "leno-gateways";
/// The account, roles and Job that retract statuses after `helm uninstall`.
pub(super) const RETRACTION: &str = "leno-uninstall";
/// The Gateway API routes with a status.
const ROUTES: [&str; 4] = ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"];
/// The policies of OSM and FSM, each with a status.
const POLICIES: [&str; 7] = [
    "upstreamtrafficsettings",
    "ingressbackends",
    "accesscontrols",
    "egresses",
    "retries",
    "accesscerts",
    "trafficwarmups",
];
const GROUP: &str = "rbac.authorization.k8s.io";
const GROUP_VERSION: &str = "rbac.authorization.k8s.io/v1";
