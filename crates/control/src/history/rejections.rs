//! Counts the requests that sidecars rejected recently, by destination and reason, with the policies that decided.

use std::collections::VecDeque;
use std::time::Duration;

use leno_discovery::{Direction, RuleMatches, TrafficReport, TrafficSeries};
use leno_model::{
    Name, Reason, RouteKind, RuleKind, ServiceName, ServicePolicyKind, ServicePort, TagDialect,
    WorkloadName,
};
use leno_telemetry::RecentTable;

use super::request_history::{HISTORY_LENGTH, RequestHistory, step_number};
use super::{MAX_SERVICES, route_parent};
use crate::compile::target_port;
use crate::mesh::Mesh;
use crate::status::{RECENT_STEPS, RejectionStatus};

/// Requests that sidecars rejected, by destination and reason.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// Rejections by the sidecars of clients and servers, counted by those of clients.
    client_rejections: RecentTable<RejectionKey, RejectionCounts, MAX_ENTRIES>,
    /// Rejections by the sidecars of servers. Only requests of clients without a sidecar are counted here: the
    /// sidecar of a client counts its requests in `client_rejections`.
    server_rejections: RecentTable<RejectionKey, RejectionCounts, MAX_ENTRIES>,
    /// All requests of clients without a sidecar, by service.
    unmeshed_requests: RecentTable<ServiceName, RecentCounts, MAX_ENTRIES>,
    /// All requests of a workload to destinations that are not a known service of the mesh.
    external_requests: RecentTable<WorkloadName, RecentCounts, MAX_ENTRIES>,
}

/// A destination, and the label of a reason.
type RejectionKey = (RejectedDestination, &'static str);
/// The kind, namespace and name of an object.
type PolicyKey = (RuleKind, Name, Name);

/// The destination of requests. Requested host names are not kept, because clients choose them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RejectedDestination {
    Service(ServiceName),
    /// All destinations that are not a known service of the mesh, for the requests of one workload.
    External(WorkloadName),
}

/// The rejections at one destination for one reason.
#[derive(Debug, Default)]
struct RejectionCounts {
    recent_requests: RecentCounts,
    /// The sidecars that counted the rejections, each with the time of its last report.
    sidecars: RecentTable<WorkloadName, Duration, MAX_SIDECARS>,
    /// The policies that may have decided, each with the time of the last report.
    policies: RecentTable<PolicyKey, Duration, MAX_POLICIES>,
}

/// The step numbers of the last [`RECENT_STEPS`] steps of ten seconds with requests, each with its count.
#[derive(Debug, Default)]
struct RecentCounts(VecDeque<(u64, u64)>);

impl Rejections {
    /// Processes a report of one workload's sidecar; returns the number of entries evicted for it.
    pub(super) fn record_report(
        &mut self,
        mesh: &Mesh,
        workload: &WorkloadName,
        report: &TrafficReport,
        now: Duration,
    ) -> u64 {
        let mut evicted_count = 0;
        for series in &report.series {
            let Some(destination) = find_destination(mesh, workload, series) else { continue };
            let is_inbound = series.direction == Direction::Inbound;
            let is_unmeshed = is_inbound && series.peer.is_none();
            evicted_count += u64::from(match &destination {
                RejectedDestination::External(client) => {
                    add_requests(&mut self.external_requests, client, series, now)
                }
                RejectedDestination::Service(service) if is_unmeshed => {
                    add_requests(&mut self.unmeshed_requests, service, series, now)
                }
                RejectedDestination::Service(_) => false,
            });
            let table =
                if is_inbound { &mut self.server_rejections } else { &mut self.client_rejections };
            let is_before_service = may_lack_service(mesh, workload, series);
            let services = deciding_services(mesh, workload, series, &destination);
            let destinations = match is_inbound {
                true => services.iter().cloned().map(RejectedDestination::Service).collect(),
                false => vec![destination.clone()],
            };
            for (reason, count) in &series.reasons {
                let is_counted_reason = |reason: &Reason| match destination.service() {
                    Some(_) => reason.is_rejection(),
                    None => {
                        // After an overflow, a series without a service may contain any requests.
                        report.overflowed == 0
                            && (is_destination_reason(*reason)
                                || (is_before_service && is_head_reason(*reason)))
                    }
                };
                let Some(reason) = reason.filter(is_counted_reason) else { continue };
                let policies = deciding_policies(mesh, &services, reason, &report.rules);
                for (index, rejected_destination) in destinations.iter().enumerate() {
                    // Requests count once, for the first destination. Those of a meshed client are counted by the
                    // client's sidecar. The sidecar and the policies are recorded for all destinations.
                    let is_counted = index == 0 && (!is_inbound || is_unmeshed);
                    let key = (rejected_destination.clone(), reason.label());
                    let (counts, evicted_entry) = table.entry(key, RejectionCounts::default);
                    evicted_count += u64::from(evicted_entry.is_some());
                    counts.recent_requests.add(now, if is_counted { *count } else { 0 });
                    counts.sidecars.insert(workload.clone(), now);
                    for policy in &policies {
                        counts.policies.insert(policy.clone(), now);
                    }
                }
            }
        }
        evicted_count
    }

