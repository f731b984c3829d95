//! Detects cross-site requests of browsers to local servers by their headers.
//!
//! A browser reaches servers on loopback and in its local network. A page of another site cannot read their responses,
//! but its requests can cause work; and it can read the responses if the name of its site resolves to the server's address
//! (DNS rebinding). The headers `Sec-Fetch-*` and `Origin`, which scripts cannot set, reveal cross-site requests (Fetch
//! Metadata; Fetch Standard §3.2). After DNS rebinding, only the host name reveals them.

use std::net::IpAddr;

/// The host names that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedHosts {
    /// IP addresses and `localhost`.
    Local,
    /// The names of [`Self::Local`], and names that no public site can have: names without dots, and names of Services.
    Cluster,
    /// Any name. The server requires a secret, which browsers send only to the server's own name.
    Any,
}

/// The reason that a request may be cross-site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CrossSiteRequest {
    /// The `Host` may be the name of a public site.
    #[error(
        "the Host of this request may be a name of a foreign site: open the page by its address or as localhost"
    )]
    UntrustedHost,
    /// The request has more than one `Host` field (RFC 9112 §3.2).
    #[error("this request has more than one Host field: send one")]
    MultipleHosts,
    /// A page of another origin sent the request.
    #[error("a page of another site made this request: open the address in the browser itself")]
    OtherOrigin,
}

/// Returns the requested host (RFC 9112 §3.2.2): the authority of the request target or, if `target_authority` is `None`, the
/// value of the `Host` header. Empty if both are absent.
///
/// # Errors
/// [`CrossSiteRequest::MultipleHosts`] if there are several `Host` headers.
pub fn request_host<'a>(
    target_authority: Option<&'a str>,
    mut host_values: impl Iterator<Item = &'a str>,
) -> Result<&'a str, CrossSiteRequest> {
    let host_value = host_values.next();
    match host_values.next() {
        Some(_) => Err(CrossSiteRequest::MultipleHosts),
        None => Ok(target_authority.or(host_value).unwrap_or_default()),
    }
}

/// Returns the value of a header that may occur once; `None` if it is absent. A repeated header has an empty value, because
/// its values may differ.
pub fn single_value<'a>(mut values: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first_value = values.next()?;
    Some(if values.next().is_some() { "" } else { first_value })
}

/// Checks a request received under the name `host`. `header` returns the value of a header by its lower-case name: `None` if
/// the header is absent, and an empty value if it is not text or [repeated](single_value). With `is_page`, a request that a
/// hyperlink on another site caused is accepted; this is for responses that are cheap and have no side effects.
///
/// # Errors
/// [`CrossSiteRequest`] if a page of another site may have sent it.
pub fn check_origin<'a>(
    host: &str,
    header: impl Fn(&'static str) -> Option<&'a str>,
    accepted_hosts: AcceptedHosts,
    is_page: bool,
) -> Result<(), CrossSiteRequest> {
    if !accepted_hosts.includes_host(host) {
        return Err(CrossSiteRequest::UntrustedHost);
    }
    let is_navigation = is_page
        && header("sec-fetch-mode") == Some("navigate")
        && header("sec-fetch-dest") == Some("document");
    // Clients other than browsers send no `Sec-Fetch-Site`; `none` means that the user opened the address.
    let is_own_site = match header("sec-fetch-site") {
        None | Some("same-origin" | "none") => true,
        Some(_) => is_navigation,
    };
    let is_own_origin = header("origin").is_none_or(|origin| {
        let schemes = ["http://", "https://"];
        let origin_host = schemes.iter().find_map(|scheme| origin.strip_prefix(scheme));
        origin_host.is_some_and(|origin_host| origin_host.eq_ignore_ascii_case(host))
    });
    match is_own_site && is_own_origin {
        true => Ok(()),
        false => Err(CrossSiteRequest::OtherOrigin),
    }
}

impl AcceptedHosts {
    /// True if a request for this host, with or without a port, is accepted.
    fn includes_host(self, host: &str) -> bool {
        if self == Self::Any {
            return true;
        }
        let host_name = match host.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => host,
        };
        // An IPv6 address is in brackets.
        let ipv6_address = host_name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if host_name.eq_ignore_ascii_case("localhost")
            || ipv6_address.unwrap_or(host_name).parse::<IpAddr>().is_ok()
        {
            return true;
        }
        let name = host_name.to_ascii_lowercase();
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        self == Self::Cluster
            && !name.is_empty()
            && name.bytes().all(is_name_byte)
            && (!name.contains('.')
                || NON_PUBLIC_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)))
    }
}

/// Suffixes of names outside the public DNS: those of Services, and the one that ICANN reserves for private use.
const NON_PUBLIC_SUFFIXES: [&str; 3] = [".svc", ".cluster.local", ".internal"];

#[cfg(test)]
mod tests {
    use super::*;

    fn check_fields(
        fields: &[(&str, &str)],
        accepted_hosts: AcceptedHosts,
        is_page: bool,
    ) -> Result<(), CrossSiteRequest> {
        let values = |name| {
            fields.iter().filter(move |(field_name, _)| *field_name == name).map(|field| field.1)
        };
        let field = |name: &'static str| single_value(values(name));
        let hosts = fields.iter().filter(|(name, _)| *name == "host").map(|field| field.1);
        check_origin(request_host(None, hosts)?, field, accepted_hosts, is_page)
    }

    #[test]
    fn the_request_target_takes_precedence_over_one_host_header() {
        let (own_host, foreign_host) = ("127.0.0.1:80", "evil.example");
        for (target, fields, expected) in [
            (None, &[own_host][..], Ok(own_host)),
            (None, &[], Ok("")),
            (Some(foreign_host), &[own_host], Ok(foreign_host)),
            (Some(own_host), &[], Ok(own_host)),
            (None, &[own_host, own_host], Err(CrossSiteRequest::MultipleHosts)),
            (Some(own_host), &[own_host, foreign_host], Err(CrossSiteRequest::MultipleHosts)),
        ] {
            assert_eq!(request_host(target, fields.iter().copied()), expected, "{target:?}");
        }
    }

    #[test]
    fn only_local_or_cluster_hosts_are_accepted() {
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
                let result = check_fields(&[("host", host)], names, false);
                let expected = if expected { Ok(()) } else { Err(CrossSiteRequest::UntrustedHost) };
                assert_eq!(result, expected, "{host} {names:?}");
            }
        }
        assert_eq!(
            check_fields(&[], AcceptedHosts::Cluster, true),
            Err(CrossSiteRequest::UntrustedHost)
        );
    }

    #[test]
    fn cross_site_requests_are_rejected_except_links_to_pages() {
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        for (fields, data_accepted, page_accepted) in [
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
            for (is_page, expected) in [(false, data_accepted), (true, page_accepted)] {
                let fields = [&[("host", "127.0.0.1:80")], fields].concat();
                let result = check_fields(&fields, AcceptedHosts::Local, is_page);
                assert_eq!(result.is_ok(), expected, "{fields:?} {is_page}");
            }
        }
    }
}
