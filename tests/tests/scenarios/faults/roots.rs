//! The root of a mesh is replaced while requests go on.

use std::time::Duration;

use leno_tests::{ControlPlane, Load, Proxy, eventually};
use serde_json::Value;

use super::{Counted, shop, turns};

#[test]
fn a_root_is_replaced_in_stages_under_load_without_a_failed_request() {
    let shop = shop("permissive", Counted::echo());
    // Certificates of a minute: renewals for another authority spread over a twentieth of that.
    let control = ControlPlane::start(&shop.manifests, &["--certificate-lifetime", "60s"]);
    let ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _web = Proxy::join(&control, "shop/web-1", &[]);
    turns(shop.door, 200);
    assert_eq!(status(&control)["stage"], "settled");
    let load = Load::start("GET", shop.door, 2);
    load.wait_for(10);
    let first = control.ask("status")["authority"].clone();

    step(&control, "add", "added");
    // Nobody is left behind: the next step waits until everybody has taken this one.
    step(&control, "switch", "switched");
    step(&control, "back", "added");
    step(&control, "switch", "switched");
    step(&control, "retire", "settled");
    assert_ne!(control.ask("status")["authority"], first);
    load.wait_for(100);
    load.finish().assert_whole();
    let renewed = ratings.page.metric("leno_certificate_renewals_total{result=\"ok\"}");
    assert!(renewed >= 5.0, "{renewed}");

    // Whoever comes now is of the new root alone.
    let out = control.leno(&["root", "retire"]);
    assert!(!out.status.success(), "there is nothing to retire");
}

/// Takes a step and waits until every sidecar has caught up.
fn step(control: &ControlPlane, step: &str, stage: &str) {
    let before = control.ask("status")["authority"].clone();
    let out = control.leno(&["root", step]);
    assert!(out.status.success(), "{step}: {}", String::from_utf8_lossy(&out.stderr));
    eventually(&format!("everybody has taken `{step}`"), PATIENCE, || {
        let now = control.ask("status");
        (now["authority"] != before && now["outdated"] == 0).then_some(())
    });
    assert_eq!(status(control)["stage"], stage);
}

fn status(control: &ControlPlane) -> Value {
    let out = control.leno(&["root", "status"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

const PATIENCE: Duration = Duration::from_secs(30);
