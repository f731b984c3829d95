//! Parses the target of a request, and provides the view of the request that rules match.

use std::borrow::Cow;

use bytes::Bytes;
use leno_model::{HeaderEdits, Reason, Upgrades};
use leno_traffic::{HeaderLookup, RequestView, is_similar_name};
use leno_wire::http1::{ByteSpan, RequestHead, RequestKind, RequestTarget};

/// A request's head, as received.
pub(crate) struct Request<'a> {
    /// The bytes that the head's spans refer to.
    pub(crate) bytes: Bytes,
    pub(crate) head: &'a RequestHead,
    /// True if the client requests an upgrade. The body then consists of the client's data in the new protocol.
    pub(crate) is_upgrade: bool,
}

/// True for an upgrade that is forwarded. A request for any other upgrade is forwarded without it: a server may
/// ignore `Upgrade` (RFC 9110 §7.8).
pub(crate) fn may_upgrade(upgrades: &Upgrades, head: &RequestHead, bytes: &[u8]) -> bool {
    head.upgrade
        && (head.websocket
            || head.find(bytes, "upgrade").all(|value| {
                let value = std::str::from_utf8(value).unwrap_or_default();
                value.split(',').all(|protocol| upgrades.contains_protocol(protocol.trim_ascii()))
            }))
}

/// The request target, parsed once.
pub(crate) struct ParsedTarget<'a> {
    pub(crate) method: &'a str,
    /// The authority of an absolute target, else the `Host` field.
    pub(crate) authority: &'a str,
    pub(crate) path: &'a str,
    /// The query after `?`; `None` if the target has no `?`.
    pub(crate) query: Option<&'a str>,
    /// The target in origin form; `None` if it arrived in this form.
    pub(crate) origin_form: Option<Cow<'a, str>>,
}

impl Request<'_> {
    /// Returns the method.
    pub(crate) fn method(&self) -> &str {
        method_text(self.head.method.slice_in(&self.bytes))
    }

    /// True for a gRPC call.
    pub(crate) fn is_grpc(&self) -> bool {
        let mut content_types = self.head.find(&self.bytes, "content-type");
        content_types.next().is_some_and(super::grpc::is_grpc_content_type)
    }

    /// Returns the properties of the request that delimit the body of its response.
    pub(crate) fn request_kind(&self) -> RequestKind {
        request_kind_for(self.head.method.slice_in(&self.bytes))
    }

    /// Parses the target.
    ///
    /// # Errors
    /// `bad-request` for a form that the method does not permit (RFC 9112 §3.2), and `unsupported` for an
    /// absolute target with another scheme than `http`.
    pub(crate) fn parse_target(&self) -> Result<ParsedTarget<'_>, Reason> {
        let method = self.head.method.slice_in(&self.bytes);
        let host = || ascii_text(self.head.host.map_or(&[][..], |host| host.slice_in(&self.bytes)));
        let build_target = |authority, path, query, origin_form| ParsedTarget {
            method: method_text(method),
            authority,
            path,
            query,
            origin_form,
        };
        match self.head.parsed_target(&self.bytes).map_err(|_| Reason::BadRequest)? {
            RequestTarget::Origin { path, query } => {
                let head_text = self.validate_head_start();
                let slice_text = |position, part| head_part(head_text, position, part);
                let ByteSpan { start, end } = self.head.target;
                let authority = self
                    .head
                    .host
                    .map(|host| slice_text(host.start as usize, host.slice_in(&self.bytes)));
                let query = query.map(|query| slice_text(end as usize - query.len(), query));
                Ok(build_target(
                    authority.unwrap_or_default(),
                    slice_text(start as usize, path),
                    query,
                    None,
                ))
            }
            RequestTarget::Absolute { scheme, .. } if !scheme.eq_ignore_ascii_case(b"http") => {
                Err(Reason::Unsupported)
            }
            RequestTarget::Absolute { authority, path, query, .. } => {
                Ok(self.absolute_target(authority, path, query))
            }
            RequestTarget::Asterisk => Ok(build_target(host(), "*", None, None)),
            RequestTarget::Authority { .. } => Err(Reason::Unsupported),
        }
    }

    /// Parses the target, with any scheme if it is absolute.
    pub(crate) fn parse_target_any_scheme(&self) -> Result<ParsedTarget<'_>, Reason> {
        self.parse_target().or_else(|reason| match self.head.parsed_target(&self.bytes) {
            Ok(RequestTarget::Absolute { authority, path, query, .. }) => {
                Ok(self.absolute_target(authority, path, query))
            }
            Ok(_) | Err(_) => Err(reason),
        })
    }

    /// Returns a target that arrived in absolute form.
    fn absolute_target<'b>(
        &'b self,
        authority: &'b [u8],
        path: &'b [u8],
        query: Option<&'b [u8]>,
    ) -> ParsedTarget<'b> {
        let method = self.head.method.slice_in(&self.bytes);
        let (path, query) = (ascii_text(path), query.map(ascii_text));
        // RFC 9112 §3.2.4: an OPTIONS request without path or query is sent as `*`.
        let origin_form = if path.is_empty() && method == b"OPTIONS" && query.is_none() {
            Cow::Borrowed("*")
        } else {
            let path = if path.is_empty() { "/" } else { path };
            match query {
                Some(query) => Cow::Owned(format!("{path}?{query}")),
                None => Cow::Borrowed(path),
            }
        };
        let path = if path.is_empty() { "/" } else { path };
        let (method, authority) = (method_text(method), ascii_text(authority));
        ParsedTarget { method, authority, path, query, origin_form: Some(origin_form) }
    }

    /// Returns the head up to the end of its host as text, but at most [`MAX_VALIDATED_BYTES`]; `None` if it
    /// is not valid UTF-8. One check of whole blocks costs less than a check of each part.
    fn validate_head_start(&self) -> Option<&str> {
        let end = self.head.host.unwrap_or(self.head.target).end as usize;
        let end = end.min(MAX_VALIDATED_BYTES).next_multiple_of(BLOCK_BYTES);
        let bytes = self.bytes.get(..end.min(self.bytes.len()))?;
        std::str::from_utf8(bytes).ok()
    }

    /// Extends the edits to fields of this request with similar names, which are removed: applications may
    /// interpret `X_User` or `x.user` as an edited `x-user`.
    pub(crate) fn remove_similar(&self, edits: &mut HeaderEdits) {
        let edited_names = edits.set.iter().map(|header| &header.name).chain(&edits.remove);
        let edited_names: Vec<String> = edited_names.cloned().collect();
        for field in &self.head.fields {
            let name = field.name.slice_in(&self.bytes);
            let is_similar = |edited_name: &String| is_similar_name(edited_name.as_bytes(), name);
            if edited_names.iter().any(is_similar) {
                let lowercase_name = String::from_utf8_lossy(name).to_ascii_lowercase();
                if !edited_names.contains(&lowercase_name)
                    && !edits.remove.contains(&lowercase_name)
                {
                    edits.remove.push(lowercase_name);
                }
            }
        }
    }

    /// Returns the request as rules see it.
    pub(crate) fn request_view<'b>(&'b self, request_target: &ParsedTarget<'b>) -> RequestView<'b> {
        RequestView {
            method: request_target.method,
            path: request_target.path,
            query: request_target.query,
            authority: request_target.authority,
            fields: self,
        }
    }
}

