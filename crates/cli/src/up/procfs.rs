//! Reads processes, and listening sockets with their owners, from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListeningSocket {
    pub(super) address: SocketAddr,
    /// The inode, which the links in `/proc/PID/fd` name.
    pub(super) inode: u64,
}

/// A process with its parent, process group and session, which are process IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessEntry {
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// The start time in clock ticks since boot.
    pub(super) start_time: u64,
    /// True if the process has exited, and its parent has not reaped it yet.
    pub(super) is_zombie: bool,
}

/// Returns the listening TCP sockets in the network namespace of a process; empty if the process does not
/// exist.
pub(super) fn listening_sockets(pid: i32) -> Vec<ListeningSocket> {
    let read_table = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    let tables = ["tcp", "tcp6"].into_iter().filter_map(|name| read_table(name).ok());
    tables.flat_map(|table| parse_table(&table)).collect()
}

/// Returns the process `root`, the processes of its group and session, and the descendants of all of these.
pub(super) fn process_tree(root: i32) -> BTreeSet<i32> {
    let processes: BTreeMap<i32, ProcessEntry> =
        all_pids().filter_map(|pid| Some((pid, read_process(pid)?))).collect();
    find_tree_members(root, &processes)
}

/// Reads the process with this ID; `None` if it does not exist.
pub(super) fn read_process(pid: i32) -> Option<ProcessEntry> {
    // The command may contain bytes that are not UTF-8.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&stat))
}

fn find_tree_members(root: i32, processes: &BTreeMap<i32, ProcessEntry>) -> BTreeSet<i32> {
    let mut members = BTreeSet::from([root]);
    loop {
        let previous_count = members.len();
        for (pid, process) in processes {
            let ProcessEntry { parent, group, session, .. } = process;
            if members.contains(parent) || *group == root || *session == root {
                members.insert(*pid);
            }
        }
        if members.len() == previous_count {
            return members;
        }
    }
}

/// Returns the first of `pids` that has the socket with this inode open; `None` if no process has it.
pub(super) fn find_socket_owner(inode: u64, pids: impl IntoIterator<Item = i32>) -> Option<i32> {
    let socket_link = format!("socket:[{inode}]");
    let has_socket = |pid: &i32| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|target| target == Path::new(&socket_link))
        })
    };
    pids.into_iter().find(has_socket)
}

/// Returns the IDs of all processes.
pub(super) fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns a description of a process: its command and ID.
pub(super) fn describe_process(pid: i32) -> String {
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} (process {pid})", command.trim_end())
}

/// Returns the sockets among `sockets` that receive connections to an address: those bound to exactly that address,
/// else the wildcard sockets of its family, else the IPv6 wildcard sockets.
pub(super) fn sockets_for(
    address: SocketAddr,
    sockets: &[ListeningSocket],
) -> Vec<&ListeningSocket> {
    let exact_matches: Vec<&ListeningSocket> =
        sockets.iter().filter(|socket| socket.address == address).collect();
    if !exact_matches.is_empty() {
        return exact_matches;
    }
    let wildcard_sockets = |is_ipv4: bool| {
        let is_match = |socket: &&ListeningSocket| {
            let ip = socket.address.ip();
            socket.address.port() == address.port()
                && ip.is_unspecified()
                && ip.is_ipv4() == is_ipv4
        };
        sockets.iter().filter(is_match).collect::<Vec<&ListeningSocket>>()
    };
    // An IPv6 wildcard socket accepts IPv4 connections as well, unless it is IPv6-only or an IPv4 wildcard
    // socket exists.
    let same_family_sockets = wildcard_sockets(address.is_ipv4());
    if same_family_sockets.is_empty() && address.is_ipv4() {
        wildcard_sockets(false)
    } else {
        same_family_sockets
    }
}

/// Parses the listening sockets of `/proc/net/tcp` and `tcp6` (proc(5)).
fn parse_table(table: &str) -> Vec<ListeningSocket> {
    let parse_row = |line: &str| {
        // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next()?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        if state != LISTEN_STATE {
            return None;
        }
        let (ip, port) = local.split_once(':')?;
        let address = SocketAddr::new(parse_ip(ip)?, u16::from_str_radix(port, 16).ok()?);
        Some(ListeningSocket { address, inode })
    };
    table.lines().filter_map(parse_row).collect()
}

