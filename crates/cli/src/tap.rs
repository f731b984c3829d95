//! `leno tap`: prints live requests of a service, as sidecars report them.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use leno_control::status::{ServiceStatus, Status};
use leno_model::{MAX_TAP_PER_SECOND, ServiceAccount, ServiceName, StatusRange};
use serde_json::Value;

use crate::data_directory::DataDirectoryArgs;
use crate::duration::{format_duration, parse_positive};
use crate::get::{MeshSocket, parse_response};
use crate::output::{self, escape_cell, escape_json};
use crate::yaml;
use crate::{closed_output, log, stop};

/// Arguments of `leno tap`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TapArgs {
    /// Called service, NAMESPACE/NAME or NAME.NAMESPACE
    #[arg(value_parser = parse_service, required_unless_present = "page")]
    service: Option<ServiceName>,
    /// Print a URL that shows live requests in a browser; the URL grants access to them
    #[arg(long, conflicts_with = "service")]
    page: bool,
    /// Only requests with this path prefix
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,
    /// Only requests with this method
    #[arg(long)]
    method: Option<String>,
    /// Only requests with this response status: 503, 5xx or 400-499; 000 is no response
    #[arg(long, value_parser = parse_status)]
    status: Option<StatusRange>,
    /// Only requests from this service account
    #[arg(long, value_name = "NAMESPACE/ACCOUNT", value_parser = parse_account)]
    from: Option<ServiceAccount>,
    /// Report only requests seen by the client's or the server's sidecar; every request between meshed workloads
    /// passes both
    #[arg(long, value_enum, default_value_t = ReportingSide::Both)]
    side: ReportingSide,
    /// Maximum requests per second that each worker thread of a sidecar reports
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TAP_PER_SECOND))
    )]
    rate: u32,
    /// Exit after this many requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Exit after this time, because a command in a pod keeps running when the connection of `kubectl exec`
    /// without `-i` is lost
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_positive)]
    duration: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TapFormat::Table)]
    output: TapFormat,
    #[command(flatten)]
    data: DataDirectoryArgs,
}

/// The sidecars that report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportingSide {
    /// The client's and the server's
    Both,
    /// The client's
    Client,
    /// The server's
    Server,
}

/// The output format of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TapFormat {
    /// One line per request, for people
    Table,
    /// One line of JSON per request, with the fields of the access log
    Json,
    /// One YAML document per request, with the same fields
    Yaml,
}

impl TapArgs {
    /// Prints requests until a signal, the count or the duration ends the tap.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.follow_requests())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn follow_requests(&self) -> anyhow::Result<()> {
        let mesh = MeshSocket::from_data(&self.data.path()?);
        let Some(service) = &self.service else {
            return print_page_url(&mesh).await;
        };
        check_service_exists(&mesh, service).await?;
        mesh.print_scope().await;
        let stop_signal = stop::stop_signal()?;
        stop::exit_when_blocked(|| {}, Some(self.duration))?;
        let mut tap_output =
            TapOutput { format: self.output, remaining_requests: self.count, dropped_requests: 0 };
        if self.output == TapFormat::Table {
            tap_output.print_line(&HEADER.map(str::to_owned).join("  "))?;
        }
        let path = self.query_path(service);
        let mut has_stream_ended = false;
        let stream = mesh.follow_stream(&path, |line| tap_output.handle_line(line));
        tokio::select! {
            result = stream => {
                result?;
                has_stream_ended = true;
            }
            () = stop_signal => {}
            () = closed_output::wait_until_closed() => return Ok(()),
            () = tokio::time::sleep(self.duration) => {
                let lifetime = format_duration(self.duration);
                log::print_to_stderr(&format!("the tap ends after {lifetime}: change this with --duration"));
            }
        }
        if tap_output.dropped_requests > 0 {
            log::print_to_stderr(&format!(
                "{} more requests not shown: use filters, or a higher --rate",
                tap_output.dropped_requests
            ));
        }
        match has_stream_ended && tap_output.remaining_requests != Some(0) {
            true => bail!("the control plane has exited"),
            false => Ok(()),
        }
    }

    fn query_path(&self, service: &ServiceName) -> String {
        let side = match self.side {
            ReportingSide::Both => "both",
            ReportingSide::Client => "client",
            ReportingSide::Server => "server",
        };
        let filters = [
            ("path", self.path.clone()),
            ("method", self.method.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("from", self.from.as_ref().map(ToString::to_string)),
        ];
        let mut path = format!("/tap?service={}&side={side}", percent_encode(&service.to_string()));
        path.push_str(&format!("&per_second={}", self.rate));
        for (name, value) in filters {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", percent_encode(&value)));
            }
        }
        path
    }
}

