//! One HTTP exchange (a request and its response) of a client, while its connection is polled concurrently.

use std::pin::pin;

/// Runs an exchange over a `hyper` connection, which is driven until the exchange completes. `convert_error`
/// converts an error of the connection.
///
/// # Errors
/// Returns the error of the exchange, or the error of the connection, converted by `convert_error`.
pub async fn drive_exchange<T, E>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<T, E>>,
    convert_error: impl FnOnce(hyper::Error) -> E,
) -> Result<T, E> {
    let (mut connection, mut exchange) = (pin!(connection), pin!(exchange));
    tokio::select! {
        biased;
        result = &mut exchange => result,
        connection_result = &mut connection => match connection_result {
            // The response may have arrived but not been read yet.
            Ok(()) => exchange.await,
            Err(error) => Err(convert_error(error)),
        },
    }
}
