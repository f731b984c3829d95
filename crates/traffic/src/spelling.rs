//! What an application may understand otherwise than it is written: paths, hosts, lists of values.

use std::borrow::Cow;

use crate::query::percent_decoded;

/// Whether a path means what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathKind {
    Plain,
    /// It has a `.` or `..` element, plain or in disguise: the application may understand
    /// another path than the rule that allowed it, so rules about paths do not apply to it.
    Climbing,
}

impl PathKind {
    pub(crate) fn of(path: &str) -> Self {
        // The usual path has nothing that could climb, and is not looked at twice.
        if !path.bytes().any(|byte| IN_CLIMBS[usize::from(byte)]) {
            return Self::Plain;
        }
        let mut before = b'/';
        let could_climb = path.bytes().any(|byte| {
            let starts_with_dot = byte == b'.' && before == b'/';
            before = byte;
            starts_with_dot || byte == b'%' || byte == b'\\'
        });
        if !could_climb {
            return Self::Plain;
        }
        let mut element = Element::default();
        for byte in percent_decoded(path) {
            if element.ends_with(byte) {
                return Self::Climbing;
            }
        }
        match element.climbs() {
            true => Self::Climbing,
            false => Self::Plain,
        }
    }
}

/// Whether a byte is in all that could climb.
const IN_CLIMBS: [bool; 256] = {
    let mut are = [false; 256];
    are[b'.' as usize] = true;
    are[b'%' as usize] = true;
    are[b'\\' as usize] = true;
    are
};

/// A path as it was sent, and as an application may read it.
pub(crate) struct Spelling {
    kind: PathKind,
    /// Decoded, with `\\` as `/`, without parameters and empty elements; absent when that is how
    /// it was sent.
    decoded: Option<String>,
}

impl Spelling {
    pub(crate) fn of(path: &str, kind: PathKind) -> Self {
        let mut before = 0;
        let is_odd = path.bytes().any(|byte| {
            let is_second_slash = byte == b'/' && before == b'/';
            before = byte;
            is_second_slash || matches!(byte, b'%' | b'\\' | b';')
        });
        let decoded = is_odd.then(|| decoded(path));
        Self { kind, decoded }
    }

    /// Whether it may be any path at all.
    pub(crate) fn climbs(&self) -> bool {
        self.kind == PathKind::Climbing
    }

    /// The path as it was sent, and decoded where that differs.
    pub(crate) fn paths<'a>(&'a self, sent: &'a str) -> impl Iterator<Item = &'a str> {
        std::iter::once(sent).chain(self.decoded())
    }

    /// The path decoded, where that differs.
    pub(crate) fn decoded(&self) -> Option<&str> {
        self.decoded.as_deref()
    }
}

/// All that a host may be to an application: as it was sent, and as most understand it.
pub(crate) fn hosts(authority: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let sent = std::iter::once(Cow::Borrowed(authority));
    sent.chain(std::iter::once_with(|| Cow::Owned(bare(authority))))
}

/// All that the values of a header, joined, may be to an application: these together, and each of them.
pub(crate) fn values(joined: &str) -> impl Iterator<Item = &str> {
    std::iter::once(joined).chain(joined.split(',').map(str::trim))
}

/// A host as most applications understand it.
fn bare(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn decoded(path: &str) -> String {
    let mut bytes: Vec<u8> = Vec::with_capacity(path.len());
    let mut in_parameters = false;
    for byte in percent_decoded(path) {
        match byte {
            b'/' | b'\\' => {
                in_parameters = false;
                if bytes.last() != Some(&b'/') {
                    bytes.push(b'/');
                }
            }
            b';' => in_parameters = true,
            _ if in_parameters => {}
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One element of a path, read byte by byte. What follows a `;` are parameters, which some
/// applications strip before they resolve `..`.
#[derive(Debug, Default)]
struct Element {
    dots: usize,
    others: usize,
    in_parameters: bool,
}

impl Element {
    /// Takes a byte; whether it ended an element that climbs.
    fn ends_with(&mut self, byte: u8) -> bool {
        match byte {
            b'/' | b'\\' => {
                let climbs = self.climbs();
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

    fn climbs(&self) -> bool {
        self.others == 0 && matches!(self.dots, 1 | 2)
    }
}

#[cfg(test)]
mod tests {
    use super::bare;

    #[test]
    fn a_host_is_the_same_in_every_spelling() {
        for spelling in
            ["admin.shop", "ADMIN.shop", "admin.shop:80", "admin.shop.", "Admin.Shop.:8080"]
        {
            assert_eq!(bare(spelling), "admin.shop", "{spelling}");
        }
        for (spelling, host) in
            [("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a:b", "a:b"), ("", "")]
        {
            assert_eq!(bare(spelling), host, "{spelling}");
        }
    }
}
