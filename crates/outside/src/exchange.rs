//! HTTP client exchange that also drives its connection.

use std::pin::pin;

/// Runs an exchange over a `hyper` connection, which is driven until the exchange completes. `broken` converts
/// an error of the connection.
///
/// # Errors
/// The error of the exchange, or that of the connection, converted by `broken`.
pub async fn drive_exchange<T, E>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<T, E>>,
    broken: impl FnOnce(hyper::Error) -> E,
) -> Result<T, E> {
    let (mut connection, mut exchange) = (pin!(connection), pin!(exchange));
    tokio::select! {
        biased;
        ended = &mut exchange => ended,
        closed = &mut connection => match closed {
            // The response may have arrived but not been read yet.
            Ok(()) => exchange.await,
            Err(error) => Err(broken(error)),
        },
    }
}
