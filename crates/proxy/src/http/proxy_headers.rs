//! Headers that only a trusted proxy may set, such as `x-forwarded-for`: client address, host, URL, scheme
//! and client certificate. A gateway removes them from the requests of external clients.
//!
//! A gateway is the first proxy of the mesh that a client reaches. No load balancer or CDN in front of it is
//! trusted, so such a header may have been written by the client.

use leno_wire::http1::RequestHead;

/// Removes the proxy headers from the request of an external client, so that neither rules nor applications see
/// them.
pub(crate) fn remove_proxy_headers(head: &mut RequestHead, bytes: &[u8]) {
    head.fields.retain(|field| !is_proxy_header(field.name.slice_in(bytes)));
}

/// True for the name of a field that only a trusted proxy may set. Case and punctuation are ignored, because
/// servers may ignore them: CGI replaces each punctuation character with `_`.
pub(super) fn is_proxy_header(name: &[u8]) -> bool {
    let (Some(first_letter), Some(last_letter)) = (name.first(), name.last()) else { return false };
    let third_byte = match name.get(2) {
        Some(byte) if byte.is_ascii_alphanumeric() => byte.to_ascii_lowercase(),
        _ => b'-',
    };
    let matches_name = |listed_name: &&str| match listed_name.strip_suffix('*') {
        Some(prefix) => name.get(..prefix.len()).is_some_and(|name| is_same_name(name, prefix)),
        None => is_same_name(name, listed_name),
    };
    let matches_suffix = |listed_name: &&str| {
        let start = name.len().checked_sub(listed_name.len());
        start.is_some_and(|start| {
            name.get(start..).is_some_and(|name| is_same_name(name, listed_name))
        })
    };
    // A quick check first: most names share neither first and third letter nor last letter with a listed name.
    let mut candidates = listed_names(first_letter.to_ascii_lowercase()).iter();
    candidates.any(|listed_name| {
        listed_name.as_bytes().get(2) == Some(&third_byte) && matches_name(listed_name)
    }) || listed_suffixes(last_letter.to_ascii_lowercase()).iter().any(matches_suffix)
}

/// True if a name equals a listed one of the same length. Any punctuation equals `-`.
fn is_same_name(name: &[u8], listed_name: &str) -> bool {
    let is_same_byte = |(byte, listed_byte): (&u8, u8)| match listed_byte {
        b'-' => !byte.is_ascii_alphanumeric(),
        _ => byte.eq_ignore_ascii_case(&listed_byte),
    };
    name.len() == listed_name.len() && name.iter().zip(listed_name.bytes()).all(is_same_byte)
}

/// Returns the listed names with this first letter; `*` at the end of a name matches any suffix.
fn listed_names(first_letter: u8) -> &'static [&'static str] {
    match first_letter {
        b'x' => X_NAMES,
        b'b' => &["base-url"],
        // Cloudflare, CloudFront, Akamai and RFC 9440.
        b'c' => &[
            "cf-connecting*",
            "cf-pseudo-ipv4",
            "cf-visitor",
            "cf-ipcountry",
            "cloudfront-*",
            "client-address",
            "client-cert*",
            "client-ip*",
            "clientip",
            "cip",
            "coming-from",
        ],
        // Azure App Service: the host before it is rewritten.
        b'd' => &["disguised-host"],
        // RFC 7239 and its predecessors; Fastly, Fly, Microsoft.
        b'f' => &["forwarded*", "fastly-*", "fly-*", "front-end-https"],
        b'h' => &["http-url", "http-host-override"],
        // CGI turns the first of them into `HTTP_PROXY`, which programs use as the address of their own proxy.
        b'p' => &["proxy", "proxy-host", "proxy-url", "proxy-client-*"],
        b'r' => &["redirect", "referrer-ip", "remote-*", "request-uri"],
        b's' => &["ssl-client-*"],
        b't' => &["true-client-*"],
        b'w' => &["was-default-hostname", "wl-proxy-*"],
        _ => &[],
    }
}

