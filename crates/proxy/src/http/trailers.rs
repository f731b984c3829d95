//! Filters the trailers of requests.
//!
//! Policies decide when the head of a request has arrived. A server may merge trailer fields into the headers
//! (RFC 9110 §6.5.1 permits it for fields that allow it), and would treat a late field as one that a policy has
//! evaluated.

use std::time::Instant;

use bytes::Bytes;
use leno_traffic::{CompiledActions, is_similar_name};

use super::body::BodyPiece;
use super::proxy_headers::is_proxy_header;
use crate::session::{ListenerKind, Session};

/// Returns the permitted fields of a raw trailer section; `None` if no field is permitted.
///
/// * A field is removed if the rule sets or removes a header with its name or with a name that some servers treat
///   as equal, such as `x_role` and `x-role`.
/// * A gateway also removes the fields by which clients claim an address, a host or a certificate.
/// * The server's sidecar removes all fields if an access policy decides by properties of each request.
pub(crate) fn permitted_section(
    session: &Session,
    actions: Option<&CompiledActions>,
    section: Bytes,
) -> Option<Bytes> {
    if matches!(session.listener_kind, ListenerKind::Inbound { .. })
        && is_decided_by_request(session)
    {
        return None;
    }
    let edited_names = actions.map_or(&[][..], |actions| &actions.request.remove);
    let is_gateway = matches!(session.listener_kind, ListenerKind::Gateway { .. });
    remove_fields(section, |name| {
        edited_names.iter().any(|edited_name| is_similar_name(edited_name.as_bytes(), name))
            || is_gateway && is_proxy_header(name)
    })
}

/// Filters the trailers of a buffered body.
pub(crate) fn permit_body_trailers(
    session: &Session,
    actions: Option<&CompiledActions>,
    body: Vec<BodyPiece>,
) -> Vec<BodyPiece> {
    let permitted_pieces = body.into_iter().filter_map(|piece| match piece {
        BodyPiece::Trailers(section) => {
            permitted_section(session, actions, section).map(BodyPiece::Trailers)
        }
        data @ BodyPiece::Data(_) => Some(data),
    });
    permitted_pieces.collect()
}

/// True if the access policies of the port do not permit opaque bytes from the peer: they depend on requests,
/// or the peer is no longer permitted.
fn is_decided_by_request(session: &Session) -> bool {
    let Some(config) = session.worker.config_store.current_config() else { return true };
    let permit = session.authorize_peer(&config, Instant::now());
    !permit.is_ok_and(|permit| config.compiled.access.authorize_tcp(&permit).is_ok())
}

/// Returns a trailer section without the fields whose names `is_removed` accepts; `None` if no field remains.
/// The section has been validated, so that each line is one field.
fn remove_fields(section: Bytes, is_removed: impl Fn(&[u8]) -> bool) -> Option<Bytes> {
    let field_name = |line: &[u8]| {
        let end = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        line.get(..end).map(<[u8]>::to_vec).unwrap_or_default()
    };
    let is_retained =
        |line: &&[u8]| !line.trim_ascii().is_empty() && !is_removed(&field_name(line));
    let lines = || section.split_inclusive(|byte| *byte == b'\n');
    // Only the empty line at the end is left out, so no field is removed.
    if lines().filter(is_retained).count() + 1 == lines().count() {
        return Some(section);
    }
    let mut remaining_fields: Vec<u8> = lines().filter(is_retained).flatten().copied().collect();
    if remaining_fields.is_empty() {
        return None;
    }
    remaining_fields.extend_from_slice(b"\r\n");
    Some(remaining_fields.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_fields_are_removed() {
        let without_user = |section: &'static str| {
            let remaining = remove_fields(Bytes::from_static(section.as_bytes()), |name| {
                is_similar_name(name, b"x-user")
            });
            remaining.map(|remaining| String::from_utf8(remaining.to_vec()).expect("text"))
        };
        assert_eq!(without_user("x-sum: 8\r\n\r\n").as_deref(), Some("x-sum: 8\r\n\r\n"));
        assert_eq!(without_user("X.User: root\r\n\r\n"), None);
        let mixed = "a: 1\r\nX_USER: root\r\nb: x-user\r\n\r\n";
        assert_eq!(without_user(mixed).as_deref(), Some("a: 1\r\nb: x-user\r\n\r\n"));
    }
}
