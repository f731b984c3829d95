//! Paths that an application may understand otherwise than they are written.

use super::percent_decoded;

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
        if !path.bytes().any(|byte| matches!(byte, b'.' | b'%' | b'\\')) {
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

/// A path as it was sent, and as an application may read it.
pub(crate) struct Spelling {
    kind: PathKind,
    /// Decoded, with `\\` as `/`, without parameters and empty elements; absent when that is how
    /// it was sent.
    decoded: Option<String>,
}

impl Spelling {
    pub(crate) fn of(path: &str, kind: PathKind) -> Self {
        let is_plain = !path.contains(['%', '\\', ';']) && !path.contains("//");
        let decoded = (!is_plain).then(|| decoded(path));
        Self { kind, decoded }
    }

    /// Whether it may be any path at all.
    pub(crate) fn climbs(&self) -> bool {
        self.kind == PathKind::Climbing
    }

    /// The path decoded, where that differs.
    pub(crate) fn decoded(&self) -> Option<&str> {
        self.decoded.as_deref()
    }
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
