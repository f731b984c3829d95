//! Path, host and value normalization, for matching every form that an application might decode.

mod normalized;
mod url_readings;
mod values;

use std::borrow::Cow;

use crate::matcher::RequestMatcher;
use crate::query::percent_decoded;

pub(crate) use normalized::{
    Parameters, decoded_layers, decoded_throughout, folded_case, folded_path, folded_rule,
    is_blank, is_equal_folded,
};
use url_readings::{names_authority, other_readings};
pub(crate) use values::{any_listed_value, any_value, bare_value};

/// The kinds of paths that allow rules distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathKind {
    Plain,
    /// It has a `.` or `..` element, plain or encoded. The application may resolve it to another path than the
    /// rule allowed, so rules about paths do not match.
    Climbing,
    /// A network-path reference, in which an application may drop the first element. Allow rules must match
    /// each of these paths.
    NetworkPath,
}

impl PathKind {
    pub(crate) fn from_path(path: &str) -> Self {
        // The usual path has one leading slash and no potential dot segments, and needs no second check.
        let is_usual = match path.as_bytes() {
            [b'/', b'/', ..] => false,
            [b'/', rest @ ..] => !rest.iter().any(|byte| IN_CLIMBS[usize::from(*byte)]),
            _ => false,
        };
        if is_usual {
            return Self::Plain;
        }
        Self::of_unusual(path)
    }

    /// Separate, so that the usual path needs no stack space for it.
    #[inline(never)]
    fn of_unusual(path: &str) -> Self {
        let mut before = b'/';
        let could_climb = path.bytes().any(|byte| {
            let starts_with_dot = byte == b'.' && before == b'/';
            before = byte;
            starts_with_dot || byte == b'%' || byte == b'\\'
        });
        if could_climb && (has_dot_segments(percent_decoded(path)) || climbs_deeper(path)) {
            return Self::Climbing;
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
        if element.ends_with(byte) {
            return true;
        }
    }
    element.is_dot_segment()
}

/// Does the same for the most lenient application: fully decoded, with overlong encodings, blanks and control
/// characters around an element, NTFS streams, and an encoded query or fragment. A plain ASCII path has one
/// reading.
fn climbs_deeper(path: &str) -> bool {
    let is_odd = |byte: u8| matches!(byte, b'%' | b':' | b'?' | b'#') || !byte.is_ascii_graphic();
    let read = |path: &str| {
        decoded_throughout(path).is_none_or(|decoded| {
            has_dot_segments(decoded.iter().copied())
                || folded_path(&lossy_text(&decoded), Parameters::Dropped).climbs
        })
    };
    percent_decoded(path).any(is_odd)
        && (read(path) || other_readings(path).is_none_or(|it| it.iter().any(|other| read(other))))
}

/// True if an allow rule matches each path that an application may read in a network-path reference.
#[inline(never)]
pub(crate) fn fits_each_reading(matcher: &RequestMatcher, path: &str) -> bool {
    other_readings(path).is_some_and(|it| it.iter().all(|other| matcher.matches_path(other)))
}

/// True for the bytes that every path with dot segments contains.
const IN_CLIMBS: [bool; 256] = {
    let mut are = [false; 256];
    are[b'.' as usize] = true;
    are[b'%' as usize] = true;
    are[b'\\' as usize] = true;
    are
};

/// A path as sent, with its normalized forms.
pub(crate) struct PathVariants {
    paths: Paths,
    /// True if it has a dot: applications may ignore the following text.
    is_dotted: bool,
    /// Absent if the normalized path equals the path as sent.
    unusual: Option<Box<UnusualPath>>,
}

/// The paths that an application may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paths {
    One,
    /// Listed alternatives.
    Several,
    /// Any path.
    Any,
}

/// The normalized forms of an unusual path.
struct UnusualPath {
    /// Absent for a path without escapes.
    decoded: Option<String>,
    folded: String,
    /// Normalized with parameters, if that differs.
    with_parameters: Option<String>,
    /// Alternative readings of the path, each with its normalized forms.
    others: Box<[(String, PathVariants)]>,
}

impl PathVariants {
    pub(crate) fn from_path(path: &str, kind: PathKind) -> Self {
        let (mut found, mut before) = (0, 0);
        for byte in path.bytes() {
            found |= IN_VARIANTS[usize::from(byte)];
            found |= u8::from(byte == b'/' && before == b'/');
            before = byte;
        }
        let is_dotted = found & DOTTED != 0;
        let ends_oddly = path.len() > 1 && matches!(before, b'/' | b'.');
        let is_odd = found & ODD != 0 || ends_oddly || (is_dotted && path.contains("./"));
        let paths = if kind == PathKind::Climbing { Paths::Any } else { Paths::One };
        let mut variant = Self { paths, is_dotted, unusual: None };
        if is_odd && !variant.is_any_path() {
            variant.read(path);
            variant.read_others(path);
        }
        variant.limit_stems(path)
    }

