//! The options of a sidecar that have defaults: addresses, threads, the log, limits and times.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leno_model::{ClientRanges, Upgrades};
use leno_proxy::{ClusterDomain, Config, Interception, LookUps, OnExpiry, Versions};

use super::access_log::AccessLogArgs;
use crate::duration::parse_duration;
use crate::everywhere::has_v6;
use crate::limits::SidecarLimitArgs;

/// Options of `leno proxy` that may be left out.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingArgs {
    /// The address at which other sidecars reach this one; its ports are chosen by the kernel
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    inbound: IpAddr,
    /// The HTTP proxy for the application, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    http_proxy: MaybeAddress,
    /// The address of the workload's own network namespace, whose connections nftables redirects
    /// to this sidecar (ports 15001 outbound, 15003 inbound, 53 for names); needs root
    #[arg(long, value_name = "IP", conflicts_with_all = ["inbound", "http_proxy"])]
    redirected: Option<IpAddr>,
    /// Connections over IPv6 are redirected there too
    #[arg(long, requires = "redirected")]
    redirected_v6: bool,
    /// Nothing of the sidecar's own is redirected, by the user that it runs as, and the cluster answers
    /// names: destinations are recognised by their address. As in a pod, where it needs no rights
    #[arg(long, requires = "redirected")]
    uid_exempt: bool,
    /// The application's look-ups of names are answered for services that the mesh knows, and passed
    /// on by /etc/resolv.conf otherwise; they come by `leno intercept --dns`
    #[arg(long, requires = "uid_exempt")]
    dns: bool,
    /// The domain of the cluster, under which services have names
    /// [default: the one that /etc/resolv.conf searches, else cluster.local]
    #[arg(long, value_name = "DOMAIN", requires = "dns")]
    cluster_domain: Option<ClusterDomain>,
    #[command(flatten)]
    serving: ServingArgs,
}

/// Options that may be left out of every proxy, whatever it stands beside.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServingArgs {
    /// The read-only admin page: /metrics, /ready, /world, /connections
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    admin: SocketAddr,
    /// Clients that get /metrics at --health: `any`, or addresses and ranges with commas between them
    #[arg(long, value_name = "LIST", default_value_t)]
    metrics_from: ClientRanges,
    /// Threads for requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    cores: u16,
    /// Roots, as PEM, that vouch for collectors with https; those of the system otherwise
    #[arg(long, value_name = "FILE")]
    collector_roots: Option<PathBuf>,
    #[command(flatten)]
    access_log: AccessLogArgs,
    /// Protocols that a connection may change to by `Upgrade` or extended CONNECT, such as websocket,tcp; `any`
    /// stands for all but HTTP/2. Policies about requests do not see what follows
    #[arg(long, value_name = "NAMES", default_value_t)]
    upgrades: Upgrades,
    /// What it does when its certificate expires since no control plane renewed it in time
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = ExpiryPolicy::Continue)]
    on_expiry: ExpiryPolicy,
    #[command(flatten)]
    limits: SidecarLimitArgs,
    /// How long requests under way may take to finish after SIGTERM [default: 30s]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_duration,
        help_heading = "Limits of a sidecar"
    )]
    drain_timeout: Option<Duration>,
}

impl SettingArgs {
    /// Puts the options into a configuration.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.interception = match self.redirected {
            Some(address) if self.uid_exempt => Interception::in_pod(address, self.versions()),
            Some(address) => Interception::redirected(address, self.versions()),
            None => Interception::Doors { inbound: self.inbound, http_proxy: self.http_proxy.0 },
        };
        config.look_ups =
            self.dns.then(|| LookUps::in_pod(self.cluster_domain.clone(), self.versions()));
        self.serving.apply(config);
    }

    /// Refuses to start where nobody would answer what the mesh does not know: every such look-up
    /// of the application would fail.
    pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
        let Some(look_ups) = &config.look_ups else { return Ok(()) };
        anyhow::ensure!(
            look_ups.have_resolvers(),
            "--dns: {} has no resolvers, or only those of the pod itself, whose own look-ups are led here: \
             leave out leno.dev/dns (or --dns), or put a resolver there that is not loopback",
            look_ups.resolvers.display()
        );
        Ok(())
    }

    fn versions(&self) -> Versions {
        // `leno intercept` redirects both versions in a pod, whichever of them it has.
        let has_both = self.uid_exempt && has_v6();
        match self.redirected_v6 || has_both {
            true => Versions::Both,
            false => Versions::V4,
        }
    }
}

