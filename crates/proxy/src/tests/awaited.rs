//! Requests without an endpoint wait for a workload that changed, and requests to outdated endpoints are routed
//! again.

use http::Request;
use leno_model::{Endpoint, Protocol, ServiceView, WorkloadPlan};
use tokio::net::TcpListener;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Setup, endpoint, run, settled, until, view,
};
use super::http2;
use crate::drain::Phase;

const POST: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";

/// The client expects the sidecar of a workload, and has these endpoints.
fn expect_sidecar(mesh: &Mesh, endpoints: &[Endpoint]) {
    let view = view(mesh.setup.protocol, endpoints);
    mesh.client_knows(vec![ServiceView { awaited: true, ..view }]);
}

async fn of_protocol(protocol: Protocol) -> (Application, Mesh) {
    let app = Application::canned(OK).await;
    let mesh = Mesh::new(app.address, Setup { protocol, ..Setup::default() }).await;
    (app, mesh)
}

#[test]
fn a_request_waits_for_the_endpoint_of_a_workload_that_changed() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Tcp, Protocol::Detect] {
            let (app, mesh) = of_protocol(protocol).await;
            expect_sidecar(&mesh, &[]);
            let mut client = Client::connect(mesh.listener).await;
            client.send(POST).await;
            settled(|| app.accepted.get()).await;
            // A configuration that still has no endpoint.
            expect_sidecar(&mesh, &[]);
            settled(|| app.accepted.get()).await;
            assert_eq!((mesh.client.ended(), app.accepted.get()), (0, 0), "{protocol:?}");
            mesh.route_to(&[mesh.endpoint()]);
            assert_eq!(client.answer().await.text(), "ok", "{protocol:?}");
            assert!(mesh.client.failures().is_empty());
        }
        let (_app, mesh) = of_protocol(Protocol::Http).await;
        expect_sidecar(&mesh, &[]);
        let mut send = http2::connect(mesh.listener).await;
        let request = Request::get("http://ratings/").body(()).unwrap();
        let response = send.send_request(request, true).unwrap().0;
        settled(|| 0).await;
        mesh.route_to(&[mesh.endpoint()]);
        assert_eq!(response.await.unwrap().status(), 200);
    });
}

#[test]
fn the_wait_ends_with_the_expectation_with_the_client_and_with_the_drain() {
    run(async {
        let (_app, mesh) = of_protocol(Protocol::Http).await;
        let wait = async || {
            expect_sidecar(&mesh, &[]);
            let mut client = Client::connect(mesh.listener).await;
            client.send(GET).await;
            settled(|| 0).await;
            client
        };
        let mut client = wait().await;
        mesh.route_to(&[]);
        assert_eq!(client.answer().await.verdict(), (503, Some("no-endpoint")));
        wait().await.abandon();
        until(|| mesh.client.ended() == 2).await;
        let mut client = wait().await;
        mesh.client.phase.send_replace(Phase::Draining);
        assert_eq!(client.answer().await.verdict(), (503, Some("no-endpoint")));
        let expected = [("no-endpoint", 2), ("downstream-closed", 1)];
        assert_eq!(mesh.client.failures(), expected.into());

        let (_app, mesh) = of_protocol(Protocol::Tcp).await;
        expect_sidecar(&mesh, &[]);
        let mut client = Client::connect(mesh.listener).await;
        client.send(GET).await;
        settled(|| 0).await;
        mesh.route_to(&[]);
        assert_eq!(client.end().await, End::Reset);
        assert_eq!(mesh.client.failures(), [("no-endpoint", 1)].into());
    });
}

/// The connection to the former endpoint fails after the client's sidecar has learned of the next one.
#[test]
fn a_request_to_an_endpoint_that_is_gone_is_routed_anew() {
    run(async {
        for (protocol, waits) in
            [Protocol::Http, Protocol::Tcp].into_iter().flat_map(|it| [(it, false), (it, true)])
        {
            let (app, mesh) = of_protocol(protocol).await;
            let former = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = former.local_addr().unwrap();
            mesh.route_to(&[endpoint("ratings-1", at, "ratings")]);
            let mut client = Client::connect(mesh.listener).await;
            client.send(POST).await;
            let (connection, _) = former.accept().await.unwrap();
            match waits {
                true => expect_sidecar(&mesh, &[]),
                false => mesh.route_to(&[mesh.endpoint()]),
            }
            drop((connection, former));
            if waits {
                settled(|| app.accepted.get()).await;
                assert_eq!(mesh.client.ended(), 0, "{protocol:?}");
                mesh.route_to(&[mesh.endpoint()]);
            }
            assert_eq!(client.answer().await.text(), "ok", "{protocol:?} {waits}");
            assert!(mesh.client.failures().is_empty());
        }
    });
}

/// The server's sidecar applies a change of the port before the client's.
#[test]
fn a_request_to_a_port_that_the_workload_has_lost_is_routed_anew() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Tcp] {
            let (_former, mesh) = of_protocol(protocol).await;
            assert_eq!(Client::connect(mesh.listener).await.ask(POST).await.text(), "ok");
            let next =
                Application::canned("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext").await;
            let (_server, endpoint) = mesh.server("ratings-1", next.address).await;
            mesh.enforce_with(&|plan| WorkloadPlan { ports: Vec::new(), ..plan });
            let mut client = Client::connect(mesh.listener).await;
            client.send(GET).await;
            until(|| mesh.server.failures().contains_key("unknown-service")).await;
            expect_sidecar(&mesh, &[]);
            settled(|| next.accepted.get()).await;
            mesh.route_to(&[endpoint]);
            assert_eq!(client.answer().await.text(), "next", "{protocol:?}");
            assert!(mesh.client.failures().is_empty());
        }
    });
}

/// Another instance takes the requests meanwhile.
#[test]
fn no_request_waits_while_there_is_another_endpoint() {
    run(async {
        let (_app, mesh) = of_protocol(Protocol::Http).await;
        expect_sidecar(&mesh, &[mesh.endpoint()]);
        assert_eq!(Client::connect(mesh.listener).await.ask(GET).await.text(), "ok");
    });
}
