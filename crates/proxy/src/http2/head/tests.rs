//! Round trips of heads between the HTTP versions.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use leno_wire::http1::{Parsed, RequestHead, RequestKind, ResponseHead};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// End-to-end fields with names that have no meaning to a proxy.
fn any_fields() -> impl Strategy<Value = HeaderMap> {
    vec(("x-[a-z0-9-]{0,12}", "[ -~\u{e9}]{0,30}"), 0..12).prop_map(|fields| {
        let value = |text: String| HeaderValue::from_bytes(text.trim().as_bytes()).unwrap();
        let name = |text: String| HeaderName::from_bytes(text.as_bytes()).unwrap();
        fields.into_iter().map(|(text, said)| (name(text), value(said))).collect()
    })
}

proptest! {
    #[test]
    fn a_request_is_the_same_after_both_ways(
        method in "(GET|POST|M-SEARCH|get)",
        target in "/[a-z0-9/%.~]{0,20}(\\?[a-z=&%]{0,10})?",
        host in "[a-z]{1,10}(\\.[a-z]{1,5})?(:[1-9][0-9]{0,3})?",
        fields in any_fields(),
        crumbs in vec("[a-z]=[a-z0-9]{1,5}", 0..3),
    ) {
        let uri = format!("https://{host}{target}");
        let mut asked = Request::builder().method(&*method).uri(&uri).body(()).unwrap();
        asked.headers_mut().extend(fields.clone());
        for crumb in &crumbs {
            asked.headers_mut().append(COOKIE, crumb.parse().unwrap());
        }
        let (parts, ()) = asked.into_parts();
        let bytes = request_to_http1(&parts).unwrap();
        let mut head = RequestHead::default();
        prop_assert_eq!(head.parse(&bytes), Ok(Parsed::Complete(bytes.len())));
        prop_assert_eq!(head.method.slice_in(&bytes), method.as_bytes());
        prop_assert_eq!(head.target.slice_in(&bytes), target.as_bytes());
        prop_assert_eq!(head.host.map(|host| host.slice_in(&bytes)), Some(host.as_bytes()));

        let mut again = request_to(&bytes, &head, "https", &host, &target).unwrap();
        prop_assert_eq!(again.method(), &Method::from_bytes(method.as_bytes()).unwrap());
        prop_assert_eq!(again.uri().to_string(), uri);
        // Fields that each hop sets itself, and those that RFC 9113 §8.2.3 permits to join.
        prop_assert_eq!(again.headers_mut().remove(TE), Some(HeaderValue::from_static("trailers")));
        let cookie = again.headers_mut().remove(COOKIE);
        let joined = (!crumbs.is_empty()).then(|| crumbs.join("; "));
        prop_assert_eq!(cookie.as_ref().map(|it| it.to_str().unwrap()), joined.as_deref());
        prop_assert_eq!(again.headers(), &fields);
    }

    #[test]
    fn an_answer_is_the_same_after_both_ways(status in 200_u16..600, fields in any_fields()) {
        let mut answer = Response::builder().status(status).body(()).unwrap();
        answer.headers_mut().extend(fields.clone());
        let bytes = response_to_http1(&answer.into_parts().0);
        let mut head = ResponseHead::default();
        let parsed = head.parse(&bytes, RequestKind::default());
        prop_assert_eq!(parsed, Ok(Parsed::Complete(bytes.len())));
        let again = response_to(&bytes, &head).unwrap();
        prop_assert_eq!(again.status().as_u16(), status);
        prop_assert_eq!(again.headers(), &fields);
    }

    #[test]
    fn trailers_are_the_same_after_both_ways(fields in any_fields()) {
        let section = trailers_to_http1(&fields);
        prop_assert_eq!(section.is_none(), fields.is_empty());
        prop_assert_eq!(trailers_to(&section.unwrap_or_default()), fields);
    }
}

#[test]
fn a_head_of_http2_never_says_where_it_ends_or_what_is_for_one_hop() {
    let text = "GET /a HTTP/1.1\r\nhost: x\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: 5\r\n\
                upgrade: foo\r\nproxy-connection: close\r\nx-stays: 1\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(head.parse(text.as_bytes()), Ok(Parsed::Complete(text.len())));
    let asked = request_to(text.as_bytes(), &head, "http", "x", "/a").unwrap();
    let mut names: Vec<_> = asked.headers().keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["te", "x-stays"]);
}
