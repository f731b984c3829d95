//! Whose it is that is told, and the values of attributes.

/// Whose it is that is told, as collectors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What it is a part of: of a workload the service that it is counted under.
    pub service: String,
    /// The namespace of that.
    pub namespace: String,
    /// Which of its instances: of a workload its name.
    pub instance: String,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Another number.
    Fraction(f64),
}
