//! Hosts: which service a host name means.

use leno_model::{Name, ServiceName};

/// The service that a host name, without a port, means to a client of this namespace.
///
/// `S` (in the client's own namespace), `S.N`, `S.N.svc`, `S.N.svc.cluster` and
/// `S.N.svc.cluster.local`, in any case, with or without one trailing dot. The last two words are
/// fixed, whatever the trust domain is called. `None` for every other name.
#[must_use]
pub fn service_of(host: &str, own_namespace: &Name) -> Option<ServiceName> {
    if host.len() > HOST_BYTES_MAX {
        return None;
    }
    let lower = host.to_ascii_lowercase();
    let mut parts = lower.strip_suffix('.').unwrap_or(&lower).split('.');
    let name = Name::new(parts.next()?).ok()?;
    let namespace = match parts.next() {
        Some(namespace) => Name::new(namespace).ok()?,
        None => own_namespace.clone(),
    };
    let mut suffix = SUFFIX.iter();
    parts.all(|part| suffix.next() == Some(&part)).then_some(ServiceName { namespace, name })
}

/// What may follow the namespace, as far as a client cares to write it.
const SUFFIX: [&str; 3] = ["svc", "cluster", "local"];

/// RFC 1035: 253 characters, and a trailing dot.
const HOST_BYTES_MAX: usize = 254;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_forms_of_a_service_name_and_nothing_else() {
        let long = "a".repeat(64);
        let longer = "a.".repeat(1_000);
        for (host, expected) in [
            ("ratings", Some("own/ratings")),
            ("ratings.", Some("own/ratings")),
            ("ratings.bookinfo", Some("bookinfo/ratings")),
            ("ratings.bookinfo.", Some("bookinfo/ratings")),
            ("Ratings.BookInfo.SVC", Some("bookinfo/ratings")),
            ("ratings.bookinfo.svc.cluster", Some("bookinfo/ratings")),
            ("ratings.bookinfo.svc.cluster.local", Some("bookinfo/ratings")),
            ("ratings.bookinfo.svc.cluster.local.", Some("bookinfo/ratings")),
            ("ratings.bookinfo.svc.cluster.local..", None),
            ("ratings.bookinfo.svc.cluster.local.x", None),
            ("ratings.bookinfo.svc.local", None),
            ("ratings.bookinfo.pod.cluster.local", None),
            ("ratings.bookinfo.svc:80", None),
            ("ratings:80", None),
            ("www.example.com", None),
            ("127.0.0.1", None),
            ("[::1]", None),
            ("", None),
            (".", None),
            (".bookinfo", None),
            ("ratings..svc", None),
            ("ra tings", None),
            ("user@ratings", None),
            (&long, None),
            (&longer, None),
        ] {
            let found = service_of(host, &Name::new("own").unwrap());
            assert_eq!(found.map(|s| s.to_string()).as_deref(), expected, "{host}");
        }
    }
}
