//! `connectTimeout` of a policy, if requests with several policies wait for one connection.

use std::rc::Rc;
use std::time::Duration;

use leno_model::{Access, CircuitBreaker, Endpoint, Protocol};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::addresses::{WORKLOAD, workload_entry};
use super::circuit::traffic_policy;
use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, Setup, meshed_endpoint, proxy_config, run,
    service_config, wait_until,
};
use crate::session::ListenerKind;

/// A mesh with an endpoint that accepts connections, and responds once it is released.
struct SlowEndpoint {
    mesh: Mesh,
    slow: Application,
    endpoint: Endpoint,
    release: watch::Sender<bool>,
    /// The address of the endpoint's workload: no policy of the service applies there.
    pinned: std::net::SocketAddr,
}

impl SlowEndpoint {
    async fn new(connect_timeout: Duration) -> Self {
        let app = Application::with_response(OK).await;
        let mut setup = Setup::default();
        setup.limits.connect_timeout = connect_timeout;
        let mesh = Mesh::new(app.address, setup).await;
        let (release, release_receiver) = watch::channel(false);
        let (inbound, release_receiver) = (mesh.inbound, Rc::new(release_receiver));
        let slow_app = Application::start(move |mut client| {
            let mut release_receiver = (*release_receiver).clone();
            async move {
                let _released = release_receiver.wait_for(|is_released| *is_released).await;
                let mut server = TcpStream::connect(inbound).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client.stream, &mut server).await);
            }
        })
        .await;
        let endpoint = meshed_endpoint("ratings-2", slow_app.address, "ratings");
        let address_entry = workload_entry(Some(endpoint.clone()), "ratings-2", Protocol::Http);
        mesh.client.addresses.borrow_mut().insert(WORKLOAD.into(), address_entry.into());
        let listener_kind = ListenerKind::Address((WORKLOAD, 80).into());
        let pinned_listener = mesh.client.open_listener(listener_kind).await;
        Self { mesh, slow: slow_app, endpoint, release, pinned: pinned_listener }
    }

    /// Sets the connect timeout in the policy of the service.
    fn set_timeout(&self, connect_timeout: Duration) {
        let mut service = service_config(Protocol::Http, std::slice::from_ref(&self.endpoint));
        let connect_timeout = Some(connect_timeout);
        let rule = CircuitBreaker { connect_timeout, ..CircuitBreaker::default() };
        service.ports.get_mut(&PORT).unwrap().traffic_policy = traffic_policy(rule);
        self.mesh.client.apply_config(proxy_config("productpage", Access::AllowAll), vec![service]);
    }
}

/// A delay that exceeds the duration of the test.
const LONG: Duration = Duration::from_secs(600);
/// The connect timeout of the policy.
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_connect_timeout_applies_to_connections_that_other_requests_opened() {
    run(async {
        let slow_endpoint = SlowEndpoint::new(LONG).await;
        slow_endpoint.set_timeout(SHORT);
        let mut pinned_client = Client::connect(slow_endpoint.pinned).await;
        pinned_client.send_bytes(GET).await;
        wait_until(|| slow_endpoint.slow.accepted.get() == 1).await;
        let response = Client::connect(slow_endpoint.mesh.listener).await.send_request(GET).await;
        assert_eq!(response.verdict(), (504, Some("connect-timeout")));
        assert_eq!(slow_endpoint.slow.accepted.get(), 1, "both wait for one connection");
        slow_endpoint.release.send_replace(true);
        assert_eq!(pinned_client.read_response().await.status, 200);
        assert_eq!(slow_endpoint.mesh.client.failure_counts(), [("connect-timeout", 1)].into());
    });
}

#[test]
fn a_connect_timeout_does_not_apply_to_requests_without_the_policy() {
    run(async {
        let slow_endpoint = SlowEndpoint::new(LONG).await;
        slow_endpoint.set_timeout(SHORT);
        let response = Client::connect(slow_endpoint.mesh.listener).await.send_request(GET).await;
        assert_eq!(response.verdict(), (504, Some("connect-timeout")));
        let mut pinned_client = Client::connect(slow_endpoint.pinned).await;
        pinned_client.send_bytes(GET).await;
        // Exceeds the timeout of the policy.
        tokio::time::timeout(SHORT * 4, pinned_client.read_response()).await.unwrap_err();
        slow_endpoint.release.send_replace(true);
        assert_eq!(pinned_client.read_response().await.status, 200);
        assert_eq!(slow_endpoint.slow.accepted.get(), 1, "the attempt has continued");
    });
}

#[test]
fn a_request_with_a_longer_timeout_lets_the_attempt_continue() {
    run(async {
        let slow_endpoint = SlowEndpoint::new(Duration::from_millis(300)).await;
        slow_endpoint.set_timeout(LONG);
        let mut pinned_client = Client::connect(slow_endpoint.pinned).await;
        pinned_client.send_bytes(GET).await;
        wait_until(|| slow_endpoint.slow.accepted.get() == 1).await;
        let mut patient_client = Client::connect(slow_endpoint.mesh.listener).await;
        patient_client.send_bytes(GET).await;
        assert!(pinned_client.read_response().await.status >= 503);
        slow_endpoint.release.send_replace(true);
        assert_eq!(patient_client.read_response().await.status, 200);
        assert_eq!(slow_endpoint.slow.accepted.get(), 1, "the attempt has continued");
    });
}

#[test]
fn a_connect_timeout_applies_to_exclusive_connections() {
    run(async {
        let slow_endpoint = SlowEndpoint::new(LONG).await;
        slow_endpoint.set_timeout(SHORT);
        let request_with_credentials =
            "GET / HTTP/1.1\r\nhost: x\r\nauthorization: NTLM alice\r\n\r\n";
        let response = Client::connect(slow_endpoint.mesh.listener)
            .await
            .send_request(request_with_credentials)
            .await;
        assert_eq!(response.verdict(), (504, Some("connect-timeout")));
    });
}
