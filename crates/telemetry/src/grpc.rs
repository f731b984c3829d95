//! The status of a gRPC call: a closed list of seventeen, whatever a server writes.

macro_rules! statuses {
    ($($(#[doc = $caption:literal])+ $variant:ident $label:literal;)+) => {
        /// How a gRPC call ended, numbered as gRPC numbers them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum GrpcStatus { $($(#[doc = $caption])+ $variant,)+ }

        impl GrpcStatus {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; CODES] = [$(Self::$variant,)+];

            /// Its name in gRPC's documents.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

statuses! {
    /// It succeeded.
    Ok "OK";
    /// It was given up, mostly by its caller.
    Cancelled "CANCELLED";
    /// It failed for a reason that was not told, or by a number that gRPC does not have.
    Unknown "UNKNOWN";
    /// Its arguments can never be right.
    InvalidArgument "INVALID_ARGUMENT";
    /// It took too long.
    DeadlineExceeded "DEADLINE_EXCEEDED";
    /// What it asked for is not there.
    NotFound "NOT_FOUND";
    /// What it would make is there.
    AlreadyExists "ALREADY_EXISTS";
    /// Its caller may not.
    PermissionDenied "PERMISSION_DENIED";
    /// Something was used up.
    ResourceExhausted "RESOURCE_EXHAUSTED";
    /// The system is not in the state that it needs.
    FailedPrecondition "FAILED_PRECONDITION";
    /// It lost against another.
    Aborted "ABORTED";
    /// It went past the end.
    OutOfRange "OUT_OF_RANGE";
    /// The server does not have the method.
    Unimplemented "UNIMPLEMENTED";
    /// Something that must hold did not.
    Internal "INTERNAL";
    /// The server cannot serve now.
    Unavailable "UNAVAILABLE";
    /// Something is lost for good.
    DataLoss "DATA_LOSS";
    /// Nobody knows who calls.
    Unauthenticated "UNAUTHENTICATED";
}

impl GrpcStatus {
    /// What the value of `grpc-status` means. What is no number of gRPC's is unknown to its
    /// clients too.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
        number.and_then(|number| Self::ALL.get(number).copied()).unwrap_or(Self::Unknown)
    }

    /// The status with this number; `Unknown` for any other number.
    #[must_use]
    pub fn of_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Unknown)
    }

    /// What clients make of a response without `grpc-status`, by its HTTP status.
    #[must_use]
    pub const fn of_http(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether it is the server's fault; the other ones say that the caller asked for too much,
    /// or changed its mind.
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

/// How many there are.
pub(crate) const CODES: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_name() {
        for (number, status) in GrpcStatus::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(status.code()), number);
            assert_eq!(GrpcStatus::of(number.to_string().as_bytes()), status);
        }
        let names = GrpcStatus::ALL.map(GrpcStatus::label);
        assert_eq!((names[0], names[5], names[16]), ("OK", "NOT_FOUND", "UNAUTHENTICATED"));
    }

    #[test]
    fn what_is_no_number_of_grpc_is_unknown() {
        for value in ["", "17", "-1", "+", "0x0", " 0", "99999999999999999999", "OK", "\u{e9}"] {
            assert_eq!(GrpcStatus::of(value.as_bytes()), GrpcStatus::Unknown, "{value:?}");
        }
        assert_eq!(GrpcStatus::of(b"\xff"), GrpcStatus::Unknown);
    }

    #[test]
    fn six_are_the_servers_fault() {
        let failures = GrpcStatus::ALL.into_iter().filter(|status| status.is_failure());
        let codes: Vec<_> = failures.map(GrpcStatus::code).collect();
        assert_eq!(codes, [2, 4, 12, 13, 14, 15]);
    }
}
