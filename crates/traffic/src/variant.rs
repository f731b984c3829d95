//! The variants of paths, hosts and values that applications may read in a request. For example, some applications read
//! `/a/%2e%2e/b` as `/b`. Deny rules must match all variants, so that no encoding bypasses a rule.
//!
//! A reading of a path is another path that a parser may find in it, such as `/b` in `//a/b`. Each reading has several
//! forms: as sent, decoded, and normalized.

mod normalized;
mod url_readings;
mod values;

use std::borrow::Cow;

use crate::matcher::RequestMatcher;
use crate::query::percent_decoded;

pub(crate) use normalized::{
    Parameters, decoded_layers, decoded_throughout, folded_case, is_blank, is_equal_folded,
    normalize_path, normalize_rule_path,
};
use url_readings::{alternative_readings, names_authority};
pub(crate) use values::{any_listed_value, any_value, bare_value};

/// The kinds of paths that allow rules distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathKind {
    /// A path that all applications read in the same way, apart from escapes.
    Plain,
    /// A path with a `.` or `..` element, plain or encoded. An application may resolve it to a path that a rule does
    /// not allow, so allow rules with a path condition do not match.
    DotSegments,
    /// A network-path reference (`//…`). An application may remove its first element. Allow rules must match each path
    /// that an application may read.
    NetworkPath,
}

impl PathKind {
    /// Classifies a path as sent.
    pub(crate) fn from_path(path: &str) -> Self {
        // Usual paths have one leading slash and no potential dot segments, and need no further check.
        let is_usual = match path.as_bytes() {
            [b'/', b'/', ..] => false,
            [b'/', tail @ ..] => !tail.iter().any(|byte| DOT_SEGMENT_BYTES[usize::from(*byte)]),
            _ => false,
        };
        if is_usual {
            return Self::Plain;
        }
        Self::from_unusual_path(path)
    }

    /// Classifies a path that needs a further check. This is a separate function so that usual paths do not need its
    /// stack space.
    #[inline(never)]
    fn from_unusual_path(path: &str) -> Self {
        let mut previous = b'/';
        let may_have_dot_segments = path.bytes().any(|byte| {
            let starts_with_dot = byte == b'.' && previous == b'/';
            previous = byte;
            starts_with_dot || byte == b'%' || byte == b'\\'
        });
        if may_have_dot_segments
            && (has_dot_segments(percent_decoded(path)) || has_lenient_dot_segments(path))
        {
            return Self::DotSegments;
        }
        match matches!(path.as_bytes(), [_, b'/' | b'\\' | b'%', ..]) && names_authority(path) {
            true => Self::NetworkPath,
            false => Self::Plain,
        }
    }
}

/// True if a decoded path has dot segments.
fn has_dot_segments(decoded: impl Iterator<Item = u8>) -> bool {
    let mut element = Element::default();
    for byte in decoded {
        if element.read_byte(byte) {
            return true;
        }
    }
    element.is_dot_segment()
}

/// True if the most lenient application may read dot segments in a path. It decodes all layers of escapes and overlong
/// encodings, and ignores blanks and control characters around an element, NTFS streams, and an encoded query or
/// fragment.
fn has_lenient_dot_segments(path: &str) -> bool {
    let is_unusual =
        |byte: u8| matches!(byte, b'%' | b':' | b'?' | b'#') || !byte.is_ascii_graphic();
    let normalizes_to_dot_segments = |path: &str| {
        decoded_throughout(path).is_none_or(|decoded| {
            has_dot_segments(decoded.iter().copied())
                || normalize_path(&lossy_text(&decoded), Parameters::Dropped).has_dot_segments
        })
    };
    percent_decoded(path).any(is_unusual)
        && (normalizes_to_dot_segments(path)
            || alternative_readings(path).is_none_or(|readings| {
                readings.iter().any(|reading| normalizes_to_dot_segments(reading))
            }))
}

