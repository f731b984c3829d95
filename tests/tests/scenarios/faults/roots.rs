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

/// `./test soak` runs this test.
#[test]
#[ignore = "takes a quarter of an hour; ./test soak runs it"]
fn a_root_is_replaced_while_certificates_of_five_minutes_are_renewed_in_every_stage() {
    rotate_root("5m", |sidecars| {
        let renewals_before: Vec<f64> = sidecars.iter().map(count_renewals).collect();
        eventually("all sidecars renew certificates", Duration::from_secs(300), || {
            sidecars
                .iter()
                .zip(&renewals_before)
                .all(|(sidecar, renewals)| count_renewals(sidecar) > *renewals)
                .then_some(())
        });
    });
}

/// Rotates a root under load; `wait_in_stage` waits in each stage.
fn rotate_root(certificate_lifetime: &str, wait_in_stage: impl Fn(&[SidecarProgram])) {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control =
        ControlProgram::start(&shop.manifests, &["--certificate-lifetime", certificate_lifetime]);
    let sidecars =
        ["shop/ratings-1", "shop/web-1"].map(|name| SidecarProgram::join(&control, name, &[]));
    wait_until_status(shop.listener, 200);
    assert_eq!(root_status(&control)["stage"], "stable");
    let load = BackgroundLoad::start_paced("GET", shop.listener, 2, Duration::from_millis(5));
    load.wait_for(10);
    let first_generation = control.get_json("status")["ca_generation"].clone();

    // No member is out of sync: the next step waits until all of them have applied this one.
    for (name, stage) in [
        ("add", "added"),
        ("activate", "activated"),
        ("rollback", "added"),
        ("activate", "activated"),
        ("retire", "stable"),
    ] {
        run_rotation_step(&control, name, stage);
        wait_in_stage(&sidecars);
    }
    assert_ne!(control.get_json("status")["ca_generation"], first_generation);
    load.wait_for(100);
    load.finish_load().assert_no_failures();
    let [ratings, _] = &sidecars;
    assert!(count_renewals(ratings) >= 5.0, "{}", count_renewals(ratings));

    // New members have only the new root.
    let output = control.run_leno(&["ca", "retire"]);
    assert!(!output.status.success(), "there is nothing to retire");
}

/// Returns the number of certificate renewals of a sidecar.
fn count_renewals(sidecar: &SidecarProgram) -> f64 {
    sidecar.admin_endpoint.metric_value("leno_certificate_renewals_total{result=\"ok\"}")
}

/// Runs a step of the rotation, and waits until every sidecar is in sync.
fn run_rotation_step(control: &ControlProgram, step: &str, stage: &str) {
    let generation_before = control.get_json("status")["ca_generation"].clone();
    let output = control.run_leno(&["ca", step]);
    assert!(output.status.success(), "{step}: {}", String::from_utf8_lossy(&output.stderr));
    eventually(&format!("all sidecars have applied `{step}`"), MAX_WAIT, || {
        let status = control.get_json("status");
        (status["ca_generation"] != generation_before && status["outdated"] == 0).then_some(())
    });
    assert_eq!(root_status(control)["stage"], stage);
}

fn root_status(control: &ControlProgram) -> Value {
    let output = control.run_leno(&["ca", "status"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

const MAX_WAIT: Duration = Duration::from_secs(30);
