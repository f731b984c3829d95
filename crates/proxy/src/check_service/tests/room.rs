//! Check services that accept one connection with few streams: check requests wait for a free stream.

use super::goaway::{allow_frames, concurrent_statuses};
use super::*;
use crate::tests::fixture::frames::{DATA, END_STREAM, Frame};
use crate::tests::fixture::narrow::{Surplus, start_narrow};

/// A check service that accepts one request at a time, on one connection.
async fn narrow_check_service(surplus: Surplus, responds: bool) -> Application {
    start_narrow(surplus, move |Frame { kind, flags, stream, .. }| {
        let is_whole = *kind == DATA && flags & END_STREAM != 0;
        (responds && is_whole).then(|| allow_frames(*stream))
    })
    .await
}

#[test]
fn checks_wait_for_a_stream_if_no_second_connection_can_be_opened() {
    run(async {
        for surplus in [Surplus::Closed, Surplus::Silent] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let server = narrow_check_service(surplus, true).await;
            let check_service = check_service_at(server.address, FailureMode::Deny);
            mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
            assert_eq!(concurrent_statuses(&mesh, 20).await, [200; 20], "{surplus:?}");
            assert!(server.accepted.get() > 1, "{surplus:?}: no connection was full");
        }
    });
}

#[test]
fn the_wait_for_a_stream_ends_with_the_timeout_of_the_check() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let server = narrow_check_service(Surplus::Closed, false).await;
        let timeout = Duration::from_millis(50);
        let check_service =
            CheckService { timeout, ..check_service_at(server.address, FailureMode::Deny) };
        mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
        assert_eq!(concurrent_statuses(&mesh, 5).await, [403; 5]);
        assert_eq!(server_count(&mesh, Count::AuthorizationFailed), 5);
    });
}
