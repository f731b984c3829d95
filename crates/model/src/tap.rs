//! Taps: which live requests an operator wants to see.

use std::fmt;

use crate::identity::ServiceAccount;
use crate::name::ServiceName;

/// Which live requests an operator wants to see. All of its parts must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tap {
    /// Which tap it is, of those that a control plane has.
    pub id: u64,
    /// The service that is called.
    pub service: ServiceName,
    /// Whose sidecars tell.
    pub side: TapSide,
    /// What the path begins with; empty for any.
    pub path: String,
    /// The method; empty for any.
    pub method: String,
    /// The statuses, both ends included; any when absent. 0 is no answer.
    pub status: Option<StatusRange>,
    /// Who calls; anybody when absent.
    pub from: Option<ServiceAccount>,
    /// How many requests one data thread tells of in a second.
    pub per_second: u32,
}

/// Whose sidecars tell of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TapSide {
    /// The client's and the server's.
    Both,
    /// The client's.
    Client,
    /// The server's.
    Server,
}

impl TapSide {
    /// All of them, with their words.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("both", Self::Both), ("client", Self::Client), ("server", Self::Server)];
}

/// Statuses from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusRange {
    /// The first.
    pub from: u16,
    /// The last.
    pub to: u16,
}

/// A request as taps see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tappable<'a> {
    /// Whether the server's sidecar tells.
    pub is_inbound: bool,
    /// The service that was called, `namespace/name`.
    pub service: &'a str,
    /// The account that called, `namespace/name`.
    pub from: &'a str,
    /// The path without its query.
    pub path: &'a str,
    /// The method.
    pub method: &'a str,
    /// The status.
    pub status: u16,
}

/// A tap, ready to be compared with many requests.
#[derive(Debug)]
pub struct TapMatcher {
    tap: Tap,
    service: String,
    from: Option<String>,
}

impl TapMatcher {
    /// Of one tap.
    #[must_use]
    pub fn new(tap: &Tap) -> Self {
        Self {
            service: tap.service.to_string(),
            from: tap.from.as_ref().map(ToString::to_string),
            tap: tap.clone(),
        }
    }

    /// The tap.
    #[must_use]
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Whether the operator wants to see this request.
    #[must_use]
    pub fn takes(&self, request: &Tappable<'_>) -> bool {
        let Tap { side, path, method, status, .. } = &self.tap;
        let of_side = match side {
            TapSide::Both => true,
            TapSide::Client => !request.is_inbound,
            TapSide::Server => request.is_inbound,
        };
        of_side
            && request.service == self.service
            && status.is_none_or(|status| status.contains(request.status))
            && (method.is_empty() || request.method == method)
            && self.from.as_ref().is_none_or(|from| request.from == from)
            && request.path.starts_with(path.as_str())
    }
}

impl StatusRange {
    /// Whether a status is one of them.
    #[must_use]
    pub const fn contains(self, status: u16) -> bool {
        self.from <= status && status <= self.to
    }

    /// Reads `503`, `5xx` or `400-499`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let known = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|number| known && (100..=599).contains(number))
        };
        if let Some(class) = text.strip_suffix("xx") {
            let class = number(&format!("{class}00"))?;
            return Some(Self { from: class, to: class + 99 });
        }
        let (from, to) = match text.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None if text == "000" => (0, 0),
            None => (number(text)?, number(text)?),
        };
        (from <= to).then_some(Self { from, to })
    }
}

/// As it is read.
impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.to) {
            (from, to) if from == to => write!(f, "{from:03}"),
            (from, to) => write!(f, "{from}-{to}"),
        }
    }
}

/// The longest path, or method, of a tap.
pub const TAP_TEXT_BYTES_MAX: usize = 1024;
/// The most requests that one data thread tells of in a second.
pub const TAP_PER_SECOND_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Tappable<'_> = Tappable {
        is_inbound: true,
        service: "shop/stock",
        from: "shop/web",
        path: "/orders/7",
        method: "GET",
        status: 503,
    };

    fn tap(change: impl FnOnce(&mut Tap)) -> TapMatcher {
        let mut tap = Tap {
            id: 1,
            service: "shop/stock".parse().unwrap(),
            side: TapSide::Both,
            path: String::new(),
            method: String::new(),
            status: None,
            from: None,
            per_second: 10,
        };
        change(&mut tap);
        TapMatcher::new(&tap)
    }

    #[test]
    fn every_part_must_hold() {
        let all = |tap: &mut Tap| {
            tap.side = TapSide::Server;
            tap.path = "/orders".into();
            tap.method = "GET".into();
            tap.status = StatusRange::parse("5xx");
            tap.from = Some(ServiceAccount::new("shop", "web").unwrap());
        };
        assert!(tap(|_| {}).takes(&REQUEST) && tap(all).takes(&REQUEST));
        for other in [
            Tappable { is_inbound: false, ..REQUEST },
            Tappable { service: "shop/stocks", ..REQUEST },
            Tappable { from: "shop/webs", ..REQUEST },
            Tappable { path: "/order", ..REQUEST },
            Tappable { method: "get", ..REQUEST },
            Tappable { status: 499, ..REQUEST },
        ] {
            assert!(!tap(all).takes(&other), "{other:?}");
        }
        assert!(!tap(|tap| tap.side = TapSide::Client).takes(&REQUEST));
    }

    #[test]
    fn statuses_are_read_in_three_ways() {
        for (text, from, to, shown) in [
            ("503", 503, 503, "503"),
            ("5xx", 500, 599, "500-599"),
            ("400-404", 400, 404, "400-404"),
            ("000", 0, 0, "000"),
        ] {
            let range = StatusRange::parse(text).unwrap();
            assert_eq!((range, range.to_string().as_str()), (StatusRange { from, to }, shown));
            assert_eq!(StatusRange::parse(shown), Some(range));
        }
        for bad in ["", "5", "50", "600", "xx", "6xx", "55xx", "499-400", "-1", "+500", "5xx-6xx"] {
            assert_eq!(StatusRange::parse(bad), None, "{bad}");
        }
    }
}
