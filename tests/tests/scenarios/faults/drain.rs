//! Graceful shutdown: requests in progress complete, and new ones are not accepted.

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use leno_tests::{ControlProgram, Response, SidecarProgram, TestMesh, eventually, get};
use rustix::process::Signal;

use super::{CountingApplication, MAX_WAIT, Shop, start_shop, wait_until_status};

#[test]
fn a_stopping_sidecar_completes_responses_and_accepts_no_connection() {
    let (shop, release_sender) = start_slow_shop();
    let control = ControlProgram::start(&shop.manifests, &[]);
    let mut ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    let inbound = ratings.admin_endpoint.inbound_listener(shop.ratings.port());

    let in_flight = start_request(&shop);
    ratings.program.send_signal(Signal::TERM);
    wait_until_closed(inbound);
    release_sender.send(()).unwrap();
    assert_response_completes(in_flight);
    assert_eq!(ratings.program.wait_for_exit(MAX_WAIT).code(), Some(0));
}

#[test]
fn a_stopping_mesh_completes_responses_and_exits_successfully() {
    let (shop, release_sender) = start_slow_shop();
    let mut mesh = TestMesh::up(&shop.manifests);
    wait_until_status(shop.listener, 200);

    let in_flight = start_request(&shop);
    mesh.up.send_signal(Signal::TERM);
    wait_until_closed(shop.listener);
    release_sender.send(()).unwrap();
    assert_response_completes(in_flight);
    assert_eq!(mesh.up.wait_for_exit(MAX_WAIT).code(), Some(0));
}

/// Returns a shop with a response to `/slow` that waits for the test.
pub(super) fn start_slow_shop() -> (Shop, Sender<()>) {
    let (release_sender, release_receiver) = channel();
    let release_receiver = Mutex::new(release_receiver);
    let application = CountingApplication::start(move |path| {
        if path == "/slow" {
            let release_receiver = release_receiver.lock().expect("no thread has panicked with it");
            release_receiver.recv().expect("the test releases the response");
        }
        format!("response to {path}")
    });
    (start_shop("allow", application), release_sender)
}

/// Sends a request for `/slow` and waits until the application has received it.
pub(super) fn start_request(shop: &Shop) -> JoinHandle<Response> {
    let (listener, count_before) = (shop.listener, shop.ratings.received_requests());
    let request = std::thread::spawn(move || get(listener, "/slow").expect("a response"));
    let has_arrived = || (shop.ratings.received_requests() > count_before).then_some(());
    eventually("the application has the request", MAX_WAIT, has_arrived);
    request
}

fn wait_until_closed(address: SocketAddr) {
    let connect_error = || TcpStream::connect(address).err();
    eventually(&format!("{address} accepts no connection"), MAX_WAIT, connect_error);
}

pub(super) fn assert_response_completes(in_flight: JoinHandle<Response>) {
    let response = in_flight.join().expect("the client got a response");
    assert_eq!(response.status, 200);
    assert_eq!(response.body, b"response to /slow");
}
