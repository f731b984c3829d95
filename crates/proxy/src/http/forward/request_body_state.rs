//! Tracks the state of a request's body within one attempt. The state determines if more data is sent, if a
//! disconnect of the client cancels the request, and if the connection may serve another request.

use leno_model::Reason;

use crate::error::downstream_reason;
use crate::http::body::ForwardError;
use crate::http::exchange::{Exchange, ResponseObserver};
use crate::upstream::TimedAttempt;

/// The progress of a request's body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestBodyState {
    /// Paused until the upstream accepts an upgrade.
    Paused,
    /// The whole body was sent.
    Whole,
    /// The upstream accepts no more data; it may have responded early.
    Rejected,
    /// The body is being sent.
    InProgress,
    /// The upstream has accepted an upgrade, and both directions are open.
    Tunnel,
    /// After an upgrade, the upstream has closed its sending direction; the client's direction is open.
    HalfClosed,
}

impl RequestBodyState {
    /// Returns the state before anything is sent.
    pub(super) fn before_body(exchange: &Exchange<'_, '_>) -> Self {
        match (exchange.request.is_upgrade, !exchange.body.is_empty()) {
            (true, _) => Self::Paused,
            (false, true) => Self::InProgress,
            (false, false) => {
                if let Some(timed_attempt) = &exchange.timed_attempt {
                    timed_attempt.mark_waiting();
                }
                Self::Whole
            }
        }
    }

    /// Returns the state after the end of the request's body, or the reason why the exchange fails.
    pub(super) fn after_body(
        outcome: Result<(), ForwardError>,
        response_started: bool,
        observer: Option<&ResponseObserver>,
        timed_attempt: Option<&TimedAttempt>,
    ) -> Result<Self, Reason> {
        let state = match outcome {
            Ok(()) => {
                if let Some(observer) = observer {
                    observer.record_sent();
                }
                Self::Whole
            }
            Err(ForwardError::Source(error)) => return Err(downstream_reason(&error)),
            Err(ForwardError::SinkStalled) if !response_started => {
                return Err(Reason::UpstreamStalled);
            }
            Err(ForwardError::Sink | ForwardError::SinkStalled) => Self::Rejected,
        };
        if let Some(timed_attempt) = timed_attempt {
            timed_attempt.mark_sent();
        }
        Ok(state)
    }

    /// True while there is data to send.
    pub(super) fn is_in_progress(self) -> bool {
        matches!(self, Self::InProgress | Self::Tunnel | Self::HalfClosed)
    }

    /// True while a disconnect of the client cancels the request. While a body is read, the read detects the
    /// disconnect, and a client of an upgraded connection may half-close it and still receive.
    pub(super) fn is_canceled_by_disconnect(self, is_upgrade: bool) -> bool {
        match self {
            Self::Paused => true,
            Self::Whole => !is_upgrade,
            Self::Rejected | Self::InProgress | Self::Tunnel | Self::HalfClosed => false,
        }
    }
}
