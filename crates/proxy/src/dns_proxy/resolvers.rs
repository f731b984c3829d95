//! Forwards DNS queries for names outside the mesh to the name servers of a `resolv.conf`, one after another.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::DnsTransport;

/// The name servers to which queries are forwarded.
pub(super) struct Resolvers {
    /// The path of the `resolv.conf`.
    config_file: PathBuf,
    /// The port of all servers.
    port: u16,
    /// Returns true for name servers that are skipped, because their own queries would return to this proxy.
    is_skipped: fn(IpAddr) -> bool,
    /// The last server that responded, tried first so that unresponsive servers do not delay each query.
    last_responsive_server: Cell<Option<SocketAddr>>,
    /// The name servers, and the time at which they were read.
    cached_servers: RefCell<Option<(Instant, Vec<SocketAddr>)>>,
    /// The receive buffer; responses are copied from it at their actual size.
    receive_buffer: RefCell<Box<[u8]>>,
}

impl Resolvers {
    /// Creates resolvers for the name servers that `config_file` lists. The file is read at the first query,
    /// and again after each [`READ_INTERVAL`].
    pub(super) fn new(config_file: PathBuf, port: u16, is_skipped: fn(IpAddr) -> bool) -> Self {
        let receive_buffer = RefCell::new(vec![0; MAX_MESSAGE_BYTES].into_boxed_slice());
        let (last_responsive_server, cached_servers) = (Cell::new(None), RefCell::default());
        Self {
            config_file,
            port,
            is_skipped,
            last_responsive_server,
            cached_servers,
            receive_buffer,
        }
    }

    /// Forwards a query unchanged, and returns the response unchanged. An error response is returned only if no
    /// other server has a better response. Returns `None` if no server responds in time.
    pub(super) async fn forward_query(
        &self,
        query: &[u8],
        transport: DnsTransport,
    ) -> Option<Vec<u8>> {
        let mut servers = self.current_servers();
        let last_responsive_server = self.last_responsive_server.get();
        // `false` sorts first: the last responsive server precedes the others, which keep their order.
        servers.sort_by_key(|server| Some(*server) != last_responsive_server);
        let deadline = Instant::now() + MAX_TOTAL_WAIT;
        let mut error_response = None;
        for (server, remaining_servers) in servers.iter().copied().zip((1..=servers.len()).rev()) {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let remaining_servers = u32::try_from(remaining_servers).unwrap_or(1);
            let max_wait = MAX_SERVER_WAIT.min(remaining / remaining_servers);
            let query_server = async {
                match transport {
                    DnsTransport::Udp => self.query_over_udp(server, query).await,
                    DnsTransport::Tcp => query_over_tcp(server, query).await,
                }
            };
            match timeout(max_wait, query_server).await {
                Ok(Ok(response)) if is_error_to_retry(&response) => {
                    tracing::debug!(%server, "name server returned an error");
                    error_response.get_or_insert(response);
                }
                Ok(Ok(response)) => {
                    self.last_responsive_server.set(Some(server));
                    return Some(response);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "query to a name server failed"),
                Err(_) => tracing::debug!(%server, "name server does not respond"),
            }
        }
        error_response
    }

    /// Returns the name servers in the file, read at most once every [`READ_INTERVAL`].
    fn current_servers(&self) -> Vec<SocketAddr> {
        if let Some((read_at, servers)) = &*self.cached_servers.borrow()
            && read_at.elapsed() < READ_INTERVAL
        {
            return servers.clone();
        }
        let servers = match std::fs::read_to_string(&self.config_file) {
            Ok(text) => {
                let name_servers = parse_name_servers(&text, self.is_skipped).into_iter();
                name_servers.map(|server| SocketAddr::new(server, self.port)).collect()
            }
            Err(error) => {
                let file = self.config_file.display();
                tracing::warn!(%file, %error, "cannot read the upstream resolvers; names outside the mesh are not resolved");
                Vec::new()
            }
        };
        self.cached_servers.replace(Some((Instant::now(), servers.clone())));
        servers
    }

