//! Recognizes gRPC calls by their content type, reads the gRPC status of a response, and maps failures to a
//! gRPC status.

pub(crate) mod health;

use std::cell::Cell;

use leno_model::Reason;
use leno_telemetry::GrpcStatus;
use leno_wire::http1::ResponseHead;
use leno_wire::link::ResetCode;

pub(crate) use leno_outside::message;

/// True for the content type of a gRPC call, in any case (RFC 9110 §8.3.1); gRPC-Web is a different protocol.
pub(crate) fn is_grpc_content_type(content_type: &[u8]) -> bool {
    let Some((content_type_start, suffix)) = content_type.split_at_checked(GRPC_CONTENT_TYPE.len())
    else {
        return false;
    };
    content_type_start.eq_ignore_ascii_case(GRPC_CONTENT_TYPE)
        && matches!(suffix.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// The gRPC status of a call; `None` inside until it is known.
#[derive(Clone, Copy)]
pub(crate) struct GrpcCall<'a>(pub(crate) &'a Cell<Option<GrpcStatus>>);

impl GrpcCall<'_> {
    /// Reads the status from the trailers of the response.
    pub(crate) fn record_trailers(self, section: &[u8]) {
        let mut lines = section.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at_checked(colon)?;
            name.eq_ignore_ascii_case(STATUS_FIELD.as_bytes()).then(|| value.get(1..))?
        });
        if let Some(value) = value {
            self.0.set(Some(GrpcStatus::from_value(value.trim_ascii())));
        }
    }

    /// Records the end of the response. If its trailers contained no status, records the status of its head.
    pub(crate) fn finish_response(self, bytes: &[u8], head: &ResponseHead) {
        if self.0.get().is_none() {
            let reported_status = head.find(bytes, STATUS_FIELD).next();
            self.0.set(Some(
                reported_status
                    .map_or(GrpcStatus::from_http_status(head.status), GrpcStatus::from_value),
            ));
        }
    }
}

/// Returns the gRPC status for a failure that this proxy reports: the status to which clients map the failure's
/// HTTP status (grpc/doc/http-grpc-status-mapping.md), or the nearest one. Timeouts are `DEADLINE_EXCEEDED`.
pub(crate) fn status_for(reason: Reason) -> GrpcStatus {
    match (reason, reason.status()) {
        (Reason::RequestTimeout | Reason::AttemptTimeout, _) => GrpcStatus::DeadlineExceeded,
        (Reason::RateLimited | Reason::BodyTooLarge, _) => GrpcStatus::ResourceExhausted,
        (_, 431) => GrpcStatus::Internal,
        (_, 501) => GrpcStatus::Unimplemented,
        (_, status) => GrpcStatus::from_http_status(status),
    }
}

/// Returns the gRPC status for a stream that was reset before its response began (grpc/doc/PROTOCOL-HTTP2.md,
/// *HTTP2 Transport Mapping*); `None` for the codes of a link.
pub(crate) fn status_of_reset(code: ResetCode) -> Option<GrpcStatus> {
    match code {
        ResetCode::Http2NoError
        | ResetCode::Http2ProtocolError
        | ResetCode::Http2InternalError
        | ResetCode::Http2FlowControlError
        | ResetCode::Http2SettingsTimeout
        | ResetCode::Http2FrameSizeError
        | ResetCode::Http2CompressionError
        | ResetCode::Http2ConnectError => Some(GrpcStatus::Internal),
        ResetCode::Http2RefusedStream => Some(GrpcStatus::Unavailable),
        ResetCode::Http2Cancel => Some(GrpcStatus::Cancelled),
        ResetCode::Http2EnhanceYourCalm => Some(GrpcStatus::ResourceExhausted),
        ResetCode::Http2InadequateSecurity => Some(GrpcStatus::PermissionDenied),
        ResetCode::Http2StreamClosed | ResetCode::Http2Http11Required => Some(GrpcStatus::Unknown),
        ResetCode::Cancelled
        | ResetCode::Refused
        | ResetCode::Failed
        | ResetCode::TooLarge
        | ResetCode::FlowControl
        | ResetCode::TimedOut
        | ResetCode::Enough
        | ResetCode::Denied
        | ResetCode::Unreachable => None,
    }
}

