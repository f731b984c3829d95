//! `leno top`: shows live request statistics of services, routes and sidecars.

mod screen;
mod terminal;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use leno_control::status::{Status, TrafficStatus};

use crate::data_directory::DataDirectoryArgs;
use crate::duration::parse_positive;
use crate::get::{MeshSocket, describe_scope};
use crate::output::{self, OutputFormat};
use crate::{closed_output, log, stop};

use self::screen::{ScreenContent, ScreenSize, ScreenStyle};
use self::terminal::{LiveTerminal, PressedKey};

/// Arguments of `leno top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Sort order
    #[arg(long, value_enum, default_value_t)]
    sort: SortOrder,
    /// Print once and exit; implied if standard output is not a terminal
    #[arg(long)]
    once: bool,
    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_positive)]
    interval: Duration,
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Output format with --once; `json` and `yaml` imply --once
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The sort order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum SortOrder {
    /// Highest request rate first
    #[default]
    Rate,
    /// Lowest success rate first
    Success,
    /// Highest median latency first
    P50,
    /// Highest 99th percentile latency first
    P99,
    /// By name
    Name,
}

impl TopArgs {
    /// Refreshes until `q`, Ctrl-C or SIGTERM; or prints once.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.show())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(self) -> anyhow::Result<()> {
        let mesh = MeshSocket::from_data(&self.data.path()?);
        let mut content = query_content(&mesh).await?;
        content.sort(self.sort);
        if let Some(format) = self.output.structured_format() {
            return output::print_value(&content.traffic, format);
        }
        if (self.once || !std::io::stdout().is_terminal())
            && let Some(scope) = describe_scope(&content.status)
        {
            log::print_to_stderr(&scope);
        }
        if self.once || !std::io::stdout().is_terminal() {
            return output::print_raw(&screen::render_all(&content, self.output));
        }
        self.run_live(&mesh, content).await
    }

    /// Runs the live view until a key, a signal or a closed terminal ends it. This function waits for events;
    /// the module `screen` renders the content.
    async fn run_live(&self, mesh: &MeshSocket, mut content: ScreenContent) -> anyhow::Result<()> {
        let stop_signal = stop::stop_signal()?;
        tokio::pin!(stop_signal);
        let output_closed = closed_output::wait_until_closed();
        tokio::pin!(output_closed);
        let terminal =
            LiveTerminal::enter_live_mode().context("cannot use the terminal; try --once")?;
        stop::exit_when_blocked(LiveTerminal::restore, None)?;
        let mut key_receiver = terminal.read_keys()?;
        let build_style = |sort_order| ScreenStyle {
            sort_order,
            use_color: std::env::var_os("NO_COLOR").is_none(),
        };
        let mut sort_order = self.sort;
        let query_next_content = || async {
            tokio::time::sleep(self.interval).await;
            query_content(mesh).await
        };
        let mut refresh_task = Box::pin(query_next_content());
        loop {
            let (columns, rows) = terminal.size();
            terminal.draw(&screen::render_screen(
                &content,
                ScreenSize { columns, rows },
                build_style(sort_order),
            ))?;
            tokio::select! {
                () = &mut stop_signal => return Ok(()),
                () = &mut output_closed => return Ok(()),
                key = key_receiver.recv() => match key {
                    Some(PressedKey::Quit) | None => return Ok(()),
                    Some(PressedKey::Sort(new_order)) => {
                        sort_order = new_order;
                        content.sort(sort_order);
                    }
                    Some(PressedKey::Other) => {}
                },
                // A key press does not wait for a response.
                outcome = &mut refresh_task => {
                    match outcome {
                        Ok(new_content) => {
                            content = new_content;
                            content.sort(sort_order);
                        }
                        // The control plane may be restarting: the last content stays, marked as not updated.
                        Err(error) => content.error = Some(output::format_error(&error)),
                    }
                    refresh_task.set(query_next_content());
                }
            }
        }
    }
}

async fn query_content(mesh: &MeshSocket) -> anyhow::Result<ScreenContent> {
    let status: Status =
        serde_json::from_value(mesh.query_json("/status").await?).context(UNPARSABLE_RESPONSE)?;
    let traffic: TrafficStatus =
        serde_json::from_value(mesh.query_json("/traffic").await?).context(UNPARSABLE_RESPONSE)?;
    Ok(ScreenContent { status, traffic, error: None })
}

const UNPARSABLE_RESPONSE: &str =
    "the response cannot be parsed: the mesh may run another version of leno";

const EXAMPLES: &str = "\
Examples:
  leno top
  leno top --sort p99
  leno top --once -o wide
  leno top -o json --data /var/lib/leno
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec -it deploy/leno-control -- \\
        /leno top --data /var/lib/leno/control

Keys: r rate, s success, 5 p50, 9 p99, n name; q or Ctrl-C quits. Rates cover the last 30 seconds;
sidecars report every few seconds.
";
