//! Forwarding of DNS queries to the name servers of a `resolv.conf`, one after another.

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
    file: PathBuf,
    port: u16,
    /// Returns true for name servers that are skipped.
    is_passed_over: fn(IpAddr) -> bool,
    /// The last server that responded, tried first so that unresponsive servers do not delay each query.
    last: Cell<Option<SocketAddr>>,
    servers: RefCell<Option<(Instant, Vec<SocketAddr>)>>,
    /// The receive buffer; responses are copied from it at their actual size.
    arrived: RefCell<Box<[u8]>>,
}

impl Resolvers {
    /// Uses the name servers that a file lists; the file is read again while in use.
    pub(super) fn new(file: PathBuf, port: u16, is_passed_over: fn(IpAddr) -> bool) -> Self {
        let arrived = RefCell::new(vec![0; MESSAGE_BYTES_MAX].into_boxed_slice());
        let (last, servers) = (Cell::new(None), RefCell::default());
        Self { file, port, is_passed_over, last, servers, arrived }
    }

    /// Forwards a query unchanged, and returns the response unchanged; `None` if no server responds in time. An
    /// error response is returned only if no other server has a better one.
    pub(super) async fn pass_on(&self, query: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        let mut servers = self.servers();
        let last = self.last.get();
        servers.sort_by_key(|server| Some(*server) != last);
        let until = Instant::now() + MAX_WAIT_FOR_ALL;
        let mut kept = None;
        for (server, others) in servers.iter().copied().zip((1..=servers.len()).rev()) {
            let left = until.saturating_duration_since(Instant::now());
            let others = u32::try_from(others).unwrap_or(1);
            let max_wait = MAX_WAIT.min(left / others);
            let answer = async {
                match over {
                    DnsTransport::Udp => self.over_udp(server, query).await,
                    DnsTransport::Tcp => over_tcp(server, query).await,
                }
            };
            match timeout(max_wait, answer).await {
                Ok(Ok(answer)) if gives_up(&answer) => {
                    tracing::debug!(%server, "name server returned an error");
                    kept.get_or_insert(answer);
                }
                Ok(Ok(answer)) => {
                    self.last.set(Some(server));
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "query to a name server failed"),
                Err(_) => tracing::debug!(%server, "name server does not respond"),
            }
        }
        kept
    }

    fn servers(&self) -> Vec<SocketAddr> {
        if let Some((read, servers)) = &*self.servers.borrow()
            && read.elapsed() < READ_AGAIN
        {
            return servers.clone();
        }
        let servers = match std::fs::read_to_string(&self.file) {
            Ok(text) => {
                let servers = name_servers(&text, self.is_passed_over).into_iter();
                servers.map(|server| SocketAddr::new(server, self.port)).collect()
            }
            Err(error) => {
                let file = self.file.display();
                tracing::warn!(%file, %error, "no upstream resolver configured");
                Vec::new()
            }
        };
        self.servers.replace(Some((Instant::now(), servers.clone())));
        servers
    }

