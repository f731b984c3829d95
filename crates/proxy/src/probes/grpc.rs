//! The gRPC probe: one call of the standard health service (`grpc.health.v1`) of the application.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use bytes::BytesMut;
use h2::RecvStream;
use h2::client::handshake;
use serde::Deserialize;

use super::{ProbeFailure, dial_application};
use crate::config::Interception;
use crate::http::grpc::{health, message};

/// The `grpc` action of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct GrpcHealthCheck {
    pub(super) port: NonZeroU16,
    /// The name of the service to check; empty or absent for the whole server.
    #[serde(default)]
    service: Option<String>,
}

impl GrpcHealthCheck {
    /// Calls the health service. Succeeds if it reports that the service is serving.
    pub(super) async fn run_check(
        &self,
        address: SocketAddr,
        interception: &Interception,
    ) -> Result<(), ProbeFailure> {
        let tcp = dial_application(address, interception).await?;
        let (mut sender, connection) =
            handshake(tcp).await.map_err(|_| ProbeFailure::InvalidResponse)?;
        let message = health::encode_check(self.service.as_deref().unwrap_or_default());
        let exchange = async {
            let request = http::Request::post(format!("http://{address}{}", health::METHOD))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("user-agent", concat!("leno-probe/", env!("CARGO_PKG_VERSION")))
                .body(())
                .map_err(|_| ProbeFailure::InvalidResponse)?;
            let (response, mut body) =
                sender.send_request(request, false).map_err(|_| ProbeFailure::InvalidResponse)?;
            body.send_data(message, true).map_err(|_| ProbeFailure::InvalidResponse)?;
            let response = response.await.map_err(|_| ProbeFailure::InvalidResponse)?;
            let status = response.status().as_u16();
            if status != 200 {
                return Err(ProbeFailure::Status(status));
            }
            // A response without a message may have its gRPC status in the headers (trailers-only).
            if has_error_status(response.headers()) {
                return Err(ProbeFailure::GrpcStatus);
            }
            read_response(response.into_body()).await
        };
        // The connection is driven only while the response is awaited.
        tokio::pin!(connection, exchange);
        tokio::select! {
            biased;
            result = &mut exchange => result,
            // The connection has ended: the exchange has its response, or fails.
            _ = &mut connection => exchange.await,
        }
    }
}

/// Reads the message and the trailers of the response.
async fn read_response(mut body: RecvStream) -> Result<(), ProbeFailure> {
    let mut message_bytes = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(|_| ProbeFailure::InvalidResponse)?;
        body.flow_control()
            .release_capacity(chunk.len())
            .map_err(|_| ProbeFailure::InvalidResponse)?;
        message::append_part(&mut message_bytes, &chunk)
            .map_err(|_| ProbeFailure::InvalidResponse)?;
    }
    let trailers = body.trailers().await.map_err(|_| ProbeFailure::InvalidResponse)?;
    if trailers.is_some_and(|trailers| has_error_status(&trailers)) {
        return Err(ProbeFailure::GrpcStatus);
    }
    let message_bytes = message::parse_single_message(message_bytes.freeze())
        .map_err(|_| ProbeFailure::InvalidResponse)?;
    match health::decode_check(message_bytes) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ProbeFailure::NotServing),
        Err(_) => Err(ProbeFailure::InvalidResponse),
    }
}

/// True if the headers or trailers contain a `grpc-status` other than 0.
fn has_error_status(headers: &http::HeaderMap) -> bool {
    headers.get("grpc-status").is_some_and(|status| status.as_bytes() != b"0")
}
