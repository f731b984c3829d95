//! Taps: filters of live requests. An operator creates a tap with `leno tap`, and sidecars report the matching
//! requests.

use std::fmt;

use crate::identity::ServiceAccount;
use crate::name::ServiceName;

/// A filter of live requests; all conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tap {
    /// The ID of the tap at its control plane.
    pub id: u64,
    /// The destination service.
    pub service: ServiceName,
    /// The sidecars that report the requests.
    pub side: TapSide,
    /// The path prefix; any path when empty.
    pub path: String,
    /// The method; any method when empty.
    pub method: String,
    /// The range of the response status; any status when absent. Status 0 means no response.
    pub status: Option<StatusRange>,
    /// The calling account; any when absent.
    pub from: Option<ServiceAccount>,
    /// The maximum number of requests that one data thread reports per second.
    pub per_second: u32,
}

/// The sidecars that report a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TapSide {
    /// The client's and the server's sidecar.
    Both,
    /// The client's sidecar.
    Client,
    /// The server's sidecar.
    Server,
}

impl TapSide {
    /// All values, by their names on the command line.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("both", Self::Both), ("client", Self::Client), ("server", Self::Server)];
}

/// An inclusive range of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusRange {
    /// The first status.
    pub from: u16,
    /// The last status.
    pub to: u16,
}

/// The attributes of a request with which taps are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TappedRequest<'a> {
    /// True at the server's sidecar.
    pub is_inbound: bool,
    /// The destination service, `namespace/name`.
    pub service: &'a str,
    /// The calling account, `namespace/name`.
    pub from: &'a str,
    /// The path without its query.
    pub path: &'a str,
    /// The request method.
    pub method: &'a str,
    /// The response status; 0 if there was no response.
    pub status: u16,
}

/// A compiled tap, to match many requests.
#[derive(Debug)]
pub struct TapMatcher {
    tap: Tap,
    /// The destination service as text, for comparisons.
    service: String,
    /// The calling account as text, for comparisons; any when absent.
    from: Option<String>,
}

impl TapMatcher {
    /// Compiles a tap.
    #[must_use]
    pub fn new(tap: &Tap) -> Self {
        Self {
            service: tap.service.to_string(),
            from: tap.from.as_ref().map(ToString::to_string),
            tap: tap.clone(),
        }
    }

    /// Returns the tap that was compiled.
    #[must_use]
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// True if the request matches the tap.
    #[must_use]
    pub fn matches_request(&self, request: &TappedRequest<'_>) -> bool {
        let Tap { side, path, method, status, .. } = &self.tap;
        let is_reporting_side = match side {
            TapSide::Both => true,
            TapSide::Client => !request.is_inbound,
            TapSide::Server => request.is_inbound,
        };
        is_reporting_side
            && request.service == self.service
            && status.is_none_or(|status| status.contains(request.status))
            && (method.is_empty() || request.method == method)
            && self.from.as_ref().is_none_or(|from| request.from == from)
            && request.path.starts_with(path.as_str())
    }
}

impl StatusRange {
    /// True if the range contains a status.
    #[must_use]
    pub const fn contains(self, status: u16) -> bool {
        self.from <= status && status <= self.to
    }

    /// Parses `503`, `5xx`, `400-499`, or `000` for no response; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parse_status = |text: &str| {
            let is_three_digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|status| is_three_digits && (100..=599).contains(status))
        };
        if let Some(class) = text.strip_suffix("xx") {
            let class = parse_status(&format!("{class}00"))?;
            return Some(Self { from: class, to: class + 99 });
        }
        let (from, to) = match text.split_once('-') {
            Some((from, to)) => (parse_status(from)?, parse_status(to)?),
            None if text == "000" => (0, 0),
            None => (parse_status(text)?, parse_status(text)?),
        };
        (from <= to).then_some(Self { from, to })
    }
}

/// Formats the range so that it can be parsed again.
impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.to) {
            (from, to) if from == to => write!(f, "{from:03}"),
            (from, to) => write!(f, "{from}-{to}"),
        }
    }
}

/// The maximum length of a tap's path or method in bytes.
pub const MAX_TAP_TEXT_BYTES: usize = 1024;
/// The maximum of [`Tap::per_second`]. It bounds the load of a tap on sidecars and the control plane.
pub const MAX_TAP_PER_SECOND: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: TappedRequest<'_> = TappedRequest {
        is_inbound: true,
        service: "shop/stock",
        from: "shop/web",
        path: "/orders/7",
        method: "GET",
        status: 503,
    };

    fn tap_matcher(change: impl FnOnce(&mut Tap)) -> TapMatcher {
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
    fn all_conditions_must_hold() {
        let set_all_conditions = |tap: &mut Tap| {
            tap.side = TapSide::Server;
            tap.path = "/orders".into();
            tap.method = "GET".into();
            tap.status = StatusRange::parse("5xx");
            tap.from = Some(ServiceAccount::new("shop", "web").unwrap());
        };
        assert!(
            tap_matcher(|_| {}).matches_request(&REQUEST)
                && tap_matcher(set_all_conditions).matches_request(&REQUEST)
        );
        for other_request in [
            TappedRequest { is_inbound: false, ..REQUEST },
            TappedRequest { service: "shop/stocks", ..REQUEST },
            TappedRequest { from: "shop/webs", ..REQUEST },
            TappedRequest { path: "/order", ..REQUEST },
            TappedRequest { method: "get", ..REQUEST },
            TappedRequest { status: 499, ..REQUEST },
        ] {
            assert!(
                !tap_matcher(set_all_conditions).matches_request(&other_request),
                "{other_request:?}"
            );
        }
        assert!(!tap_matcher(|tap| tap.side = TapSide::Client).matches_request(&REQUEST));
    }

    #[test]
    fn status_ranges_have_three_forms() {
        for (text, from, to, printed) in [
            ("503", 503, 503, "503"),
            ("5xx", 500, 599, "500-599"),
            ("400-404", 400, 404, "400-404"),
            ("000", 0, 0, "000"),
        ] {
            let range = StatusRange::parse(text).unwrap();
            assert_eq!((range, range.to_string().as_str()), (StatusRange { from, to }, printed));
            assert_eq!(StatusRange::parse(printed), Some(range));
        }
        for invalid in
            ["", "5", "50", "600", "xx", "6xx", "55xx", "499-400", "-1", "+500", "5xx-6xx"]
        {
            assert_eq!(StatusRange::parse(invalid), None, "{invalid}");
        }
    }
}
