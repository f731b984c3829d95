//! The `leno` command line as a library, for the `main.rs` binary and the fuzz targets.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to its user")]

mod admin_client;
mod bench;
mod bug_report;
mod ca;
mod check;
mod cidr_range;
mod closed_output;
mod cluster;
mod cni;
mod completions;
mod control;
mod data_directory;
mod demo;
mod diagnose;
mod duration;
mod exec;
mod explain;
mod figures;
mod gateway;
mod get;
mod inject;
mod install;
mod limits;
mod load;
mod log;
mod migrate;
mod output;
mod ports;
mod proxy;
mod redirect;
mod revoke;
mod status;
mod stop;
mod tap;
mod token;
mod top;
mod up;
mod wildcard_address;
mod yaml;

use std::net::{AddrParseError, SocketAddr};
use std::num::{ParseFloatError, ParseIntError};
use std::process::ExitCode;
use std::str::FromStr as _;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::demo::bookinfo::DemoServiceArgs;
use crate::demo::run::DemoArgs;
use crate::log::LogLevel;

/// Leno, a lightweight service mesh
#[derive(Debug, Parser)]
#[command(
    name = "leno",
    version,
    propagate_version = true,
    after_help = EXAMPLES
)]
struct Cli {
    /// Log level or filter for standard error: error, warn, info, debug, trace, or directives such as
    /// `info,leno_proxy=debug` [default: info for long-running commands, warn for others]
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Global options")]
    log_level: Option<LogLevel>,

    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the bookinfo demo in a local mesh, generate load and verify the results
    Demo(DemoArgs),
    /// Run a local mesh: control plane, sidecars and applications
    Up(up::UpArgs),
    /// Validate manifests, or check a Kubernetes cluster and its mesh
    Check(check::CheckArgs),
    /// Explain the decisions for a request, a configuration change, or a reason (error code)
    Explain(explain::ExplainArgs),
    /// Convert OSM, FSM and Sermant rules to native resources
    Migrate(migrate::MigrateArgs),
    /// Show objects of the running mesh
    Get(get::GetArgs),
    /// Check the health of the mesh and suggest fixes
    Status(status::StatusArgs),
    /// Find the failing step on the path to or from a workload
    Diagnose(diagnose::DiagnoseArgs),
    /// Show live request statistics for services, routes and sidecars
    Top(top::TopArgs),
    /// Stream live requests of a service
    Tap(tap::TapArgs),
    /// Collect diagnostics of a mesh into one archive, without secrets
    BugReport(bug_report::BugReportArgs),
    /// Generate load and report latency and errors
    Load(load::LoadArgs),
    /// Create a join token for a workload on another machine
    Token(token::TokenArgs),
    /// Revoke a workload's mesh membership, including all of its certificates
    Revoke(revoke::RevokeArgs),
    /// Rotate the root CA of a mesh in stages
    Ca(ca::CaArgs),
    /// Run a sidecar proxy
    Proxy(proxy::ProxyArgs),
    /// Run a gateway proxy
    Gateway(gateway::GatewayArgs),
    /// Run a control plane
    Control(control::ControlArgs),
    /// Print the manifests that install the mesh into a Kubernetes cluster, or apply them
    Install(install::InstallArgs),
    /// Print the objects of the mesh in a Kubernetes cluster, or remove them
    Uninstall(install::UninstallArgs),
    /// Add sidecars to Kubernetes manifests
    Inject(inject::InjectArgs),
    /// Redirect a network namespace's traffic to its sidecar
    Redirect(redirect::RedirectArgs),
    /// Run the node agent of the CNI plugin
    Cni(cni::CniArgs),
    /// Benchmark Leno against other proxies
    Bench(bench::BenchArgs),
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Run one service of the demo
    #[command(hide = true)]
    DemoService(DemoServiceArgs),
    /// Run a command that ends with its supervisor
    #[command(hide = true)]
    Exec(exec::ExecArgs),
}

