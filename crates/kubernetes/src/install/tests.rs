//! Tests of the installation as a whole.

use std::collections::BTreeSet;

use super::*;

fn test_options() -> InstallOptions {
    InstallOptions::new("leno:test".to_owned(), TrustDomain::new("cluster.local").unwrap())
}

fn manifest_of_kind(kind: &str) -> Value {
    let mut all = installation_manifests(&test_options()).into_iter();
    all.find(|manifest| manifest["kind"] == kind).unwrap()
}

fn object_names(manifests: &[Value]) -> Vec<String> {
    let name = |it: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        format!("{} {}", text(&it["kind"]), text(&it["metadata"]["name"]))
    };
    manifests.iter().map(name).collect()
}

#[test]
fn the_objects_that_run_and_what_they_may() {
    let all = installation_manifests(&InstallOptions { gateways: true, ..test_options() });
    let shown: Vec<&Value> =
        all.iter().filter(|it| it["kind"] != "CustomResourceDefinition").collect();
    let text = format!("{:#}\n", json!(shown));
    expect_test::expect_file!["golden/objects.json"].assert_eq(&text);
}

/// The account of the chart's hook can read each kind with a status, and write the status.
#[test]
fn the_hook_of_the_chart_may_retract_the_status_of_each_kind() {
    let hook = uninstall_hook(&test_options());
    let role = hook.iter().find(|it| it["kind"] == "ClusterRole").unwrap();
    let control = installation_manifests(&test_options());
    let is_control =
        |it: &&Value| it["kind"] == "ClusterRole" && it["metadata"]["name"] != "leno-cni";
    let controls: Vec<&Value> = control.iter().filter(is_control).collect();
    let has = |role: &Value, group: &str, resource: &str, verb: &str| {
        let lists = |rule: &Value, key: &str, word: &str| {
            rule[key].as_array().unwrap().iter().any(|it| it == word)
        };
        role["rules"].as_array().unwrap().iter().any(|rule| {
            lists(rule, "apiGroups", group)
                && lists(rule, "resources", resource)
                && lists(rule, "verbs", verb)
        })
    };
    let mut statuses = 0;
    for rule in controls.iter().flat_map(|it| it["rules"].as_array().unwrap()) {
        for resource in rule["resources"].as_array().unwrap() {
            let Some(kind) = resource.as_str().unwrap().strip_suffix("/status") else { continue };
            for group in rule["apiGroups"].as_array().unwrap() {
                let group = group.as_str().unwrap();
                statuses += 1;
                for verb in ["get", "list"] {
                    assert!(has(role, group, kind, verb), "{verb} {kind}.{group}");
                }
                assert!(has(role, group, &format!("{kind}/status"), "patch"), "{kind}.{group}");
            }
        }
    }
    assert!(statuses > 20, "{statuses}");
    // No Service selects its pod, and it does not wait for itself.
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
fn the_schemas_of_kinds() {
    let all = installation_manifests(&test_options());
    let schemas: Map<String, Value> = all
        .iter()
        .filter(|it| it["kind"] == "CustomResourceDefinition")
        .map(|it| {
            let spec = &it["spec"];
            let schema = &spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            (spec["names"]["kind"].as_str().unwrap().to_owned(), schema.clone())
        })
        .collect();
    let text = format!("{:#}\n", Value::Object(schemas));
    expect_test::expect_file!["golden/schemas.json"].assert_eq(&text);
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
    let of_kind = |it: &&Value| it["spec"]["names"]["kind"] == "AccessPolicy";
    let definition = definitions.iter().find(of_kind).unwrap();
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
        let least = [&schema["minItems"], &schema["minProperties"]];
        assert!(least.iter().any(|it| **it == 1), "{text}: {schema}");
    }
}

