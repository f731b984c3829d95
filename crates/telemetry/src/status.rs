//! Defines the classes of HTTP status codes, which are the values of the metric label `code`.

/// The class of an HTTP status code, by its first digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatusClass {
    /// No response, or a status outside 100 to 599.
    None,
    /// 1xx.
    Interim,
    /// 2xx.
    Success,
    /// 3xx.
    Redirect,
    /// 4xx.
    ClientError,
    /// 5xx.
    ServerError,
}

impl StatusClass {
    pub(crate) const ALL: [Self; CLASS_COUNT] = [
        Self::None,
        Self::Interim,
        Self::Success,
        Self::Redirect,
        Self::ClientError,
        Self::ServerError,
    ];

    pub(crate) fn from_status(status: u16) -> Self {
        match status / 100 {
            1 => Self::Interim,
            2 => Self::Success,
            3 => Self::Redirect,
            4 => Self::ClientError,
            5 => Self::ServerError,
            _ => Self::None,
        }
    }

    /// Returns the value of the label `code`.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::None => "000",
            Self::Interim => "1xx",
            Self::Success => "2xx",
            Self::Redirect => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
        }
    }
}

/// The number of classes: no response, and the five classes of HTTP.
pub(crate) const CLASS_COUNT: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digit_determines_the_class() {
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
    fn each_class_is_at_its_own_index() {
        for (index, class) in StatusClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, index);
        }
    }
}
