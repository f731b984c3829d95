//! Limits the servers and files that JWKS may be read from.
//!
//! A rule with JWKS (`JwtValidation`) is an object of a namespace, and its author may be a tenant. But the control plane
//! fetches the rule's JWKS with its own network access and file permissions, so the operator's options limit the
//! permitted servers and files.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use leno_model::{AddressClass, IpRange, Server};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The servers and files that JWKS may be read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAccess {
    /// The permitted servers, in addition to those at public addresses.
    pub servers: PermittedServers,
    /// The permitted files.
    pub files: PermittedFiles,
    /// True if warnings about a rule include the cause of a failure. False if tenants write rules: the causes
    /// would expose the network and the files of the control plane.
    pub shows_failure_causes: bool,
}

/// Servers that JWKS may be read from, in addition to those at public addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermittedServers {
    entries: Vec<PermittedServer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PermittedServer {
    /// A host, at private addresses only: a tenant may control its name.
    Host(String),
    /// Any host with an address in this range.
    Range(IpRange),
}

/// Files that JWKS may be read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PermittedFiles {
    /// No file.
    #[default]
    None,
    /// All files in a directory and its subdirectories; links that leave it are not followed.
    Below(PathBuf),
    /// All files that the process can read.
    All,
}

impl KeyAccess {
    /// Returns the access for rules of the operator: all files, the machine itself, and private networks.
    #[must_use]
    pub fn for_operator() -> Self {
        let entries = PRIVATE_NETWORKS.iter().filter_map(|range| range.parse().ok());
        let servers = PermittedServers { entries: entries.map(PermittedServer::Range).collect() };
        Self { servers, files: PermittedFiles::All, shows_failure_causes: true }
    }

    /// Returns the access for rules of tenants: public addresses only.
    #[must_use]
    pub fn for_tenants() -> Self {
        Self {
            servers: PermittedServers::default(),
            files: PermittedFiles::None,
            shows_failure_causes: false,
        }
    }
}

impl PermittedServers {
    /// True if JWKS may be read from this server at this address, a result of resolving its host.
    pub(super) fn permits_server(&self, server: &Server, address: IpAddr) -> bool {
        let address_class = AddressClass::from_address(address);
        let is_permitted = |entry: &PermittedServer| match entry {
            PermittedServer::Host(host) => {
                address_class == AddressClass::Private && *host == normalize_host(&server.host)
            }
            PermittedServer::Range(range) => range.contains(address),
        };
        address_class == AddressClass::Public || self.entries.iter().any(is_permitted)
    }
}

/// Normalizes a host name as DNS compares it.
fn normalize_host(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Parses hosts, addresses and ranges separated by commas, or `none`.
impl FromStr for PermittedServers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == EMPTY_LIST {
            return Ok(Self::default());
        }
        let entries: Result<Vec<_>, _> =
            text.split(',').map(|entry| parse_entry(entry.trim())).collect();
        let entries = entries?;
        match entries.len() > MAX_ENTRIES {
            true => Err(format!("has more than {MAX_ENTRIES} entries: use address ranges")),
            false => Ok(Self { entries }),
        }
    }
}

fn parse_entry(text: &str) -> Result<PermittedServer, String> {
    if let Ok(range) = IpRange::parse_range_or_address(text) {
        return Ok(PermittedServer::Range(range));
    }
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    // A host name does not end in a number: this is a malformed address.
    let host = normalize_host(text);
    let last_label = host.rsplit('.').next().unwrap_or_default();
    let is_host = !last_label.is_empty() && !last_label.bytes().all(|byte| byte.is_ascii_digit());
    match is_host && text.len() <= MAX_HOST_BYTES && text.bytes().all(is_host_byte) {
        true => Ok(PermittedServer::Host(host)),
        false => Err(format!(
            "`{text}` is neither a host nor an address range: use for example keys.shop.svc,10.0.0.0/8, or `{EMPTY_LIST}`"
        )),
    }
}