/// True if an allow rule matches each path that an application may read in a network-path reference.
#[inline(never)]
pub(crate) fn matches_each_reading(matcher: &RequestMatcher, path: &str) -> bool {
    alternative_readings(path)
        .is_some_and(|readings| readings.iter().all(|reading| matcher.matches_path(reading)))
}

/// The bytes of which every path with dot segments contains at least one.
const DOT_SEGMENT_BYTES: [bool; 256] = {
    let mut may_occur = [false; 256];
    may_occur[b'.' as usize] = true;
    may_occur[b'%' as usize] = true;
    may_occur[b'\\' as usize] = true;
    may_occur
};

/// The normalized forms of a path, and its alternative readings.
pub(crate) struct PathVariants {
    possible_paths: PossiblePaths,
    /// True if the path has a dot. Applications may ignore the text after a dot.
    is_dotted: bool,
    /// The other forms of the path; absent if the normalized path equals the path as sent.
    unusual: Option<Box<UnusualPath>>,
}

/// The number of paths that applications may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PossiblePaths {
    /// Only the normalized path.
    One,
    /// The normalized path and the listed alternatives.
    Several,
    /// Any path.
    Any,
}

/// The normalized forms of an unusual path.
struct UnusualPath {
    /// The path with one layer of escapes decoded; absent for a path without escapes.
    decoded: Option<String>,
    /// The normalized path without element parameters.
    normalized: String,
    /// The normalized path with element parameters; absent if the path has none.
    with_parameters: Option<String>,
    /// The alternative readings of the path, each with its normalized forms.
    alternatives: Box<[(String, PathVariants)]>,
}

impl PathVariants {
    /// Computes the variants of a path as sent. `kind` is the kind of the path.
    pub(crate) fn from_path(path: &str, kind: PathKind) -> Self {
        let (mut byte_kinds, mut previous) = (0, 0);
        for byte in path.bytes() {
            byte_kinds |= BYTE_KINDS[usize::from(byte)];
            // Normalization removes the empty element between two slashes; 1 is `CHANGED`.
            byte_kinds |= u8::from(byte == b'/' && previous == b'/');
            previous = byte;
        }
        let is_dotted = byte_kinds & DOT != 0;
        let has_unusual_end = path.len() > 1 && matches!(previous, b'/' | b'.');
        let is_unusual =
            byte_kinds & CHANGED != 0 || has_unusual_end || (is_dotted && path.contains("./"));
        let possible_paths =
            if kind == PathKind::DotSegments { PossiblePaths::Any } else { PossiblePaths::One };
        let mut variants = Self { possible_paths, is_dotted, unusual: None };
        if is_unusual && !variants.is_any_path() {
            variants.normalize(path);
            variants.add_alternatives(path);
        }
        variants.limit_stems(path)
    }

    /// Normalizes an alternative reading of a path.
    fn from_reading(path: &str) -> Self {
        let mut variants =
            Self { possible_paths: PossiblePaths::One, is_dotted: false, unusual: None };
        variants.normalize(path);
        variants.limit_stems(path)
    }

    /// Treats a path with too many stems as a path that may be any path.
    #[inline]
    fn limit_stems(mut self, path: &str) -> Self {
        if self.is_dotted && has_many_stems(self.normalized_path(path)) {
            self.possible_paths = PossiblePaths::Any;
        }
        self
    }