#[test]
fn schemas_are_structural_and_bounded() {
    fn visit(path: &str, schema: &Value) {
        let free = schema["x-kubernetes-preserve-unknown-fields"] == true;
        assert!(schema["type"].is_string() || free, "{path} has no type");
        // API servers keep bounds as 64-bit floating-point numbers, and compare integers with them.
        for bound in ["minimum", "maximum"].iter().filter_map(|bound| schema[bound].as_f64()) {
            assert!(bound.abs() <= 2_f64.powi(53), "{path} has a bound that is not exact: {bound}");
        }
        match schema["type"].as_str() {
            Some("string") => {
                let bounded = schema["maxLength"].is_u64()
                    || schema["enum"].is_array()
                    || schema["format"].is_string();
                assert!(bounded, "{path} has no bound");
            }
            Some("array") => {
                assert!(schema["maxItems"].is_u64(), "{path} has no bound");
                visit(&format!("{path}[]"), &schema["items"]);
            }
            _ => {}
        }
        // The fields that a rule uses must be typed: otherwise the API server rejects the kind.
        let known = schema["properties"].as_object().into_iter().flatten();
        let typed: BTreeSet<&str> = known
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
        for (name, field) in known {
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
fn the_control_plane_keeps_to_the_restricted_profile() {
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
fn secrets_are_read_in_one_namespace_only_but_for_gateways() {
    let everywhere = manifest_of_kind("ClusterRole")["rules"].to_string();
    assert!(!everywhere.contains("secrets") && !everywhere.contains('*'), "{everywhere}");
    let default = json!(installation_manifests(&test_options())).to_string();
    for only_for_gateways in ["leno-gateways", "GatewayClass", "\"--gateways\""] {
        assert!(!default.contains(only_for_gateways), "{only_for_gateways}");
    }
    let roles = installation_manifests(&InstallOptions { gateways: true, ..test_options() });
    let roles = roles.iter().filter(|it| it["kind"] == "ClusterRole");
    for role in roles {
        let rules = role["rules"].as_array().unwrap();
        let all: Vec<&Value> = rules
            .iter()
            .filter(|rule| rule["resources"].as_array().unwrap().contains(&json!("secrets")))
            .collect();
        // Those of gateways, which are selected by type in the request.
        let expected = role["metadata"]["name"] == "leno-gateways";
        assert_eq!(all.len(), usize::from(expected), "{role}");
        assert!(all.iter().all(|rule| rule["verbs"] == json!(["list", "watch"])), "{role}");
    }
    for rule in manifest_of_kind("Role")["rules"].as_array().unwrap() {
        let creates = rule["verbs"] == json!(["create"]);
        let is_public = rule["resources"] == json!(["endpointslices"]);
        assert!(is_public || creates || rule["resourceNames"].is_array(), "{rule}");
    }
}

#[test]
fn secrets_are_written_where_somebody_wants_it_and_nowhere_else() {
    let default = json!(installation_manifests(&test_options())).to_string();
    assert!(!default.contains("leno-access-certs") && !default.contains("--access-certs"));
    let access_certs = ["ingress", "shop"].map(|it| Name::new(it).unwrap()).into();
    let all = installation_manifests(&InstallOptions { access_certs, ..test_options() });
    let made: Vec<&Value> =
        all.iter().filter(|it| it["metadata"]["name"] == "leno-access-certs").collect();
    let shown: Vec<String> = made
        .iter()
        .map(|it| format!("{} {}", it["kind"], it["metadata"]["namespace"]).replace('"', ""))
        .collect();
    assert_eq!(shown, ["Role ingress", "RoleBinding ingress", "Role shop", "RoleBinding shop"]);
    let verbs = json!(["get", "create", "update", "delete"]);
    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs});
    assert_eq!(made[0]["rules"], json!([rule]));
    assert_eq!(made[1]["subjects"][0]["namespace"], "leno-system");
    assert_eq!(made[1]["roleRef"]["name"], "leno-access-certs");
    let args = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
    let args = args["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!("--access-certs=ingress,shop")), "{args:?}");
    for role in all.iter().filter(|it| it["kind"] == "ClusterRole") {
        assert!(!role["rules"].to_string().contains("secrets"), "{role}");
    }
}

/// Returns true if labels match a selector, as the API server evaluates it.
fn matches_selector(selector: &Value, labels: &[(&str, &str)]) -> bool {
    selector["matchExpressions"].as_array().unwrap().iter().all(|it| {
        let found = labels.iter().find(|(key, _)| it["key"] == *key).map(|(_, value)| *value);
        let listed = found.is_some_and(|value| {
            it["values"].as_array().into_iter().flatten().any(|known| known == value)
        });
        match it["operator"].as_str().unwrap() {
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            "NotIn" => !listed,
            other => panic!("{other}"),
        }
    })
}

#[test]
fn rules_are_refused_once_and_in_namespaces_of_the_mesh_alone() {
    let bindings: Vec<Value> = validation_rules::policy_objects()
        .into_iter()
        .filter(|it| it["kind"] == "ValidatingAdmissionPolicyBinding")
        .collect();
    let refusing = |labels: &[(&str, &str)]| -> Vec<String> {
        let selector = |it: &Value| it["spec"]["matchResources"]["namespaceSelector"].clone();
        let found = bindings.iter().filter(|it| matches_selector(&selector(it), labels));
        found.map(|it| it["spec"]["policyName"].as_str().unwrap().to_owned()).collect()
    };
    let ours = ("leno.dev/injection", "enabled");
    let (osm, fsm) = (("openservicemesh.io/monitored-by", "a"), ("flomesh.io/monitored-by", "b"));
    let both = ["leno-rejects", "leno-warns"];
    for labels in [&[ours][..], &[osm], &[fsm], &[ours, osm], &[osm, fsm], &[ours, osm, fsm]] {
        assert_eq!(refusing(labels), both, "{labels:?}");
    }
    assert_eq!(refusing(&[("app", "web")]), [""; 0]);
    let removed = object_names(&objects_to_remove(&test_options(), RemovalExtent::Running));
    for binding in object_names(&bindings) {
        assert!(removed.contains(&binding), "{binding}");
    }
}

#[test]
fn nobody_waits_for_the_webhook_who_did_not_ask_for_the_mesh() {
    let webhooks = manifest_of_kind("MutatingWebhookConfiguration")["webhooks"].clone();
    let asked = |namespace: &[(&str, &str)], pod: &[(&str, &str)]| -> Vec<String> {
        let webhooks = webhooks.as_array().unwrap().iter();
        webhooks
            .filter(|it| {
                matches_selector(&it["namespaceSelector"], namespace)
                    && matches_selector(&it["objectSelector"], pod)
            })
            .map(|it| it["name"].as_str().unwrap().split('.').next().unwrap().to_owned())
            .collect()
    };
    let on = ("leno.dev/injection", "enabled");
    let off = ("leno.dev/injection", "disabled");
    let osm = ("openservicemesh.io/monitored-by", "osm");
    let none: [&str; 0] = [];
    assert_eq!(asked(&[], &[]), none);
    assert_eq!(asked(&[on], &[]), ["namespace"]);
    assert_eq!(asked(&[on], &[on]), ["namespace"]);
    assert_eq!(asked(&[on], &[off]), none);
    assert_eq!(asked(&[off], &[]), none);
    assert_eq!(asked(&[off], &[on]), ["pod"]);
    assert_eq!(asked(&[], &[on]), ["pod"]);
    assert_eq!(asked(&[osm], &[]), ["osm"]);
    assert_eq!(asked(&[osm], &[on]), ["pod"]);
    assert_eq!(asked(&[osm, on], &[]), ["namespace"]);
    assert_eq!(asked(&[osm, ("openservicemesh.io/ignore", "true")], &[]), none);
    assert_eq!(asked(&[on, ("kubernetes.io/metadata.name", "kube-system")], &[on]), none);
    assert_eq!(asked(&[on, ("kubernetes.io/metadata.name", "leno-system")], &[on]), none);
    // A typo reaches the webhook, which rejects it.
    assert!(!asked(&[("leno.dev/injection", "on")], &[]).is_empty());
}

#[test]
fn the_webhook_goes_first_and_rules_stay_unless_everything_goes() {
    let running = object_names(&objects_to_remove(&test_options(), RemovalExtent::Running));
    assert_eq!(running[0], "MutatingWebhookConfiguration sidecar-injector.leno.dev");
    assert_eq!(running[1], "Deployment leno-control");
    assert!(running.contains(&"ConfigMap leno-roots".to_owned()));
    let kept = ["CustomResourceDefinition", "Namespace", "Secret leno-authority"];
    assert!(!running.iter().any(|name| kept.iter().any(|kept| name.starts_with(kept))));
    let everything = object_names(&objects_to_remove(&test_options(), RemovalExtent::Everything));
    assert!(everything.contains(&"Secret leno-authority".to_owned()));
    let former = "CustomResourceDefinition workloads.leno.dev".to_owned();
    assert!(everything.contains(&former) && !running.contains(&former));
    assert_eq!(everything.last().unwrap(), "Namespace leno-system");
}

#[test]
fn options_change_what_they_are_about() {
    let trust_domain = TrustDomain::new("example.org").unwrap();
    let options = InstallOptions {
        namespace: "mesh".to_owned(),
        replicas: 1,
        trust_domain,
        with_smi: true,
        ..test_options()
    };
    let all = installation_manifests(&options);
    let names = object_names(&all);
    assert!(
        names.contains(&"CustomResourceDefinition traffictargets.access.smi-spec.io".to_owned())
    );
    let place = |name: &str| names.iter().position(|it| it == name).unwrap();
    assert!(place("MeshConfig mesh") < place("Deployment leno-control"));
    assert!(!names.contains(&"PodDisruptionBudget leno-control".to_owned()));
    let text = json!(all).to_string();
    assert!(!text.contains("leno-system"), "{text}");
}

#[test]
fn what_was_wrong_before_may_lose_its_finalizers() {
    let all = validation_rules::policy_objects();
    let policies = all.iter().filter(|it| it["kind"] == "ValidatingAdmissionPolicy");
    let expressions = policies.flat_map(|it| it["spec"]["validations"].as_array().unwrap());
    let unchanged = "(oldObject != null && has(object.spec) && has(oldObject.spec) && \
                     object.spec == oldObject.spec)";
    for expression in expressions.map(|it| it["expression"].as_str().unwrap()) {
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
        assert!(namespace.is_none_or(|it| NamespaceName::new(it).is_ok()), "{metadata}");
    }
}

#[test]
fn the_network_policy_names_who_may_connect() {
    let rules = |options: &InstallOptions| {
        let all = installation_manifests(options);
        let policy = all.iter().find(|it| it["kind"] == "NetworkPolicy")?;
        assert_eq!(policy["metadata"]["namespace"], "leno-system");
        let spec = &policy["spec"];
        assert_eq!(
            spec["podSelector"]["matchLabels"],
            json!({"app.kubernetes.io/name": "leno-control"})
        );
        assert_eq!(spec["policyTypes"], json!(["Ingress"]));
        // It is created before the pods that it protects.
        let place = |kind: &str| all.iter().position(|it| it["kind"] == kind);
        assert!(place("NetworkPolicy") < place("Deployment"));
        Some(spec["ingress"].clone())
    };
    let by_default = rules(&test_options()).unwrap();
    let ports: Vec<&Value> =
        by_default.as_array().unwrap().iter().map(|rule| &rule["ports"][0]["port"]).collect();
    // All ports of the Deployment, and no others.
    let container =
        manifest_of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0].clone();
    let mut served: Vec<&Value> =
        container["ports"].as_array().unwrap().iter().map(|port| &port["containerPort"]).collect();
    served.sort_by_key(|port| port.as_u64());
    let mut permitted = ports.clone();
    permitted.sort_by_key(|port| port.as_u64());
    assert_eq!(permitted, served);
    let from = |rules: &Value, port: u16| {
        let rule = rules.as_array().unwrap().iter().find(|it| it["ports"][0]["port"] == port);
        rule.unwrap()["from"].clone()
    };
    assert_eq!(from(&by_default, 15_017), Value::Null, "an API server has any address");
    let of_mesh = json!({"matchExpressions": [{"key": "leno.dev/meshed", "operator": "Exists"}]});
    assert_eq!(
        from(&by_default, 15_010)[0],
        json!({"namespaceSelector": {}, "podSelector": of_mesh})
    );
    assert_eq!(
        from(&by_default, 15_010)[1],
        json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "leno-control"}}})
    );
    assert_eq!(from(&by_default, 15_020), json!([{"namespaceSelector": {}}]));
    let api_server =
        ["10.0.0.0/28", "192.0.2.1", "2001:db8::1"].map(|it| it.parse().unwrap()).into();
    let restricted = rules(&InstallOptions { api_server, ..test_options() }).unwrap();
    let block = |cidr: &str| json!({"ipBlock": {"cidr": cidr}});
    let expected = json!([block("10.0.0.0/28"), block("192.0.2.1/32"), block("2001:db8::1/128")]);
    assert_eq!(from(&restricted, 15_017), expected);
    assert!(rules(&InstallOptions { network_policies: false, ..test_options() }).is_none());
}

#[test]
fn clients_of_the_webhook_are_verified_where_their_authority_is_given() {
    let default = json!(installation_manifests(&test_options())).to_string();
    assert!(!default.contains("webhook-client"), "{default}");
    let webhook_client_ca = Some("PEM".to_owned());
    let all = installation_manifests(&InstallOptions { webhook_client_ca, ..test_options() });
    let map = all.iter().find(|it| it["metadata"]["name"] == "leno-webhook-clients").unwrap();
    assert_eq!(map["data"], json!({"ca.pem": "PEM"}));
    let pod = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
    let pod = &pod["spec"]["template"]["spec"];
    let args = pod["containers"][0]["args"].as_array().unwrap();
    let expected = json!("--webhook-client-ca=/etc/leno/webhook-clients/ca.pem");
    assert!(args.contains(&expected), "{args:?}");
    let mounts = pod["containers"][0]["volumeMounts"].to_string();
    assert!(mounts.contains("\"/etc/leno/webhook-clients\""), "{mounts}");
    assert!(pod["volumes"].to_string().contains("leno-webhook-clients"), "{pod}");
}
