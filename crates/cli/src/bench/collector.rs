//! The hidden `leno bench collector`: accepts all exports, like a telemetry collector.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::loopback;

/// Arguments of the hidden `leno bench collector`.
#[derive(Debug, Args)]
pub(crate) struct CollectorArgs {
    /// Loopback port to listen on
    #[arg(long)]
    port: u16,
}

impl CollectorArgs {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        loopback::serve(self.port, serve_connection)
    }
}

async fn serve_connection(stream: TcpStream) {
    let served = http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service_fn(accept_export));
    if let Err(error) = served.await {
        tracing::debug!(%error, "the client disconnected before the response");
    }
}

/// Reads a request to its end and returns success.
async fn accept_export(request: Request<Incoming>) -> hyper::Result<Response<Empty<Bytes>>> {
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(Response::new(Empty::new()))
}
