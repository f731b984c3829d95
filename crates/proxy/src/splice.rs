//! Copying of opaque bytes between two connections: of a client and of a server or application. Each direction
//! ends on its own (half-close).

use std::future::poll_fn;
use std::time::Duration;

use leno_model::Reason;
use leno_wire::http1::BodyLength;

use crate::error::{downstream_reason, upstream_reason};
use crate::http::body::{BodyRecorder, BodySink, BodySource, PauseLimit, PumpError, forward_body};
use crate::http::message::{MessageReader, MessageWriter};
use crate::io::Io;
use crate::max_wait::wait_for_silence;
use crate::record::ExchangeRecord;
use crate::tcp::RequestDetector;

/// Copies bytes between a client and a server until both have half-closed, or until both directions are idle
/// for `max_wait`. `detector`: checks whether the client's first bytes are a request.
pub(crate) async fn copy_bytes(
    client: (MessageReader, MessageWriter),
    server: (MessageReader, MessageWriter),
    max_wait: Duration,
    record: &ExchangeRecord<'_>,
    detector: Option<&RequestDetector<'_>>,
) -> Result<(), Reason> {
    let ((mut client_reader, mut client_writer), (mut server_reader, mut server_writer)) =
        (client, server);
    let (client_io, server_io) = (client_writer.io.clone(), server_writer.io.clone());
    let (bytes_in, bytes_out) = (&record.bytes_in, &record.bytes_out);
    let recorder = |bytes| BodyRecorder::for_response(bytes, None);
    let send = async {
        let mut source = BodySource::from_http1(&mut client_reader, BodyLength::UntilClose);
        let mut sink = BodySink::Http1 { writer: &mut server_writer, is_chunked: false };
        if let Some(detector) = detector {
            detector.forward_inspected(&mut source, &mut sink, bytes_in).await?;
        }
        forward_body(&mut source, &mut sink, PauseLimit::Unlimited, &recorder(bytes_in)).await?;
        end_direction(&server_io).await
    };
    let receive = async {
        let mut source = BodySource::from_http1(&mut server_reader, BodyLength::UntilClose);
        let mut sink = BodySink::Http1 { writer: &mut client_writer, is_chunked: false };
        forward_body(&mut source, &mut sink, PauseLimit::Unlimited, &recorder(bytes_out)).await?;
        end_direction(&client_io).await
    };
    let send = async { send.await.map_err(|error| request_failure_reason(&error)) };
    let receive = async { receive.await.map_err(|error| response_failure_reason(&error)) };
    let result = tokio::select! {
        biased;
        result = async { tokio::try_join!(send, receive) } => result.map(|((), ())| ()),
        () = wait_for_silence(max_wait, bytes_in, bytes_out) => Err(Reason::IdleTimeout),
    };
    if result.is_err() {
        // Resets both connections, so that neither peer mistakes the failure for an orderly end.
        client_io.reset_on_drop();
        server_io.reset_on_drop();
    }
    result
}

/// Half-closes a connection: no more bytes are sent on it.
async fn end_direction(io: &Io) -> Result<(), PumpError> {
    poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| PumpError::Sink)
}

/// Returns the reason for a failure while bytes of the client are forwarded.
fn request_failure_reason(error: &PumpError) -> Reason {
    match error {
        PumpError::Source(cause) => downstream_reason(cause),
        PumpError::Sink => Reason::UpstreamReset,
        PumpError::SinkStalled => Reason::IdleTimeout,
    }
}

/// Returns the reason for a failure while bytes of the server are forwarded.
fn response_failure_reason(error: &PumpError) -> Reason {
    match error {
        PumpError::Source(cause) => upstream_reason(cause),
        PumpError::Sink => Reason::DownstreamClosed,
        PumpError::SinkStalled => Reason::IdleTimeout,
    }
}
