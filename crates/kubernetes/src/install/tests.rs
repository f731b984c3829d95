//! Tests of the installation as a whole.

use std::collections::BTreeSet;
use std::path::Path;

use leno_model::KIND_DEFINITIONS;

use super::*;

fn test_options() -> InstallOptions {
    InstallOptions::new("leno:test".to_owned(), TrustDomain::new("cluster.local").unwrap())
}

fn manifest_of_kind(kind: &str) -> Value {
    let mut manifests = installation_manifests(&test_options()).into_iter();
    manifests.find(|manifest| manifest["kind"] == kind).unwrap()
}

fn object_names(manifests: &[Value]) -> Vec<String> {
    let describe_manifest = |manifest: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        format!("{} {}", text(&manifest["kind"]), text(&manifest["metadata"]["name"]))
    };
    manifests.iter().map(describe_manifest).collect()
}

#[test]
fn the_installed_objects_match_the_golden_file() {
    let manifests = installation_manifests(&InstallOptions { gateways: true, ..test_options() });
    let objects: Vec<&Value> = manifests
        .iter()
        .filter(|manifest| manifest["kind"] != "CustomResourceDefinition")
        .collect();
    let text = format!("{:#}\n", json!(objects));
    expect_test::expect_file!["golden/objects.json"].assert_eq(&text);
}

/// Otherwise objects would keep the statuses of a mesh that is uninstalled.
#[test]
fn the_hook_of_the_chart_may_remove_the_status_of_each_kind() {
    let hook = uninstall_hook(&test_options());
    let role = hook.iter().find(|manifest| manifest["kind"] == "ClusterRole").unwrap();
    let manifests = installation_manifests(&test_options());
    let is_control_role = |manifest: &&Value| {
        manifest["kind"] == "ClusterRole" && manifest["metadata"]["name"] != "leno-cni"
    };
    let control_roles: Vec<&Value> = manifests.iter().filter(is_control_role).collect();
    let permits = |role: &Value, group: &str, resource: &str, verb: &str| {
        let contains = |rule: &Value, key: &str, value: &str| {
            rule[key].as_array().unwrap().iter().any(|key| key == value)
        };
        role["rules"].as_array().unwrap().iter().any(|rule| {
            contains(rule, "apiGroups", group)
                && contains(rule, "resources", resource)
                && contains(rule, "verbs", verb)
        })
    };
    let mut status_count = 0;
    for rule in control_roles.iter().flat_map(|role| role["rules"].as_array().unwrap()) {
        for resource in rule["resources"].as_array().unwrap() {
            let Some(kind) = resource.as_str().unwrap().strip_suffix("/status") else { continue };
            for group in rule["apiGroups"].as_array().unwrap() {
                let group = group.as_str().unwrap();
                status_count += 1;
                for verb in ["get", "list"] {
                    assert!(permits(role, group, kind, verb), "{verb} {kind}.{group}");
                }
                assert!(permits(role, group, &format!("{kind}/status"), "patch"), "{kind}.{group}");
            }
        }
    }
    assert!(status_count > 20, "{status_count}");
    // With another name than the control plane, no Service selects the pod, and the hook does not wait for itself.
    let job = hook.last().unwrap();
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"],
        "leno-uninstall"
    );
    for object in &hook {
        assert_eq!(object["metadata"]["annotations"]["helm.sh/hook"], "post-delete");
    }
}

#[test]
fn the_schemas_match_the_golden_file() {
    let manifests = installation_manifests(&test_options());
    let schemas: Map<String, Value> = manifests
        .iter()
        .filter(|manifest| manifest["kind"] == "CustomResourceDefinition")
        .map(|manifest| {
            let spec = &manifest["spec"];
            let schema = &spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            (spec["names"]["kind"].as_str().unwrap().to_owned(), schema.clone())
        })
        .collect();
    let text = format!("{:#}\n", Value::Object(schemas));
    expect_test::expect_file!["golden/schemas.json"].assert_eq(&text);
}

