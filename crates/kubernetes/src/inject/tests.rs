//! Decision table of injection, and pods before and after it.

use expect_test::expect;
use serde_json::{Value, json};

use super::*;
use crate::words::PREFIXES;

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
    for by_plugin in [true, false] {
        let settings = InjectionSettings { by_plugin, ..test_settings() };
        let outcome = inject_sidecar(&pod, InjectionTrigger::User(None), &settings).unwrap();
        let InjectionOutcome::Injected { pod, .. } = outcome else { panic!("{outcome:?}") };
        let first = &pod["spec"]["initContainers"][0];
        let reported = &pod["metadata"]["annotations"]["leno.dev/redirect"];
        if by_plugin {
            assert_eq!(first["args"], json!(["redirect", "--verify"]));
            assert_eq!(first["securityContext"]["runAsNonRoot"], true);
            assert_eq!(first["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!(*reported, "--exclude-outbound-ports=25");
        } else {
            assert_eq!(first["args"], json!(["redirect", "--exclude-outbound-ports=25"]));
            assert!(reported.is_null(), "{reported}");
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

fn namespace_facts(labels: &str, annotations: &str) -> NamespaceFacts {
    let name = "shop".to_owned();
    NamespaceFacts { name, labels: parse_pairs(labels), annotations: parse_pairs(annotations) }
}

fn pod_with_metadata(labels: &str, annotations: &str) -> Value {
    json!({
        "metadata": {"labels": parse_pairs(labels), "annotations": parse_pairs(annotations)},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// Returns `yes`, or the reason for no sidecar.
fn injection_verdict(pod: &Value, namespace: &NamespaceFacts) -> String {
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
fn who_gets_a_sidecar() {
    let osm = "openservicemesh.io/monitored-by=osm";
    let fsm = "flomesh.io/monitored-by=fsm";
    // Labels and annotations of the namespace and of the pod, and the verdict.
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
        // As in OSM: monitored, and injection enabled by either annotation.
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
        // Opting out of their sidecar opts out of ours.
        ("leno.dev/injection=enabled", "", "", "flomesh.io/sidecar-injection=disabled", "Disabled"),
        ("leno.dev/injection=enabled leno.dev/ignore=true", "", "", "", "Ignored"),
        ("leno.dev/injection=enabled openservicemesh.io/ignore=x", "", "", "", "Ignored"),
    ];
    for (labels, annotations, pod_labels, pod_annotations, expected) in table {
        let pod = pod_with_metadata(pod_labels, pod_annotations);
        let found = injection_verdict(&pod, &namespace_facts(labels, annotations));
        assert_eq!(found, expected, "{labels} | {annotations} | {pod_labels} | {pod_annotations}");
    }
}

#[test]
fn who_never_gets_one() {
    let asking = namespace_facts("leno.dev/injection=enabled", "");
    for name in ["kube-system", "kube-public", "kube-node-lease", "leno-system"] {
        let of = NamespaceFacts { name: name.to_owned(), ..asking.clone() };
        assert_eq!(
            injection_verdict(&pod_with_metadata("leno.dev/injection=enabled", ""), &of),
            "SystemNamespace"
        );
    }
    let with = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod_with_metadata("", "");
        change(&mut pod);
        injection_verdict(&pod, &asking)
    };
    assert_eq!(with(&|pod| pod["spec"]["hostNetwork"] = json!(true)), "HostNetwork");
    assert_eq!(with(&|pod| pod["spec"]["os"] = json!({"name": "windows"})), "Windows");
    assert_eq!(
        with(&|pod| {
            pod["metadata"]["labels"]["osm-proxy-uuid"] = json!("1");
            pod["spec"]["containers"][0]["name"] = json!("envoy");
        }),
        "OtherMesh(\"OSM\")"
    );
    assert!(
        with(&|pod| pod["spec"]["securityContext"] = json!({"runAsUser": 1500}))
            .starts_with("container app runs as user 1500")
    );
}

#[test]
fn nobody_gets_two() {
    for native_sidecars in [true, false] {
        let settings = InjectionSettings { native_sidecars, ..test_settings() };
        let (once, _) = inject_pod(&pod_with_metadata("", ""), &settings);
        let again = inject_sidecar(&once, InjectionTrigger::User(None), &settings);
        assert_eq!(again, Ok(InjectionOutcome::Skipped(SkipReason::Present)));
    }
}

#[test]
fn a_pod_with_a_native_sidecar() {
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
    let (after, warnings) = inject_pod(&pod, &test_settings());
    assert!(warnings.is_empty());
    expect_test::expect_file!["golden/native.json"].assert_eq(&format!("{after:#}\n"));
    let mut patched = pod.clone();
    let patch: json_patch::Patch = serde_json::from_value(injection_patch(&pod, &after)).unwrap();
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched, after);
}

#[test]
fn a_pod_with_a_classic_sidecar() {
    let settings = InjectionSettings { native_sidecars: false, ..test_settings() };
    let mut pod = pod_with_metadata("", "");
    pod["spec"]["initContainers"] = json!([{"name": "first"}]);
    let (after, _) = inject_pod(&pod, &settings);
    let names = |list: &str| -> Vec<&str> {
        after["spec"][list]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect()
    };
    assert_eq!(names("initContainers"), ["first", "leno-init"]);
    assert_eq!(names("containers"), ["leno-proxy", "app"]);
    let sidecar = &after["spec"]["containers"][0];
    assert_eq!(sidecar["restartPolicy"], Value::Null);
    assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/readyz");
    // All containers receive SIGTERM at the same time: the sidecar keeps serving within the pod's 30 seconds.
    let args = sidecar["args"].as_array().unwrap();
    assert_eq!(args[args.len() - 4..], ["--drain-delay", "5s", "--drain-timeout", "20s"]);
    let annotations = &after["metadata"]["annotations"];
    assert_eq!(annotations["kubectl.kubernetes.io/default-container"], "app");
}

#[test]
fn what_would_surprise_the_author_of_a_pod_is_a_warning_at_its_creation() {
    let warnings = |field: &str, value: Value| {
        let mut pod = pod_with_metadata("", "");
        *pod.pointer_mut(field).unwrap() = value;
        let (after, warnings) = inject_pod(&pod, &test_settings());
        let annotations = &after["metadata"]["annotations"];
        assert_eq!(annotations["kubectl.kubernetes.io/default-container"], "app");
        warnings
    };
    let spec = |policy: &str| json!({"dnsPolicy": policy, "containers": [{"name": "app"}]});
    assert_eq!(warnings("/spec", spec("ClusterFirst")), [""; 0]);
    let [warning] = &warnings("/spec", spec("Default"))[..] else { panic!() };
    assert!(warning.starts_with("spec.dnsPolicy is Default: the pod does not start"), "{warning}");
    let [warning] = &warnings("/spec", spec("None"))[..] else { panic!() };
    assert!(warning.contains("spec.dnsConfig.nameservers has to have"), "{warning}");
    // Issue 27: the name of the control plane ends with `.svc`.
    assert!(warning.contains("spec.dnsConfig.searches the domain of the cluster"), "{warning}");
    let annotated =
        json!({"annotations": {"leno.dev/outbound-port-exclusion": "80", "a.example/b": "c"}});
    assert_eq!(
        warnings("/metadata", annotated),
        ["annotations: leno.dev/outbound-port-exclusion is not supported; did you mean \
          `leno.dev/outbound-port-exclusion-list`?"]
    );
    // A container chosen by the author is kept.
    let mut chosen = pod_with_metadata("", "");
    chosen["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!("other");
    let (after, _) = inject_pod(&chosen, &test_settings());
    let kept = &after["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"];
    assert_eq!(kept, "other");
}

#[test]
fn many_unknown_labels_and_annotations_cost_few_hints_and_hide_no_other_warning() {
    let keys = |count: usize| -> Value {
        (0..count).map(|number| (format!("leno.dev/injectio{number}"), json!("x"))).collect()
    };
    let mut pod = pod_with_metadata("", "");
    pod["metadata"]["labels"] = keys(25_000);
    pod["metadata"]["annotations"] = keys(25_000);
    pod["spec"]["dnsPolicy"] = json!("Default");
    let (_, warnings) = inject_pod(&pod, &test_settings());
    assert!(warnings[0].starts_with("spec.dnsPolicy is Default"), "{}", warnings[0]);
    let hints = warnings.iter().filter(|it| it.contains("is not supported")).count();
    assert_eq!(hints, UNKNOWN_MARKS_MAX);
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
    let (after, warnings) = inject_pod(&pod, &test_settings());
    let containers = &after["spec"]["containers"];
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
    let env = after["spec"]["initContainers"][1]["env"].as_array().unwrap();
    let probes = env.iter().find(|it| it["name"] == "LENO_PROBES").unwrap();
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
fn annotations_that_cannot_be_read_are_refused() {
    let error = |annotation: &str| {
        let (key, value) = annotation.split_once('=').unwrap();
        let mut pod = pod_with_metadata("", "");
        pod["metadata"]["annotations"][key] = json!(value);
        inject_sidecar(&pod, InjectionTrigger::User(None), &test_settings())
            .unwrap_err()
            .to_string()
    };
    let reported: Vec<String> = [
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
    .assert_debug_eq(&reported);
}

#[test]
fn a_limit_that_nobody_chose_does_not_contradict_a_request() {
    let mut pod = pod_with_metadata("", "");
    let annotations = &mut pod["metadata"]["annotations"];
    annotations["leno.dev/sidecar-resource-requests-memory"] = json!("1Gi");
    annotations["leno.dev/sidecar-resource-limits-cpu"] = json!("5m");
    let (after, _) = inject_pod(&pod, &test_settings());
    let resources = &after["spec"]["initContainers"][1]["resources"];
    assert_eq!(*resources, json!({"requests": {"memory": "1Gi"}, "limits": {"cpu": "5m"}}));
}

#[test]
fn a_sidecar_is_never_of_an_image_that_another_mesh_names() {
    let image = |namespace_says: &str, pod_says: &str| {
        let facts = namespace_facts("leno.dev/injection=enabled", namespace_says);
        match inject_sidecar(
            &pod_with_metadata("", pod_says),
            InjectionTrigger::Namespace(&facts),
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
fn storage_is_the_ephemeral_one_that_containers_have() {
    let resources = |namespace_says: &str, pod_says: &str| {
        let facts = namespace_facts("leno.dev/injection=enabled", namespace_says);
        match inject_sidecar(
            &pod_with_metadata("", pod_says),
            InjectionTrigger::Namespace(&facts),
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
    for (namespace_says, pod_says, expected) in [
        (String::new(), format!("{storage}=1Gi"), "1Gi"),
        (String::new(), format!("{storage}=1Gi {ephemeral}=2Gi"), "2Gi"),
        (format!("{ephemeral}=2Gi"), format!("{storage}=1Gi"), "1Gi"),
        (format!("{storage}=1Gi {ephemeral}=2Gi"), String::new(), "2Gi"),
    ] {
        let limits = &resources(&namespace_says, &pod_says)["limits"];
        let expected = json!({"memory": "128Mi", "ephemeral-storage": expected});
        assert_eq!(*limits, expected, "{namespace_says}; {pod_says}");
    }
    let requests =
        resources("", "leno.dev/sidecar-resource-requests-storage=1Gi")["requests"].clone();
    assert_eq!(requests, json!({"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "1Gi"}));
}

#[test]
fn annotations_of_prometheus_are_added_where_metrics_are_wanted() {
    let wanted =
        namespace_facts("leno.dev/injection=enabled", "openservicemesh.io/metrics=enabled");
    let annotations = |pod: &Value| match inject_sidecar(
        pod,
        InjectionTrigger::Namespace(&wanted),
        &test_settings(),
    ) {
        Ok(InjectionOutcome::Injected { pod, .. }) => pod["metadata"]["annotations"].clone(),
        other => panic!("{other:?}"),
    };
    let added = annotations(&pod_with_metadata("", ""));
    assert_eq!(added["prometheus.io/port"], "15020");
    let own = annotations(&pod_with_metadata("", "prometheus.io/scrape=true"));
    assert_eq!(own["prometheus.io/scrape"], "true");
    assert_eq!(own["prometheus.io/port"], Value::Null);
}

#[test]
fn metrics_and_upgrades_are_open_where_an_annotation_says_so() {
    let arguments = |annotations: &str, settings: &InjectionSettings| {
        let wanted = namespace_facts("leno.dev/injection=enabled", annotations);
        let outcome = inject_sidecar(
            &pod_with_metadata("", ""),
            InjectionTrigger::Namespace(&wanted),
            settings,
        )?;
        let InjectionOutcome::Injected { pod, .. } = outcome else { panic!("{outcome:?}") };
        let arguments = pod["spec"]["initContainers"][1]["args"].as_array().unwrap().clone();
        let opens = |it: &Value| {
            let it = it.as_str()?;
            (it.starts_with("--metrics-from") || it.starts_with("--upgrades"))
                .then(|| it.to_owned())
        };
        Ok(arguments.iter().filter_map(opens).collect::<Vec<String>>())
    };
    let narrow = InjectionSettings { metrics_from: "10.0.0.0/8".parse().ok(), ..test_settings() };
    for (annotations, open, of_narrow) in [
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
            Ok::<_, InjectError>(to_strings(&open))
        );
        assert_eq!(arguments(annotations, &narrow), Ok::<_, InjectError>(to_strings(&of_narrow)));
    }
    for bad in ["leno.dev/upgrades=h2c", "leno.dev/upgrades=tcp,", "leno.dev/upgrades=$(HOME)"] {
        let error = arguments(bad, &test_settings()).unwrap_err().to_string();
        assert!(error.contains("websocket,tcp"), "{error}");
    }
}

#[test]
fn a_wrong_value_of_any_annotation_of_a_pod_is_rejected() {
    let wanted = namespace_facts("leno.dev/injection=enabled", "");
    for (annotation, words) in [
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
            InjectionTrigger::Namespace(&wanted),
            &test_settings(),
        );
        let error = outcome.unwrap_err().to_string();
        let key = annotation.split('=').next().unwrap();
        assert!(error.contains(key) && error.contains(words), "{annotation}: {error}");
    }
    for good in ["leno.dev/default-policy=dry-run", "leno.dev/mtls=permissive", "leno.dev/weight=7"]
    {
        inject_sidecar(
            &pod_with_metadata("", good),
            InjectionTrigger::Namespace(&wanted),
            &test_settings(),
        )
        .unwrap();
    }
    // The previous values stay in force in the namespace: new pods start.
    let wrong = "leno.dev/default-policy=Deny leno.dev/mtls=yes";
    let wanted = namespace_facts("leno.dev/injection=enabled", wrong);
    inject_sidecar(
        &pod_with_metadata("", ""),
        InjectionTrigger::Namespace(&wanted),
        &test_settings(),
    )
    .unwrap();
}

fn to_strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn the_sidecar_tells_the_metrics_of_an_application_that_says_where_they_are() {
    let wanted = namespace_facts("leno.dev/injection=enabled", "leno.dev/metrics=enabled");
    let reported = |annotations: &str| {
        let annotations = format!("prometheus.io/scrape=true {annotations}");
        let pod = pod_with_metadata("", &annotations);
        let Ok(InjectionOutcome::Injected { pod, .. }) =
            inject_sidecar(&pod, InjectionTrigger::Namespace(&wanted), &test_settings())
        else {
            panic!("{annotations}")
        };
        let sidecar = &pod["spec"]["initContainers"][1]["args"];
        let arguments = sidecar.as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let arguments: Vec<&str> = arguments.collect();
        let flag = arguments.iter().position(|argument| *argument == "--application-metrics");
        let annotations = &pod["metadata"]["annotations"];
        let port = annotations["prometheus.io/port"].as_str().unwrap_or_default().to_owned();
        let path = annotations["prometheus.io/path"].as_str().unwrap_or_default().to_owned();
        (flag.map(|flag| arguments[flag + 1].to_owned()), port, path)
    };
    let ours = |of_application: &str| {
        (Some(of_application.to_owned()), "15020".to_owned(), "/metrics".to_owned())
    };
    assert_eq!(reported("prometheus.io/port=9102"), ours("9102/metrics"));
    assert_eq!(reported("prometheus.io/port=9102 prometheus.io/path=/a/b"), ours("9102/a/b"));
    for (left_alone, port) in [
        ("prometheus.io/port=x", "x"),
        ("prometheus.io/port=9102 prometheus.io/scheme=https", "9102"),
        ("prometheus.io/port=9102 prometheus.io/path=/$(HOME)", "9102"),
        ("prometheus.io/port=15020", "15020"),
    ] {
        let (flag, reported, _) = reported(left_alone);
        assert_eq!((flag, reported.as_str()), (None, port), "{left_alone}");
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
    let InjectedManifest { manifest, reported } =
        inject_manifest(manifest, &BTreeMap::new(), &test_settings()).unwrap();
    let reported: Vec<String> =
        reported.iter().map(|(name, reported)| format!("{name}: {reported:?}")).collect();
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
    let wrong = json!({"kind": "Job", "metadata": {"name": "e"}, "spec": {}});
    let (name, error) = inject_manifest(wrong, &BTreeMap::new(), &test_settings()).unwrap_err();
    assert_eq!(name, "Job e");
    assert!(error.to_string().starts_with("Job e has no `spec` with `containers`"));
}

#[test]
fn annotations_of_namespaces_count_for_manifests() {
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
    let of = |port: &str| {
        let annotation = format!("leno.dev/outbound-port-exclusion-list={port}");
        namespace_facts("leno.dev/injection=disabled", &annotation)
    };
    let known = [("shop".to_owned(), of("25")), (String::new(), of("26"))].into();
    let InjectedManifest { manifest, .. } =
        inject_manifest(manifest, &known, &test_settings()).unwrap();
    let args = |index: usize| {
        let spec = &manifest["items"][index]["spec"]["template"]["spec"];
        spec["initContainers"][0]["args"].clone()
    };
    assert_eq!(args(0), json!(["redirect", "--exclude-outbound-ports=25"]));
    assert_eq!(args(1), json!(["redirect", "--exclude-outbound-ports=26"]));
    assert_eq!(args(2), json!(["redirect"]));
}

/// Returns the outcome for a pod under a floor, `yes` or the reason that it has no sidecar, and the number of
/// warnings.
fn under_floor(pod: &Value, facts: &NamespaceFacts, floor: Floor) -> (String, usize) {
    let settings = InjectionSettings { floor, ..test_settings() };
    match inject_sidecar(pod, InjectionTrigger::Namespace(facts), &settings).unwrap() {
        InjectionOutcome::Injected { warnings, .. } => ("yes".to_owned(), warnings.len()),
        InjectionOutcome::Skipped(skip) => (format!("{skip:?}"), 0),
    }
}

#[test]
fn pods_cannot_opt_out_where_the_floor_requires_a_sidecar() {
    let required = || Floor { injection_required: true, ..Floor::default() };
    let excepted =
        || Floor { except_namespaces: [Name::new("shop").unwrap()].into(), ..required() };
    let (on, off) = ("leno.dev/injection=enabled", "leno.dev/injection=disabled");
    let fsm = "flomesh.io/monitored-by=fsm";
    let yes = |warnings: usize| ("yes".to_owned(), warnings);
    let no = ("Disabled".to_owned(), 0);
    for (labels, annotations) in
        [(off, ""), ("", off), ("", "openservicemesh.io/sidecar-injection=no")]
    {
        let pod = pod_with_metadata(labels, annotations);
        assert_eq!(under_floor(&pod, &namespace_facts(on, ""), Floor::default()), no);
        assert_eq!(under_floor(&pod, &namespace_facts(on, ""), required()), yes(1));
        assert_eq!(under_floor(&pod, &namespace_facts(on, ""), excepted()), no);
        let monitored = namespace_facts(fsm, "flomesh.io/sidecar-injection=enabled");
        assert_eq!(under_floor(&pod, &monitored, required()), yes(1));
        // Its namespace has no injection.
        assert_eq!(under_floor(&pod, &namespace_facts(off, ""), required()), no);
    }
    assert_eq!(
        under_floor(&pod_with_metadata("", ""), &namespace_facts(on, ""), required()),
        yes(0)
    );
    let ignored = namespace_facts("leno.dev/injection=enabled leno.dev/ignore=true", "");
    assert_eq!(under_floor(&pod_with_metadata(off, ""), &ignored, required()).0, "Ignored");
}

#[test]
fn annotations_exclude_nothing_where_the_floor_refuses_it() {
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
            for (of_pod, of_namespace) in [(&*annotation, ""), ("", &*annotation)] {
                let facts = namespace_facts("leno.dev/injection=enabled", of_namespace);
                for (rejected, options) in [(false, 1), (true, 0)] {
                    let floor = Floor { exclusions_forbidden: rejected, ..Floor::default() };
                    let settings = InjectionSettings { floor, ..test_settings() };
                    let outcome = inject_sidecar(
                        &pod_with_metadata("", of_pod),
                        InjectionTrigger::Namespace(&facts),
                        &settings,
                    );
                    let InjectionOutcome::Injected { pod, warnings } = outcome.unwrap() else {
                        panic!()
                    };
                    let args = &pod["spec"]["initContainers"][0]["args"];
                    assert_eq!(args.as_array().unwrap().len(), 1 + options, "{annotation}: {args}");
                    assert_eq!(warnings.len(), usize::from(rejected), "{annotation}");
                }
            }
        }
    }
    // The operator's exclusions for all pods are kept.
    let exclusions = Exclusions { outbound_ports: [26].into(), ..Exclusions::default() };
    let floor = Floor { exclusions_forbidden: true, ..Floor::default() };
    let settings = InjectionSettings { floor, exclusions, ..test_settings() };
    let pod = pod_with_metadata("", "leno.dev/outbound-port-exclusion-list=25");
    let (pod, warnings) = inject_pod(&pod, &settings);
    let args = &pod["spec"]["initContainers"][0]["args"];
    assert_eq!(*args, json!(["redirect", "--exclude-outbound-ports=26"]));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn sidecars_have_images_that_the_floor_permits() {
    let images = |text: &str| [text.to_owned()].into();
    let floor = Floor { sidecar_images: images("mirror.example/leno"), ..Floor::default() };
    let settings = InjectionSettings { floor, ..test_settings() };
    for (wanted, found, warned) in [
        ("mirror.example/leno:0.2", "mirror.example/leno:0.2", 0),
        ("evil.example/leno:0.2", "leno:test", 1),
        // The repository of the mesh is always permitted, with other tags too.
        ("leno:next", "leno:next", 0),
    ] {
        let pod = pod_with_metadata("", &format!("leno.dev/sidecar-image={wanted}"));
        let (pod, warnings) = inject_pod(&pod, &settings);
        for container in pod["spec"]["initContainers"].as_array().unwrap() {
            assert_eq!(container["image"], found);
        }
        assert_eq!(warnings.len(), warned, "{warnings:?}");
    }
}

#[test]
fn versions_with_native_sidecars() {
    for (minor, expected) in [("28", false), ("29", true), ("29+", true), ("34", true), ("", false)]
    {
        assert_eq!(has_native_sidecars("1", minor), expected, "{minor}");
    }
}

#[test]
fn look_ups_go_to_the_sidecar_where_an_annotation_says_so() {
    let led = |pod_says: &str, namespace_says: &str| {
        let facts = namespace_facts("leno.dev/injection=enabled", namespace_says);
        match inject_sidecar(
            &pod_with_metadata("", pod_says),
            InjectionTrigger::Namespace(&facts),
            &test_settings(),
        ) {
            Ok(InjectionOutcome::Injected { pod, .. }) => {
                let has = |index: usize| {
                    let args = pod["spec"]["initContainers"][index]["args"].as_array().unwrap();
                    args.contains(&json!("--dns"))
                };
                assert_eq!(has(0), has(1));
                has(0).to_string()
            }
            other => format!("{other:?}"),
        }
    };
    assert_eq!(led("", ""), "false");
    assert_eq!(led("leno.dev/dns=proxy", ""), "true");
    assert_eq!(led("", "leno.dev/dns=proxy"), "true");
    assert_eq!(led("leno.dev/dns=cluster", "leno.dev/dns=proxy"), "false");
    assert!(led("leno.dev/dns=yes", "").contains("leno.dev/dns"));
    let both = "leno.dev/dns=proxy leno.dev/outbound-port-exclusion-list=53";
    assert!(led(both, "").contains("DnsPort"));
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
    for by_plugin in [true, false] {
        let settings = InjectionSettings { by_plugin, ..test_settings() };
        let outcome =
            inject_sidecar(&pod("eth1, net0"), InjectionTrigger::User(None), &settings).unwrap();
        let InjectionOutcome::Injected { pod, .. } = outcome else { panic!("{outcome:?}") };
        if by_plugin {
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
