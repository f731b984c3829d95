//! Deciders that take one connection with few streams: questions wait for room on it.

use std::future::pending;

use super::goaway::{accepted, verdicts};
use super::*;
use crate::tests::fixture::frames::{self, DATA, END_STREAM, Frame, OPENING, PING, SETTINGS};

/// The treatment of all connections but the first.
#[derive(Debug, Clone, Copy)]
enum Surplus {
    /// The server ends them.
    Closed,
    /// It never greets the client.
    Silent,
}

/// A decider that takes one question at a time, on one connection.
async fn narrow(surplus: Surplus, answers: bool) -> Application {
    let connections = Rc::<Cell<usize>>::default();
    Application::start(move |mut client| {
        let number = connections.replace(connections.get() + 1);
        async move {
            match surplus {
                _ if number == 0 => {}
                Surplus::Closed => return,
                Surplus::Silent => return pending().await,
            }
            client.bytes(24).await;
            client.send(&OPENING[24..]).await;
            client.send(frames::frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1])).await;
            while let Some(Frame { kind, flags, stream, payload }) = client.frame().await {
                if kind == PING && flags == 0 {
                    client.send(frames::frame(PING, 1, 0, &payload)).await;
                }
                if answers && kind == DATA && flags & END_STREAM != 0 {
                    client.send(accepted(stream)).await;
                }
            }
        }
    })
    .await
}

#[test]
fn questions_wait_for_room_where_no_second_connection_can_be_opened() {
    run(async {
        for surplus in [Surplus::Closed, Surplus::Silent] {
            let app = Application::canned(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let server = narrow(surplus, true).await;
            let decider = at(server.address, Unanswered::Deny);
            mesh.guard(vec![guard(authorization(decider))], Vec::new());
            assert_eq!(verdicts(&mesh, 20).await, [200; 20], "{surplus:?}");
            assert!(server.accepted.get() > 1, "{surplus:?}: nothing was full");
        }
    });
}

#[test]
fn the_wait_for_room_ends_with_the_time_of_the_question() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let server = narrow(Surplus::Closed, false).await;
        let timeout = Duration::from_millis(50);
        let decider = Decider { timeout, ..at(server.address, Unanswered::Deny) };
        mesh.guard(vec![guard(authorization(decider))], Vec::new());
        assert_eq!(verdicts(&mesh, 5).await, [403; 5]);
        assert_eq!(counted(&mesh, Count::AuthorizationUnanswered), 5);
    });
}
