//! Placement of control planes on different nodes, and leader election for writing statuses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leno_tests::cluster::{expect_stdout, kubectl};
use leno_tests::eventually;

fn control_kubectl(arguments: &[&str]) -> String {
    expect_stdout(&kubectl(&[&["-n", "leno-system"], arguments].concat()))
}

fn lease_holder() -> String {
    control_kubectl(&["get", "lease", "leno-control", "-o", "jsonpath={.spec.holderIdentity}"])
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
#[allow(clippy::print_stderr, reason = "the figures are the result")]
fn a_terminating_control_plane_releases_its_lease() {
    // Deletes the leader and returns the time until another control plane leads.
    let time_takeover = || {
        let (first_holder, _) = eventually("a control plane leads", MAX_WAIT, || {
            Some(lease_holder()).filter(|holder| !holder.is_empty())
        });
        let deleted = Instant::now();
        control_kubectl(&["delete", "pod", &first_holder, "--wait=false"]);
        eventually("another control plane leads", MAX_WAIT, || {
            let holder = lease_holder();
            (!holder.is_empty() && holder != first_holder).then_some(())
        });
        let elapsed = deleted.elapsed();
        control_kubectl(&["rollout", "status", "deployment/leno-control", "--timeout=120s"]);
        elapsed
    };
    // One of several attempts, since the machine may be busy. Without its release, the Lease would expire 15 s
    // after its last renewal; without a watch, the release would be noticed up to 2 s later.
    let mut takeover_times = Vec::new();
    while takeover_times.len() < MAX_ATTEMPTS {
        let elapsed = time_takeover();
        eprintln!("taken over after {elapsed:?}");
        if elapsed < Duration::from_secs(2) {
            return;
        }
        takeover_times.push(elapsed);
    }
    panic!("taken over after {takeover_times:?}");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn control_planes_run_on_different_nodes_after_each_rollout() {
    let pods = ["get", "pods", "-l", "app.kubernetes.io/name=leno-control"];
    let nodes = || {
        let path = "jsonpath={range .items[*]}{.spec.nodeName} {end}";
        let nodes_of_pods = control_kubectl(&[&pods[..], &["-o", path]].concat());
        nodes_of_pods.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        control_kubectl(&["rollout", "restart", "deployment/leno-control"]);
        control_kubectl(&["rollout", "status", "deployment/leno-control", "--timeout=120s"]);
        let (nodes_of_pods, _) = eventually("the previous pods are gone", MAX_WAIT, || {
            Some(nodes()).filter(|nodes_of_pods| nodes_of_pods.len() == 2)
        });
        let distinct_nodes: BTreeSet<&String> = nodes_of_pods.iter().collect();
        assert_eq!(distinct_nodes.len(), 2, "{nodes_of_pods:?}");
    }
}

/// The number of takeovers, of which one must be fast.
const MAX_ATTEMPTS: usize = 3;
const MAX_WAIT: Duration = Duration::from_secs(120);
