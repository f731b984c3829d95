//! Free ports on loopback for programs that are started later and cannot be given a socket.

use std::cell::Cell;
use std::net::{Ipv4Addr, TcpListener};

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

/// Above what services commonly use.
const PORT_FIRST: u16 = 18_000;
/// Linux gives outgoing connections ports from here on unless it is told otherwise.
const PORT_END: u16 = 32_768;
/// More than one search takes.
const STRIDE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_passed_over_and_nothing_is_found_twice() {
        let search = PortSearch::new();
        let first = search.free().unwrap();
        let next = if first + 1 < search.end { first + 1 } else { PORT_FIRST };
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        let second = search.free().unwrap();
        assert!(second != first && second != next);
        assert!((PORT_FIRST..search.end).contains(&second));
    }
}
