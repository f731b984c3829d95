//! The hidden `leno bench floor`: a bare TCP forwarder, the lower bound of any proxy's cost.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use clap::Args;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::loopback;

/// Arguments of the hidden `leno bench floor`.
#[derive(Debug, Args)]
pub(crate) struct FloorArgs {
    /// Loopback port to listen on
    #[arg(long)]
    port: u16,
    /// Loopback port to forward to
    #[arg(long)]
    to: u16,
}

impl FloorArgs {
    /// Forwards until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        loopback::serve(self.port, |stream| forward_connection(stream, self.to))
    }
}

/// Copies bytes in both directions until both have finished or one has failed.
async fn forward_connection(mut downstream: TcpStream, upstream_port: u16) {
    let Ok(mut upstream) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream_port)).await else {
        return;
    };
    if upstream.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = downstream.split();
    let (from_server, to_server) = upstream.split();
    // A failure of one direction closes both.
    drop(tokio::try_join!(
        copy_direction(from_client, to_server),
        copy_direction(from_server, to_client)
    ));
}

async fn copy_direction(
    mut source: ReadHalf<'_>,
    mut destination: WriteHalf<'_>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read_bytes = source.read(&mut buffer).await?;
        let Some(bytes) = buffer.get(..read_bytes).filter(|bytes| !bytes.is_empty()) else {
            return destination.shutdown().await;
        };
        destination.write_all(bytes).await?;
    }
}

/// The size of one read.
const BUFFER_BYTES: usize = 16 * 1024;
