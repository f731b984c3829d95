//! Reads the `requestMirror` filter: the mirror service and the share of requests.

use leno_model::{Name, WeightedBackend};

use super::http_route::read_service;
use super::other_kinds::{DefaultKind, reject_other_kinds};
use crate::field::{Field, MapFields};

/// Reads a `requestMirror` filter. The weight of the result is the share of requests in parts per million.
pub(super) fn read(config: &Field<'_>, namespace: &Name) -> Option<WeightedBackend> {
    let fields = config.read_fields(&["backendRef", "percent", "fraction"])?;
    let backend = fields.require("backendRef")?;
    let backend_fields = backend.read_fields(&["group", "kind", "name", "namespace", "port"])?;
    reject_other_kinds(&backend_fields, DefaultKind::Service);
    let service = read_service(&backend_fields, namespace);
    let port = backend_fields.require("port").and_then(Field::read_port);
    let weight = read_share(&fields);
    Some(WeightedBackend::new(service?, port?, weight?))
}

/// Reads the share of requests to copy, `percent` or `fraction`, in parts per million; the default is all requests.
fn read_share(fields: &MapFields<'_>) -> Option<u32> {
    match (fields.find("percent"), fields.find("fraction")) {
        (None, None) => Some(WHOLE_PPM),
        (Some(percent), None) => Some(percent.read_number(0, 100)? * (WHOLE_PPM / 100)),
        (None, Some(fraction)) => {
            let fraction_fields = fraction.read_fields(&["numerator", "denominator"])?;
            let max = i32::MAX.unsigned_abs();
            let denominator = match fraction_fields.find("denominator") {
                Some(field) => field.read_number(1, max)?,
                None => 100,
            };
            let field = fraction_fields.require("numerator")?;
            let numerator = field.read_number(0, denominator)?;
            let share_ppm = u64::from(numerator) * u64::from(WHOLE_PPM) / u64::from(denominator);
            if numerator > 0 && share_ppm == 0 {
                let problem = "is less than a millionth: no request would be copied";
                fraction.reject(problem, "use a fraction of 1/1000000 or more");
                return None;
            }
            u32::try_from(share_ppm).ok()
        }
        (Some(_), Some(fraction)) => {
            fraction.reject("repeats `percent`", "remove one of the two");
            None
        }
    }
}

/// 100 % in parts per million.
const WHOLE_PPM: u32 = 1_000_000;
