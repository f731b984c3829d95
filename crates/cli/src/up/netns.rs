//! `leno up --netns`: creates one network namespace per workload, and redirects its traffic to the sidecar with
//! nftables.

mod leftovers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use clap::Args;
use leno_model::WorkloadName;
use leno_proxy::{FIREWALL_MARK, INBOUND_PORT, OUTBOUND_PORT};

pub(super) use leftovers::remove_leftovers;

use super::placement::Placement;
use crate::cidr_range::CidrRange;

/// Options of `leno up --netns`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Network namespaces")]
pub(crate) struct NetnsOptions {
    /// Private /16 network for workload addresses
    #[arg(long, value_name = "NETWORK", default_value = "10.213.0.0/16", requires = "netns")]
    netns_subnet: Subnet,
    /// Destination ports excluded from outbound redirection
    #[arg(long, value_name = "PORT,…", value_delimiter = ',', requires = "netns")]
    exclude_outbound_ports: Vec<u16>,
    /// Destination ranges excluded from outbound redirection, such as 192.0.2.0/24
    #[arg(long, value_name = "RANGE,…", value_delimiter = ',', requires = "netns")]
    exclude_outbound_ranges: Vec<CidrRange>,
    /// Application ports excluded from inbound redirection, reachable without mutual TLS
    #[arg(long, value_name = "PORT,…", value_delimiter = ',', requires = "netns")]
    exclude_inbound_ports: Vec<u16>,
}

/// The network namespaces of one `leno up`, and the bridge device that connects them. Removed on drop.
#[derive(Debug)]
pub(super) struct WorkloadNamespaces {
    options: NetnsOptions,
    bridge: String,
    /// The lock that marks the bridge as in use, released after the removal of the bridge.
    _bridge_lock: leftovers::BridgeLock,
    namespaces: BTreeMap<WorkloadName, WorkloadNamespace>,
}

#[derive(Debug)]
struct WorkloadNamespace {
    /// The name for `ip netns`.
    name: String,
    /// The last two bytes of the workload's address.
    host_number: u16,
}

/// The first two bytes of the /16 network of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet([u8; 2]);

/// A route in the JSON output of iproute2; `dev` is `None` for a route without a device, such as `unreachable`.
#[derive(Debug, serde::Deserialize)]
struct IpRoute {
    dst: String,
    dev: Option<String>,
}

