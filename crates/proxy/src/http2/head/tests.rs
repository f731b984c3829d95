//! Round trips of heads between the HTTP versions.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use leno_wire::http1::{ParseProgress, RequestHead, RequestKind, ResponseHead};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// End-to-end fields with names that have no meaning to a proxy.
fn any_fields() -> impl Strategy<Value = HeaderMap> {
    vec(("x-[a-z0-9-]{0,12}", "[ -~\u{e9}]{0,30}"), 0..12).prop_map(|fields| {
        let value = |text: String| HeaderValue::from_bytes(text.trim().as_bytes()).unwrap();
        let name = |text: String| HeaderName::from_bytes(text.as_bytes()).unwrap();
        fields.into_iter().map(|(text, value_text)| (name(text), value(value_text))).collect()
    })
}

proptest! {
    #[test]
    fn a_request_is_unchanged_by_a_round_trip(
        method in "(GET|POST|M-SEARCH|get)",
        target in "/[a-z0-9/%.~]{0,20}(\\?[a-z=&%]{0,10})?",
        host in "[a-z]{1,10}(\\.[a-z]{1,5})?(:[1-9][0-9]{0,3})?",
        fields in any_fields(),
        crumbs in vec("[a-z]=[a-z0-9]{1,5}", 0..3),
    ) {
        let uri = format!("https://{host}{target}");
        let mut request = Request::builder().method(&*method).uri(&uri).body(()).unwrap();
        request.headers_mut().extend(fields.clone());
        for crumb in &crumbs {
            request.headers_mut().append(COOKIE, crumb.parse().unwrap());
        }
        let (parts, ()) = request.into_parts();
        let bytes = request_to_http1(&parts).unwrap();
        let mut head = RequestHead::default();
        prop_assert_eq!(head.parse(&bytes), Ok(ParseProgress::Complete(bytes.len())));
        prop_assert_eq!(head.method.slice_in(&bytes), method.as_bytes());
        prop_assert_eq!(head.target.slice_in(&bytes), target.as_bytes());
        prop_assert_eq!(head.host.map(|host| host.slice_in(&bytes)), Some(host.as_bytes()));

        let mut converted = request_to_http2(&bytes, &head, "https", &host, &target).unwrap();
        prop_assert_eq!(converted.method(), &Method::from_bytes(method.as_bytes()).unwrap());
        prop_assert_eq!(converted.uri().to_string(), uri);
        // Fields that each hop sets itself, and those that RFC 9113 §8.2.3 permits to join.
        prop_assert_eq!(converted.headers_mut().remove(TE), Some(HeaderValue::from_static("trailers")));
        let cookie = converted.headers_mut().remove(COOKIE);
        let joined = (!crumbs.is_empty()).then(|| crumbs.join("; "));
        prop_assert_eq!(cookie.as_ref().map(|cookie| cookie.to_str().unwrap()), joined.as_deref());
        prop_assert_eq!(converted.headers(), &fields);
    }

    #[test]
    fn a_response_is_unchanged_by_a_round_trip(status in 200_u16..600, fields in any_fields()) {
        let mut response = Response::builder().status(status).body(()).unwrap();
        response.headers_mut().extend(fields.clone());
        let bytes = response_to_http1(&response.into_parts().0);
        let mut head = ResponseHead::default();
        let parsed = head.parse(&bytes, RequestKind::default());
        prop_assert_eq!(parsed, Ok(ParseProgress::Complete(bytes.len())));
        let converted = response_to_http2(&bytes, &head).unwrap();
        prop_assert_eq!(converted.status().as_u16(), status);
        prop_assert_eq!(converted.headers(), &fields);
    }

    #[test]
    fn trailers_are_unchanged_by_a_round_trip(fields in any_fields()) {
        let section = trailers_to_http1(&fields);
        prop_assert_eq!(section.is_none(), fields.is_empty());
        prop_assert_eq!(trailers_to_http2(&section.unwrap_or_default()), fields);
    }
}

#[test]
fn an_http2_head_contains_no_hop_by_hop_fields() {
    let text = "GET /a HTTP/1.1\r\nhost: x\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: 5\r\n\
                upgrade: foo\r\nproxy-connection: close\r\nx-stays: 1\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(head.parse(text.as_bytes()), Ok(ParseProgress::Complete(text.len())));
    let request = request_to_http2(text.as_bytes(), &head, "http", "x", "/a").unwrap();
    let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["te", "x-stays"]);
}