    /// Evicts entries without a report for an hour, and services and workloads that left the mesh.
    pub(super) fn evict_expired(&mut self, mesh: &Mesh, now: Duration) {
        let exists = |destination: &RejectedDestination| match destination {
            RejectedDestination::Service(service) => mesh.service(service).is_some(),
            RejectedDestination::External(client) => mesh.workload(client).is_some(),
        };
        for table in [&mut self.server_rejections, &mut self.client_rejections] {
            table.retain(|(destination, _), counts| {
                exists(destination) && counts.last_report_time() + HISTORY_LENGTH > now
            });
        }
        let is_service = |service: &ServiceName| mesh.service(service).is_some();
        self.unmeshed_requests.retain(|service, recent| is_service(service) && recent.sum(now) > 0);
        self.external_requests.retain(|_, recent| recent.sum(now) > 0);
    }

    /// Returns the rejections of the last half minute that clients received; those that a retry resolved are
    /// left out.
    pub(super) fn rejection_statuses(
        &self,
        services: &RecentTable<ServiceName, RequestHistory, MAX_SERVICES>,
        now: Duration,
    ) -> Vec<RejectionStatus> {
        let keys: std::collections::BTreeSet<&RejectionKey> = self
            .client_rejections
            .iter()
            .chain(self.server_rejections.iter())
            .map(|(key, _)| key)
            .collect();
        let status = |key: &RejectionKey| {
            let (destination, reason) = key;
            let [client_counts, server_counts] = [&self.client_rejections, &self.server_rejections]
                .map(|table| table.get(key).filter(|counts| counts.is_recent(now)));
            let requests = [client_counts, server_counts]
                .into_iter()
                .flatten()
                .map(|counts| counts.recent_requests.sum(now))
                .sum::<u64>();
            let count_recent =
                |counts: Option<&RecentCounts>| counts.map_or(0, |counts| counts.sum(now));
            let total_requests = match destination {
                RejectedDestination::Service(service) => {
                    services.get(service).map_or(0, |history| history.recent_requests(now))
                        + count_recent(self.unmeshed_requests.get(service))
                }
                RejectedDestination::External(client) => {
                    count_recent(self.external_requests.get(client))
                }
            };
            // If sidecars of servers reported the reason too, they rejected the requests.
            let rejecting_counts = server_counts.or(client_counts)?;
            (requests > 0).then(|| RejectionStatus {
                service: destination.service().map_or(String::new(), ServiceName::to_string),
                reason: (*reason).to_owned(),
                requests,
                share: requests as f64 / total_requests.max(requests) as f64,
                side: if server_counts.is_some() { "server" } else { "client" }.to_owned(),
                sidecars: recent_keys(&rejecting_counts.sidecars, now)
                    .map(WorkloadName::to_string)
                    .collect(),
                clients: client_counts
                    .into_iter()
                    .flat_map(|counts| recent_keys(&counts.sidecars, now))
                    .map(WorkloadName::to_string)
                    .collect(),
                policies: [client_counts, server_counts]
                    .into_iter()
                    .flatten()
                    .flat_map(|counts| recent_keys(&counts.policies, now))
                    .map(|(kind, namespace, name)| format!("{kind} {namespace}/{name}"))
                    .collect::<std::collections::BTreeSet<_>>()
                    .into_iter()
                    .collect(),
            })
        };
        keys.into_iter().filter_map(status).collect()
    }
}

