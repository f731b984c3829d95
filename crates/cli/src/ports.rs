//! Free ports on loopback for programs that are started later and cannot be given a socket.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::bail;

/// Where the search for free ports goes on: no port is found twice.
#[derive(Debug)]
pub(crate) struct PortSearch {
    next: Cell<u16>,
    /// The first port that the kernel may give to outgoing connections.
    end: u16,
}

impl PortSearch {
    /// Two processes that search at once begin in different places.
    pub(crate) fn new() -> Self {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let end = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
        let end = end.unwrap_or(PORT_END).max(PORT_FIRST + 1);
        let offset = std::process::id().wrapping_mul(STRIDE) % u32::from(end - PORT_FIRST);
        Self { next: Cell::new(PORT_FIRST + u16::try_from(offset).unwrap_or(0)), end }
    }

    /// A port that nobody listens on, and that no client gets by chance before its owner starts.
    ///
    /// # Errors
    /// When none is free.
    pub(crate) fn free(&self) -> anyhow::Result<u16> {
        for _ in PORT_FIRST..self.end {
            let port = self.next.get();
            self.next.set(if port + 1 < self.end { port + 1 } else { PORT_FIRST });
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
        bail!("there is no free port on loopback from {PORT_FIRST} to {}", self.end)
    }
}

/// The ports of one run, by what they are for.
#[derive(Debug)]
pub(crate) struct Ports<'a> {
    search: &'a PortSearch,
    chosen: BTreeMap<String, u16>,
}

impl<'a> Ports<'a> {
    /// Ports for roles that have none yet.
    pub(crate) fn new(search: &'a PortSearch) -> Self {
        Self { search, chosen: BTreeMap::new() }
    }

    /// The port for a role: the same one each time it is asked for.
    ///
    /// # Errors
    /// When none is free.
    pub(crate) fn of(&mut self, role: &str) -> anyhow::Result<u16> {
        if let Some(port) = self.chosen.get(role) {
            return Ok(*port);
        }
        let port = self.search.free()?;
        self.chosen.insert(role.to_owned(), port);
        Ok(port)
    }

    /// The port for a role that has one already.
    pub(crate) fn known(&self, role: &str) -> Option<u16> {
        self.chosen.get(role).copied()
    }

    /// Lets two roles share a port.
    pub(crate) fn share(&mut self, role: &str, port: u16) {
        self.chosen.insert(role.to_owned(), port);
    }

    /// The address on loopback for a role.
    ///
    /// # Errors
    /// As [`Ports::of`].
    pub(crate) fn address(&mut self, role: &str) -> anyhow::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, self.of(role)?).into())
    }
}

/// Above what services commonly use.
const PORT_FIRST: u16 = 18_000;
/// Linux gives outgoing connections ports from here on unless it is told otherwise.
const PORT_END: u16 = 32_768;
/// More than one search takes.
const STRIDE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Both begin at the same port: one after the other.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn what_is_taken_is_passed_over_and_nothing_is_found_twice() {
        let _turn = TURN.lock();
        let search = PortSearch::new();
        let first = search.free().unwrap();
        let next = if first + 1 < search.end { first + 1 } else { PORT_FIRST };
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        let second = search.free().unwrap();
        assert!(second != first && second != next);
        assert!((PORT_FIRST..search.end).contains(&second));
    }

    #[test]
    fn a_role_keeps_its_port_and_shares_it_with_no_other() {
        let _turn = TURN.lock();
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
