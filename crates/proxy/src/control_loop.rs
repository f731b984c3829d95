//! Loops of the control thread: one subscribes to the resources that requests need and evicts unused ones, the
//! other reconciles the listeners with the configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_discovery::condition::kind;
use leno_discovery::{MAX_ADDRESSES, MAX_NAMES, MAX_SUBSCRIPTIONS, ProxyReport, ProxyRequest};
use leno_model::ServiceName;
use leno_traffic::backoff;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, sleep_until};

use crate::config_store::ResourceRequest;
use crate::control_client::ControlClient;
use crate::listeners::{ListenError, Listeners};
use crate::open_listeners::OpenListeners;
use crate::subscriptions::{EvictionPriority, SubscriptionTable, Subscriptions};

/// Subscribes on first use, and unsubscribes entries that are idle.
pub(crate) async fn run_subscriptions(
    control_client: Rc<ControlClient>,
    mut resource_requests: mpsc::Receiver<ResourceRequest>,
    requests: mpsc::Sender<ProxyRequest>,
) {
    let idle_time = control_client.config.limits.idle_subscription;
    let mut sweep = tokio::time::interval(idle_time / 4);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        let changes = tokio::select! {
            count = resource_requests.recv_many(&mut batch, MAX_BATCHED_REQUESTS) => {
                if count == 0 {
                    return;
                }
                subscribe_batch(&control_client, &mut batch)
            }
            _ = sweep.tick() => {
                control_client.clear_eviction_conditions();
                unsubscribe_idle(&control_client, idle_time)
            }
        };
        for request in changes.into_iter().flatten() {
            if let Err(error) = requests.try_send(request) {
                revert_request(&control_client, error.into_inner());
            }
        }
    }
}

/// At most two requests for each of services, addresses and names: new entries may evict others.
type SubscriptionChanges = [Option<ProxyRequest>; 6];

/// Subscribes to the requested resources, and evicts other entries if a table is full.
fn subscribe_batch(
    control_client: &ControlClient,
    batch: &mut Vec<ResourceRequest>,
) -> SubscriptionChanges {
    let is_crowded = control_client.subscribed_addresses.borrow().len() > MAX_ADDRESSES / 4 * 3;
    let mut evicted_addresses = if is_crowded {
        remove_idle_addresses(control_client, CROWDED_IDLE_TIME)
    } else {
        Vec::new()
    };
    let is_crowded = control_client.dns_names.borrow().len() > MAX_NAMES / 4 * 3;
    let mut evicted_names =
        if is_crowded { remove_idle_names(control_client, CROWDED_IDLE_TIME) } else { Vec::new() };
    let mut subscribed_services = control_client.subscribed_services.borrow_mut();
    let mut subscribed_addresses = control_client.subscribed_addresses.borrow_mut();
    let mut dns_names = control_client.dns_names.borrow_mut();
    let (mut new_services, mut new_addresses, mut new_names) = (Vec::new(), Vec::new(), Vec::new());
    for request in batch.drain(..) {
        match request {
            ResourceRequest::Service(service) if subscribed_services.insert(service.clone()) => {
                new_services.push(service)
            }
            ResourceRequest::Address(address) if subscribed_addresses.insert(address) => {
                new_addresses.push(address)
            }
            ResourceRequest::Name(name) if dns_names.insert(name.clone()) => new_names.push(name),
            ResourceRequest::Service(_)
            | ResourceRequest::Address(_)
            | ResourceRequest::Name(_) => {}
        }
    }
    // The batch is pending and newer than all other entries, so none of it is evicted.
    let mut evicted_services = evict_unknown_services(control_client, &mut subscribed_services);
    let priority = control_client.config_store.service_eviction_priority();
    evicted_services.extend(evict_excess(
        control_client,
        &mut subscribed_services,
        MAX_SUBSCRIPTIONS,
        SubscriptionTable::Services,
        priority,
    ));
    let priority = control_client.config_store.address_eviction_priority();
    evicted_addresses.extend(evict_excess(
        control_client,
        &mut subscribed_addresses,
        MAX_ADDRESSES,
        SubscriptionTable::Addresses,
        priority,
    ));
    let priority = control_client.config_store.name_eviction_priority();
    evicted_names.extend(evict_excess(
        control_client,
        &mut dns_names,
        MAX_NAMES,
        SubscriptionTable::Names,
        priority,
    ));
    [
        (!evicted_services.is_empty()).then_some(ProxyRequest::Unsubscribe(evicted_services)),
        (!evicted_addresses.is_empty())
            .then_some(ProxyRequest::UnsubscribeAddresses(evicted_addresses)),
        (!evicted_names.is_empty()).then_some(ProxyRequest::UnsubscribeNames(evicted_names)),
        (!new_services.is_empty()).then_some(ProxyRequest::Subscribe(new_services)),
        (!new_addresses.is_empty()).then_some(ProxyRequest::SubscribeAddresses(new_addresses)),
        (!new_names.is_empty()).then_some(ProxyRequest::SubscribeNames(new_names)),
    ]
}