    /// Normalizes an alternative reading of a path.
    fn of_reading(path: &str) -> Self {
        let mut variant = Self { paths: Paths::One, is_dotted: false, unusual: None };
        variant.read(path);
        variant.limit_stems(path)
    }

    #[inline]
    fn limit_stems(mut self, path: &str) -> Self {
        if self.is_dotted && has_many_stems(self.normalized_path(path)) {
            self.paths = Paths::Any;
        }
        self
    }

    fn read(&mut self, path: &str) {
        let is_escaped = path.contains('%');
        let read: Option<Cow<'_, str>> = match is_escaped {
            true => decoded_throughout(path).map(|bytes| Cow::Owned(lossy_text(&bytes))),
            false => Some(Cow::Borrowed(path)),
        };
        let Some(read) = read else {
            self.paths = Paths::Any;
            return;
        };
        let folded = folded_path(&read, Parameters::Dropped);
        if folded.climbs {
            self.paths = Paths::Any;
        }
        self.is_dotted = folded.text.contains('.');
        let with_parameters = read.contains(';').then(|| folded_path(&read, Parameters::Kept).text);
        let decoded = is_escaped.then(|| lossy_text(&percent_decoded(path).collect::<Vec<u8>>()));
        let (folded, others) = (folded.text, Box::default());
        self.unusual = Some(Box::new(UnusualPath { decoded, folded, with_parameters, others }));
    }

    /// Adds the alternative readings of the path.
    fn read_others(&mut self, path: &str) {
        let Some(odd) = self.unusual.as_mut().filter(|_| self.paths == Paths::One) else { return };
        let Some(others) = other_readings(path) else {
            self.paths = Paths::Any;
            return;
        };
        let others = others.into_iter().map(|other| {
            let variant = Self::of_reading(&other);
            (other, variant)
        });
        odd.others = others.collect();
        if odd.others.iter().any(|(_, variant)| variant.is_any_path()) {
            self.paths = Paths::Any;
        } else if !odd.others.is_empty() {
            self.paths = Paths::Several;
        }
    }

    /// True if it may be any path.
    pub(crate) fn is_any_path(&self) -> bool {
        self.paths == Paths::Any
    }

    /// True if applications may read another path.
    #[inline]
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.paths != Paths::One
    }

    /// Returns the alternative readings, each with its normalized forms.
    pub(crate) fn other_readings(&self) -> impl Iterator<Item = (&str, &Self)> {
        let others = self.unusual.iter().flat_map(|odd| &odd.others);
        others.map(|(path, variant)| (path.as_str(), variant))
    }

    /// True if the normalized path differs from the path as sent.
    pub(crate) fn is_odd(&self) -> bool {
        self.unusual.is_some()
    }

    /// Returns the normalized path.
    #[inline]
    pub(crate) fn normalized_path<'a>(&'a self, sent: &'a str) -> &'a str {
        self.unusual.as_ref().map_or(sent, |odd| &odd.folded)
    }

    /// Returns the normalized path with element parameters.
    pub(crate) fn with_parameters<'a>(&'a self, sent: &'a str) -> &'a str {
        let kept = self.unusual.as_ref().and_then(|odd| odd.with_parameters.as_deref());
        kept.unwrap_or_else(|| self.normalized_path(sent))
    }

    /// Returns the normalized path without a response format or a script's path info: each prefix that ends
    /// before a dot of the last element, or after an element with a dot.
    #[inline]
    pub(crate) fn path_stems<'a>(&'a self, sent: &'a str) -> impl Iterator<Item = &'a str> {
        let (folded, last) = match self.is_dotted {
            true => {
                (self.normalized_path(sent), self.normalized_path(sent).rfind('/').unwrap_or(0))
            }
            false => ("", 0),
        };
        Stems { folded, at: 0, is_dotted: false, last }
    }

    /// True if one of the other forms matches. Only regular expressions can distinguish these from the
    /// normalized path.
    pub(crate) fn any_other(&self, sent: &str, fits: impl Fn(&str) -> bool) -> bool {
        let odd = self.unusual.as_ref();
        let others = odd.into_iter().flat_map(|odd| {
            [Some(sent), odd.decoded.as_deref(), odd.with_parameters.as_deref()]
                .into_iter()
                .flatten()
        });
        others.chain(self.path_stems(sent)).any(fits)
    }
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Iterates over the prefixes that applications may read as the whole path.
struct Stems<'a> {
    folded: &'a str,
    at: usize,
    is_dotted: bool,
    /// The position of the last slash.
    last: usize,
}

impl<'a> Iterator for Stems<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        while let Some(byte) = self.folded.as_bytes().get(self.at) {
            let at = self.at;
            self.at += 1;
            let ends = match byte {
                b'/' => std::mem::take(&mut self.is_dotted),
                b'.' => {
                    self.is_dotted = true;
                    at > self.last
                }
                _ => false,
            };
            if ends {
                return self.folded.get(..at);
            }
        }
        None
    }
}

