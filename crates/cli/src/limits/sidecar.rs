//! Limits and timeouts of a sidecar, as options of `leno proxy` and `leno up`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leno_proxy::Limits;

use crate::duration::parse_positive;

/// Limits and timeouts of a sidecar; the defaults are those of the proxy.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sidecar limits")]
pub(crate) struct SidecarLimitArgs {
    /// Maximum connections per thread, and as many to the application [default: 20000]
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Maximum clients per thread in a TLS handshake or before their first request; beyond the limit the oldest
    /// one is closed [default: 1024]
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
    /// Time the first request to a service waits for the control plane [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    discovery_timeout: Option<Duration>,
    /// Time after which an unused service is unsubscribed [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    idle_subscription: Option<Duration>,
    /// Time after which a connection without requests or bytes is closed [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    idle_connection: Option<Duration>,
    /// Time after which a body without progress is aborted, because the sender sends or the reader reads no
    /// bytes [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    body_stall_timeout: Option<Duration>,
}

/// The option, the value and the limit of a connection count or a timeout.
struct GivenLimit<T> {
    option: &'static str,
    value: Option<T>,
    limit: fn(&mut Limits) -> &mut T,
}

impl SidecarLimitArgs {
    /// Applies the options to the limits of a proxy.
    pub(crate) fn apply(&self, limits: &mut Limits) {
        for GivenLimit { value, limit, .. } in self.given_numbers() {
            *limit(limits) = value.unwrap_or(*limit(limits));
        }
        for GivenLimit { value, limit, .. } in self.given_times() {
            *limit(limits) = value.unwrap_or(*limit(limits));
        }
    }

    /// Returns the options as arguments of another `leno proxy`.
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        let numbers = self.given_numbers().into_iter();
        let numbers = numbers.filter_map(|given| Some((given.option, given.value?.to_string())));
        let times = self.given_times().into_iter();
        let times = times.filter_map(|given| Some((given.option, format_seconds(given.value?))));
        numbers.chain(times).map(|(option, value)| format!("{option}={value}").into()).collect()
    }

    fn given_numbers(&self) -> [GivenLimit<usize>; 2] {
        let given = |option, value, limit| GivenLimit { option, value, limit };
        [
            given("--connections-max", self.connections_max, |l| &mut l.connections_max),
            given("--handshakes-max", self.handshakes_max, |l| &mut l.handshakes_max),
        ]
    }

    fn given_times(&self) -> [GivenLimit<Duration>; 8] {
        let given = |option, value, limit| GivenLimit { option, value, limit };
        [
            given("--head-timeout", self.head_timeout, |l| &mut l.head_timeout),
            given("--handshake-timeout", self.handshake_timeout, |l| &mut l.handshake_timeout),
            given("--detect-timeout", self.detect_timeout, |l| &mut l.detect_timeout),
            given("--connect-timeout", self.connect_timeout, |l| &mut l.connect_timeout),
            given("--discovery-timeout", self.discovery_timeout, |l| &mut l.discovery_timeout),
            given("--idle-subscription", self.idle_subscription, |l| &mut l.idle_subscription),
            given("--idle-connection", self.idle_connection, |l| &mut l.idle_connection),
            given("--body-stall-timeout", self.body_stall_timeout, |l| &mut l.body_stall_timeout),
        ]
    }
}

/// Formats a duration as an option value, to the nanosecond.
fn format_seconds(time: Duration) -> String {
    format!("{}.{:09}s", time.as_secs(), time.subsec_nanos())
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

    fn parse_limits(words: &[OsString]) -> Limits {
        let words = [&[OsString::from("proxy")], words].concat();
        let mut limits = Limits::default();
        CommandLine::try_parse_from(words).unwrap().limits.apply(&mut limits);
        limits
    }

    #[test]
    fn help_shows_the_defaults_of_the_proxy() {
        let help = CommandLine::command().render_long_help().to_string();
        let reported = |option: &str| {
            let (_, text) = help.split_once(option).expect(option);
            let (_, text) = text.split_once("[default: ").expect(option);
            text.split_once(']').expect(option).0.to_owned()
        };
        let none = SidecarLimitArgs::default();
        let mut default = Limits::default();
        for GivenLimit { option, limit, .. } in none.given_numbers() {
            assert_eq!(reported(option), limit(&mut default).to_string(), "{option}");
        }
        for GivenLimit { option, limit, .. } in none.given_times() {
            assert_eq!(parse_duration(&reported(option)), Ok(*limit(&mut default)), "{option}");
        }
    }

    #[test]
    fn forwarded_limits_are_parsed_to_the_same_values() {
        assert_eq!(SidecarLimitArgs::default().to_arguments(), [""; 0]);
        let none = SidecarLimitArgs::default();
        let all: Vec<OsString> = none
            .given_numbers()
            .map(|given| format!("{}=7", given.option))
            .into_iter()
            .chain(none.given_times().map(|given| format!("{}=1m1.0005s", given.option)))
            .map(OsString::from)
            .collect();
        let line =
            CommandLine::try_parse_from([&[OsString::from("up")], &all[..]].concat()).unwrap();
        let passed = parse_limits(&line.limits.to_arguments());
        assert_eq!(format!("{passed:?}"), format!("{:?}", parse_limits(&all)));
        let odd = Duration::from_micros(61_000_500);
        assert_eq!((passed.connections_max, passed.body_stall_timeout), (7, odd));
        assert_eq!(format!("{:?}", parse_limits(&[])), format!("{:?}", Limits::default()));
    }
}
