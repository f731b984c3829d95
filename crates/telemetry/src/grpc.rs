//! Defines the status of a gRPC call: one of the seventeen statuses of gRPC. Other values count as unknown.

macro_rules! statuses {
    ($($(#[doc = $caption:literal])+ $variant:ident $label:literal;)+) => {
        /// The status of a gRPC call, with gRPC's numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum GrpcStatus { $($(#[doc = $caption])+ $variant,)+ }

        impl GrpcStatus {
            /// All statuses, in order of their numbers.
            pub const ALL: [Self; STATUS_COUNT] = [$(Self::$variant,)+];

            /// Returns the name of the status in the gRPC documentation.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

statuses! {
    /// The call succeeded.
    Ok "OK";
    /// The call was canceled, usually by its caller.
    Cancelled "CANCELLED";
    /// An unknown error, or a number that gRPC does not define.
    Unknown "UNKNOWN";
    /// The arguments are invalid in any state of the system.
    InvalidArgument "INVALID_ARGUMENT";
    /// The deadline expired.
    DeadlineExceeded "DEADLINE_EXCEEDED";
    /// The requested entity was not found.
    NotFound "NOT_FOUND";
    /// The entity to create already exists.
    AlreadyExists "ALREADY_EXISTS";
    /// The caller lacks permission.
    PermissionDenied "PERMISSION_DENIED";
    /// A resource is exhausted.
    ResourceExhausted "RESOURCE_EXHAUSTED";
    /// The system is not in the required state.
    FailedPrecondition "FAILED_PRECONDITION";
    /// The call was aborted, for example because of a conflict with another call.
    Aborted "ABORTED";
    /// The call exceeded the valid range.
    OutOfRange "OUT_OF_RANGE";
    /// The server does not implement the method.
    Unimplemented "UNIMPLEMENTED";
    /// An invariant was violated.
    Internal "INTERNAL";
    /// The server is unavailable.
    Unavailable "UNAVAILABLE";
    /// Data was lost permanently.
    DataLoss "DATA_LOSS";
    /// The caller is not authenticated.
    Unauthenticated "UNAUTHENTICATED";
}

impl GrpcStatus {
    /// Parses the value of `grpc-status`. Any text other than a defined number is `Unknown`, as in gRPC
    /// clients.
    #[must_use]
    pub fn from_value(value: &[u8]) -> Self {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
        number.and_then(|number| Self::ALL.get(number).copied()).unwrap_or(Self::Unknown)
    }

    /// Returns the status with this number; `Unknown` for any other number.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Unknown)
    }

    /// Returns the status that clients derive from the HTTP status of a response without `grpc-status`.
    #[must_use]
    pub const fn from_http_status(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// Returns the number of the status.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// True for failures of the server. The other statuses indicate success, an invalid or excessive request,
    /// or a cancellation.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Unknown
                | Self::DeadlineExceeded
                | Self::Unimplemented
                | Self::Internal
                | Self::Unavailable
                | Self::DataLoss
        )
    }
}

/// The number of statuses that gRPC defines.
pub(crate) const STATUS_COUNT: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_the_status_name_of_grpc() {
        for (number, status) in GrpcStatus::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(status.code()), number);
            assert_eq!(GrpcStatus::from_value(number.to_string().as_bytes()), status);
        }
        let names = GrpcStatus::ALL.map(GrpcStatus::label);
        assert_eq!((names[0], names[5], names[16]), ("OK", "NOT_FOUND", "UNAUTHENTICATED"));
    }

    #[test]
    fn invalid_grpc_status_numbers_are_unknown() {
        for value in ["", "17", "-1", "+", "0x0", " 0", "99999999999999999999", "OK", "\u{e9}"] {
            assert_eq!(GrpcStatus::from_value(value.as_bytes()), GrpcStatus::Unknown, "{value:?}");
        }
        assert_eq!(GrpcStatus::from_value(b"\xff"), GrpcStatus::Unknown);
    }

    #[test]
    fn six_statuses_are_failures_of_the_server() {
        let failures = GrpcStatus::ALL.into_iter().filter(|status| status.is_failure());
        let codes: Vec<_> = failures.map(GrpcStatus::code).collect();
        assert_eq!(codes, [2, 4, 12, 13, 14, 15]);
    }
}
