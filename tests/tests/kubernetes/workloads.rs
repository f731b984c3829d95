//! Pods of every kind: Jobs, probes, rollouts.

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout};
use leno_tests::eventually;

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_job_with_a_sidecar_completes() {
    let namespace = TestNamespace::new("job", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.wait_ready();
    namespace.apply_manifests(
        "apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  backoffLimit: 5
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: once
        image: kc.local/toolbox:1
        imagePullPolicy: Never
        command: [sh, -c, 'curl -sf -m 20 http://server/ && echo done']
",
    );
    let result =
        namespace.kubectl(&["wait", "--for=condition=Complete", "job/once", "--timeout=120s"]);
    expect_stdout(&result);
    let sidecar = namespace.kubectl(&[
        "get",
        "pods",
        "-l",
        "job-name=once",
        "-o",
        "jsonpath={.items[*].spec.initContainers[*].name}",
    ]);
    assert!(expect_stdout(&sidecar).contains("leno-proxy"), "the pod of the job has no sidecar");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn probes_report_the_state_of_the_application() {
    let namespace = TestNamespace::new("probes", SidecarInjection::Enabled);
    let pod = |name: &str, probe: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: app, \
             image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http], ports: [{{name: http, \
             containerPort: 8080}}], readinessProbe: {{{probe}, periodSeconds: 1}}}}]}}}}\n"
        )
    };
    let manifests = [
        pod("http", "httpGet: {path: /status/200, port: http}"),
        pod("tcp", "tcpSocket: {port: 8080}"),
        pod("unwell", "httpGet: {path: /status/500, port: http}"),
        pod("another", "tcpSocket: {port: 8099}"),
    ];
    namespace.apply_manifests(&manifests.join("---\n"));
    for ready_pod in ["pod/http", "pod/tcp"] {
        let result =
            namespace.kubectl(&["wait", "--for=condition=Ready", ready_pod, "--timeout=120s"]);
        expect_stdout(&result);
    }
    for (failing_pod, response) in [("unwell", "statuscode: 500"), ("another", "statuscode: 502")] {
        let state_path =
            "jsonpath={.status.containerStatuses[0].started} {.status.containerStatuses[0].ready}";
        let state =
            || expect_stdout(&namespace.kubectl(&["get", "pod", failing_pod, "-o", state_path]));
        eventually("the container runs", Duration::from_secs(120), || {
            state().starts_with("true").then_some(())
        });
        assert_eq!(state(), "true false", "{failing_pod}");
        // The application's own response; if no process listens, a response that reports it.
        let selector = format!("involvedObject.name={failing_pod},reason=Unhealthy");
        let event_arguments =
            ["get", "events", "--field-selector", &selector, "-o", "jsonpath={.items[*].message}"];
        eventually("the event shows the response", Duration::from_secs(120), || {
            expect_stdout(&namespace.kubectl(&event_arguments)).contains(response).then_some(())
        });
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn probes_of_every_container_work_over_http_https_and_tcp() {
    let namespace = TestNamespace::new("both-probed", SidecarInjection::Enabled);
    let container = |name: &str, port: u16, extra_arguments: &str, probe: &str| {
        format!(
            "{{name: {name}, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http, -listen, ':{port}'{extra_arguments}], \
             readinessProbe: {{{probe}, periodSeconds: 1}}, livenessProbe: {{{probe}, periodSeconds: 1}}, \
             startupProbe: {{{probe}, periodSeconds: 1, failureThreshold: 60}}}}"
        )
    };
    let get = |port: u16, scheme: &str| {
        format!("httpGet: {{path: /status/200, port: {port}, scheme: {scheme}}}")
    };
    let plaintext = container("clear", 8080, "", &get(8080, "HTTP"));
    let tcp_probed =
        |port: u16| container("connected", 8081, "", &format!("tcpSocket: {{port: {port}}}"));
    let secure = |scheme: &str| container("secure", 8443, ", -tls", &get(8443, scheme));
    let pod = |name: &str, containers: [String; 2]| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{}]}}}}\n",
            containers.join(", ")
        )
    };
    let manifests = [
        pod("http-https", [plaintext.clone(), secure("HTTPS")]),
        pod("https-tcp", [secure("HTTPS"), tcp_probed(8081)]),
        // Each fails only because of the second container: by the wrong port, by the wrong scheme.
        pod("wrong-port", [plaintext.clone(), tcp_probed(8089)]),
        pod("wrong-scheme", [plaintext, secure("HTTP")]),
    ];
    namespace.apply_manifests(&manifests.join("---\n"));
    for ready_pod in ["pod/http-https", "pod/https-tcp"] {
        expect_stdout(&namespace.kubectl(&[
            "wait",
            "--for=condition=Ready",
            ready_pod,
            "--timeout=120s",
        ]));
    }
    for (failing_pod, second) in [("wrong-port", "connected"), ("wrong-scheme", "secure")] {
        let is_container_ready = |name: &str| {
            let path = format!("jsonpath={{.status.containerStatuses[?(@.name=='{name}')].ready}}");
            expect_stdout(&namespace.kubectl(&["get", "pod", failing_pod, "-o", &path]))
        };
        eventually("the first container is ready", Duration::from_secs(120), || {
            (is_container_ready("clear") == "true").then_some(())
        });
        assert_eq!(is_container_ready(second), "false", "{failing_pod}");
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_sidecar_has_the_resources_of_the_annotations() {
    let namespace = TestNamespace::with_metadata(
        "sized",
        "labels: {leno.dev/injection: enabled}, \
         annotations: {flomesh.io/sidecar-resource-requests-cpu: 20m, leno.dev/sidecar-resource-limits-cpu: 300m}",
    );
    namespace.create_client("plain");
    namespace.create_annotated_client(
        "sized",
        "openservicemesh.io/sidecar-resource-limits-memory: 96Mi, \
         leno.dev/sidecar-resource-limits-cpu: 250m, leno.dev/sidecar-resource-requests-memory: 24Mi",
    );
    namespace.wait_ready();
    let resources = |pod: &str| {
        let path = "jsonpath={.spec.initContainers[?(@.name=='leno-proxy')].resources}";
        expect_stdout(&namespace.kubectl(&["get", "pod", pod, "-o", path]))
    };
    for (pod, limits, requests) in [
        ("plain", ["300m", "128Mi"], ["20m", "16Mi"]),
        ("sized", ["250m", "96Mi"], ["20m", "24Mi"]),
    ] {
        let actual: serde_json::Value = serde_json::from_str(&resources(pod)).expect("resources");
        let expected = serde_json::json!({
            "limits": {"cpu": limits[0], "memory": limits[1]},
            "requests": {"cpu": requests[0], "memory": requests[1]},
        });
        assert_eq!(actual, expected, "{pod}");
    }
}
