//! Pods of every kind: jobs that end, probes, rollouts.

use std::time::Duration;

use leno_tests::cluster::{Injection, Namespace, printed};
use leno_tests::eventually;

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_job_with_a_sidecar_completes() {
    let namespace = Namespace::new("job", Injection::Enabled);
    namespace.http_server("server", 1);
    namespace.wait_ready();
    namespace.apply(
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
    let waited =
        namespace.kubectl(&["wait", "--for=condition=Complete", "job/once", "--timeout=120s"]);
    printed(&waited);
    let sidecar = namespace.kubectl(&[
        "get",
        "pods",
        "-l",
        "job-name=once",
        "-o",
        "jsonpath={.items[*].spec.initContainers[*].name}",
    ]);
    assert!(printed(&sidecar).contains("leno-proxy"), "the pod of the job has no sidecar");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn probes_are_those_of_the_application() {
    let namespace = Namespace::new("probes", Injection::Enabled);
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
        pod("elsewhere", "tcpSocket: {port: 8099}"),
    ];
    namespace.apply(&manifests.join("---\n"));
    for well in ["pod/http", "pod/tcp"] {
        let waited = namespace.kubectl(&["wait", "--for=condition=Ready", well, "--timeout=120s"]);
        printed(&waited);
    }
    for unwell in ["unwell", "elsewhere"] {
        let started =
            "jsonpath={.status.containerStatuses[0].started} {.status.containerStatuses[0].ready}";
        let state = || printed(&namespace.kubectl(&["get", "pod", unwell, "-o", started]));
        eventually("it runs", Duration::from_secs(60), || {
            state().starts_with("true").then_some(())
        });
        assert_eq!(state(), "true false", "{unwell}");
    }
}
