//! Clustered servers: a StatefulSet with Pods that call each other on several ports by name.
#![allow(clippy::print_stderr, reason = "the last output shows why a scenario failed")]

use std::time::Duration;

use leno_tests::cluster::{TestNamespace, expect_stdout};
use leno_tests::eventually;

/// Three Pods like those of ZooKeeper: they listen only on the Pod's address, on ports for clients, followers
/// and elections, and on one more port without a policy.
const ENSEMBLE: &str = "
{apiVersion: v1, kind: ServiceAccount, metadata: {name: peer}}
---
{apiVersion: v1, kind: Service, metadata: {name: peers}, spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: peer}, ports: [
  {name: tcp-client, port: 2181}, {name: tcp-follower, port: 2888}, {name: tcp-election, port: 3888}, {name: tcp-other, port: 4888}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: peer}
spec:
  serviceName: peers
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: peer}}
  template:
    metadata: {labels: {app: peer}}
    spec:
      serviceAccountName: peer
      terminationGracePeriodSeconds: 1
      containers:
      - {name: client, image: 'kc.local/toolbox:1', imagePullPolicy: Never, command: [sh, -c, 'trap exit TERM; sleep infinity & wait']}
";

/// Policies that allow peers to call each other on three of the ports.
const POLICIES: &str = "
{apiVersion: specs.smi-spec.io/v1alpha4, kind: TCPRoute, metadata: {name: ensemble}, spec: {matches: {ports: [2181, 2888, 3888]}}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: ensemble}
spec:
  destination: {kind: ServiceAccount, name: peer, namespace: NAMESPACE}
  rules: [{kind: TCPRoute, name: ensemble}]
  sources: [{kind: ServiceAccount, name: peer, namespace: NAMESPACE}]
";

/// Returns the manifest of one more container of the StatefulSet, which listens on this port.
fn listening_container(port: u16) -> String {
    format!(
        "      - {{name: at-{port}, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [tcp, -listen, '$(POD_IP):{port}'],\n         \
         ports: [{{containerPort: {port}}}], env: [{{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}]}}\n"
    )
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn peers_connect_by_name_to_every_port_of_a_route() {
    let namespace = TestNamespace::with_metadata(
        "ensemble",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}",
    );
    let ports = [2181, 2888, 3888, 4888];
    namespace.apply_manifests(&(ENSEMBLE.to_owned() + &ports.map(listening_container).concat()));
    namespace.apply_manifests(&POLICIES.replace("NAMESPACE", namespace.name()));
    expect_stdout(&namespace.kubectl(&["rollout", "status", "statefulset/peer", "--timeout=120s"]));
    namespace.wait_ready();
    // Returns the responses of each peer on each port to one peer.
    let query_peers = |from: &str| {
        let script = "for p in 2181 2888 3888 4888; do for n in 0 1 2; do \
                    echo $p $( (echo hello; sleep 1) | nc -w 2 peer-$n.peers $p); done; done";
        let output = namespace.exec(from, &["sh", "-c", script]).stdout;
        String::from_utf8_lossy(&output).into_owned()
    };
    let mut expected = String::new();
    for port in ports {
        for peer in 0..3 {
            let line = format!("{port} pod=peer-{peer} line=hello\n");
            // No policy allows port 4888, so the response is empty.
            expected += if port == 4888 { "4888\n" } else { &line };
        }
    }
    for from in ["peer-0", "peer-1", "peer-2"] {
        // A Pod's connection to its own address stays local, so no sidecar decides about it.
        let own_line = format!("4888 pod={from} line=hello\n");
        let index: usize =
            from.trim_start_matches("peer-").parse().expect("the name ends with an index");
        let mut lines: Vec<&str> = expected.split_inclusive('\n').collect();
        lines[3 * 3 + index] = &own_line;
        let expected = lines.concat();
        eventually(&format!("{from} gets all responses"), Duration::from_secs(120), || {
            let output = query_peers(from);
            if output != expected {
                eprintln!("{from} got:\n{output}");
            }
            (output == expected).then_some(())
        });
    }
}
