//! An intruder's tools: port enumeration of a process, attack requests, and address takeover.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use leno_tests::{Response, exchange_bytes};

/// Returns the addresses on which a process listens for TCP.
pub(super) fn listening_addresses(pid: u32) -> Vec<SocketAddr> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
    let descriptor_targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let socket_inodes: BTreeSet<String> = descriptor_targets
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_owned())
        })
        .collect();
    let socket_table =
        |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let socket_tables = [socket_table("tcp"), socket_table("tcp6")].concat();
    let addresses = socket_tables.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_own = *columns.get(3)? == LISTEN_STATE && socket_inodes.contains(*columns.get(9)?);
        is_own.then(|| parse_address(columns[1]))?
    });
    addresses.collect()
}

/// Parses an address in the kernel's format: hexadecimal words in machine byte order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if address.len() == 8 {
        let word = u32::from_str_radix(address, 16).ok()?;
        let address = Ipv4Addr::from(word.to_ne_bytes());
        let address = if address.is_unspecified() { Ipv4Addr::LOCALHOST } else { address };
        return Some((address, port).into());
    }
    Some((Ipv6Addr::LOCALHOST, port).into())
}

/// Sends the requests of published attacks to a port, and returns the responses.
pub(super) fn attack_responses(address: SocketAddr) -> Vec<(String, Response)> {
    let read_requests = READ_PATHS.iter().map(|path| format!("GET {path}"));
    let write_requests = WRITE_PATHS.iter().flat_map(|path| {
        ["POST", "PUT", "PATCH", "DELETE"].map(|method| format!("{method} {path}"))
    });
    let responses = read_requests.chain(write_requests).map(|request| {
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        Some((request, exchange_bytes(address, &head).ok()?))
    });
    responses.flatten().collect()
}

/// Returns one line of the text of each private key in the files of a directory.
pub(super) fn key_material(directory: &Path) -> Vec<String> {
    let mut key_lines = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return key_lines };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            key_lines.extend(key_material(&path));
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines().skip_while(|line| !line.contains("PRIVATE KEY"));
        // The first line is the same for all keys of one kind.
        key_lines.extend(lines.nth(2).map(str::to_owned));
    }
    key_lines
}

/// A forwarder of connections from one address to another, byte for byte.
pub(super) struct ByteForwarder {
    _thread: thread::JoinHandle<()>,
}

impl ByteForwarder {
    pub(super) fn start(listen_address: SocketAddr, server_address: SocketAddr) -> Self {
        let listener = TcpListener::bind(listen_address).expect("the address is free");
        let accept_clients = move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || drop(forward_connection(client, server_address)));
            }
        };
        Self { _thread: thread::spawn(accept_clients) }
    }
}

fn forward_connection(client: TcpStream, server_address: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server_address)?;
    let (mut client_reader, mut server_reader) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let mut client = client;
        drop(io::copy(&mut server_reader, &mut client));
    });
    let mut server = server;
    io::copy(&mut client_reader, &mut server)?;
    Ok(())
}

const LISTEN_STATE: &str = "0A";
const READ_PATHS: &[&str] = &[
    "/",
    "/certs",
    "/config_dump",
    "/config_dump?include_eds",
    "/config",
    "/metrics",
    "/stats",
    "/connections",
    "/ejected",
    "/circuits",
    "/api/v1/repo",
    "/api/v1/program",
    "/repo/fsm-sidecar/web.shop/config.json",
    "/debug/pprof/heap",
    "/../../credential.pem",
];
const WRITE_PATHS: &[&str] =
    &["/api/v1/program", "/api/v1/repo/fsm-sidecar", "/config", "/quitquitquit"];
