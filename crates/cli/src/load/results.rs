//! Holds the results of a load run with the settings that it used, and describes the settings for the reports.

use leno_load::{ConnectionReuse, LoadPlan, LoadProtocol, LoadReport};

/// The results of a run, with the settings that it used.
#[derive(Debug)]
pub(super) struct LoadResults {
    /// The plan of all runs; its load model is a closed loop, even if there are rates.
    pub(super) plan: LoadPlan,
    /// The number of threads that shared the connections and the rate.
    pub(super) threads: usize,
    /// The results at each rate, in the order of the measurement; at least one. A closed loop has exactly one.
    pub(super) steps: Vec<RateResult>,
}

/// The results at one rate, or in a closed loop.
#[derive(Debug)]
pub(super) struct RateResult {
    /// The requested rate, in requests per second; `None` in a closed loop.
    pub(super) rate: Option<u32>,
    pub(super) report: LoadReport,
}

impl LoadResults {
    /// Describes the protocol, with the streams per connection if there are several.
    pub(super) fn describe_protocol(&self) -> String {
        match self.plan.protocol {
            LoadProtocol::Http1 => "HTTP/1.1".to_owned(),
            LoadProtocol::Http2 { streams: 1 } => "HTTP/2".to_owned(),
            LoadProtocol::Http2 { streams } => format!("HTTP/2 of {streams} streams each"),
            LoadProtocol::Grpc { streams: 1 } => "gRPC".to_owned(),
            LoadProtocol::Grpc { streams } => format!("gRPC of {streams} streams each"),
        }
    }

    /// Describes the connections, the load model, the threads and the warm-up in one line.
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
            count => format!("{count} threads"),
        };
        format!(
            "{connections} connection{plural_suffix} of {}{reuse_text}; {rate_text}; {threads_text}; {:?} of warm-up",
            self.describe_protocol(),
            self.plan.warm_up,
        )
    }
}
