//! Defines the identity by which a process reports telemetry to collectors, and the values of attributes.

/// The entity that produces telemetry, as identified to collectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceIdentity {
    /// The service name: for a workload, the service of its metrics.
    pub service: String,
    /// The namespace of the service, or of the workload.
    pub namespace: String,
    /// The instance: for a workload, its name.
    pub instance: String,
}

/// The value of a telemetry attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A string.
    Text(String),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
}
