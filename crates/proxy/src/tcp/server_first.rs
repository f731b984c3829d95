//! Forwards opaque connections of clients that send nothing during protocol detection. If the server sends first, a
//! condition reports that the detection delays each connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::task::Poll;

use leno_discovery::condition::kind;
use leno_model::{Protocol, Reason, ServiceName};

use super::{ChosenPort, ClientSide, UpstreamStream, forward_with_counters};
use crate::http::message::{MessageReader, MessageWriter};
use crate::record::ExchangeRecord;
use crate::session::Session;
use crate::splice::copy_bytes;
use crate::worker::Worker;

/// True if the service of a connection declares no protocol for the port, so that the protocol is detected.
pub(super) fn has_detected_protocol(session: &Session, record: &ExchangeRecord<'_>) -> bool {
    let config = session.worker.config_store.current_config();
    let Some((config, service)) = config.as_ref().zip(record.subject.service.as_ref()) else {
        return false;
    };
    let port = config
        .compiled
        .service(service)
        .and_then(|compiled| compiled.ports.get(&record.subject.port));
    port.is_some_and(|port| port.protocol == Protocol::Detect)
}

/// True if the client's sidecar injects faults into requests, and therefore rejects opaque bytes.
pub(crate) fn injects_faults(worker: &Worker, service: &ServiceName, port: u16) -> bool {
    let Some(config) = worker.config_store.current_config() else { return false };
    let port = config.compiled.service(service).and_then(|compiled| compiled.ports.get(&port));
    port.is_some_and(|port| ChosenPort::from_called(port).is_rejected_by_faults())
}

/// Forwards the bytes of a client that sent nothing during protocol detection. If the server sends first, a
/// condition reports the delay.
pub(super) async fn forward_bytes(
    session: &Session,
    upstream_stream: UpstreamStream,
    mut client: (MessageReader, MessageWriter),
    record: &ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let idle_timeout = session.worker.config.limits.idle_connection;
    let (client_bytes, server_bytes) = (&record.bytes_in, &record.bytes_out);
    let forwarding = async {
        match upstream_stream {
            UpstreamStream::Link(stream) => {
                let outcome = forward_with_counters(
                    &mut client,
                    &stream,
                    ClientSide::Connection,
                    idle_timeout,
                    client_bytes,
                    server_bytes,
                )
                .await;
                outcome.map_err(|reason| stream.rejection_reason().unwrap_or(reason))
            }
            UpstreamStream::Plain(connection) => {
                let server = MessageWriter::new(connection.writer.io.clone(), idle_timeout);
                copy_bytes(client, (connection.reader, server), idle_timeout, record, None).await
            }
        }
    };
    let mut has_bytes = false;
    let check_first_bytes = poll_fn(|_| {
        let (client_count, server_count) = (client_bytes.get(), server_bytes.get());
        if !has_bytes && server_count > 0 && client_count == 0 {
            report_detection_delay(session, record);
        }
        has_bytes |= client_count > 0 || server_count > 0;
        Poll::<Infallible>::Pending
    });
    // Both futures run in one task, and `biased` polls `forwarding` first: the counters are checked after each
    // wake-up that forwards bytes.
    tokio::select! {
        biased;
        outcome = forwarding => outcome,
        never = check_first_bytes => match never {},
    }
}

/// Reports that protocol detection delays connections to a service port.
fn report_detection_delay(session: &Session, record: &ExchangeRecord<'_>) {
    let Some(service) = &record.subject.service else { return };
    let detect_timeout = session.worker.config.limits.detect_timeout;
    let subject = format!("{service}:{}", record.subject.port);
    let reason = format!("server-first protocol: each connection waits for {detect_timeout:?}");
    session.worker.config_store.conditions.set_condition(kind::DETECTION_DELAYED, &subject, reason);
}
