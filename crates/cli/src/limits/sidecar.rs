//! Defines the options of `leno proxy`, `leno gateway` and `leno up` for limits and timeouts of sidecars.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leno_proxy::Limits;

use crate::duration::parse_positive;

/// Limits and timeouts of a sidecar or gateway; the defaults are those of the proxy.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Limits and timeouts")]
pub(crate) struct SidecarLimitArgs {
    /// Maximum accepted connections per worker thread; in a sidecar the same limit applies to its connections to
    /// the application [default: 20000]
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Maximum pending connections per worker thread: in a TLS handshake, or before the first request. Beyond
    /// the limit the oldest one is closed [default: 1024]
    #[arg(long, value_name = "N")]
    handshakes_max: Option<usize>,
    /// Time from the first to the last byte of a request's headers [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    head_timeout: Option<Duration>,
    /// TLS handshake timeout [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    handshake_timeout: Option<Duration>,
    /// Time to wait for the first bytes of a connection, for protocol detection [default: 500ms]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    detect_timeout: Option<Duration>,
    /// Timeout for connecting to an endpoint, including TLS [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    connect_timeout: Option<Duration>,
    /// Time that the first request to a service waits for the configuration of the service from the control
    /// plane; 503 discovery-timeout after that [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    discovery_timeout: Option<Duration>,
    /// Time without requests after which the proxy unsubscribes from the configuration of a service [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    idle_subscription: Option<Duration>,
    /// Time after which a connection without requests or bytes is closed [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    idle_connection: Option<Duration>,
    /// Time after which a body without progress is aborted: the sender sends no bytes, or the reader reads none
    /// [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    body_stall_timeout: Option<Duration>,
}

/// An option for a connection count or a timeout: its name, its value if set, and access to the limit that it
/// sets.
struct LimitOption<T> {
    name: &'static str,
    value: Option<T>,
    limit: fn(&mut Limits) -> &mut T,
}

impl SidecarLimitArgs {
    /// Applies the options to the limits of a proxy.
    pub(crate) fn apply(&self, limits: &mut Limits) {
        for LimitOption { value, limit, .. } in self.count_options() {
            *limit(limits) = value.unwrap_or(*limit(limits));
        }
        for LimitOption { value, limit, .. } in self.timeout_options() {
            *limit(limits) = value.unwrap_or(*limit(limits));
        }
    }

    /// Returns the options as arguments of another `leno proxy`.
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        let counts = self
            .count_options()
            .into_iter()
            .filter_map(|option| Some((option.name, option.value?.to_string())));
        let timeouts = self
            .timeout_options()
            .into_iter()
            .filter_map(|option| Some((option.name, format_seconds(option.value?))));
        counts.chain(timeouts).map(|(option, value)| format!("{option}={value}").into()).collect()
    }

    fn count_options(&self) -> [LimitOption<usize>; 2] {
        let limit_option = |name, value, limit| LimitOption { name, value, limit };
        [
            limit_option("--connections-max", self.connections_max, |limits| {
                &mut limits.max_connections
            }),
            limit_option("--handshakes-max", self.handshakes_max, |limits| {
                &mut limits.max_handshakes
            }),
        ]
    }

    fn timeout_options(&self) -> [LimitOption<Duration>; 8] {
        let limit_option = |name, value, limit| LimitOption { name, value, limit };
        [
            limit_option("--head-timeout", self.head_timeout, |limits| &mut limits.head_timeout),
            limit_option("--handshake-timeout", self.handshake_timeout, |limits| {
                &mut limits.handshake_timeout
            }),
            limit_option("--detect-timeout", self.detect_timeout, |limits| {
                &mut limits.detect_timeout
            }),
            limit_option("--connect-timeout", self.connect_timeout, |limits| {
                &mut limits.connect_timeout
            }),
            limit_option("--discovery-timeout", self.discovery_timeout, |limits| {
                &mut limits.discovery_timeout
            }),
            limit_option("--idle-subscription", self.idle_subscription, |limits| {
                &mut limits.idle_subscription
            }),
            limit_option("--idle-connection", self.idle_connection, |limits| {
                &mut limits.idle_connection
            }),
            limit_option("--body-stall-timeout", self.body_stall_timeout, |limits| {
                &mut limits.body_stall_timeout
            }),
        ]
    }
}

/// Formats a duration as an option value, to the nanosecond.
fn format_seconds(duration: Duration) -> String {
    format!("{}.{:09}s", duration.as_secs(), duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;
    use crate::duration::parse_duration;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        limits: SidecarLimitArgs,
    }

    fn parse_limits(arguments: &[OsString]) -> Limits {
        let arguments = [&[OsString::from("proxy")], arguments].concat();
        let mut limits = Limits::default();
        CommandLine::try_parse_from(arguments).unwrap().limits.apply(&mut limits);
        limits
    }

    #[test]
    fn the_help_shows_the_defaults_of_the_proxy() {
        let help = CommandLine::command().render_long_help().to_string();
        let default_in_help = |option: &str| {
            let (_, text) = help.split_once(option).expect(option);
            let (_, text) = text.split_once("[default: ").expect(option);
            text.split_once(']').expect(option).0.to_owned()
        };
        let unset = SidecarLimitArgs::default();
        let mut default = Limits::default();
        for LimitOption { name: option, limit, .. } in unset.count_options() {
            assert_eq!(default_in_help(option), limit(&mut default).to_string(), "{option}");
        }
        for LimitOption { name: option, limit, .. } in unset.timeout_options() {
            assert_eq!(
                parse_duration(&default_in_help(option)),
                Ok(*limit(&mut default)),
                "{option}"
            );
        }
    }

    #[test]
    fn forwarded_limits_are_parsed_to_the_same_values() {
        assert_eq!(SidecarLimitArgs::default().to_arguments(), [""; 0]);
        let unset = SidecarLimitArgs::default();
        let arguments: Vec<OsString> = unset
            .count_options()
            .map(|option| format!("{}=7", option.name))
            .into_iter()
            .chain(unset.timeout_options().map(|option| format!("{}=1m1.0005s", option.name)))
            .map(OsString::from)
            .collect();
        let command_line =
            CommandLine::try_parse_from([&[OsString::from("up")], &arguments[..]].concat())
                .unwrap();
        let limits = parse_limits(&command_line.limits.to_arguments());
        assert_eq!(format!("{limits:?}"), format!("{:?}", parse_limits(&arguments)));
        let timeout = Duration::from_micros(61_000_500);
        assert_eq!((limits.max_connections, limits.body_stall_timeout), (7, timeout));
        assert_eq!(format!("{:?}", parse_limits(&[])), format!("{:?}", Limits::default()));
    }
}