/// Returns the hosts that applications may read in an authority: as sent, normalized, and percent-decoded as by
/// URL parsers.
pub(crate) fn host_readings(authority: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let sent = std::iter::once(Cow::Borrowed(authority));
    let decoded = authority.contains('%').then(|| lossy_text(&decoded_layers(authority).0));
    let decoded = decoded.map(|it| Cow::Owned(normalize_host(&it)));
    sent.chain(std::iter::once_with(|| Cow::Owned(normalize_host(authority)))).chain(decoded)
}

/// Returns a host as most applications read it.
fn normalize_host(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// One element of a path, read byte by byte. Text after a `;` is a parameter, which some applications remove
/// before they resolve `..`.
#[derive(Debug, Default)]
struct Element {
    dots: usize,
    others: usize,
    in_parameters: bool,
}

impl Element {
    /// Consumes a byte; true if it ends a dot segment.
    fn ends_with(&mut self, byte: u8) -> bool {
        match byte {
            b'/' | b'\\' => {
                let climbs = self.is_dot_segment();
                *self = Self::default();
                return climbs;
            }
            b';' => self.in_parameters = true,
            _ if self.in_parameters => {}
            b'.' => self.dots += 1,
            _ => self.others += 1,
        }
        false
    }

    fn is_dot_segment(&self) -> bool {
        self.others == 0 && matches!(self.dots, 1 | 2)
    }
}

/// A byte that normalization changes.
const ODD: u8 = 1;
/// A dot.
const DOTTED: u8 = 2;

const IN_VARIANTS: [u8; 256] = {
    let mut found = [0; 256];
    let mut byte: usize = 0;
    while byte < 256 {
        let c = byte as u8;
        if !c.is_ascii_graphic()
            || c.is_ascii_uppercase()
            || matches!(c, b'%' | b'\\' | b';' | b'$')
        {
            found[byte] = ODD;
        }
        byte += 1;
    }
    found[b'.' as usize] = DOTTED;
    found
};

/// True if a path has more prefixes, or longer ones, than rules are compared with.
fn has_many_stems(folded: &str) -> bool {
    if folded.len() <= STEMS_MAX {
        return false;
    }
    let dots = folded.bytes().filter(|byte| *byte == b'.').count();
    dots > STEMS_MAX || dots.saturating_mul(folded.len()) > STEM_BYTES_MAX
}

/// The maximum number of prefixes that are compared with a rule; a path with more dots may be any path.
const STEMS_MAX: usize = 64;

/// The maximum total length of these prefixes; beyond it a path may be any path. Each regular expression reads
/// all of them, and a path may be as long as the request head.
const STEM_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_same_in_every_variant() {
        for variant in
            ["admin.shop", "ADMIN.shop", "admin.shop:80", "admin.shop.", "Admin.Shop.:8080"]
        {
            assert_eq!(normalize_host(variant), "admin.shop", "{variant}");
        }
        for (variant, host) in [("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a:b", "a:b"), ("", "")]
        {
            assert_eq!(normalize_host(variant), host, "{variant}");
        }
    }

    #[test]
    fn a_plain_path_is_not_read_again() {
        for (path, is_odd) in [
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
                PathVariants::from_path(path, PathKind::from_path(path)).is_odd(),
                is_odd,
                "{path}"
            );
        }
    }

    #[test]
    fn stems_are_what_is_before_formats_and_below_scripts() {
        let stems = |path: &str| {
            let variant = PathVariants::from_path(path, PathKind::from_path(path));
            variant.path_stems(path).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(stems("/a/b"), Vec::<String>::new());
        assert_eq!(stems("/a/b.json"), ["/a/b"]);
        assert_eq!(stems("/a/b.tar.gz"), ["/a/b", "/a/b.tar"]);
        assert_eq!(stems("/A.PHP/b/c.d"), ["/a.php", "/a.php/b/c"]);
    }

    #[test]
    fn a_path_of_very_many_dots_may_be_any() {
        let dotted = "/".to_owned() + &"a.".repeat(STEMS_MAX + 1) + "b";
        assert!(PathVariants::from_path(&dotted, PathKind::from_path(&dotted)).is_any_path());
    }

    #[test]
    fn a_long_path_with_dots_may_be_any() {
        let path = |letters: usize| format!("/{}/a.b.c", "x".repeat(letters));
        for (path, may_be_any) in [
            (path(STEM_BYTES_MAX / 4), false),
            (path(STEM_BYTES_MAX / 2), true),
            (path(STEM_BYTES_MAX).replace('.', "%2E"), true),
            (path(STEM_BYTES_MAX * 4).replace('.', ""), false),
        ] {
            let variant = PathVariants::from_path(&path, PathKind::from_path(&path));
            assert_eq!(variant.is_any_path(), may_be_any, "{} bytes", path.len());
        }
    }

    #[test]
    fn escaped_escapes_climb_too() {
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
            assert_eq!(PathKind::from_path(path), PathKind::Climbing, "{path}");
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
