//! `leno redirect`: redirects the traffic of a network namespace to the sidecar in it, with nftables rules.

mod nftables;
mod rules;
mod verify;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Parser};
use leno_kubernetes::inject::is_interface;
use leno_kubernetes::well_known::{HEALTH_PORT, PROXY_UID};
use leno_proxy::{DNS_PROXY_PORT, INBOUND_PORT, OUTBOUND_PORT};

use crate::cidr_range::CidrRange;
use rules::{NetfilterHook, NftChain, NftMatch, NftRule, NftVerdict};

/// Arguments of `leno redirect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RedirectArgs {
    /// User ID of the sidecar; its own connections are not redirected
    #[arg(long, value_name = "UID", default_value_t = PROXY_UID, value_parser = clap::value_parser!(u32).range(1..))]
    uid: u32,
    /// Destination ports excluded from outbound redirection
    #[arg(long, value_name = "PORT,…", value_delimiter = ',', value_parser = port_parser())]
    exclude_outbound_ports: Vec<u16>,
    /// Destination ranges excluded from outbound redirection, such as 192.0.2.0/24
    #[arg(long, value_name = "RANGE,…", value_delimiter = ',')]
    exclude_outbound_ranges: Vec<CidrRange>,
    /// The only destination ranges redirected to the sidecar [default: all]
    #[arg(long, value_name = "RANGE,…", value_delimiter = ',')]
    include_outbound_ranges: Vec<CidrRange>,
    /// Application ports excluded from inbound redirection, reachable without mutual TLS
    #[arg(long, value_name = "PORT,…", value_delimiter = ',', value_parser = port_parser())]
    exclude_inbound_ports: Vec<u16>,
    /// Redirect the application's DNS queries (port 53, UDP and TCP) to the sidecar, which must run with --dns
    /// as well; excluded ranges do not apply
    #[arg(long)]
    dns: bool,
    /// Network interfaces excluded from redirection
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_interface)]
    exclude_interfaces: Vec<String>,
    /// Print the rules in `nft -f` syntax without applying them
    #[arg(long)]
    dry_run: bool,
    /// Verify that rules exist, without setting any; run as a user other than the sidecar's, before the sidecar
    /// starts
    #[arg(long, conflicts_with = "dry_run")]
    verify: bool,
}

/// The command line of the options, without the other commands of `leno`.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    redirect: RedirectArgs,
}

