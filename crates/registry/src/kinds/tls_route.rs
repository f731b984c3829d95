//! Reads Gateway API `TLSRoute` `v1`, `v1alpha3` and `v1alpha2` attached to services.

use leno_model::{HostPattern, RouteName, TlsRoute, TlsRule, WeightedBackend};

use super::ObjectMetadata;
use super::http_route::{MAX_BACKENDS, read_backend, read_parents};
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `TLSRoute`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<TlsRoute> {
    let fields = spec.read_fields(&["parentRefs", "hostnames", "rules"])?;
    let route = RouteName { namespace: metadata.namespace, name: metadata.name };
    let parents = read_parents(&fields, &route.namespace);
    let hostnames = read_hostnames(&fields);
    let backends = read_backends(&fields, &route)?;
    // Grants are evaluated later, together with all other objects.
    let rule = TlsRule { route, hostnames: hostnames?, backends, ungranted_weight: 0 };
    Some(TlsRoute { parents: parents?, rule, created: 0 })
}

/// Reads the backends of the route's only rule.
pub(super) fn read_backends(
    fields: &MapFields<'_>,
    route: &RouteName,
) -> Option<Vec<WeightedBackend>> {
    let rules = fields.require("rules")?;
    let [rule] = &rules.read_list(MAX_RULES)?[..] else {
        rules.reject("is empty", "add a rule with `backendRefs`");
        return None;
    };
    let rule_fields = rule.read_fields(&["name", "backendRefs"])?;
    let backends_field = rule_fields.require("backendRefs");
    let backends = rule_fields
        .read_each("backendRefs", MAX_BACKENDS, |backend| read_backend(backend, &route.namespace));
    if backends.iter().all(|backend| backend.weight == 0) {
        rule.warn(
            "has no backend with a weight above 0, so its sessions are closed",
            "add one to `backendRefs`",
        );
    }
    backends_field?;
    Some(backends)
}

/// Reads at least one host name: a route without names would also match sessions without a server name.
pub(super) fn read_hostnames(fields: &MapFields<'_>) -> Option<Vec<HostPattern>> {
    let field = fields.require("hostnames")?;
    let hostnames = read_host_patterns(field)?;
    if field.read_list(MAX_HOSTNAMES).is_some_and(|elements| elements.is_empty()) {
        field.reject("is empty", "list the server names that the route matches");
    }
    (!hostnames.is_empty()).then_some(hostnames)
}

/// Reads a host name pattern with `parse`. For a name that is not ASCII, the hint is to write its form in the DNS instead of
/// `hint`.
pub(super) fn read_host(
    field: &Field<'_>,
    parse: impl FnOnce(&str) -> Option<HostPattern>,
    hint: &'static str,
) -> Option<HostPattern> {
    let is_ascii = field.plain_text().is_none_or(str::is_ascii);
    let punycode_hint = "write it as the DNS has it, such as xn--mller-kva.example";
    field.read_with(parse, "a host name", if is_ascii { hint } else { punycode_hint })
}

/// Reads a list of host name patterns without duplicates.
pub(super) fn read_host_patterns(field: &Field<'_>) -> Option<Vec<HostPattern>> {
    let elements = field.read_list(MAX_HOSTNAMES)?;
    let mut hostnames: Vec<HostPattern> = Vec::new();
    for element in &elements {
        let hint = "use one in lower case such as shop.example.com or *.example.com";
        let Some(pattern) = read_host(element, parse_host_pattern, hint) else {
            continue;
        };
        if hostnames.contains(&pattern) {
            element.reject("is listed twice", "remove one of the two");
        }
        hostnames.push(pattern);
    }
    Some(hostnames)
}

/// Parses a host name pattern. Addresses are excluded: they are never server names (RFC 6066 §3).
fn parse_host_pattern(text: &str) -> Option<HostPattern> {
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    text.parse().ok().filter(|_| !is_address)
}

/// Maximum number of rules per route. Rules have no matches, so only the first of several would apply.
const MAX_RULES: usize = 1;
/// Maximum number of host names per route, as in the resource's schema.
const MAX_HOSTNAMES: usize = 16;