    /// Sets the normalized forms of a path.
    fn normalize(&mut self, path: &str) {
        let is_escaped = path.contains('%');
        let decoded_path: Option<Cow<'_, str>> = match is_escaped {
            true => decoded_throughout(path).map(|bytes| Cow::Owned(lossy_text(&bytes))),
            false => Some(Cow::Borrowed(path)),
        };
        let Some(decoded_path) = decoded_path else {
            self.possible_paths = PossiblePaths::Any;
            return;
        };
        let normalized = normalize_path(&decoded_path, Parameters::Dropped);
        if normalized.has_dot_segments {
            self.possible_paths = PossiblePaths::Any;
        }
        self.is_dotted = normalized.text.contains('.');
        let with_parameters = decoded_path
            .contains(';')
            .then(|| normalize_path(&decoded_path, Parameters::Kept).text);
        let decoded = is_escaped.then(|| lossy_text(&percent_decoded(path).collect::<Vec<u8>>()));
        self.unusual = Some(Box::new(UnusualPath {
            decoded,
            normalized: normalized.text,
            with_parameters,
            alternatives: Box::default(),
        }));
    }

    /// Adds the alternative readings of the path.
    fn add_alternatives(&mut self, path: &str) {
        let Some(unusual) =
            self.unusual.as_mut().filter(|_| self.possible_paths == PossiblePaths::One)
        else {
            return;
        };
        let Some(readings) = alternative_readings(path) else {
            self.possible_paths = PossiblePaths::Any;
            return;
        };
        let readings = readings.into_iter().map(|reading| {
            let variants = Self::from_reading(&reading);
            (reading, variants)
        });
        unusual.alternatives = readings.collect();
        if unusual.alternatives.iter().any(|(_, variants)| variants.is_any_path()) {
            self.possible_paths = PossiblePaths::Any;
        } else if !unusual.alternatives.is_empty() {
            self.possible_paths = PossiblePaths::Several;
        }
    }

    /// True if applications may read any path.
    pub(crate) fn is_any_path(&self) -> bool {
        self.possible_paths == PossiblePaths::Any
    }

    /// True if applications may read another path than the normalized one.
    #[inline]
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.possible_paths != PossiblePaths::One
    }

    /// Returns the alternative readings, each with its normalized forms.
    pub(crate) fn alternative_readings(&self) -> impl Iterator<Item = (&str, &Self)> {
        let alternatives = self.unusual.iter().flat_map(|unusual| &unusual.alternatives);
        alternatives.map(|(path, variants)| (path.as_str(), variants))
    }

    /// True if the normalized path differs from the path as sent.
    pub(crate) fn is_unusual(&self) -> bool {
        self.unusual.is_some()
    }

    /// Returns the normalized path. `sent` is the path as sent, from which the variants were computed.
    #[inline]
    pub(crate) fn normalized_path<'a>(&'a self, sent: &'a str) -> &'a str {
        self.unusual.as_ref().map_or(sent, |unusual| &unusual.normalized)
    }

    /// Returns the normalized path with element parameters.
    pub(crate) fn path_with_parameters<'a>(&'a self, sent: &'a str) -> &'a str {
        let path = self.unusual.as_ref().and_then(|unusual| unusual.with_parameters.as_deref());
        path.unwrap_or_else(|| self.normalized_path(sent))
    }

    /// Returns the stems of the normalized path: the prefixes that applications may read as the whole path, without a
    /// response format (`.json`) or the path info of a script. A stem ends before a dot of the last element, or after
    /// an element with a dot.
    #[inline]
    pub(crate) fn path_stems<'a>(&'a self, sent: &'a str) -> impl Iterator<Item = &'a str> {
        // Most paths have no dot, and need no search for a slash.
        let (path, last_slash) = if self.is_dotted {
            let path = self.normalized_path(sent);
            (path, path.rfind('/').unwrap_or(0))
        } else {
            ("", 0)
        };
        Stems { path, position: 0, is_dotted: false, last_slash }
    }

    /// True if `is_match` is true for a form of the path other than the normalized path. Only regular expressions can
    /// distinguish these forms.
    pub(crate) fn matches_other_form(&self, sent: &str, is_match: impl Fn(&str) -> bool) -> bool {
        let unusual = self.unusual.as_ref();
        let forms = unusual.into_iter().flat_map(|unusual| {
            [Some(sent), unusual.decoded.as_deref(), unusual.with_parameters.as_deref()]
                .into_iter()
                .flatten()
        });
        forms.chain(self.path_stems(sent)).any(is_match)
    }
}