#[test]
fn the_schemas_for_editors_match_the_definitions() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/schemas");
    let mut expected_files = BTreeSet::new();
    for (path, schema) in KIND_DEFINITIONS.iter().flat_map(manifest_schemas) {
        let file = directory.join(&path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        expect_test::expect_file![&file].assert_eq(&format!("{schema:#}\n"));
        expected_files.insert(path);
    }
    for group in std::fs::read_dir(&directory).unwrap().map(Result::unwrap) {
        for file in std::fs::read_dir(group.path()).unwrap().map(Result::unwrap) {
            let path = file.path().strip_prefix(&directory).unwrap().to_str().unwrap().to_owned();
            assert!(expected_files.contains(&path), "{path} belongs to no kind");
        }
    }
}

/// An empty list of an AccessPolicy is ambiguous between no match and any match: the registry rejects it in a
/// file, and the API server does so in a cluster.
#[test]
fn the_schema_and_the_registry_reject_the_same_empty_lists() {
    let policy = |spec: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {{name: a}}\nspec: {spec}\n"
        )
    };
    let rejects = |spec: &str| !leno_registry::read_str("a.yaml", &policy(spec)).1.is_empty();
    assert!(!rejects("{deny: [{}]}"));
    let definitions = kinds::kind_definitions();
    let is_access_policy =
        |definition: &&Value| definition["spec"]["names"]["kind"] == "AccessPolicy";
    let definition = definitions.iter().find(is_access_policy).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &schema["properties"]["spec"];
    let rule = &spec["properties"]["deny"]["items"]["properties"];
    let request = &rule["requests"]["items"]["properties"];
    for (text, schema) in [
        ("{deny: []}", &spec["properties"]["deny"]),
        ("{allow: []}", &spec["properties"]["allow"]),
        ("{serviceAccounts: [], deny: [{}]}", &spec["properties"]["serviceAccounts"]),
        ("{deny: [{from: []}]}", &rule["from"]),
        ("{deny: [{requests: []}]}", &rule["requests"]),
        ("{deny: [{ports: []}]}", &rule["ports"]),
        ("{deny: [{claims: {}}]}", &rule["claims"]),
        ("{deny: [{claims: {a: []}}]}", &rule["claims"]["additionalProperties"]),
        ("{deny: [{requests: [{methods: []}]}]}", &request["methods"]),
        ("{deny: [{requests: [{headers: []}]}]}", &request["headers"]),
    ] {
        assert!(rejects(text), "{text}");
        let bounds = [&schema["minItems"], &schema["minProperties"]];
        assert!(bounds.iter().any(|bound| **bound == 1), "{text}: {schema}");
    }
}

#[test]
fn schemas_are_structural_and_have_bounds() {
    fn visit(path: &str, schema: &Value) {
        let is_free_form = schema["x-kubernetes-preserve-unknown-fields"] == true;
        assert!(schema["type"].is_string() || is_free_form, "{path} has no type");
        // API servers keep bounds as 64-bit floating-point numbers, and compare integers with them.
        for bound in ["minimum", "maximum"].iter().filter_map(|bound| schema[bound].as_f64()) {
            assert!(bound.abs() <= 2_f64.powi(53), "{path} has a bound that is not exact: {bound}");
        }
        match schema["type"].as_str() {
            Some("string") => {
                let has_bound = schema["maxLength"].is_u64()
                    || schema["enum"].is_array()
                    || schema["format"].is_string();
                assert!(has_bound, "{path} has no bound");
            }
            Some("array") => {
                assert!(schema["maxItems"].is_u64(), "{path} has no bound");
                visit(&format!("{path}[]"), &schema["items"]);
            }
            _ => {}
        }
        // The fields that a rule uses must be typed: otherwise the API server rejects the kind.
        let fields = schema["properties"].as_object().into_iter().flatten();
        let typed: BTreeSet<&str> = fields
            .clone()
            .filter(|(_, field)| field["type"].is_string())
            .map(|(name, _)| name.as_str())
            .collect();
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let rule = rule["rule"].as_str().unwrap();
            for field in rule.split("self.").skip(1) {
                let end = field.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(field.len());
                assert!(typed.contains(&field[..end]), "{path}: {rule}");
            }
        }
        for (name, field) in fields {
            visit(&format!("{path}.{name}"), field);
        }
        if schema["additionalProperties"].is_object() {
            assert!(schema["maxProperties"].is_u64(), "{path} has no bound");
            visit(&format!("{path}.*"), &schema["additionalProperties"]);
        }
    }
    for definition in kinds::kind_definitions() {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        visit(definition["spec"]["names"]["kind"].as_str().unwrap(), &schema["properties"]["spec"]);
        visit("status", &schema["properties"]["status"]);
    }
}

