//! Rotation of a mesh's root under load.

use std::time::Duration;

use leno_tests::{BackgroundLoad, ControlProgram, SidecarProgram, eventually};
use serde_json::Value;

use super::{CountingApplication, start_shop, wait_until_status};

#[test]
fn a_root_is_replaced_in_stages_under_load_without_a_failed_request() {
    // Certificates live for a minute: renewals for another authority spread over a twentieth of that.
    rotate_root("60s", |_| {});
}

/// Run by `./test soak`.
#[test]
#[ignore = "takes a quarter of an hour; ./test soak runs it"]
fn a_root_is_replaced_while_certificates_of_five_minutes_are_renewed_in_every_stage() {
    rotate_root("5m", |sidecars| {
        let before: Vec<f64> = sidecars.iter().map(count_renewals).collect();
        eventually("everybody renews as usual", Duration::from_secs(300), || {
            sidecars
                .iter()
                .zip(&before)
                .all(|(sidecar, old)| count_renewals(sidecar) > *old)
                .then_some(())
        });
    });
}

/// Rotates a root under load; `rest` waits in each stage.
fn rotate_root(lifetime: &str, rest: impl Fn(&[SidecarProgram])) {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &["--certificate-lifetime", lifetime]);
    let sidecars =
        ["shop/ratings-1", "shop/web-1"].map(|name| SidecarProgram::join(&control, name, &[]));
    wait_until_status(shop.listener, 200);
    assert_eq!(root_status(&control)["stage"], "stable");
    let load = BackgroundLoad::start_paced("GET", shop.listener, 2, Duration::from_millis(5));
    load.wait_for(10);
    let first = control.get_json("status")["ca_generation"].clone();

    // No member is out of sync: the next step waits until all of them have applied this one.
    for (name, stage) in [
        ("add", "added"),
        ("activate", "activated"),
        ("rollback", "added"),
        ("activate", "activated"),
        ("retire", "stable"),
    ] {
        take_step(&control, name, stage);
        rest(&sidecars);
    }
    assert_ne!(control.get_json("status")["ca_generation"], first);
    load.wait_for(100);
    load.finish_load().assert_whole();
    let [ratings, _] = &sidecars;
    assert!(count_renewals(ratings) >= 5.0, "{}", count_renewals(ratings));

    // New members have only the new root.
    let out = control.run_leno(&["ca", "retire"]);
    assert!(!out.status.success(), "there is nothing to retire");
}

/// Returns the number of certificate renewals of a sidecar.
fn count_renewals(sidecar: &SidecarProgram) -> f64 {
    sidecar.page.metric_value("leno_certificate_renewals_total{result=\"ok\"}")
}

/// Takes a step and waits until every sidecar is in sync.
fn take_step(control: &ControlProgram, step: &str, stage: &str) {
    let before = control.get_json("status")["ca_generation"].clone();
    let out = control.run_leno(&["ca", step]);
    assert!(out.status.success(), "{step}: {}", String::from_utf8_lossy(&out.stderr));
    eventually(&format!("everybody has taken `{step}`"), MAX_WAIT, || {
        let now = control.get_json("status");
        (now["ca_generation"] != before && now["outdated"] == 0).then_some(())
    });
    assert_eq!(root_status(control)["stage"], stage);
}

fn root_status(control: &ControlProgram) -> Value {
    let out = control.run_leno(&["ca", "status"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

const MAX_WAIT: Duration = Duration::from_secs(30);
