//! `leno explain`: the decision for a request, the meaning of each reason, and the fields of each kind of rules.

mod backend;
mod change;
mod decide;
mod egress;
mod inbound;
mod kind;
mod reason;
mod request;
mod runtime_state;
mod tags;
mod target;
mod text;
mod traffic_policy;
mod unapplied;
mod unused_matches;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use leno_control::Explainer;
use leno_model::{Reason, WorkloadName};

use crate::data_directory::DataDirectoryArgs;
use crate::output;
use crate::output::StructuredFormat;

/// Arguments of `leno explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// `request`, `change`, `kind`, or a reason from a `leno-reason` header, a log or a metric, by name or code. Lists
    /// all reasons if omitted
    #[arg(value_parser = topic_parser(), ignore_case = true, hide_possible_values = true)]
    topic: Option<String>,
    /// For `explain change`: ID of a change of the running mesh, from `leno get changes`. For `explain kind`: kind of rules, or
    /// one of its fields, such as `OutlierDetection.healthCheck`; lists all kinds if omitted
    #[arg(value_name = "ID|KIND[.FIELD]", required_if_eq("topic", CHANGE_TOPIC))]
    name: Option<String>,
    /// For `explain kind`: print the fields of all levels
    #[arg(long)]
    recursive: bool,
    /// File or directory of YAML manifests; repeatable. If omitted, `explain request` queries the running mesh
    #[arg(short, long = "file", value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: ExplainFormat,
    #[command(flatten)]
    data: DataDirectoryArgs,
    // The last field, because its heading also applies to all options after it.
    #[command(flatten)]
    request: RequestArgs,
}

/// Returns the function that explains requests on the control plane's web page, with the current configuration.
pub(crate) fn page_explainer() -> Explainer {
    Explainer::new(|objects, query| {
        request::explain_request(objects, query).map_err(|error| output::format_error(&error))
    })
}

/// The request to explain.
#[derive(Debug, Args)]
#[command(next_help_heading = "For `explain request`")]
pub(crate) struct RequestArgs {
    /// Workload that sends the request, or the service account of such workloads
    #[arg(long, value_name = "NAMESPACE/NAME", required_if_eq("topic", REQUEST_TOPIC))]
    from: Option<WorkloadName>,
    /// URL of the request, such as http://ratings.bookinfo:9080/ratings/1, or of a TCP connection, such as
    /// tcp://redis.shop:6379
    #[arg(long, value_name = "URL", required_if_eq("topic", REQUEST_TOPIC), value_parser = target::ExplainTarget::parse)]
    url: Option<target::ExplainTarget>,
    /// HTTP method
    #[arg(long, short = 'X', default_value = "GET", value_parser = target::parse_method)]
    method: String,
    /// HTTP header; repeatable
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = target::parse_header)]
    header: Vec<(String, String)>,
}

/// Output format of `leno explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ExplainFormat {
    /// Human-readable text
    #[default]
    Text,
    /// JSON
    Json,
    /// YAML with the same fields as the JSON
    Yaml,
}

impl ExplainFormat {
    /// Returns the machine-readable format, or `None` for text.
    pub(crate) const fn structured_format(self) -> Option<StructuredFormat> {
        match self {
            Self::Text => None,
            Self::Json => Some(StructuredFormat::Json),
            Self::Yaml => Some(StructuredFormat::Yaml),
        }
    }
}

impl ExplainArgs {
    /// Prints the explanation.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Some(topic) = self.topic.as_deref() else { return reason::print_reasons(self.output) };
        match topic.to_ascii_lowercase().as_str() {
            CHANGE_TOPIC => {
                let text = self.name.unwrap_or_default();
                let Ok(id) = text.parse() else {
                    let hint = "`leno get changes` lists the IDs";
                    eprintln!("error: {text:?} is not the ID of a change: {hint}");
                    return Ok(ExitCode::from(EXIT_USAGE_ERROR));
                };
                change::run(&self.data.path()?, id, self.output)
            }
            KIND_TOPIC => match &self.name {
                Some(path) => kind::print_kind(path, self.recursive, self.output),
                None => kind::print_kinds(self.output),
            },
            REQUEST_TOPIC if self.file.is_empty() => {
                runtime_state::run(&self.data.path()?, &self.request, self.output)
            }
            REQUEST_TOPIC => request::run(&self.file, &self.request, self.output),
            _ => match Reason::from_label_or_code(topic) {
                Some(reason) => reason::print_reason(reason, self.output),
                None => anyhow::bail!("unknown reason `{topic}`: `leno explain` lists all reasons"),
            },
        }
    }
}

fn topic_parser() -> PossibleValuesParser {
    let names = Reason::ALL.iter().flat_map(|reason| [reason.label(), reason.code()]);
    PossibleValuesParser::new([REQUEST_TOPIC, CHANGE_TOPIC, KIND_TOPIC].into_iter().chain(names))
}

const REQUEST_TOPIC: &str = "request";
const CHANGE_TOPIC: &str = "change";
const KIND_TOPIC: &str = "kind";

/// The exit code of clap for usage errors.
const EXIT_USAGE_ERROR: u8 = 2;

/// The exit code if the request does not reach the application.
const EXIT_REJECTED: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  leno explain request --from bookinfo/productpage-1 --url http://ratings.bookinfo:9080/
  leno explain -f mesh/ request --from bookinfo/productpage-1 \\
      --url http://ratings.bookinfo:9080/ratings/1
  leno explain -f mesh/ request --from shop/cart-1 -X POST -H 'x-user: jason' \\
      --url http://orders.shop:8080/orders -o json
  leno explain request --from shop/cart-1 --url tcp://redis.shop:6379
  leno explain denied-outbound
  leno explain kind OutlierDetection --recursive
  leno explain E3004
  leno explain change 1763769600000042
  leno explain
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec deploy/leno-control -- /leno explain request \\
        --data /var/lib/leno/control --from shop/cart-1 --url http://orders.shop:8080/

With -f, `explain request` reads only these manifests. Without -f, it queries the running mesh of
--data, and also reports the endpoints that the client's sidecar has ejected and those that are not
ready. `explain change` always queries the running mesh.

Exit codes of `explain request`: 0 the request reaches the application; 3 a sidecar answers it, as
the last line shows; 1 no decision (unknown workload, no valid document); 2 wrong usage. Rejected
documents are reported on standard error and ignored.
";
