//! The rule kinds that types define: their schemas, reference pages and readers have the same source.

use crate::definition::{Definition as _, MapSchema};
use crate::hedging::HedgeRule;
use crate::outlier_detection::OutlierDetection;
use crate::policy_targets::TargetedRule;

/// A rule kind.
#[derive(Debug)]
pub struct KindDefinition {
    /// The name of the kind.
    pub kind: &'static str,
    /// The reference page in `docs/rules`.
    pub page: &'static str,
    /// The schema of the `spec`.
    pub spec: &'static MapSchema,
}

/// The kinds with a definition.
pub const KIND_DEFINITIONS: &[KindDefinition] = &[
    KindDefinition {
        kind: "OutlierDetection",
        page: "outlier-detection.md",
        spec: TargetedRule::<OutlierDetection>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "Hedging",
        page: "hedging.md",
        spec: TargetedRule::<HedgeRule>::SCHEMA.map_schema(),
    },
];