impl fmt::Display for PermittedServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self
            .entries
            .iter()
            .map(|entry| match entry {
                PermittedServer::Host(host) => host.clone(),
                PermittedServer::Range(range) => range.to_string(),
            })
            .collect();
        f.write_str(
            if entries.is_empty() { EMPTY_LIST.to_owned() } else { entries.join(",") }.as_str(),
        )
    }
}

/// The reason why a JWKS file is not opened. In diagnostics, each message follows the path.
#[derive(Debug, thiserror::Error)]
pub(super) enum JwksFileOpenError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is not below the directory that the operator permits with --jwks-files")]
    NotPermitted,
    #[error("is not a file")]
    NotAFile,
}

impl PermittedFiles {
    /// Opens a regular file, if it is permitted. The path is resolved only below the permitted directory, and
    /// every step of it stays below.
    pub(super) fn open_permitted(&self, path: &Path) -> Result<File, JwksFileOpenError> {
        match self {
            Self::None => Err(JwksFileOpenError::NotPermitted),
            Self::All => open_regular_file(|flags| {
                rustix::fs::open(path, flags, Mode::empty())
                    .map_err(|error| JwksFileOpenError::Io(error.into()))
            }),
            Self::Below(directory) => {
                let relative_path =
                    path.strip_prefix(directory).map_err(|_| JwksFileOpenError::NotPermitted)?;
                if !relative_path
                    .components()
                    .all(|component| matches!(component, Component::Normal(_)))
                {
                    return Err(JwksFileOpenError::NotPermitted);
                }
                let opened_directory =
                    rustix::fs::open(directory, CHECK_FLAGS | OFlags::DIRECTORY, Mode::empty())
                        .map_err(io::Error::from)?;
                open_regular_file(|flags| {
                    let opened = rustix::fs::openat2(
                        opened_directory.as_fd(),
                        relative_path,
                        flags,
                        Mode::empty(),
                        BELOW_DIRECTORY,
                    );
                    opened.map_err(|error| match error {
                        Errno::XDEV | Errno::LOOP => JwksFileOpenError::NotPermitted,
                        error => JwksFileOpenError::Io(error.into()),
                    })
                })
            }
        }
    }
}

/// Opens a path with `open` for reading, if it names a regular file. Because opening a device can have side effects, the
/// path is first opened with `O_PATH`, which does not open the target itself, and the target is checked.
fn open_regular_file(
    open: impl Fn(OFlags) -> Result<OwnedFd, JwksFileOpenError>,
) -> Result<File, JwksFileOpenError> {
    if !File::from(open(CHECK_FLAGS)?).metadata()?.is_file() {
        return Err(JwksFileOpenError::NotAFile);
    }
    // Another process may have replaced the file in the meantime.
    let opened_file = File::from(open(READ_FLAGS)?);
    match opened_file.metadata()?.is_file() {
        true => Ok(opened_file),
        false => Err(JwksFileOpenError::NotAFile),
    }
}

