//! Reader of FSM's `TrafficWarmup` kind: slow start of new endpoints of the service with the same name.

use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, LoadBalancing, Name, PolicyScope, RouteParent, ServiceName,
    ServicePolicyName, SlowStart,
};

use super::service_policy::{number_or, percent_or, time_or};
use crate::field::{Field, MapFields};

pub(super) fn read(
    name: &ServicePolicyName,
    spec: &Field<'_>,
) -> Option<(PolicyScope, LoadBalancing)> {
    let fields =
        spec.read_fields(&["enable", "duration", "minWeight", "maxWeight", "aggression"])?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
    let time = time_or(&fields, "duration", least, most, DURATION_DEFAULT);
    let percent_min = percent_or(&fields, "minWeight", 1, 10);
    let whole = number_or(&fields, "maxWeight", 0, 100, 100);
    if let (Some(field), Some(0..100)) = (fields.find("maxWeight"), whole) {
        field.reject(
            "is not 100: an endpoint after slow start always gets its full share",
            "use 100, or give the service fewer requests with a route",
        );
    }
    check_aggression(&fields);
    let is_on = match fields.find("enable") {
        Some(field) => field.read_boolean()?,
        None => true,
    };
    let (time, percent_min) = (time?, percent_min?);
    whole?;
    let service = ServiceName { namespace: name.namespace.clone(), name: own_service(spec, name)? };
    let warm_up = is_on.then_some(SlowStart { time, percent_min });
    // The same as a LoadBalancing with only a warm-up.
    let rule =
        LoadBalancing { algorithm: BalanceAlgorithm::PeakEwma { choices: 2 }, slow_start: warm_up };
    Some((PolicyScope::Services(vec![RouteParent { service, port: None }]), rule))
}

/// Reads the service name, which is the object's name. A name with a dot is not a service name.
fn own_service(spec: &Field<'_>, name: &ServicePolicyName) -> Option<Name> {
    let is_service = !name.name.as_str().contains('.');
    if !is_service {
        spec.reject(
            format!("applies to the Service of the same name, and {} does not exist", name.name),
            "give it the name of a Service of its namespace",
        );
    }
    is_service.then(|| name.name.clone())
}

/// Accepts only the default: shares grow linearly here.
fn check_aggression(fields: &MapFields<'_>) {
    let Some(field) = fields.find("aggression") else { return };
    let is_even = field.read_literal().and_then(|text| text.parse::<f64>().ok()) == Some(1.0);
    if !is_even {
        field.reject(
            format!("{} is not linear growth, and no other is supported", field.quoted_value()),
            "use 1, or remove it",
        );
    }
}

/// FSM's default.
const DURATION_DEFAULT: Duration = Duration::from_secs(90);
