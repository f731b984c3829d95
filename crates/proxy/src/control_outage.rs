//! Tracks failed connections to control planes. Repeated failures are logged once, and a proxy without configuration
//! ends if no control plane can accept it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use leno_discovery::{DiscoveryError, JoinError};
use rustls::Error as TlsFailure;
use tokio::sync::Notify;

use crate::StartError;
use crate::control_address::ControlAddress;
use crate::control_client::ControlError;

/// The failures since the last stable connection.
#[derive(Debug)]
pub(crate) struct ControlOutage {
    /// The number of configured control planes.
    control_plane_count: usize,
    /// The last failure of each configured control plane, by its position in the configuration.
    failures: RefCell<BTreeMap<usize, ControlFailure>>,
    /// True if a connection was logged since the last stable connection.
    is_connected_logged: Cell<bool>,
}

/// The last failure of one control plane.
#[derive(Debug, PartialEq, Eq)]
struct ControlFailure {
    /// The summary and the detail, as logged.
    log_line: String,
    /// True if a repeated attempt cannot succeed.
    is_final: bool,
}

impl ControlOutage {
    /// Creates the state without failures, for this number of configured control planes.
    pub(crate) fn new(control_plane_count: usize) -> Self {
        let is_connected_logged = Cell::new(false);
        Self { control_plane_count, failures: RefCell::default(), is_connected_logged }
    }

    /// Records a failure. Returns true if the proxy must end with it: there is no configuration to serve, and
    /// the last failure of every control plane was final. Otherwise the failure is logged, at debug level if it
    /// repeats the previous failure of this control plane.
    #[must_use]
    pub(crate) fn record_failure(
        &self,
        position: usize,
        control: &ControlAddress,
        error: &ControlError,
        serving: Serving,
    ) -> bool {
        let (summary, reason) = (error.failure_summary(), error.failure_detail());
        let log_line = format!("{summary}: {reason}");
        let failure = ControlFailure { log_line: log_line.clone(), is_final: error.is_final() };
        let serving_text = match serving {
            Serving::Configuration => "serving the last configuration",
            Serving::NoConfiguration => "no configuration to serve yet",
        };
        let previous = self.failures.borrow_mut().insert(position, failure);
        if serving == Serving::NoConfiguration && self.have_all_failed_finally() {
            return true;
        }
        match previous.is_some_and(|previous| previous.log_line == log_line) {
            true => tracing::debug!(%control, %reason, "{summary}; {serving_text}"),
            false => tracing::warn!(%control, %reason, "{summary}; {serving_text}"),
        }
        false
    }

    /// Logs the first connection after a failure; further connections are not logged until a stable one has
    /// ended.
    pub(crate) fn record_connected(&self, control: &ControlAddress) {
        if !self.failures.borrow().is_empty() && !self.is_connected_logged.replace(true) {
            tracing::info!(%control, "connected to the control plane");
        }
    }

    /// Records that a stable connection has ended: the next failure is logged, even if its reason repeats.
    pub(crate) fn record_stable(&self) {
        self.failures.borrow_mut().clear();
        self.is_connected_logged.set(false);
    }

    /// True if the last failure of every control plane was final.
    fn have_all_failed_finally(&self) -> bool {
        let failures = self.failures.borrow();
        failures.len() == self.control_plane_count
            && failures.values().all(|failure| failure.is_final)
    }
}

/// The state of a proxy while no control plane is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    /// The proxy serves the last configuration.
    Configuration,
    /// There is no configuration, so the proxy serves no requests.
    NoConfiguration,
}

/// The failure that ends the proxy.
#[derive(Debug, Default)]
pub(crate) struct FatalFailure {
    /// The first reported failure; `None` without a failure, and after [`Self::wait`] has returned it.
    cause: RefCell<Option<StartError>>,
    /// Notified when a cause is reported.
    reported: Notify,
}

