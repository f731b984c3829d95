//! Tests that unsupported content is rejected with location, reason and hint.

use expect_test::{Expect, expect};
use leno_registry::read_str;

/// Returns the rejections of a text, one per line.
fn list_rejections(text: &str) -> String {
    let (_, rejected) = read_str("f.yaml", text);
    rejected.iter().map(|rejection| format!("{rejection}\n")).collect()
}

/// Checks the rejections of documents with this metadata and one of these specs, one per line, without the
/// name of the document.
pub(crate) fn check_specs(metadata: &str, specs: &[&str], expected: &Expect) {
    let mut lines = String::new();
    for spec in specs {
        let text = format!("{metadata}\nspec: {spec}\n");
        let (objects, rejected) = read_str("f.yaml", &text);
        assert!(!rejected.is_empty(), "accepted: {spec}");
        assert!(objects.is_empty(), "refused and accepted: {spec}");
        for rejection in rejected {
            let line = rejection.to_string();
            let (_, detail) = line.split_once(" default/x: ").unwrap_or(("", &line));
            lines += &format!("{}\n", detail.trim_start_matches("f.yaml:"));
        }
    }
    expected.assert_eq(&lines);
}

#[test]
fn rejections_contain_location_object_field_problem_and_hint() {
    let text = r#"# routes
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: reviews
  namespace: bookinfo
spec:
  parentRefs: [{group: "", kind: Service, name: reviews}]
  rules:
  - backendRefs: [{name: reviews-v1, port: 9080}]
    timeouts:
      request: "5"
"#;
    expect![[r#"
        f.yaml:12:16: HTTPRoute bookinfo/reviews: spec.rules[0].timeouts.request: "5" is not a duration; write `5s`
    "#]].assert_eq(&list_rejections(text));
}

#[test]
fn documents_of_other_systems_are_rejected() {
    let mut lines = String::new();
    for text in [
        "a text",
        "[a, list]",
        "a: 1",
        "kind: Service",
        "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {}}",
        "{apiVersion: v1, kind: Servce, metadata: {name: x, namespace: y}, spec: {}}",
        "{apiVersion: v1, kind: [Service]}",
        "{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: x}, spec: {}}",
        "{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: x}}",
        "{apiVersion: gateway.networking.k8s.io/v1alpha2, kind: HTTPRoute, metadata: {name: x}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: x}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, spec: {}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: x}, spec: {}, extra: 1}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: X_y}, spec: {}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: 1}, spec: {}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {nmae: x}, spec: {}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: x, namespace: a.b}, spec: {}}",
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: x, labels: {v: 1}}, spec: {}}",
        "{apiVersion: leno.dev/v1alpha1, kind: MeshConfig, metadata: {name: x, namespace: y}, spec: {}}",
        "{apiVersion: v1, kind: Service, metadata: {name: a.b}, spec: {ports: [{port: 1}]}}",
        "{apiVersion: v1, kind: Service, kind: Service, metadata: {name: a}, spec: {ports: [{port: 1}]}}",
        "{apiVersion: v1, kind: Service, metadata: {name: !x a}, spec: {ports: [{port: 1}]}}",
        "a: b: c",
        "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 1}]}}\n---\n\
         {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 1}]}}",
    ] {
        let rejections = list_rejections(text);
        assert_ne!(rejections, "", "{text}");
        lines += &rejections;
    }
    expect![[r#"
        f.yaml:1:1: is "a text", not a document; write `apiVersion`, `kind`, `metadata` and `spec`
        f.yaml:1:1: is a list, not a document; write `apiVersion`, `kind`, `metadata` and `spec`
        f.yaml:1:1: kind: is missing; add `kind`
        f.yaml:1:1: apiVersion: is missing; add `apiVersion`
        f.yaml:1:1: Service: apiVersion: is missing; add `apiVersion`
        f.yaml:1:24: Pod default/x: kind: "Pod" is not a supported kind; remove the document: on this machine a `Workload` describes an application; in a cluster `leno inject` adds a sidecar to it
        f.yaml:1:24: Servce y/x: kind: "Servce" is not a supported kind; did you mean `Service`?
        f.yaml:1:24: kind: is a list; use a text
        f.yaml:1:14: Service default/x: apiVersion: "serving.knative.dev/v1" is not a supported version of Service; use `v1`
        f.yaml:1:1: GRPCRoute default/x: spec: is missing; add `spec`
        f.yaml:1:14: HTTPRoute default/x: apiVersion: "gateway.networking.k8s.io/v1alpha2" is not a supported version of HTTPRoute; use `gateway.networking.k8s.io/v1` or `gateway.networking.k8s.io/v1beta1`
        f.yaml:1:1: Workload default/x: spec: is missing; add `spec`
        f.yaml:1:1: Workload: metadata: is missing; add `metadata`
        f.yaml:1:87: Workload default/x: extra: is an unknown field; remove it, or use `apiVersion`, `kind`, `metadata`, `spec` or `status`
        f.yaml:1:66: Workload default/X_y: metadata.name: "X_y" is not a name; use 1 to 253 lower-case letters, digits, `-` or `.`, starting and ending with a letter or digit
        f.yaml:1:66: Workload: metadata.name: 1 is a number, not text; write "1" in quotes
        f.yaml:1:66: Workload: metadata.nmae: is an unknown field; did you mean `name`?
        f.yaml:1:80: Workload a.b/x: metadata.namespace: "a.b" has a dot; use at most 63 lower-case letters, digits or `-`
        f.yaml:1:81: Workload default/x: metadata.labels.v: 1 is a number, not text; write "1" in quotes
        f.yaml:1:82: MeshConfig y/x: metadata.namespace: a MeshConfig has no namespace; remove `namespace`
        f.yaml:1:50: Service default/a.b: metadata.name: "a.b" has a dot; use at most 63 lower-case letters, digits or `-`
        f.yaml:1:33: Service default/a: kind: is defined twice, first in line 1; remove one of the two
        f.yaml:1:50: Service: metadata.name: is a value tagged !x; use a text
        f.yaml:1:5: is not YAML (mapping values are not allowed in this context); correct the syntax; until then the file's last valid state stays in force
        f.yaml:3:1: Service default/a: metadata.name: is already defined at f.yaml:1; remove one of the two, or rename it
    "#]].assert_eq(&lines);
}

#[test]
fn all_problems_of_all_documents_are_reported() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 0}, {prot: 1}], typ: x}}\n\
                ---\n\
                {apiVersion: v1, kind: Service, metadata: {name: b}, spec: {ports: []}}\n";
    expect![[r#"
        f.yaml:1:97: Service default/a: spec.typ: is an unknown field; did you mean `type`? "x" is not supported: use ClusterIP: the mesh has no external listeners and no external names
        f.yaml:1:76: Service default/a: spec.ports[0].port: 0 is out of range; use a number from 1 to 65535
        f.yaml:1:87: Service default/a: spec.ports[1].prot: is an unknown field; did you mean `protocol`? 1 is a number, not text: write "1" in quotes
        f.yaml:1:80: Service default/a: spec.ports[1].port: is missing; add `port`
        f.yaml:3:68: Service default/b: spec.ports: is empty; list at least one port
    "#]].assert_eq(&list_rejections(text));
}

#[test]
fn invalid_workloads_are_rejected() {
    check_specs(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: x}",
        &[
            "{serviceaccount: a}",
            "{serviceAccount: A}",
            "{ports: {port: 80}}",
            "{ports: [{port: 0}]}",
            "{ports: [{port: 65536}]}",
            "{ports: [{port: \"80\"}]}",
            "{ports: [{port: 80.5}]}",
            "{ports: [{port: http}]}",
            "{ports: [{name: a, port: 80}, {name: b, port: 80}]}",
            "{ports: [{name: a, port: 80}, {name: a, port: 81}]}",
            "{ports: [{port: 80, protocol: UDP}]}",
            "{ports: [{port: 80, protocol: http}]}",
            "{address: localhost}",
            "{address: 0.0.0.0}",
            "{address: 127.0.0.1:80}",
            "{run: sleep 10}",
            "{run: exec sleep $TIME}",
            "{run: [\"a\\0\"]}",
            "{env: {A: b}}",
            "{run: [a], env: [{name: A, value: b}]}",
            "{run: [a], env: {\"A=B\": c}}",
            "{run: [a], env: {A: ~}}",
            "{outbound: [{service: a.b.c, port: 80, listen: \"127.0.0.1:1\"}]}",
            "{outbound: [{service: a, listen: \"127.0.0.1:1\"}]}",
            "{outbound: [{service: a, port: 80, listen: \"localhost:1\"}]}",
            "{outbound: [{service: a, port: 80, listen: 19081}]}",
            "{outbound: [{service: a, port: 80, listen: \"127.0.0.1:0\"}]}",
            "{outbound: [{service: a, port: 80, listen: \"127.0.0.1:1\"}, {service: b, port: 80, listen: \"127.0.0.1:1\"}]}",
            "{ports: [{port: 80}], outbound: [{service: a, port: 80, listen: \"127.0.0.1:80\"}]}",
            "{weight: 0}",
            "{weight: 1001}",
        ],
        &expect![[r#"
            spec.serviceaccount: is an unknown field; did you mean `serviceAccount`?
            spec.serviceAccount: "A" is not a name; use 1 to 253 lower-case letters, digits, `-` or `.`, starting and ending with a letter or digit
            spec.ports: is a map, not a list; write a list, each element after `- `
            spec.ports[0].port: 0 is out of range; use a number from 1 to 65535
            spec.ports[0].port: 65536 is out of range; use a number from 1 to 65535
            spec.ports[0].port: "80" is text, not a number; write 80, without quotes or a tag
            spec.ports[0].port: 80.5 is not a whole number; use a number from 1 to 65535
            spec.ports[0].port: "http" is not a number; use a number from 1 to 65535
            spec.ports[1]: port 80 is listed twice; remove one of the two
            spec.ports[1]: its name is used by another port; use another name
            spec.ports[0].protocol: "UDP" is not a supported value; use `HTTP`, `HTTP2`, `GRPC`, `TCP` or `detect`
            spec.ports[0].protocol: "http" is not a supported value; did you mean `HTTP`?
            spec.address: "localhost" is not an IP address; use one such as 127.0.0.1 or ::1
            spec.address: 0.0.0.0 is not an address that a sidecar can connect to; use the address that the application listens on, such as 127.0.0.1
            spec.address: "127.0.0.1:80" is not an IP address; use one such as 127.0.0.1 or ::1
            spec.run: is "sleep 10", not a list; write the program and each argument as an element: ["sleep", "10"]
            spec.run: is "exec sleep $TIME", not a list; write the program and each argument as an element; for a shell: ["sh", "-c", "COMMAND"]
            spec.run[0]: contains a NUL character; remove it
            spec.env: applies to the command in `run`, which is not set; add `run`, or set the variables where the application is started
            spec.env: is a list, not a map; write a map of names and values
            spec.env["A=B"]: "A=B" cannot be the name of a variable; use one without `=` and NUL
            spec.env.A: is nothing; use a text
            spec.outbound[0].service: "a.b.c" is not the name of a service; use `name.namespace`, such as details.bookinfo
            spec.outbound[0].port: is missing; add `port`
            spec.outbound[0].listen: "localhost:1" is not an address and port; use one such as "127.0.0.1:19081"
            spec.outbound[0].listen: 19081 is not an address and port; use one such as "127.0.0.1:19081"
            spec.outbound[0].listen: has port 0; use a number from 1 to 65535
            spec.outbound[1]: two outbound listeners use 127.0.0.1:1; use another port for one of them
            spec.outbound: an outbound listener uses 127.0.0.1:80, the address of the application; use another port for the listener
            spec.weight: 0 is out of range; use a number from 1 to 1000
            spec.weight: 1001 is out of range; use a number from 1 to 1000
        "#]],
    );
}

#[test]
fn invalid_commands_are_rejected() {
    check_specs(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: x}",
        &[
            "{cwd: /srv}",
            "{run: [a], cwd: srv}",
            "{run: [a], user: \"a b\"}",
            "{run: [a], user: \"1:x\"}",
            "{run: [a], readiness: {}}",
            "{run: [a], ports: [{port: 80}], readiness: {httpGet: {port: 81}}}",
            "{run: [a], ports: [{port: 80}], readiness: {httpGet: {port: 80, path: ready}}}",
        ],
        &expect![[r#"
            spec.cwd: applies to the command in `run`, which is not set; add `run`, or set it where the application is started
            spec.cwd: "srv" is not an absolute path; write the whole path, such as /srv/app
            spec.user: "a b" is not a user; use a name such as www-data, or numbers such as 1000 or "1000:1000"
            spec.user: "1:x" is not a user; use a name such as www-data, or numbers such as 1000 or "1000:1000"
            spec.readiness.httpGet: is missing; add `httpGet`
            spec.readiness.httpGet.port: 81 is not a port of the workload; use the number of one of `ports`
            spec.readiness.httpGet.path: "ready" is not a path; use one such as /ready
        "#]],
    );
}

#[test]
fn workloads_with_the_account_of_the_control_plane_are_rejected() {
    let mut lines = String::new();
    for (name, spec) in [
        ("{name: x, namespace: leno-system}", "{serviceAccount: leno-control}"),
        ("{name: x, namespace: leno-system}", "{serviceAccount: other}"),
        ("{name: x, namespace: shop}", "{serviceAccount: leno-control}"),
    ] {
        lines += &list_rejections(&format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name}\nspec: {spec}\n"
        ));
    }
    expect![[r#"
        f.yaml:4:24: Workload leno-system/x: spec.serviceAccount: leno-system/leno-control is the account of the control plane; use another account or another namespace
    "#]].assert_eq(&lines);
}

#[test]
fn invalid_mesh_configs_are_rejected() {
    check_specs(
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: x}",
        &[
            "{defaultPolicy: Deny}",
            "{defaultPolicy: open}",
            "{trustDomain: a_b}",
            "{trustDomain: a/b, defaultpolicy: deny}",
            "{namespaces: {shop: deny}}",
            "{namespaces: [{name: shop}]}",
            "{namespaces: [{name: shop, defaultPolicy: dry-runs}]}",
            "{namespaces: [{defaultPolicy: dry-run}]}",
            "{namespaces: [{name: a, defaultPolicy: dry-run}, {name: a, defaultPolicy: deny}]}",
            "{egress: deny, apiServerEgress: refuse}",
            "{egress: deny, apiServerEgres: deny}",
        ],
        &expect![[r#"
            4:23: MeshConfig x: spec.defaultPolicy: "Deny" is not a supported value; did you mean `deny`?
            4:23: MeshConfig x: spec.defaultPolicy: "open" is not a supported value; use `allow`, `deny` or `dry-run`
            4:21: MeshConfig x: spec.trustDomain: "a_b" is not a name; use 1 to 253 lower-case letters, digits, `-` or `.`, starting and ending with a letter or digit
            4:41: MeshConfig x: spec.defaultpolicy: is an unknown field; did you mean `defaultPolicy`?
            4:21: MeshConfig x: spec.trustDomain: "a/b" is not a name; use 1 to 253 lower-case letters, digits, `-` or `.`, starting and ending with a letter or digit
            4:20: MeshConfig x: spec.namespaces: is a map, not a list; write a list, each element after `- `
            4:21: MeshConfig x: spec.namespaces[0]: has no settings; add `defaultPolicy` or `mtls`
            4:49: MeshConfig x: spec.namespaces[0].defaultPolicy: "dry-runs" is not a supported value; did you mean `dry-run`?
            4:21: MeshConfig x: spec.namespaces[0].name: is missing; add `name`
            4:56: MeshConfig x: spec.namespaces[1]: names a namespace that is already listed; remove one of the two
            4:39: MeshConfig x: spec.apiServerEgress: "refuse" is not a supported value; use `allow` or `deny`
            4:38: MeshConfig x: spec.apiServerEgres: is an unknown field; did you mean `apiServerEgress`?
        "#]],
    );
}

#[test]
fn empty_floors_and_settings_below_the_floor_are_rejected() {
    check_specs(
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: x}",
        &[
            "{floor: {}}",
            "{floor: {defaultpolicy: deny}}",
            "{floor: {mtls: permissive}}",
            "{floor: {injection: enabled}}",
            "{floor: {exclusions: allow}}",
            "{floor: {sidecarImages: []}}",
            "{floor: {sidecarImages: ['r.example/leno:0.1', 'r.example/leno@sha256:00', 'a b', '']}}",
            "{floor: {exceptNamespaces: [a.b]}}",
            "{defaultPolicy: allow, mtls: permissive, floor: {defaultPolicy: dry-run, mtls: strict}}",
            "{namespaces: [{name: a, defaultPolicy: allow}], floor: {defaultPolicy: deny, exceptNamespaces: [b]}}",
        ],
        &expect![[r#"
            4:15: MeshConfig x: spec.floor: sets no floor; remove it, or use `defaultPolicy`, `mtls`, `injection`, `exclusions`, `sidecarImages` or `exceptNamespaces`
            4:31: MeshConfig x: spec.floor.defaultpolicy: is an unknown field; did you mean `defaultPolicy`?
            4:22: MeshConfig x: spec.floor.mtls: "permissive" is not a supported value; use `strict`
            4:27: MeshConfig x: spec.floor.injection: "enabled" is not a supported value; use `required`
            4:28: MeshConfig x: spec.floor.exclusions: "allow" is not a supported value; use `forbidden`
            4:31: MeshConfig x: spec.floor.sidecarImages: is empty, which is ambiguous; add an element, or omit it for any image
            4:32: MeshConfig x: spec.floor.sidecarImages[0]: "r.example/leno:0.1" has a tag or a digest; use the repository: r.example/leno
            4:54: MeshConfig x: spec.floor.sidecarImages[1]: "r.example/leno@sha256:00" has a tag or a digest; use the repository: r.example/leno
            4:82: MeshConfig x: spec.floor.sidecarImages[2]: "a b" is not a repository; use one such as registry.example.org/leno, or registry.example.org/mesh/ for all below
            4:89: MeshConfig x: spec.floor.sidecarImages[3]: "" is not a repository; use one such as registry.example.org/leno, or registry.example.org/mesh/ for all below
            4:35: MeshConfig x: spec.floor.exceptNamespaces[0]: "a.b" has a dot; use at most 63 lower-case letters, digits or `-`
            4:23: MeshConfig x: spec.defaultPolicy: is below spec.floor.defaultPolicy; use dry-run, or list the namespaces that need it in spec.floor.exceptNamespaces
            4:36: MeshConfig x: spec.mtls: is below spec.floor.mtls; use strict, or list the namespaces that need it in spec.floor.exceptNamespaces
            4:46: MeshConfig x: spec.namespaces[0].defaultPolicy: is below spec.floor.defaultPolicy; use deny, or add a to spec.floor.exceptNamespaces
        "#]],
    );
}

#[test]
fn invalid_observability_settings_are_rejected() {
    check_specs(
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: x}",
        &[
            "{tracing: {}}",
            "{tracing: {sampling: 1, export: {zipkin: {endpoint: http://c:9411}}}}",
            "{tracing: {sampling: 101%, export: {zipkin: {endpoint: http://c:9411}}}}",
            "{tracing: {export: {}}}",
            "{tracing: {export: {otlp: {endpoint: http://c:1}, zipkin: {endpoint: http://c:1}}}}",
            "{tracing: {export: {otlp: {endpoint: ftp://c:4318}}}}",
            "{tracing: {export: {otlp: {endpoint: c:4318}}}}",
            "{tracing: {export: {otlp: {endpoint: http://c:4317/v1, protocol: grpc}}}}",
            "{tracing: {export: {otlp: {endpoint: http://c:4318, protocol: http2}}}}",
            "{tracing: {errors: no, propagation: b4, export: {zipkin: {endpoint: http://c}}}}",
            "{accessLog: {format: json}}",
            "{accessLog: {template: ''}}",
            "{accessLog: {template: 'a line'}}",
            "{accessLog: {template: '{methods}'}}",
            "{accessLog: {template: '{authorization}', sampling: 1e2%}}",
            "{accessLog: {export: {zipkin: {endpoint: http://c:9411}}}}",
            "{accessLog: {export: {otlp: {endpoint: http://c:4318, interval: 5s}}}}",
            "{metrics: {}}",
            "{metrics: {export: {zipkin: {endpoint: http://c:9411}}}}",
            "{metrics: {export: {otlp: {protocol: http}}}}",
            "{metrics: {export: {otlp: {endpoint: http://c:4318, interval: 500ms}}}}",
            "{metrics: {export: {otlp: {endpoint: http://c:4318, interval: 2h}}}}",
            "{metrics: {export: {otlp: {endpoint: http://c:4318, interval: 60}}}}",
        ],
        &expect![[r#"
            4:17: MeshConfig x: spec.tracing.export: is missing; add `export`
            4:28: MeshConfig x: spec.tracing.sampling: 1 is not a percentage; did you mean `1%`?
            4:28: MeshConfig x: spec.tracing.sampling: "101%" is not a percentage; use one from `0%` to `100%` with at most four decimals, such as `1%`
            4:26: MeshConfig x: spec.tracing.export: has no collector; add `otlp` or `zipkin`
            4:26: MeshConfig x: spec.tracing.export: has `otlp` and `zipkin` together; keep one of them
            4:44: MeshConfig x: spec.tracing.export.otlp.endpoint: "ftp://c:4318" is not a valid endpoint: an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS; correct it, as in `http://127.0.0.1:4318`
            4:44: MeshConfig x: spec.tracing.export.otlp.endpoint: "c:4318" is not a valid endpoint: an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS; correct it, as in `http://127.0.0.1:4318`
            4:44: MeshConfig x: spec.tracing.export.otlp.endpoint: "http://c:4317/v1" is not a valid endpoint: a path may contain only visible characters without `?` and `#`, and gRPC has no path; correct it, as in `http://127.0.0.1:4317`
            4:69: MeshConfig x: spec.tracing.export.otlp.protocol: "http2" is not a supported value; did you mean `http`?
            4:26: MeshConfig x: spec.tracing.errors: "no" is neither true nor false; use true or false
            4:43: MeshConfig x: spec.tracing.propagation: "b4" is not a supported value; did you mean `b3`?
            4:75: MeshConfig x: spec.tracing.export.zipkin.endpoint: "http://c" is not a valid endpoint: an endpoint needs a port from 1 to 65535, such as `:4318`; correct it, as in `http://127.0.0.1:9411`
            4:28: MeshConfig x: spec.accessLog.format: is an unknown field; remove it, or use `sampling`, `errors`, `template` or `export`
            4:30: MeshConfig x: spec.accessLog.template: a template must have 1 to 1024 bytes; correct it, as in `{method} {path} {response_code}`
            4:30: MeshConfig x: spec.accessLog.template: a template must contain at least one field, such as `{path}`; correct it, as in `{method} {path} {response_code}`
            4:30: MeshConfig x: spec.accessLog.template: `methods` is not a field of the access log; did you mean `method`?
            4:59: MeshConfig x: spec.accessLog.sampling: "1e2%" is not a percentage; use one from `0%` to `100%` with at most four decimals, such as `1%`
            4:30: MeshConfig x: spec.accessLog.template: `authorization` is not a field of the access log; use `start_time`, `direction`, `method`, `path`, `protocol`, `authority`, `response_code`, `response_code_details`, `grpc_status`, `upstream_cluster`, `route`, `policy`, `dry_run_reason`, `peer`, `downstream_remote`, `upstream_host`, `bytes_received`, `bytes_sent`, `duration`, `time_to_first_byte`, `upstream_service_time`, `retries`, `hedge`, `x_forwarded_for`, `user_agent`, `request_id`, `requested_server_name`, `trace_id` or `span_id`
            4:37: MeshConfig x: spec.accessLog.export.zipkin: is an unknown field; remove it, or use `otlp`
            4:28: MeshConfig x: spec.accessLog.export.otlp: is missing; add `otlp`
            4:71: MeshConfig x: spec.accessLog.export.otlp.interval: is an unknown field; remove it, or use `endpoint` or `protocol`
            4:17: MeshConfig x: spec.metrics.export: is missing; add `export`
            4:35: MeshConfig x: spec.metrics.export.zipkin: is an unknown field; remove it, or use `otlp`
            4:26: MeshConfig x: spec.metrics.export.otlp: is missing; add `otlp`
            4:33: MeshConfig x: spec.metrics.export.otlp.endpoint: is missing; add `endpoint`
            4:69: MeshConfig x: spec.metrics.export.otlp.interval: "500ms" is out of range; use a time with a unit, from 1s to 1h, such as "5s"
            4:69: MeshConfig x: spec.metrics.export.otlp.interval: "2h" is out of range; use a time with a unit, from 1s to 1h, such as "5s"
            4:69: MeshConfig x: spec.metrics.export.otlp.interval: 60 is not a duration; write `60s`
        "#]],
    );
}

#[test]
fn unsupported_services_are_rejected() {
    check_specs(
        "apiVersion: v1\nkind: Service\nmetadata: {name: x}",
        &[
            "{selector: {a: b}}",
            "{ports: []}",
            "{ports: [{port: 80}, {port: 80}]}",
            "{ports: [{port: 80, protocol: UDP}]}",
            "{ports: [{port: 80, appProtocol: dubbo}]}",
            "{ports: [{port: 80, targetPort: 0}]}",
            "{ports: [{port: 80, targetPort: \"8080\"}]}",
            "{ports: [{port: 80, nodePort: 30080}]}",
            "{ports: [{port: 80}], type: LoadBalancer}",
            "{ports: [{port: 80}], type: NodePort}",
            "{ports: [{port: 80}], type: ExternalName, externalName: example.com}",
            "{ports: [{port: 80}], sessionAffinity: ClientIP}",
            "{ports: [{port: 80}], internalTrafficPolicy: Local}",
            "{ports: [{port: 80}], externalIPs: [10.0.0.1]}",
            "{ports: [{port: 80}], selectors: {a: b}}",
            "{ports: [{port: 80}], selector: {a: true}}",
            "{ports: [{port: 80}], selector: [a]}",
        ],
        &expect![[r#"
            spec.ports: is missing; add `ports`
            spec.ports: is empty; list at least one port
            spec.ports[1]: port 80 is listed twice; remove one of the two
            spec.ports[0].protocol: "UDP" is not supported; use TCP; set the application protocol in `appProtocol`
            spec.ports[0].appProtocol: "dubbo" is not a supported value; use `http`, `http2`, `grpc`, `tcp`, `https`, `tls`, `tcp-server-first`, `mysql`, `mongo`, `redis`, `smtp`, `h2c`, `kubernetes.io/h2c`, `kubernetes.io/ws` or `kubernetes.io/wss`
            spec.ports[0].targetPort: 0 is out of range; use a number from 1 to 65535
            spec.ports[0].targetPort: "8080" is text, not a number; write 8080, without quotes or a tag
            spec.ports[0].nodePort: is not supported; remove it
            spec.type: "LoadBalancer" is not supported; use ClusterIP: the mesh has no external listeners and no external names
            spec.type: "NodePort" is not supported; use ClusterIP: the mesh has no external listeners and no external names
            spec.externalName: is not supported; remove it
            spec.type: "ExternalName" is not supported; use ClusterIP: the mesh has no external listeners and no external names
            spec.sessionAffinity: "ClientIP" is not supported; use None
            spec.internalTrafficPolicy: "Local" is not supported; use Cluster
            spec.externalIPs: is not supported; remove it
            spec.selectors: is an unknown field; did you mean `selector`?
            spec.selector.a: true is a boolean, not text; write "true" in quotes
            spec.selector: is a list, not a map; write a map, such as {key: value}
        "#]],
    );
}

#[test]
fn http_routes_with_unsupported_parents_are_rejected() {
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: x}",
        &[
            "{rules: []}",
            "{parentRefs: []}",
            "{parentRefs: [{name: a}]}",
            "{parentRefs: [{kind: Gateway, name: a}]}",
            "{parentRefs: [{group: gateway.networking.k8s.io, kind: Service, name: a}]}",
            "{parentRefs: [{group: \"\", kind: Service, name: a, sectionName: http}]}",
            "{parentRefs: [{group: \"\", kind: Service, name: a, port: 0}]}",
            "{parentRefs: [{group: \"\", kind: Service, name: a}, {group: \"\", kind: Service, name: a}]}",
        ],
        &expect![[r#"
            spec.parentRefs: is missing; add `parentRefs`
            spec.parentRefs: is empty; name the service that the route applies to
            spec.parentRefs[0]: has no `kind`, which defaults to Gateway; routes are attached to services here; add `group: ""` and `kind: Service`
            spec.parentRefs[0].kind: "Gateway" is not a supported value; use `Service`
            spec.parentRefs[0].group: "gateway.networking.k8s.io" is not the group of Service; use ""
            spec.parentRefs[0].sectionName: is not supported; use `port` to name one port of the service
            spec.parentRefs[0].port: 0 is out of range; use a number from 1 to 65535
            spec.parentRefs[1]: is listed twice; remove one of the two
        "#]],
    );
}

#[test]
fn unsupported_http_routes_are_rejected() {
    let rule = |rule: &&str| {
        format!("{{parentRefs: [{{group: \"\", kind: Service, name: a}}], rules: [{rule}]}}")
    };
    let specs: Vec<String> = HTTP_ROUTE_RULES.iter().map(rule).collect();
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.rules[0].filters[0].type: "ExtensionRef" is not a supported value; use `RequestHeaderModifier`, `ResponseHeaderModifier`, `RequestRedirect`, `URLRewrite`, `RequestMirror` or `CORS`
            spec.rules[0].filters[0].requestHeaderModifier: is missing; add `requestHeaderModifier`
            spec.rules[0].filters[0].requestRedirect: is an unknown field; remove it, or use `type` or `urlRewrite`
            spec.rules[0].filters[1]: is a second URLRewrite; join the two
            spec.rules[0].filters: has a RequestRedirect and a URLRewrite, of which a rule may have one; remove one of the two
            spec.rules[0].filters: has a RequestRedirect, so `backendRefs` receive no requests; remove the filter or `backendRefs`
            spec.rules[0].filters[0].requestRedirect.scheme: "ftp" is not a supported value; use `http` or `https`
            spec.rules[0].filters[0].requestRedirect.statusCode: 304 is not a redirect status; use 301, 302, 303, 307 or 308
            spec.rules[0].filters[0].requestRedirect.port: 0 is out of range; use a number from 1 to 65535
            spec.rules[0].filters[0].requestRedirect.hostname: "10.0.0.1" is an address; use a host name
            spec.rules[0].filters[0].requestRedirect.hostname: "*.example" is not a name; use 1 to 253 lower-case letters, digits, `-` or `.`, starting and ending with a letter or digit
            spec.rules[0].filters[0].urlRewrite.path.replacePrefixMatch: is an unknown field; remove it, or use `type` or `replaceFullPath`
            spec.rules[0].filters[0].urlRewrite.path.replaceFullPath: is missing; add `replaceFullPath`
            spec.rules[0].filters[0].urlRewrite.path.replaceFullPath: "a" does not start with `/`; use a path such as "/ratings"
            spec.rules[0].filters[0].urlRewrite.path: replaces a prefix, which requires a rule with a single match of the type PathPrefix; use one match with a path of the type PathPrefix
            spec.rules[0].filters[0].urlRewrite.path: replaces a prefix, which requires a rule with a single match of the type PathPrefix; use one match with a path of the type PathPrefix
            spec.rules[0].filters[0].requestHeaderModifier.set[0].name: "Host" is a header of the protocol and cannot be changed; use a URLRewrite with `hostname`
            spec.rules[0].filters[0].responseHeaderModifier.remove[0]: "Transfer-Encoding" is a header of the protocol and cannot be changed; remove it
            spec.rules[0].filters[0].requestHeaderModifier.set[0].name: "a b" is not the name of a header; use letters, digits and `-`
            spec.rules[0].filters[0].requestHeaderModifier.set[0].value: "b\r\nc: d" is not a value of a header; use 1 to 4096 bytes, without control characters and outer spaces
            spec.rules[0].filters[0].requestHeaderModifier.set[0].value: "" is not a value of a header; use 1 to 4096 bytes, without control characters and outer spaces
            spec.rules[0].filters[0].requestHeaderModifier: has two changes of the header "a"; name each header once; several values go into one, separated by commas
            spec.rules[0].retry.attempts: -1 is out of range; use a number from 0 to 2147483647
            spec.rules[0].retry.codes[0]: 200 is out of range; use a number from 400 to 599
            spec.rules[0].retry.codes: names a status twice; remove one of the two
            spec.rules[0].retry.backoff: "soon" is not a duration; use a number with a unit, such as "5s" or "500ms"
            spec.rules[0].retry.perTry: is an unknown field; remove it, or use `codes`, `attempts` or `backoff`
            spec.rules[0].matches[0].path.type: "Prefix" is not a supported value; use `Exact`, `PathPrefix` or `RegularExpression`
            spec.rules[0].matches[0].path.value: "a" does not start with `/`; use a path such as "/ratings"
            spec.rules[0].matches[0].path.value: "/a//b" is not normalized: it has an empty, `.` or `..` element; use a path such as "/ratings"
            spec.rules[0].matches[0].path.value: "/a/../b" is not normalized: it has an empty, `.` or `..` element; use a path such as "/ratings"
            spec.rules[0].matches[0].path.value: "/a b" has characters that are not valid in a path; did you mean `/a%20b`?
            spec.rules[0].matches[0].path.value: "/a%2Fb" has characters that are not valid in a path; use a path such as "/ratings"
            spec.rules[0].matches[0].path.value: "/(a" is not a regular expression (unclosed group); correct it; the syntax is RE2's, without look-around or back references
            spec.rules[0].matches[0].path.value: is missing; add `value`
            spec.rules[0].matches[0].path: is "/a", not a map; write a map, such as {type: PathPrefix, value: "/a"}
            spec.rules[0].matches[0].method: "get" is not a supported value; did you mean `GET`?
            spec.rules[0].matches[0].method: "FETCH" is not a supported value; use `GET`, `HEAD`, `POST`, `PUT`, `DELETE`, `CONNECT`, `OPTIONS`, `TRACE` or `PATCH`
            spec.rules[0].matches[0].headers[0].name: "a b" is not the name of a header; use letters, digits and `-`
            spec.rules[0].matches[0].headers[1]: has the name of another entry, of which only the first would apply; remove one of the two
            spec.rules[0].matches[0].headers[0].type: "Regex" is not a supported value; use `Exact` or `RegularExpression`
            spec.rules[0].matches[0].headers: is a map, not a list; write a list, each element after `- `
            spec.rules[0].matches[0].queryParams[0].value: 1 is a number, not text; write "1" in quotes
            spec.rules[0].matches[0].query: is an unknown field; did you mean `queryParams`?
            spec.rules[0].backendRefs[0].port: is missing; add `port`
            spec.rules[0].backendRefs[0].namespace: "o.ther" has a dot; use at most 63 lower-case letters, digits or `-`
            spec.rules[0].backendRefs[0].kind: "ServiceImport" is not a supported value; use `Service`
            spec.rules[0].backendRefs[0].weight: -1 is out of range; use a number from 0 to 1000000
            spec.rules[0].backendRefs[0].weight: 1000001 is out of range; use a number from 0 to 1000000
            spec.rules[0].backendRefs[0].weight: 0.5 is not a whole number; use a number from 0 to 1000000
            spec.rules[0].backendRefs[0].filters[0].type: "RequestRedirect" is not a supported value; use `RequestHeaderModifier`, `ResponseHeaderModifier` or `URLRewrite`
            spec.rules[0].timeouts.request: 5 is not a duration; write `5s`
            spec.rules[0].timeouts.request: "1.5s" is not a duration; use a number with a unit, such as "5s" or "500ms"
            spec.rules[0].timeouts.backendRequest: "2s" is longer than `request`, which includes it; lower it, or raise `request`
            spec.rules[0].timeouts.backendRequest: 5 is not a duration; write `5s`
        "#]],
    );
}

const HTTP_ROUTE_RULES: &[&str] = &[
    "{filters: [{type: ExtensionRef}]}",
    "{filters: [{type: RequestHeaderModifier}]}",
    "{filters: [{type: URLRewrite, urlRewrite: {}, requestRedirect: {}}]}",
    "{filters: [{type: URLRewrite, urlRewrite: {hostname: a}}, {type: URLRewrite, urlRewrite: {hostname: b}}]}",
    "{filters: [{type: URLRewrite, urlRewrite: {hostname: a}}, {type: RequestRedirect, requestRedirect: {}}]}",
    "{filters: [{type: RequestRedirect, requestRedirect: {}}], backendRefs: [{name: a, port: 80}]}",
    "{filters: [{type: RequestRedirect, requestRedirect: {scheme: ftp, statusCode: 304, port: 0}}]}",
    "{filters: [{type: RequestRedirect, requestRedirect: {hostname: 10.0.0.1}}]}",
    "{filters: [{type: RequestRedirect, requestRedirect: {hostname: \"*.example\"}}]}",
    "{filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replacePrefixMatch: /a}}}]}",
    "{filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: a}}}]}",
    "{matches: [{path: {type: Exact, value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}",
    "{matches: [{path: {value: /a}}, {path: {value: /b}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}",
    "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: Host, value: a}]}}]}",
    "{filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [Transfer-Encoding]}}]}",
    "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: \"a b\", value: a}]}}]}",
    "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: \"b\\r\\nc: d\"}]}}]}",
    "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: \"\"}]}}]}",
    "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}], remove: [A]}}]}",
    "{retry: {attempts: -1}}",
    "{retry: {codes: [200]}}",
    "{retry: {codes: [503, 503]}}",
    "{retry: {backoff: soon}}",
    "{retry: {perTry: 1s}}",
    "{matches: [{path: {type: Prefix, value: /a}}]}",
    "{matches: [{path: {value: a}}]}",
    "{matches: [{path: {value: /a//b}}]}",
    "{matches: [{path: {value: /a/../b}}]}",
    "{matches: [{path: {value: \"/a b\"}}]}",
    "{matches: [{path: {value: /a%2Fb}}]}",
    "{matches: [{path: {type: RegularExpression, value: \"/(a\"}}]}",
    "{matches: [{path: {type: RegularExpression}}]}",
    "{matches: [{path: /a}]}",
    "{matches: [{method: get}]}",
    "{matches: [{method: FETCH}]}",
    "{matches: [{headers: [{name: \"a b\", value: c}]}]}",
    "{matches: [{headers: [{name: a, value: b}, {name: A, value: c}]}]}",
    "{matches: [{headers: [{name: a, type: Regex, value: b}]}]}",
    "{matches: [{headers: {a: b}}]}",
    "{matches: [{queryParams: [{name: a, value: 1}]}]}",
    "{matches: [{query: []}]}",
    "{backendRefs: [{name: a}]}",
    "{backendRefs: [{name: a, port: 80, namespace: o.ther}]}",
    "{backendRefs: [{name: a, port: 80, kind: ServiceImport}]}",
    "{backendRefs: [{name: a, port: 80, weight: -1}]}",
    "{backendRefs: [{name: a, port: 80, weight: 1000001}]}",
    "{backendRefs: [{name: a, port: 80, weight: 0.5}]}",
    "{backendRefs: [{name: a, port: 80, filters: [{type: RequestRedirect}]}]}",
    "{timeouts: {request: 5}}",
    "{timeouts: {request: 1.5s}}",
    "{timeouts: {request: 1s, backendRequest: 2s}}",
    "{timeouts: {backendRequest: 5}}",
];

#[test]
fn unsupported_grpc_routes_are_rejected() {
    let rule = |rule: &&str| {
        format!("{{parentRefs: [{{group: \"\", kind: Service, name: a}}], rules: [{rule}]}}")
    };
    let specs: Vec<String> = GRPC_ROUTE_RULES.iter().map(rule).collect();
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.rules[0].matches[0].path: is an unknown field; remove it, or use `method` or `headers`
            spec.rules[0].matches[0].method: names neither a service nor a method; add `service` or `method`
            spec.rules[0].matches[0].method: names neither a service nor a method; add `service` or `method`
            spec.rules[0].matches[0].method.service: "a/b" is not a name in gRPC; use a name such as com.example.Books, of at most 1024 bytes
            spec.rules[0].matches[0].method.service: "a..b" is not a name in gRPC; use a name such as com.example.Books, of at most 1024 bytes
            spec.rules[0].matches[0].method.method: "1a" is not a name in gRPC; use a name such as ListBooks, of at most 1024 bytes
            spec.rules[0].matches[0].method.type: "Prefix" is not a supported value; use `Exact` or `RegularExpression`
            spec.rules[0].matches[0].method.service: "(a" is not a regular expression (unclosed group); correct it; the syntax is RE2's, without look-around or back references
            spec.rules[0].matches[0].headers[1]: has the name of another entry, of which only the first would apply; remove one of the two
            spec.rules[0].filters[0].type: "URLRewrite" is not a supported value; use `RequestHeaderModifier`, `ResponseHeaderModifier` or `RequestMirror`
            spec.rules[0].filters[0].type: "RequestRedirect" is not a supported value; use `RequestHeaderModifier`, `ResponseHeaderModifier` or `RequestMirror`
            spec.rules[0].timeouts: is an unknown field; remove it, or use `name`, `matches`, `filters`, `backendRefs` or `sessionPersistence`
            spec.rules[0].retry: is an unknown field; remove it, or use `name`, `matches`, `filters`, `backendRefs` or `sessionPersistence`
            spec.rules[0].backendRefs[0].filters[0].requestHeaderModifier: is missing; add `requestHeaderModifier`
        "#]],
    );
}

const GRPC_ROUTE_RULES: &[&str] = &[
    "{matches: [{path: {value: /a}}]}",
    "{matches: [{method: {}}]}",
    "{matches: [{method: {service: \"\", method: \"\"}}]}",
    "{matches: [{method: {service: a/b}}]}",
    "{matches: [{method: {service: a..b}}]}",
    "{matches: [{method: {method: 1a}}]}",
    "{matches: [{method: {type: Prefix, service: a}}]}",
    "{matches: [{method: {type: RegularExpression, service: \"(a\"}}]}",
    "{matches: [{headers: [{name: a, value: b}, {name: A, value: c}]}]}",
    "{filters: [{type: URLRewrite, urlRewrite: {}}]}",
    "{filters: [{type: RequestRedirect, requestRedirect: {}}]}",
    "{timeouts: {request: 1s}}",
    "{retry: {attempts: 1}}",
    "{backendRefs: [{name: a, port: 80, filters: [{type: RequestHeaderModifier}]}]}",
];

#[test]
fn unsupported_reference_grants_are_rejected() {
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: x}",
        &[
            "{}",
            "{from: [], to: []}",
            "{from: [{group: a, kind: Gateway, namespace: b}], to: [{group: \"\", kind: Secret}]}",
            "{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute}], to: [{group: \"\"}]}",
            "{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}], \
             to: [{group: \"\", kind: Service, name: a.b}]}",
        ],
        &expect![[r#"
            spec.from: is missing; add `from`
            spec.to: is missing; add `to`
            spec.from: is empty, and grants no access; list at least one
            spec.to: is empty, and grants no access; list at least one
            spec.from[0].group: "a" is not a supported value; use `gateway.networking.k8s.io` or `split.smi-spec.io`
            spec.to[0].kind: "Secret" is not a supported value; use `Service`
            spec.from[0].namespace: is missing; add `namespace`
            spec.to[0].kind: is missing; add `kind`
            spec.to[0].name: "a.b" has a dot; use at most 63 lower-case letters, digits or `-`
        "#]],
    );
}

#[test]
fn unsupported_traffic_targets_are_rejected() {
    let with_defaults = |spec: &str| {
        let defaults = [
            ("destination", "{kind: ServiceAccount, name: a, namespace: default}"),
            ("sources", "[{kind: ServiceAccount, name: b, namespace: default}]"),
            ("rules", "[{kind: TCPRoute, name: t}]"),
        ];
        let missing_fields = defaults
            .iter()
            .filter(|(key, _)| !spec.contains(&format!("{key}:")))
            .map(|(key, value)| format!(", {key}: {value}"));
        format!("{{{spec}{}}}", missing_fields.collect::<String>())
    };
    let specs = [
        "destination: {kind: ServiceAccount, name: a, namespace: other}",
        "destination: {kind: ServiceAccount, name: a}",
        "destination: {kind: Service, name: a, namespace: default}",
        "destination: ~",
        "sources: [{kind: User, name: a, namespace: default}]",
        "sources: [{kind: ServiceAccount, name: a}]",
        "sources: ~",
        "rules: ~",
        "rules: [{kind: UDPRoute, name: a}]",
        "rules: [{kind: HTTPRoute, name: a}]",
        "rules: [{kind: HTTPRouteGroup}]",
        "rules: [{kind: HTTPRouteGroup, name: a, matches: all}]",
        "rules: [{kind: TCPRoute, name: a, matches: [b]}]",
        "source: []",
    ]
    .map(with_defaults);
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.destination: The traffic target namespace (default) must match spec.Destination.Namespace (other); put the TrafficTarget into the namespace of its destination
            spec.destination.namespace: is missing; add `namespace`
            spec.destination.kind: "Service" is not a supported value; did you mean `ServiceAccount`?
            spec.destination: is missing; add `destination`
            spec.sources[0].kind: "User" is not a supported value; use `ServiceAccount`
            spec.sources[0].namespace: is missing; add `namespace`
            spec.sources: is missing; add `sources`
            spec.rules: is missing; add `rules`
            spec.rules[0].kind: "UDPRoute" is not supported: the mesh carries no UDP; remove the rule, or use `HTTPRouteGroup` or `TCPRoute`
            spec.rules[0].kind: "HTTPRoute" is not a supported value; did you mean `HTTPRouteGroup`?
            spec.rules[0].name: is missing; add `name`
            spec.rules[0].matches: is "all", not a list; write a list, each element after `- `
            spec.rules[0].matches: is not supported for a TCPRoute, which allows all ports; remove it
            spec.source: is an unknown field; remove it: `sources` is also present
        "#]],
    );
}

#[test]
fn unsupported_route_groups_and_tcp_routes_are_rejected() {
    check_specs(
        "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\nmetadata: {name: x}",
        &[
            "{}",
            "{matches: {name: a}}",
            "{matches: [{pathRegex: /a}]}",
            "{matches: [{name: a, pathRegex: \"[\"}]}",
            "{matches: [{name: a, pathRegex: \"(?=x)\"}]}",
            "{matches: [{name: a, path: /a}]}",
            "{matches: [{name: a, methods: [get]}]}",
            "{matches: [{name: a, methods: [FETCH, \"*\"]}]}",
            "{matches: [{name: a, headers: [{a: \"(\"}]}]}",
            "{matches: [{name: a, headers: [{\"b c\": d}]}]}",
            "{matches: [{name: a, headers: [{a: b}, {A: c}]}]}",
            "{matches: [{name: a, headers: [a]}]}",
            "{matches: [{name: a}, {name: a}]}",
        ],
        &expect![[r#"
            spec.matches: is missing; add `matches`
            spec.matches: is a map, not a list; write a list, each element after `- `
            spec.matches[0].name: is missing; add `name`
            spec.matches[0].pathRegex: "[" is not a regular expression (unclosed character class); correct it; the syntax is RE2's, without look-around or back references
            spec.matches[0].pathRegex: "(?=x)" is not a regular expression (look-around, including look-ahead and look-behind, is not supported); correct it; the syntax is RE2's, without look-around or back references
            spec.matches[0].path: is an unknown field; did you mean `pathRegex`?
            spec.matches[0].methods[0]: "get" is not a supported value; did you mean `GET`?
            spec.matches[0].methods[0]: "FETCH" is not a supported value; use `*`, `GET`, `HEAD`, `PUT`, `POST`, `DELETE`, `CONNECT`, `OPTIONS`, `TRACE` or `PATCH`
            spec.matches[0].headers[0].a: "(" is not a regular expression (unclosed group); correct it; the syntax is RE2's, without look-around or back references
            spec.matches[0].headers[0]["b c"]: "b c" is not the name of a header; use letters, digits and `-`
            spec.matches[0].headers[1].A: a is defined twice; combine the two into one expression
            spec.matches[0].headers[0]: is "a", not a map; write a map of names and values
            spec.matches[1]: the name "a" is used by another match; use another name
        "#]],
    );
    check_specs(
        "apiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute\nmetadata: {name: x}",
        &[
            "{}",
            "{matches: {ports: [0]}}",
            "{matches: {ports: []}}",
            "{matches: {ports: 80}}",
            "{matches: [{ports: [80]}]}",
        ],
        &expect![[r#"
            spec.matches: is missing; add `matches`
            spec.matches.ports[0]: 0 is out of range; use a number from 1 to 65535
            spec.matches.ports: is empty, which is ambiguous; list the allowed ports, or leave `ports` out to allow all
            spec.matches.ports: is 80, not a list; write a list, each element after `- `
            spec.matches: is a list, not a map; write a map; its fields are `ports`
        "#]],
    );
}
