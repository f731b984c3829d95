//! Ports: free ones on loopback, each for a role.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use crate::port_search::PortSearch;

/// The ports of one run, by what they are for.
#[derive(Debug)]
pub(super) struct Ports<'a> {
    search: &'a PortSearch,
    chosen: BTreeMap<String, u16>,
}

impl<'a> Ports<'a> {
    pub(super) fn new(search: &'a PortSearch) -> Self {
        Self { search, chosen: BTreeMap::new() }
    }

    /// The port for a role: the same one each time it is asked for.
    ///
    /// # Errors
    /// When none is free.
    pub(super) fn of(&mut self, role: &str) -> anyhow::Result<u16> {
        if let Some(port) = self.chosen.get(role) {
            return Ok(*port);
        }
        let port = self.search.free()?;
        self.chosen.insert(role.to_owned(), port);
        Ok(port)
    }

    /// The port for a role that has one already.
    pub(super) fn known(&self, role: &str) -> Option<u16> {
        self.chosen.get(role).copied()
    }

    /// Lets two roles share a port.
    pub(super) fn share(&mut self, role: &str, port: u16) {
        self.chosen.insert(role.to_owned(), port);
    }

    /// The address on loopback for a role.
    ///
    /// # Errors
    /// As [`Ports::of`].
    pub(super) fn address(&mut self, role: &str) -> anyhow::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, self.of(role)?).into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_role_keeps_its_port_and_shares_it_with_no_other() {
        let search = PortSearch::new();
        let mut ports = Ports::new(&search);
        let (entrance, link) = (ports.of("entrance").unwrap(), ports.of("link").unwrap());
        assert_ne!(entrance, link);
        assert_eq!(ports.of("entrance").unwrap(), entrance);
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, link)).unwrap();
        let mut others = Ports::new(&search);
        assert!(![entrance, link].contains(&others.of("entrance").unwrap()));
    }
}