impl WorkloadNamespaces {
    /// Creates the bridge, after removing the leftovers of killed meshes.
    pub(super) fn create(options: NetnsOptions) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("--netns requires root: use sudo, or omit --netns to use outbound listeners");
        }
        let bridge = format!("leno{}", std::process::id());
        let lock = leftovers::BridgeLock::new(&bridge)?;
        for removed_name in leftovers::remove_unused(Some(&bridge))? {
            tracing::info!(object = %removed_name, "removed a leftover of a killed mesh");
        }
        options.netns_subnet.reject_if_in_use()?;
        let namespaces = Self { options, bridge, namespaces: BTreeMap::new(), _bridge_lock: lock };
        let bridge = namespaces.bridge.as_str();
        run_ip(&["link", "add", bridge, "type", "bridge"])?;
        run_ip(&["address", "add", &format!("{}/16", namespaces.gateway()), "dev", bridge])?;
        run_ip(&["link", "set", bridge, "up"])?;
        Ok(namespaces)
    }

    /// Returns the address under which every namespace reaches the control plane and the host.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        self.options.netns_subnet.gateway()
    }

    /// Returns the placement of a workload, and creates, connects and redirects its namespace on the first
    /// call.
    pub(super) fn place_workload(&mut self, workload: &WorkloadName) -> anyhow::Result<Placement> {
        if !self.namespaces.contains_key(workload) {
            let host_number =
                self.find_free_host().context("all addresses of the subnet are in use")?;
            let name = format!("{}-{host_number}", self.bridge);
            self.namespaces.insert(workload.clone(), WorkloadNamespace { name, host_number });
            if let Err(error) = self.build_namespace(workload) {
                self.release_workload(workload);
                return Err(error.context(format!("the namespace of {workload}")));
            }
        }
        let namespace = &self.namespaces[workload];
        Ok(build_placement(
            namespace,
            self.options.netns_subnet.host_address(namespace.host_number),
        ))
    }

    /// Returns the name of a workload's namespace, for `ip netns`.
    pub(super) fn namespace_name(&self, workload: &WorkloadName) -> Option<String> {
        self.namespaces.get(workload).map(|namespace| namespace.name.clone())
    }

    /// Removes a workload's namespace, after its processes have exited.
    pub(super) fn release_workload(&mut self, workload: &WorkloadName) {
        if let Some(namespace) = self.namespaces.remove(workload) {
            remove_namespace(&namespace.name);
        }
    }

    /// Creates a workload's network namespace with a veth pair to the bridge, addresses, routes, redirection
    /// rules and a `resolv.conf`.
    fn build_namespace(&self, workload: &WorkloadName) -> anyhow::Result<()> {
        let WorkloadNamespace { name, host_number } = &self.namespaces[workload];
        let own_address = self.options.netns_subnet.host_address(*host_number);
        let interface_address = format!("{own_address}/16");
        let gateway = self.gateway().to_string();
        let host_device = host_interface(name);
        run_ip(&["netns", "add", name])?;
        run_ip(&[
            "link",
            "add",
            &host_device,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            name,
        ])?;
        run_ip(&["link", "set", &host_device, "master", &self.bridge, "up"])?;
        run_ip(&["-n", name, "link", "set", "lo", "up"])?;
        run_ip(&["-n", name, "address", "add", &interface_address, "dev", "eth0"])?;
        run_ip(&["-n", name, "link", "set", "eth0", "up"])?;
        run_ip(&["-n", name, "route", "add", "default", "via", &gateway])?;
        if has_ipv6() {
            // The kernel selects a source address and a route for a connection before nftables redirects it. No
            // packet leaves by this route.
            let ipv6_address = format!("{NETWORK_V6}{host_number:x}/128");
            run_ip(&["-n", name, "-6", "address", "add", &ipv6_address, "dev", "eth0", "nodad"])?;
            run_ip(&["-n", name, "-6", "route", "add", "default", "dev", "eth0"])?;
        }
        let rules = render_redirection_rules(self.gateway(), own_address, &self.options);
        run_with_input("ip", &["netns", "exec", name, "nft", "-f", "-"], &rules)?;
        let etc_path = etc_directory(name);
        std::fs::create_dir_all(&etc_path).with_context(|| etc_path.display().to_string())?;
        let mesh_namespace = &workload.namespace;
        let resolv_conf = format!(
            "nameserver 127.0.0.1\n\
             search {mesh_namespace}.svc.cluster.local svc.cluster.local cluster.local\n"
        );
        std::fs::write(etc_path.join("resolv.conf"), resolv_conf)
            .with_context(|| format!("{}/resolv.conf", etc_path.display()))
    }

    /// Returns the lowest free host number; `None` if all are in use.
    fn find_free_host(&self) -> Option<u16> {
        let used_hosts: Vec<u16> =
            self.namespaces.values().map(|namespace| namespace.host_number).collect();
        (FIRST_HOST..=LAST_HOST).find(|host| !used_hosts.contains(host))
    }
}

impl Drop for WorkloadNamespaces {
    fn drop(&mut self) {
        for namespace in self.namespaces.values() {
            remove_namespace(&namespace.name);
        }
        run_ip_for_cleanup(&["link", "del", &self.bridge]);
    }
}

impl Subnet {
    /// Returns the address of the bridge, which has host number 1.
    fn gateway(self) -> Ipv4Addr {
        self.host_address(1)
    }

    /// Returns the address with this host number: the last two bytes of the address.
    fn host_address(self, host: u16) -> Ipv4Addr {
        let [third, fourth] = host.to_be_bytes();
        Ipv4Addr::new(self.0[0], self.0[1], third, fourth)
    }

