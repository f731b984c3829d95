//! Detection of cross-site browser requests to local servers by their headers.
//!
//! A browser reaches servers on loopback and in its local network. A page of another site cannot read the
//! responses, but it can trigger work, and it can read them if its own name resolves to the server's address
//! (DNS rebinding). Headers that scripts cannot set identify such requests (Fetch Metadata, Fetch Standard
//! §3.2); for DNS rebinding, only the host name does.

use std::net::IpAddr;

/// The host names that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedHosts {
    /// IP addresses and `localhost`.
    Local,
    /// Those, and names that no public site can have: names without dots, and those of Services.
    Cluster,
    /// Any name: the server requires a secret that browsers send only to its true name.
    Any,
}

/// The reason that a request may be cross-site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CrossSiteRequest {
    /// The `Host` may be the name of a foreign site.
    #[error(
        "the Host of this request may be a name of a foreign site: open the page by its address or as localhost"
    )]
    Host,
    /// It has more than one `Host` field (RFC 9112 §3.2).
    #[error("this request has more than one Host field: send one")]
    SeveralHosts,
    /// A page of another origin sent the request.
    #[error("a page of another site made this request: open the address in the browser itself")]
    Site,
}

/// Returns the requested host: the authority of the target, if any, precedes the `Host` header (RFC 9112
/// §3.2.2). Empty if there is none.
///
/// # Errors
/// If there are several `Host` headers.
pub fn named_host<'a>(
    target: Option<&'a str>,
    mut fields: impl Iterator<Item = &'a str>,
) -> Result<&'a str, CrossSiteRequest> {
    let field = fields.next();
    match fields.next() {
        Some(_) => Err(CrossSiteRequest::SeveralHosts),
        None => Ok(target.or(field).unwrap_or_default()),
    }
}

/// Returns the value of a header that may occur once; an empty value if it is repeated, because the values may differ.
pub fn only_value<'a>(mut values: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = values.next()?;
    Some(if values.next().is_some() { "" } else { first })
}

/// Checks a request received under the name `host`. `field` returns the value of a header by its lower-case name,
/// or an empty value if it is not text or [repeated](only_value). A link on another site may navigate to a page:
/// it is accepted if `is_page`, for responses that are cheap and have no side effects.
///
/// # Errors
/// [`CrossSiteRequest`].
pub fn check_origin<'a>(
    host: &str,
    field: impl Fn(&'static str) -> Option<&'a str>,
    names: AcceptedHosts,
    is_page: bool,
) -> Result<(), CrossSiteRequest> {
    if !names.includes_host(host) {
        return Err(CrossSiteRequest::Host);
    }
    let is_link = is_page
        && field("sec-fetch-mode") == Some("navigate")
        && field("sec-fetch-dest") == Some("document");
    let is_own_site = match field("sec-fetch-site") {
        None | Some("same-origin" | "none") => true,
        Some(_) => is_link,
    };
    let is_own_origin = field("origin").is_none_or(|origin| {
        let schemes = ["http://", "https://"];
        let own = schemes.iter().find_map(|scheme| origin.strip_prefix(scheme));
        own.is_some_and(|own| own.eq_ignore_ascii_case(host))
    });
    match is_own_site && is_own_origin {
        true => Ok(()),
        false => Err(CrossSiteRequest::Site),
    }
}

impl AcceptedHosts {
    fn includes_host(self, host: &str) -> bool {
        if self == Self::Any {
            return true;
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => host,
        };
        let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if name.eq_ignore_ascii_case("localhost") || inner.unwrap_or(name).parse::<IpAddr>().is_ok()
        {
            return true;
        }
        let name = name.to_ascii_lowercase();
        let named = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        self == Self::Cluster
            && !name.is_empty()
            && name.bytes().all(named)
            && (!name.contains('.') || SUFFIXES.iter().any(|suffix| name.ends_with(suffix)))
    }
}

/// Suffixes outside the public DNS: those of Services, and the one for private use.
const SUFFIXES: [&str; 3] = [".svc", ".cluster.local", ".internal"];

#[cfg(test)]
mod tests {
    use super::*;