#[test]
fn the_control_plane_satisfies_the_restricted_profile() {
    let pod = manifest_of_kind("Deployment")["spec"]["template"]["spec"].clone();
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for container in pod["containers"].as_array().unwrap() {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    }
}

#[test]
fn secrets_are_read_in_other_namespaces_only_for_gateways() {
    let cluster_rules = manifest_of_kind("ClusterRole")["rules"].to_string();
    assert!(!cluster_rules.contains("secrets") && !cluster_rules.contains('*'), "{cluster_rules}");
    let default = json!(installation_manifests(&test_options())).to_string();
    for only_for_gateways in ["leno-gateways", "GatewayClass", "\"--gateways\""] {
        assert!(!default.contains(only_for_gateways), "{only_for_gateways}");
    }
    let roles = installation_manifests(&InstallOptions { gateways: true, ..test_options() });
    let roles = roles.iter().filter(|manifest| manifest["kind"] == "ClusterRole");
    for role in roles {
        let rules = role["rules"].as_array().unwrap();
        let secret_rules: Vec<&Value> = rules
            .iter()
            .filter(|rule| rule["resources"].as_array().unwrap().contains(&json!("secrets")))
            .collect();
        // The Secrets of gateways: the control plane lists them by type, so their names cannot be in the rule.
        let expected = role["metadata"]["name"] == "leno-gateways";
        assert_eq!(secret_rules.len(), usize::from(expected), "{role}");
        assert!(
            secret_rules.iter().all(|rule| rule["verbs"] == json!(["list", "watch"])),
            "{role}"
        );
    }
    for rule in manifest_of_kind("Role")["rules"].as_array().unwrap() {
        let creates = rule["verbs"] == json!(["create"]);
        let is_public = rule["resources"] == json!(["endpointslices"]);
        assert!(is_public || creates || rule["resourceNames"].is_array(), "{rule}");
    }
}

#[test]
fn secrets_are_written_only_in_configured_namespaces() {
    let default = json!(installation_manifests(&test_options())).to_string();
    assert!(!default.contains("leno-access-certs") && !default.contains("--access-certs"));
    let access_certs = ["ingress", "shop"].map(|name| Name::new(name).unwrap()).into();
    let manifests = installation_manifests(&InstallOptions { access_certs, ..test_options() });
    let created: Vec<&Value> = manifests
        .iter()
        .filter(|manifest| manifest["metadata"]["name"] == "leno-access-certs")
        .collect();
    let described: Vec<String> = created
        .iter()
        .map(|manifest| {
            format!("{} {}", manifest["kind"], manifest["metadata"]["namespace"]).replace('"', "")
        })
        .collect();
    assert_eq!(described, ["Role ingress", "RoleBinding ingress", "Role shop", "RoleBinding shop"]);
    let verbs = json!(["get", "create", "update", "delete"]);
    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs});
    assert_eq!(created[0]["rules"], json!([rule]));
    assert_eq!(created[1]["subjects"][0]["namespace"], "leno-system");
    assert_eq!(created[1]["roleRef"]["name"], "leno-access-certs");
    let args = manifests.iter().find(|manifest| manifest["kind"] == "Deployment").unwrap();
    let args = args["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!("--access-certs=ingress,shop")), "{args:?}");
    for role in manifests.iter().filter(|manifest| manifest["kind"] == "ClusterRole") {
        assert!(!role["rules"].to_string().contains("secrets"), "{role}");
    }
}

