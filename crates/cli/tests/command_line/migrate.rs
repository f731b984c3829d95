//! Tests of `leno migrate`: migrated documents decide as before, and all others are reported.

use expect_test::expect;
use serde_json::Value;

use crate::run::TestDirectory;

/// An OSM mesh in SMI traffic policy mode: access policies, two splits, limits, and unsupported settings.
const OLD_MESH: &str = r#"
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: false, enableEgress: true, useHTTPSIngress: true}
---
# A comment that stays.
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: page-1, namespace: shop, labels: {app: page}}
spec: {serviceAccount: page}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stranger-1, namespace: shop, labels: {app: stranger}}
spec: {serviceAccount: stranger}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stock-v1-1, namespace: shop, labels: {app: stock, version: v1}}
spec: {serviceAccount: stock, ports: [{name: web, port: 8081, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stock-v2-1, namespace: shop, labels: {app: stock, version: v2}}
spec: {serviceAccount: stock, ports: [{name: web, port: 8082, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: db-1, namespace: shop, labels: {app: db}}
spec: {serviceAccount: db, ports: [{name: sql, port: 5432, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {selector: {app: stock}, ports: [{port: 9080, targetPort: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock-v1, namespace: shop}
spec: {selector: {app: stock, version: v1}, ports: [{port: 9080, targetPort: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock-v2, namespace: shop}
spec: {selector: {app: stock, version: v2}, ports: [{port: 9080, targetPort: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, ports: [{port: 5432, targetPort: sql, appProtocol: tcp}]}
"#;

const OLD_RULES: &str = r#"
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: stock, namespace: shop}
spec:
  matches:
  - {name: read, pathRegex: "/items/[0-9]+", methods: [GET, HEAD]}
  - {name: write, pathRegex: "/items", methods: [POST], headers: [{x-team: "(shop|ops)"}]}
  - {name: all}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: firefox, namespace: shop}
spec: {matches: [{name: canary, methods: [GET, POST], headers: [{user-agent: ".*Firefox.*"}]}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: sql, namespace: shop}
spec: {matches: {ports: [5432]}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: stock, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: stock, namespace: shop}
  sources: [{kind: ServiceAccount, name: page, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: stock, matches: [read, write]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: db, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: db, namespace: shop}
  sources: [{kind: ServiceAccount, name: stock, namespace: shop}]
  rules: [{kind: TCPRoute, name: sql}]
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: stock, namespace: shop}
spec:
  service: stock
  backends: [{service: stock-v1, weight: 30}, {service: stock-v2, weight: 10}]
  matches: [{kind: HTTPRouteGroup, name: firefox}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: stock, namespace: shop}
spec:
  host: stock.shop.svc.cluster.local
  connectionSettings:
    tcp: {connectTimeout: 2s}
    http:
      maxRequests: 100
      circuitBreaking:
        {statTimeWindow: 1m, minRequestAmount: 50, degradedTimeWindow: 20s, errorRatioThreshold: 0.3}
  rateLimit: {local: {http: {requests: 100, unit: second, burst: 20}}}
  httpRoutes: [{path: "/items/[0-9]+", rateLimit: {local: {requests: 10, unit: second}}}]
---
apiVersion: plugin.flomesh.io/v1alpha1
kind: PluginChain
metadata: {name: mail, namespace: shop}
spec: {chains: []}
"#;

/// Returns the decision of `explain` about a request, without the names of the deciding objects.
fn decide_request(test_directory: &TestDirectory, files: &str, request: &[&str]) -> Value {
    let command = [&["explain", "-o", "json", "-f", files, "request"], request].concat();
    let result = test_directory.run_leno(&command);
    let json: Value = serde_json::from_str(&result.stdout).expect(&result.stderr);
    let shares = json["backends"].as_array().expect("a list").iter().map(|backend| {
        let endpoints = backend["endpoints"].as_array().expect("a list").iter();
        let endpoints: Vec<Value> = endpoints
            .map(|endpoint| {
                let limits = endpoint["limits"].as_array().map_or(0, Vec::len);
                serde_json::json!([endpoint["workload"], endpoint["allowed"], limits])
            })
            .collect();
        serde_json::json!([backend["service"], backend["share"], endpoints])
    });
    let shares: Vec<Value> = shares.collect();
    serde_json::json!([json["allowed"], shares])
}

#[test]
fn rewritten_objects_decide_as_before_and_others_are_reported() {
    let test_directory = TestDirectory::with_files(&[
        ("old/mesh.yaml", OLD_MESH),
        ("old/rules/smi.yaml", OLD_RULES),
    ]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    expect![[r#"
        rewritten: MeshConfig osm-system/osm-mesh-config (old/mesh.yaml:1) is MeshConfig mesh
        dropped: MeshConfig osm-system/osm-mesh-config (old/mesh.yaml:1): spec.traffic.useHTTPSIngress: write `protocol: https` into IngressBackends
        not needed: HTTPRouteGroup shop/stock (old/rules/smi.yaml:1): its rules are part of the policies that referenced it, or no policy referenced it
        not needed: HTTPRouteGroup shop/firefox (old/rules/smi.yaml:11): its rules are part of the policies that referenced it, or no policy referenced it
        not needed: TCPRoute shop/sql (old/rules/smi.yaml:16): its rules are part of the policies that referenced it, or no policy referenced it
        rewritten: TrafficTarget shop/stock (old/rules/smi.yaml:21) is AccessPolicy shop/stock
        rewritten: TrafficTarget shop/db (old/rules/smi.yaml:29) is AccessPolicy shop/db
        rewritten: TrafficSplit shop/stock (old/rules/smi.yaml:37) is HTTPRoute shop/stock
        rewritten: UpstreamTrafficSetting shop/stock (old/rules/smi.yaml:45) is CircuitBreaker shop/stock and RateLimit shop/stock
        dropped: PluginChain shop/mail (old/rules/smi.yaml:59): "PluginChain" is not a supported kind; access may become wider: no other rule denies or limits the same requests
        9 native already, 5 rewritten, 3 not needed, 0 unchanged, 2 dropped
    "#]].assert_eq(&result.stdout);
    let checked = test_directory.run_leno(&["check", "-f", "new"]);
    assert_eq!(checked.exit_code, Some(0), "{checked:?}");
    let manifests =
        std::fs::read_to_string(test_directory.path().join("new/mesh.yaml")).expect("a file");
    assert!(manifests.contains("# A comment that stays."), "{manifests}");
    let rules =
        std::fs::read_to_string(test_directory.path().join("new/rules/smi.yaml")).expect("a file");
    assert!(!rules.contains("smi-spec.io") && !rules.contains("openservicemesh"), "{rules}");
    let firefox = ["-H", "user-agent: Mozilla Firefox/1"];
    let mut allowed = 0;
    for from in ["shop/page-1", "shop/stranger-1", "shop/stock-v1-1"] {
        for (method, path) in [
            ("GET", "/items/7"),
            ("HEAD", "/items/7"),
            ("GET", "/items/x"),
            ("POST", "/items"),
            ("DELETE", "/items/7"),
            ("GET", "/"),
        ] {
            for headers in [&[][..], &firefox, &["-H", "x-team: ops"], &["-H", "x-team: opsx"]] {
                for root in ["stock", "stock-v2"] {
                    let url = format!("http://{root}.shop:9080{path}");
                    let request =
                        [&["--from", from, "-X", method, "--url", &url], headers].concat();
                    let old = decide_old_request(&test_directory, &request);
                    assert_eq!(
                        decide_request(&test_directory, "new", &request),
                        old,
                        "{request:?}"
                    );
                    allowed += usize::from(old[0] == Value::Bool(true));
                }
            }
        }
        let request = ["--from", from, "--url", "http://db.shop:5432/"];
        assert_eq!(
            decide_request(&test_directory, "new", &request),
            decide_old_request(&test_directory, &request),
            "{request:?}"
        );
    }
    assert!(allowed > 10, "only {allowed} of the requests are allowed");
}

#[test]
fn ingress_and_egress_objects_are_kept_with_their_references() {
    let rules = "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\n\
                 metadata: {name: pay, namespace: shop}\nspec: {matches: [{name: all}]}\n---\n\
                 apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Egress\n\
                 metadata: {name: pay, namespace: shop}\n\
                 spec: {sources: [{kind: ServiceAccount, name: shop, namespace: shop}], \
                 hosts: [api.example], ports: [{number: 80, protocol: http}], \
                 matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: pay}]}\n";
    let test_directory = TestDirectory::with_files(&[("old/smi.yaml", rules)]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    for expected in [
        "HTTPRouteGroup shop/pay (old/smi.yaml:1): an unchanged document references it",
        "Egress shop/pay (old/smi.yaml:6): it has no native equivalent",
    ] {
        assert!(result.stdout.contains(expected), "{}", result.stdout);
    }
}

/// Returns the decision of `explain` with the old files, after adding `defaultPolicy: deny`: the old files have no
/// settings that Leno reads.
fn decide_old_request(test_directory: &TestDirectory, request: &[&str]) -> Value {
    let config = "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
                  spec: {defaultPolicy: deny}\n";
    let path = test_directory.path().join("old/strict.yaml");
    std::fs::write(path, config).expect("a file");
    decide_request(test_directory, "old", request)
}

/// OSM and FSM objects with unsupported features.
const UNSUPPORTED_OBJECTS: &str = r#"
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: stock, namespace: shop}
spec:
  host: stock.shop.svc.cluster.local
  rateLimit: {global: {http: {domain: a, rateLimitService: {host: b.c.svc.cluster.local, port: 1}}}}
---
apiVersion: policy.flomesh.io/v1alpha1
kind: Egress
metadata: {name: pay, namespace: shop}
spec:
  sources: [{kind: ServiceAccount, name: shop, namespace: shop, mtls: {issuer: other}}]
  hosts: [api.example]
  ports: [{number: 80, protocol: http}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: page, namespace: shop}
spec:
  source: {kind: ServiceAccount, name: page, namespace: shop}
  destinations: [{kind: Service, name: stock, namespace: shop}]
  retryPolicy: {retryOn: retriable-status-codes, numRetries: 3}
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: stock, namespace: shop}
spec: {service: stock, backends: [{service: stock-v1, weight: 0}, {service: stock-v2, weight: 0}]}
"#;

#[test]
fn only_objects_with_an_unsupported_field_are_dropped() {
    let target = OLD_RULES.split("---").nth(3).expect("a TrafficTarget");
    let group = OLD_RULES.split("---").next().expect("a group");
    let rules = format!("{UNSUPPORTED_OBJECTS}---{group}---{target}");
    let test_directory =
        TestDirectory::with_files(&[("old/mesh.yaml", OLD_MESH), ("old/rules.yaml", &rules)]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    let reported: Vec<&str> =
        result.stdout.lines().filter(|line| line.contains("rules.yaml")).collect();
    for (kind, field, widens) in [
        ("UpstreamTrafficSetting shop/stock (old/rules.yaml:1)", "`rateLimit.global.http`", true),
        ("Egress shop/pay (old/rules.yaml:9)", "mtls", false),
        ("Retry shop/page (old/rules.yaml:17)", "spec.retryPolicy.retryOn", false),
        ("TrafficSplit shop/stock (old/rules.yaml:25)", "spec.backends", false),
    ] {
        let prefix = format!("dropped: {kind}: ");
        let line = reported.iter().find(|line| line.starts_with(&prefix)).expect(kind);
        assert!(line.contains(field), "{line}");
        assert_eq!(line.contains("access may become wider"), widens, "{line}");
    }
    assert!(reported.iter().any(|line| line.starts_with("rewritten: TrafficTarget shop/stock ")));
    assert_eq!(test_directory.run_leno(&["check", "-f", "new"]).exit_code, Some(0));
    let manifests =
        std::fs::read_to_string(test_directory.path().join("new/rules.yaml")).expect("a file");
    assert!(manifests.contains("kind: AccessPolicy"), "{manifests}");
}

/// Two FSM settings, and native policies: of the same service, of another one, and of another one with the same name.
const SETTINGS_AND_NATIVE_POLICIES: &str = r#"
apiVersion: policy.flomesh.io/v1alpha1
kind: TrafficWarmup
metadata: {name: stock, namespace: shop}
spec: {duration: 30s}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: db, namespace: shop}
spec:
  host: db.shop.svc.cluster.local
  connectionSettings: {tcp: {maxConnections: 9}}
---
apiVersion: leno.dev/v1alpha1
kind: LoadBalancing
metadata: {name: OTHER_BALANCING, namespace: shop}
spec: {targetRefs: [{kind: Service, name: BALANCED_SERVICE}], algorithm: RoundRobin}
---
apiVersion: leno.dev/v1alpha1
kind: CircuitBreaker
metadata: {name: OTHER_BREAKER, namespace: shop}
spec: {targetRefs: [{kind: Service, name: LIMITED_SERVICE}], limits: {requests: 5}}
"#;

#[test]
fn a_setting_conflicts_with_native_policies_of_its_service_or_name_only() {
    let report = |balancing: &str, balanced: &str, breaker: &str, limited: &str| {
        let rules = SETTINGS_AND_NATIVE_POLICIES
            .replace("OTHER_BALANCING", balancing)
            .replace("BALANCED_SERVICE", balanced)
            .replace("OTHER_BREAKER", breaker)
            .replace("LIMITED_SERVICE", limited);
        let test_directory =
            TestDirectory::with_files(&[("old/mesh.yaml", OLD_MESH), ("old/rules.yaml", &rules)]);
        let result = test_directory.run_leno(&["migrate", "check", "-f", "old"]);
        assert_eq!(result.exit_code, Some(3), "{result:?}");
        let lines = result.stdout.lines().filter(|line| line.contains("rules.yaml"));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    expect![[r#"
        rewritten: TrafficWarmup shop/stock (old/rules.yaml:1) is LoadBalancing shop/stock
        rewritten: UpstreamTrafficSetting shop/db (old/rules.yaml:7) is CircuitBreaker shop/db
    "#]]
    .assert_eq(&report("spread", "stock-v1", "protect", "stock"));
    expect![[r#"
        unchanged: TrafficWarmup shop/stock (old/rules.yaml:1): add its settings to LoadBalancing shop/spread: only one of the two applies
        unchanged: UpstreamTrafficSetting shop/db (old/rules.yaml:7): add its settings to CircuitBreaker shop/protect: only one of the two applies
    "#]].assert_eq(&report("spread", "stock", "protect", "db"));
    expect![[r#"
        unchanged: TrafficWarmup shop/stock (old/rules.yaml:1): LoadBalancing shop/stock of another service exists already: rename it
        unchanged: UpstreamTrafficSetting shop/db (old/rules.yaml:7): CircuitBreaker shop/db of another service exists already: rename it
    "#]].assert_eq(&report("stock", "stock-v1", "db", "stock"));
}

#[test]
fn a_check_reports_the_same_objects_and_writes_nothing() {
    let rules =
        format!("{OLD_RULES}---{}", UNSUPPORTED_OBJECTS.split("---").nth(1).expect("an Egress"));
    let test_directory =
        TestDirectory::with_files(&[("old/mesh.yaml", OLD_MESH), ("old/smi.yaml", &rules)]);
    let result = test_directory.run_leno(&["migrate", "check", "-f", "old"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    let summary = result.stdout.lines().last().expect("a summary");
    assert_eq!(summary, "9 native already, 5 rewritten, 3 not needed, 0 unchanged, 3 dropped");
    for line in [
        "rewritten: TrafficTarget shop/stock (old/smi.yaml:21) is AccessPolicy shop/stock",
        "dropped: MeshConfig osm-system/osm-mesh-config (old/mesh.yaml:1): \
         spec.traffic.useHTTPSIngress: write `protocol: https` into IngressBackends",
        "dropped: PluginChain shop/mail (old/smi.yaml:59): \"PluginChain\" is not a supported \
         kind; access may become wider: no other rule denies or limits the same requests",
    ] {
        assert!(
            result.stdout.lines().any(|reported| reported == line),
            "{line}\n{}",
            result.stdout
        );
    }
    // The migration reports the same about each object.
    let migrated = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(migrated.stdout, result.stdout);
    let result = test_directory.run_leno(&["migrate", "check", "-f", "old", "-o", "json"]);
    let entries: Vec<Value> = serde_json::from_str(&result.stdout).expect("JSON");
    let egress =
        entries.iter().find(|entry| entry["object"] == "Egress shop/pay").expect("the Egress");
    assert_eq!((&egress["outcome"], &egress["widens"]), (&"dropped".into(), &false.into()));
    assert!(egress["reasons"][0].as_str().expect("a reason").contains("mtls"), "{egress}");

    let native = OLD_MESH.split_once("---").expect("documents").1;
    let native_directory = TestDirectory::with_files(&[("old.yaml", native)]);
    assert_eq!(
        native_directory.run_leno(&["migrate", "check", "-f", "old.yaml"]).exit_code,
        Some(0)
    );
    assert_eq!(
        native_directory.run_leno(&["migrate", "-f", "old.yaml"]).exit_code,
        Some(2),
        "--output is missing"
    );
}

#[test]
fn objects_used_only_by_dropped_objects_are_dropped() {
    let group = "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\n\
                 metadata: {name: mail, namespace: shop}\nspec: {matches: [{name: all}]}\n";
    let rules = format!("# Rules of the shop.\n---{OLD_RULES}---\n{group}");
    let test_directory =
        TestDirectory::with_files(&[("old/mesh.yaml", OLD_MESH), ("old/smi.yaml", &rules)]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    let reported = |name: &str| {
        let title = format!("HTTPRouteGroup shop/{name} ");
        result.stdout.lines().find(|line| line.contains(&title)).expect("a line")
    };
    assert!(reported("mail").starts_with("dropped: "), "{result:?}");
    assert!(reported("stock").starts_with("not needed: "), "{result:?}");
    assert!(result.stdout.contains("\n9 native already, "), "{result:?}");
    let manifests =
        std::fs::read_to_string(test_directory.path().join("new/smi.yaml")).expect("a file");
    assert!(manifests.starts_with("# Rules of the shop.\n---\n"), "{manifests}");
    assert_eq!(test_directory.run_leno(&["check", "-f", "new"]).exit_code, Some(0));
}

#[test]
fn documents_without_a_native_form_are_unchanged() {
    let split = OLD_RULES.replace(
        "kind: TrafficSplit\nmetadata: {name: stock",
        "kind: TrafficSplit\nmetadata: {name: other",
    );
    let second =
        OLD_RULES.split("---").find(|text| text.contains("TrafficSplit")).expect("a split");
    let slow = OLD_RULES.replace("errorRatioThreshold: 0.3", "errorAmountThreshold: 3");
    for (rules, expected) in [
        (format!("{split}---{second}"), "TrafficSplit shop/other is for the same service"),
        (slow, "a circuit opens at a number of failures, natively only at a percentage"),
        (
            OLD_RULES.replace("ports: [5432]", "ports: [8081]").replace(
                "name: db, namespace: shop}\n  sources",
                "name: stock, namespace: shop}\n  sources",
            ),
            "would also allow HTTP",
        ),
    ] {
        let test_directory =
            TestDirectory::with_files(&[("old/mesh.yaml", OLD_MESH), ("old/smi.yaml", &rules)]);
        let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
        assert_eq!(result.exit_code, Some(3), "{result:?}");
        assert!(result.stdout.contains(expected), "{result:?}");
        assert_eq!(
            test_directory.run_leno(&["check", "-f", "new"]).exit_code,
            Some(0),
            "{result:?}"
        );
    }
}

#[test]
fn output_files_are_never_overwritten_or_partial() {
    let test_directory =
        TestDirectory::with_files(&[("old/mesh.yaml", OLD_MESH), ("new/keep.yaml", "a: 1\n")]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(result.exit_code, Some(1));
    assert!(result.stderr.contains("new is not empty"), "{}", result.stderr);
    for (old, new, expected) in [
        ("ports: [{port: 9080", "ports: [{port: many", "Service shop/stock: spec.ports[0].port"),
        ("spec: {selector: {app: stock}", "spec: {selector: {app: stock}}", "mesh.yaml:"),
    ] {
        let broken = OLD_MESH.replacen(old, new, 1);
        assert_ne!(broken, OLD_MESH);
        let test_directory =
            TestDirectory::with_files(&[("old/mesh.yaml", &broken), ("old/smi.yaml", OLD_RULES)]);
        let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
        assert_eq!(result.exit_code, Some(1), "{result:?}");
        assert!(result.stderr.contains(expected), "{}", result.stderr);
        assert!(!test_directory.path().join("new").exists());
    }
    let native = OLD_MESH.split_once("---").expect("documents").1;
    let test_directory = TestDirectory::with_files(&[("old.yaml", native)]);
    let result = test_directory.run_leno(&["migrate", "-f", "old.yaml", "-o", "new"]);
    assert_eq!((result.exit_code, result.stdout.lines().count()), (Some(0), 1), "{result:?}");
}