impl RejectionCounts {
    fn last_report_time(&self) -> Duration {
        self.sidecars.iter().map(|(_, last_report)| *last_report).max().unwrap_or_default()
    }

    fn is_recent(&self, now: Duration) -> bool {
        is_recent(self.last_report_time(), now)
    }
}

impl RecentCounts {
    fn add(&mut self, now: Duration, count: u64) {
        let step = step_number(now);
        match self.0.back_mut() {
            // Time is monotonic, so the last entry is the newest.
            Some((newest, sum)) if *newest >= step => *sum = sum.saturating_add(count),
            _ => self.0.push_back((step, count)),
        }
        if self.0.len() > RECENT_STEPS {
            self.0.pop_front();
        }
    }

    fn sum(&self, now: Duration) -> u64 {
        let oldest_step = (step_number(now) + 1).saturating_sub(RECENT_STEPS as u64);
        let recent_steps = self.0.iter().filter(|(step, _)| *step >= oldest_step);
        recent_steps.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

impl RejectedDestination {
    fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Service(service) => Some(service),
            Self::External(_) => None,
        }
    }
}

/// Returns the destination of a series. The server's sidecar may reject a request before it knows the service:
/// then the destination is the first service of its workload.
fn find_destination(
    mesh: &Mesh,
    workload: &WorkloadName,
    series: &TrafficSeries,
) -> Option<RejectedDestination> {
    let known_service = series.service.as_ref().filter(|service| mesh.service(service).is_some());
    match (known_service, series.direction) {
        (Some(service), _) => Some(RejectedDestination::Service(service.clone())),
        (None, Direction::Outbound) => Some(RejectedDestination::External(workload.clone())),
        (None, Direction::Inbound) if series.service.is_none() => {
            let mut services = mesh.services_of(workload);
            services.next().map(|service| RejectedDestination::Service(service.name.clone()))
        }
        (None, Direction::Inbound) => None,
    }
}

/// Returns the services with policies that may have decided about the requests of a series, the destination
/// first. The server's sidecar applies the policies of all services in front of a port, and reports one of these
/// services. The client's sidecar reports the service to which a route forwarded the request.
fn deciding_services(
    mesh: &Mesh,
    workload: &WorkloadName,
    series: &TrafficSeries,
    destination: &RejectedDestination,
) -> Vec<ServiceName> {
    let Some(service) = destination.service() else { return Vec::new() };
    let mut services = vec![service.clone()];
    match series.direction {
        Direction::Inbound => {
            let server = mesh.workload(workload);
            let forwards = |port: &ServicePort| {
                server.is_some_and(|workload| {
                    target_port(&port.target, workload) == Some(series.port)
                })
            };
            let other_services = mesh.services_of(workload).filter(|other| other.name != *service);
            let deciding = other_services
                .filter(|other| series.service.is_none() || other.ports.iter().any(forwards));
            services.extend(deciding.map(|other| other.name.clone()));
        }
        Direction::Outbound => {
            let route = series.route.as_ref();
            services.extend(route.and_then(|route| route_parent(mesh, route, service)).cloned());
        }
    }
    services
}

/// True if a sidecar may have rejected requests of its own workload before it knew the service: at the HTTP
/// proxy port, where each request names a service, or at an address outside the mesh. False at a gateway, where
/// external clients send requests without a known service.
fn may_lack_service(mesh: &Mesh, workload: &WorkloadName, series: &TrafficSeries) -> bool {
    let is_gateway =
        || mesh.workload(workload).is_none_or(|workload| mesh.gateway_of(workload).is_some());
    series.direction == Direction::Outbound
        && series.service.is_none()
        && series.port == 0
        && !is_gateway()
}

/// True for reasons for which a sidecar cannot parse a request head, or does not receive a whole one.
fn is_head_reason(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::BadRequest | Reason::HeadTooLarge | Reason::HeadTimeout | Reason::Unsupported
    )
}

/// True for reasons for which a destination is not a service, or may not be reached. Other reasons, such as
/// requests without a route at a gateway, are independent of the client.
fn is_destination_reason(reason: Reason) -> bool {
    matches!(reason, Reason::UnknownService | Reason::EgressDenied | Reason::DeniedOutbound)
}

