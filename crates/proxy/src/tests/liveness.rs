//! Unresponsive endpoints, before and after a link to them is open.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, Protocol};
use leno_traffic::Endpoints;
use leno_wire::link::LinkEvent;
use tokio::net::TcpListener;

use super::fixture::{
    Application, Client, Mesh, OK, Peer, meshed_endpoint, run, test_credential, wait_until,
};
use crate::upstream::ConnectWait;
use crate::upstream::priorities::Priorities;

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi";

/// Creates a listener without a process that accepts: the kernel completes connections, and no handshake ends.
async fn dead_endpoint(name: &str, account: Option<&str>) -> (Endpoint, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = meshed_endpoint(name, listener.local_addr().unwrap(), account.unwrap_or("ratings"));
    let account = dead.account.clone().filter(|_| account.is_some());
    (Endpoint { account, ..dead }, listener)
}

/// Starts a sidecar that accepts links and requests, and never responds. Counts the requests.
async fn start_silent(mesh: &Mesh, name: &str) -> (Endpoint, Rc<Cell<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_endpoint = meshed_endpoint(name, listener.local_addr().unwrap(), "ratings");
    let identity = test_credential(&mesh.authority, "ratings");
    let accepted = Rc::new(Cell::new(0));
    let count = accepted.clone();
    tokio::task::spawn_local(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut peer = Peer::accept_link(tcp, &identity).await;
        while let Some(event) = peer.next().await {
            count.set(count.get() + usize::from(matches!(event, LinkEvent::Opened { .. })));
        }
        // Later connections are accepted by the kernel alone.
        let _listener = listener;
        pending::<()>().await;
    });
    (silent_endpoint, accepted)
}

/// Accepts links at the listener from now on, also those in its backlog and those of probes. Counts the
/// requests.
fn accept_links(mesh: &Mesh, listener: TcpListener) -> Rc<Cell<usize>> {
    let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
    let served = Rc::new(Cell::new(0));
    let count = served.clone();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (identity, count) = (identity.clone(), count.clone());
            tokio::task::spawn_local(async move {
                let tls = super::fixture::tls_accept(tcp, &identity, &[crate::tls::ALPN_LINK]);
                let Ok(tls) = tls.await else { return };
                let acceptor_role = leno_wire::link::Role::Acceptor;
                let mut peer =
                    Peer::new(tls, acceptor_role, leno_wire::link::LinkLimits::default());
                peer.flush().await;
                while let Some(event) = peer.next().await {
                    if let LinkEvent::Opened { stream, .. } = event {
                        count.set(count.get() + 1);
                        peer.send_head(
                            stream,
                            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                            true,
                        );
                    }
                    peer.flush().await;
                }
            });
        }
    });
    served
}

async fn send_request(mesh: &Mesh, request: &str) -> (u16, Option<String>) {
    status_at(mesh.listener, request).await
}

async fn status_at(listener: SocketAddr, request: &str) -> (u16, Option<String>) {
    let response = Client::connect(listener).await.send_request(request).await;
    let (status, reason) = response.verdict();
    (status, reason.map(str::to_owned))
}

/// Sends sixteen requests at once.
async fn send_together(listener: SocketAddr, request: &'static str) -> Vec<(u16, Option<String>)> {
    let send = |_| tokio::task::spawn_local(status_at(listener, request));
    let responses: Vec<_> = (0..16).map(send).collect();
    let mut results = Vec::new();
    for response in responses {
        results.push(response.await.unwrap());
    }
    results
}

#[test]
fn a_request_of_any_method_tries_endpoints_until_it_is_sent() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut listeners = Vec::new();
        let mut endpoints = vec![mesh.server_endpoint()];
        for name in ["ratings-2", "ratings-3", "ratings-4", "ratings-5"] {
            let (dead, listener) = dead_endpoint(name, Some("ratings")).await;
            endpoints.push(dead);
            listeners.push(listener);
        }
        mesh.route_to(&endpoints);
        // The requests are sent at once, so that none benefits from the failures of others.
        for (status, reason) in send_together(mesh.listener, POST).await {
            assert_eq!((status, reason), (200, None));
        }
        assert_eq!((app.received_requests().len(), mesh.client.failure_counts().len()), (16, 0));
    });
}