impl HeaderLookup for Request<'_> {
    fn joined_values(&self, name: &str) -> Option<Cow<'_, str>> {
        join_values(self.head.find(&self.bytes, name))
    }

    fn find_similar(&self, name: &str) -> Option<Cow<'_, str>> {
        join_values(
            self.head
                .find_by(&self.bytes, |field_name| is_similar_name(field_name, name.as_bytes())),
        )
    }

    fn first_value(&self, name: &str) -> Option<Cow<'_, str>> {
        self.head.find(&self.bytes, name).next().map(String::from_utf8_lossy)
    }
}

/// Joins the values of a field with commas (RFC 9110 §5.3); `None` without values.
fn join_values<'b>(values: impl Iterator<Item = &'b [u8]>) -> Option<Cow<'b, str>> {
    let mut values = values.map(String::from_utf8_lossy);
    let mut joined_values = values.next()?;
    for value in values {
        let joined_text = joined_values.to_mut();
        joined_text.push_str(", ");
        joined_text.push_str(&value);
    }
    Some(joined_values)
}

/// Returns the properties of a request with this method that delimit the body of its response (RFC 9112 §6.3).
pub(crate) fn request_kind_for(method: &[u8]) -> RequestKind {
    match method {
        b"HEAD" => RequestKind::Head,
        b"CONNECT" => RequestKind::Connect,
        _ => RequestKind::Other,
    }
}

/// Returns the method as text; the common ones need no validation.
fn method_text(method: &[u8]) -> &str {
    match method {
        b"GET" => "GET",
        b"HEAD" => "HEAD",
        b"POST" => "POST",
        b"PUT" => "PUT",
        b"DELETE" => "DELETE",
        method => ascii_text(method),
    }
}

/// Returns the part of a head that begins at `start`: a slice of `head_text`, or validated on its own if
/// `head_text` ends before it.
fn head_part<'b>(head_text: Option<&'b str>, start: usize, part: &'b [u8]) -> &'b str {
    let text = head_text.and_then(|head_text| head_text.get(start..start + part.len()));
    debug_assert!(text.is_none_or(|text| text.as_bytes() == part), "{text:?} is not {part:?}");
    text.unwrap_or_else(|| ascii_text(part))
}

/// The maximum number of head bytes that are validated at once; they usually include the host.
const MAX_VALIDATED_BYTES: usize = 256;

/// The number of bytes that the standard library's ASCII check reads at once.
const BLOCK_BYTES: usize = 16;

/// Returns bytes of a method or target as text. The parser accepts only ASCII in them.
fn ascii_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
