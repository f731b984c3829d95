//! Parses absolute targets with a scheme other than `http`: `https` requires TLS, and all other schemes are
//! rejected.

use std::sync::Arc;

use leno_model::{FixedResponse, Reason, Scheme};
use leno_traffic::SessionTransport;
use leno_wire::http1::RequestTarget;

use super::request::{ParsedTarget, Request};
use crate::error::Failure;
use crate::session::Session;

/// Parses an absolute target with another scheme than `http`. The sender of an `https` target expects TLS (RFC
/// 9110 §4.2.2), so the request must have arrived over TLS. The same holds for HTTP/2, except that `:scheme` is
/// ignored, because it does not describe the last hop: clients behind a load balancer that terminates TLS send
/// `https` in plaintext.
///
/// # Errors
/// `unsupported` with a hint, or `reason` for a target of another form.
#[cold]
pub(super) fn parse_target<'b>(
    session: &Session,
    request: &'b Request<'_>,
    reason: Reason,
) -> Result<ParsedTarget<'b>, Failure> {
    let Ok(RequestTarget::Absolute { scheme, .. }) = request.head.parsed_target(&request.bytes)
    else {
        return Err(reason.into());
    };
    let is_https = scheme.eq_ignore_ascii_case(b"https");
    if is_https && arrived_over_tls(session) {
        return Ok(request.parse_target_any_scheme()?);
    }
    let hint = match is_https {
        true => {
            "The target begins with https://, and this connection has no TLS. Open a tunnel with CONNECT for https, as \
             clients of an HTTP proxy do, or use http://."
                .to_owned()
        }
        false => {
            let scheme = scheme.get(..MAX_QUOTED_SCHEME_BYTES).unwrap_or(scheme);
            let scheme = String::from_utf8_lossy(scheme);
            format!("Targets that begin with {scheme}:// are not supported. Use http://, or a tunnel (CONNECT).")
        }
    };
    let body = Some(format!("leno: {hint}\n"));
    let response = Some(Arc::new(FixedResponse { status: None, body, headers: Vec::new() }));
    Err(Failure { response, ..Failure::from(Reason::Unsupported) })
}

/// True if the client has sent the request over TLS.
fn arrived_over_tls(session: &Session) -> bool {
    session.gateway_connection.as_ref().is_some_and(|connection| connection.scheme == Scheme::Https)
        || matches!(session.transport, SessionTransport::Tls { .. })
}

/// The maximum number of bytes of a scheme in a response.
const MAX_QUOTED_SCHEME_BYTES: usize = 32;