impl RedirectArgs {
    /// Replaces, prints or verifies the rules of this network namespace, according to the options.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        self.check_options()?;
        if self.verify {
            verify::verify_redirection()?;
        } else if self.dry_run {
            print!("{}", rules::to_text(&self.build_chains()));
        } else {
            self.replace_rules()?;
            tracing::info!(
                outbound = OUTBOUND_PORT,
                inbound = INBOUND_PORT,
                uid = self.uid,
                "connections are redirected to the sidecar"
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Parses options from a list of arguments.
    ///
    /// # Errors
    /// If the arguments are not valid options of this command.
    pub(crate) fn from_options(arguments: &[String]) -> anyhow::Result<Self> {
        let arguments = std::iter::once("redirect").chain(arguments.iter().map(String::as_str));
        let command_line = CommandLine::try_parse_from(arguments);
        let redirect = command_line.context("invalid options of `leno redirect`")?.redirect;
        redirect.check_options()?;
        Ok(redirect)
    }

    /// Rejects contradictory options.
    fn check_options(&self) -> anyhow::Result<()> {
        if self.dns && self.exclude_outbound_ports.contains(&DNS_PORT) {
            bail!(
                "--dns redirects port 53 to the sidecar, and --exclude-outbound-ports excludes it: remove one of them"
            );
        }
        Ok(())
    }

    /// Replaces the rules of the current thread's network namespace atomically.
    ///
    /// # Errors
    /// If the kernel rejects the rules; the previous rules stay active.
    pub(crate) fn replace_rules(&self) -> anyhow::Result<()> {
        nftables::replace_table(&self.build_chains()).context("the connections are not redirected")
    }

    fn build_chains(&self) -> [NftChain; 2] {
        [self.build_outbound_chain(), self.build_inbound_chain()]
    }

    /// Builds the chain that redirects outbound TCP connections to the sidecar, except the sidecar's own, those
    /// within the namespace, and exclusions. The probe connection of `--verify` takes precedence.
    fn build_outbound_chain(&self) -> NftChain {
        let mut rules = vec![build_return_rule(NftMatch::Uid(self.uid))];
        rules.extend(verify::UNUSED_ADDRESSES.map(|address| NftRule {
            matches: vec![
                NftMatch::DestinationRange(CidrRange::from_address(address)),
                NftMatch::TcpPort(verify::DISCARD_PORT),
            ],
            verdict: NftVerdict::Redirect(OUTBOUND_PORT),
        }));
        rules.push(build_return_rule(NftMatch::OutputInterface(LOOPBACK.to_owned())));
        rules.extend(
            self.exclude_interfaces
                .iter()
                .cloned()
                .map(NftMatch::OutputInterface)
                .map(build_return_rule),
        );
        // Before the excluded ports and ranges, which do not apply to DNS.
        if self.dns {
            rules.extend([NftMatch::UdpPort(DNS_PORT), NftMatch::TcpPort(DNS_PORT)].map(
                |nft_match| NftRule {
                    matches: vec![nft_match],
                    verdict: NftVerdict::Redirect(DNS_PROXY_PORT),
                },
            ));
        }
        rules.extend(
            self.exclude_outbound_ports
                .iter()
                .copied()
                .map(NftMatch::TcpPort)
                .map(build_return_rule),
        );
        rules.extend(
            self.exclude_outbound_ranges
                .iter()
                .copied()
                .map(NftMatch::DestinationRange)
                .map(build_return_rule),
        );
        let redirect = |destination: Option<NftMatch>| NftRule {
            matches: destination.into_iter().chain([NftMatch::Tcp]).collect(),
            verdict: NftVerdict::Redirect(OUTBOUND_PORT),
        };
        match self.include_outbound_ranges.as_slice() {
            [] => rules.push(redirect(None)),
            ranges => rules.extend(
                ranges.iter().map(|range| redirect(Some(NftMatch::DestinationRange(*range)))),
            ),
        }
        NftChain { hook: NetfilterHook::Output, rules }
    }

    /// Builds the chain that redirects inbound TCP connections to the sidecar, except those from inside the
    /// namespace, those to the sidecar's health listener, and exclusions.
    fn build_inbound_chain(&self) -> NftChain {
        let mut rules = vec![build_return_rule(NftMatch::InputInterface(LOOPBACK.to_owned()))];
        rules.extend(
            self.exclude_interfaces
                .iter()
                .cloned()
                .map(NftMatch::InputInterface)
                .map(build_return_rule),
        );
        let ports = std::iter::once(HEALTH_PORT).chain(self.exclude_inbound_ports.iter().copied());
        rules.extend(ports.map(NftMatch::TcpPort).map(build_return_rule));
        let verdict = NftVerdict::Redirect(INBOUND_PORT);
        rules.push(NftRule { matches: vec![NftMatch::Tcp], verdict });
        NftChain { hook: NetfilterHook::Prerouting, rules }
    }
}

fn build_return_rule(nft_match: NftMatch) -> NftRule {
    NftRule { matches: vec![nft_match], verdict: NftVerdict::Return }
}

fn port_parser() -> impl clap::builder::TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..)
}

/// Parses an interface name that the kernel accepts (`dev_valid_name`).
fn parse_interface(text: &str) -> Result<String, String> {
    match is_interface(text) {
        true => Ok(text.to_owned()),
        false => Err("is not the name of a network interface; use one such as eth1".to_owned()),
    }
}

