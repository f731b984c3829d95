//! Reads FSM's `TrafficWarmup` kind: slow start of new endpoints of the service with the same name.

use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, LoadBalancing, Name, PolicyScope, RouteParent, ServiceName,
    ServicePolicyName, SlowStart,
};

use super::service_policy::{read_duration_or, read_number_or, read_percent_or};
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `TrafficWarmup` as the equivalent load balancing of the service.
pub(super) fn read(
    name: &ServicePolicyName,
    spec: &Field<'_>,
) -> Option<(PolicyScope, LoadBalancing)> {
    let fields =
        spec.read_fields(&["enable", "duration", "minWeight", "maxWeight", "aggression"])?;
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
    let duration = read_duration_or(&fields, "duration", min, max, DEFAULT_DURATION);
    let min_percent = read_percent_or(&fields, "minWeight", 1, 10);
    let max_weight = read_number_or(&fields, "maxWeight", 0, 100, 100);
    if let (Some(field), Some(0..100)) = (fields.find("maxWeight"), max_weight) {
        field.reject(
            "is not 100: an endpoint after slow start always gets its full share",
            "use 100, or give the service fewer requests with a route",
        );
    }
    reject_nonlinear_growth(&fields);
    let is_enabled = match fields.find("enable") {
        Some(field) => field.read_boolean()?,
        None => true,
    };
    let (duration, min_percent) = (duration?, min_percent?);
    max_weight?;
    let service =
        ServiceName { namespace: name.namespace.clone(), name: require_service_name(spec, name)? };
    let slow_start = is_enabled.then_some(SlowStart { duration, min_percent });
    // The same as a LoadBalancing that sets only `warmup`.
    let rule = LoadBalancing { algorithm: BalanceAlgorithm::PeakEwma { choices: 2 }, slow_start };
    Some((PolicyScope::Services(vec![RouteParent { service, port: None }]), rule))
}

/// Returns the name of the service, which is the name of the object. Rejects a name with a dot, which no service has.
fn require_service_name(spec: &Field<'_>, name: &ServicePolicyName) -> Option<Name> {
    let is_service = !name.name.as_str().contains('.');
    if !is_service {
        spec.reject(
            format!("applies to the Service of the same name, and {} does not exist", name.name),
            "give it the name of a Service of its namespace",
        );
    }
    is_service.then(|| name.name.clone())
}

/// Rejects every `aggression` but 1, the default: only linear growth is supported.
fn reject_nonlinear_growth(fields: &MapFields<'_>) {
    let Some(field) = fields.find("aggression") else { return };
    let is_linear = field.read_literal().and_then(|text| text.parse::<f64>().ok()) == Some(1.0);
    if !is_linear {
        field.reject(
            format!(
                "{} is not linear growth, and no other growth is supported",
                field.quoted_value()
            ),
            "use 1, or remove it",
        );
    }
}

/// The default duration of the slow start, as in FSM.
const DEFAULT_DURATION: Duration = Duration::from_secs(90);
