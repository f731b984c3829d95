//! Failures: they stay isolated and are reported.

mod chaos;
mod circuit;
mod control_plane;
mod discovery;
mod drain;
mod endpoints;
mod flipped;
mod full_disk;
mod identity;
mod outlier_detection;
mod renewal;
mod replicas;
mod revocation;
mod roots;
mod sidecars;
mod skew;
mod supervision;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    AdminEndpoint, ApplicationResponse, TestApplication, TestMesh, eventually, free_port, get,
};

/// An application in the test process that counts its requests.
struct CountingApplication {
    application: TestApplication,
    request_count: Arc<AtomicUsize>,
}

impl CountingApplication {
    /// Starts an application that responds with the result of `respond` for the request target; `respond` may
    /// block.
    fn start(respond: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let request_count = Arc::new(AtomicUsize::new(0));
        let request_counter = Arc::clone(&request_count);
        let application = TestApplication::start(move |request| {
            request_counter.fetch_add(1, Ordering::SeqCst);
            ApplicationResponse::ok(respond(request.method_and_target().1))
        });
        Self { application, request_count }
    }

    /// Starts an application that responds with the request target.
    fn start_echo() -> Self {
        Self::start(str::to_owned)
    }

    fn port(&self) -> u16 {
        self.application.port()
    }

    /// Returns the number of received requests, completed or not.
    fn received_requests(&self) -> usize {
        self.request_count.load(Ordering::SeqCst)
    }
}

/// A service `ratings` served by the test, and a workload `web` with an outbound listener for it.
struct Shop {
    manifests: String,
    ratings: CountingApplication,
    listener: SocketAddr,
}

/// Returns the shop, and starts no mesh; `default_policy` is `allow` or `deny`.
fn start_shop(default_policy: &str, ratings: CountingApplication) -> Shop {
    let port = free_port();
    let manifests = [
        mesh_config(default_policy),
        server_manifest("ratings", ratings.port(), &[]),
        client_manifest("web", &[], &[("ratings.shop", port)]),
    ];
    Shop { manifests: manifests.concat(), ratings, listener: loopback_address(port) }
}

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns the admin endpoint of a workload's sidecar, once the sidecar is connected.
pub(crate) fn connected_sidecar(mesh: &TestMesh, workload: &str) -> AdminEndpoint {
    let poll = || AdminEndpoint::for_workload(&mesh.get_json("proxies"), workload);
    eventually(&format!("the sidecar of {workload} is connected"), MAX_WAIT, poll).0
}

/// Waits until a listener responds with a status. Returns the elapsed time.
fn wait_until_status(listener: SocketAddr, status: u16) -> Duration {
    let poll = || get(listener, "/").ok().filter(|response| response.status == status);
    eventually(&format!("{listener} responds {status}"), MAX_WAIT, poll).1
}

/// Allows all GET requests of `web` to `ratings`.
const ALLOW_GETS: &str = "apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: ratings-http, namespace: shop}
spec: {matches: [{name: read, pathRegex: \"/.*\", methods: [GET]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: web-reads-ratings, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: ratings, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: ratings-http, matches: [read]}]
";

const MAX_WAIT: Duration = Duration::from_secs(60);
