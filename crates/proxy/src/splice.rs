//! Copies opaque bytes between two connections: that of a client, and that of a server or the application. Each
//! direction ends on its own (half-close). The bytes pass through the buffers of this process: this is not splice(2).

use std::future::poll_fn;
use std::time::Duration;

use leno_model::Reason;
use leno_wire::http1::BodyLength;

use crate::error::{downstream_reason, upstream_reason};
use crate::http::body::{
    BodyRecorder, BodySink, BodySource, ForwardError, PauseLimit, forward_body,
};
use crate::http::message::{MessageReader, MessageWriter};
use crate::io::Io;
use crate::max_wait::wait_for_silence;
use crate::record::ExchangeRecord;
use crate::tcp::RequestDetector;

/// Copies bytes between a client and a server until both have half-closed, or until no byte was copied in either
/// direction for `idle_timeout`. `detector` checks whether the client's first bytes are an HTTP request.
pub(crate) async fn copy_bytes(
    client: (MessageReader, MessageWriter),
    server: (MessageReader, MessageWriter),
    idle_timeout: Duration,
    record: &ExchangeRecord<'_>,
    detector: Option<&RequestDetector<'_>>,
) -> Result<(), Reason> {
    let ((mut client_reader, mut client_writer), (mut server_reader, mut server_writer)) =
        (client, server);
    let (client_io, server_io) = (client_writer.io.clone(), server_writer.io.clone());
    let (bytes_in, bytes_out) = (&record.bytes_in, &record.bytes_out);
    let recorder = |byte_count| BodyRecorder::unfiltered(byte_count, None);
    let to_server = async {
        let mut source = BodySource::from_http1(&mut client_reader, BodyLength::UntilClose);
        let mut sink = BodySink::Http1 { writer: &mut server_writer, is_chunked: false };
        if let Some(detector) = detector {
            detector.forward_inspected(&mut source, &mut sink, bytes_in).await?;
        }
        forward_body(&mut source, &mut sink, PauseLimit::Unlimited, &recorder(bytes_in)).await?;
        end_direction(&server_io).await
    };
    let to_client = async {
        let mut source = BodySource::from_http1(&mut server_reader, BodyLength::UntilClose);
        let mut sink = BodySink::Http1 { writer: &mut client_writer, is_chunked: false };
        forward_body(&mut source, &mut sink, PauseLimit::Unlimited, &recorder(bytes_out)).await?;
        end_direction(&client_io).await
    };
    let to_server = async { to_server.await.map_err(|error| request_failure_reason(&error)) };
    let to_client = async { to_client.await.map_err(|error| response_failure_reason(&error)) };
    let result = tokio::select! {
        biased;
        result = async { tokio::try_join!(to_server, to_client) } => result.map(|((), ())| ()),
        () = wait_for_silence(idle_timeout, bytes_in, bytes_out) => Err(Reason::IdleTimeout),
    };
    if result.is_err() {
        // Resets both connections, so that neither peer mistakes the failure for an orderly end.
        client_io.reset_on_drop();
        server_io.reset_on_drop();
    }
    result
}

/// Half-closes a connection: no more bytes are sent on it.
async fn end_direction(io: &Io) -> Result<(), ForwardError> {
    poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| ForwardError::Sink)
}

/// Returns the reason for a failure while bytes of the client are forwarded.
fn request_failure_reason(error: &ForwardError) -> Reason {
    match error {
        ForwardError::Source(cause) => downstream_reason(cause),
        ForwardError::Sink => Reason::UpstreamReset,
        ForwardError::SinkStalled => Reason::IdleTimeout,
    }
}

/// Returns the reason for a failure while bytes of the server are forwarded.
fn response_failure_reason(error: &ForwardError) -> Reason {
    match error {
        ForwardError::Source(cause) => upstream_reason(cause),
        ForwardError::Sink => Reason::DownstreamClosed,
        ForwardError::SinkStalled => Reason::IdleTimeout,
    }
}
