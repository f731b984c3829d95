//! Revocation of an account or a workload: its members are rejected immediately, on open connections as well.

use leno_tests::{AdminPage, ControlPlane, Proxy, eventually};

use super::{Counted, MAX_WAIT, shop, turns};

#[test]
fn members_of_a_revoked_account_are_cut_off_where_they_are_connected() {
    let shop = shop("permissive", Counted::echo());
    let control = ControlPlane::start(&shop.manifests, &[]);
    let ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _web = Proxy::join(&control, "shop/web-1", &[]);
    turns(shop.listener, 200);
    let (requests, cut) =
        (shop.ratings.requests(), "leno_connections_refused_total{reason=\"revoked-peer\"}");
    assert!(ratings.page.metric(cut) < 1.0);

    let revoked = "trafficMode: permissive, revoked: [{kind: ServiceAccount, name: web, \
                   namespace: shop}]";
    let manifests = shop.manifests.replace("trafficMode: permissive", revoked);
    assert_ne!(manifests, shop.manifests);
    control.write("mesh.yaml", &manifests);
    eventually("the open link of web is cut", MAX_WAIT, || {
        (ratings.page.metric(cut) >= 1.0).then_some(())
    });
    let answer = leno_tests::get(shop.listener, "/").unwrap();
    assert_ne!(answer.status, 200);
    let before = shop.ratings.requests();
    assert!(before >= requests);
    eventually("web is with the control plane no more", MAX_WAIT, || {
        AdminPage::of(&control.ask("proxies"), "shop/web-1").is_none().then_some(())
    });
    let token = control.token("shop/web-1");
    let again = Proxy::launch("shop/web-1", &token, &control.state("again"), &[]);
    again.program.wait_for_line("its Workload does not exist", MAX_WAIT);
    drop(again);

    // It is a member again once the revocation is removed.
    control.write("mesh.yaml", &shop.manifests);
    turns(shop.listener, 200);
}

#[test]
fn a_revoked_workload_is_cut_off_and_stays_so_over_a_restart_of_the_control_plane() {
    let shop = shop("permissive", Counted::echo());
    let mut control = ControlPlane::start(&shop.manifests, &[]);
    let ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _web = Proxy::join(&control, "shop/web-1", &[]);
    turns(shop.listener, 200);
    let cut = "leno_connections_refused_total{reason=\"revoked-peer\"}";

    let done = control.leno(&["revoke", "shop/web-1"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stdout).contains("shop/web-1 is revoked"));
    eventually("the open link of web is cut", MAX_WAIT, || {
        (ratings.page.metric(cut) >= 1.0).then_some(())
    });
    assert_ne!(leno_tests::get(shop.listener, "/").unwrap().status, 200);
    let is_gone = |control: &ControlPlane| {
        AdminPage::of(&control.ask("proxies"), "shop/web-1").is_none().then_some(())
    };
    eventually("web is with the control plane no more", MAX_WAIT, || is_gone(&control));
    control.kill();
    control.start_again();
    eventually("ratings is back", MAX_WAIT, || {
        AdminPage::of(&control.ask("proxies"), "shop/ratings-1").map(drop)
    });
    is_gone(&control).unwrap();
    let again =
        Proxy::launch("shop/web-1", &control.token("shop/web-1"), &control.state("again"), &[]);
    again.program.wait_for_line("its Workload does not exist", MAX_WAIT);
    drop(again);
    let listed = control.leno(&["revoke", "-o", "json"]).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["revoked"][0]["workload"], "shop/web-1");

    let done = control.leno(&["revoke", "shop/web-1", "--undo"]);
    assert!(String::from_utf8_lossy(&done.stdout).contains("is a member again"));
    turns(shop.listener, 200);
}
