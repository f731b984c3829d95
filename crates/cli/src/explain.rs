//! `leno explain`: what would decide a request, and what a reason means.

mod backend;
mod change;
mod decide;
mod inbound;
mod outside;
mod reason;
mod request;
mod rivals;
mod running;
mod tags;
mod target;
mod text;
mod treatment;
mod unapplied;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use leno_control::Playground;
use leno_model::{Reason, WorkloadName};

use crate::data_directory::DataArgs;
use crate::output;
use crate::output::Structured;

/// Arguments of `leno explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// `request`, `change`, or a reason from a `leno-reason` header, a log or a metric, by its word or
    /// its code; all reasons when left out
    #[arg(value_parser = topics(), ignore_case = true, hide_possible_values = true)]
    topic: Option<String>,
    /// For `explain change`: the number of a change of the running mesh, of `leno get changes`
    #[arg(value_name = "ID", required_if_eq("topic", CHANGE))]
    id: Option<u64>,
    /// A file or directory of YAML; may be given again. For `explain request`: the running mesh is asked
    /// when left out
    #[arg(short, long = "file", value_name = "PATH")]
    file: Vec<PathBuf>,
    #[command(flatten)]
    request: RequestArgs,
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: ExplainFormat,
    #[command(flatten)]
    data: DataArgs,
}

/// The same for the page of the control plane, on what is in force.
pub(crate) fn playground() -> Playground {
    Playground::new(|objects, asked| {
        request::explained(objects, asked).map_err(|error| output::failure(&error))
    })
}

/// The request that is to be explained.
#[derive(Debug, Args)]
#[command(next_help_heading = "For `explain request`")]
pub(crate) struct RequestArgs {
    /// The workload that makes the request, or the service account of such workloads
    #[arg(long, value_name = "NAMESPACE/NAME", required_if_eq("topic", REQUEST))]
    from: Option<WorkloadName>,
    /// The URL of the request, such as http://ratings.bookinfo:9080/ratings/1, or of a connection, such as
    /// tcp://redis.shop:6379
    #[arg(long, value_name = "URL", required_if_eq("topic", REQUEST), value_parser = target::Target::parse)]
    url: Option<target::Target>,
    /// The method
    #[arg(long, short = 'X', default_value = "GET", value_parser = target::parse_method)]
    method: String,
    /// A header; may be given again
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = target::parse_header)]
    header: Vec<(String, String)>,
}

/// How the answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ExplainFormat {
    /// For people
    #[default]
    Text,
    /// JSON
    Json,
    /// YAML, which says the same as the JSON
    Yaml,
}

impl ExplainFormat {
    /// How programs read it, if it is for programs.
    pub(crate) const fn structured(self) -> Option<Structured> {
        match self {
            Self::Text => None,
            Self::Json => Some(Structured::Json),
            Self::Yaml => Some(Structured::Yaml),
        }
    }
}

impl ExplainArgs {
    /// Prints the answer.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Some(topic) = self.topic.as_deref() else { return reason::list(self.output) };
        match topic.to_ascii_lowercase().as_str() {
            CHANGE => change::run(&self.data.path()?, self.id, self.output),
            REQUEST if self.file.is_empty() => {
                running::run(&self.data.path()?, &self.request, self.output)
            }
            REQUEST => request::run(&self.file, &self.request, self.output),
            _ => match Reason::named(topic) {
                Some(reason) => reason::show(reason, self.output),
                None => anyhow::bail!("there is no reason `{topic}`: see `leno explain`"),
            },
        }
    }
}

fn topics() -> PossibleValuesParser {
    let words = Reason::ALL.iter().flat_map(|reason| [reason.label(), reason.code()]);
    PossibleValuesParser::new([REQUEST, CHANGE].into_iter().chain(words))
}

const REQUEST: &str = "request";
const CHANGE: &str = "change";

/// The request would not reach the application.
const REFUSED: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  leno explain request --from bookinfo/productpage-1 --url http://ratings.bookinfo:9080/
  leno explain -f mesh/ request --from bookinfo/productpage-1 \\
      --url http://ratings.bookinfo:9080/ratings/1
  leno explain -f mesh/ request --from shop/cart-1 -X POST -H 'x-user: jason' \\
      --url http://orders.shop:8080/orders -o json
  leno explain request --from shop/cart-1 --url tcp://redis.shop:6379
  leno explain denied-outbound
  leno explain E3004
  leno explain change 1763769600000042
  leno explain

`explain request` decides on the files of -f alone; without them on the mesh that runs with --data,
and then it also says which endpoints the client's sidecar has removed for a while and which are not
there yet.

Exit codes of `explain request`: 0 the request would reach the application; 3 it would be
answered by a sidecar, as the last line says; 1 the question could not be answered (unknown
workload, no valid document); 2 wrong usage. Documents that are rejected are named on standard
error and left out.
";