    fn check_fields(
        fields: &[(&str, &str)],
        names: AcceptedHosts,
        is_page: bool,
    ) -> Result<(), CrossSiteRequest> {
        let all = |name| fields.iter().filter(move |(known, _)| *known == name).map(|it| it.1);
        let field = |name: &'static str| only_value(all(name));
        let hosts = fields.iter().filter(|(known, _)| *known == "host").map(|it| it.1);
        check_origin(named_host(None, hosts)?, field, names, is_page)
    }

    #[test]
    fn a_request_names_one_host_and_that_of_its_target_counts() {
        let (own, foreign) = ("127.0.0.1:80", "evil.example");
        for (target, fields, expected) in [
            (None, &[own][..], Ok(own)),
            (None, &[], Ok("")),
            (Some(foreign), &[own], Ok(foreign)),
            (Some(own), &[], Ok(own)),
            (None, &[own, own], Err(CrossSiteRequest::SeveralHosts)),
            (Some(own), &[own, foreign], Err(CrossSiteRequest::SeveralHosts)),
        ] {
            assert_eq!(named_host(target, fields.iter().copied()), expected, "{target:?}");
        }
    }

    #[test]
    fn a_server_answers_under_addresses_and_names_of_its_own() {
        for (host, local, cluster) in [
            ("127.0.0.1", true, true),
            ("127.0.0.1:15000", true, true),
            ("[::1]:80", true, true),
            ("::1", false, false),
            ("LocalHost:1", true, true),
            ("web-1:15020", false, true),
            ("leno-control.leno-system.svc:15020", false, true),
            ("a.b.svc.cluster.local", false, true),
            ("evil.example", false, false),
            ("a.svc.evil.example:80", false, false),
            ("127.0.0.1.evil.example", false, false),
            ("localhost.evil.example", false, false),
            ("127.0.0.1:80:80", false, false),
            ("evil.example:svc", false, false),
            ("", false, false),
            (".", false, false),
            ("evil.example.", false, false),
        ] {
            for (names, expected) in
                [(AcceptedHosts::Local, local), (AcceptedHosts::Cluster, cluster)]
            {
                let found = check_fields(&[("host", host)], names, false);
                let expected = if expected { Ok(()) } else { Err(CrossSiteRequest::Host) };
                assert_eq!(found, expected, "{host} {names:?}");
            }
        }
        assert_eq!(check_fields(&[], AcceptedHosts::Cluster, true), Err(CrossSiteRequest::Host));
    }

    #[test]
    fn a_page_of_another_origin_is_rejected_and_a_link_to_a_page_is_not() {
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        for (fields, of_data, of_page) in [
            (&[][..], true, true),
            (&[("sec-fetch-site", "same-origin")], true, true),
            (&[("sec-fetch-site", "none")], true, true),
            (&[("sec-fetch-site", "same-site")], false, false),
            (&[("sec-fetch-site", "cross-site")], false, false),
            (&[("sec-fetch-site", "")], false, false),
            (&[("sec-fetch-site", "cross-site"), link[0], link[1]], false, true),
            (&[("sec-fetch-site", "cross-site"), frame[0], frame[1]], false, false),
            (&[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], false, false),
            (&[("sec-fetch-site", "none"), ("sec-fetch-site", "none")], false, false),
            (&[("sec-fetch-site", "cross-site"), link[0], frame[1], link[1]], false, false),
            (&[("origin", "http://127.0.0.1:80"), ("origin", "null")], false, false),
            (&[("origin", "http://127.0.0.1:80")], true, true),
            (&[("origin", "http://127.0.0.1:81")], false, false),
            (&[("origin", "https://127.0.0.1:80")], true, true),
            (&[("origin", "http://evil.example")], false, false),
            (&[("origin", "null")], false, false),
            (&[("origin", "")], false, false),
        ] {
            for (is_page, expected) in [(false, of_data), (true, of_page)] {
                let fields = [&[("host", "127.0.0.1:80")], fields].concat();
                let found = check_fields(&fields, AcceptedHosts::Local, is_page);
                assert_eq!(found.is_ok(), expected, "{fields:?} {is_page}");
            }
        }
    }
}
