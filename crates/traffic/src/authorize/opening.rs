//! Openings: what policies let in that is not of the mesh, or that no other rule names.

use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Entry, Name, ObjectKey, Opening, Proof, Protocol, SpiffeId};

use super::fits;
use super::ruling::Ruling;
use crate::matcher::RequestMatcher;
use crate::pattern::BadPattern;
use crate::request::RequestView;
use crate::spelling::PathKind;

/// Where a connection comes from, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The address of its client.
    pub address: IpAddr,
    /// What its session is carried in.
    pub carrier: Carrier,
}

/// What a session is carried in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carrier {
    /// Nothing: clear text.
    Clear,
    /// TLS.
    Tls {
        /// The name that the client asked for, if for any.
        asked: Option<Box<str>>,
        /// What the client is called, if it has shown the certificate of a guest.
        guest: Arc<[Name]>,
    },
}

/// All openings of a workload, compiled.
#[derive(Debug, Default)]
pub(super) struct Openings(Box<[CompiledOpening]>);

#[derive(Debug)]
struct CompiledOpening {
    ruling: Ruling,
    opening: Opening,
    requests: Option<Box<[RequestMatcher]>>,
}

impl Openings {
    pub(super) fn compile(openings: &[Opening]) -> Result<Self, BadPattern> {
        Ok(Self(openings.iter().map(CompiledOpening::compile).collect::<Result<_, _>>()?))
    }

    /// Those that let this client in at a port: looked up once for a connection.
    pub(super) fn of(&self, peer: Option<&SpiffeId>, port: u16, origin: &Origin) -> Box<[usize]> {
        let all = self.0.iter().enumerate();
        let fitting = all.filter(|(_, it)| it.opening.port == port && it.opens_to(peer, origin));
        fitting.map(|(index, _)| index).collect()
    }

    /// What clients in clear text from this address may speak at a port where an application
    /// speaks `spoken`; `None` where none are let in.
    pub(super) fn in_clear(
        &self,
        (port, spoken): (u16, Protocol),
        address: IpAddr,
    ) -> Option<Protocol> {
        let mut open = self
            .0
            .iter()
            .map(|it| &it.opening)
            .filter(|it| it.port == port && it.entry.is_clear() && is_from(it, address));
        let first = open.next()?;
        Some(match (&first.entry, spoken) {
            (Entry::Tcp, _) => Protocol::Tcp,
            (Entry::Grpc, _) => Protocol::Grpc,
            (Entry::Http | Entry::Https { .. }, Protocol::Http2 | Protocol::Grpc) => spoken,
            (Entry::Http | Entry::Https { .. }, _) => Protocol::Http,
        })
    }

    /// Whether clients from this address need no certificate at a port.
    pub(super) fn skips_proof(&self, port: u16, address: IpAddr) -> bool {
        self.0.iter().map(|it| &it.opening).any(|it| {
            it.port == port
                && matches!(it.entry, Entry::Https { proof: Proof::Skipped, .. })
                && is_from(it, address)
        })
    }

    /// Whether a guest is named that may come to a port from this address.
    pub(super) fn takes_guests(&self, port: u16, address: IpAddr) -> bool {
        self.0.iter().map(|it| &it.opening).any(|it| {
            it.port == port && !it.guests.is_empty() && !it.entry.is_clear() && is_from(it, address)
        })
    }

    /// The first of these that lets a request in.
    pub(super) fn for_request(
        &self,
        among: &[usize],
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<usize> {
        self.first(among, |it| match &it.requests {
            None => true,
            Some(requests) => requests.iter().any(|matcher| fits(matcher, request, path)),
        })
    }

    /// The first of these that lets bytes in.
    pub(super) fn for_bytes(&self, among: &[usize]) -> Option<usize> {
        self.first(among, |it| it.opening.entry == Entry::Tcp && it.requests.is_none())
    }

    pub(super) fn ruling(&self, index: usize) -> Option<&Ruling> {
        self.0.get(index).map(|it| &it.ruling)
    }

    fn first(&self, among: &[usize], lets: impl Fn(&CompiledOpening) -> bool) -> Option<usize> {
        among.iter().copied().find(|index| self.0.get(*index).is_some_and(&lets))
    }
}

impl CompiledOpening {
    fn compile(opening: &Opening) -> Result<Self, BadPattern> {
        let of_policy = |bad: BadPattern| bad.within(ObjectKey::Ingress(opening.policy.clone()));
        let requests = opening.requests.as_ref().map(|requests| {
            requests.iter().map(RequestMatcher::compile).collect::<Result<Box<[_]>, _>>()
        });
        Ok(Self {
            ruling: Ruling::opening(&opening.policy),
            requests: requests.transpose().map_err(of_policy)?,
            opening: opening.clone(),
        })
    }

    fn opens_to(&self, peer: Option<&SpiffeId>, origin: &Origin) -> bool {
        let opening = &self.opening;
        let fits = match (&opening.entry, &origin.carrier) {
            (Entry::Http | Entry::Grpc | Entry::Tcp, Carrier::Clear) => true,
            (Entry::Https { proof, server_names }, Carrier::Tls { asked, guest }) => {
                let is_meant = server_names.is_empty()
                    || asked
                        .as_ref()
                        .is_some_and(|asked| server_names.iter().any(|it| **it == **asked));
                let is_known = peer.is_some_and(|peer| opening.accounts.contains(&peer.account))
                    || guest.iter().any(|name| opening.guests.contains(name));
                is_meant && (*proof == Proof::Skipped || is_known)
            }
            (Entry::Http | Entry::Grpc | Entry::Tcp, Carrier::Tls { .. })
            | (Entry::Https { .. }, Carrier::Clear) => false,
        };
        fits && is_from(opening, origin.address)
    }
}

fn is_from(opening: &Opening, address: IpAddr) -> bool {
    match &opening.ranges {
        None => true,
        Some(ranges) => ranges.iter().any(|range| range.contains(address)),
    }
}
