//! What happens to a mesh while requests go through it at a constant rate: none may fail that the
//! application did not fail itself.

use std::time::Duration;

use leno_tests::cluster::{Injection, Namespace, image, kubectl, printed};
use leno_tests::eventually;
use serde_json::Value;

/// A client that sends requests at a constant rate for a while, in a pod of its own.
pub(crate) struct Load<'a> {
    namespace: &'a Namespace,
}

impl<'a> Load<'a> {
    pub(crate) fn start(namespace: &'a Namespace, url: &str, seconds: u32) -> Self {
        let image = image();
        let node = stays();
        namespace.apply(&format!(
            "apiVersion: batch/v1
kind: Job
metadata: {{name: load}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      # The first node stays when others are drained.
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      containers:
      - name: load
        image: {image}
        imagePullPolicy: Never
        # Not that of the sidecar, whose connections are left alone.
        securityContext: {{runAsUser: 2000}}
        args: [load, '{url}', --rate, '100', -c, '8', --warmup, 1s, -d, {seconds}s, -o, json]
"
        ));
        eventually("the load runs", Duration::from_secs(180), || {
            let state = namespace.kubectl(&["get", "job/load", "-o", "jsonpath={.status.ready}"]);
            (printed(&state) == "1").then_some(())
        });
        Self { namespace }
    }

    /// What was done meanwhile was done under load.
    pub(crate) fn expect_under_way(&self) {
        let active =
            self.namespace.kubectl(&["get", "job/load", "-o", "jsonpath={.status.active}"]);
        assert_eq!(printed(&active), "1", "the load has ended before what it was to go on through");
    }

    /// Waits for its end: how many requests were sent, and what failed.
    pub(crate) fn end(self) -> (u64, Value) {
        eventually("the load ends", Duration::from_secs(300), || {
            let ended = "jsonpath={.status.succeeded}{.status.failed}";
            let state = printed(&self.namespace.kubectl(&["get", "job/load", "-o", ended]));
            (!state.is_empty()).then_some(())
        });
        let said = printed(&self.namespace.kubectl(&["logs", "job/load", "-c", "load"]));
        let report: Value = serde_json::from_str(&said).expect(&said);
        (report["requests"].as_u64().unwrap_or_default(), report["errors_by_kind"].clone())
    }
}

/// The first of the nodes.
fn stays() -> String {
    let nodes = printed(&kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]));
    nodes.split(' ').min().expect("there is a node").to_owned()
}

pub(crate) fn prepared(what: &str) -> Namespace {
    let namespace = Namespace::new(what, Injection::Enabled);
    namespace.http_server("server", 2);
    namespace.wait_ready();
    namespace
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_rolling_restart_fails_no_request() {
    let namespace = prepared("rolling");
    let load = Load::start(&namespace, "http://server/", 40);
    printed(&namespace.kubectl(&["rollout", "restart", "deployment/server"]));
    printed(&namespace.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]));
    printed(&namespace.kubectl(&["scale", "deployment/server", "--replicas=4"]));
    printed(&namespace.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]));
    printed(&namespace.kubectl(&["scale", "deployment/server", "--replicas=1"]));
    let (requests, failed) = load.end();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failed, serde_json::json!({}));
}