    /// Returns an error if this machine already routes a part of the network. A wider route is no conflict: the
    /// more specific route wins.
    fn reject_if_in_use(self) -> anyhow::Result<()> {
        let Some(IpRoute { dst, dev }) = self.read_routes()?.into_iter().next() else {
            return Ok(());
        };
        let describe_device = |device: String| match leftovers::creator_pid(&device) {
            Some(creator) => {
                format!(
                    " through {device}, the bridge of another `leno up --netns` (process {creator})"
                )
            }
            None => format!(" through {device}"),
        };
        let device_text = dev.map(describe_device).unwrap_or_default();
        bail!(
            "{self} is in use: this machine already routes {dst}{device_text}; choose another /16 with --netns-subnet"
        );
    }

    /// Returns the routes to the network and its parts, from all routing tables.
    fn read_routes(self) -> anyhow::Result<Vec<IpRoute>> {
        let network = self.to_string();
        let output = run_ip(&["-json", "-4", "route", "show", "table", "all", "root", &network])?;
        // Without a route the output is empty, or an empty list.
        if output.trim_ascii().is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&output).context("cannot parse the output of `ip -json route show`")
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/16", self.host_address(0))
    }
}

/// Parses `10.213.0.0/16`.
impl std::str::FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a /16 network; use one such as 10.213.0.0/16");
        let address: Ipv4Addr = text
            .strip_suffix("/16")
            .and_then(|address| address.parse().ok())
            .ok_or_else(invalid)?;
        match address.octets() {
            [first, second, 0, 0] if address.is_private() => Ok(Self([first, second])),
            _ => Err(invalid()),
        }
    }
}

fn build_placement(namespace: &WorkloadNamespace, address: Ipv4Addr) -> Placement {
    let wrapper = ["ip", "netns", "exec", &namespace.name];
    let options = [
        "--redirect-address".to_owned(),
        address.to_string(),
        "--admin".to_owned(),
        format!("{address}:{ADMIN_PORT}"),
    ];
    let ipv6_option = has_ipv6().then(|| OsString::from("--redirect-ipv6"));
    Placement {
        wrapper: wrapper.map(OsString::from).to_vec(),
        sidecar_options: options.map(OsString::from).into_iter().chain(ipv6_option).collect(),
    }
}

/// True if the kernel supports IPv6 and enables it in new namespaces.
fn has_ipv6() -> bool {
    let read_result = std::fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    read_result.is_ok_and(|disable_ipv6| disable_ipv6.trim() == "0")
}

/// Renders the nftables rules. Outbound TCP connections are redirected to the sidecar, except the sidecar's
/// own, which carry a mark. Inbound connections from other namespaces and from the host are redirected as well.
/// All other IPv6 traffic of the interface is dropped, so that it cannot bypass the sidecar.
fn render_redirection_rules(
    gateway: Ipv4Addr,
    own_address: Ipv4Addr,
    options: &NetnsOptions,
) -> String {
    let return_rule = |match_text: &str, elements: Vec<String>| match elements.is_empty() {
        true => String::new(),
        false => format!("    {match_text} {{ {} }} return\n", elements.join(", ")),
    };
    let to_texts = |ports: &[u16]| ports.iter().map(u16::to_string).collect();
    let outbound_ports = return_rule("tcp dport", to_texts(&options.exclude_outbound_ports));
    let range_rule = |family: &str| {
        let ranges = options.exclude_outbound_ranges.iter();
        let matching_ranges =
            ranges.filter(|range| range.nft_family() == family).map(ToString::to_string);
        return_rule(&format!("{family} daddr"), matching_ranges.collect())
    };
    let (outbound_ranges, outbound_ranges_v6) = (range_rule("ip"), range_rule("ip6"));
    let inbound_ports = return_rule("tcp dport", to_texts(&options.exclude_inbound_ports));
    format!(
        "table ip leno {{\n\
         \x20 chain output {{\n    type nat hook output priority -100; policy accept;\n\
         \x20   meta mark {FIREWALL_MARK} return\n    ip daddr {{ 127.0.0.0/8, {own_address} }} return\n\
         {outbound_ports}{outbound_ranges}\
         \x20   meta l4proto tcp redirect to :{OUTBOUND_PORT}\n  }}\n\
         \x20 chain prerouting {{\n    type nat hook prerouting priority -100; policy accept;\n\
         \x20   iifname \"lo\" return\n\
         \x20   ip saddr {gateway} tcp dport {ADMIN_PORT} return\n{inbound_ports}\
         \x20   meta l4proto tcp redirect to :{INBOUND_PORT}\n  }}\n}}\n\
         table ip6 leno {{\n\
         \x20 chain output {{\n    type nat hook output priority -100; policy accept;\n\
         \x20   meta mark {FIREWALL_MARK} return\n    oifname \"lo\" return\n\
{outbound_ports}{outbound_ranges_v6}\
         \x20   meta l4proto tcp redirect to :{OUTBOUND_PORT}\n  }}\n\
         \x20 chain input {{ type filter hook input priority 0; policy accept; iifname != \"lo\" drop; }}\n\
         \x20 chain leave {{ type filter hook postrouting priority 0; policy accept; oifname != \"lo\" drop; }}\n}}\n"
    )
}

