//! Tests the decision about injection as a table, and compares pods before and after injection.

use expect_test::expect;
use serde_json::{Value, json};

use super::*;
use crate::well_known::PREFIXES;

#[test]
fn with_a_network_plugin_no_container_has_privileges() {
    let pod = json!({
        "metadata": {"name": "a", "annotations": {
            "leno.dev/inject": "",
            "leno.dev/redirect": "--exclude-outbound-ranges=0.0.0.0/0",
            "leno.dev/outbound-port-exclusion-list": "25",
        }},
        "spec": {"containers": [{"name": "app"}]},
    });
    for uses_cni_plugin in [true, false] {
        let settings = InjectionSettings { uses_cni_plugin, ..test_settings() };
        let outcome = inject_sidecar(&pod, InjectionTrigger::User(None), &settings).unwrap();
        let InjectionOutcome::Injected { pod, .. } = outcome else { panic!("{outcome:?}") };
        let first = &pod["spec"]["initContainers"][0];
        let redirect = &pod["metadata"]["annotations"]["leno.dev/redirect"];
        if uses_cni_plugin {
            assert_eq!(first["args"], json!(["redirect", "--verify"]));
            assert_eq!(first["securityContext"]["runAsNonRoot"], true);
            assert_eq!(first["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!(*redirect, "--exclude-outbound-ports=25");
        } else {
            assert_eq!(first["args"], json!(["redirect", "--exclude-outbound-ports=25"]));
            assert!(redirect.is_null(), "{redirect}");
        }
    }
}

fn test_settings() -> InjectionSettings {
    let trust_domain = TrustDomain::new("cluster.local").unwrap();
    let roots = "-----BEGIN CERTIFICATE-----\nroots\n-----END CERTIFICATE-----\n".to_owned();
    InjectionSettings::new(
        "leno:test".to_owned(),
        NamespaceName::from_literal("leno-system"),
        trust_domain,
        roots,
    )
}

fn parse_pairs(text: &str) -> BTreeMap<String, String> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap();
        (key.to_owned(), value.to_owned())
    };
    text.split_whitespace().map(pair).collect()
}

fn namespace_metadata(labels: &str, annotations: &str) -> NamespaceMetadata {
    let name = "shop".to_owned();
    NamespaceMetadata { name, labels: parse_pairs(labels), annotations: parse_pairs(annotations) }
}

