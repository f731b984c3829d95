//! The hidden `leno bench floor`: a bare TCP forwarder, the least that any proxy can cost.

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
    /// Where to listen on loopback
    #[arg(long)]
    port: u16,
    /// The port on loopback to forward to
    #[arg(long)]
    to: u16,
}

impl FloorArgs {
    /// Forwards until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        loopback::serve(self.port, |stream| forward(stream, self.to))
    }
}

/// Carries bytes both ways until both ends have finished or one has failed.
async fn forward(mut downstream: TcpStream, to: u16) {
    let Ok(mut upstream) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else {
        return;
    };
    if upstream.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = downstream.split();
    let (from_server, to_server) = upstream.split();
    // A failed half ends the other: dropping both closes both.
    drop(tokio::try_join!(pump(from_client, to_server), pump(from_server, to_client)));
}

async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return to.shutdown().await;
        };
        to.write_all(bytes).await?;
    }
}

/// As much as one turn reads.
const BUFFER_BYTES: usize = 16 * 1024;
