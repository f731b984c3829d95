//! Rotation of a mesh's root under load.

use std::time::Duration;

use leno_tests::{ControlPlane, Load, Proxy, eventually};
use serde_json::Value;

use super::{Counted, shop, turns};

#[test]
fn a_root_is_replaced_in_stages_under_load_without_a_failed_request() {
    // Certificates live for a minute: renewals for another authority spread over a twentieth of that.
    replaced("60s", |_| {});
}

/// Run by `./test soak`.
#[test]
#[ignore = "takes a quarter of an hour; ./test soak runs it"]
fn a_root_is_replaced_while_certificates_of_five_minutes_are_renewed_in_every_stage() {
    replaced("5m", |sidecars| {
        let before: Vec<f64> = sidecars.iter().map(renewals).collect();
        eventually("everybody renews as usual", Duration::from_secs(300), || {
            sidecars
                .iter()
                .zip(&before)
                .all(|(sidecar, old)| renewals(sidecar) > *old)
                .then_some(())
        });
    });
}

/// Rotates a root under load; `rest` waits in each stage.
fn replaced(lifetime: &str, rest: impl Fn(&[Proxy])) {
    let shop = shop("permissive", Counted::echo());
    let control = ControlPlane::start(&shop.manifests, &["--certificate-lifetime", lifetime]);
    let sidecars = ["shop/ratings-1", "shop/web-1"].map(|name| Proxy::join(&control, name, &[]));
    turns(shop.listener, 200);
    assert_eq!(status(&control)["stage"], "settled");
    let load = Load::paced("GET", shop.listener, 2, Duration::from_millis(5));
    load.wait_for(10);
    let first = control.ask("status")["authority"].clone();

    // No member is out of sync: the next step waits until all of them have applied this one.
    for (name, stage) in [
        ("add", "added"),
        ("switch", "switched"),
        ("back", "added"),
        ("switch", "switched"),
        ("retire", "settled"),
    ] {
        step(&control, name, stage);
        rest(&sidecars);
    }
    assert_ne!(control.ask("status")["authority"], first);
    load.wait_for(100);
    load.finish().assert_whole();
    let [ratings, _] = &sidecars;
    assert!(renewals(ratings) >= 5.0, "{}", renewals(ratings));

    // New members have only the new root.
    let out = control.leno(&["root", "retire"]);
    assert!(!out.status.success(), "there is nothing to retire");
}

/// Returns the number of certificate renewals of a sidecar.
fn renewals(sidecar: &Proxy) -> f64 {
    sidecar.page.metric("leno_certificate_renewals_total{result=\"ok\"}")
}

/// Takes a step and waits until every sidecar is in sync.
fn step(control: &ControlPlane, step: &str, stage: &str) {
    let before = control.ask("status")["authority"].clone();
    let out = control.leno(&["root", step]);
    assert!(out.status.success(), "{step}: {}", String::from_utf8_lossy(&out.stderr));
    eventually(&format!("everybody has taken `{step}`"), MAX_WAIT, || {
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

const MAX_WAIT: Duration = Duration::from_secs(30);