fn pod_with_metadata(labels: &str, annotations: &str) -> Value {
    json!({
        "metadata": {"labels": parse_pairs(labels), "annotations": parse_pairs(annotations)},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// Returns `yes`, or the reason for no sidecar.
fn injection_verdict(pod: &Value, namespace: &NamespaceMetadata) -> String {
    match inject_sidecar(pod, InjectionTrigger::Namespace(namespace), &test_settings()) {
        Ok(InjectionOutcome::Injected { .. }) => "yes".to_owned(),
        Ok(InjectionOutcome::Skipped(skip)) => format!("{skip:?}"),
        Err(error) => error.to_string(),
    }
}

fn inject_pod(pod: &Value, settings: &InjectionSettings) -> (Value, Vec<String>) {
    match inject_sidecar(pod, InjectionTrigger::User(None), settings).unwrap() {
        InjectionOutcome::Injected { pod, warnings } => (pod, warnings),
        InjectionOutcome::Skipped(skip) => panic!("{skip}"),
    }
}

#[test]
fn labels_and_annotations_decide_about_injection() {
    let osm = "openservicemesh.io/monitored-by=osm";
    let fsm = "flomesh.io/monitored-by=fsm";
    // Labels and annotations of the namespace, labels and annotations of the pod, and the verdict.
    let table = [
        ("", "", "", "", "NotRequested"),
        ("leno.dev/injection=enabled", "", "", "", "yes"),
        ("leno.dev/injection=True", "", "", "", "yes"),
        ("leno.dev/injection=disabled", "", "", "", "Disabled"),
        ("", "leno.dev/injection=yes", "", "", "yes"),
        ("leno.dev/injection=enabled", "", "leno.dev/injection=no", "", "Disabled"),
        ("leno.dev/injection=enabled", "", "", "leno.dev/injection=false", "Disabled"),
        ("leno.dev/injection=disabled", "", "leno.dev/injection=enabled", "", "yes"),
        ("", "", "", "leno.dev/injection=enabled", "yes"),
        (
            "leno.dev/injection=on",
            "",
            "",
            "",
            "namespace: `leno.dev/injection` is `on`; use `enabled` or `disabled`",
        ),
        (
            "leno.dev/injection=enabled",
            "",
            "",
            "leno.dev/injection=maybe",
            "pod: `leno.dev/injection` is `maybe`; use `enabled` or `disabled`",
        ),
        (
            "",
            "",
            "leno.dev/injection=enabled",
            "leno.dev/injection=disabled",
            "pod: `leno.dev/injection` is a label and an annotation that contradict each other; \
             remove one",
        ),
        // As in OSM, the namespace has to be monitored, and its annotation or that of the pod has to enable injection.
        (osm, "", "", "", "NotRequested"),
        (osm, "openservicemesh.io/sidecar-injection=enabled", "", "", "yes"),
        (osm, "openservicemesh.io/sidecar-injection=disabled", "", "", "Disabled"),
        ("", "openservicemesh.io/sidecar-injection=enabled", "", "", "NotRequested"),
        (osm, "", "", "openservicemesh.io/sidecar-injection=yes", "yes"),
        ("", "", "", "openservicemesh.io/sidecar-injection=yes", "NotRequested"),
        (
            osm,
            "openservicemesh.io/sidecar-injection=enabled",
            "",
            "openservicemesh.io/sidecar-injection=no",
            "Disabled",
        ),
        (
            osm,
            "openservicemesh.io/sidecar-injection=perhaps",
            "",
            "",
            "namespace: `openservicemesh.io/sidecar-injection` is `perhaps`; use `enabled` or \
             `disabled`",
        ),
        (fsm, "flomesh.io/sidecar-injection=true", "", "", "yes"),
        (fsm, "openservicemesh.io/sidecar-injection=true", "", "", "NotRequested"),
        // Opting out of another mesh's sidecar opts out of Leno's.
        ("leno.dev/injection=enabled", "", "", "flomesh.io/sidecar-injection=disabled", "Disabled"),
        ("leno.dev/injection=enabled leno.dev/ignore=true", "", "", "", "Ignored"),
        ("leno.dev/injection=enabled openservicemesh.io/ignore=x", "", "", "", "Ignored"),
    ];
    for (labels, annotations, pod_labels, pod_annotations, expected) in table {
        let pod = pod_with_metadata(pod_labels, pod_annotations);
        let verdict = injection_verdict(&pod, &namespace_metadata(labels, annotations));
        assert_eq!(
            verdict, expected,
            "{labels} | {annotations} | {pod_labels} | {pod_annotations}"
        );
    }
}

#[test]
fn system_namespaces_and_unsupported_pods_get_no_sidecar() {
    let enabled = namespace_metadata("leno.dev/injection=enabled", "");
    for name in ["kube-system", "kube-public", "kube-node-lease", "leno-system"] {
        let namespace = NamespaceMetadata { name: name.to_owned(), ..enabled.clone() };
        assert_eq!(
            injection_verdict(&pod_with_metadata("leno.dev/injection=enabled", ""), &namespace),
            "SystemNamespace"
        );
    }
    let verdict_after = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod_with_metadata("", "");
        change(&mut pod);
        injection_verdict(&pod, &enabled)
    };
    assert_eq!(verdict_after(&|pod| pod["spec"]["hostNetwork"] = json!(true)), "HostNetwork");
    assert_eq!(verdict_after(&|pod| pod["spec"]["os"] = json!({"name": "windows"})), "Windows");
    assert_eq!(
        verdict_after(&|pod| {
            pod["metadata"]["labels"]["osm-proxy-uuid"] = json!("1");
            pod["spec"]["containers"][0]["name"] = json!("envoy");
        }),
        "OtherMesh(\"OSM\")"
    );
    assert!(
        verdict_after(&|pod| pod["spec"]["securityContext"] = json!({"runAsUser": 1500}))
            .starts_with("container app runs as user 1500")
    );
}

#[test]
fn a_pod_with_a_sidecar_does_not_get_another() {
    for native_sidecars in [true, false] {
        let settings = InjectionSettings { native_sidecars, ..test_settings() };
        let (injected, _) = inject_pod(&pod_with_metadata("", ""), &settings);
        let second = inject_sidecar(&injected, InjectionTrigger::User(None), &settings);
        assert_eq!(second, Ok(InjectionOutcome::Skipped(SkipReason::AlreadyInjected)));
    }
}

#[test]
fn a_native_sidecar_matches_the_golden_file() {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "web-",
            "annotations": {
                "openservicemesh.io/outbound-port-exclusion-list": "5432, 25",
                "leno.dev/outbound-port-exclusion-list": "6379",
                "flomesh.io/inbound-port-exclusion-list": "9000",
                "leno.dev/outbound-ip-range-exclusion-list": "192.0.2.0/24",
                "flomesh.io/outbound-ip-range-inclusion-list": "10.0.0.0/8,fd00::/8",
                "flomesh.io/sidecar-resource-limits-memory": "64Mi",
                "leno.dev/sidecar-resource-requests-cpu": "50m",
            },
        },
        "spec": {
            "of-a-later-version": {"kept": true},
            "initContainers": [{"name": "first", "image": "app:1"}],
            "containers": [{"name": "app", "image": "app:1"}],
            "volumes": [{"name": "files", "emptyDir": {}}],
        },
    });
    let (injected, warnings) = inject_pod(&pod, &test_settings());
    assert!(warnings.is_empty());
    expect_test::expect_file!["golden/native.json"].assert_eq(&format!("{injected:#}\n"));
    let mut patched = pod.clone();
    let patch: json_patch::Patch =
        serde_json::from_value(injection_patch(&pod, &injected)).unwrap();
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched, injected);
}