impl FatalFailure {
    /// Ends the proxy with this cause. If two failures are reported, the first one is the cause.
    pub(crate) fn report_cause(&self, cause: StartError) {
        self.cause.borrow_mut().get_or_insert(cause);
        self.reported.notify_one();
    }

    /// Waits for a fatal failure.
    pub(crate) async fn wait(&self) -> StartError {
        loop {
            if let Some(cause) = self.cause.borrow_mut().take() {
                return cause;
            }
            self.reported.notified().await;
        }
    }
}

impl ControlError {
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

    /// Returns the reason for the log line, without repeating [`Self::failure_summary`].
    fn failure_detail(&self) -> String {
        match self {
            Self::Io(error) => error.to_string(),
            Self::Join(JoinError::Rejected { reason, .. })
            | Self::Stream(DiscoveryError::Goodbye(reason)) => reason.clone(),
            Self::Tls(error) => error.to_string(),
            Self::Certificate(error) => error.to_string(),
            error => error.to_string(),
        }
    }

    /// Converts the error of a connection that was opened to join: an untrusted server means that the token is
    /// for another mesh.
    pub(crate) fn into_join_error(self, is_one_time: bool) -> Self {
        match self {
            Self::Io(cause) if is_untrusted(&cause) => {
                Self::Untrusted { cause, is_final: is_one_time }
            }
            error => error,
        }
    }

    /// True if a repeated attempt cannot succeed without another token or another control plane.
    fn is_final(&self) -> bool {
        match self {
            Self::Join(JoinError::Rejected { is_final, .. }) => *is_final,
            Self::JoinCredential(error) => error.is_final(),
            Self::Untrusted { is_final, .. } => *is_final,
            _ => false,
        }
    }
}

/// True if TLS rejected the certificate of the server.
fn is_untrusted(error: &std::io::Error) -> bool {
    let tls_error = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(tls_error, Some(TlsFailure::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected_join(is_final: bool) -> ControlError {
        ControlError::Join(JoinError::Rejected { reason: "used".to_owned(), is_final })
    }

    #[test]
    fn the_proxy_ends_after_final_failures_of_all_control_planes() {
        let control = ControlAddress::from(std::net::SocketAddr::from(([127, 0, 0, 1], 15010)));
        let outage = ControlOutage::new(2);
        let ends_proxy = |position, error: &ControlError| {
            outage.record_failure(position, &control, error, Serving::NoConfiguration)
        };
        assert!(!ends_proxy(0, &rejected_join(true)), "another control plane may accept it");
        assert!(!ends_proxy(1, &ControlError::Timeout));
        assert!(ends_proxy(1, &rejected_join(true)));
        assert!(!outage.record_failure(1, &control, &rejected_join(true), Serving::Configuration));
        assert!(!ends_proxy(0, &rejected_join(false)), "the rejection may be temporary");
        assert!(ControlOutage::new(1).record_failure(
            0,
            &control,
            &rejected_join(true),
            Serving::NoConfiguration
        ));
    }

    #[test]
    fn a_failure_has_a_summary_and_a_detail_without_repetition() {
        let unreachable = ControlError::Io(std::io::ErrorKind::ConnectionRefused.into());
        let goodbye = ControlError::Stream(DiscoveryError::Goodbye("another proxy".to_owned()));
        let untrusted = TlsFailure::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let untrusted_error = || ControlError::Io(std::io::Error::other(untrusted.clone()));
        assert!(
            untrusted_error().into_join_error(true).is_final()
                && !untrusted_error().into_join_error(false).is_final()
        );
        let cases = [
            (unreachable, "the control plane is unreachable: connection refused"),
            (rejected_join(true), "the control plane rejected the join: used"),
            (goodbye, "the control plane closed the connection: another proxy"),
        ];
        for (error, expected) in cases {
            assert_eq!(
                format!("{}: {}", error.failure_summary(), error.failure_detail()),
                expected
            );
        }
    }
}
