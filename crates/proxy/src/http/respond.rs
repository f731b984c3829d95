//! Writes interim and final response heads to the client of a request, over HTTP/1.1, HTTP/2 or a link.

use std::time::Duration;

use leno_traffic::FieldEdits;
use leno_wire::http1::{
    BodyLength, ConnectionHeader, FramingPolicy, Http1Version, ResponseEdits, ResponseHead,
    write_response,
};

use super::body::BodySink;
use super::date::{self, DateText};
use super::exchange::ResponseField;
use super::message::MessageWriter;
use crate::http2::stream::Http2Response;
use crate::io::Io;
use crate::link::LinkStream;

/// The destination of a response.
pub(crate) enum Responder<'a> {
    /// An HTTP/1.1 connection.
    Http1 {
        writer: &'a mut MessageWriter,
        /// The client's version: HTTP/1.0 clients receive no chunks and no interim responses.
        version: Http1Version,
        /// True if the connection may serve another request afterwards.
        keep_alive: bool,
    },
    /// A stream of a link. `stall_timeout`: the time after which a peer that takes no pending data counts as
    /// stalled.
    Link { stream: &'a LinkStream, stall_timeout: Duration },
    /// An HTTP/2 stream. `grpc`: the client expects `grpc-status`.
    Http2 { response: Http2Response, stall_timeout: Duration, grpc: bool },
}

/// The error of sending a response to a client that has disconnected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientGone;

