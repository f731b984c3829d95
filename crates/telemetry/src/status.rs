//! Status classes, by the first digit of a status.

/// The class of a status, in order of its first digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatusClass {
    /// No response, or a status that HTTP does not define.
    None,
    Interim,
    Success,
    Redirect,
    Refused,
    Failed,
}

impl StatusClass {
    pub(crate) const ALL: [Self; CLASSES] =
        [Self::None, Self::Interim, Self::Success, Self::Redirect, Self::Refused, Self::Failed];

    pub(crate) fn from_status(status: u16) -> Self {
        match status / 100 {
            1 => Self::Interim,
            2 => Self::Success,
            3 => Self::Redirect,
            4 => Self::Refused,
            5 => Self::Failed,
            _ => Self::None,
        }
    }

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::None => "000",
            Self::Interim => "1xx",
            Self::Success => "2xx",
            Self::Redirect => "3xx",
            Self::Refused => "4xx",
            Self::Failed => "5xx",
        }
    }
}

/// No response, and five classes of status.
pub(crate) const CLASSES: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digit_decides() {
        for (status, label) in [
            (0, "000"),
            (99, "000"),
            (101, "1xx"),
            (200, "2xx"),
            (304, "3xx"),
            (499, "4xx"),
            (599, "5xx"),
            (600, "000"),
            (u16::MAX, "000"),
        ] {
            assert_eq!(StatusClass::from_status(status).label(), label, "{status}");
        }
    }

    #[test]
    fn each_class_stands_at_its_own_index() {
        for (index, class) in StatusClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, index);
        }
    }
}
