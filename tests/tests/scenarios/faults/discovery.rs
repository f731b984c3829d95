//! On-demand discovery: a sidecar subscribes only to the services it uses, with and without a control plane.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_tests::manifests::{client, mesh_config, server};
use leno_tests::{Connection, ControlPlane, Proxy, Response, eventually, exchange};

use super::{Counted, MAX_WAIT};

#[test]
fn a_service_is_known_from_its_first_use_until_it_is_idle_and_not_before() {
    let (ratings, details) = (Counted::echo(), Counted::echo());
    let control = control(&ratings, &details);
    let _ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _details = Proxy::join(&control, "shop/details-1", &[]);
    let web = Proxy::join(&control, "shop/web-1", &["--idle-subscription", "3s"]);
    let listener = web.page.http_proxy();
    assert_eq!(web.page.services(), [""; 0], "nothing was asked for");

    assert_eq!(ask(listener, "ratings.shop").status, 200);
    assert_eq!(web.page.services(), ["shop/ratings"]);
    assert_eq!(ask(listener, "details.shop").status, 200);
    assert_eq!(web.page.services(), ["shop/details", "shop/ratings"]);

    let unknown = ask(listener, "nobody.shop");
    assert_eq!((unknown.status, unknown.reason()), (404, Some("unknown-service")));

    eventually("what is not used is forgotten", MAX_WAIT, || {
        assert_eq!(ask(listener, "ratings.shop").status, 200);
        (web.page.services() == ["shop/ratings"]).then_some(())
    });
}

#[test]
fn without_a_control_plane_what_was_used_goes_on_and_what_is_new_fails_in_time() {
    let (ratings, details) = (Counted::echo(), Counted::echo());
    let mut control = control(&ratings, &details);
    let _ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _details = Proxy::join(&control, "shop/details-1", &[]);
    let web = Proxy::join(&control, "shop/web-1", &["--discovery-timeout", "500ms"]);
    let listener = web.page.http_proxy();
    assert_eq!(ask(listener, "ratings.shop").status, 200);
    control.kill();

    let began = Instant::now();
    let new = ask(listener, "details.shop");
    assert_eq!((new.status, new.reason()), (503, Some("discovery-timeout")));
    let took = began.elapsed();
    assert!((Duration::from_millis(500)..Duration::from_secs(3)).contains(&took), "{took:?}");
    assert_eq!(ask(listener, "ratings.shop").status, 200);

    // Unanswered subscriptions are retried automatically.
    control.start_again();
    eventually("the new one is found", MAX_WAIT, || {
        (ask(listener, "details.shop").status == 200).then_some(())
    });
}

/// Nonexistent names do not prevent subscriptions to services.
#[test]
fn thousands_of_unknown_names_leave_room_for_a_new_service_and_are_a_notice() {
    let (ratings, details) = (Counted::echo(), Counted::echo());
    // With egress, each of these names would be a DNS query to the machine's resolver.
    let mesh = mesh_config("permissive").replace("trafficMode", "egress: deny, trafficMode");
    let control = control_of(mesh, &ratings, &details);
    let _ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _details = Proxy::join(&control, "shop/details-1", &[]);
    let web = Proxy::join(&control, "shop/web-1", &[]);
    let listener = web.page.http_proxy();
    assert_eq!(ask(listener, "ratings.shop").status, 200);
    let mut unknown = Connection::open(listener).unwrap();
    for index in 0..4200 {
        let name = format!("nobody-{index}.shop");
        unknown.send(format!("GET http://{name}/ HTTP/1.1\r\nhost: {name}\r\n\r\n")).unwrap();
        let unknown = unknown.receive().unwrap();
        assert_eq!((unknown.status, unknown.reason()), (404, Some("unknown-service")), "{index}");
    }
    assert_eq!(ask(listener, "details.shop").status, 200);
    assert_eq!(ask(listener, "ratings.shop").status, 200);
    let evicted = web.page.metric("leno_table_evictions_total{table=\"unknown-services\"}");
    assert!(evicted >= 4200.0 - 1200.0, "{evicted}");
    let status = eventually("status has a notice", MAX_WAIT, || {
        let output = control.leno(&["status"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("shop/web-1: the table unknown-services is full").then_some(text)
    });
    assert!(status.0.contains("leno_table_evictions_total"), "{}", status.0);
}

fn control(ratings: &Counted, details: &Counted) -> ControlPlane {
    control_of(mesh_config("permissive"), ratings, details)
}

fn control_of(mesh: String, ratings: &Counted, details: &Counted) -> ControlPlane {
    let manifests = [
        mesh,
        server("ratings", ratings.port(), &[]),
        server("details", details.port(), &[]),
        client("web", &[], &[]),
    ];
    ControlPlane::start(&manifests.concat(), &[])
}

/// Sends a request to a service through the HTTP proxy listener.
fn ask(listener: SocketAddr, host: &str) -> Response {
    let host = format!("{host}:9080");
    let request =
        format!("GET http://{host}/ HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    exchange(listener, &request).expect("the listener responds")
}
