//! Certificates that live for seconds are renewed while requests go on.

use std::time::Duration;

use leno_tests::{Load, Mesh, eventually};

use super::{Counted, PATIENCE, shop, sidecar, turns};

#[test]
fn certificates_are_renewed_under_load_without_a_failed_request() {
    let shop = shop("permissive", Counted::echo());
    let mesh = Mesh::up_with(&shop.manifests, &["--certificate-lifetime", "6s"]);
    turns(shop.door, 200);
    let load = Load::start("GET", shop.door, 2);
    load.wait_for(10);
    for _ in 0..2 {
        let before = expiries(&mesh);
        assert_eq!(before.len(), 2, "{before:?}");
        eventually("every certificate is renewed", Duration::from_secs(8), || {
            let now = expiries(&mesh);
            before.iter().zip(&now).all(|(before, now)| before < now).then_some(())
        });
        load.wait_for(10);
    }
    load.finish().assert_whole();

    // What the control plane lists is what the sidecars use.
    let web = sidecar(&mesh, "shop/web-1");
    let renewed = || web.metric("leno_certificate_renewals_total{result=\"ok\"}") >= 2.0;
    eventually("the sidecar counts them", PATIENCE, || renewed().then_some(()));
    assert!(web.metric("leno_certificate_renewals_total{result=\"failed\"}") < 1.0);
}

/// When the certificates end that the control plane knows of, in order of their workloads.
fn expiries(mesh: &Mesh) -> Vec<u64> {
    let certificates = mesh.ask("certificates");
    let certificates = certificates.as_array().into_iter().flatten();
    certificates.filter_map(|certificate| certificate["not_after"].as_u64()).collect()
}