impl ServingArgs {
    /// Puts the options into a configuration.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.admin = self.admin;
        config.metrics_from.clone_from(&self.metrics_from);
        config.collector_roots.clone_from(&self.collector_roots);
        config.cores = usize::from(self.cores);
        config.upgrades.clone_from(&self.upgrades);
        config.access_log = self.access_log.choice();
        config.on_expiry = match self.on_expiry {
            ExpiryPolicy::Continue => OnExpiry::Continue,
            ExpiryPolicy::Fail => OnExpiry::Fail,
        };
        self.limits.apply(&mut config.limits);
        let drain = self.drain_timeout.unwrap_or(config.limits.drain_timeout);
        config.limits.drain_timeout = drain;
    }
}

/// What a sidecar does when its certificate expires, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExpiryPolicy {
    /// It goes on; peers refuse its new connections
    Continue,
    /// It drains and ends with an error
    Fail,
}

/// An address, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MaybeAddress(Option<SocketAddr>);

impl FromStr for MaybeAddress {
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
    use leno_proxy::LogChoice;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingArgs,
    }

    fn config(words: &[&str]) -> Config {
        let line = Line::try_parse_from([&["proxy"], words].concat()).unwrap();
        let workload = WorkloadName::new("a", "b").unwrap();
        let mut config = Config::sidecar(workload, TrustDomain::new("c").unwrap(), "d".into());
        line.settings.apply(&mut config);
        config
    }

    #[test]
    fn what_is_left_out_is_as_the_proxy_would_have_it() {
        let workload = WorkloadName::new("a", "b").unwrap();
        let default = Config::sidecar(workload, TrustDomain::new("c").unwrap(), "d".into());
        assert_eq!(format!("{:?}", config(&[])), format!("{default:?}"));
    }

    #[test]
    fn help_tells_the_default_of_the_proxy() {
        use clap::CommandFactory as _;
        let help = Line::command().render_long_help().to_string();
        let (_, text) = help.split_once("--drain-timeout").unwrap();
        let (_, text) = text.split_once("[default: ").unwrap();
        let (told, _) = text.split_once(']').unwrap();
        assert_eq!(parse_duration(told), Ok(leno_proxy::Limits::default().drain_timeout));
    }

    #[test]
    fn options_arrive_where_they_belong() {
        let config = config(&[
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
            Interception::Doors { inbound: "192.0.2.7".parse().unwrap(), http_proxy: None }
        );
        assert_eq!(config.admin, "127.0.0.1:15000".parse().unwrap());
        assert_eq!(config.cores, 2);
        assert_eq!(config.metrics_from, "10.0.0.0/8".parse().unwrap());
        assert_eq!(config.upgrades, Upgrades::Listed(vec!["tcp".to_owned()]));
        assert_eq!(config.access_log, LogChoice::Own(Some(AccessLog::json())));
        assert_eq!(config.limits.connections_max, 7);
        assert_eq!(config.limits.drain_timeout, Duration::ZERO);
        let pod = self::config(&["--redirected=10.1.2.3", "--uid-exempt"]);
        let Interception::Redirect { address, inbound, dns: None, mark: None, .. } =
            pod.interception
        else {
            panic!("{:?}", pod.interception)
        };
        assert_eq!((address, inbound), ([10, 1, 2, 3].into(), "0.0.0.0:15003".parse().unwrap()));
        let line =
            ["--redirected=10.1.2.3", "--uid-exempt", "--dns", "--cluster-domain=Corp.Example."];
        let look_ups = self::config(&line).look_ups.unwrap();
        assert_eq!(look_ups.domain.to_string(), "corp.example");
        assert_eq!(look_ups.at[0], "127.0.0.1:15053".parse().unwrap());
        let scratch = tempfile::tempdir().unwrap();
        let mut config = self::config(&line);
        let file = scratch.path().join("resolv.conf");
        config.look_ups.as_mut().unwrap().resolvers.clone_from(&file);
        for (text, is_good) in [
            ("nameserver 10.0.0.1\nnameserver 127.0.0.1\n", true),
            ("nameserver 127.0.0.1\nnameserver ::1\n", false),
            ("search example.com\n", false),
        ] {
            std::fs::write(&file, text).unwrap();
            let refused = SettingArgs::check(&config).map_err(|error| error.to_string());
            assert_eq!(refused.is_ok(), is_good, "{text}: {refused:?}");
            assert!(refused.err().is_none_or(|it| it.contains("leave out leno.dev/dns")));
        }
        assert!(
            Line::try_parse_from([&["proxy", "--cluster-domain=a..b"], &line[..3]].concat())
                .is_err()
        );
        for bad in [
            "--dns",
            "--uid-exempt",
            "--http-proxy=on",
            "--cores=0",
            "--upgrades=h2c",
            "--head-timeout=0s",
        ] {
            assert!(Line::try_parse_from(["proxy", bad]).is_err(), "{bad}");
        }
    }
}
