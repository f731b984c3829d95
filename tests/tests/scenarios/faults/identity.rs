//! Unauthorized clients at the sockets of sidecars: rejected, and counted with a reason.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use leno_tests::manifests::{client, mesh_config, server};
use leno_tests::{AdminPage, Connection, ControlPlane, Proxy, eventually, free_port, get};

use super::{Counted, MAX_WAIT, loopback, shop, turns};

#[test]
fn only_members_get_through_the_inbound_port_and_others_are_counted() {
    let shop = shop("permissive", Counted::echo());
    let control = ControlPlane::start(&shop.manifests, &[]);
    let ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let web = Proxy::join(&control, "shop/web-1", &[]);
    let foreign = ControlPlane::start(&shop.manifests, &[]);
    let external_client = Proxy::launch(
        "shop/web-1",
        &foreign.token("shop/web-1"),
        &foreign.state("shop/web-1"),
        &[],
    );
    eventually("the outsider has a certificate", MAX_WAIT, || {
        (!external_client.page.world()["certificate"].is_null()).then_some(())
    });
    turns(shop.listener, 200);
    let inbound = ratings.page.inbound(shop.ratings.port());
    let (page, served) = (ratings.page, shop.ratings.requests());

    let mut plain = Connection::open(inbound).unwrap();
    plain.send("GET / HTTP/1.1\r\nhost: ratings\r\n\r\n").unwrap();
    assert_eq!(plain.rest().unwrap_err().kind(), ErrorKind::ConnectionReset);
    counts(page, "plaintext-refused");

    assert_eq!(curl(inbound, None), "000", "without a certificate");
    counts(page, "handshake-failed");

    assert_eq!(curl(inbound, Some(&foreign.state("shop/web-1"))), "000", "of a foreign root");
    counts(page, "untrusted-peer");
    assert_eq!(shop.ratings.requests(), served, "nothing of it reached the application");

    assert_eq!(curl(inbound, Some(&control.state("shop/web-1"))), "200", "a member");
    assert_eq!(shop.ratings.requests(), served + 1);
    drop(web);
}

#[test]
fn a_certificate_that_has_expired_is_refused() {
    let shop = shop("permissive", Counted::echo());
    let control = ControlPlane::start(&shop.manifests, &["--certificate-lifetime", "3s"]);
    let ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let mut web = Proxy::join(&control, "shop/web-1", &[]);
    let inbound = ratings.page.inbound(shop.ratings.port());
    // It does not renew its certificate any more, and the last one expires.
    web.kill();
    eventually("its certificate is refused", MAX_WAIT, || {
        drop(curl(inbound, Some(&control.state("shop/web-1"))));
        (ratings.page.refused("expired-peer") >= 1.0).then_some(())
    });
}

#[test]
fn the_right_root_but_the_wrong_service_is_refused_by_the_client() {
    let (ratings, details) = (Counted::echo(), Counted::echo());
    let listener = free_port();
    let manifests = [
        mesh_config("permissive"),
        server("ratings", ratings.port(), &[]),
        server("details", details.port(), &[]),
        client("web", &[], &[("ratings.shop", listener)]),
    ];
    let mut control = ControlPlane::start(&manifests.concat(), &[]);
    let mut of_ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let mut of_details = Proxy::join(&control, "shop/details-1", &[]);
    let _web = Proxy::join(&control, "shop/web-1", &[]);
    turns(loopback(listener), 200);
    let served = details.requests();

    // Another member of the mesh takes over the address while the control plane cannot update the client.
    control.kill();
    let inbound = of_ratings.page.inbound(ratings.port());
    of_ratings.kill();
    of_details.kill();
    let address = control.state("shop/details-1");
    let address = address.join(format!("inbound-{}.address", details.port()));
    std::fs::write(address, inbound.to_string()).unwrap();
    of_details.start_again();
    assert_eq!(of_details.page.inbound(details.port()), inbound);

    let refused = || get(loopback(listener), "/").ok().filter(|response| response.status == 502);
    let (response, _) = eventually("the client notices", MAX_WAIT, refused);
    assert_eq!(response.reason(), Some("wrong-identity"));
    assert_eq!(details.requests(), served, "nothing reached the wrong application");
}

/// Waits until one connection is counted as rejected for a reason: the client may notice first.
fn counts(page: AdminPage, reason: &str) {
    let counted = || Some(page.refused(reason)).filter(|count| *count > 0.0);
    let what = format!("a connection is counted as {reason}");
    assert_eq!(eventually(&what, MAX_WAIT, counted).0, 1.0);
}

/// Returns the status of a curl request with the certificate in a state directory; 000 for none.
fn curl(address: SocketAddr, state: Option<&Path>) -> String {
    let mut command = Command::new("curl");
    // The certificate contains a SPIFFE identity and no host name, hence -k.
    command.args(["-sk", "--http1.1", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "10"]);
    if let Some(state) = state {
        let credential = state.join("credential.pem");
        command.arg("--cert").arg(&credential).arg("--key").arg(&credential);
    }
    let output = command.arg(format!("https://{address}/")).output().expect("curl runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
