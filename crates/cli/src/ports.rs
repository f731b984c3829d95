//! Finds free loopback ports for programs that start later and cannot inherit a socket.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::bail;

/// A search for free ports, which finds no port twice until it has tried all.
#[derive(Debug)]
pub(crate) struct PortSearch {
    next_port: Cell<u16>,
    /// The first port of the kernel's ephemeral range, at which the search ends.
    range_end: u16,
}

impl PortSearch {
    /// Creates a search. Concurrent processes start their searches at different ports.
    pub(crate) fn new() -> Self {
        let read_result = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let first_ephemeral_port: Option<u16> =
            read_result.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
        let range_end = first_ephemeral_port.unwrap_or(FIRST_EPHEMERAL_PORT).max(FIRST_PORT + 1);
        let offset =
            std::process::id().wrapping_mul(SEARCH_STRIDE) % u32::from(range_end - FIRST_PORT);
        Self { next_port: Cell::new(FIRST_PORT + u16::try_from(offset).unwrap_or(0)), range_end }
    }

    /// Returns a port without a listener. The port is below the kernel's ephemeral range, so the kernel assigns
    /// it to no outgoing connection before the program that uses it starts.
    ///
    /// # Errors
    /// If no port is free.
    pub(crate) fn find_free(&self) -> anyhow::Result<u16> {
        for _ in FIRST_PORT..self.range_end {
            let port = self.next_port.get();
            self.next_port.set(if port + 1 < self.range_end { port + 1 } else { FIRST_PORT });
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
        bail!("no free loopback port from {FIRST_PORT} to {}", self.range_end)
    }
}

/// The ports of one run, each under the name of its role.
#[derive(Debug)]
pub(crate) struct ChosenPorts<'a> {
    search: &'a PortSearch,
    ports_by_role: BTreeMap<String, u16>,
}

impl<'a> ChosenPorts<'a> {
    /// Creates an empty assignment.
    pub(crate) fn new(search: &'a PortSearch) -> Self {
        Self { search, ports_by_role: BTreeMap::new() }
    }

    /// Returns the port of a role, the same on every call.
    ///
    /// # Errors
    /// If no port is free.
    pub(crate) fn port_for(&mut self, role: &str) -> anyhow::Result<u16> {
        if let Some(port) = self.ports_by_role.get(role) {
            return Ok(*port);
        }
        let port = self.search.find_free()?;
        self.ports_by_role.insert(role.to_owned(), port);
        Ok(port)
    }

    /// Returns the port of a role; `None` if the role has no port yet.
    pub(crate) fn assigned_port(&self, role: &str) -> Option<u16> {
        self.ports_by_role.get(role).copied()
    }

    /// Assigns the role a port that another role may have already.
    pub(crate) fn share_port(&mut self, role: &str, port: u16) {
        self.ports_by_role.insert(role.to_owned(), port);
    }

    /// Returns the loopback address of a role.
    ///
    /// # Errors
    /// If no port is free.
    pub(crate) fn address_for(&mut self, role: &str) -> anyhow::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, self.port_for(role)?).into())
    }
}

/// The first port of a search, above the ports of common services.
const FIRST_PORT: u16 = 18_000;
/// The first port of Linux's default ephemeral range.
const FIRST_EPHEMERAL_PORT: u16 = 32_768;
/// The distance between the first ports of processes with consecutive IDs; more ports than one search takes.
const SEARCH_STRIDE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Both searches begin at the same port, so the tests run in turn.
    static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn ports_in_use_are_skipped_and_no_port_is_found_twice() {
        let _lock = TEST_LOCK.lock();
        let search = PortSearch::new();
        let first_port = search.find_free().unwrap();
        let next_port = if first_port + 1 < search.range_end { first_port + 1 } else { FIRST_PORT };
        let _occupied = TcpListener::bind((Ipv4Addr::LOCALHOST, next_port));
        let second_port = search.find_free().unwrap();
        assert!(second_port != first_port && second_port != next_port);
        assert!((FIRST_PORT..search.range_end).contains(&second_port));
    }

    #[test]
    fn a_role_keeps_its_port_and_no_other_role_gets_it() {
        let _lock = TEST_LOCK.lock();
        let search = PortSearch::new();
        let mut ports = ChosenPorts::new(&search);
        let (entry_port, link_port) =
            (ports.port_for("entry").unwrap(), ports.port_for("link").unwrap());
        assert_ne!(entry_port, link_port);
        assert_eq!(ports.port_for("entry").unwrap(), entry_port);
        let _occupied = TcpListener::bind((Ipv4Addr::LOCALHOST, link_port)).unwrap();
        let mut other_ports = ChosenPorts::new(&search);
        assert!(![entry_port, link_port].contains(&other_ports.port_for("entry").unwrap()));
    }
}
