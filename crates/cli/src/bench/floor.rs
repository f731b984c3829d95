//! The hidden `leno bench floor`: a bare TCP forwarder, the least that any proxy can cost.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinSet, LocalSet};

use crate::{limits, stop};

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
        limits::raise_open_files();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        LocalSet::new().block_on(&runtime, self.serve())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(self) -> anyhow::Result<()> {
        let stop = stop::signals()?;
        tokio::pin!(stop);
        let socket = TcpSocket::new_v4().context("a socket")?;
        socket.set_reuseaddr(true).context("a socket")?;
        socket.bind(([127, 0, 0, 1], self.port).into()).context("the port is taken")?;
        let listener = socket.listen(BACKLOG).context("cannot listen")?;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Ok((stream, _)) = listener.accept() => {
                    connections.spawn_local(forward(stream, self.to));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// Carries bytes both ways until both ends have finished or one has failed.
async fn forward(mut downstream: TcpStream, to: u16) {
    let Ok(mut upstream) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else {
        return;
    };
    if downstream.set_nodelay(true).is_err() || upstream.set_nodelay(true).is_err() {
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
/// All connections of a benchmark at once.
const BACKLOG: u32 = 4096;
