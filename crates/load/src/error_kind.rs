//! Classifies unsuccessful requests: failures without a response, by kind, and gRPC calls, by status.

use std::io;

use rustix::io::Errno;

/// The reason why there was no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The connection was refused, or the server was unreachable.
    Connect,
    /// The connection timed out.
    ConnectTimeout,
    /// The response was not complete within the timeout.
    Timeout,
    /// The connection or the stream was reset.
    Reset,
    /// The connection was closed before the response was complete.
    Closed,
    /// The response was malformed, or followed by unsolicited bytes.
    Malformed,
    /// The request was due, but no connection was free before the run was over.
    Unsent,
    /// This machine had no port, file or memory left: not an error of the server.
    Exhausted,
    /// Any other failure of the operating system.
    Other,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Timeout,
        Self::Reset,
        Self::Closed,
        Self::Malformed,
        Self::Unsent,
        Self::Exhausted,
        Self::Other,
    ];

    /// Returns the kind's label in reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect-timeout",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Malformed => "malformed",
            Self::Unsent => "unsent",
            Self::Exhausted => "exhausted",
            Self::Other => "other",
        }
    }

    /// Classifies a connection error.
    pub(crate) fn from_connect_error(error: &io::Error) -> Self {
        match error.kind() {
            // `connect` returns this if all local ports are in use.
            io::ErrorKind::AddrNotAvailable => Self::Exhausted,
            _ if is_resource_exhaustion(error) => Self::Exhausted,
            _ => Self::Connect,
        }
    }

    /// Classifies an error of an open connection.
    pub(crate) fn from_transfer_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Reset,
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::TimedOut => Self::Timeout,
            _ if is_resource_exhaustion(error) => Self::Exhausted,
            _ => Self::Other,
        }
    }
}

fn is_resource_exhaustion(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Returns the label of a gRPC status in reports.
#[must_use]
pub(crate) fn grpc_label(code: u8) -> &'static str {
    GRPC_LABELS.get(usize::from(code)).copied().unwrap_or("grpc-unknown")
}

/// The gRPC status that also stands for numbers above the known ones.
pub(crate) const GRPC_UNKNOWN: u8 = 2;

/// The number of gRPC statuses.
pub(crate) const GRPC_STATUS_COUNT: usize = GRPC_LABELS.len();

/// The labels in reports, by the number of the gRPC status.
const GRPC_LABELS: [&str; 17] = [
    "grpc-ok",
    "grpc-cancelled",
    "grpc-unknown",
    "grpc-invalid-argument",
    "grpc-deadline-exceeded",
    "grpc-not-found",
    "grpc-already-exists",
    "grpc-permission-denied",
    "grpc-resource-exhausted",
    "grpc-failed-precondition",
    "grpc-aborted",
    "grpc-out-of-range",
    "grpc-unimplemented",
    "grpc-internal",
    "grpc-unavailable",
    "grpc-data-loss",
    "grpc-unauthenticated",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_kinds_have_distinct_indices() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn exhausted_local_resources_are_not_a_connect_error() {
        let classify = |errno: Errno| {
            ErrorKind::from_connect_error(&io::Error::from_raw_os_error(errno.raw_os_error()))
        };
        assert_eq!(classify(Errno::ADDRNOTAVAIL), ErrorKind::Exhausted);
        assert_eq!(classify(Errno::MFILE), ErrorKind::Exhausted);
        assert_eq!(classify(Errno::CONNREFUSED), ErrorKind::Connect);
        assert_eq!(classify(Errno::HOSTUNREACH), ErrorKind::Connect);
    }
}
