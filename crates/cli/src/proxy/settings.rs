//! Defines the optional settings of sidecars and gateways: addresses, threads, access log, limits and timeouts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leno_model::{ClientRanges, Upgrades};
use leno_proxy::{ClusterDomain, Config, DnsProxy, Interception, IpVersions, OnExpiry};

use super::access_log::AccessLogArgs;
use crate::duration::parse_duration;
use crate::limits::SidecarLimitArgs;
use crate::wildcard_address::has_ipv6;

/// Optional settings of `leno proxy`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingArgs {
    /// Address for connections from other sidecars; the kernel chooses the ports
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    inbound: IpAddr,
    /// Address of the HTTP proxy for the application, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    http_proxy: OptionalAddress,
    /// IP address of the workload's network namespace, such as the address of the pod. nftables rules there redirect
    /// connections to this sidecar (ports 15001 outbound, 15003 inbound, 53 DNS); requires root without
    /// --uid-exempt
    #[arg(long, value_name = "IP", conflicts_with_all = ["inbound", "http_proxy"])]
    redirect_address: Option<IpAddr>,
    /// Redirect IPv6 connections as well
    #[arg(long, requires = "redirect_address")]
    redirect_ipv6: bool,
    /// For pods, in which the rules of `leno redirect` exempt the sidecar by its user ID: the sidecar needs no
    /// root, matches destinations by address, and answers DNS queries only with --dns
    #[arg(long, requires = "redirect_address")]
    uid_exempt: bool,
    /// Answer the application's DNS queries for services of the mesh, and forward all others to the resolvers
    /// in /etc/resolv.conf; `leno redirect --dns` redirects the queries
    #[arg(long, requires = "uid_exempt")]
    dns: bool,
    /// Cluster domain of service names [default: from the search list of /etc/resolv.conf, else cluster.local]
    #[arg(long, value_name = "DOMAIN", requires = "dns")]
    cluster_domain: Option<ClusterDomain>,
    #[command(flatten)]
    serving: ServingArgs,
}

/// Optional settings of sidecars and gateways.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServingArgs {
    /// Address of the read-only admin endpoint: /metrics, /ready, /config, /connections, /requests
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    admin: SocketAddr,
    /// Clients allowed to read /metrics at --health: `any`, or a comma-separated list of addresses and ranges
    #[arg(long, value_name = "LIST", default_value_t)]
    metrics_from: ClientRanges,
    /// Number of worker threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    cores: u16,
    /// CA certificates (PEM) used to verify https collectors [default: the system's roots]
    #[arg(long, value_name = "FILE")]
    collector_ca: Option<PathBuf>,
    #[command(flatten)]
    access_log: AccessLogArgs,
    /// Comma-separated protocols allowed for `Upgrade` and extended CONNECT, such as websocket,tcp; `any`: all
    /// except HTTP/2. Request policies do not apply to the upgraded stream
    #[arg(long, value_name = "NAMES", default_value_t)]
    upgrades: Upgrades,
    /// Behavior when the certificate expires because no control plane renewed it
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = ExpiryPolicy::Continue)]
    on_expiry: ExpiryPolicy,
    #[command(flatten)]
    limits: SidecarLimitArgs,
    /// Time for requests in progress to finish after SIGTERM [default: 30s]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_duration,
        help_heading = "Limits and timeouts"
    )]
    drain_timeout: Option<Duration>,
}

impl SettingArgs {
    /// Applies the options to a configuration.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.interception = match self.redirect_address {
            Some(address) if self.uid_exempt => Interception::in_pod(address, self.ip_versions()),
            Some(address) => Interception::redirect_to(address, self.ip_versions()),
            None => {
                Interception::Listeners { inbound: self.inbound, http_proxy: self.http_proxy.0 }
            }
        };
        config.dns_proxy =
            self.dns.then(|| DnsProxy::in_pod(self.cluster_domain.clone(), self.ip_versions()));
        self.serving.apply(config);
    }

    /// Rejects a configuration without an upstream DNS resolver: every query for a name outside the mesh would
    /// fail.
    pub(crate) fn check_resolver(config: &Config) -> anyhow::Result<()> {
        let Some(dns_proxy) = &config.dns_proxy else { return Ok(()) };
        anyhow::ensure!(
            dns_proxy.has_resolvers(),
            "--dns: {} has no resolvers, or only loopback ones, whose queries are redirected back \
             to the sidecar: omit leno.dev/dns (or --dns), or add a resolver there that is not \
             loopback",
            dns_proxy.resolvers.display()
        );
        Ok(())
    }

    fn ip_versions(&self) -> IpVersions {
        // `leno redirect` redirects both IP versions in a pod, whichever of them it has.
        let has_both = self.uid_exempt && has_ipv6();
        match self.redirect_ipv6 || has_both {
            true => IpVersions::Both,
            false => IpVersions::V4,
        }
    }
}

impl ServingArgs {
    /// Applies the options to a configuration.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.admin = self.admin;
        config.metrics_from.clone_from(&self.metrics_from);
        config.collector_ca.clone_from(&self.collector_ca);
        config.cores = usize::from(self.cores);
        config.upgrades.clone_from(&self.upgrades);
        config.access_log = self.access_log.source();
        config.on_expiry = match self.on_expiry {
            ExpiryPolicy::Continue => OnExpiry::Continue,
            ExpiryPolicy::Fail => OnExpiry::Fail,
        };
        self.limits.apply(&mut config.limits);
        let drain_timeout = self.drain_timeout.unwrap_or(config.limits.drain_timeout);
        config.limits.drain_timeout = drain_timeout;
    }
}

