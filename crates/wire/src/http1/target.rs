//! Parses the four forms of a request target (RFC 9112 §3.2).

use std::borrow::Cow;
use std::net::Ipv6Addr;

use memchr::{memchr, memchr2};

use super::Malformed;
use super::cursor::{HOST, TARGET, run_length};

/// A parsed request target. Percent-encoding is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTarget<'a> {
    /// `/path?query`, sent to servers.
    Origin {
        /// The bytes from the first slash to the question mark.
        path: &'a [u8],
        /// The bytes after the question mark; `None` without one.
        query: Option<&'a [u8]>,
    },
    /// `http://authority/path?query`, sent to proxies. The authority takes precedence over `Host`.
    Absolute {
        /// The scheme, such as `http`, in its original case.
        scheme: &'a [u8],
        /// The host and an optional port, valid and not empty; see [`split_authority`].
        authority: &'a [u8],
        /// `/` if it was omitted, `*` if it was omitted in OPTIONS.
        path: &'a [u8],
        /// The bytes after the question mark; `None` without one.
        query: Option<&'a [u8]>,
    },
    /// `host:port`, for CONNECT only.
    Authority {
        /// A name or an address; an IPv6 address keeps its brackets.
        host: &'a [u8],
        /// The port, which CONNECT requires.
        port: u16,
    },
    /// `*`, for OPTIONS only.
    Asterisk,
}

/// Parses a request target.
///
/// # Errors
/// The target has an invalid character (such as the `#` of a fragment), or a form that `method` does not allow.
pub fn parse_target<'a>(method: &[u8], target: &'a [u8]) -> Result<RequestTarget<'a>, Malformed> {
    if run_length(target, TARGET) < target.len() {
        return Err(Malformed::TargetCharacter);
    }
    parse_valid_target(method, target)
}

/// Parses a target that is already known to consist of [`TARGET`] characters.
pub(super) fn parse_valid_target<'a>(
    method: &[u8],
    target: &'a [u8],
) -> Result<RequestTarget<'a>, Malformed> {
    if method == b"CONNECT" {
        let (host, port) = split_authority(target)?;
        return match port {
            Some(port) => Ok(RequestTarget::Authority { host, port }),
            None => Err(Malformed::TargetForm),
        };
    }
    if target.starts_with(b"/") {
        let (path, query) = split_query(target)?;
        return Ok(RequestTarget::Origin { path, query });
    }
    if target == b"*" && method == b"OPTIONS" {
        return Ok(RequestTarget::Asterisk);
    }
    let (scheme, after_scheme) = split_scheme(target)?;
    let authority_end = after_scheme
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?'))
        .unwrap_or(after_scheme.len());
    let (authority, path_and_query) =
        after_scheme.split_at_checked(authority_end).ok_or(Malformed::TargetForm)?;
    split_authority(authority)?;
    let (path, query) = split_query(path_and_query)?;
    let path = match (path, query) {
        (b"", None) if method == b"OPTIONS" => b"*",
        (b"", _) => b"/",
        (path, _) => path,
    };
    Ok(RequestTarget::Absolute { scheme, authority, path, query })
}

/// Converts an absolute target to the origin form, which servers receive: the path and the query. Other forms are
/// returned unchanged. Allocates only for an absolute target with a query but no path.
///
/// # Errors
/// The same as for [`parse_target`].
pub fn origin_form<'a>(method: &[u8], target: &'a [u8]) -> Result<Cow<'a, [u8]>, Malformed> {
    let RequestTarget::Absolute { scheme, authority, path, query } = parse_target(method, target)?
    else {
        return Ok(Cow::Borrowed(target));
    };
    let prefix_bytes = scheme.len().saturating_add(b"://".len()).saturating_add(authority.len());
    let path_and_query = target.get(prefix_bytes..).unwrap_or_default();
    Ok(match query {
        _ if path_and_query.starts_with(b"/") => Cow::Borrowed(path_and_query),
        Some(query) => Cow::Owned([b"/?", query].concat()),
        None => Cow::Borrowed(path),
    })
}

/// Splits `host` or `host:port`; an IPv6 address keeps its brackets.
///
/// # Errors
/// The host is empty or has user information, or the port is invalid.
pub fn split_authority(authority: &[u8]) -> Result<(&[u8], Option<u16>), Malformed> {
    let is_bracketed = authority.starts_with(b"[");
    let host_end = if is_bracketed {
        memchr(b']', authority).map(|bracket| bracket.saturating_add(1))
    } else {
        Some(run_length(authority, HOST))
    };
    let (host, port_part) = host_end
        .and_then(|host_end| authority.split_at_checked(host_end))
        .ok_or(Malformed::Authority)?;
    let is_valid = if is_bracketed {
        let address = host.strip_prefix(b"[").and_then(|address| address.strip_suffix(b"]"));
        address.and_then(|address| std::str::from_utf8(address).ok()).is_some_and(is_ipv6)
    } else {
        !host.is_empty()
    };
    if !is_valid {
        return Err(Malformed::Authority);
    }
    let port = match port_part {
        b"" | b":" => None,
        [b':', digits @ ..] => Some(parse_port(digits).ok_or(Malformed::Authority)?),
        _ => return Err(Malformed::Authority),
    };
    Ok((host, port))
}

/// True if the text between brackets is an IPv6 address: the next hop could interpret any other text differently.
fn is_ipv6(address: &str) -> bool {
    address.parse::<Ipv6Addr>().is_ok()
}

fn parse_port(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0_u16, |port, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        port.checked_mul(10)?.checked_add(u16::from(digit))
    })
}

/// Splits a target at `://` into the scheme and the bytes after `://` (RFC 3986 §3.1).
fn split_scheme(target: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let colon = memchr(b':', target).ok_or(Malformed::TargetForm)?;
    let (scheme, after_scheme) = target.split_at_checked(colon).ok_or(Malformed::TargetForm)?;
    let after_scheme = after_scheme.strip_prefix(b"://").ok_or(Malformed::TargetForm)?;
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    if is_scheme { Ok((scheme, after_scheme)) } else { Err(Malformed::TargetForm) }
}

/// Splits a path from its query. A backslash in the path is an error: some servers read it as a slash, which would
/// bypass rules about paths.
fn split_query(path_and_query: &[u8]) -> Result<(&[u8], Option<&[u8]>), Malformed> {
    let path_end = memchr2(b'?', b'\\', path_and_query).unwrap_or(path_and_query.len());
    match path_and_query.split_at_checked(path_end).ok_or(Malformed::TargetForm)? {
        (_, [b'\\', ..]) => Err(Malformed::TargetCharacter),
        (path, query) => Ok((path, query.strip_prefix(b"?"))),
    }
}

#[cfg(test)]
mod tests;