/// Returns the gRPC status in the head of a response; `None` if the head has none.
pub(crate) fn head_status(bytes: &[u8], head: &ResponseHead) -> Option<GrpcStatus> {
    head.find(bytes, STATUS_FIELD).next().map(GrpcStatus::from_value)
}

/// Returns the HTTP status of the response to a call, for retry policies: the status of the head, or the
/// equivalent of its gRPC status.
pub(crate) fn equivalent_http_status(bytes: &[u8], head: &ResponseHead) -> u16 {
    match (head.status, head_status(bytes, head)) {
        (200, Some(reported_status)) => status_for_rules(reported_status),
        (status, _) => status,
    }
}

/// Returns the HTTP status by which rules refer to a gRPC status; 200 if there is none.
const fn status_for_rules(status: GrpcStatus) -> u16 {
    match status {
        GrpcStatus::Unavailable => 503,
        GrpcStatus::DeadlineExceeded => 504,
        GrpcStatus::Unknown | GrpcStatus::Internal | GrpcStatus::DataLoss => 500,
        GrpcStatus::Unimplemented => 501,
        GrpcStatus::ResourceExhausted => 429,
        GrpcStatus::Aborted => 409,
        GrpcStatus::Ok
        | GrpcStatus::Cancelled
        | GrpcStatus::InvalidArgument
        | GrpcStatus::NotFound
        | GrpcStatus::AlreadyExists
        | GrpcStatus::PermissionDenied
        | GrpcStatus::FailedPrecondition
        | GrpcStatus::OutOfRange
        | GrpcStatus::Unauthenticated => 200,
    }
}

/// The header or trailer field with the gRPC status, in lower case as in HTTP/2.
const STATUS_FIELD: &str = "grpc-status";

/// The content type of a gRPC call, without a suffix.
const GRPC_CONTENT_TYPE: &[u8] = b"application/grpc";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_recognized_by_its_content_type() {
        for content_type in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc; a=b",
            "Application/gRPC",
            "APPLICATION/GRPC+proto",
        ] {
            assert!(is_grpc_content_type(content_type.as_bytes()), "{content_type}");
        }
        for content_type in ["", "application/grpc-web", "application/grpc-web+proto", "text/plain"]
        {
            assert!(!is_grpc_content_type(content_type.as_bytes()), "{content_type}");
        }
    }

    #[test]
    fn the_status_in_trailers_takes_precedence_over_that_of_the_head() {
        let recorded_status = |head: &str, trailers: &str| {
            let mut parsed_head = ResponseHead::default();
            parsed_head.parse(head.as_bytes(), leno_wire::http1::RequestKind::Other).unwrap();
            let status = Cell::new(None);
            let call = GrpcCall(&status);
            call.record_trailers(trailers.as_bytes());
            call.finish_response(head.as_bytes(), &parsed_head);
            status.get()
        };
        let ok_head = "HTTP/1.1 200 OK\r\n\r\n";
        let not_found_head = "HTTP/1.1 200 OK\r\ngrpc-status: 5\r\n\r\n";
        let unavailable_head = "HTTP/1.1 503 Busy\r\n\r\n";
        let aborted_trailers = "a: b\r\nGrpc-Status:  10 \r\ngrpc-message: x\r\n\r\n";
        assert_eq!(recorded_status(ok_head, aborted_trailers), Some(GrpcStatus::Aborted));
        assert_eq!(recorded_status(not_found_head, aborted_trailers), Some(GrpcStatus::Aborted));
        assert_eq!(recorded_status(not_found_head, ""), Some(GrpcStatus::NotFound));
        assert_eq!(recorded_status(ok_head, "grpc-message: x\r\n\r\n"), Some(GrpcStatus::Unknown));
        assert_eq!(recorded_status(unavailable_head, ""), Some(GrpcStatus::Unavailable));
        assert_eq!(
            recorded_status(ok_head, "grpc-status\r\n: 0\r\n\r\n"),
            Some(GrpcStatus::Unknown)
        );
    }
}