#[test]
fn requests_and_bytes_try_endpoints_without_a_sidecar_until_they_are_sent() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let closed_endpoint = Endpoint {
            account: None,
            ..meshed_endpoint("ratings-2", super::fixture::closed_port(), "ratings")
        };
        let other_endpoint = Endpoint {
            id: meshed_endpoint("ratings-3", app.address, "ratings").id,
            ..closed_endpoint.clone()
        };
        let plain =
            Endpoint { account: None, ..meshed_endpoint("ratings-4", app.address, "ratings") };
        for protocol in [Protocol::Http, Protocol::Tcp] {
            let endpoints = [closed_endpoint.clone(), other_endpoint.clone(), plain.clone()];
            mesh.set_client_services(vec![super::fixture::service_config(protocol, &endpoints)]);
            for _ in 0..8 {
                assert_eq!(send_request(&mesh, POST).await, (200, None), "{protocol}");
            }
        }
    });
}

#[test]
fn a_silent_link_loses_its_requests_and_gets_no_new_ones() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (silent_endpoint, accepted) = start_silent(&mesh, "ratings-2").await;
        mesh.route_to(std::slice::from_ref(&silent_endpoint));
        // A request that was sent and may have had its effect fails with a reason, long before the 20 s of two
        // keepalive intervals.
        let start_time = Instant::now();
        assert_eq!(send_request(&mesh, POST).await, (502, Some("upstream-reset".to_owned())));
        assert!(start_time.elapsed() < Duration::from_secs(16), "{:?}", start_time.elapsed());
        assert_eq!(accepted.get(), 1);
        mesh.route_to(&[silent_endpoint, mesh.server_endpoint()]);
        for _ in 0..20 {
            assert_eq!(send_request(&mesh, POST).await, (200, None));
        }
        assert_eq!((app.received_requests().len(), accepted.get()), (20, 1));
    });
}

/// A sidecar without CPU time for seconds: its request in progress waits, and others do not.
#[test]
fn a_request_survives_a_silence_of_seconds_of_its_peer() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stalled = meshed_endpoint("ratings-2", listener.local_addr().unwrap(), "ratings");
        let identity = test_credential(&mesh.authority, "ratings");
        let resume_notify = Rc::new(tokio::sync::Notify::new());
        let (accepted, released) = (Rc::new(Cell::new(false)), resume_notify.clone());
        let count = accepted.clone();
        tokio::task::spawn_local(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut peer = Peer::accept_link(tcp, &identity).await;
            while let Some(event) = peer.next().await {
                let LinkEvent::Opened { stream, .. } = event else { continue };
                if !count.replace(true) {
                    released.notified().await;
                }
                peer.send_head(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true);
                peer.flush().await;
            }
        });
        mesh.route_to(std::slice::from_ref(&stalled));
        let listener = mesh.listener;
        let waiting_request =
            tokio::task::spawn_local(async move { status_at(listener, POST).await });
        wait_until(|| accepted.get()).await;
        let upstream = mesh.client.worker.upstream_for(&Arc::new(stalled.clone()));
        wait_until(|| !upstream.is_usable(Instant::now())).await;
        mesh.route_to(&[stalled, mesh.server_endpoint()]);
        for _ in 0..20 {
            assert_eq!(send_request(&mesh, POST).await, (200, None));
        }
        assert_eq!(app.received_requests().len(), 20);
        resume_notify.notify_one();
        assert_eq!(waiting_request.await.unwrap(), (200, None));
        wait_until(|| upstream.is_usable(Instant::now())).await;
        assert!(mesh.client.failure_counts().is_empty());
    });
}

