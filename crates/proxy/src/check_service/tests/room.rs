//! Check services that accept one connection with few streams: check requests wait for a free stream.

use super::goaway::{allow_frames, concurrent_statuses};
use super::*;
use crate::tests::fixture::frames::{DATA, END_STREAM, Frame};
use crate::tests::fixture::single_stream::{FurtherConnections, start_single_stream_server};

/// A check service that accepts one request at a time, on one connection.
async fn single_stream_check_service(
    further_connections: FurtherConnections,
    responds: bool,
) -> Application {
    start_single_stream_server(further_connections, move |Frame { kind, flags, stream, .. }| {
        let is_whole = *kind == DATA && flags & END_STREAM != 0;
        (responds && is_whole).then(|| allow_frames(*stream))
    })
    .await
}

#[test]
fn checks_wait_for_a_stream_if_no_second_connection_can_be_opened() {
    run(async {
        for further_connections in [FurtherConnections::Closed, FurtherConnections::Silent] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let server = single_stream_check_service(further_connections, true).await;
            let check_service = check_service_at(server.address, FailureMode::Deny);
            mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
            assert_eq!(concurrent_statuses(&mesh, 20).await, [200; 20], "{further_connections:?}");
            assert!(server.accepted.get() > 1, "{further_connections:?}: no connection was full");
        }
    });
}

#[test]
fn the_wait_for_a_stream_ends_with_the_timeout_of_the_check() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let server = single_stream_check_service(FurtherConnections::Closed, false).await;
        let timeout = Duration::from_millis(50);
        let check_service =
            CheckService { timeout, ..check_service_at(server.address, FailureMode::Deny) };
        mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
        assert_eq!(concurrent_statuses(&mesh, 5).await, [403; 5]);
        assert_eq!(server_count(&mesh, Count::AuthorizationFailed), 5);
    });
}