pub use crate::migrate::{MigrationResult, migrate_text};

/// Runs the command line of this process.
#[must_use]
pub fn run() -> ExitCode {
    if cni::is_called_as_plugin() {
        return cni::run_as_plugin();
    }
    let Cli { log_level, command } = match parse_arguments() {
        Ok(arguments) => arguments,
        Err(error) => return report_usage_error(&error),
    };
    log::start(log_level.as_ref(), command.log_style());
    let code = match command.run(log_level) {
        Ok(code) => code,
        // The other end of the pipe is closed, as in `leno get workloads | head -1`.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            log::print_to_stderr(&format!("error: {}", output::format_error(&error)));
            ExitCode::FAILURE
        }
    };
    log::flush();
    code
}

/// Parses the arguments of this process.
fn parse_arguments() -> Result<Cli, clap::Error> {
    let mut command = reflow_help(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Joins the lines of each paragraph of the text after the options, so that only the width of the terminal breaks
/// lines.
fn reflow_help(command: clap::Command) -> clap::Command {
    let text = command.get_after_help().map(|text| join_paragraphs(&text.to_string()));
    let command = match text {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(reflow_help)
}

/// Returns the text with each paragraph in one line. Indented lines are examples and stay unchanged.
fn join_paragraphs(text: &str) -> String {
    let mut result = String::new();
    let mut is_previous_prose = false;
    for line in text.lines() {
        let is_prose = line.starts_with(|character: char| !character.is_whitespace());
        if !result.is_empty() {
            result.push(if is_prose && is_previous_prose { ' ' } else { '\n' });
        }
        result.push_str(line);
        is_previous_prose = is_prose;
    }
    result
}

/// Prints an argument error or the help. Replaces standard library errors, which are not user-friendly.
fn report_usage_error(error: &clap::Error) -> ExitCode {
    let cause = std::error::Error::source(error);
    let replacement = cause.and_then(|cause| Some((cause, find_replacement_text(cause)?)));
    match replacement {
        None => error.exit(),
        Some((cause, hint)) => {
            let text = error.to_string().replacen(&cause.to_string(), hint, 1);
            eprint!("{text}");
            ExitCode::from(2)
        }
    }
}

/// Returns the replacement text for an error of the standard library.
fn find_replacement_text(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if cause.is::<ParseIntError>() || cause.is::<ParseFloatError>() {
        return Some("not a number in range");
    }
    let address_error = cause.downcast_ref::<AddrParseError>()?;
    // The error of an address with a port differs from that of a bare IP address, but has no public field for it.
    let has_port = SocketAddr::from_str("").is_err_and(|error| error == *address_error);
    Some(match has_port {
        true => wildcard_address::ADDRESS_AND_PORT,
        false => "use an IP address, such as 127.0.0.1 or ::1",
    })
}

impl CliCommand {
    fn run(self, log_level: Option<LogLevel>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(args) => args.run(log_level),
            Self::Up(args) => args.run(log_level),
            Self::Check(args) => args.run(),
            Self::Explain(args) => args.run(),
            Self::Migrate(args) => args.run(),
            Self::Get(args) => args.run(),
            Self::Status(args) => args.run(),
            Self::Diagnose(args) => args.run(),
            Self::Top(args) => args.run(),
            Self::Tap(args) => args.run(),
            Self::BugReport(args) => args.run(),
            Self::Load(args) => args.run(),
            Self::Token(args) => args.run(),
            Self::Revoke(args) => args.run(),
            Self::Ca(args) => args.run(),
            Self::Proxy(args) => args.run(),
            Self::Gateway(args) => args.run(),
            Self::Control(args) => args.run(),
            Self::Install(args) => args.run(),
            Self::Uninstall(args) => args.run(),
            Self::Inject(args) => args.run(),
            Self::Redirect(args) => args.run(),
            Self::Cni(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Completions(args) => args.run(),
            Self::DemoService(args) => args.run().map(|()| ExitCode::SUCCESS),
            Self::Exec(args) => args.run(),
        }
    }

    fn log_style(&self) -> log::LogStyle {
        match self {
            Self::Control(_) | Self::Gateway(_) | Self::Redirect(_) | Self::Cni(_) => {
                log::LogStyle::Service
            }
            Self::Demo(_) => log::LogStyle::Report,
            Self::Proxy(args) if !args.is_supervised() => log::LogStyle::Service,
            Self::Proxy(_) | Self::Up(_) => log::LogStyle::Supervised,
            _ => log::LogStyle::Tool,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  leno demo                                  run the demo, with its own services
  leno up -f mesh/                           run the mesh defined by the files in mesh/
  leno check -f mesh/                        validate the files first
  leno status                                check the health of the running mesh
  leno top                                   show live request statistics
  leno get workloads                         list the workloads of the mesh
  leno explain -f mesh/ request --from bookinfo/productpage-1 \\
      --url http://ratings.bookinfo:9080/ratings/1

Exit codes: 0 ok, 1 failed, 2 wrong usage; `leno explain` and `leno migrate` also use 3: see their --help.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Checks that each line of prose ends only where the first word of the next line does not fit.
    fn check_lines(command: &clap::Command, width: usize) {
        let help = command.clone().term_width(width).render_help().to_string();
        let (_, text) = help.split_once("Examples:").unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let is_prose = |line: &str| line.starts_with(|character: char| !character.is_whitespace());
        for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| is_prose(line))) {
            let word = pair[1].split(' ').next().unwrap_or_default();
            let length = pair[0].chars().count() + 1 + word.chars().count();
            assert!(length > width, "{}: {pair:?}", command.get_name());
        }
        command.get_subcommands().for_each(|command| check_lines(command, width));
    }

    #[test]
    fn help_text_wraps_only_at_the_width_of_the_terminal() {
        let command = reflow_help(Cli::command());
        for width in [80, 100, 120] {
            check_lines(&command, width);
        }
        let up = command.find_subcommand("up").unwrap().get_after_help().unwrap().to_string();
        assert!(up.contains("After 12 s leno status reports an application"), "{up}");
        assert!(up.starts_with("Examples:\n  leno up -f mesh/\n"), "{up}");
    }

    #[test]
    fn exit_codes_above_two_are_listed_in_the_overview() {
        let overview = Cli::command().get_after_help().unwrap().to_string();
        let (_, codes) = overview.split_once("Exit codes:").unwrap();
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let command_codes =
                help.split_once("Exit codes").map(|(_, codes)| codes).unwrap_or_default();
            let name = format!("`leno {}`", command.get_name());
            assert_eq!(
                command_codes.contains("; 3 ") || command_codes.contains(" 3 "),
                codes.contains(&name),
                "{name}: {command_codes}"
            );
        }
    }

    #[test]
    fn only_limits_have_the_heading_limits_and_timeouts() {
        #[derive(Parser)]
        struct CommandLine {
            #[command(flatten)]
            limits: limits::SidecarLimitArgs,
        }
        let limits = CommandLine::command();
        let limit_ids: Vec<_> = limits.get_arguments().map(clap::Arg::get_id).collect();
        for command in Cli::command().get_subcommands() {
            for option in command.get_arguments() {
                let has_heading = option.get_help_heading() == Some("Limits and timeouts");
                let is_limit =
                    limit_ids.contains(&option.get_id()) || option.get_id() == "drain_timeout";
                let option_name = format!("leno {} --{}", command.get_name(), option.get_id());
                assert!(!has_heading || is_limit || option.is_hide_set(), "{option_name}");
            }
        }
    }

    #[test]
    fn every_visible_command_shows_an_example() {
        for command in Cli::command().get_subcommands() {
            if command.is_hide_set() {
                continue;
            }
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let example = format!("leno {}", command.get_name());
            assert!(help.contains(&example), "{}: {help}", command.get_name());
        }
    }
}
