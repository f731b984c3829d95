//! Results of a run and its settings.

use leno_load::{Plan, Protocol, Report, Reuse};

/// The results of a run and its settings.
#[derive(Debug)]
pub(super) struct Measured {
    /// The requested plan, except for the pace.
    pub(super) plan: Plan,
    pub(super) threads: usize,
    /// The measured rates, in order; at least one.
    pub(super) steps: Vec<Step>,
}

/// The results at one rate, or in a closed loop.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) rate: Option<u32>,
    pub(super) report: Report,
}

impl Measured {
    /// Describes the protocol.
    pub(super) fn describe_protocol(&self) -> String {
        match self.plan.protocol {
            Protocol::Http1 => "HTTP/1.1".to_owned(),
            Protocol::Http2 { streams: 1 } => "HTTP/2".to_owned(),
            Protocol::Http2 { streams } => format!("HTTP/2 of {streams} streams each"),
            Protocol::Grpc { streams: 1 } => "gRPC".to_owned(),
            Protocol::Grpc { streams } => format!("gRPC of {streams} streams each"),
        }
    }

    /// Describes the settings in one line.
    pub(super) fn describe_settings(&self) -> String {
        let connections = self.plan.pace.connection_count();
        let plural = if connections == 1 { "" } else { "s" };
        let fresh = match self.plan.reuse {
            Reuse::Keep => "",
            Reuse::Fresh => ", one for each request",
        };
        let pace = match self.steps.first().and_then(|step| step.rate) {
            None => "closed loop",
            Some(_) => "open loop, latency from the scheduled time of a request",
        };
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        format!(
            "{connections} connection{plural} of {}{fresh}; {pace}; {threads}; {:?} of warm-up",
            self.describe_protocol(),
            self.plan.warm_up,
        )
    }
}
