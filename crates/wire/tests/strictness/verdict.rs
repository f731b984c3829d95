//! Parses the bytes of a vector in any segmentation, and returns the verdict of the parser.

use leno_wire::http1::{
    BodyDecoder, BodyLength, Malformed, ParseProgress, RequestHead, RequestKind, ResponseHead,
};

use crate::vector::{Accepted, Vector};

/// The result of parsing a vector.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Rejected(Malformed),
    Accepted(Accepted),
    /// The input ended before the message was complete.
    Incomplete,
}

/// Parses the bytes with one packet boundary at each of the `cuts`; the last one is the end.
pub(crate) fn parse_vector(vector: &Vector, cuts: &[usize]) -> Verdict {
    match parse_message(vector, cuts) {
        Ok(Some(accepted)) => Verdict::Accepted(accepted),
        Ok(None) => Verdict::Incomplete,
        Err(fault) => Verdict::Rejected(fault),
    }
}

fn parse_message(vector: &Vector, cuts: &[usize]) -> Result<Option<Accepted>, Malformed> {
    let mut accepted = Accepted {
        body: None,
        keep_alive: None,
        content: None,
        trailers: false,
        unparsed_bytes: 0,
    };
    let mut cuts = cuts.iter().copied().peekable();
    let (start, length) = if vector.message_kind == "body" {
        (0, BodyLength::Chunked)
    } else {
        let Some((start, length, keep_alive)) = parse_head(vector, &mut cuts)? else {
            return Ok(None);
        };
        accepted.body = Some(describe_length(length));
        accepted.keep_alive = Some(keep_alive);
        (start, length)
    };
    let mut decoder = BodyDecoder::new(length);
    let (mut position, mut content) = (start, Vec::new());
    for cut in cuts {
        while !decoder.is_complete() {
            let available = &vector.bytes[position..cut];
            let piece = decoder.decode(available)?;
            content.extend_from_slice(&available[piece.data.clone()]);
            accepted.trailers |= piece.trailers.is_some();
            position += piece.consumed;
            if piece.consumed == 0 {
                break;
            }
        }
    }
    if vector.closes_connection || length == BodyLength::UntilClose {
        decoder.end_of_input()?;
    }
    accepted.content = Some(content);
    accepted.unparsed_bytes = vector.bytes.len() - position;
    Ok(decoder.is_complete().then_some(accepted))
}

/// Returns the end of the head, the length of the body, and true if the connection persists; `None` if the head is
/// incomplete. Consumes the cuts before the head is complete.
fn parse_head(
    vector: &Vector,
    cuts: &mut std::iter::Peekable<impl Iterator<Item = usize>>,
) -> Result<Option<(usize, BodyLength, bool)>, Malformed> {
    let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
    let request_kind = RequestKind::for_method(vector.request_method.as_bytes());
    while let Some(cut) = cuts.peek() {
        let available = &vector.bytes[..*cut];
        let parsed = match vector.message_kind.as_str() {
            "request" => request.parse(available)?,
            _ => response.parse(available, request_kind)?,
        };
        match (parsed, vector.message_kind.as_str()) {
            (ParseProgress::Partial, _) => drop(cuts.next()),
            (ParseProgress::Complete(length), "request") => {
                return Ok(Some((length, request.body, request.keep_alive)));
            }
            (ParseProgress::Complete(length), _) => {
                return Ok(Some((length, response.body, response.keep_alive)));
            }
        }
    }
    Ok(None)
}

fn describe_length(length: BodyLength) -> String {
    match length {
        BodyLength::Empty => "empty".to_owned(),
        BodyLength::ContentLength(length) => length.to_string(),
        BodyLength::Chunked => "chunked".to_owned(),
        BodyLength::UntilClose => "until-close".to_owned(),
    }
}

macro_rules! labels {
    ($($name:ident)*) => {
        /// The names of all variants of `Malformed`.
        pub(crate) const LABELS: &[&str] = &[$(stringify!($name)),*];

        /// Ensures at compile time that the list is complete.
        #[expect(dead_code, reason = "the compiler checks that the list is complete")]
        fn is_complete(fault: Malformed) {
            match fault {
                $(Malformed::$name => {})*
            }
        }
    };
}

labels! {
    HeadTooLarge
    TooManyFields
    TooManyConnectionOptions
    LineEnd
    RequestLine
    Method
    TargetCharacter
    TargetForm
    Authority
    Version
    StatusLine
    FieldName
    SpaceBeforeColon
    FoldedField
    FieldValue
    HostMissing
    HostRepeated
    ContentLength
    ContentLengthRepeated
    TwoLengths
    TransferEncoding
    TransferEncodingInHttp10
    BodyForbidden
    ConnectionOption
    ChunkSize
    ChunkExtension
    ChunkEnd
    TrailerField
    BodyTruncated
}
