//! Compiled egress rules: external destinations allowed when the default is deny.

mod hosts;

use std::net::{IpAddr, SocketAddr};

use leno_model::{ObjectKey, Outlet, PolicyName, ToldBy};
use rustc_hash::FxHashMap;

use self::hosts::Hosts;
use crate::authorize::fits as allows;
use crate::matcher::RequestMatcher;
use crate::pattern::BadPattern;
use crate::ranges::Ranges;
use crate::request::RequestView;
use crate::spelling::PathKind;

/// The egress rules of a workload, compiled, by port.
#[derive(Debug, Default)]
pub struct Outlets(FxHashMap<u16, PortOutlets>);

/// The egress rules of one port, in order.
#[derive(Debug, Default)]
struct PortOutlets {
    outlets: Vec<CompiledOutlet>,
    /// The attributes that rules for any address check.
    anywhere: Vec<ToldBy>,
    /// The rules for specific addresses.
    ranged: Ranges,
    /// The rules by TLS server name.
    names: Hosts,
    /// The rules by request host.
    requests: Hosts,
}

#[derive(Debug)]
struct CompiledOutlet {
    outlet: Outlet,
    requests: Option<Box<[RequestMatcher]>>,
}

/// The egress permission of a connection to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Denied.
    Closed,
    /// Allowed without inspection.
    Open,
    /// Determined by its first bytes.
    Told {
        /// True if a rule by request host may allow it.
        by_request: bool,
        /// True if a rule by TLS server name may allow it.
        by_server_name: bool,
    },
}

impl Outlets {
    /// Compiles the egress rules of a configuration.
    ///
    /// # Errors
    /// [`BadPattern`] for the first invalid regular expression, with its policy.
    pub fn compile(outlets: &[Outlet]) -> Result<Self, BadPattern> {
        let mut ports: FxHashMap<u16, PortOutlets> = FxHashMap::default();
        for outlet in outlets {
            ports.entry(outlet.port).or_default().add(CompiledOutlet::compile(outlet)?);
        }
        Ok(Self(ports))
    }

    /// True if a rule allows connections to this port.
    #[must_use]
    pub fn may_lead_to(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }

    /// Returns the egress permission of connections to this address.
    #[must_use]
    pub fn way(&self, at: SocketAddr) -> Way {
        let Some(port) = self.0.get(&at.port()) else { return Way::Closed };
        let leads = |told_by| port.leads_to(at.ip(), told_by);
        match (leads(ToldBy::Address), leads(ToldBy::Http), leads(ToldBy::ServerName)) {
            (true, _, _) => Way::Open,
            (false, false, false) => Way::Closed,
            (false, by_request, by_server_name) => Way::Told { by_request, by_server_name },
        }
    }

    /// Returns the policy that allows a TLS session with this server name.
    #[must_use]
    pub fn by_server_name(&self, at: SocketAddr, name: &str) -> Option<&PolicyName> {
        let port = self.0.get(&at.port())?;
        let named = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        port.first(&port.names, &named, |it| it.leads_to(at.ip()))
    }

    /// Returns the policy that allows a request.
    #[must_use]
    pub fn by_request(&self, at: SocketAddr, request: &RequestView<'_>) -> Option<&PolicyName> {
        let port = self.0.get(&at.port())?;
        let path = PathKind::of(request.path);
        let host = host_of(request.authority, at.port())?.to_ascii_lowercase();
        port.first(&port.requests, &host, |it| it.leads_to(at.ip()) && it.takes(request, path))
    }
}

impl PortOutlets {
    fn add(&mut self, compiled: CompiledOutlet) {
        let place = self.outlets.len();
        let told_by = compiled.told_by();
        match told_by {
            ToldBy::Address => {}
            ToldBy::ServerName => self.names.add(place, &compiled.outlet.hosts),
            ToldBy::Http => self.requests.add(place, &compiled.outlet.hosts),
        }
        match compiled.outlet.ranges.is_empty() {
            true if self.anywhere.contains(&told_by) => {}
            true => self.anywhere.push(told_by),
            false => self.ranged.add(place, Some(&compiled.outlet.ranges)),
        }
        self.outlets.push(compiled);
    }

    /// True if a rule with this attribute allows the address.
    fn leads_to(&self, address: IpAddr, told_by: ToldBy) -> bool {
        let ranged = || self.ranged.of(address).filter_map(|place| self.outlets.get(place));
        self.anywhere.contains(&told_by) || ranged().any(|it| it.told_by() == told_by)
    }

    /// Returns the policy of the first rule for a host that meets the other conditions.
    fn first(
        &self,
        hosts: &Hosts,
        host: &str,
        fits: impl Fn(&CompiledOutlet) -> bool,
    ) -> Option<&PolicyName> {
        let place = hosts.first(host, |place| self.outlets.get(place).is_some_and(&fits))?;
        self.outlets.get(place).map(|it| &it.outlet.policy)
    }
}

