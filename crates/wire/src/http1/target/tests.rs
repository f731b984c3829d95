//! Tests of request targets in their four forms.

use super::*;

#[test]
fn parses_the_four_forms() {
    let origin = |path, query| RequestTarget::Origin { path, query };
    let cases: [(&[u8], &[u8], RequestTarget<'_>); 8] = [
        (b"GET", b"/", origin(b"/", None)),
        (b"GET", b"/a%2Fb?", origin(b"/a%2Fb", Some(b""))),
        (b"GET", b"/a?b?c=http://d", origin(b"/a", Some(b"b?c=http://d"))),
        (b"OPTIONS", b"*", RequestTarget::Asterisk),
        (b"CONNECT", b"a.b:443", RequestTarget::Authority { host: b"a.b", port: 443 }),
        (b"CONNECT", b"[::1]:1", RequestTarget::Authority { host: b"[::1]", port: 1 }),
        (
            b"GET",
            b"http://a:80/b?c",
            RequestTarget::Absolute {
                scheme: b"http",
                authority: b"a:80",
                path: b"/b",
                query: Some(b"c"),
            },
        ),
        (
            b"GET",
            b"HTTPS://a?c",
            RequestTarget::Absolute {
                scheme: b"HTTPS",
                authority: b"a",
                path: b"/",
                query: Some(b"c"),
            },
        ),
    ];
    for (method, received, expected) in cases {
        assert_eq!(parse_target(method, received), Ok(expected), "{}", received.escape_ascii());
    }
}

#[test]
fn rejects_other_forms() {
    let cases: [(&[u8], &[u8], Malformed); 12] = [
        (b"GET", b"", Malformed::TargetForm),
        (b"GET", b"*", Malformed::TargetForm),
        (b"GET", b"a:80", Malformed::TargetForm),
        (b"GET", b"://a/", Malformed::TargetForm),
        (b"GET", b"1http://a/", Malformed::TargetForm),
        (b"GET", b"a/http://b/", Malformed::TargetForm),
        (b"GET", b"/a#b", Malformed::TargetCharacter),
        (b"GET", b"/a b", Malformed::TargetCharacter),
        (b"GET", b"http://a\\@b/", Malformed::Authority),
        (b"GET", b"http://a/\\b", Malformed::TargetCharacter),
        (b"CONNECT", b"a:", Malformed::TargetForm),
        (b"CONNECT", b"http://a:1/", Malformed::Authority),
    ];
    for (method, received, fault) in cases {
        assert_eq!(parse_target(method, received), Err(fault), "{}", received.escape_ascii());
    }
}

#[test]
fn origin_form_drops_scheme_and_authority() {
    let cases: [(&[u8], &[u8], &[u8]); 8] = [
        (b"GET", b"/a?b", b"/a?b"),
        (b"GET", b"http://a", b"/"),
        (b"GET", b"http://a/b?c", b"/b?c"),
        (b"GET", b"http://a/?", b"/?"),
        (b"GET", b"http://a?c", b"/?c"),
        (b"OPTIONS", b"http://a", b"*"),
        (b"OPTIONS", b"http://a?b", b"/?b"),
        (b"CONNECT", b"a:1", b"a:1"),
    ];
    for (method, received, expected) in cases {
        let form = origin_form(method, received).unwrap();
        assert_eq!(form.as_ref(), expected, "{}", received.escape_ascii());
    }
    assert!(matches!(origin_form(b"GET", b"http://a/b?c"), Ok(Cow::Borrowed(_))));
}

#[test]
fn splits_host_and_port() {
    let valid_authorities: [(&[u8], &[u8], Option<u16>); 7] = [
        (b"a", b"a", None),
        (b"a:", b"a", None),
        (b"a:0", b"a", Some(0)),
        (b"a_b.c:65535", b"a_b.c", Some(65535)),
        (b"127.0.0.1:080", b"127.0.0.1", Some(80)),
        (b"[::1]", b"[::1]", None),
        (b"[fe80::1.2.3.4]:8080", b"[fe80::1.2.3.4]", Some(8080)),
    ];
    for (authority, host, port) in valid_authorities {
        assert_eq!(split_authority(authority), Ok((host, port)));
    }
    let invalid_authorities: [&[u8]; 16] = [
        b"",
        b":",
        b":80",
        b"a:+1",
        b"a:65536",
        b"a:b",
        b"a:1:2",
        b"::1",
        b"[]",
        b"[::1",
        b"[::1]a",
        b"[g::1]",
        b"[:::::]",
        b"[...]",
        b"[1:2:3:4:5:6:7:8:9]",
        b"[fe80::1%25eth0]",
    ];
    for authority in invalid_authorities {
        assert_eq!(split_authority(authority), Err(Malformed::Authority));
    }
}