/// The name of the loopback interface.
const LOOPBACK: &str = "lo";
/// The DNS port (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;

const EXAMPLES: &str = "\
Examples:
  leno redirect                                           run in a pod, before its sidecar starts
  leno redirect --exclude-outbound-ports 25,5432          bypass the mesh for mail and the database
  leno redirect --exclude-outbound-ranges 10.0.0.0/8,fd00::/8
  leno redirect --dns                                     resolve service names without cluster DNS
  leno redirect --dry-run                                 print the rules
  leno redirect --verify                                  check that the CNI plugin has set the rules

Requires NET_ADMIN in the network namespace. The rules stay in the kernel after the command exits;
running it again replaces them.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_args(arguments: &[&str]) -> Result<RedirectArgs, clap::Error> {
        let arguments = std::iter::once("redirect").chain(arguments.iter().copied());
        CommandLine::try_parse_from(arguments).map(|parsed| parsed.redirect)
    }

    #[test]
    fn exclusions_precede_the_redirection() {
        let args = parse_args(&[
            "--exclude-outbound-ports=25,5432",
            "--exclude-outbound-ranges=192.0.2.0/24,2001:db8::/32",
            "--exclude-inbound-ports=9000",
            "--exclude-interfaces=eth1",
            "--dns",
        ]);
        expect_test::expect![[r#"
            add table inet leno
            delete table inet leno
            table inet leno {
              chain output {
                type nat hook output priority -100; policy accept;
                meta skuid 1500 return
                ip daddr 192.0.2.1/32 tcp dport 9 redirect to :15001
                ip6 daddr 2001:db8::1/128 tcp dport 9 redirect to :15001
                oifname "lo" return
                oifname "eth1" return
                udp dport 53 redirect to :15053
                tcp dport 53 redirect to :15053
                tcp dport 25 return
                tcp dport 5432 return
                ip daddr 192.0.2.0/24 return
                ip6 daddr 2001:db8::/32 return
                meta l4proto tcp redirect to :15001
              }
              chain prerouting {
                type nat hook prerouting priority -100; policy accept;
                iifname "lo" return
                iifname "eth1" return
                tcp dport 15020 return
                tcp dport 9000 return
                meta l4proto tcp redirect to :15003
              }
            }
        "#]]
        .assert_eq(&rules::to_text(&args.unwrap().build_chains()));
    }

    #[test]
    fn only_included_ranges_are_redirected_if_any_are_set() {
        let args = parse_args(&["--include-outbound-ranges=10.0.0.0/8,fd00::/8"]).unwrap();
        let text = rules::to_text(&args.build_chains());
        assert!(text.contains("ip daddr 10.0.0.0/8 meta l4proto tcp redirect to :15001\n"));
        assert!(text.contains("ip6 daddr fd00::/8 meta l4proto tcp redirect to :15001\n"));
        assert!(!text.contains("    meta l4proto tcp redirect to :15001\n"), "{text}");
    }

    #[test]
    fn dns_queries_are_redirected_on_request_only() {
        let text = rules::to_text(&parse_args(&[]).unwrap().build_chains());
        assert!(!text.contains("dport 53"), "{text}");
        let options = ["--dns".to_owned(), "--exclude-outbound-ports=25,53".to_owned()];
        let error = RedirectArgs::from_options(&options).unwrap_err().to_string();
        assert!(error.contains("remove one"), "{error}");
        assert!(RedirectArgs::from_options(&options[..1]).is_ok());
    }

    #[test]
    fn contradictory_options_are_rejected() {
        for invalid in [
            "--uid=0",
            "--exclude-outbound-ports=0",
            "--exclude-inbound-ports=65536",
            "--exclude-outbound-ranges=10.0.0.0/33",
            "--exclude-interfaces=e/1",
            "--exclude-interfaces=\"",
            "--exclude-interfaces=sixteen-letters-",
        ] {
            assert!(parse_args(&[invalid]).is_err(), "{invalid}");
        }
    }
}
