//! Reads the `cors` filter (cross-origin resource sharing, Fetch Standard) of an `HTTPRoute`.

use leno_model::{AllowedNames, Cors, HeaderEdits, InvalidOrigin, OriginPattern};

use crate::field::{Field, MapFields};

/// Reads a `cors` filter.
pub(super) fn read(config: &Field<'_>) -> Option<Cors> {
    let fields = config.read_fields(&[
        "allowOrigins",
        "allowCredentials",
        "allowMethods",
        "allowHeaders",
        "exposeHeaders",
        "maxAge",
    ])?;
    let origins_field = fields.require("allowOrigins")?;
    let origins: Vec<OriginPattern> = origins_field.read_each(MAX_LIST_ELEMENTS, |field| {
        let reject_origin = |error: InvalidOrigin| {
            field.reject(format!("{} is not an origin", field.quoted_value()), error.hint);
        };
        OriginPattern::new(field.read_text()?).map_err(reject_origin).ok()
    });
    if origins.is_empty() {
        origins_field.reject("names no origin", "add one, or remove the filter");
    }
    let allows_credentials = match fields.find("allowCredentials") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    let methods = read_allowed_names(&fields, "allowMethods", |field| {
        let text = field.read_text()?;
        let is_method =
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        if !is_method {
            let problem = format!("{} is not a method", field.quoted_value());
            field.reject(problem, "use one such as PUT, or `*`");
        }
        is_method.then(|| text.to_owned())
    });
    let max_age_seconds = match fields.find("maxAge") {
        Some(field) => field.read_number(1, MAX_AGE_LIMIT_SECONDS)?,
        None => MAX_AGE_DEFAULT_SECONDS,
    };
    Some(Cors {
        origins,
        allows_credentials,
        methods: methods?,
        headers: read_allowed_names(&fields, "allowHeaders", read_header)?,
        exposed_headers: read_allowed_names(&fields, "exposeHeaders", read_header)?,
        max_age_seconds,
    })
}

/// Reads a list of names, each with `read_name`, or a single `*`; an empty list if the field is absent.
fn read_allowed_names(
    fields: &MapFields<'_>,
    key: &str,
    read_name: impl Fn(&Field<'_>) -> Option<String>,
) -> Option<AllowedNames> {
    let Some(field) = fields.find(key) else { return Some(AllowedNames::default()) };
    let elements = field.read_list(MAX_LIST_ELEMENTS)?;
    let is_wildcard = |element: &Field<'_>| element.read_literal().as_deref() == Some("*");
    if elements.iter().any(is_wildcard) {
        if elements.len() > 1 {
            field.reject("has other values in addition to `*`", "use only `*`, or list all values");
        }
        return Some(AllowedNames::Any);
    }
    Some(AllowedNames::Only(elements.iter().filter_map(read_name).collect()))
}

/// Reads the name of a header, in lower case.
fn read_header(field: &Field<'_>) -> Option<String> {
    let name = field.read_text()?.to_ascii_lowercase();
    if !HeaderEdits::is_valid_name(&name) {
        let problem = format!("{} is not the name of a header", field.quoted_value());
        field.reject(problem, "use letters, digits and `-`");
        return None;
    }
    Some(name)
}

/// Maximum number of origins, methods or headers per list, as in the resource's schema.
const MAX_LIST_ELEMENTS: usize = 64;
/// The default of `maxAge` in seconds, as in the resource's schema.
const MAX_AGE_DEFAULT_SECONDS: u32 = 5;
/// Maximum value of `maxAge` in seconds: one month. Browsers do not cache for longer.
const MAX_AGE_LIMIT_SECONDS: u32 = 31 * 24 * 3600;