fn run_ip(arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    run_with_input("ip", arguments, "")
}

/// Runs a command with `input` and returns its standard output. If the command fails, its standard error is the
/// error.
fn run_with_input(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<Vec<u8>> {
    use std::io::Write as _;
    let command_text = || format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{program}`; install iproute2 and nftables"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).with_context(command_text)?;
    }
    let output = child.wait_with_output().with_context(command_text)?;
    if !output.status.success() {
        bail!("`{}` failed: {}", command_text(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// Runs `ip` during cleanup, which continues after errors. The object may already be removed.
fn run_ip_for_cleanup(arguments: &[&str]) {
    if let Err(error) = run_ip(arguments) {
        tracing::debug!(%error, "cleaning up");
    }
}

fn remove_namespace(name: &str) {
    // A closing socket keeps a namespace and its veth pair for a minute after the name is removed.
    run_ip_for_cleanup(&["link", "del", &host_interface(name)]);
    run_ip_for_cleanup(&["netns", "del", name]);
    let etc_path = etc_directory(name);
    if let Err(error) = std::fs::remove_dir_all(&etc_path) {
        tracing::debug!(%error, path = %etc_path.display(), "cleaning up");
    }
}

/// Returns the name of the host's end of a namespace's veth pair; 15 bytes at most.
fn host_interface(namespace: &str) -> String {
    namespace.replacen("leno", "ln", 1)
}

/// Returns the directory of the files that `ip netns exec` mounts over those of `/etc`.
fn etc_directory(name: &str) -> PathBuf {
    Path::new("/etc/netns").join(name)
}

/// The IPv6 prefix of the namespaces' own addresses, unreachable from outside.
const NETWORK_V6: &str = "fd6c:656e:6f00:1::";
/// The first host number for workloads; the gateway has host number 1.
const FIRST_HOST: u16 = 2;
/// The last host number of the subnet, before the broadcast address.
const LAST_HOST: u16 = 65_534;
/// The port of a sidecar's admin endpoint in its namespace, the same as in OSM.
const ADMIN_PORT: u16 = 15_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusions_precede_the_redirection() {
        let options = NetnsOptions {
            netns_subnet: Subnet([10, 213]),
            exclude_outbound_ports: vec![25, 53],
            exclude_outbound_ranges: vec!["10.9.0.0/16".parse().unwrap()],
            exclude_inbound_ports: vec![8080],
        };
        let (gateway, own_address) = (Ipv4Addr::new(10, 213, 0, 1), Ipv4Addr::new(10, 213, 0, 2));
        let rules = render_redirection_rules(gateway, own_address, &options);
        let position =
            |text: &str| rules.find(text).unwrap_or_else(|| panic!("no `{text}` in {rules}"));
        assert!(position("tcp dport { 25, 53 } return") < position("redirect to :15001"));
        assert!(position("ip daddr { 10.9.0.0/16 } return") < position("redirect to :15001"));
        assert!(position("tcp dport { 8080 } return") < position("redirect to :15003"));
    }

    #[test]
    fn only_private_networks_of_size_16_are_accepted() {
        assert_eq!("10.213.0.0/16".parse(), Ok(Subnet([10, 213])));
        for invalid in ["10.213.0.0/24", "10.213.1.0/16", "8.8.0.0/16", "10.213.0.0", "x"] {
            assert!(invalid.parse::<Subnet>().is_err(), "{invalid}");
        }
    }
}