/// Evicts names of services that do not exist beyond [`MAX_UNKNOWN_SERVICES`], so that an application that invents names
/// leaves the table to existing services.
fn evict_unknown_services(
    control_client: &ControlClient,
    subscribed_services: &mut Subscriptions<ServiceName>,
) -> Vec<ServiceName> {
    let Some(config) = control_client.config_store.current_config() else {
        return Vec::new();
    };
    let unknown_count =
        config.absent_services().filter(|name| subscribed_services.contains(name)).count();
    if unknown_count <= MAX_UNKNOWN_SERVICES {
        return Vec::new();
    }
    let priority_of = control_client.config_store.service_eviction_priority();
    let absent_priority = |name: &ServiceName| {
        Some(priority_of(name)).filter(|priority| matches!(priority, EvictionPriority::Absent(_)))
    };
    let evicted = subscribed_services
        .evict_smallest(unknown_count - RETAINED_UNKNOWN_SERVICES, absent_priority);
    control_client.record_evictions(SubscriptionTable::UnknownServices, evicted.len());
    evicted
}

/// Evicts the entries beyond `max_len` from a table, and [`MAX_BATCHED_REQUESTS`] more as room for the next
/// ones.
fn evict_excess<K: Ord + Clone>(
    control_client: &ControlClient,
    subscriptions: &mut Subscriptions<K>,
    max_len: usize,
    table: SubscriptionTable,
    priority_of: impl Fn(&K) -> EvictionPriority,
) -> Vec<K> {
    if subscriptions.len() <= max_len {
        return Vec::new();
    }
    let evicted = subscriptions
        .evict_smallest(subscriptions.len() - max_len + MAX_BATCHED_REQUESTS, |key| {
            Some(priority_of(key))
        });
    control_client.record_evictions(table, evicted.len());
    evicted
}

/// Reverts a request that did not fit into the queue; later requests repeat it.
fn revert_request(control_client: &ControlClient, request: ProxyRequest) {
    let mut subscribed_services = control_client.subscribed_services.borrow_mut();
    let mut subscribed_addresses = control_client.subscribed_addresses.borrow_mut();
    let mut dns_names = control_client.dns_names.borrow_mut();
    match request {
        ProxyRequest::SubscribeAddresses(addresses) => subscribed_addresses.remove_all(&addresses),
        ProxyRequest::UnsubscribeAddresses(addresses) => subscribed_addresses.extend(addresses),
        ProxyRequest::SubscribeNames(names) => dns_names.remove_all(&names),
        ProxyRequest::UnsubscribeNames(names) => dns_names.extend(names),
        ProxyRequest::Subscribe(services) => subscribed_services.remove_all(&services),
        ProxyRequest::Unsubscribe(services) => subscribed_services.extend(services),
        ProxyRequest::Listeners(..) | ProxyRequest::Renew { .. } | ProxyRequest::Tapped { .. } => {}
    }
}

/// Unsubscribes the services, addresses and names without a use for `idle_time`.
fn unsubscribe_idle(control_client: &ControlClient, idle_time: Duration) -> SubscriptionChanges {
    let mut subscribed_services = control_client.subscribed_services.borrow_mut();
    let mut idle_services = control_client.config_store.idle_services(idle_time);
    idle_services.retain(|service| subscribed_services.remove(service));
    let (addresses, names) = (
        remove_idle_addresses(control_client, idle_time),
        remove_idle_names(control_client, idle_time),
    );
    [
        (!idle_services.is_empty()).then_some(ProxyRequest::Unsubscribe(idle_services)),
        (!addresses.is_empty()).then_some(ProxyRequest::UnsubscribeAddresses(addresses)),
        (!names.is_empty()).then_some(ProxyRequest::UnsubscribeNames(names)),
        None,
        None,
        None,
    ]
}

/// Removes and returns the addresses without a connection for `idle_time`.
fn remove_idle_addresses(control_client: &ControlClient, idle_time: Duration) -> Vec<IpAddr> {
    let mut subscribed_addresses = control_client.subscribed_addresses.borrow_mut();
    let mut idle_addresses = control_client.config_store.idle_addresses(idle_time);
    idle_addresses.retain(|address| subscribed_addresses.remove(address));
    idle_addresses
}