impl Responder<'_> {
    /// Waits until a head may be sent: many streams share the output of a link.
    pub(crate) async fn wait_uncongested(&self) -> Result<(), ClientGone> {
        match self {
            Self::Http1 { .. } | Self::Http2 { .. } => Ok(()),
            Self::Link { stream, stall_timeout } => {
                match stream.wait_uncongested(*stall_timeout).await {
                    Some(Ok(())) => Ok(()),
                    Some(Err(_)) | None => Err(ClientGone),
                }
            }
        }
    }

    /// Returns the client's own connection; `None` for a multiplexed stream.
    pub(crate) fn client_connection(&self) -> Option<Io> {
        match self {
            Self::Http1 { writer, .. } => Some(writer.io.clone()),
            Self::Link { .. } | Self::Http2 { .. } => None,
        }
    }

    /// Forwards an interim (1xx) head immediately.
    pub(crate) async fn send_interim(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
    ) -> Result<(), ClientGone> {
        match self {
            // RFC 9110 §15.2: a 1xx response must not be sent to an HTTP/1.0 client.
            Self::Http1 { version: Http1Version::Http10, .. } => Ok(()),
            Self::Http1 { writer, .. } => {
                let edits =
                    response_edits(None, FramingPolicy::OutOfBand, ConnectionHeader::KeepAlive);
                write_response(bytes, head, &edits, writer.output_buffer());
                writer.flush().await.map_err(|_| ClientGone)
            }
            Self::Http2 { response, .. } => response.send_interim(bytes, head),
            Self::Link { stream, .. } => {
                let edits =
                    response_edits(None, FramingPolicy::OutOfBand, ConnectionHeader::KeepAlive);
                stream
                    .send_head(true, false, |out| write_response(bytes, head, &edits, out))
                    .map_err(|_| ClientGone)
            }
        }
    }

    /// Sends 100 Continue to a client that waits with its body (RFC 9110 §10.1.1); on a link, once there is
    /// room.
    pub(crate) async fn send_continue(&mut self) -> Result<(), ClientGone> {
        match self {
            Self::Http1 { version: Http1Version::Http10, .. } => Ok(()),
            Self::Http1 { writer, .. } => {
                writer.output_buffer().extend_from_slice(CONTINUE_HEAD);
                writer.flush().await.map_err(|_| ClientGone)
            }
            Self::Http2 { response, .. } => response.send_continue(),
            Self::Link { stream, stall_timeout } => {
                let Some(Ok(())) = stream.wait_uncongested(*stall_timeout).await else {
                    return Err(ClientGone);
                };
                stream
                    .send_head(true, false, |out| out.extend_from_slice(CONTINUE_HEAD))
                    .map_err(|_| ClientGone)
            }
        }
    }

    /// Starts the final response, with the edits of a rule, the field of session persistence and a missing
    /// `Date`. Returns the sink of its body. `is_bodiless`: no body follows.
    pub(crate) fn start_response(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
        rule_edits: Option<&FieldEdits>,
        affinity_field: Option<&ResponseField>,
        is_bodiless: bool,
    ) -> Result<BodySink<'_>, ClientGone> {
        let missing_date =
            date::missing_date(bytes, head).filter(|_| !rule_edits.is_some_and(removes_date));
        let date_field = missing_date.as_ref().map(|date: &DateText| [("date", &date[..])]);
        let date_fields: &[(&str, &[u8])] =
            date_field.as_ref().map_or(&[], |date_field| date_field);
        let affinity_and_date;
        let added_fields = match affinity_field {
            None => date_fields,
            Some((name, value)) => {
                let affinity_field = (&**name, value.as_bytes());
                // Without a date, the second element only fills the array, and is not in the slice.
                affinity_and_date =
                    [affinity_field, date_fields.first().copied().unwrap_or(affinity_field)];
                &affinity_and_date[..=date_fields.len()]
            }
        };
        match self {
            Self::Http1 { writer, version, keep_alive } => {
                let framing = body_framing(head.body, *version);
                // Without a length or chunks, only the end of the connection delimits the body.
                let ends_with_connection = framing == FramingPolicy::OutOfBand || head.tunnel;
                *keep_alive &= !ends_with_connection;
                let connection = match (head.tunnel, *keep_alive) {
                    (true, _) => ConnectionHeader::Upgrade,
                    (false, true) => ConnectionHeader::KeepAlive,
                    (false, false) => ConnectionHeader::Close,
                };
                let edits = ResponseEdits {
                    add: added_fields,
                    ..response_edits(rule_edits, framing, connection)
                };
                write_response(bytes, head, &edits, writer.output_buffer());
                Ok(BodySink::Http1 { writer, is_chunked: framing == FramingPolicy::Chunked })
            }
            Self::Http2 { response, stall_timeout, .. } => {
                let stream =
                    response.start_response(bytes, head, added_fields, rule_edits, is_bodiless)?;
                Ok(BodySink::Http2 { stream, stall_timeout: *stall_timeout })
            }
            Self::Link { stream, stall_timeout } => {
                let connection = if head.tunnel {
                    ConnectionHeader::Upgrade
                } else {
                    ConnectionHeader::KeepAlive
                };
                let edits = ResponseEdits {
                    add: added_fields,
                    ..response_edits(rule_edits, FramingPolicy::OutOfBand, connection)
                };
                stream
                    .send_head(false, is_bodiless, |out| write_response(bytes, head, &edits, out))
                    .map_err(|_| ClientGone)?;
                Ok(BodySink::Link { stream, stall_timeout: *stall_timeout })
            }
        }
    }

    /// Closes the connection after this exchange, because further bytes on it would be ambiguous.
    pub(crate) fn close_after_exchange(&mut self) {
        if let Self::Http1 { keep_alive, .. } = self {
            *keep_alive = false;
        }
    }
}

/// Returns the framing of a body for an HTTP/1 client.
fn body_framing(length: BodyLength, version: Http1Version) -> FramingPolicy {
    match (length, version) {
        (BodyLength::Empty | BodyLength::ContentLength(_), _) => FramingPolicy::Keep,
        (BodyLength::Chunked | BodyLength::UntilClose, Http1Version::Http11) => {
            FramingPolicy::Chunked
        }
        (BodyLength::Chunked | BodyLength::UntilClose, Http1Version::Http10) => {
            FramingPolicy::OutOfBand
        }
    }
}

/// Returns the edits of a head, including the edits of the selected rule.
fn response_edits(
    rule_edits: Option<&FieldEdits>,
    framing: FramingPolicy,
    connection: ConnectionHeader,
) -> ResponseEdits<'_> {
    ResponseEdits {
        framing,
        add: &[],
        lines: rule_edits.map_or("", |rule_edits| &rule_edits.lines),
        remove: rule_edits.map_or(&[], |rule_edits| &rule_edits.remove),
        connection,
    }
}

fn removes_date(rule_edits: &FieldEdits) -> bool {
    rule_edits.remove.iter().any(|name| &**name == "date")
}

/// The interim head that asks the client for the body of its request.
const CONTINUE_HEAD: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