/// Returns an error if the service does not exist, because the command would wait for its requests forever.
async fn check_service_exists(mesh: &MeshSocket, service: &ServiceName) -> anyhow::Result<()> {
    let services: Vec<ServiceStatus> = parse_response(mesh.query_json("/services").await?)?;
    let name = service.to_string();
    if services.iter().any(|service| service.name == name) {
        return Ok(());
    }
    // The message lists the first services only.
    let service_names: Vec<&str> = services.iter().map(|service| &*service.name).take(20).collect();
    match service_names.is_empty() {
        true => bail!("no service {name}: the mesh has no services"),
        false => bail!("no service {name}; the mesh has {}", service_names.join(", ")),
    }
}

/// Prints the URL of the page that shows live requests.
async fn print_page_url(mesh: &MeshSocket) -> anyhow::Result<()> {
    let status: Status = parse_response(mesh.query_json("/status").await?)?;
    match status.live {
        Some(live) => output::print_raw(&format!("{live}\n")),
        None => bail!("the control plane has no page: start it without `--page off`"),
    }
}

/// Prints requests in the selected format, and counts the requests that sidecars dropped.
struct TapOutput {
    format: TapFormat,
    /// The number of requests that are still to be printed; `None` is unlimited.
    remaining_requests: Option<u64>,
    /// The number of requests that sidecars did not report, because of the rate limit.
    dropped_requests: u64,
}

impl TapOutput {
    /// Prints the request in a line of the control plane. Returns false once the requested number of requests
    /// is printed.
    fn handle_line(&mut self, line: &str) -> anyhow::Result<bool> {
        let Ok(record) = serde_json::from_str::<Value>(line) else {
            bail!(
                "the control plane sent a line that is not JSON: is it of another version of leno?"
            );
        };
        if let Some(dropped_count) = record["dropped"].as_u64() {
            self.dropped_requests = self.dropped_requests.saturating_add(dropped_count);
            return Ok(true);
        }
        match self.format {
            TapFormat::Json => self.print_line(&escape_json(line))?,
            TapFormat::Yaml => {
                let document = escape_json(&yaml::write_documents(std::slice::from_ref(&record)));
                self.print_line(document.trim_end())?;
            }
            TapFormat::Table => self.print_line(&format_request(&record))?,
        }
        self.remaining_requests = self.remaining_requests.map(|count| count - 1);
        Ok(self.remaining_requests != Some(0))
    }

    fn print_line(&self, line: &str) -> anyhow::Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(line.as_bytes())?;
        stdout.write_all(b"\n")?;
        // Each line is flushed for live reading.
        Ok(stdout.flush()?)
    }
}

/// Formats a request as a row of the table.
fn format_request(record: &Value) -> String {
    let cell = |name: &str| escape_cell(record[name].as_str().unwrap_or_default());
    let start_time = cell("start_time");
    let time_with_zone = start_time.split('T').nth(1).unwrap_or(&start_time);
    // `12:34:56.789`
    let time_of_day: String = time_with_zone.trim_end_matches('Z').chars().take(12).collect();
    let duration = record["duration"].as_f64().unwrap_or_default();
    let (method, path) = match record["protocol"].as_str() {
        Some("tcp") => ("TCP".to_owned(), cell("upstream_host")),
        _ => (cell("method"), cell("path")),
    };
    let status = match record["response_code"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(status) => status.to_string(),
    };
    let peer = match record["direction"].as_str() {
        Some("inbound") => cell("peer"),
        _ => cell("upstream_host"),
    };
    let reason = match cell("response_code_details") {
        reason if reason == "-" => cell("grpc_status"),
        reason => reason,
    };
    let direction = cell("direction");
    let workload = cell("workload");
    format!(
        "{time_of_day:<12}  {workload:<28}  {direction:<9}  {peer:<26}  {status:>6}  {duration:>9.3}  \
         {reason:<18}  {method} {path}"
    )
}

