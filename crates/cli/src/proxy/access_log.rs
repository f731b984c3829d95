//! Defines the access log options of a sidecar.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use leno_model::{AccessLog, LogFormat, LogTemplate, Sampling};
use leno_proxy::AccessLogSource;

/// The access log on standard output: enabled state, format and sampling.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AccessLogArgs {
    /// Access log on standard output; `mesh`: as in `spec.accessLog` of the MeshConfig
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = AccessLogMode::Mesh)]
    access_log: AccessLogMode,
    /// Line format, such as `{method} {path} {response_code}` (docs/tracing.md); enables the access log [default:
    /// JSON]
    #[arg(long, value_name = "TEXT", value_parser = LogTemplate::parse)]
    access_log_template: Option<LogTemplate>,
    /// Share of successful requests that are logged; failed requests are always logged. Enables the access log
    #[arg(long, value_name = "PERCENT", value_parser = parse_percentage)]
    access_log_sampling: Option<Sampling>,
}

/// The mode of the access log, as an option.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum AccessLogMode {
    /// Use the MeshConfig
    #[default]
    Mesh,
    /// Disable the access log
    Off,
    /// One line of JSON per request
    Json,
}

impl AccessLogMode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Mesh => "mesh",
            Self::Off => "off",
            Self::Json => "json",
        }
    }
}

impl AccessLogArgs {
    /// Returns the source of the access log settings. A template or a sampling share alone enables the log.
    pub(crate) fn source(&self) -> AccessLogSource {
        let (template, sampling) = (&self.access_log_template, self.access_log_sampling);
        let has_overrides = template.is_some() || sampling.is_some();
        match self.access_log {
            AccessLogMode::Off => AccessLogSource::Own(None),
            AccessLogMode::Mesh if !has_overrides => AccessLogSource::Mesh,
            AccessLogMode::Mesh | AccessLogMode::Json => {
                AccessLogSource::Own(Some(AccessLog {
                    sampling: sampling.unwrap_or(Sampling::ALL),
                    errors: true,
                    format: template.clone().map_or(LogFormat::Json, LogFormat::Template),
                    // The log of the command line goes to standard output alone, never to a collector.
                    collector: None,
                }))
            }
        }
    }

    /// Returns the settings as command line options.
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        let template =
            self.access_log_template.as_ref().map(|value| format!("--access-log-template={value}"));
        let sampling =
            self.access_log_sampling.map(|value| format!("--access-log-sampling={value}"));
        let mode = Some(format!("--access-log={}", self.access_log.as_str()));
        [mode, template, sampling].into_iter().flatten().map(OsString::from).collect()
    }
}

fn parse_percentage(text: &str) -> Result<Sampling, String> {
    let hint = "use one from 0% to 100% with at most four decimals, such as 1%";
    Sampling::parse(text).ok_or_else(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        log: AccessLogArgs,
    }

    #[test]
    fn a_supervised_sidecar_gets_the_same_options() {
        for arguments in [
            &[][..],
            &["--access-log=off"],
            &["--access-log=json"],
            &["--access-log-sampling=0.5%"],
            &["--access-log-template={method} {path}", "--access-log-sampling=10%"],
        ] {
            let command_line =
                CommandLine::try_parse_from([&["proxy"], arguments].concat()).unwrap();
            let options = command_line.log.to_arguments();
            let forwarded = std::iter::once("proxy".into()).chain(options);
            let forwarded = CommandLine::try_parse_from(forwarded).unwrap();
            assert_eq!(forwarded.log.source(), command_line.log.source(), "{arguments:?}");
        }
        for invalid in ["--access-log-sampling=2", "--access-log-template={x}", "--access-log=on"] {
            assert!(CommandLine::try_parse_from(["proxy", invalid]).is_err(), "{invalid}");
        }
    }
}
