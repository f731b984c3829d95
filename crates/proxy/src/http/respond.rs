//! The responder of a request: writes interim and final response heads to the client, over HTTP/1.1, HTTP/2 or
//! a link.

use std::time::Duration;

use leno_traffic::FieldEdits;
use leno_wire::http1::{
    BodyLength, ConnectionHeader, Framing, Http1Version, ResponseEdits, ResponseHead,
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
    /// A stream of a link. `max_wait`: the time after which a peer that takes no pending data counts as
    /// stalled.
    Link { stream: &'a LinkStream, max_wait: Duration },
    /// An HTTP/2 stream. `grpc`: the client expects `grpc-status`.
    Http2 { response: Http2Response, max_wait: Duration, grpc: bool },
}

/// The error of sending a response to a client that has disconnected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientGone;

impl Responder<'_> {
    /// Waits until a head may be sent: many streams share the output of a link.
    pub(crate) async fn wait_uncongested(&self) -> Result<(), ClientGone> {
        match self {
            Self::Http1 { .. } | Self::Http2 { .. } => Ok(()),
            Self::Link { stream, max_wait } => match stream.wait_uncongested(*max_wait).await {
                Some(Ok(())) => Ok(()),
                Some(Err(_)) | None => Err(ClientGone),
            },
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
                let edits = response_edits(None, Framing::OutOfBand, ConnectionHeader::KeepAlive);
                write_response(bytes, head, &edits, writer.output_buffer());
                writer.flush().await.map_err(|_| ClientGone)
            }
            Self::Http2 { response, .. } => response.send_interim(bytes, head),
            Self::Link { stream, .. } => {
                let edits = response_edits(None, Framing::OutOfBand, ConnectionHeader::KeepAlive);
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
            Self::Link { stream, max_wait } => {
                let Some(Ok(())) = stream.wait_uncongested(*max_wait).await else {
                    return Err(ClientGone);
                };
                stream
                    .send_head(true, false, |out| out.extend_from_slice(CONTINUE_HEAD))
                    .map_err(|_| ClientGone)
            }
        }
    }

    /// Starts the final response, with the edits of a rule and the field of session persistence, if any.
    /// Returns the sink of its body. `is_bodiless`: there is no body.
    pub(crate) fn start_response(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
        rule_edits: Option<&FieldEdits>,
        affinity_field: Option<&ResponseField>,
        is_bodiless: bool,
    ) -> Result<BodySink<'_>, ClientGone> {
        let date_field =
            date::missing_date(bytes, head).filter(|_| !rule_edits.is_some_and(removes_date));
        let date_field = date_field.as_ref().map(|date: &DateText| [("date", &date[..])]);
        let date_field: &[(&str, &[u8])] = date_field.as_ref().map_or(&[], |date_field| date_field);
        let affinity_and_date;
        let added_fields = match affinity_field {
            None => date_field,
            Some((name, value)) => {
                let affinity_field = (&**name, value.as_bytes());
                affinity_and_date =
                    [affinity_field, date_field.first().copied().unwrap_or(affinity_field)];
                &affinity_and_date[..=date_field.len()]
            }
        };
        match self {
            Self::Http1 { writer, version, keep_alive } => {
                let framing = body_framing(head.body, *version);
                // Without a length or chunks, only the end of the connection delimits the body.
                let ends_with_connection = framing == Framing::OutOfBand || head.tunnel;
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
                Ok(BodySink::Http1 { writer, is_chunked: framing == Framing::Chunked })
            }
            Self::Http2 { response, max_wait, .. } => {
                let stream =
                    response.start_response(bytes, head, added_fields, rule_edits, is_bodiless)?;
                Ok(BodySink::Http2 { stream, max_wait: *max_wait })
            }
            Self::Link { stream, max_wait } => {
                let connection = if head.tunnel {
                    ConnectionHeader::Upgrade
                } else {
                    ConnectionHeader::KeepAlive
                };
                let edits = ResponseEdits {
                    add: added_fields,
                    ..response_edits(rule_edits, Framing::OutOfBand, connection)
                };
                stream
                    .send_head(false, is_bodiless, |out| write_response(bytes, head, &edits, out))
                    .map_err(|_| ClientGone)?;
                Ok(BodySink::Link { stream, max_wait: *max_wait })
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
fn body_framing(length: BodyLength, version: Http1Version) -> Framing {
    match (length, version) {
        (BodyLength::Empty | BodyLength::Known(_), _) => Framing::Keep,
        (BodyLength::Chunked | BodyLength::UntilClose, Http1Version::Http11) => Framing::Chunked,
        (BodyLength::Chunked | BodyLength::UntilClose, Http1Version::Http10) => Framing::OutOfBand,
    }
}

/// Returns the edits of a head, including the edits of the selected rule.
fn response_edits(
    rule_edits: Option<&FieldEdits>,
    framing: Framing,
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