/// Flags to check the target of a path without an effect on it.
const CHECK_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Flags for reads. They are non-blocking, because the path may name a pipe by now.
const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// The resolution of paths. Links within the directory are followed, because Kubernetes volumes contain some.
const BELOW_DIRECTORY: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// The loopback networks, and the private networks of RFC 1918, RFC 6598 and RFC 4193.
const PRIVATE_NETWORKS: [&str; 7] = [
    "127.0.0.0/8",
    "::1/128",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
];
/// Maximum entries of `--jwks-allow`.
const MAX_ENTRIES: usize = 64;
/// The maximum length of DNS names in bytes (RFC 1035 §2.3.4).
const MAX_HOST_BYTES: usize = 253;
/// The text of an empty list of servers.
const EMPTY_LIST: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    fn permits_address(servers: &PermittedServers, host: &str, address: &str) -> bool {
        let server = Server { scheme: leno_model::Scheme::Https, host: host.to_owned(), port: 443 };
        servers.permits_server(&server, address.parse().unwrap())
    }

    #[test]
    fn a_server_is_permitted_by_its_address_and_not_by_its_name() {
        let (operator, tenants) =
            (KeyAccess::for_operator().servers, KeyAccess::for_tenants().servers);
        for (address, by_operator) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.96.0.1", true),
            ("fd00::1", true),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(
                permits_address(&operator, "issuer.example", address),
                by_operator,
                "{address}"
            );
            assert!(!permits_address(&tenants, "issuer.example", address), "{address}");
        }
        assert!(permits_address(&tenants, "issuer.example", "192.0.2.1"));
    }

    #[test]
    fn the_operator_permits_hosts_and_ranges() {
        let servers: PermittedServers = "Keys.shop.svc.,10.0.0.0/8,169.254.1.1".parse().unwrap();
        for (host, address, expected) in [
            ("keys.shop.svc", "192.168.0.1", true),
            ("KEYS.shop.svc.", "192.168.0.1", true),
            // A tenant's service name may resolve to any address.
            ("keys.shop.svc", "127.0.0.1", false),
            ("keys.shop.svc", "169.254.169.254", false),
            ("other.shop.svc", "192.168.0.1", false),
            ("other.shop.svc", "10.1.2.3", true),
            ("other.shop.svc", "169.254.1.1", true),
        ] {
            assert_eq!(permits_address(&servers, host, address), expected, "{host} {address}");
        }
        assert_eq!("none".parse::<PermittedServers>(), Ok(PermittedServers::default()));
        let text = servers.to_string();
        assert_eq!(text.parse::<PermittedServers>(), Ok(servers), "{text}");
        for invalid in ["", "10.0.0.1/8", "10.0.0", "a b", "http://a.example", "a.example,"] {
            assert!(
                invalid.parse::<PermittedServers>().unwrap_err().contains("10.0.0.0/8"),
                "{invalid}"
            );
        }
    }

    #[test]
    fn a_file_is_opened_only_below_the_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let (within, outside) = (scratch.path().join("keys"), scratch.path().join("secret"));
        std::fs::create_dir_all(within.join("..data")).unwrap();
        std::fs::write(within.join("..data/a.jwks"), "a").unwrap();
        std::fs::write(&outside, "secret").unwrap();
        std::fs::create_dir(scratch.path().join("keys-other")).unwrap();
        std::fs::write(scratch.path().join("keys-other/a"), "a").unwrap();
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, within.join(name)).unwrap();
        };
        link("..data/a.jwks", "a.jwks");
        link("../secret", "relative");
        link(outside.to_str().unwrap(), "absolute");
        link("..", "up");
        link("/proc/self/root/etc/passwd", "magic");
        let files = PermittedFiles::Below(within.clone());
        files.open_permitted(&within.join("a.jwks")).unwrap();
        for invalid in [
            "relative",
            "absolute",
            "up/secret",
            "up/keys/a.jwks",
            "magic",
            "../secret",
            "../keys-other/a",
            "../absent",
            "./../secret",
        ] {
            let error = files.open_permitted(&within.join(invalid)).unwrap_err();
            assert!(matches!(error, JwksFileOpenError::NotPermitted), "{invalid}: {error}");
        }
        let error = files.open_permitted(&within.join("absent")).unwrap_err();
        assert!(matches!(error, JwksFileOpenError::Io(_)), "{error}");
        assert!(matches!(
            files.open_permitted(&within.join("..data")),
            Err(JwksFileOpenError::NotAFile)
        ));
        for path in [&outside, &within.join("a.jwks")] {
            assert!(matches!(
                PermittedFiles::None.open_permitted(path),
                Err(JwksFileOpenError::NotPermitted)
            ));
            PermittedFiles::All.open_permitted(path).unwrap();
        }
    }

    #[test]
    fn a_pipe_is_rejected_without_being_opened() {
        use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

        let scratch = tempfile::tempdir().unwrap();
        let pipe = scratch.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&opened, &pipe, WatchFlags::OPEN).unwrap();
        for files in [PermittedFiles::All, PermittedFiles::Below(scratch.path().to_owned())] {
            let error = files.open_permitted(&pipe).unwrap_err();
            assert!(matches!(error, JwksFileOpenError::NotAFile), "{error}");
            let mut event = [0_u8; 64];
            assert_eq!(rustix::io::read(&opened, &mut event).unwrap_err(), Errno::AGAIN);
        }
    }
}
