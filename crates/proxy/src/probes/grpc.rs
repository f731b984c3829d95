//! gRPC probe: one call of the standard health service (`grpc.health.v1`).

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
    /// The name of the service; empty for the whole server.
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
        let (mut sender, connection) = handshake(tcp).await.map_err(|_| ProbeFailure::Broken)?;
        let message = health::encode_check(self.service.as_deref().unwrap_or_default());
        let exchange = async {
            let request = http::Request::post(format!("http://{address}{}", health::METHOD))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("user-agent", concat!("leno-probe/", env!("CARGO_PKG_VERSION")))
                .body(())
                .map_err(|_| ProbeFailure::Broken)?;
            let (response, mut body) =
                sender.send_request(request, false).map_err(|_| ProbeFailure::Broken)?;
            body.send_data(message, true).map_err(|_| ProbeFailure::Broken)?;
            let response = response.await.map_err(|_| ProbeFailure::Broken)?;
            let status = response.status().as_u16();
            if status != 200 {
                return Err(ProbeFailure::Status(status));
            }
            if is_failure(response.headers()) {
                return Err(ProbeFailure::Grpc);
            }
            read_response(response.into_body()).await
        };
        // The connection is driven only while the response is awaited.
        tokio::pin!(connection, exchange);
        tokio::select! {
            biased;
            result = &mut exchange => result,
            _ = &mut connection => exchange.await,
        }
    }
}

/// Reads the message and the trailers of the response.
async fn read_response(mut body: RecvStream) -> Result<(), ProbeFailure> {
    let mut message_bytes = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(|_| ProbeFailure::Broken)?;
        body.flow_control().release_capacity(part.len()).map_err(|_| ProbeFailure::Broken)?;
        message::append_part(&mut message_bytes, &part).map_err(|_| ProbeFailure::Broken)?;
    }
    let trailers = body.trailers().await.map_err(|_| ProbeFailure::Broken)?;
    if trailers.is_some_and(|trailers| is_failure(&trailers)) {
        return Err(ProbeFailure::Grpc);
    }
    let message_bytes =
        message::single_message(message_bytes.freeze()).map_err(|_| ProbeFailure::Broken)?;
    match health::is_serving(message_bytes) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ProbeFailure::NotServing),
        Err(_) => Err(ProbeFailure::Broken),
    }
}

/// True if the headers or trailers contain a `grpc-status` other than 0.
fn is_failure(headers: &http::HeaderMap) -> bool {
    headers.get("grpc-status").is_some_and(|status| status.as_bytes() != b"0")
}
