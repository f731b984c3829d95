//! Whoever answers names beside the mesh: the name servers of a `resolv.conf`, asked one after another.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::Over;

/// The name servers that look-ups are passed on to.
pub(super) struct Resolvers {
    file: PathBuf,
    port: u16,
    servers: RefCell<Option<(Instant, Vec<SocketAddr>)>>,
    /// Where answers arrive, before as much is kept of them as there is.
    arrived: RefCell<Box<[u8]>>,
}

impl Resolvers {
    /// Those that a file names, looked at again while it is used.
    pub(super) fn new(file: PathBuf, port: u16) -> Self {
        let arrived = RefCell::new(vec![0; MESSAGE_BYTES_MAX].into_boxed_slice());
        Self { file, port, servers: RefCell::default(), arrived }
    }

    /// Passes a look-up on as it is; the answer comes as it is, or none of them had one in time.
    pub(super) async fn pass_on(&self, query: &[u8], over: Over) -> Option<Vec<u8>> {
        for server in self.servers() {
            let answer = async {
                match over {
                    Over::Udp => self.over_udp(server, query).await,
                    Over::Tcp => over_tcp(server, query).await,
                }
            };
            match timeout(PATIENCE, answer).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server failed"),
                Err(_) => tracing::debug!(%server, "a name server does not answer"),
            }
        }
        None
    }

    fn servers(&self) -> Vec<SocketAddr> {
        if let Some((read, servers)) = &*self.servers.borrow()
            && read.elapsed() < READ_AGAIN
        {
            return servers.clone();
        }
        let servers = match std::fs::read_to_string(&self.file) {
            Ok(text) => {
                let servers = name_servers(&text).into_iter();
                servers.map(|server| SocketAddr::new(server, self.port)).collect()
            }
            Err(error) => {
                let file = self.file.display();
                tracing::warn!(%file, %error, "nobody is known who answers names of others");
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
        // A port of its own for each, which strangers do not know.
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
    tcp.write_all(&framed(query)).await?;
    let length = usize::from(tcp.read_u16().await?);
    let mut answer = vec![0; length];
    tcp.read_exact(&mut answer).await?;
    match is_answer(query, &answer) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A message with its length before it; none is longer than that can say.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let message = message.get(..usize::from(length)).unwrap_or_default();
    [&length.to_be_bytes(), message].concat()
}

/// Whether this has the number of the question, and says that it is an answer.
fn is_answer(query: &[u8], answer: &[u8]) -> bool {
    answer.len() >= HEADER_BYTES
        && answer.get(..2) == query.get(..2)
        && answer.get(2).is_some_and(|flags| flags & 0x80 != 0)
}

/// As resolv.conf(5) has it: three at most, and this machine when there are none.
fn name_servers(text: &str) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.parse().ok()
    });
    let mut servers: Vec<IpAddr> = servers.take(SERVERS_MAX).collect();
    if servers.is_empty() {
        servers.push(Ipv4Addr::LOCALHOST.into());
    }
    servers
}

/// How many are asked, as by the C library.
const SERVERS_MAX: usize = 3;
/// How long one is waited for: the first of several that is silent leaves an impatient client,
/// which asks again after 5 s, time for the next.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the file is looked at.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The longest message.
const MESSAGE_BYTES_MAX: usize = 65_535;
const HEADER_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_those_of_the_file() {
        let text = "search a.svc\nnameserver 10.96.0.10\nnameserver fd00::a # second\n;nameserver 1.1.1.1\n\
                    nameserver nobody\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n";
        let servers: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.96.0.10", "fd00::a", "10.0.0.1"]);
        assert_eq!(name_servers("search a"), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }

    #[test]
    fn answers_have_the_number_of_their_question() {
        let query = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let mut answer = query;
        assert!(!is_answer(&query, &answer));
        answer[2] |= 0x80;
        assert!(is_answer(&query, &answer) && !is_answer(&query, &answer[..11]));
        answer[1] = 3;
        assert!(!is_answer(&query, &answer));
    }
}
