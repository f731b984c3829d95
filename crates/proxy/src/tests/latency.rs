//! How long endpoints take, as a data thread learns it: what counts, and what is held against nobody.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::Endpoint;

use super::fixture::{Application, Mesh, OK, run};
use crate::upstream::Upstream;

const LONG: Duration = Duration::from_secs(1);
/// As `Latency::step` tells of it.
const LONG_STEP: u8 = 19;

/// An endpoint as the client's sidecar knows it.
fn known(mesh: &Mesh, endpoint: Endpoint) -> Rc<Upstream> {
    mesh.client.worker.upstream(&Arc::new(endpoint))
}

/// How long it takes.
fn step(upstream: &Upstream) -> Option<u8> {
    upstream.load(None, Some(Instant::now())).step
}

/// It was chosen so long ago.
fn chosen(upstream: &Upstream, ago: Duration) {
    upstream.choose(Instant::now().checked_sub(ago).unwrap());
}

#[test]
fn a_connection_that_is_opened_is_no_part_of_its_attempt_and_says_nothing_of_others() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let upstream = known(&mesh, mesh.endpoint());
        chosen(&upstream, LONG);
        let (slow, connecting) = (upstream.time(), upstream.time());
        assert!(upstream.lease(&mesh.client.worker, Some(&connecting)).await.is_ok());
        connecting.answers(200);
        assert!(step(&upstream) < Some(LONG_STEP));
        slow.answers(200);
        assert!(step(&upstream) >= Some(LONG_STEP));
    });
}
