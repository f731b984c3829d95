//! Results of a run and its settings.

use leno_load::{ConnectionReuse, LoadPlan, LoadProtocol, LoadReport};

/// The results of a run and its settings.
#[derive(Debug)]
pub(super) struct LoadResults {
    /// The plan of all runs; its load model is a closed loop, even if there are rates.
    pub(super) plan: LoadPlan,
    pub(super) threads: usize,
    /// The measured rates, in order; at least one.
    pub(super) steps: Vec<RateResult>,
}

/// The results at one rate, or in a closed loop.
#[derive(Debug)]
pub(super) struct RateResult {
    /// The requests per second; absent in a closed loop.
    pub(super) rate: Option<u32>,
    pub(super) report: LoadReport,
}

impl LoadResults {
    /// Describes the protocol.
    pub(super) fn describe_protocol(&self) -> String {
        match self.plan.protocol {
            LoadProtocol::Http1 => "HTTP/1.1".to_owned(),
            LoadProtocol::Http2 { streams: 1 } => "HTTP/2".to_owned(),
            LoadProtocol::Http2 { streams } => format!("HTTP/2 of {streams} streams each"),
            LoadProtocol::Grpc { streams: 1 } => "gRPC".to_owned(),
            LoadProtocol::Grpc { streams } => format!("gRPC of {streams} streams each"),
        }
    }

    /// Describes the settings in one line.
    pub(super) fn describe_settings(&self) -> String {
        let connections = self.plan.load_model.connection_count();
        let plural_suffix = if connections == 1 { "" } else { "s" };
        let reuse_text = match self.plan.reuse {
            ConnectionReuse::Keep => "",
            ConnectionReuse::Fresh => ", one for each request",
        };
        let rate_text = match self.steps.first().and_then(|step| step.rate) {
            None => "closed loop",
            Some(_) => "open loop, latency from the scheduled time of a request",
        };
        let threads_text = match self.threads {
            1 => "1 thread".to_owned(),
            threads_text => format!("{threads_text} threads"),
        };
        format!(
            "{connections} connection{plural_suffix} of {}{reuse_text}; {rate_text}; {threads_text}; {:?} of warm-up",
            self.describe_protocol(),
            self.plan.warm_up,
        )
    }
}