/// Returns bytes as text; invalid UTF-8 is replaced.
fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An iterator over the stems of a path, which [`PathVariants::path_stems`] describes.
struct Stems<'a> {
    /// The normalized path; empty if it has no dot.
    path: &'a str,
    /// The position of the next byte.
    position: usize,
    /// True if the current element has a dot.
    is_dotted: bool,
    /// The position of the last slash.
    last_slash: usize,
}

impl<'a> Iterator for Stems<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        while let Some(byte) = self.path.as_bytes().get(self.position) {
            let position = self.position;
            self.position += 1;
            let is_stem_end = match byte {
                b'/' => std::mem::take(&mut self.is_dotted),
                b'.' => {
                    self.is_dotted = true;
                    position > self.last_slash
                }
                _ => false,
            };
            if is_stem_end {
                return self.path.get(..position);
            }
        }
        None
    }
}

/// Returns the hosts that applications may read in an authority: as sent, normalized, and percent-decoded and
/// normalized, as by URL parsers.
pub(crate) fn host_readings(authority: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let sent = std::iter::once(Cow::Borrowed(authority));
    let decoded = authority.contains('%').then(|| lossy_text(&decoded_layers(authority).0));
    let decoded = decoded.map(|host| Cow::Owned(normalize_host(&host)));
    sent.chain(std::iter::once_with(|| Cow::Owned(normalize_host(authority)))).chain(decoded)
}

/// Returns the host of an authority without port and final dot, in lower case.
fn normalize_host(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The state of one path element that is read byte by byte, to detect dot segments. Text after a `;` is a parameter,
/// which some applications remove before they resolve `..`.
#[derive(Debug, Default)]
struct Element {
    /// The number of dots.
    dot_count: usize,
    /// The number of other bytes.
    other_count: usize,
    /// True if the following bytes belong to a parameter.
    in_parameters: bool,
}

impl Element {
    /// Reads a byte; true if the byte ends a dot segment.
    fn read_byte(&mut self, byte: u8) -> bool {
        match byte {
            b'/' | b'\\' => {
                let is_dot_segment = self.is_dot_segment();
                *self = Self::default();
                return is_dot_segment;
            }
            b';' => self.in_parameters = true,
            _ if self.in_parameters => {}
            b'.' => self.dot_count += 1,
            _ => self.other_count += 1,
        }
        false
    }

    /// True if the element is `.` or `..`.
    fn is_dot_segment(&self) -> bool {
        self.other_count == 0 && matches!(self.dot_count, 1 | 2)
    }
}

/// The kind of bytes that normalization may change: `%` of escapes, backslashes, `;` before parameters, `$` of NTFS
/// streams, upper case, and bytes that are not visible ASCII. Each kind is one bit, so that the kinds of all bytes can
/// be combined.
const CHANGED: u8 = 1;
/// The kind of a dot.
const DOT: u8 = 2;

/// The kind of each byte; 0 for bytes that normalization does not change.
const BYTE_KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte: usize = 0;
    while byte < 256 {
        let c = byte as u8;
        if !c.is_ascii_graphic()
            || c.is_ascii_uppercase()
            || matches!(c, b'%' | b'\\' | b';' | b'$')
        {
            kinds[byte] = CHANGED;
        }
        byte += 1;
    }
    kinds[b'.' as usize] = DOT;
    kinds
};

/// True if a path has more or longer stems than are compared with rules.
fn has_many_stems(path: &str) -> bool {
    // A path has at most one stem per byte.
    if path.len() <= MAX_STEMS {
        return false;
    }
    let dots = path.bytes().filter(|byte| *byte == b'.').count();
    dots > MAX_STEMS || dots.saturating_mul(path.len()) > MAX_STEM_BYTES
}

/// The maximum number of stems of a path that are compared with a rule. It bounds the work for one request. A path with
/// more dots is treated as any path.
const MAX_STEMS: usize = 64;

