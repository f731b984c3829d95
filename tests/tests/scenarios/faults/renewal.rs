//! Renewal of certificates that live for seconds, under load.

use std::time::Duration;

use leno_tests::{BackgroundLoad, ControlProgram, SidecarProgram, TestMesh, eventually};

use super::{CountingApplication, MAX_WAIT, connected_sidecar, start_shop, wait_until_status};

#[test]
fn certificates_are_renewed_under_load_without_a_failed_request() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let mesh = TestMesh::up_with(&shop.manifests, &["--certificate-lifetime", "10s"]);
    wait_until_status(shop.listener, 200);
    let load = BackgroundLoad::start("GET", shop.listener, 2);
    load.wait_for(10);
    for _ in 0..2 {
        let expiries_before = certificate_expiries(&mesh);
        assert_eq!(expiries_before.len(), 2, "{expiries_before:?}");
        eventually("every certificate is renewed", Duration::from_secs(30), || {
            let expiries_now = certificate_expiries(&mesh);
            expiries_before
                .iter()
                .zip(&expiries_now)
                .all(|(before, now)| before < now)
                .then_some(())
        });
        load.wait_for(10);
    }
    load.finish_load().assert_no_failures();

    // The control plane lists the certificates that the sidecars use.
    let web = connected_sidecar(&mesh, "shop/web-1");
    let is_renewed = || web.metric_value("leno_certificate_renewals_total{result=\"ok\"}") >= 2.0;
    eventually("the sidecar counts them", MAX_WAIT, || is_renewed().then_some(()));
    assert!(web.metric_value("leno_certificate_renewals_total{result=\"failed\"}") < 1.0);
}

#[test]
fn a_sidecar_with_an_expired_certificate_exits_if_configured() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let mut control = ControlProgram::start(&shop.manifests, &["--certificate-lifetime", "8s"]);
    let mut ratings = SidecarProgram::join(&control, "shop/ratings-1", &["--on-expiry", "fail"]);
    let web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    control.kill();
    ratings.program.wait_for_line("this sidecar exits because of --on-expiry fail", MAX_WAIT);
    assert!(!ratings.program.wait_for_exit(MAX_WAIT).success());
    // The other sidecar continues, logs the failure, and counts it.
    web.program.wait_for_line("peers reject this sidecar", MAX_WAIT);
    assert!(
        web.admin_endpoint.metric_value("leno_certificate_renewals_total{result=\"failed\"}")
            >= 1.0
    );
    assert_ne!(leno_tests::get(shop.listener, "/").unwrap().status, 200);
}

/// Returns the expiry times of the certificates known to the control plane, ordered by workload.
fn certificate_expiries(mesh: &TestMesh) -> Vec<u64> {
    let certificates = mesh.get_json("certificates");
    let certificates = certificates.as_array().into_iter().flatten();
    certificates.filter_map(|certificate| certificate["not_after"].as_u64()).collect()
}