/// Parses a hexadecimal address: one 32-bit word (IPv4) or four words (IPv6), each in native byte order.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = (0..text.len())
        .step_by(8)
        .map(|start| Some(u32::from_str_radix(text.get(start..start + 8)?, 16).ok()?.to_ne_bytes()))
        .collect();
    let bytes = words?.concat();
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical())
}

/// Parses `/proc/PID/stat` (proc(5)). The command in parentheses may contain any characters.
fn parse_stat(stat: &str) -> Option<ProcessEntry> {
    let (_, fields_text) = stat.rsplit_once(')')?;
    let mut fields = fields_text.split_whitespace();
    let is_zombie = fields.next()? == "Z";
    let start_time = fields.clone().nth(START_TIME_OFFSET)?.parse().ok()?;
    let mut numbers = fields.map(|word| word.parse().ok());
    let (parent, group, session) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(ProcessEntry { parent, group, session, start_time, is_zombie })
}

/// The index of the start time among the fields after the state (proc(5): fields 22 and 3).
const START_TIME_OFFSET: usize = 18;

/// The kernel's `TCP_LISTEN`.
const LISTEN_STATE: &str = "0A";

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_socket_is_found_with_its_owner() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let own_pid = i32::try_from(std::process::id()).unwrap();
        let sockets = listening_sockets(own_pid);
        let [listening_socket] = sockets_for(address, &sockets)[..] else { panic!("{sockets:?}") };
        assert_eq!(find_socket_owner(listening_socket.inode, [own_pid]), Some(own_pid));
        assert_eq!(find_socket_owner(listening_socket.inode, []), None);
        assert!(process_tree(own_pid).contains(&own_pid));
        drop(socket);
        assert!(sockets_for(address, &listening_sockets(own_pid)).is_empty());
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn socket_tables_of_the_kernel_are_parsed() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:2378 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n\
            \x20  1: 0100007F:2379 0100007F:1234 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0\n\
            \x20  2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0\n";
        let expected = [("127.0.0.1:9080", 4711), ("[::]:80", 4713)]
            .map(|(address, inode)| ListeningSocket { address: address.parse().unwrap(), inode });
        assert_eq!(parse_table(table), expected);
        let inodes_for = |address: &str| {
            let inodes = sockets_for(address.parse().unwrap(), &expected)
                .into_iter()
                .map(|socket| socket.inode);
            inodes.collect::<Vec<u64>>()
        };
        assert_eq!(inodes_for("127.0.0.1:9080"), [4711]);
        assert_eq!(inodes_for("127.0.0.1:80"), [4713]);
        assert_eq!(inodes_for("127.0.0.2:9080"), [0; 0]);
        let wildcards = [("[::]:80", 4713), ("0.0.0.0:80", 4714)]
            .map(|(address, inode)| ListeningSocket { address: address.parse().unwrap(), inode });
        for (address, inode) in [("127.0.0.1:80", 4714), ("[::1]:80", 4713)] {
            let inodes = sockets_for(address.parse().unwrap(), &wildcards)
                .into_iter()
                .map(|socket| socket.inode);
            assert_eq!(inodes.collect::<Vec<u64>>(), [inode], "{address}");
        }
    }

    #[test]
    fn a_tree_contains_descendants_and_no_other_processes() {
        let process = |parent, group, session| ProcessEntry {
            parent,
            group,
            session,
            start_time: 22,
            is_zombie: false,
        };
        let processes = BTreeMap::from([
            (10, process(1, 10, 5)),
            (11, process(10, 11, 5)),
            (12, process(11, 12, 12)),
            (13, process(1, 10, 5)),
            (20, process(1, 20, 5)),
        ]);
        assert_eq!(find_tree_members(10, &processes), BTreeSet::from([10, 11, 12, 13]));
        let stat = "12 (a) b) c) S 11 12 13 0 -1 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23";
        assert_eq!(parse_stat(stat), Some(process(11, 12, 13)));
        let zombie = parse_stat(&stat.replace(") S", ") Z"));
        assert!(zombie.is_some_and(|process| process.is_zombie));
    }
}
