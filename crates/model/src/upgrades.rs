//! The protocols that HTTP connections may be upgraded to: WebSocket, and others that an option of the sidecar or
//! gateway lists.
//!
//! After an upgrade a proxy sees opaque bytes, so policies that match by request no longer apply.

use std::fmt;
use std::str::FromStr;

use crate::token::is_token;

/// The protocols of `Upgrade` and of extended CONNECT that are forwarded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Upgrades {
    /// WebSocket only.
    #[default]
    WebSocket,
    /// WebSocket and the protocols of these lower-case names; at least one.
    Listed(Vec<String>),
    /// All protocols except HTTP/2, whose requests would bypass the proxy's policies.
    Any,
}

impl Upgrades {
    /// True if the protocol is forwarded.
    #[must_use]
    pub fn contains_protocol(&self, protocol: &str) -> bool {
        let is_protocol = |name: &str| name.eq_ignore_ascii_case(protocol);
        match self {
            Self::WebSocket => is_protocol(WEBSOCKET),
            Self::Listed(names) => {
                is_protocol(WEBSOCKET) || names.iter().any(|name| is_protocol(name))
            }
            Self::Any => !HTTP2.into_iter().any(is_protocol),
        }
    }
}

/// Parses `websocket`, `any`, or comma-separated names.
impl FromStr for Upgrades {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == ANY {
            return Ok(Self::Any);
        }
        let mut names = Vec::new();
        for name in text.split(',').map(str::trim) {
            // RFC 9110 §7.8: a name, optionally with `/` and a version.
            let mut name_parts = name.splitn(2, '/');
            let is_valid = name.len() <= MAX_NAME_BYTES && name_parts.all(is_token);
            if !is_valid || names.len() >= MAX_NAMES {
                return Err(format!(
                    "`{name}` is not a list of at most {MAX_NAMES} protocols: use for example \
                     websocket,tcp, or `{ANY}`"
                ));
            }
            let name = name.to_ascii_lowercase();
            if HTTP2.contains(&&*name) {
                return Err(format!(
                    "`{name}` cannot be listed: sidecars could not inspect its requests"
                ));
            }
            names.push(name);
        }
        // WebSocket is always forwarded, and `Listed` contains only the other protocols.
        names.retain(|name| name != WEBSOCKET);
        Ok(if names.is_empty() { Self::WebSocket } else { Self::Listed(names) })
    }
}

impl fmt::Display for Upgrades {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket => f.write_str(WEBSOCKET),
            Self::Listed(names) => write!(f, "{WEBSOCKET},{}", names.join(",")),
            Self::Any => f.write_str(ANY),
        }
    }
}

/// The protocol that is always forwarded.
const WEBSOCKET: &str = "websocket";
/// The names of HTTP/2, which is never forwarded.
const HTTP2: [&str; 2] = ["h2", "h2c"];
/// The text of [`Upgrades::Any`].
const ANY: &str = "any";
/// The maximum number of listed names.
const MAX_NAMES: usize = 16;
/// The maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_lists_round_trip() {
        for (text, printed) in [
            ("websocket", "websocket"),
            ("TCP, websocket", "websocket,tcp"),
            ("any", "any"),
            ("spdy/3.1", "websocket,spdy/3.1"),
        ] {
            assert_eq!(text.parse::<Upgrades>().unwrap().to_string(), printed);
        }
        assert!("a$b".parse::<Upgrades>().is_ok(), "a token may contain $");
        for invalid in
            ["", "a b", "tcp,", "h2c", "websocket,H2", "a\r\nb", "$(HOME)", "foo/", "/1", "a/b/c"]
        {
            assert!(invalid.parse::<Upgrades>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn listed_protocols_are_forwarded() {
        for (protocol, websocket, listed, any) in [
            ("websocket", true, true, true),
            ("WebSocket", true, true, true),
            ("TCP", false, true, true),
            ("spdy/3.1", false, false, true),
            ("websocketx", false, false, true),
            ("", false, false, true),
            ("h2c", false, false, false),
            ("H2", false, false, false),
        ] {
            let forwarded = ["websocket", "tcp", "any"]
                .map(|upgrades| upgrades.parse::<Upgrades>().unwrap().contains_protocol(protocol));
            assert_eq!(forwarded, [websocket, listed, any], "{protocol}");
        }
    }
}
