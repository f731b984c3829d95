//! Detects HTTP requests on connections that are declared or detected as another protocol, as leniently as the most
//! lenient server.

use super::REGISTERED_METHODS;

/// The decision about the bytes read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLine {
    /// Undecided: the line is incomplete.
    Incomplete,
    /// An HTTP/0.9, HTTP/1 or HTTP/2 request, as read by the most lenient server.
    Request,
    /// Another protocol.
    Other,
}

/// Reads the first line of a client in pieces. [`super::sniff_protocol`] detects unambiguous requests only. This reader
/// detects every line that some server may accept as a request: with leading blanks, with tabs or several blanks
/// between the words, with a method in any case, and with any target.
#[derive(Debug, Default)]
pub struct FirstLineReader {
    /// The beginning of the line, without leading and repeated blanks; at most [`MAX_START_BYTES`].
    line_start: Vec<u8>,
    /// The length of the line without leading blanks.
    line_length: usize,
    /// The number of leading elements of [`VERSION_PATTERN`] that the last bytes match.
    matched_elements: usize,
}

impl FirstLineReader {
    /// Reads the next bytes.
    pub fn read(&mut self, bytes: &[u8]) -> FirstLine {
        for byte in bytes {
            match self.push_byte(*byte) {
                FirstLine::Incomplete => {}
                decision => return decision,
            }
        }
        FirstLine::Incomplete
    }

    fn push_byte(&mut self, byte: u8) -> FirstLine {
        // Servers skip empty lines, and some skip blanks.
        if self.line_length == 0 && is_blank(byte) {
            return FirstLine::Incomplete;
        }
        if byte == b'\n' || self.line_length >= MAX_LINE_BYTES {
            return FirstLine::Other;
        }
        self.line_length = self.line_length.saturating_add(1);
        // Only one blank of a run is stored, so that blanks do not displace the target.
        let is_repeated =
            is_blank(byte) && self.line_start.last().is_some_and(|last| is_blank(*last));
        if self.line_start.len() < MAX_START_BYTES && !is_repeated {
            self.line_start.push(byte);
        }
        let is_expected =
            VERSION_PATTERN.get(self.matched_elements).is_some_and(|matches| matches(byte));
        self.matched_elements = match is_expected {
            true => self.matched_elements.saturating_add(1),
            false => usize::from(is_blank(byte)),
        };
        match self.matched_elements == VERSION_PATTERN.len()
            || byte == b'/' && self.begins_request()
        {
            true => FirstLine::Request,
            false => FirstLine::Incomplete,
        }
    }

    /// True if the line begins with a registered method and a path or a URL.
    fn begins_request(&self) -> bool {
        let mut words =
            self.line_start.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty());
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return false };
        let starts_with_prefix = |prefix: &&[u8]| {
            target
                .get(..prefix.len())
                .is_some_and(|target_start| target_start.eq_ignore_ascii_case(prefix))
        };
        REGISTERED_METHODS.iter().any(|registered| registered.eq_ignore_ascii_case(method))
            && [&b"/"[..], b"http:/", b"https:/"].iter().any(starts_with_prefix)
    }
}

/// True for the bytes that some server treats as a blank. Python's `http.server` decodes a line as Latin-1 and has the
/// most such bytes.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// Predicates for the bytes of a version after a target: a blank, `HTTP/` and a digit.
const VERSION_PATTERN: [fn(u8) -> bool; 7] = [
    is_blank,
    |byte| byte.eq_ignore_ascii_case(&b'h'),
    |byte| byte.eq_ignore_ascii_case(&b't'),
    |byte| byte.eq_ignore_ascii_case(&b't'),
    |byte| byte.eq_ignore_ascii_case(&b'p'),
    |byte| byte == b'/',
    |byte| byte.is_ascii_digit(),
];

/// The maximum number of stored bytes of a line: enough for a method, a blank, and the beginning of a target.
const MAX_START_BYTES: usize = 64;

/// The maximum length of a request line: no server accepts a longer one.
const MAX_LINE_BYTES: usize = 1 << 20;

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> FirstLine {
        FirstLineReader::default().read(bytes)
    }

    #[test]
    fn detects_every_line_that_a_server_may_accept_as_a_request() {
        for line in [
            "GET / HTTP/1.1\r\n",
            "get /admin HTTP/1.1\r\n",
            "GET  /admin HTTP/1.1\r\n",
            "GET\t/admin\tHTTP/1.1\r\n",
            " GET /admin HTTP/1.1\r\n",
            "\r\n\n GET /admin\r\n",
            "GET /admin\n",
            "POST HTTP://a.b/admin HTTP/1.1\r\n",
            "PURGE  x http/1.0\n",
            "OPTIONS * HTTP/1.1\r\n",
            "CONNECT a.b:443 HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            assert_eq!(read(line.as_bytes()), FirstLine::Request, "{line:?}");
            // The decision is the same in any segmentation.
            let mut reader = FirstLineReader::default();
            let mut decisions = line.as_bytes().chunks(1).map(|byte| reader.read(byte));
            assert!(decisions.any(|decision| decision == FirstLine::Request), "{line:?}");
        }
        let blanks = [vec![b'\n'; 3 * MAX_LINE_BYTES], b"GET / HTTP/1.1\r\n".to_vec()].concat();
        assert_eq!(read(&blanks), FirstLine::Request);
        for line in [
            &b"GET\xa0/admin\xa0HTTP/1.1\r\n"[..],
            b"GET\x85/admin\r\n",
            b"\x1cGET\x1d/admin\x1eHTTP/1.1\r\n",
            b"ANY\x1fx\xa0\x85HTTP/1.0\r\n",
        ] {
            assert_eq!(read(line), FirstLine::Request, "{}", line.escape_ascii());
        }
        for blanks in ["  ", " \t\x0b", &" ".repeat(61), &"\t ".repeat(50_000)] {
            for line in [format!("GET{blanks}/admin\r\n"), format!("{blanks}put{blanks}http:/")] {
                assert_eq!(read(line.as_bytes()), FirstLine::Request, "{} blanks", blanks.len());
            }
        }
        let long_line = format!("ANY {} HTTP/1.1\r\n", "a".repeat(100_000));
        assert_eq!(read(long_line.as_bytes()), FirstLine::Request);
    }

    #[test]
    fn lines_of_other_protocols_are_not_requests() {
        for line in [
            "*1\r\n$4\r\nPING\r\n",
            "PING\r\n",
            "get http/foo\r\n",
            "GET key\r\n",
            "EHLO a.b\r\n",
            "SSH-2.0-OpenSSH_9.2p1\r\n",
            "INVITE sip:a@b SIP/2.0\r\n",
            "OPTIONS rtsp://a/b RTSP/1.0\r\n",
            "PUT 1 2 3 4\r\n",
            "QUERY HTTP\n/1.1",
        ] {
            assert_eq!(read(line.as_bytes()), FirstLine::Other, "{line:?}");
        }
        assert_eq!(read(b""), FirstLine::Incomplete);
        assert_eq!(read(b"GET"), FirstLine::Incomplete);
        assert_eq!(read(&vec![0; MAX_LINE_BYTES]), FirstLine::Incomplete);
        assert_eq!(read(&vec![0; MAX_LINE_BYTES + 1]), FirstLine::Other);
    }
}
