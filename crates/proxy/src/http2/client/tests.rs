//! Tests of the connections of an HTTP/2 pool: stream limits, GOAWAY, and closing of surplus connections.

use h2::Reason as Http2Code;
use tokio::net::TcpStream;

use super::*;
use crate::io::ByteStream;
use crate::tests::fixture::{Application, run, wait_until};
use crate::tests::http2::start_application;

/// Returns a connection of the pool with a slot for one stream.
async fn acquire_stream(
    pool: &Http2Pool,
    app: &Application,
    expires_at: Option<Instant>,
) -> Http2Checkout {
    let tcp = TcpStream::connect(app.address).await.unwrap();
    let send_request = connect_http2(Io::new(ByteStream::Plain(tcp)), ()).await.unwrap();
    pool.add_and_acquire(send_request, expires_at)
}

async fn send_get(checkout: &mut Http2Checkout) -> Result<(), h2::Error> {
    let request = http::Request::get("http://x/").body(()).unwrap();
    let (response, _stream) = checkout.open_stream(request, true).unwrap();
    response.await.map(drop)
}

#[test]
fn a_stream_reset_does_not_change_the_stream_limit_of_connections() {
    run(async {
        let is_first = Cell::new(true);
        let is_first = Rc::new(is_first);
        let app = start_application(move |_, mut respond| {
            let is_first = is_first.clone();
            async move {
                match is_first.replace(false) {
                    true => drop(respond.send_response(http::Response::new(()), true)),
                    false => respond.send_reset(Http2Code::REFUSED_STREAM),
                }
            }
        })
        .await;
        let pool = Http2Pool::default();
        // The previous connection ended after one stream.
        pool.server.streams_before_goaway.set(1);
        let mut first = acquire_stream(&pool, &app, Some(Instant::now())).await;
        let mut second = Http2Checkout::new(first.connection.clone());
        send_get(&mut first).await.unwrap();
        assert_eq!(
            send_get(&mut second).await.unwrap_err().reason(),
            Some(Http2Code::REFUSED_STREAM)
        );
        assert!(second.connection.is_over(), "the certificate of its peer has expired");
        drop(first);
        assert!(!second.wait_for_progress(true).await);
        assert_eq!(pool.server.streams_per_connection.get(), u32::MAX);
    });
}

#[test]
fn two_similar_goaways_in_a_row_set_a_stream_limit() {
    for (first, second, limit) in
        [(3, 3, 3), (4, 7, 7), (7, 4, 4), (3, 7, u32::MAX), (9, 4, u32::MAX), (3, 0, u32::MAX)]
    {
        run(async {
            let app = start_application(|_, _| async {}).await;
            let pool = Http2Pool::default();
            let concurrent_connection = acquire_stream(&pool, &app, None).await;
            acquire_stream(&pool, &app, None).await.connection.record_goaway(first);
            assert_eq!(pool.server.streams_per_connection.get(), u32::MAX);
            // Connections that were open at the same time may have ended for the same reason.
            concurrent_connection.connection.record_goaway(first);
            assert_eq!(pool.server.streams_per_connection.get(), u32::MAX);
            acquire_stream(&pool, &app, None).await.connection.record_goaway(second);
            assert_eq!(pool.server.streams_per_connection.get(), limit, "{first} {second}");
        });
    }
}

#[test]
fn a_connection_that_ends_before_any_stream_does_not_change_the_limit() {
    run(async {
        let app = start_application(|_, mut respond| async move {
            drop(respond.send_response(http::Response::new(()), true));
        })
        .await;
        let pool = Http2Pool::default();
        let limit = || pool.server.streams_per_connection.get();
        for _ in 0..2 {
            acquire_stream(&pool, &app, None).await.connection.record_goaway(3);
        }
        for _ in 0..3 {
            acquire_stream(&pool, &app, None).await.connection.record_goaway(0);
            assert_eq!((limit(), pool.server.refusing_connections.get()), (3, 1));
            let mut used_checkout = acquire_stream(&pool, &app, None).await;
            send_get(&mut used_checkout).await.unwrap();
            used_checkout.record_processed();
        }
        // A server that refuses all streams has no limit per connection.
        for _ in 0..2 {
            acquire_stream(&pool, &app, None).await.connection.record_goaway(0);
        }
        assert_eq!(limit(), u32::MAX);
    });
}

/// The requests of a connection observe a GOAWAY in any order.
#[test]
fn a_goaway_is_recorded_at_the_first_refused_stream() {
    run(async {
        let app = start_application(|_, _| async {}).await;
        let pool = Http2Pool::default();
        let first = acquire_stream(&pool, &app, None).await;
        let connection = first.connection.clone();
        let mut checkouts = vec![first];
        checkouts.extend((1..4).map(|_| Http2Checkout::new(connection.clone())));
        for (checkout, number) in checkouts.iter_mut().zip(0..) {
            checkout.stream_index = Some(number);
        }
        let waits = checkouts.into_iter().rev().map(|checkout| {
            tokio::task::spawn_local(async move { checkout.wait_to_repeat(false).await })
        });
        for wait in waits.collect::<Vec<_>>() {
            assert!(wait.await.unwrap());
        }
        let ServerState { streams_before_goaway, refusing_connections, .. } = &*pool.server;
        assert_eq!((streams_before_goaway.get(), refusing_connections.get()), (0, 1));
    });
}

#[test]
fn surplus_connections_are_closed() {
    run(async {
        let (release_notify, ended_count) = (Rc::new(Notify::new()), Rc::new(Cell::new(0)));
        let (release, count) = (release_notify.clone(), ended_count.clone());
        let app = Application::start(move |client| {
            let (release_notify, count) = (release.clone(), count.clone());
            async move {
                let mut connection =
                    h2::server::Builder::new().handshake::<_, Bytes>(client.stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let release_notify = release_notify.clone();
                    tokio::task::spawn_local(async move {
                        release_notify.notified().await;
                        drop(respond.send_response(http::Response::new(()), true));
                    });
                }
                count.set(count.get() + 1);
            }
        })
        .await;
        let pool = Http2Pool { check_interval: Duration::from_millis(10), ..Http2Pool::default() };
        let mut checkouts = Vec::new();
        for _ in 0..5 {
            checkouts.push(acquire_stream(&pool, &app, None).await);
        }
        // Only the fourth one is still in use.
        let mut used_checkout = checkouts.swap_remove(3);
        drop(checkouts);
        let sending = tokio::task::spawn_local(async move { send_get(&mut used_checkout).await });
        wait_until(|| ended_count.get() == 3).await;
        assert_eq!(pool.open_connections.connections.borrow().len(), 2);
        release_notify.notify_one();
        sending.await.unwrap().unwrap();
        wait_until(|| ended_count.get() == 4).await;
        let remaining = pool.acquire_ready().expect("the first connection stays");
        assert!(!remaining.connection.is_over());
        wait_until(|| !pool.open_connections.has_surplus_task.get()).await;

        // The same holds after the next burst.
        drop(acquire_stream(&pool, &app, None).await);
        wait_until(|| ended_count.get() == 5).await;
    });
}