impl CompiledOutlet {
    fn compile(outlet: &Outlet) -> Result<Self, BadPattern> {
        let of_policy = |bad: BadPattern| bad.within(ObjectKey::Egress(outlet.policy.clone()));
        let requests = outlet.requests.as_ref().map(|requests| {
            requests.iter().map(RequestMatcher::compile_allowing).collect::<Result<Box<[_]>, _>>()
        });
        let requests = requests.transpose().map_err(of_policy)?;
        Ok(Self { outlet: outlet.clone(), requests })
    }

    /// Returns the checked attribute: a rule by server name without hosts checks the address alone.
    fn told_by(&self) -> ToldBy {
        match self.outlet.told_by {
            ToldBy::ServerName if self.outlet.hosts.is_empty() => ToldBy::Address,
            told_by => told_by,
        }
    }

    fn leads_to(&self, address: IpAddr) -> bool {
        let ranges = &self.outlet.ranges;
        ranges.is_empty() || ranges.iter().any(|range| range.contains(address))
    }

    fn takes(&self, request: &RequestView<'_>, path: PathKind) -> bool {
        let requests = self.requests.as_ref();
        requests.is_none_or(|requests| requests.iter().any(|it| allows(it, request, path)))
    }
}

/// Returns the host of an authority, if its port is that of the connection.
fn host_of(authority: &str, port: u16) -> Option<&str> {
    let (host, named) = match authority.rsplit_once(':') {
        Some((host, named)) if !named.ends_with(']') => (host, Some(named)),
        _ => (authority, None),
    };
    let is_right = named.is_none_or(|named| named.parse() == Ok(port));
    is_right.then(|| host.strip_suffix('.').unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use leno_model::{PathMatch, RequestMatch};

    use super::*;

    fn outlet(told_by: ToldBy, port: u16, hosts: &[&str], ranges: &[&str]) -> Outlet {
        Outlet {
            policy: PolicyName::new("shop", "out").unwrap(),
            port,
            told_by,
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            requests: None,
        }
    }

    #[test]
    fn a_way_is_open_as_far_as_a_policy_says() {
        let outlets = Outlets::compile(&[
            outlet(ToldBy::Address, 5432, &[], &["10.1.0.0/16"]),
            outlet(ToldBy::Http, 80, &["api.example"], &[]),
            outlet(ToldBy::ServerName, 443, &["*.example"], &["10.2.0.0/16"]),
            outlet(ToldBy::ServerName, 8443, &[], &["10.2.0.0/16"]),
        ])
        .unwrap();
        let told = |by_request, by_server_name| Way::Told { by_request, by_server_name };
        for (at, way) in [
            ("10.1.2.3:5432", Way::Open),
            ("10.2.2.3:5432", Way::Closed),
            ("10.1.2.3:5433", Way::Closed),
            ("192.0.2.1:80", told(true, false)),
            ("10.2.0.1:443", told(false, true)),
            ("10.3.0.1:443", Way::Closed),
            // A server name is not required.
            ("10.2.0.1:8443", Way::Open),
        ] {
            assert_eq!(outlets.way(at.parse().unwrap()), way, "{at}");
        }
    }

    #[test]
    fn hosts_and_names_are_compared_whole() {
        let only = RequestMatch {
            path: PathMatch::Regex("/pay/.*".to_owned()),
            methods: Vec::new(),
            headers: Vec::new(),
            query: Vec::new(),
        };
        let http = outlet(ToldBy::Http, 80, &["api.example"], &[]);
        let outlets = Outlets::compile(&[
            Outlet { requests: Some(vec![only]), ..http },
            outlet(ToldBy::ServerName, 443, &["*.example", "one.test"], &[]),
        ])
        .unwrap();
        let web = "192.0.2.1:80".parse().unwrap();
        for (authority, path, expected) in [
            ("api.example", "/pay/now", true),
            ("API.example.:80", "/pay/now", true),
            ("api.example:81", "/pay/now", false),
            ("api.example", "/else", false),
            ("www.api.example", "/pay/now", false),
            ("", "/pay/now", false),
        ] {
            let fields: Vec<(String, String)> = Vec::new();
            let request =
                RequestView { method: "GET", path, query: None, authority, fields: &fields };
            let found = outlets.by_request(web, &request);
            assert_eq!(found.is_some(), expected, "{authority} {path}");
        }
        let tls = "192.0.2.1:443".parse().unwrap();
        for (name, expected) in
            [("a.example", true), ("A.Example.", true), ("example", false), ("one.test", true)]
        {
            assert_eq!(outlets.by_server_name(tls, name).is_some(), expected, "{name}");
        }
    }
}
