//! Splice of two plaintext connections: bytes in both directions, each with its own end.

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
/// for `max_wait`. With an `examination` the client's first line is checked.
pub(crate) async fn copy_bytes(
    client: (MessageReader, MessageWriter),
    server: (MessageReader, MessageWriter),
    max_wait: Duration,
    record: &ExchangeRecord<'_>,
    examination: Option<&RequestDetector<'_>>,
) -> Result<(), Reason> {
    let ((mut client, mut to_client), (mut server, mut to_server)) = (client, server);
    let ends = (to_client.io.clone(), to_server.io.clone());
    let (bytes_in, bytes_out) = (&record.bytes_in, &record.bytes_out);
    let noted = |bytes| BodyRecorder::for_response(bytes, None);
    let forth = async {
        let mut source = BodySource::from_http1(&mut client, BodyLength::UntilClose);
        let mut sink = BodySink::Http1 { writer: &mut to_server, chunked: false };
        if let Some(examination) = examination {
            examination.forward_inspected(&mut source, &mut sink, bytes_in).await?;
        }
        forward_body(&mut source, &mut sink, PauseLimit::Allowed, &noted(bytes_in)).await?;
        end_direction(&ends.1).await
    };
    let back = async {
        let mut source = BodySource::from_http1(&mut server, BodyLength::UntilClose);
        let mut sink = BodySink::Http1 { writer: &mut to_client, chunked: false };
        forward_body(&mut source, &mut sink, PauseLimit::Allowed, &noted(bytes_out)).await?;
        end_direction(&ends.0).await
    };
    let forth = async { forth.await.map_err(|broken| reason_forth(&broken)) };
    let back = async { back.await.map_err(|broken| reason_back(&broken)) };
    let spliced = tokio::select! {
        biased;
        spliced = async { tokio::try_join!(forth, back) } => spliced.map(|((), ())| ()),
        () = wait_for_silence(max_wait, bytes_in, bytes_out) => Err(Reason::IdleTimeout),
    };
    if spliced.is_err() {
        // Resets both, so that neither peer mistakes it for an orderly end.
        ends.0.reset_on_drop();
        ends.1.reset_on_drop();
    }
    spliced
}

async fn end_direction(io: &Io) -> Result<(), PumpError> {
    poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| PumpError::Sink)
}

fn reason_forth(broken: &PumpError) -> Reason {
    match broken {
        PumpError::Source(error) => downstream_reason(error),
        PumpError::Sink => Reason::UpstreamReset,
        PumpError::SinkStalled => Reason::IdleTimeout,
    }
}

fn reason_back(broken: &PumpError) -> Reason {
    match broken {
        PumpError::Source(error) => upstream_reason(error),
        PumpError::Sink => Reason::DownstreamClosed,
        PumpError::SinkStalled => Reason::IdleTimeout,
    }
}