/// Percent-encodes all characters except unreserved ones (RFC 3986 section 2.3).
pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn parse_service(text: &str) -> Result<ServiceName, String> {
    let slash_form = text.parse::<ServiceName>().ok();
    let dot_form = || {
        let (name, namespace) = text.split_once('.')?;
        ServiceName::new(namespace, name).ok()
    };
    slash_form.or_else(dot_form).ok_or_else(|| "use NAMESPACE/NAME, such as shop/stock".to_owned())
}

fn parse_account(text: &str) -> Result<ServiceAccount, String> {
    let account =
        text.split_once('/').map(|(namespace, name)| ServiceAccount::new(namespace, name));
    match account {
        Some(Ok(account)) => Ok(account),
        _ => Err("use NAMESPACE/ACCOUNT, such as shop/web".to_owned()),
    }
}

fn parse_status(text: &str) -> Result<StatusRange, String> {
    StatusRange::parse(text).ok_or_else(|| "use 503, 5xx or 400-499".to_owned())
}

const HEADER: [&str; 7] = [
    "TIME        ",
    "WORKLOAD                    ",
    "DIRECTION",
    "PEER                      ",
    "STATUS",
    "       MS",
    "REASON              REQUEST",
];

const EXAMPLES: &str = "\
Examples:
  leno tap shop/stock                                  completed requests of a service
  leno tap shop/stock --status 5xx --path /orders      failed requests
  leno tap shop/stock --from shop/web --side client -o json --count 10
  leno tap --page                                      show requests in a browser
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec -i deploy/leno-control -- \\
        /leno tap shop/cart --data /var/lib/leno/control

The output contains no bodies, query strings or headers other than those of the access log. Tapping requires
access to the control plane's admin socket, and covers only the sidecars connected to that control plane.
";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        tap: TapArgs,
    }

    fn parse_args(arguments: &[&str]) -> Result<TapArgs, clap::Error> {
        CommandLine::try_parse_from([&["tap"], arguments].concat()).map(|line| line.tap)
    }

    #[test]
    fn filters_are_encoded_in_the_query() {
        let tap =
            parse_args(&["stock.shop", "--path=/a b?", "--status=5xx", "--from=shop/web"]).unwrap();
        assert_eq!(
            tap.query_path(tap.service.as_ref().unwrap()),
            "/tap?service=shop%2Fstock&side=both&per_second=100&path=%2Fa%20b%3F&status=500-599\
             &from=shop%2Fweb"
        );
        for invalid in [
            &[][..],
            &["shop/stock", "--page"],
            &["stock"],
            &["shop/stock", "--status=6xx"],
            &["shop/stock", "--from=web"],
            &["shop/stock", "--rate=0"],
            &["shop/stock", "--count=0"],
            &["shop/stock", "--duration=0s"],
        ] {
            assert!(parse_args(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn rows_describe_the_request_with_escaped_text() {
        let record = serde_json::json!({
            "start_time": "2026-01-02T03:04:05.678901Z", "direction": "inbound", "method": "GET",
            "path": "/a\u{1b}[2J", "protocol": "http", "response_code": 503,
            "response_code_details": "connect-failed", "peer": "shop/web", "duration": 1.5,
            "workload": "shop/stock-1",
        });
        let row = format_request(&record);
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "03:04:05.678",
                "shop/stock-1",
                "inbound",
                "shop/web",
                "503",
                "1.500",
                "connect-failed",
                "GET",
                "/a\u{fffd}[2J"
            ]
        );
    }

    #[test]
    fn dropped_requests_do_not_count_towards_the_limit() {
        let mut tap_output =
            TapOutput { format: TapFormat::Json, remaining_requests: Some(2), dropped_requests: 0 };
        assert!(tap_output.handle_line("{\"dropped\":3,\"workload\":\"a/b\"}").unwrap());
        assert!(tap_output.handle_line("{\"path\":\"/\"}").unwrap());
        assert!(!tap_output.handle_line("{\"path\":\"/\"}").unwrap());
        assert!(tap_output.handle_line(&format!("{{\"dropped\":{}}}", u64::MAX)).unwrap());
        assert_eq!(tap_output.dropped_requests, u64::MAX);
        assert!(tap_output.handle_line("no JSON").is_err());
    }
}
