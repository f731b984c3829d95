//! Reads the `leno.dev/v1alpha1` kinds `TagRoute` and `Lane`.

use leno_model::{Lane, LaneSpec, TagRoute, TagRouteName, TagRouteSpec};

use super::ObjectMetadata;
use crate::field::Field;
use crate::schema_reader::read_definition;

/// Reads the `spec` of a `TagRoute`.
pub(super) fn read_route(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<TagRoute> {
    let route: TagRouteSpec = read_definition(spec, &metadata.namespace)?;
    Some(route.into_route(rule_name(metadata)))
}

/// Reads the `spec` of a `Lane`.
pub(super) fn read_lane(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<Lane> {
    let lane: LaneSpec = read_definition(spec, &metadata.namespace)?;
    Some(lane.into_lane(rule_name(metadata)))
}

fn rule_name(metadata: ObjectMetadata) -> TagRouteName {
    TagRouteName { namespace: metadata.namespace, name: metadata.name }
}
