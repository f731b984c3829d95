//! The progress of a request's body.

use leno_model::Reason;

use crate::error::downstream_reason;
use crate::http::body::Broken;
use crate::http::exchange::{Exchange, Witness};
use crate::upstream::Timed;

/// Progress of the request's body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// It begins when the upstream has agreed to another protocol.
    Held,
    Whole,
    /// The upstream closed its ear: it may have answered early.
    Unwanted,
    UnderWay,
    /// The upstream has agreed to another protocol, and both directions are open.
    Tunnel,
    /// The direction of the upstream has ended, and that of the client is open.
    HalfClosed,
}

impl Sending {
    /// Of an exchange of which nothing was sent.
    pub(super) fn of(exchange: &Exchange<'_, '_>) -> Self {
        match (exchange.request.upgrade, !exchange.body.is_empty()) {
            (true, _) => Self::Held,
            (false, true) => Self::UnderWay,
            (false, false) => {
                if let Some(timed) = &exchange.timed {
                    timed.waits();
                }
                Self::Whole
            }
        }
    }

    /// After the request's body came to its end, or what broke the exchange with it.
    pub(super) fn after(
        sent: Result<(), Broken>,
        answered: bool,
        (witness, timed): (Option<&Witness>, Option<&Timed>),
    ) -> Result<Self, Reason> {
        let now = match sent {
            Ok(()) => {
                if let Some(witness) = witness {
                    witness.sent();
                }
                Self::Whole
            }
            Err(Broken::Source(error)) => return Err(downstream_reason(&error)),
            Err(Broken::SinkStalled) if !answered => return Err(Reason::UpstreamStalled),
            Err(Broken::Sink | Broken::SinkStalled) => Self::Unwanted,
        };
        if let Some(timed) = timed {
            timed.sent();
        }
        Ok(now)
    }

    /// True while there is something to send.
    pub(super) fn is_under_way(self) -> bool {
        matches!(self, Self::UnderWay | Self::Tunnel | Self::HalfClosed)
    }

    /// True while the end of the client's connection cancels the request. Reading a body notices the end by itself, and
    /// a client of another protocol may end its own part and still listen.
    pub(super) fn is_watched(self, upgrade: bool) -> bool {
        match self {
            Self::Held => true,
            Self::Whole => !upgrade,
            Self::Unwanted | Self::UnderWay | Self::Tunnel | Self::HalfClosed => false,
        }
    }
}
