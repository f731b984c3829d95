//! Defines the errors of requests to the Kubernetes API server. No error contains a part of a response body.

#![expect(
    clippy::disallowed_types,
    reason = "the errors of the client are read here, and nowhere else: they may hold whole bodies"
)]

use std::error::Error;

use kube::client::AuthError;
use kube::core::Status;
use kube::core::response::StatusSummary;
use kube::runtime::watcher;
use leno_telemetry::with_causes;

use super::name::InvalidPathName;

/// A failed request to the API server.
///
/// A response that cannot be decoded may be a Secret. Errors go to logs, statuses and terminals, so no part of
/// the response is in an error. The client's own errors quote such parts in their text and are not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The API server rejected the request.
    #[error("{message}")]
    Rejected {
        /// The HTTP status code.
        code: u16,
        /// The reason given by the API server, on one line.
        message: String,
    },
    /// The response is not an object of the expected kind.
    #[error("the API server's response cannot be decoded: {0}")]
    Undecodable(String),
    /// The request failed in the client or in transport.
    #[error("{0}")]
    Client(String),
    /// The request was not sent: a name cannot be part of an API path.
    #[error(transparent)]
    Name(#[from] InvalidPathName),
}

impl ApiError {
    /// Returns the HTTP status code, if the API server rejected the request.
    #[must_use]
    pub fn status_code(&self) -> Option<u16> {
        match self {
            Self::Rejected { code, .. } => Some(*code),
            Self::Undecodable(_) | Self::Client(_) | Self::Name(_) => None,
        }
    }

    /// Converts a decoding error. Only its position is retained: its text quotes the value at that position.
    pub(super) fn from_decode_error(error: &serde_json::Error) -> Self {
        use serde_json::error::Category;

        let problem = match error.classify() {
            Category::Io | Category::Eof => "it ends too early",
            Category::Syntax => "it is not JSON",
            Category::Data => "it is not an object of the expected kind",
        };
        Self::Undecodable(format!("{problem} (line {}, column {})", error.line(), error.column()))
    }

    fn from_status(status: &Status) -> Self {
        let code = status.code;
        // The client puts the body of a response that is not a Status into a Status that it creates itself.
        let is_status =
            status.status == Some(StatusSummary::Failure) && status.reason != RECONSTRUCTED_REASON;
        let message = match (is_status, status.message.as_str()) {
            (true, "") => format!("the API server returned {code}"),
            (true, message) => escape_text(message),
            (false, _) => {
                format!("the API server returned {code} with a body that is not a Status")
            }
        };
        Self::Rejected { code, message }
    }

    /// Converts a transport error. It names addresses and reasons, but no bodies.
    fn from_transport_error(error: &(dyn Error + 'static)) -> Self {
        match error.downcast_ref::<AuthError>() {
            Some(auth_error) => Self::Client(describe_auth_error(auth_error)),
            None => Self::Client(escape_text(&with_causes(error))),
        }
    }
}

/// Describes a credential error without the output of credential plugins, which may contain credentials.
fn describe_auth_error(error: &AuthError) -> String {
    let program_problem = match error {
        AuthError::AuthExecStart(error) => format!(": its program does not start: {error}"),
        AuthError::AuthExecRun { cmd, out } => format!(": `{cmd}` ended with {}", out.status),
        _ => String::new(),
    };
    escape_text(&format!("the credentials for the API server cannot be read{program_problem}"))
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        use kube::Error as E;

        match error {
            E::Api(status) => Self::from_status(&status),
            E::SerdeError(error) => Self::from_decode_error(&error),
            E::FromUtf8(_) => Self::Undecodable("it is not UTF-8".to_owned()),
            E::LinesCodecMaxLineLengthExceeded => {
                Self::Undecodable("a line is too long".to_owned())
            }
            E::Auth(error) => Self::Client(describe_auth_error(&error)),
            E::Service(error) => Self::from_transport_error(&*error),
            error => Self::from_transport_error(&error),
        }
    }
}

impl From<watcher::Error> for ApiError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => Self::from_status(&status),
            watcher::Error::NoResourceVersion => {
                Self::Undecodable("it has no resourceVersion".to_owned())
            }
        }
    }
}

/// Escapes and truncates untrusted text to one short line.
pub(crate) fn escape_text(text: &str) -> String {
    let mut escaped: String = text
        .chars()
        .take(MAX_TEXT_CHARACTERS)
        .flat_map(leno_telemetry::terminal::escape_char)
        .collect();
    if text.chars().nth(MAX_TEXT_CHARACTERS).is_some() {
        escaped.push('…');
    }
    escaped
}

/// The reason of a Status that the client creates for a body that it cannot decode.
const RECONSTRUCTED_REASON: &str = "Failed to parse error data";
/// The maximum length of an error text, in characters. The API server exceeds it only when it lists many
/// objects.
const MAX_TEXT_CHARACTERS: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: &str = "LS0tLS1CRUdJTiBQUklWQVRF";

    #[test]
    fn a_rejection_has_the_message_of_the_api_server_on_one_line() {
        let status = |message: &str| Status {
            code: 404,
            status: Some(StatusSummary::Failure),
            reason: "NotFound".to_owned(),
            message: message.to_owned(),
            ..Status::default()
        };
        let text = |message: &str| ApiError::from_status(&status(message)).to_string();
        assert_eq!(text("pods \"a\" not found"), "pods \"a\" not found");
        assert_eq!(text(""), "the API server returned 404");
        assert_eq!(text("a\nINFO b\u{1b}[0m"), "a\\nINFO b\\u{1b}[0m");
        assert!(text(&"a".repeat(100_000)).len() < 1100);
    }

    #[test]
    fn no_error_contains_a_part_of_a_body() {
        let reconstructed = Status::failure(MARKER, RECONSTRUCTED_REASON).with_code(500);
        let map_error = serde_json::from_str::<u32>(&format!("{{\"{MARKER}\": \"{MARKER}\"}}"));
        let text_error = serde_json::from_str::<u32>(&format!("\"{MARKER}\""));
        let mut bytes = MARKER.as_bytes().to_vec();
        bytes.push(0xff);
        let errors: Vec<kube::Error> = vec![
            kube::Error::Api(Box::new(reconstructed.clone())),
            // A body that happens to have the field.
            kube::Error::Api(Box::new(Status {
                message: MARKER.to_owned(),
                code: 500,
                ..Status::default()
            })),
            kube::Error::SerdeError(map_error.unwrap_err()),
            kube::Error::SerdeError(text_error.unwrap_err()),
            kube::Error::FromUtf8(String::from_utf8(bytes).unwrap_err()),
        ];
        for error in errors {
            let error = ApiError::from(error);
            let text = format!("{error} {error:?} {}", with_causes(&error));
            assert!(!text.contains(MARKER), "{text}");
        }
        let watch_error = ApiError::from(watcher::Error::WatchError(Box::new(reconstructed)));
        assert!(!format!("{watch_error} {watch_error:?}").contains(MARKER));
        assert_eq!(watch_error.status_code(), Some(500));
    }
}