#[test]
fn a_sidecar_without_native_support_is_a_container() {
    let settings = InjectionSettings { native_sidecars: false, ..test_settings() };
    let mut pod = pod_with_metadata("", "");
    pod["spec"]["initContainers"] = json!([{"name": "first"}]);
    let (injected, _) = inject_pod(&pod, &settings);
    let names = |list: &str| -> Vec<&str> {
        injected["spec"][list]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap())
            .collect()
    };
    assert_eq!(names("initContainers"), ["first", "leno-init"]);
    assert_eq!(names("containers"), ["leno-proxy", "app"]);
    let sidecar = &injected["spec"]["containers"][0];
    assert_eq!(sidecar["restartPolicy"], Value::Null);
    assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/readyz");
    // All containers receive SIGTERM at the same time, so the sidecar still serves for part of the pod's 30 seconds.
    let args = sidecar["args"].as_array().unwrap();
    assert_eq!(args[args.len() - 4..], ["--drain-delay", "5s", "--drain-timeout", "20s"]);
    let annotations = &injected["metadata"]["annotations"];
    assert_eq!(annotations["kubectl.kubernetes.io/default-container"], "app");
}

#[test]
fn unsupported_dns_policies_and_unknown_annotations_cause_warnings() {
    let warnings = |field: &str, value: Value| {
        let mut pod = pod_with_metadata("", "");
        *pod.pointer_mut(field).unwrap() = value;
        let (injected, warnings) = inject_pod(&pod, &test_settings());
        let annotations = &injected["metadata"]["annotations"];
        assert_eq!(annotations["kubectl.kubernetes.io/default-container"], "app");
        warnings
    };
    let spec = |policy: &str| json!({"dnsPolicy": policy, "containers": [{"name": "app"}]});
    assert_eq!(warnings("/spec", spec("ClusterFirst")), [""; 0]);
    let [warning] = &warnings("/spec", spec("Default"))[..] else { panic!() };
    assert!(warning.starts_with("spec.dnsPolicy is Default: the pod does not start"), "{warning}");
    let [warning] = &warnings("/spec", spec("None"))[..] else { panic!() };
    assert!(warning.contains("spec.dnsConfig.nameservers has to have"), "{warning}");
    // Issue 27: the name of the control plane ends with `.svc`, so pods need the search domain to resolve it.
    assert!(warning.contains("spec.dnsConfig.searches the domain of the cluster"), "{warning}");
    let metadata =
        json!({"annotations": {"leno.dev/outbound-port-exclusion": "80", "a.example/b": "c"}});
    assert_eq!(
        warnings("/metadata", metadata),
        ["annotations: leno.dev/outbound-port-exclusion is not supported; did you mean \
          `leno.dev/outbound-port-exclusion-list`?"]
    );
    // A default container that the author of the pod chose is kept.
    let mut pod = pod_with_metadata("", "");
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!("other");
    let (injected, _) = inject_pod(&pod, &test_settings());
    let default_container =
        &injected["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"];
    assert_eq!(default_container, "other");
}

#[test]
fn hints_about_unknown_annotations_are_limited_and_hide_no_other_warning() {
    let keys = |count: usize| -> Value {
        (0..count).map(|number| (format!("leno.dev/injectio{number}"), json!("x"))).collect()
    };
    let mut pod = pod_with_metadata("", "");
    pod["metadata"]["labels"] = keys(25_000);
    pod["metadata"]["annotations"] = keys(25_000);
    pod["spec"]["dnsPolicy"] = json!("Default");
    let (_, warnings) = inject_pod(&pod, &test_settings());
    assert!(warnings[0].starts_with("spec.dnsPolicy is Default"), "{}", warnings[0]);
    let hints = warnings.iter().filter(|warning| warning.contains("is not supported")).count();
    assert_eq!(hints, MAX_UNKNOWN_ANNOTATIONS);
}

