//! What the control plane may ask of the API server, and nothing else.

use serde_json::{Value, json};

use super::{Options, cluster_metadata, kinds, metadata};
use crate::read::FOREIGN_CONFIGS;
use crate::webhook::{INJECTOR, WEBHOOK_SECRET};
use crate::words::{AUTHORITY_SECRET, CONTROL, ROOTS_CONFIG_MAP};

/// The account, what it may everywhere, and what it may in its own namespace.
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
    let own_status: Vec<String> = own.iter().map(|it| format!("{it}/status")).collect();
    let routes = ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"];
    let policies = [
        "upstreamtrafficsettings",
        "ingressbackends",
        "accesscontrols",
        "egresses",
        "retries",
        "accesscerts",
        "trafficwarmups",
    ];
    let policies_status = policies.map(|it| format!("{it}/status"));
    let routes_status = routes.map(|it| format!("{it}/status"));
    json!([
        read(&[""], &["pods", "services", "namespaces", "nodes"]),
        read(&["apiextensions.k8s.io"], &["customresourcedefinitions"]),
        read(&["leno.dev"], &own),
        rule(&["leno.dev"], &own_status, &["patch"]),
        read(&["gateway.networking.k8s.io"], &[&routes[..], &["referencegrants"]].concat()),
        rule(&["gateway.networking.k8s.io"], &routes_status, &["patch"]),
        read(&["access.smi-spec.io"], &["traffictargets"]),
        read(&["specs.smi-spec.io"], &["httproutegroups", "tcproutes"]),
        read(&["split.smi-spec.io"], &["trafficsplits"]),
        read(&[kinds::OSM, kinds::FSM], &policies),
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

/// What only gateways need, apart from the rest, and only where somebody wants gateways: whoever may
/// create Deployments everywhere and read all secrets may everything in the end. A role cannot say of
/// which type a secret is; those of the type `kubernetes.io/tls` are asked for, and none while no
/// gateway refers to any.
fn gateways() -> Value {
    let write = ["get", "create", "patch"];
    json!([
        read(&["gateway.networking.k8s.io"], &["gatewayclasses", "gateways", "backendtlspolicies"]),
        rule(
            &["gateway.networking.k8s.io"],
            &["gatewayclasses/status", "gateways/status"],
            &["patch"],
        ),
        read(&["discovery.k8s.io"], &["endpointslices"]),
        rule(&[""], &["secrets"], &["list", "watch"]),
        rule(&["apps"], &["deployments"], &[&write[..], &["list", "watch"]].concat()),
        rule(&[""], &["services", "serviceaccounts"], &write),
        rule(&["policy"], &["poddisruptionbudgets"], &write),
    ])
}

/// What the Secrets of clients outside the mesh need, where somebody wants them. Whose they are a role cannot
/// say: the control plane asks for those alone that objects name, and lists none.
fn access_certs() -> Value {
    json!([rule(&[""], &["secrets"], &["get", "create", "update", "delete"])])
}

/// What has no name yet cannot be restricted to one.
fn here() -> Value {
    let followed = ["get", "list", "watch", "update"];
    json!([
        // By which control planes find each other.
        read(&["discovery.k8s.io"], &["endpointslices"]),
        rule(&[""], &["secrets"], &["create"]),
        named(rule(&[""], &["secrets"], &followed), &[AUTHORITY_SECRET]),
        named(rule(&[""], &["secrets"], &["get", "update"]), &[WEBHOOK_SECRET]),
        rule(&[""], &["configmaps"], &["create"]),
        named(rule(&[""], &["configmaps"], &["get", "patch"]), &[ROOTS_CONFIG_MAP]),
        rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        named(rule(&["coordination.k8s.io"], &["leases"], &["get", "update"]), &[CONTROL]),
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

/// The roles, one in each namespace that is listed, for Secrets of clients outside the mesh.
pub(super) const ACCESS_CERTS: &str = "leno-access-certs";
/// The role for what only gateways need.
pub(super) const GATEWAYS: &str = "leno-gateways";
const GROUP: &str = "rbac.authorization.k8s.io";
const GROUP_VERSION: &str = "rbac.authorization.k8s.io/v1";