/// The behavior of a sidecar on certificate expiry, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExpiryPolicy {
    /// Keep serving; peers reject new connections
    Continue,
    /// Drain and exit with an error
    Fail,
}

/// An address, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OptionalAddress(Option<SocketAddr>);

impl FromStr for OptionalAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self(None)),
            text => text.parse().map(|address| Self(Some(address))).map_err(|_| {
                "use an address and port such as 127.0.0.1:15080, or `off`".to_owned()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use leno_model::{AccessLog, TrustDomain, WorkloadName};
    use leno_proxy::AccessLogSource;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        settings: SettingArgs,
    }

    fn parse_config(arguments: &[&str]) -> Config {
        let command_line = CommandLine::try_parse_from([&["proxy"], arguments].concat()).unwrap();
        let workload = WorkloadName::new("a", "b").unwrap();
        let mut config = Config::for_sidecar(workload, TrustDomain::new("c").unwrap(), "d".into());
        command_line.settings.apply(&mut config);
        config
    }

    #[test]
    fn omitted_settings_have_the_defaults_of_the_proxy() {
        let workload = WorkloadName::new("a", "b").unwrap();
        let default_config =
            Config::for_sidecar(workload, TrustDomain::new("c").unwrap(), "d".into());
        assert_eq!(format!("{:?}", parse_config(&[])), format!("{default_config:?}"));
    }

    #[test]
    fn the_help_shows_the_default_drain_timeout() {
        use clap::CommandFactory as _;
        let help = CommandLine::command().render_long_help().to_string();
        let (_, text) = help.split_once("--drain-timeout").unwrap();
        let (_, text) = text.split_once("[default: ").unwrap();
        let (default_in_help, _) = text.split_once(']').unwrap();
        assert_eq!(
            parse_duration(default_in_help),
            Ok(leno_proxy::Limits::default().drain_timeout)
        );
    }

    #[test]
    fn options_set_the_matching_settings() {
        let config = parse_config(&[
            "--inbound=192.0.2.7",
            "--http-proxy=off",
            "--admin=127.0.0.1:15000",
            "--cores=2",
            "--access-log=json",
            "--upgrades=tcp",
            "--metrics-from=10.0.0.0/8",
            "--connections-max=7",
            "--drain-timeout=0s",
        ]);
        assert_eq!(
            config.interception,
            Interception::Listeners { inbound: "192.0.2.7".parse().unwrap(), http_proxy: None }
        );
        assert_eq!(config.admin, "127.0.0.1:15000".parse().unwrap());
        assert_eq!(config.cores, 2);
        assert_eq!(config.metrics_from, "10.0.0.0/8".parse().unwrap());
        assert_eq!(config.upgrades, Upgrades::Listed(vec!["tcp".to_owned()]));
        assert_eq!(config.access_log, AccessLogSource::Own(Some(AccessLog::json())));
        assert_eq!(config.limits.max_connections, 7);
        assert_eq!(config.limits.drain_timeout, Duration::ZERO);
        let pod_config = parse_config(&["--redirect-address=10.1.2.3", "--uid-exempt"]);
        let Interception::Redirect { address, inbound, dns: None, mark: None, .. } =
            pod_config.interception
        else {
            panic!("{:?}", pod_config.interception)
        };
        assert_eq!((address, inbound), ([10, 1, 2, 3].into(), "0.0.0.0:15003".parse().unwrap()));
        let command_line = [
            "--redirect-address=10.1.2.3",
            "--uid-exempt",
            "--dns",
            "--cluster-domain=Corp.Example.",
        ];
        let dns_proxy = parse_config(&command_line).dns_proxy.unwrap();
        assert_eq!(dns_proxy.domain.to_string(), "corp.example");
        assert_eq!(dns_proxy.listen_addresses[0], "127.0.0.1:15053".parse().unwrap());
        let scratch = tempfile::tempdir().unwrap();
        let mut config = parse_config(&command_line);
        let file = scratch.path().join("resolv.conf");
        config.dns_proxy.as_mut().unwrap().resolvers.clone_from(&file);
        for (text, is_valid) in [
            ("nameserver 10.0.0.1\nnameserver 127.0.0.1\n", true),
            ("nameserver 127.0.0.1\nnameserver ::1\n", false),
            ("search example.com\n", false),
        ] {
            std::fs::write(&file, text).unwrap();
            let result = SettingArgs::check_resolver(&config).map_err(|error| error.to_string());
            assert_eq!(result.is_ok(), is_valid, "{text}: {result:?}");
            assert!(result.err().is_none_or(|error| error.contains("omit leno.dev/dns")));
        }
        assert!(
            CommandLine::try_parse_from(
                [&["proxy", "--cluster-domain=a..b"], &command_line[..3]].concat()
            )
            .is_err()
        );
        for invalid in [
            "--dns",
            "--uid-exempt",
            "--http-proxy=on",
            "--cores=0",
            "--upgrades=h2c",
            "--head-timeout=0s",
        ] {
            assert!(CommandLine::try_parse_from(["proxy", invalid]).is_err(), "{invalid}");
        }
    }
}
