//! Runs one HTTP exchange (a request and its response) of a client, and polls the exchange's connection meanwhile.

use std::pin::pin;

/// Runs an exchange over a `hyper` connection, and polls the connection until the exchange completes.
///
/// # Errors
/// Returns the error of the exchange. If the connection fails first, returns its error, converted by
/// `convert_error`.
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
            // The connection has closed, but the exchange may not have read a response that arrived before.
            Ok(()) => exchange.await,
            Err(error) => Err(convert_error(error)),
        },
    }
}