    async fn over_udp(&self, server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // A random port for each query, unknown to attackers.
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(server).await?;
        socket.send(query).await?;
        loop {
            socket.readable().await?;
            let mut arrived = self.arrived.borrow_mut();
            match socket.try_recv(&mut arrived) {
                Ok(length) => {
                    let answer = arrived.get(..length).unwrap_or_default();
                    if is_answer(query, answer) {
                        return Ok(answer.to_vec());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut tcp = TcpStream::connect(server).await?;
    tcp.write_all(&frame_message(query)).await?;
    let length = usize::from(tcp.read_u16().await?);
    let mut answer = vec![0; length];
    tcp.read_exact(&mut answer).await?;
    match is_answer(query, &answer) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns a message with its length prefix; no message is longer than the prefix permits.
pub(super) fn frame_message(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let message = message.get(..usize::from(length)).unwrap_or_default();
    [&length.to_be_bytes(), message].concat()
}

/// True if a message is the response to a query: it has the same ID, the response bit, and the same question
/// byte for byte. The question may be missing in an error response to a malformed query.
pub(crate) fn is_answer(query: &[u8], answer: &[u8]) -> bool {
    let is_answer = answer.len() >= HEADER_BYTES
        && answer.get(..2) == query.get(..2)
        && answer.get(2).is_some_and(|flags| flags & 0x80 != 0);
    let repeats = || {
        let asked = question_section(query);
        asked.is_some() && asked == question_section(answer)
    };
    let is_bare_error = || answer.get(4..6) == Some(&[0, 0]) && response_code(answer) != Some(0);
    is_answer && (repeats() || is_bare_error())
}

/// Returns the question section of a message; `None` if it is truncated.
fn question_section(message: &[u8]) -> Option<&[u8]> {
    let count = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
    let mut end = HEADER_BYTES;
    for _ in 0..count {
        loop {
            let length = *message.get(end)?;
            // The end of a name, a compression pointer, or a label (RFC 1035 §4.1.4).
            end += match length {
                0 => 1,
                POINTER.. => 2,
                _ => usize::from(length) + 1,
            };
            if length == 0 || length >= POINTER {
                break;
            }
        }
        end += TYPE_AND_CLASS_BYTES;
    }
    message.get(HEADER_BYTES..end)
}

/// Returns the response code (RFC 1035 §4.1.1).
fn response_code(answer: &[u8]) -> Option<u8> {
    answer.get(3).map(|flags| flags & 0x0f)
}

/// True for a server failure, a query that is not implemented, or a refusal: another server may have a better
/// response.
fn gives_up(answer: &[u8]) -> bool {
    matches!(response_code(answer), Some(2 | 4 | 5))
}

/// Returns at most three name servers, as in resolv.conf(5), except that there is no default.
pub(super) fn name_servers(text: &str, is_passed_over: fn(IpAddr) -> bool) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.parse().ok().filter(|address| !is_passed_over(*address))
    });
    servers.take(SERVERS_MAX).collect()
}

/// The maximum number of name servers, as in the C library.
const SERVERS_MAX: usize = 3;
/// The maximum wait for one server.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The maximum wait for all servers: clients repeat a query after 5 s. Each server gets its share of the
/// remaining time.
const MAX_WAIT_FOR_ALL: Duration = Duration::from_millis(4500);
/// The interval at which the file is read.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The maximum message size.
const MESSAGE_BYTES_MAX: usize = 65_535;
const HEADER_BYTES: usize = 12;
const TYPE_AND_CLASS_BYTES: usize = 4;
/// The value of a label's first byte from which on it is a compression pointer.
const POINTER: u8 = 0xc0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_those_of_the_file() {
        let text = "search a.svc\nnameserver 10.96.0.10\nnameserver fd00::a # second\n;nameserver 1.1.1.1\n\
                    nameserver nobody\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n";
        let all = |text| name_servers(text, |_| false);
        let servers: Vec<String> = all(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.96.0.10", "fd00::a", "10.0.0.1"]);
        assert_eq!(all("search a"), [] as [IpAddr; 0]);
    }

    #[test]
    fn name_servers_in_the_pod_are_passed_over() {
        let text = "nameserver 127.0.0.1\nnameserver ::1\nnameserver ::ffff:127.0.0.53\n\
                    nameserver 0.0.0.0\nnameserver 10.0.0.1\n";
        let others = name_servers(text, super::super::is_of_pod);
        assert_eq!(others, [IpAddr::from([10, 0, 0, 1])]);
    }

    #[test]
    fn answers_repeat_their_question() {
        let query = [&[1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01a\0\0\x01\0\x01"].concat();
        let mut answer = query.clone();
        answer[2] |= 0x80;
        assert!(is_answer(&query, &answer));
        answer.extend(b"more");
        assert!(is_answer(&query, &answer));
        for at in [5, 13, 16, 18] {
            let mut other = answer.clone();
            other[at] ^= 1;
            assert!(!is_answer(&query, &other), "byte {at}");
        }
        let mut bare = answer[..12].to_vec();
        bare[5] = 0;
        assert!(!is_answer(&query, &bare));
        bare[3] |= 1;
        assert!(is_answer(&query, &bare));
        // A truncated question.
        assert!(!is_answer(&query[..14], &answer));
    }

    #[test]
    fn answers_have_the_number_of_their_question() {
        let query = [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut answer = query;
        assert!(!is_answer(&query, &answer));
        answer[2] |= 0x80;
        assert!(is_answer(&query, &answer) && !is_answer(&query, &answer[..11]));
        answer[1] = 3;
        assert!(!is_answer(&query, &answer));
    }
}