/// Returns true if labels match a selector, as the API server evaluates it.
fn matches_selector(selector: &Value, labels: &[(&str, &str)]) -> bool {
    selector["matchExpressions"].as_array().unwrap().iter().all(|expression| {
        let value_of_label =
            labels.iter().find(|(key, _)| expression["key"] == *key).map(|(_, value)| *value);
        let is_listed = value_of_label.is_some_and(|value| {
            expression["values"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|listed_value| listed_value == value)
        });
        match expression["operator"].as_str().unwrap() {
            "Exists" => value_of_label.is_some(),
            "DoesNotExist" => value_of_label.is_none(),
            "NotIn" => !is_listed,
            other => panic!("{other}"),
        }
    })
}

#[test]
fn rules_are_validated_once_and_only_in_namespaces_of_the_mesh() {
    let bindings: Vec<Value> = validation_rules::policy_objects()
        .into_iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding")
        .collect();
    let policies_for = |labels: &[(&str, &str)]| -> Vec<String> {
        let selector =
            |binding: &Value| binding["spec"]["matchResources"]["namespaceSelector"].clone();
        let matching =
            bindings.iter().filter(|binding| matches_selector(&selector(binding), labels));
        matching.map(|binding| binding["spec"]["policyName"].as_str().unwrap().to_owned()).collect()
    };
    let leno = ("leno.dev/injection", "enabled");
    let (osm, fsm) = (("openservicemesh.io/monitored-by", "a"), ("flomesh.io/monitored-by", "b"));
    let all_policies = ["leno-rejects", "leno-warns"];
    for labels in [&[leno][..], &[osm], &[fsm], &[leno, osm], &[osm, fsm], &[leno, osm, fsm]] {
        assert_eq!(policies_for(labels), all_policies, "{labels:?}");
    }
    assert_eq!(policies_for(&[("app", "web")]), [""; 0]);
    let removed = object_names(&objects_to_remove(&test_options(), RemovalExtent::Components));
    for binding in object_names(&bindings) {
        assert!(removed.contains(&binding), "{binding}");
    }
}

#[test]
fn the_webhook_is_called_only_for_pods_with_injection() {
    let webhooks = manifest_of_kind("MutatingWebhookConfiguration")["webhooks"].clone();
    let called_webhooks = |namespace: &[(&str, &str)], pod: &[(&str, &str)]| -> Vec<String> {
        let webhooks = webhooks.as_array().unwrap().iter();
        webhooks
            .filter(|webhook| {
                matches_selector(&webhook["namespaceSelector"], namespace)
                    && matches_selector(&webhook["objectSelector"], pod)
            })
            .map(|webhook| webhook["name"].as_str().unwrap().split('.').next().unwrap().to_owned())
            .collect()
    };
    let enabled = ("leno.dev/injection", "enabled");
    let disabled = ("leno.dev/injection", "disabled");
    let osm = ("openservicemesh.io/monitored-by", "osm");
    let none: [&str; 0] = [];
    assert_eq!(called_webhooks(&[], &[]), none);
    assert_eq!(called_webhooks(&[enabled], &[]), ["namespace"]);
    assert_eq!(called_webhooks(&[enabled], &[enabled]), ["namespace"]);
    assert_eq!(called_webhooks(&[enabled], &[disabled]), none);
    assert_eq!(called_webhooks(&[disabled], &[]), none);
    assert_eq!(called_webhooks(&[disabled], &[enabled]), ["pod"]);
    assert_eq!(called_webhooks(&[], &[enabled]), ["pod"]);
    assert_eq!(called_webhooks(&[osm], &[]), ["osm"]);
    assert_eq!(called_webhooks(&[osm], &[enabled]), ["pod"]);
    assert_eq!(called_webhooks(&[osm, enabled], &[]), ["namespace"]);
    assert_eq!(called_webhooks(&[osm, ("openservicemesh.io/ignore", "true")], &[]), none);
    assert_eq!(
        called_webhooks(&[enabled, ("kubernetes.io/metadata.name", "kube-system")], &[enabled]),
        none
    );
    assert_eq!(
        called_webhooks(&[enabled, ("kubernetes.io/metadata.name", "leno-system")], &[enabled]),
        none
    );
    // A pod with a misspelled value reaches the webhook, which rejects it.
    assert!(!called_webhooks(&[("leno.dev/injection", "on")], &[]).is_empty());
}