/// A drain, or the removal of an endpoint, retires each link of the endpoint, including those with a silent
/// peer.
#[test]
fn a_silent_link_of_a_retired_endpoint_ends_when_its_peer_responds() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stalled = meshed_endpoint("ratings-2", listener.local_addr().unwrap(), "ratings");
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let resume_notify = Rc::new(tokio::sync::Notify::new());
        // The requests on each link, and the links that ended.
        let (requests, ended) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        let (counts, ends, released) = (requests.clone(), ended.clone(), resume_notify.clone());
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (identity, counts) = (identity.clone(), counts.clone());
                let (ends, released) = (ends.clone(), released.clone());
                tokio::task::spawn_local(async move {
                    let mut peer = Peer::accept_link(tcp, &identity).await;
                    let number = counts.borrow().len();
                    counts.borrow_mut().push(0);
                    while let Some(event) = peer.next().await {
                        let LinkEvent::Opened { stream, .. } = event else { continue };
                        let is_first = counts.borrow().iter().sum::<usize>() == 0;
                        counts.borrow_mut()[number] += 1;
                        if is_first {
                            released.notified().await;
                        }
                        peer.send_head(
                            stream,
                            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                            true,
                        );
                        peer.flush().await;
                    }
                    ends.set(ends.get() + 1);
                });
            }
        });
        mesh.route_to(std::slice::from_ref(&stalled));
        let listener = mesh.listener;
        let waiting_request =
            tokio::task::spawn_local(async move { status_at(listener, POST).await });
        wait_until(|| requests.borrow()[..] == [1]).await;
        let upstream = mesh.client.worker.upstream_for(&Arc::new(stalled));
        wait_until(|| !upstream.is_usable(Instant::now())).await;
        mesh.client.worker.retire_upstreams();
        resume_notify.notify_one();
        assert_eq!(waiting_request.await.unwrap(), (200, None));
        wait_until(|| upstream.is_usable(Instant::now())).await;
        assert_eq!(send_request(&mesh, POST).await, (200, None));
        assert_eq!(requests.borrow()[..], [1, 1], "each link has carried one request");
        wait_until(|| ended.get() == 1).await;
    });
}

#[test]
fn an_idempotent_request_on_a_silent_link_is_retried_at_another_endpoint() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (silent_endpoint, accepted) = start_silent(&mesh, "ratings-2").await;
        mesh.route_to(&[silent_endpoint, mesh.server_endpoint()]);
        for (status, reason) in send_together(mesh.listener, GET).await {
            assert_eq!((status, reason), (200, None));
        }
        assert!(accepted.get() > 0);
        assert_eq!(mesh.client.failure_counts().len(), 0);
    });
}

#[test]
fn an_endpoint_that_responds_again_gets_requests_again() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (dead, listener) = dead_endpoint("ratings-2", Some("ratings")).await;
        mesh.route_to(&[dead, mesh.server_endpoint()]);
        for _ in 0..20 {
            assert_eq!(send_request(&mesh, POST).await, (200, None));
        }
        let served = accept_links(&mesh, listener);
        while served.get() == 0 {
            assert_eq!(send_request(&mesh, GET).await, (200, None));
        }
        wait_until(|| served.get() > 0).await;
    });
}

#[test]
fn a_preferred_endpoint_is_probed_while_another_priority_serves() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (dead, listener) = dead_endpoint("ratings-2", Some("ratings")).await;
        let list = |endpoint: &Endpoint| -> Endpoints { [Arc::new(endpoint.clone())].into() };
        let fallback_endpoints: Arc<[Endpoints]> = [list(&mesh.server_endpoint())].into();
        let priorities = Priorities::new(list(&dead), Some(fallback_endpoints));
        assert_eq!(priorities.len(), 2);
        let worker = &mesh.client.worker;
        let preferred_upstream = worker.upstream_for(&Arc::new(dead));
        assert!(preferred_upstream.acquire(worker, None, ConnectWait::Short).await.is_err());
        assert!(priorities.is_fallback(priorities.serving_endpoints(worker, None, None)));
        let _served = accept_links(&mesh, listener);
        wait_until(|| !priorities.is_fallback(priorities.serving_endpoints(worker, None, None)))
            .await;
    });
}