    /// Sends a query over UDP, and returns the response.
    async fn query_over_udp(&self, server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
        let local_address: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Each query uses a random port, which attackers do not know.
        let socket = UdpSocket::bind((local_address, 0)).await?;
        socket.connect(server).await?;
        socket.send(query).await?;
        loop {
            socket.readable().await?;
            let mut receive_buffer = self.receive_buffer.borrow_mut();
            match socket.try_recv(&mut receive_buffer) {
                Ok(length) => {
                    let response = receive_buffer.get(..length).unwrap_or_default();
                    // Other packets may be forged: they do not end the wait.
                    if is_response_to(query, response) {
                        return Ok(response.to_vec());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends a query over TCP, and returns the response.
async fn query_over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut tcp = TcpStream::connect(server).await?;
    tcp.write_all(&frame_message(query)).await?;
    let length = usize::from(tcp.read_u16().await?);
    let mut response = vec![0; length];
    tcp.read_exact(&mut response).await?;
    match is_response_to(query, &response) {
        true => Ok(response),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns a message with its length prefix for TCP (RFC 1035 §4.2.2). All messages fit into the 16 bits of the length.
pub(super) fn frame_message(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let message = message.get(..usize::from(length)).unwrap_or_default();
    [&length.to_be_bytes(), message].concat()
}

/// True if a message is the response to a query: it has the same ID, the response bit, and the same question
/// byte for byte. The question may be missing in an error response to a malformed query.
pub(crate) fn is_response_to(query: &[u8], response: &[u8]) -> bool {
    let has_same_id = response.len() >= HEADER_BYTES
        && response.get(..2) == query.get(..2)
        && response.get(2).is_some_and(|flags| flags & 0x80 != 0);
    let repeats_question = || {
        let question = question_section(query);
        question.is_some() && question == question_section(response)
    };
    let is_bare_error =
        || response.get(4..6) == Some(&[0, 0]) && response_code(response) != Some(0);
    has_same_id && (repeats_question() || is_bare_error())
}

/// Returns the question section of a message; `None` if it is truncated.
fn question_section(message: &[u8]) -> Option<&[u8]> {
    let count = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
    let mut section_end = HEADER_BYTES;
    for _ in 0..count {
        loop {
            let length = *message.get(section_end)?;
            // The end of a name, a compression pointer, or a label (RFC 1035 §4.1.4).
            section_end += match length {
                0 => 1,
                COMPRESSION_POINTER.. => 2,
                _ => usize::from(length) + 1,
            };
            if length == 0 || length >= COMPRESSION_POINTER {
                break;
            }
        }
        section_end += TYPE_AND_CLASS_BYTES;
    }
    message.get(HEADER_BYTES..section_end)
}

/// Returns the response code (RFC 1035 §4.1.1); `None` if the message is too short.
fn response_code(response: &[u8]) -> Option<u8> {
    response.get(3).map(|flags| flags & 0x0f)
}

/// True for SERVFAIL, NOTIMP and REFUSED: another server may have a better response.
fn is_error_to_retry(response: &[u8]) -> bool {
    matches!(response_code(response), Some(2 | 4 | 5))
}

/// Returns the name servers of a `resolv.conf` that are not skipped: at most three, as in resolv.conf(5).
/// Unlike in resolv.conf(5), a file without name servers has no default.
pub(super) fn parse_name_servers(text: &str, is_skipped: fn(IpAddr) -> bool) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.parse().ok().filter(|address| !is_skipped(*address))
    });
    servers.take(MAX_NAME_SERVERS).collect()
}

/// The maximum number of name servers, as in the C library.
const MAX_NAME_SERVERS: usize = 3;
/// The maximum time to wait for one server.
const MAX_SERVER_WAIT: Duration = Duration::from_secs(2);
/// The maximum time to wait for all servers, since clients repeat a query after 5 s. The remaining time is
/// divided among the remaining servers.
const MAX_TOTAL_WAIT: Duration = Duration::from_millis(4500);
/// The interval at which the file is read, so that changes apply without a restart.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum size of a message in bytes: the largest that the length prefix for TCP permits.
const MAX_MESSAGE_BYTES: usize = 65_535;
/// The size of the header in bytes (RFC 1035 §4.1.1).
const HEADER_BYTES: usize = 12;
/// The size of the type and class of a question in bytes (RFC 1035 §4.1.2).
const TYPE_AND_CLASS_BYTES: usize = 4;
/// The lowest first byte of a compression pointer (RFC 1035 §4.1.4); lower ones are label lengths.
const COMPRESSION_POINTER: u8 = 0xc0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_from_the_file() {
        let text = "search a.svc\nnameserver 10.96.0.10\nnameserver fd00::a # second\n;nameserver 1.1.1.1\n\
                    nameserver nobody\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n";
        let parse_all = |text| parse_name_servers(text, |_| false);
        let servers: Vec<String> = parse_all(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.96.0.10", "fd00::a", "10.0.0.1"]);
        assert_eq!(parse_all("search a"), [] as [IpAddr; 0]);
    }

    #[test]
    fn name_servers_in_the_pod_are_skipped() {
        let text = "nameserver 127.0.0.1\nnameserver ::1\nnameserver ::ffff:127.0.0.53\n\
                    nameserver 0.0.0.0\nnameserver 10.0.0.1\n";
        let servers = parse_name_servers(text, super::super::is_in_pod);
        assert_eq!(servers, [IpAddr::from([10, 0, 0, 1])]);
    }

    #[test]
    fn a_response_repeats_the_question() {
        let query = [&[1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01a\0\0\x01\0\x01"].concat();
        let mut response = query.clone();
        response[2] |= 0x80;
        assert!(is_response_to(&query, &response));
        response.extend(b"more");
        assert!(is_response_to(&query, &response));
        for index in [5, 13, 16, 18] {
            let mut altered = response.clone();
            altered[index] ^= 1;
            assert!(!is_response_to(&query, &altered), "byte {index}");
        }
        let mut error = response[..12].to_vec();
        error[5] = 0;
        assert!(!is_response_to(&query, &error));
        error[3] |= 1;
        assert!(is_response_to(&query, &error));
        // A truncated question.
        assert!(!is_response_to(&query[..14], &response));
    }

    #[test]
    fn a_response_has_the_id_of_its_query() {
        let query = [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut response = query;
        assert!(!is_response_to(&query, &response));
        response[2] |= 0x80;
        assert!(is_response_to(&query, &response) && !is_response_to(&query, &response[..11]));
        response[1] = 3;
        assert!(!is_response_to(&query, &response));
    }
}