#[test]
fn probes_are_made_by_the_sidecar() {
    let pod = json!({
        "metadata": {},
        "spec": {"containers": [
            {
                "name": "app",
                "ports": [{"name": "http", "containerPort": 8080}, {"name": "8443", "containerPort": 9443}],
                "readinessProbe": {
                    "httpGet": {
                        "path": "/x?a=$(HOME)",
                        "port": "http",
                        "httpHeaders": [{"name": "Host", "value": "a"}],
                    },
                    "timeoutSeconds": 3,
                    "periodSeconds": 7,
                    "terminationGracePeriodSeconds": 5,
                },
                "livenessProbe": {"httpGet": {"port": "8443", "scheme": "HTTPS"}},
                "startupProbe": {"grpc": {"port": 9000, "service": "x"}},
            },
            {
                "name": "other",
                "readinessProbe": {"tcpSocket": {"port": "8081"}},
                "livenessProbe": {"exec": {"command": ["true"]}},
                "startupProbe": {"httpGet": {"port": 80, "host": "192.0.2.1"}},
                "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": 80}}},
            },
            {"name": "third", "readinessProbe": {"tcpSocket": {"port": "gone"}}},
        ]},
    });
    let (injected, warnings) = inject_pod(&pod, &test_settings());
    let containers = &injected["spec"]["containers"];
    expect![[r#"
        {"timeoutSeconds":3,"periodSeconds":7,"terminationGracePeriodSeconds":5,"httpGet":{"path":"/probe/app/readiness","port":15020}}"#]]
    .assert_eq(&containers[0]["readinessProbe"].to_string());
    let path = |container: usize, kind: &str| &containers[container][kind]["httpGet"]["path"];
    assert_eq!(path(0, "livenessProbe"), "/probe/app/liveness");
    assert_eq!(path(0, "startupProbe"), "/probe/app/startup");
    assert_eq!(path(1, "readinessProbe"), "/probe/other/readiness");
    // Probes that the kubelet can perform itself are unchanged.
    for (container, kind) in [(1, "livenessProbe"), (1, "startupProbe"), (2, "readinessProbe")] {
        assert_eq!(containers[container][kind], pod["spec"]["containers"][container][kind]);
    }
    let env = injected["spec"]["initContainers"][1]["env"].as_array().unwrap();
    let probes = env.iter().find(|variable| variable["name"] == "LENO_PROBES").unwrap();
    expect![[r#"{"app":{"startup":{"grpc":{"port":9000,"service":"x"},"timeoutSeconds":1},"readiness":{"httpGet":{"path":"/x?a=$$(HOME)","port":8080,"scheme":"HTTP","httpHeaders":[{"name":"Host","value":"a"}]},"timeoutSeconds":3},"liveness":{"httpGet":{"path":"/","port":9443,"scheme":"HTTPS"},"timeoutSeconds":1}},"other":{"readiness":{"tcpSocket":{"port":8081},"timeoutSeconds":1}}}"#]]
        .assert_eq(probes["value"].as_str().unwrap());
    expect![[r#"
        [
            "container other: lifecycle.preStop.httpGet is called from outside the mesh and reset; use `exec`, or exclude its port with `leno.dev/inbound-port-exclusion-list`",
            "container third: readinessProbe has the port \"gone\", which the container does not name; it will fail",
        ]
    "#]]
    .assert_debug_eq(&warnings);
}

#[test]
fn invalid_annotations_are_rejected() {
    let error = |annotation: &str| {
        let (key, value) = annotation.split_once('=').unwrap();
        let mut pod = pod_with_metadata("", "");
        pod["metadata"]["annotations"][key] = json!(value);
        inject_sidecar(&pod, InjectionTrigger::User(None), &test_settings())
            .unwrap_err()
            .to_string()
    };
    let errors: Vec<String> = [
        "leno.dev/outbound-port-exclusion-list=80,http",
        "openservicemesh.io/inbound-port-exclusion-list=0",
        "flomesh.io/outbound-ip-range-exclusion-list=10.0.0.0/33",
        "leno.dev/sidecar-image=a b",
        "flomesh.io/sidecar-resource-limits-cpu=much",
    ]
    .map(error)
    .to_vec();
    expect![[r#"
        [
            "pod: annotation `leno.dev/outbound-port-exclusion-list`: `http` is not a port; use numbers from 1 to 65535, such as `25, 5432`",
            "pod: annotation `openservicemesh.io/inbound-port-exclusion-list`: `0` is not a port; use numbers from 1 to 65535, such as `25, 5432`",
            "pod: annotation `flomesh.io/outbound-ip-range-exclusion-list`: `10.0.0.0/33` is not a range of addresses; use one such as 192.0.2.0/24",
            "pod: annotation `leno.dev/sidecar-image`: `a b` is not the name of an image; use one such as `leno:0.1`",
            "pod: annotation `flomesh.io/sidecar-resource-limits-cpu`: `much` is not a quantity; use one such as 100m or 64Mi",
        ]
    "#]]
    .assert_debug_eq(&errors);
}

#[test]
fn a_default_limit_below_a_request_is_omitted() {
    let mut pod = pod_with_metadata("", "");
    let annotations = &mut pod["metadata"]["annotations"];
    annotations["leno.dev/sidecar-resource-requests-memory"] = json!("1Gi");
    annotations["leno.dev/sidecar-resource-limits-cpu"] = json!("5m");
    let (injected, _) = inject_pod(&pod, &test_settings());
    let resources = &injected["spec"]["initContainers"][1]["resources"];
    assert_eq!(*resources, json!({"requests": {"memory": "1Gi"}, "limits": {"cpu": "5m"}}));
}

#[test]
fn sidecar_images_of_another_mesh_are_ignored() {
    let image = |namespace_annotations: &str, pod_annotations: &str| {
        let namespace = namespace_metadata("leno.dev/injection=enabled", namespace_annotations);
        match inject_sidecar(
            &pod_with_metadata("", pod_annotations),
            InjectionTrigger::Namespace(&namespace),
            &test_settings(),
        ) {
            Ok(InjectionOutcome::Injected { pod, .. }) => {
                let image = |index: usize| pod["spec"]["initContainers"][index]["image"].clone();
                assert_eq!(image(0), image(1));
                image(1).as_str().unwrap().to_owned()
            }
            other => panic!("{other:?}"),
        }
    };
    let foreign = "flomesh.io/sidecar-image=pipy openservicemesh.io/sidecar-image=envoy";
    assert_eq!(image(foreign, foreign), test_settings().image);
    assert_eq!(image("leno.dev/sidecar-image=a", foreign), "a");
    assert_eq!(image("leno.dev/sidecar-image=a", "leno.dev/sidecar-image=b"), "b");
}

#[test]
fn storage_annotations_set_ephemeral_storage() {
    let resources = |namespace_annotations: &str, pod_annotations: &str| {
        let namespace = namespace_metadata("leno.dev/injection=enabled", namespace_annotations);
        match inject_sidecar(
            &pod_with_metadata("", pod_annotations),
            InjectionTrigger::Namespace(&namespace),
            &test_settings(),
        ) {
            Ok(InjectionOutcome::Injected { pod, .. }) => {
                pod["spec"]["initContainers"][1]["resources"].clone()
            }
            other => panic!("{other:?}"),
        }
    };
    let storage = "flomesh.io/sidecar-resource-limits-storage";
    let ephemeral = "flomesh.io/sidecar-resource-limits-ephemeral-storage";
    for (namespace_annotations, pod_annotations, expected) in [
        (String::new(), format!("{storage}=1Gi"), "1Gi"),
        (String::new(), format!("{storage}=1Gi {ephemeral}=2Gi"), "2Gi"),
        (format!("{ephemeral}=2Gi"), format!("{storage}=1Gi"), "1Gi"),
        (format!("{storage}=1Gi {ephemeral}=2Gi"), String::new(), "2Gi"),
    ] {
        let limits = &resources(&namespace_annotations, &pod_annotations)["limits"];
        let expected = json!({"memory": "128Mi", "ephemeral-storage": expected});
        assert_eq!(*limits, expected, "{namespace_annotations}; {pod_annotations}");
    }
    let requests =
        resources("", "leno.dev/sidecar-resource-requests-storage=1Gi")["requests"].clone();
    assert_eq!(requests, json!({"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "1Gi"}));
}

#[test]
fn prometheus_annotations_are_added_if_metrics_are_enabled() {
    let namespace =
        namespace_metadata("leno.dev/injection=enabled", "openservicemesh.io/metrics=enabled");
    let annotations = |pod: &Value| match inject_sidecar(
        pod,
        InjectionTrigger::Namespace(&namespace),
        &test_settings(),
    ) {
        Ok(InjectionOutcome::Injected { pod, .. }) => pod["metadata"]["annotations"].clone(),
        other => panic!("{other:?}"),
    };
    let added = annotations(&pod_with_metadata("", ""));
    assert_eq!(added["prometheus.io/port"], "15020");
    let existing = annotations(&pod_with_metadata("", "prometheus.io/scrape=true"));
    assert_eq!(existing["prometheus.io/scrape"], "true");
    assert_eq!(existing["prometheus.io/port"], Value::Null);
}

#[test]
fn annotations_enable_metrics_and_upgrades() {
    let arguments = |annotations: &str, settings: &InjectionSettings| {
        let namespace = namespace_metadata("leno.dev/injection=enabled", annotations);
        let outcome = inject_sidecar(
            &pod_with_metadata("", ""),
            InjectionTrigger::Namespace(&namespace),
            settings,
        )?;
        let InjectionOutcome::Injected { pod, .. } = outcome else { panic!("{outcome:?}") };
        let arguments = pod["spec"]["initContainers"][1]["args"].as_array().unwrap().clone();
        let relevant_argument = |argument: &Value| {
            let argument = argument.as_str()?;
            (argument.starts_with("--metrics-from") || argument.starts_with("--upgrades"))
                .then(|| argument.to_owned())
        };
        Ok(arguments.iter().filter_map(relevant_argument).collect::<Vec<String>>())
    };
    let restricted =
        InjectionSettings { metrics_from: "10.0.0.0/8".parse().ok(), ..test_settings() };
    for (annotations, default_arguments, restricted_arguments) in [
        ("", vec![], vec![]),
        ("leno.dev/metrics=disabled", vec![], vec![]),
        ("leno.dev/metrics=enabled", vec!["--metrics-from=any"], vec!["--metrics-from=10.0.0.0/8"]),
        (
            "leno.dev/upgrades=TCP",
            vec!["--upgrades=websocket,tcp"],
            vec!["--upgrades=websocket,tcp"],
        ),
        ("leno.dev/upgrades=any", vec!["--upgrades=any"], vec!["--upgrades=any"]),
    ] {
        assert_eq!(
            arguments(annotations, &test_settings()),
            Ok::<_, InjectError>(to_strings(&default_arguments))
        );
        assert_eq!(
            arguments(annotations, &restricted),
            Ok::<_, InjectError>(to_strings(&restricted_arguments))
        );
    }
    for invalid in ["leno.dev/upgrades=h2c", "leno.dev/upgrades=tcp,", "leno.dev/upgrades=$(HOME)"]
    {
        let error = arguments(invalid, &test_settings()).unwrap_err().to_string();
        assert!(error.contains("websocket,tcp"), "{error}");
    }
}

#[test]
fn an_invalid_value_of_any_annotation_of_a_pod_is_rejected() {
    let namespace = namespace_metadata("leno.dev/injection=enabled", "");
    for (annotation, hint) in [
        ("leno.dev/default-policy=Deny", "use `allow`, `deny` or `dry-run`"),
        ("leno.dev/mtls=yes", "use `permissive` or `strict`"),
        ("leno.dev/weight=0", "use a number from 1 to 1000"),
        ("leno.dev/weight=many", "use a number from 1 to 1000"),
        ("leno.dev/upgrades=foo/", "websocket,tcp"),
        ("leno.dev/dns=Proxy", "use `proxy` or `cluster`"),
        ("leno.dev/metrics=on", "use `enabled` or `disabled`"),
    ] {
        let outcome = inject_sidecar(
            &pod_with_metadata("", annotation),
            InjectionTrigger::Namespace(&namespace),
            &test_settings(),
        );
        let error = outcome.unwrap_err().to_string();
        let key = annotation.split('=').next().unwrap();
        assert!(error.contains(key) && error.contains(hint), "{annotation}: {error}");
    }
    for valid in
        ["leno.dev/default-policy=dry-run", "leno.dev/mtls=permissive", "leno.dev/weight=7"]
    {
        inject_sidecar(
            &pod_with_metadata("", valid),
            InjectionTrigger::Namespace(&namespace),
            &test_settings(),
        )
        .unwrap();
    }
    // Invalid annotations of a namespace reject no pods: the previous values stay in force.
    let invalid = "leno.dev/default-policy=Deny leno.dev/mtls=yes";
    let namespace = namespace_metadata("leno.dev/injection=enabled", invalid);
    inject_sidecar(
        &pod_with_metadata("", ""),
        InjectionTrigger::Namespace(&namespace),
        &test_settings(),
    )
    .unwrap();
}

fn to_strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn the_sidecar_exposes_application_metrics_of_prometheus_annotations() {
    let namespace = namespace_metadata("leno.dev/injection=enabled", "leno.dev/metrics=enabled");
    let metrics_of = |annotations: &str| {
        let annotations = format!("prometheus.io/scrape=true {annotations}");
        let pod = pod_with_metadata("", &annotations);
        let Ok(InjectionOutcome::Injected { pod, .. }) =
            inject_sidecar(&pod, InjectionTrigger::Namespace(&namespace), &test_settings())
        else {
            panic!("{annotations}")
        };
        let sidecar = &pod["spec"]["initContainers"][1]["args"];
        let arguments =
            sidecar.as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
        let arguments: Vec<&str> = arguments.collect();
        let flag = arguments.iter().position(|argument| *argument == "--application-metrics");
        let annotations = &pod["metadata"]["annotations"];
        let port = annotations["prometheus.io/port"].as_str().unwrap_or_default().to_owned();
        let path = annotations["prometheus.io/path"].as_str().unwrap_or_default().to_owned();
        (flag.map(|flag| arguments[flag + 1].to_owned()), port, path)
    };
    let exposed = |application_metrics: &str| {
        (Some(application_metrics.to_owned()), "15020".to_owned(), "/metrics".to_owned())
    };
    assert_eq!(metrics_of("prometheus.io/port=9102"), exposed("9102/metrics"));
    assert_eq!(metrics_of("prometheus.io/port=9102 prometheus.io/path=/a/b"), exposed("9102/a/b"));
    for (unchanged, port) in [
        ("prometheus.io/port=x", "x"),
        ("prometheus.io/port=9102 prometheus.io/scheme=https", "9102"),
        ("prometheus.io/port=9102 prometheus.io/path=/$(HOME)", "9102"),
        ("prometheus.io/port=15020", "15020"),
    ] {
        let (flag, annotated_port, _) = metrics_of(unchanged);
        assert_eq!((flag, annotated_port.as_str()), (None, port), "{unchanged}");
    }
}

#[test]
fn manifests_of_every_kind_get_sidecars() {
    let template =
        json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "app"}]}});
    let manifest = json!({"kind": "List", "items": [
        {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": template}},
        {"kind": "CronJob", "metadata": {"name": "b"}, "spec": {"jobTemplate": {"spec": {"template": template}}}},
        {"kind": "Pod", "metadata": {"name": "c", "labels": {"leno.dev/injection": "disabled"}},
         "spec": {"containers": []}},
        {"kind": "Service", "metadata": {"name": "d"}},
    ]});
    let InjectedManifest { manifest, outcomes } =
        inject_manifest(manifest, &BTreeMap::new(), &test_settings()).unwrap();
    let reported: Vec<String> =
        outcomes.iter().map(|(name, outcome)| format!("{name}: {outcome:?}")).collect();
    expect![[r#"
        [
            "Deployment a: Injected([])",
            "CronJob b: Injected([])",
            "Pod c: Skipped(Disabled)",
        ]
    "#]]
    .assert_debug_eq(&reported);
    let pointer = "/items/1/spec/jobTemplate/spec/template/metadata/labels/leno.dev~1meshed";
    assert_eq!(manifest.pointer(pointer), Some(&json!("sidecar")));
    let invalid = json!({"kind": "Job", "metadata": {"name": "e"}, "spec": {}});
    let (name, error) = inject_manifest(invalid, &BTreeMap::new(), &test_settings()).unwrap_err();
    assert_eq!(name, "Job e");
    assert!(error.to_string().starts_with("Job e has no `spec` with `containers`"));
}

#[test]
fn annotations_of_namespaces_apply_to_manifests() {
    let deployment = |metadata: Value| {
        let template = json!({"spec": {"containers": [{"name": "app"}]}});
        json!({"kind": "Deployment", "metadata": metadata, "spec": {"template": template}})
    };
    let manifest = json!({"kind": "List", "items": [
        deployment(json!({"name": "a", "namespace": "shop"})),
        deployment(json!({"name": "b"})),
        deployment(json!({"name": "c", "namespace": "unknown"})),
        {"kind": "Service", "metadata": {"name": "d", "namespace": "services"}},
    ]});
    assert_eq!(namespaces_of(&manifest), ["", "shop", "unknown"].map(str::to_owned).into());
    // Injection by name needs no namespace in the mesh.
    let build_namespace = |port: &str| {
        let annotation = format!("leno.dev/outbound-port-exclusion-list={port}");
        namespace_metadata("leno.dev/injection=disabled", &annotation)
    };
    let namespaces =
        [("shop".to_owned(), build_namespace("25")), (String::new(), build_namespace("26"))].into();
    let InjectedManifest { manifest, .. } =
        inject_manifest(manifest, &namespaces, &test_settings()).unwrap();
    let args = |index: usize| {
        let spec = &manifest["items"][index]["spec"]["template"]["spec"];
        spec["initContainers"][0]["args"].clone()
    };
    assert_eq!(args(0), json!(["redirect", "--exclude-outbound-ports=25"]));
    assert_eq!(args(1), json!(["redirect", "--exclude-outbound-ports=26"]));
    assert_eq!(args(2), json!(["redirect"]));
}

/// Returns the outcome for a pod under a floor and the number of warnings. The outcome is `yes`, or the reason for
/// no sidecar.
fn inject_with_floor(
    pod: &Value,
    namespace: &NamespaceMetadata,
    floor: SecurityFloor,
) -> (String, usize) {
    let settings = InjectionSettings { floor, ..test_settings() };
    match inject_sidecar(pod, InjectionTrigger::Namespace(namespace), &settings).unwrap() {
        InjectionOutcome::Injected { warnings, .. } => ("yes".to_owned(), warnings.len()),
        InjectionOutcome::Skipped(skip) => (format!("{skip:?}"), 0),
    }
}

#[test]
fn pods_cannot_opt_out_if_the_floor_requires_a_sidecar() {
    let required = || SecurityFloor { injection_required: true, ..SecurityFloor::default() };
    let with_exception =
        || SecurityFloor { except_namespaces: [Name::new("shop").unwrap()].into(), ..required() };
    let (enabled, disabled) = ("leno.dev/injection=enabled", "leno.dev/injection=disabled");
    let fsm = "flomesh.io/monitored-by=fsm";
    let injected = |warnings: usize| ("yes".to_owned(), warnings);
    let skipped = ("Disabled".to_owned(), 0);
    for (labels, annotations) in
        [(disabled, ""), ("", disabled), ("", "openservicemesh.io/sidecar-injection=no")]
    {
        let pod = pod_with_metadata(labels, annotations);
        assert_eq!(
            inject_with_floor(&pod, &namespace_metadata(enabled, ""), SecurityFloor::default()),
            skipped
        );
        assert_eq!(
            inject_with_floor(&pod, &namespace_metadata(enabled, ""), required()),
            injected(1)
        );
        assert_eq!(
            inject_with_floor(&pod, &namespace_metadata(enabled, ""), with_exception()),
            skipped
        );
        let monitored = namespace_metadata(fsm, "flomesh.io/sidecar-injection=enabled");
        assert_eq!(inject_with_floor(&pod, &monitored, required()), injected(1));
        // The floor requires no sidecars in a namespace without injection.
        assert_eq!(inject_with_floor(&pod, &namespace_metadata(disabled, ""), required()), skipped);
    }
    assert_eq!(
        inject_with_floor(&pod_with_metadata("", ""), &namespace_metadata(enabled, ""), required()),
        injected(0)
    );
    let ignored = namespace_metadata("leno.dev/injection=enabled leno.dev/ignore=true", "");
    assert_eq!(
        inject_with_floor(&pod_with_metadata(disabled, ""), &ignored, required()).0,
        "Ignored"
    );
}

#[test]
fn annotations_exclude_nothing_if_the_floor_forbids_exclusions() {
    let lists = [
        "inbound-port-exclusion-list=80",
        "outbound-port-exclusion-list=25",
        "outbound-ip-range-exclusion-list=192.0.2.0/24",
        "outbound-ip-range-inclusion-list=192.0.2.0/24",
        "network-interface-exclusion-list=eth1",
    ];
    for prefix in PREFIXES {
        for list in lists {
            let annotation = format!("{prefix}/{list}");
            for (pod_annotations, namespace_annotations) in [(&*annotation, ""), ("", &*annotation)]
            {
                let namespace =
                    namespace_metadata("leno.dev/injection=enabled", namespace_annotations);
                for (is_forbidden, options) in [(false, 1), (true, 0)] {
                    let floor = SecurityFloor {
                        exclusions_forbidden: is_forbidden,
                        ..SecurityFloor::default()
                    };
                    let settings = InjectionSettings { floor, ..test_settings() };
                    let outcome = inject_sidecar(
                        &pod_with_metadata("", pod_annotations),
                        InjectionTrigger::Namespace(&namespace),
                        &settings,
                    );
                    let InjectionOutcome::Injected { pod, warnings } = outcome.unwrap() else {
                        panic!()
                    };
                    let args = &pod["spec"]["initContainers"][0]["args"];
                    assert_eq!(args.as_array().unwrap().len(), 1 + options, "{annotation}: {args}");
                    assert_eq!(warnings.len(), usize::from(is_forbidden), "{annotation}");
                }
            }
        }
    }
    // The operator's exclusions for all pods are kept.
    let exclusions = Exclusions { outbound_ports: [26].into(), ..Exclusions::default() };
    let floor = SecurityFloor { exclusions_forbidden: true, ..SecurityFloor::default() };
    let settings = InjectionSettings { floor, exclusions, ..test_settings() };
    let pod = pod_with_metadata("", "leno.dev/outbound-port-exclusion-list=25");
    let (pod, warnings) = inject_pod(&pod, &settings);
    let args = &pod["spec"]["initContainers"][0]["args"];
    assert_eq!(*args, json!(["redirect", "--exclude-outbound-ports=26"]));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn sidecar_images_that_the_floor_does_not_permit_are_replaced() {
    let images = |text: &str| [text.to_owned()].into();
    let floor =
        SecurityFloor { sidecar_images: images("mirror.example/leno"), ..SecurityFloor::default() };
    let settings = InjectionSettings { floor, ..test_settings() };
    for (requested, expected, warning_count) in [
        ("mirror.example/leno:0.2", "mirror.example/leno:0.2", 0),
        ("evil.example/leno:0.2", "leno:test", 1),
        // Every tag of the mesh's own repository is permitted.
        ("leno:next", "leno:next", 0),
    ] {
        let pod = pod_with_metadata("", &format!("leno.dev/sidecar-image={requested}"));
        let (pod, warnings) = inject_pod(&pod, &settings);
        for container in pod["spec"]["initContainers"].as_array().unwrap() {
            assert_eq!(container["image"], expected);
        }
        assert_eq!(warnings.len(), warning_count, "{warnings:?}");
    }
}

#[test]
fn native_sidecars_are_supported_from_kubernetes_1_29() {
    for (minor, expected) in [("28", false), ("29", true), ("29+", true), ("34", true), ("", false)]
    {
        assert_eq!(has_native_sidecars("1", minor), expected, "{minor}");
    }
}

#[test]
fn an_annotation_redirects_dns_queries_to_the_sidecar() {
    let has_dns_redirection = |pod_annotations: &str, namespace_annotations: &str| {
        let namespace = namespace_metadata("leno.dev/injection=enabled", namespace_annotations);
        match inject_sidecar(
            &pod_with_metadata("", pod_annotations),
            InjectionTrigger::Namespace(&namespace),
            &test_settings(),
        ) {
            Ok(InjectionOutcome::Injected { pod, .. }) => {
                let has_dns_argument = |index: usize| {
                    let args = pod["spec"]["initContainers"][index]["args"].as_array().unwrap();
                    args.contains(&json!("--dns"))
                };
                assert_eq!(has_dns_argument(0), has_dns_argument(1));
                has_dns_argument(0).to_string()
            }
            other => format!("{other:?}"),
        }
    };
    assert_eq!(has_dns_redirection("", ""), "false");
    assert_eq!(has_dns_redirection("leno.dev/dns=proxy", ""), "true");
    assert_eq!(has_dns_redirection("", "leno.dev/dns=proxy"), "true");
    assert_eq!(has_dns_redirection("leno.dev/dns=cluster", "leno.dev/dns=proxy"), "false");
    assert!(has_dns_redirection("leno.dev/dns=yes", "").contains("leno.dev/dns"));
    let contradictory = "leno.dev/dns=proxy leno.dev/outbound-port-exclusion-list=53";
    assert!(has_dns_redirection(contradictory, "").contains("DnsPort"));
}

#[test]
fn excluded_interfaces_reach_init_container_and_plugin() {
    let pod = |list: &str| {
        json!({
            "metadata": {"name": "web", "annotations": {
                "flomesh.io/network-interface-exclusion-list": list,
                "leno.dev/network-interface-exclusion-list": "net0",
            }},
            "spec": {"containers": [{"name": "app"}]},
        })
    };
    let option = "--exclude-interfaces=eth1,net0";
    for uses_cni_plugin in [true, false] {
        let settings = InjectionSettings { uses_cni_plugin, ..test_settings() };
        let outcome =
            inject_sidecar(&pod("eth1, net0"), InjectionTrigger::User(None), &settings).unwrap();
        let InjectionOutcome::Injected { pod, .. } = outcome else { panic!("{outcome:?}") };
        if uses_cni_plugin {
            assert_eq!(pod["metadata"]["annotations"]["leno.dev/redirect"], option);
        } else {
            let args = &pod["spec"]["initContainers"][0]["args"];
            assert_eq!(*args, json!(["redirect", option]));
        }
    }
    let rejected = inject_sidecar(
        &pod("a-name-that-is-too-long"),
        InjectionTrigger::User(None),
        &test_settings(),
    );
    assert_eq!(
        rejected.unwrap_err().to_string(),
        "pod: annotation `flomesh.io/network-interface-exclusion-list`: `a-name-that-is-too-long` is \
         not the name of a network interface; use one such as eth1"
    );
}