/// Adds the requests of a series; returns true if another entry was evicted for it.
fn add_requests<K: Ord + Clone>(
    table: &mut RecentTable<K, RecentCounts, MAX_ENTRIES>,
    key: &K,
    series: &TrafficSeries,
    now: Duration,
) -> bool {
    let (counts, evicted_entry) = table.entry(key.clone(), RecentCounts::default);
    counts.add(now, series.request_count());
    evicted_entry.is_some()
}

/// Returns the objects that may have rejected requests to these services for this reason: the reported objects
/// that concern the services, or all reported objects if none of them does. For [`Reason::NoRoute`] the attached
/// routes are returned, because sidecars report no rule for a request without a route.
fn deciding_policies(
    mesh: &Mesh,
    services: &[ServiceName],
    reason: Reason,
    rules: &[RuleMatches],
) -> Vec<PolicyKey> {
    if reason == Reason::NoRoute {
        let routes = services.iter().flat_map(|service| mesh.attached_route_keys(service));
        return routes.take(MAX_POLICIES).collect();
    }
    let kinds = rejecting_kinds(reason);
    let mut policies: Vec<PolicyKey> = rules
        .iter()
        .filter(|rule| kinds.contains(&rule.kind) && rule.matches > 0)
        .map(|rule| (rule.kind, rule.namespace.clone(), rule.name.clone()))
        .filter(|(kind, namespace, name)| mesh.has_object(&kind.object_key(namespace, name)))
        .collect();
    let concerns_services = |policy: &PolicyKey| {
        services.iter().any(|service| {
            mesh.concerns_service(&policy.0.object_key(&policy.1, &policy.2), service)
        })
    };
    if policies.iter().any(concerns_services) {
        policies.retain(concerns_services);
    }
    policies
}

/// Returns the kinds of objects that reject requests for a reason, and are counted then.
fn rejecting_kinds(reason: Reason) -> Vec<RuleKind> {
    use ServicePolicyKind as Kind;
    let service_policy_kinds: &[ServicePolicyKind] = match reason {
        Reason::RateLimited | Reason::Overloaded | Reason::RateLimitUnavailable => {
            &[Kind::RateLimit, Kind::UpstreamTrafficSetting]
        }
        Reason::CircuitOpen | Reason::CircuitFull => {
            &[Kind::CircuitBreaker, Kind::UpstreamTrafficSetting]
        }
        Reason::TokenMissing | Reason::TokenInvalid => &[Kind::JwtValidation],
        Reason::DeniedByService | Reason::AuthorizationUnavailable | Reason::BodyTooLarge => {
            &[Kind::ExternalAuthorization]
        }
        Reason::FaultInjected => &[Kind::FaultInjection],
        Reason::DeniedByPolicy => return vec![RuleKind::AccessPolicy],
        Reason::NoTaggedEndpoint => {
            let dialects = [TagDialect::TagRoute, TagDialect::Sermant, TagDialect::Lane];
            return dialects.map(RuleKind::Tags).to_vec();
        }
        Reason::InvalidBackend => {
            let routes = [RouteKind::Http, RouteKind::Grpc, RouteKind::Tcp, RouteKind::Tls];
            return routes.into_iter().chain([RouteKind::Split]).map(RuleKind::Route).collect();
        }
        _ => &[],
    };
    service_policy_kinds.iter().copied().map(RuleKind::ServicePolicy).collect()
}

fn recent_keys<K: Ord + Clone, const MAX: usize>(
    table: &RecentTable<K, Duration, MAX>,
    now: Duration,
) -> impl Iterator<Item = &K> {
    table.iter().filter(move |(_, last_report)| is_recent(**last_report, now)).map(|(key, _)| key)
}

fn is_recent(last_report: Duration, now: Duration) -> bool {
    step_number(last_report) + RECENT_STEPS as u64 > step_number(now)
}

/// Maximum pairs of destination and reason on each side, of about 200 bytes each.
const MAX_ENTRIES: usize = 1024;
/// Maximum sidecars per entry.
const MAX_SIDECARS: usize = 8;
/// Maximum policies per entry.
const MAX_POLICIES: usize = 4;

#[cfg(test)]
mod tests;