#[test]
fn the_webhook_is_removed_first_and_kinds_only_with_everything() {
    let components = object_names(&objects_to_remove(&test_options(), RemovalExtent::Components));
    assert_eq!(components[0], "MutatingWebhookConfiguration sidecar-injector.leno.dev");
    assert_eq!(components[1], "Deployment leno-control");
    assert!(components.contains(&"ConfigMap leno-roots".to_owned()));
    let kept = ["CustomResourceDefinition", "Namespace", "Secret leno-authority"];
    assert!(!components.iter().any(|name| kept.iter().any(|kept| name.starts_with(kept))));
    let everything = object_names(&objects_to_remove(&test_options(), RemovalExtent::Everything));
    assert!(everything.contains(&"Secret leno-authority".to_owned()));
    let obsolete_kind = "CustomResourceDefinition workloads.leno.dev".to_owned();
    assert!(everything.contains(&obsolete_kind) && !components.contains(&obsolete_kind));
    assert_eq!(everything.last().unwrap(), "Namespace leno-system");
}

#[test]
fn options_change_the_manifests() {
    let trust_domain = TrustDomain::new("example.org").unwrap();
    let options = InstallOptions {
        namespace: "mesh".to_owned(),
        replicas: 1,
        trust_domain,
        with_smi: true,
        ..test_options()
    };
    let manifests = installation_manifests(&options);
    let names = object_names(&manifests);
    assert!(
        names.contains(&"CustomResourceDefinition traffictargets.access.smi-spec.io".to_owned())
    );
    let position = |name: &str| names.iter().position(|path| path == name).unwrap();
    assert!(position("MeshConfig mesh") < position("Deployment leno-control"));
    assert!(!names.contains(&"PodDisruptionBudget leno-control".to_owned()));
    let text = json!(manifests).to_string();
    assert!(!text.contains("leno-system"), "{text}");
}

#[test]
fn updates_without_a_change_of_the_spec_are_not_rejected() {
    let objects = validation_rules::policy_objects();
    let policies =
        objects.iter().filter(|manifest| manifest["kind"] == "ValidatingAdmissionPolicy");
    let expressions = policies.flat_map(|policy| policy["spec"]["validations"].as_array().unwrap());
    let unchanged = "(oldObject != null && has(object.spec) && has(oldObject.spec) && \
                     object.spec == oldObject.spec)";
    for expression in expressions.map(|validation| validation["expression"].as_str().unwrap()) {
        assert!(expression.contains(unchanged), "{expression}");
    }
}

#[test]
fn every_name_can_be_part_of_an_api_path() {
    use crate::api::{NamespaceName, ObjectName};

    let options = InstallOptions {
        with_smi: true,
        cni: Some(NodeNetwork::default()),
        gateways: true,
        webhook_client_ca: Some("PEM".to_owned()),
        ..test_options()
    };
    for manifest in installation_manifests(&options)
        .iter()
        .chain(&objects_to_remove(&options, RemovalExtent::Everything))
    {
        let metadata = &manifest["metadata"];
        assert!(ObjectName::new(metadata["name"].as_str().unwrap()).is_ok(), "{metadata}");
        let namespace = metadata["namespace"].as_str();
        assert!(namespace.is_none_or(|text| NamespaceName::new(text).is_ok()), "{metadata}");
    }
}