/// The listed names that begin with `x`.
const X_NAMES: &[&str] = &[
    "x-forwarded*",
    "x-forwarder*",
    "x-forward-for",
    "x-forward-proto",
    "x-forward-host",
    "x-original*",
    "x-originating*",
    "x-envoy-*",
    "x-real-*",
    "x-remote-*",
    "x-client-cert*",
    "x-client-verify",
    "x-client-dn",
    "x-client-host",
    "x-client-port",
    "x-client-address",
    "x-cluster-client*",
    "x-proxy-*",
    "x-proxyuser-*",
    "x-cip",
    "x-nokia-ipaddress",
    "x-msisdn",
    "x-ms-original*",
    "x-azure-*",
    "x-arr-*",
    "x-waws-*",
    "x-appengine-*",
    "x-vercel-*",
    "x-akamai-*",
    "x-nf-client-*",
    "x-sucuri-*",
    "x-amzn-mtls-*",
    "x-amzn-remapped-*",
    "x-ssl-*",
    "x-tls-client*",
    "x-rewrite-url",
    "x-override-url",
    "x-host",
    "x-host-override",
    "x-http-host*",
    "x-http-destinationurl",
    "x-http-client*",
    "x-request-uri",
    "x-url-scheme",
    "x-scheme",
    "x-https",
    "x-ip-address",
    "x-ipaddress",
    "x-custom-ip-authorization",
    "x-coming-from",
    "x-comes-from",
    "x-peer-address",
];

/// Returns the listed name suffixes with this last letter.
fn listed_suffixes(last_letter: u8) -> &'static [&'static str] {
    match last_letter {
        b'p' => &["-ip", "-clientip", "-socketip", "-realip", "-userip", "-remoteip"],
        b'4' => &["-ipv4"],
        b'6' => &["-ipv6"],
        b'r' => &["-addr", "-forwarded-for"],
        b's' => &["-client-address", "-remote-address", "-viewer-address"],
        b't' => &["-forwarded-host"],
        b'o' => &["-forwarded-proto"],
        b'f' => &["-xff"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_by_their_first_or_last_letter() {
        for letter in 0..=u8::MAX {
            assert!(listed_names(letter).iter().all(|listed| listed.as_bytes()[0] == letter));
            assert!(
                listed_suffixes(letter)
                    .iter()
                    .all(|listed| listed.as_bytes().last() == Some(&letter))
            );
        }
    }

    #[test]
    fn a_proxy_header_is_recognized_in_any_case_and_with_any_punctuation() {
        for name in [
            "X-Forwarded-For",
            "x_forwarded_for",
            "X.Forwarded.For",
            "x-forwarded_For",
            "X-FORWARDED",
            "forwarded",
            "True_Client_Ip",
            "cf.connecting-ip",
            "REMOTE_ADDR",
            "clientip",
            "X-ARR-ClientCert",
            "x_arr_ssl",
            "X-WAWS-Unencoded-URL",
            "X_Override.Url",
            "Proxy",
            "Disguised-Host",
            "X-MS-Original-URL",
            "WAS_DEFAULT_HOSTNAME",
            "client-address",
            "Client_Address",
            "X-CIP",
            "cip",
            "X-Nokia-IpAddress",
            "x_msisdn",
        ] {
            assert!(is_proxy_header(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn headers_of_browsers_and_of_tracing_are_not_proxy_headers() {
        for name in [
            "host",
            "user-agent",
            "accept",
            "accept-encoding",
            "accept-language",
            "authorization",
            "cookie",
            "content-type",
            "content-length",
            "cache-control",
            "connection",
            "referer",
            "origin",
            "range",
            "if-none-match",
            "sec-fetch-site",
            "sec-ch-ua-platform",
            "sec-websocket-key",
            "te",
            "via",
            "x-request-id",
            "x-b3-traceid",
            "traceparent",
            "tracestate",
            "x-csrf-token",
            "x-requested-with",
            "x-forwards",
            "x-hostname",
            "x-api-key",
            "x-client-version",
            "x-clip",
            "x-cipher",
            "cipher",
            "x-ms-client-request-id",
            "client-addresses",
            "was",
            "disguised",
            "x-ship",
            "x-arrival",
            "x-override",
            "x-membership",
            "clip",
            "x-shipping-address",
            "front-end",
            "forward",
            "grpc-timeout",
            "grpc-encoding",
            "priority",
            "dnt",
            "x",
            "-ip-x",
            "leno-tag",
            "remote",
            "client-hints",
            "x-realm",
            "x-user",
            "x-role",
            "x-schema",
            "upgrade-insecure-requests",
            "pragma",
            "proxy-authorization",
            "proxies",
            "date",
            "from",
        ] {
            assert!(!is_proxy_header(name.as_bytes()), "{name}");
        }
    }
}