/// Removes and returns the names without a query for `idle_time`.
fn remove_idle_names(control_client: &ControlClient, idle_time: Duration) -> Vec<ServiceName> {
    let mut dns_names = control_client.dns_names.borrow_mut();
    let mut idle_names = control_client.config_store.idle_names(idle_time);
    idle_names.retain(|name| dns_names.remove(name));
    idle_names
}

/// Reconciles the listeners with the configuration, and reports their addresses to the control plane. A
/// listener that cannot bind its address, perhaps since a predecessor still holds it, is retried until it
/// opens.
pub(crate) async fn reconcile_listeners(
    control_client: Rc<ControlClient>,
    mut listeners: Listeners,
    requests: mpsc::Sender<ProxyRequest>,
    open_listeners: OpenListeners,
) {
    let mut changes = control_client.config_store.subscribe();
    let mut failures = 0_u32;
    let mut is_unreported = false;
    let (mut reported_at, mut last_report) = (Instant::now(), ProxyReport::default());
    loop {
        if let Some(config) = control_client.config_store.current_config()
            && control_client.config_store.credential().is_some()
            && !control_client.withdrawn.get()
        {
            let workload_config = &config.compiled.snapshot.config;
            let listen_errors = listeners.reconcile(&control_client.config, workload_config).await;
            failures = if listen_errors.is_empty() { 0 } else { failures.saturating_add(1) };
            for problem in &listen_errors {
                tracing::error!(%problem, failures, "cannot open a listener; retrying");
            }
            let closed_listeners: BTreeMap<String, String> =
                listen_errors.iter().map(closed_listener).collect();
            control_client
                .config_store
                .conditions
                .replace_kind(kind::LISTENER_CLOSED, closed_listeners.clone());
            control_client.set_reported_addresses(&listeners.addresses());
            open_listeners.publish(listeners.addresses(), closed_listeners);
            control_client.config_store.set_own_listeners(listeners.application_listeners());
            let inbound_listeners =
                listeners.inbound_listeners(&control_client.config, workload_config);
            if *control_client.listening.borrow() != inbound_listeners {
                control_client.listening.replace(inbound_listeners);
                is_unreported = true;
            }
        }
        // Before the first configuration there are no listeners to report, and an empty list would withdraw
        // them.
        let has_changed = open_listeners.current_states().is_some()
            && control_client.status_report() != last_report;
        let retry_pause =
            backoff::backoff_delay(failures, control_client.seed.rotate_left(failures))
                .min(MAX_LISTENER_RETRY);
        tokio::select! {
            // Waits while there is no stream; the hello of the next stream contains the listeners as well.
            slot = requests.reserve(), if is_unreported => {
                is_unreported = false;
                reported_at = Instant::now();
                last_report = control_client.status_report();
                if let Ok(slot) = slot && !control_client.withdrawn.get() {
                    let listening = control_client.listening.borrow().clone();
                    slot.send(ProxyRequest::Listeners(listening, last_report.clone()));
                }
            }
            () = control_client.config_store.conditions.wait_for_change() => {}
            () = sleep_until((reported_at + REPORT_INTERVAL).into()), if has_changed => {
                is_unreported = true;
            }
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(retry_pause), if failures > 0 => {}
        }
    }
}

/// Returns the name of a listener that is not open, and the condition text: its address and the cause.
fn closed_listener(problem: &ListenError) -> (String, String) {
    (problem.name.clone(), format!("{}: {}", problem.address, problem.cause))
}

/// The idle time after which addresses are removed from a crowded table: an application with very many
/// connections soon queries them again.
const CROWDED_IDLE_TIME: Duration = Duration::from_secs(20);
/// The pause between two reports of conditions: circuits may open and close many times in a second.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of subscribed names of services that do not exist, so that a service is found as soon as
/// it is created: as many as an application with a long list of wrong names uses.
const MAX_UNKNOWN_SERVICES: usize = 1024;
/// The number of unknown names kept after an eviction, so that not every new name causes one.
const RETAINED_UNKNOWN_SERVICES: usize = MAX_UNKNOWN_SERVICES / 4 * 3;
/// The maximum number of requests for services, addresses and names that are processed at once.
const MAX_BATCHED_REQUESTS: usize = 64;
/// The maximum pause before a listener is retried.
const MAX_LISTENER_RETRY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