#[test]
fn the_network_policy_permits_only_expected_clients() {
    let ingress_rules = |options: &InstallOptions| {
        let manifests = installation_manifests(options);
        let policy = manifests.iter().find(|manifest| manifest["kind"] == "NetworkPolicy")?;
        assert_eq!(policy["metadata"]["namespace"], "leno-system");
        let spec = &policy["spec"];
        assert_eq!(
            spec["podSelector"]["matchLabels"],
            json!({"app.kubernetes.io/name": "leno-control"})
        );
        assert_eq!(spec["policyTypes"], json!(["Ingress"]));
        // The policy is created before the pods that it protects.
        let position = |kind: &str| manifests.iter().position(|manifest| manifest["kind"] == kind);
        assert!(position("NetworkPolicy") < position("Deployment"));
        Some(spec["ingress"].clone())
    };
    let default_rules = ingress_rules(&test_options()).unwrap();
    let ports: Vec<&Value> =
        default_rules.as_array().unwrap().iter().map(|rule| &rule["ports"][0]["port"]).collect();
    // The policy permits exactly the ports of the Deployment.
    let container =
        manifest_of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0].clone();
    let mut container_ports: Vec<&Value> =
        container["ports"].as_array().unwrap().iter().map(|port| &port["containerPort"]).collect();
    container_ports.sort_by_key(|port| port.as_u64());
    let mut permitted_ports = ports.clone();
    permitted_ports.sort_by_key(|port| port.as_u64());
    assert_eq!(permitted_ports, container_ports);
    let peers_of_port = |rules: &Value, port: u16| {
        let rule = rules.as_array().unwrap().iter().find(|rule| rule["ports"][0]["port"] == port);
        rule.unwrap()["from"].clone()
    };
    assert_eq!(peers_of_port(&default_rules, 15_017), Value::Null, "an API server has any address");
    let mesh_selector =
        json!({"matchExpressions": [{"key": "leno.dev/meshed", "operator": "Exists"}]});
    assert_eq!(
        peers_of_port(&default_rules, 15_010)[0],
        json!({"namespaceSelector": {}, "podSelector": mesh_selector})
    );
    assert_eq!(
        peers_of_port(&default_rules, 15_010)[1],
        json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "leno-control"}}})
    );
    assert_eq!(peers_of_port(&default_rules, 15_020), json!([{"namespaceSelector": {}}]));
    let api_server =
        ["10.0.0.0/28", "192.0.2.1", "2001:db8::1"].map(|range| range.parse().unwrap()).into();
    let restricted_rules = ingress_rules(&InstallOptions { api_server, ..test_options() }).unwrap();
    let ip_block = |cidr: &str| json!({"ipBlock": {"cidr": cidr}});
    let expected =
        json!([ip_block("10.0.0.0/28"), ip_block("192.0.2.1/32"), ip_block("2001:db8::1/128")]);
    assert_eq!(peers_of_port(&restricted_rules, 15_017), expected);
    assert!(ingress_rules(&InstallOptions { network_policies: false, ..test_options() }).is_none());
}

#[test]
fn clients_of_the_webhook_are_verified_if_their_ca_is_configured() {
    let default = json!(installation_manifests(&test_options())).to_string();
    assert!(!default.contains("webhook-client"), "{default}");
    let webhook_client_ca = Some("PEM".to_owned());
    let manifests = installation_manifests(&InstallOptions { webhook_client_ca, ..test_options() });
    let config_map = manifests
        .iter()
        .find(|manifest| manifest["metadata"]["name"] == "leno-webhook-clients")
        .unwrap();
    assert_eq!(config_map["data"], json!({"ca.pem": "PEM"}));
    let pod = manifests.iter().find(|manifest| manifest["kind"] == "Deployment").unwrap();
    let pod = &pod["spec"]["template"]["spec"];
    let args = pod["containers"][0]["args"].as_array().unwrap();
    let expected = json!("--webhook-client-ca=/etc/leno/webhook-clients/ca.pem");
    assert!(args.contains(&expected), "{args:?}");
    let mounts = pod["containers"][0]["volumeMounts"].to_string();
    assert!(mounts.contains("\"/etc/leno/webhook-clients\""), "{mounts}");
    assert!(pod["volumes"].to_string().contains("leno-webhook-clients"), "{pod}");
}