/// The maximum total length of the stems in bytes. A path with longer stems is treated as any path, because each
/// regular expression is compared with all stems.
const MAX_STEM_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_variants_normalize_to_one_host() {
        for authority in
            ["admin.shop", "ADMIN.shop", "admin.shop:80", "admin.shop.", "Admin.Shop.:8080"]
        {
            assert_eq!(normalize_host(authority), "admin.shop", "{authority}");
        }
        for (authority, host) in
            [("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a:b", "a:b"), ("", "")]
        {
            assert_eq!(normalize_host(authority), host, "{authority}");
        }
    }

    #[test]
    fn a_plain_path_needs_no_normalization() {
        for (path, is_unusual) in [
            ("/", false),
            ("/a/b", false),
            ("/a.b/c.d", false),
            ("*", false),
            ("", false),
            ("/a/", true),
            ("/a//b", true),
            ("/A", true),
            ("/a%62", true),
            (r"/a\b", true),
            ("/a;b", true),
            ("/a.", true),
            ("/a./b", true),
        ] {
            assert_eq!(
                PathVariants::from_path(path, PathKind::from_path(path)).is_unusual(),
                is_unusual,
                "{path}"
            );
        }
    }

    #[test]
    fn stems_exclude_formats_and_the_path_info_of_scripts() {
        let stems = |path: &str| {
            let variants = PathVariants::from_path(path, PathKind::from_path(path));
            variants.path_stems(path).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(stems("/a/b"), Vec::<String>::new());
        assert_eq!(stems("/a/b.json"), ["/a/b"]);
        assert_eq!(stems("/a/b.tar.gz"), ["/a/b", "/a/b.tar"]);
        assert_eq!(stems("/A.PHP/b/c.d"), ["/a.php", "/a.php/b/c"]);
    }

    #[test]
    fn a_path_with_too_many_dots_may_be_any_path() {
        let dotted = "/".to_owned() + &"a.".repeat(MAX_STEMS + 1) + "b";
        assert!(PathVariants::from_path(&dotted, PathKind::from_path(&dotted)).is_any_path());
    }

    #[test]
    fn a_long_path_with_dots_may_be_any_path() {
        let path = |letters: usize| format!("/{}/a.b.c", "x".repeat(letters));
        for (path, may_be_any) in [
            (path(MAX_STEM_BYTES / 4), false),
            (path(MAX_STEM_BYTES / 2), true),
            (path(MAX_STEM_BYTES).replace('.', "%2E"), true),
            (path(MAX_STEM_BYTES * 4).replace('.', ""), false),
        ] {
            let variants = PathVariants::from_path(&path, PathKind::from_path(&path));
            assert_eq!(variants.is_any_path(), may_be_any, "{} bytes", path.len());
        }
    }

    #[test]
    fn dot_segments_are_detected_under_every_encoding() {
        for path in [
            "/a/%252e%252e/b",
            "/a/%25252e/b",
            "/%u002e%u002e/b",
            "/%2525252525252e",
            "/a/%%32e%%32e/b",
            "/a/%2%65./b",
            "/a/%c0%ae%c0%ae/b",
            "/a/%e0%80%ae%f0%80%80%ae/b",
            "/a/%fc%80%80%80%80%ae./b",
            "/a/..%e0%80%afb",
            "/a/..%20/b",
            "/a/%20..%0a/b",
            "/a/..%00/b",
            "/a/..%c2%a0/b",
            "/a/..\u{a0}/b",
            "/a/..%2500/b",
            "/a/.%0d./b",
            "/a/%2e%250a%2e/b",
            "/a/..%3fx",
            "/a/..%23x",
            "/a/..::$DATA/b",
            "/a/%2e%2e:$i30:$INDEX_ALLOCATION/b",
        ] {
            assert_eq!(PathKind::from_path(path), PathKind::DotSegments, "{path}");
        }
        for path in [
            "/.a:b/c",
            "/a/%2e.b%3fx",
            "/a%3f..",
            "/a/100%25",
            "/a/%2520",
            "/a%2fb",
            "/a/%20.b/c",
            "/%e0%a4%85.html",
            "/a.%20b",
        ] {
            assert_eq!(PathKind::from_path(path), PathKind::Plain, "{path}");
        }
    }
}
