//! Failed connections to control planes: their log lines, each reason once, and the failures that end the
//! proxy.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use leno_discovery::{DiscoveryError, JoinError};
use rustls::Error as TlsFailure;
use tokio::sync::Notify;

use crate::StartError;
use crate::control_address::ControlAddress;
use crate::control_client::StreamError;

/// The failures since the last stable connection.
#[derive(Debug)]
pub(crate) struct ControlOutage {
    /// The number of configured control planes.
    controls: usize,
    /// The last failure of each configured control plane, by its position in the configuration.
    failures: RefCell<BTreeMap<usize, ControlFailure>>,
    /// True if a connection was logged since.
    is_connected_logged: Cell<bool>,
}

#[derive(Debug, PartialEq, Eq)]
struct ControlFailure {
    line: String,
    is_final: bool,
}

impl ControlOutage {
    /// Creates the state without failures, for the given number of control planes.
    pub(crate) fn new(controls: usize) -> Self {
        let is_connected_logged = Cell::new(false);
        Self { controls, failures: RefCell::default(), is_connected_logged }
    }

    /// Records a failure. Returns true if the proxy has nothing to serve and nothing left to try, and ends with
    /// this reason. Otherwise the failure is logged, unless this control plane failed for the same reason
    /// before.
    #[must_use]
    pub(crate) fn record_failure(
        &self,
        place: usize,
        control: &ControlAddress,
        ended: &StreamError,
        serving: Serving,
    ) -> bool {
        let (problem, reason) = (ended.failure_summary(), ended.failure_detail());
        let failure =
            ControlFailure { line: format!("{problem}: {reason}"), is_final: ended.is_final() };
        let state = match serving {
            Serving::Configuration => "serving the last configuration",
            Serving::Nothing => "no configuration to serve yet",
        };
        let before = self.failures.borrow_mut().insert(place, failure);
        if serving == Serving::Nothing && self.is_hopeless() {
            return true;
        }
        match before.is_some_and(|before| before.line == format!("{problem}: {reason}")) {
            true => tracing::debug!(%control, %reason, "{problem}; {state}"),
            false => tracing::warn!(%control, %reason, "{problem}; {state}"),
        }
        false
    }

    /// Logs the end of a failure.
    pub(crate) fn record_connected(&self, control: &ControlAddress) {
        if !self.failures.borrow().is_empty() && !self.is_connected_logged.replace(true) {
            tracing::info!(%control, "connected to the control plane");
        }
    }

    /// Records a stable connection: the next failure is logged, whatever its reason.
    pub(crate) fn was_stable(&self) {
        self.failures.borrow_mut().clear();
        self.is_connected_logged.set(false);
    }

    /// True if the last failure of every control plane was final.
    fn is_hopeless(&self) -> bool {
        let failures = self.failures.borrow();
        failures.len() == self.controls && failures.values().all(|failure| failure.is_final)
    }
}

/// Indicates whether the proxy has a configuration to serve while no control plane is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    Configuration,
    Nothing,
}

/// The failure that ends the proxy.
#[derive(Debug, Default)]
pub(crate) struct FatalFailure {
    cause: RefCell<Option<StartError>>,
    notify: Notify,
}

impl FatalFailure {
    /// Ends the proxy. Of several causes the first is kept.
    pub(crate) fn report_cause(&self, cause: StartError) {
        self.cause.borrow_mut().get_or_insert(cause);
        self.notify.notify_one();
    }

    /// Waits for a fatal failure.
    pub(crate) async fn wait(&self) -> StartError {
        loop {
            if let Some(cause) = self.cause.borrow_mut().take() {
                return cause;
            }
            self.notify.notified().await;
        }
    }
}

impl StreamError {
    /// Returns a short description of the failure, for the start of a log line.
    fn failure_summary(&self) -> &'static str {
        match self {
            Self::Io(error) if is_untrusted(error) => "the control plane is not trusted",
            Self::Untrusted { .. } => "the control plane is not trusted",
            Self::Io(_) | Self::Timeout => "the control plane is unreachable",
            Self::Join(JoinError::Rejected { .. }) => "the control plane rejected the join",
            Self::Join(_) => "the join failed",
            Self::JoinCredential(_) => "the proxy cannot join",
            Self::Tls(_) | Self::Certificate(_) => "the certificate cannot be used",
            Self::Stream(DiscoveryError::Goodbye(_)) => "the control plane closed the connection",
            Self::Stream(_) => "the connection to the control plane was lost",
        }
    }

    /// Returns the rest of the log line, without repeating [`Self::failure_summary`].
    fn failure_detail(&self) -> String {
        match self {
            Self::Io(error) => error.to_string(),
            Self::Join(JoinError::Rejected { reason, .. })
            | Self::Stream(DiscoveryError::Goodbye(reason)) => reason.clone(),
            Self::Tls(error) => error.to_string(),
            Self::Certificate(error) => error.to_string(),
            other => other.to_string(),
        }
    }

    /// Converts a failure of a connection that was made to join.
    pub(crate) fn in_join(self, is_once: bool) -> Self {
        match self {
            Self::Io(cause) if is_untrusted(&cause) => Self::Untrusted { cause, is_final: is_once },
            other => other,
        }
    }

    /// True if the same attempt cannot succeed later: it needs another token, or another control plane.
    fn is_final(&self) -> bool {
        match self {
            Self::Join(JoinError::Rejected { is_final, .. }) => *is_final,
            Self::JoinCredential(unproved) => unproved.is_final(),
            Self::Untrusted { is_final, .. } => *is_final,
            _ => false,
        }
    }
}

/// True if TLS rejected the certificate of the server.
fn is_untrusted(error: &std::io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(tls, Some(TlsFailure::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected_join(is_final: bool) -> StreamError {
        StreamError::Join(JoinError::Rejected { reason: "used".to_owned(), is_final })
    }

    #[test]
    fn only_final_failures_of_all_control_planes_leave_no_hope() {
        let control = ControlAddress::from(std::net::SocketAddr::from(([127, 0, 0, 1], 15010)));
        let outage = ControlOutage::new(2);
        let failed = |place, ended: &StreamError| {
            outage.record_failure(place, &control, ended, Serving::Nothing)
        };
        assert!(!failed(0, &rejected_join(true)), "another control plane may accept it");
        assert!(!failed(1, &StreamError::Timeout));
        assert!(failed(1, &rejected_join(true)));
        assert!(!outage.record_failure(1, &control, &rejected_join(true), Serving::Configuration));
        assert!(!failed(0, &rejected_join(false)), "the rejection may pass");
        assert!(ControlOutage::new(1).record_failure(
            0,
            &control,
            &rejected_join(true),
            Serving::Nothing
        ));
    }

    #[test]
    fn a_failure_is_named_by_what_failed_and_not_twice() {
        let unreachable = StreamError::Io(std::io::ErrorKind::ConnectionRefused.into());
        let goodbye = StreamError::Stream(DiscoveryError::Goodbye("another proxy".to_owned()));
        let untrusted = TlsFailure::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let foreign = || StreamError::Io(std::io::Error::other(untrusted.clone()));
        assert!(foreign().in_join(true).is_final() && !foreign().in_join(false).is_final());
        let named = [
            (unreachable, "the control plane is unreachable: connection refused"),
            (rejected_join(true), "the control plane rejected the join: used"),
            (goodbye, "the control plane closed the connection: another proxy"),
        ];
        for (ended, expected) in named {
            assert_eq!(
                format!("{}: {}", ended.failure_summary(), ended.failure_detail()),
                expected
            );
        }
    }
}
