//! HTTP as a client: one exchange over a connection that is driven beside it.

use std::pin::pin;

/// What comes of an exchange over a connection that `hyper` drives as long as it lasts, and no longer;
/// `broken` says how that failed.
///
/// # Errors
/// That of the exchange, or what `broken` makes of that of the connection.
pub async fn over<T, E>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<T, E>>,
    broken: impl FnOnce(hyper::Error) -> E,
) -> Result<T, E> {
    let (mut connection, mut exchange) = (pin!(connection), pin!(exchange));
    tokio::select! {
        biased;
        ended = &mut exchange => ended,
        closed = &mut connection => match closed {
            // What has arrived may not have been read yet.
            Ok(()) => exchange.await,
            Err(error) => Err(broken(error)),
        },
    }
}
