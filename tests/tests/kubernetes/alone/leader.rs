//! Placement of control planes on different nodes, and leader election for writing statuses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leno_tests::cluster::{kubectl, stdout_of};
use leno_tests::eventually;

fn control_kubectl(arguments: &[&str]) -> String {
    stdout_of(&kubectl(&[&["-n", "leno-system"], arguments].concat()))
}

fn lease_holder() -> String {
    control_kubectl(&["get", "lease", "leno-control", "-o", "jsonpath={.spec.holderIdentity}"])
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
#[allow(clippy::print_stderr, reason = "the figures are the result")]
fn a_control_plane_that_ends_gives_its_lease_back() {
    let takeover = || {
        let (before, _) = eventually("one of them leads", MAX_WAIT, || {
            Some(lease_holder()).filter(|holder| !holder.is_empty())
        });
        let deleted = Instant::now();
        control_kubectl(&["delete", "pod", &before, "--wait=false"]);
        eventually("another one leads", MAX_WAIT, || {
            let now = lease_holder();
            (!now.is_empty() && now != before).then_some(())
        });
        let taken = deleted.elapsed();
        control_kubectl(&["rollout", "status", "deployment/leno-control", "--timeout=120s"]);
        taken
    };
    // One of several attempts, since the machine may be busy. Without its release, the Lease would expire 15 s
    // after its last renewal; without a watch, the release would be noticed up to 2 s later.
    let mut slow = Vec::new();
    while slow.len() < ATTEMPTS {
        let taken = takeover();
        eprintln!("taken over after {taken:?}");
        if taken < Duration::from_secs(2) {
            return;
        }
        slow.push(taken);
    }
    panic!("taken over after {slow:?}");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn control_planes_run_on_different_nodes_after_each_rollout() {
    let pods = ["get", "pods", "-l", "app.kubernetes.io/name=leno-control"];
    let nodes = || {
        let path = "jsonpath={range .items[*]}{.spec.nodeName} {end}";
        let found = control_kubectl(&[&pods[..], &["-o", path]].concat());
        found.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        control_kubectl(&["rollout", "restart", "deployment/leno-control"]);
        control_kubectl(&["rollout", "status", "deployment/leno-control", "--timeout=120s"]);
        let (found, _) = eventually("the pods of the release before are gone", MAX_WAIT, || {
            Some(nodes()).filter(|found| found.len() == 2)
        });
        let different: BTreeSet<&String> = found.iter().collect();
        assert_eq!(different.len(), 2, "{found:?}");
    }
}

const ATTEMPTS: usize = 3;
const MAX_WAIT: Duration = Duration::from_secs(120);
