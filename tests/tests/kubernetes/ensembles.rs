//! Clustered servers: a StatefulSet with Pods that call each other on several ports by name.
#![allow(clippy::print_stderr, reason = "what was heard last says why a scenario failed")]

use std::time::Duration;

use leno_tests::cluster::{TestNamespace, stdout_of};
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

/// Peers may call each other on three of the ports.
const ALLOWED: &str = "
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

/// Returns a further container of the StatefulSet that listens on this port.
fn listening_container(port: u16) -> String {
    format!(
        "      - {{name: at-{port}, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [tcp, -listen, '$(POD_IP):{port}'],\n         \
         ports: [{{containerPort: {port}}}], env: [{{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}]}}\n"
    )
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn peers_speak_by_name_at_every_port_that_a_route_names() {
    let namespace = TestNamespace::with_metadata(
        "ensemble",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}",
    );
    let all = [2181, 2888, 3888, 4888];
    namespace.apply_manifests(&(ENSEMBLE.to_owned() + &all.map(listening_container).concat()));
    namespace.apply_manifests(&ALLOWED.replace("NAMESPACE", namespace.name()));
    stdout_of(&namespace.kubectl(&["rollout", "status", "statefulset/peer", "--timeout=120s"]));
    namespace.wait_ready();
    // Returns the responses of each peer on each port to one peer.
    let heard = |from: &str| {
        let each = "for p in 2181 2888 3888 4888; do for n in 0 1 2; do \
                    echo $p $( (echo hello; sleep 1) | nc -w 2 peer-$n.peers $p); done; done";
        let said = namespace.exec(from, &["sh", "-c", each]).stdout;
        String::from_utf8_lossy(&said).into_owned()
    };
    let mut wanted = String::new();
    for port in all {
        for peer in 0..3 {
            let line = format!("{port} pod=peer-{peer} line=hello\n");
            wanted += if port == 4888 { "4888\n" } else { &line };
        }
    }
    for from in ["peer-0", "peer-1", "peer-2"] {
        // A Pod's connection to its own address stays local, so no sidecar decides about it.
        let own = format!("4888 pod={from} line=hello\n");
        let number: usize = from.trim_start_matches("peer-").parse().expect("it ends with one");
        let mut lines: Vec<&str> = wanted.split_inclusive('\n').collect();
        lines[3 * 3 + number] = &own;
        let wanted = lines.concat();
        eventually(&format!("{from} hears all of them"), Duration::from_secs(120), || {
            let said = heard(from);
            if said != wanted {
                eprintln!("{from} hears:\n{said}");
            }
            (said == wanted).then_some(())
        });
    }
}
