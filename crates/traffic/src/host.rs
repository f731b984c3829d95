//! Resolves the host names of requests to services of the mesh, and decides whether requests to other hosts are
//! rejected.

use leno_model::{Name, Reason, ServiceName};

/// Returns the service for a host name without a port, as seen from this namespace.
///
/// The accepted forms are `S` (in the client's own namespace), `S.N`, `S.N.svc`, `S.N.svc.cluster` and
/// `S.N.svc.cluster.local`, in any case, with or without one trailing dot. The last two labels do not depend on
/// the trust domain. The result is `None` for every other name.
#[must_use]
pub fn service_of(host: &str, own_namespace: &Name) -> Option<ServiceName> {
    if host.len() > MAX_HOST_BYTES {
        return None;
    }
    let lowercase_host = host.to_ascii_lowercase();
    let mut labels = lowercase_host.strip_suffix('.').unwrap_or(&lowercase_host).split('.');
    let name = Name::new(labels.next()?).ok()?;
    let namespace = match labels.next() {
        Some(namespace) => Name::new(namespace).ok()?,
        None => own_namespace.clone(),
    };
    let mut suffix = CLUSTER_SUFFIX.iter();
    labels.all(|label| suffix.next() == Some(&label)).then_some(ServiceName { namespace, name })
}

/// Returns the rejection reason for a request to a host that is not a service of the mesh; `None` if the host is
/// external and the request may leave the mesh. `service` is the service name if the host name has that form.
/// `may_leave` is true if egress is allowed. `knows_namespace` returns true if the mesh has services in a namespace.
#[must_use]
pub fn external_rejection(
    host: &str,
    service: Option<&ServiceName>,
    may_leave: bool,
    knows_namespace: impl FnOnce(&Name) -> bool,
) -> Option<Reason> {
    match (service, may_leave) {
        // A host name of this form can only be a service of the mesh.
        (Some(service), false)
            if is_fully_qualified(host) || knows_namespace(&service.namespace) =>
        {
            Some(Reason::UnknownService)
        }
        (Some(_), true) if is_fully_qualified(host) => Some(Reason::UnknownService),
        (_, false) => Some(Reason::EgressDenied),
        (_, true) => None,
    }
}

/// True for fully qualified service names, which no resolver outside the mesh knows.
fn is_fully_qualified(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.split('.').nth(2).is_some_and(|label| label.eq_ignore_ascii_case("svc"))
}

/// The labels that may follow the namespace of a service.
const CLUSTER_SUFFIX: [&str; 3] = ["svc", "cluster", "local"];

/// The maximum length of a host name: 253 characters (RFC 1035), and a trailing dot.
const MAX_HOST_BYTES: usize = 254;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_service_names_are_resolved() {
        let long_label = "a".repeat(64);
        let long_host = "a.".repeat(1_000);
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
            (&long_label, None),
            (&long_host, None),
        ] {
            let service = service_of(host, &Name::new("own").unwrap());
            assert_eq!(service.map(|name| name.to_string()).as_deref(), expected, "{host}");
        }
    }
}
