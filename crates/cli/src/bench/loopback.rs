//! Runs small servers on loopback until a signal arrives.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::Context as _;
use leno_listen::Listener;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinSet, LocalSet};

use crate::{limits, stop};

/// Serves each connection with `serve_connection`, all on this thread, until SIGTERM or SIGINT.
///
/// # Errors
/// If the port is in use.
pub(super) fn serve<F>(
    port: u16,
    serve_connection: impl Fn(TcpStream) -> F,
) -> anyhow::Result<ExitCode>
where
    F: Future<Output = ()> + 'static,
{
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    LocalSet::new().block_on(&runtime, accept_connections(port, serve_connection))?;
    Ok(ExitCode::SUCCESS)
}

/// Accepts connections and serves each of them, until a stop signal arrives.
async fn accept_connections<F>(
    port: u16,
    serve_connection: impl Fn(TcpStream) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + 'static,
{
    let stop = stop::stop_signal()?;
    tokio::pin!(stop);
    let socket = TcpSocket::new_v4().context("a socket")?;
    socket.set_reuseaddr(true).context("a socket")?;
    socket
        .bind((Ipv4Addr::LOCALHOST, port).into())
        .with_context(|| format!("port {port} is in use"))?;
    let mut listener = Listener::new("loopback", socket.listen(BACKLOG).context("cannot listen")?);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            (stream, _) = listener.accept() => {
                // A connection that the client has already closed fails at its first read.
                if stream.set_nodelay(true).is_ok() {
                    connections.spawn_local(serve_connection(stream));
                }
            }
            // Frees the memory of a finished connection.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The accept backlog: all connections of a benchmark may be opened at once.
const BACKLOG: u32 = 4096;
