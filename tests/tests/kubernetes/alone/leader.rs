//! Control planes: on different nodes, and one of them writes statuses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leno_tests::cluster::{kubectl, printed};
use leno_tests::eventually;

fn control(arguments: &[&str]) -> String {
    printed(&kubectl(&[&["-n", "leno-system"], arguments].concat()))
}

fn holder() -> String {
    control(&["get", "lease", "leno-control", "-o", "jsonpath={.spec.holderIdentity}"])
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_control_plane_that_ends_gives_its_lease_back() {
    let (before, _) = eventually("one of them leads", PATIENCE, || {
        Some(holder()).filter(|holder| !holder.is_empty())
    });
    control(&["delete", "pod", &before, "--wait=false"]);
    let deleted = Instant::now();
    eventually("another one leads", PATIENCE, || {
        let now = holder();
        (!now.is_empty() && now != before).then_some(())
    });
    // Without a release it would run out 15 s after its last renewal.
    let taken = deleted.elapsed();
    assert!(taken < Duration::from_secs(8), "{taken:?}");
    control(&["rollout", "status", "deployment/leno-control", "--timeout=120s"]);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn control_planes_run_on_different_nodes_after_each_rollout() {
    let pods = ["get", "pods", "-l", "app.kubernetes.io/name=leno-control"];
    let nodes = || {
        let path = "jsonpath={range .items[*]}{.spec.nodeName} {end}";
        let found = control(&[&pods[..], &["-o", path]].concat());
        found.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        control(&["rollout", "restart", "deployment/leno-control"]);
        control(&["rollout", "status", "deployment/leno-control", "--timeout=120s"]);
        let (found, _) = eventually("the pods of the release before are gone", PATIENCE, || {
            Some(nodes()).filter(|found| found.len() == 2)
        });
        let different: BTreeSet<&String> = found.iter().collect();
        assert_eq!(different.len(), 2, "{found:?}");
    }
}

const PATIENCE: Duration = Duration::from_secs(120);
