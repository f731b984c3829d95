//! Two loops of the control thread. One subscribes to the resources that requests need, and unsubscribes unused
//! resources. The other reconciles the listeners with the configuration.

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

/// Subscribes to resources on their first use, and unsubscribes them when they are idle. Returns when the queue
/// of resource requests is closed.
pub(crate) async fn run_subscriptions(
    control_client: Rc<ControlClient>,
    mut resource_receiver: mpsc::Receiver<ResourceRequest>,
    control_requests: mpsc::Sender<ProxyRequest>,
) {
    let idle_timeout = control_client.config.limits.idle_subscription;
    let mut sweep_interval = tokio::time::interval(idle_timeout / 4);
    sweep_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut request_batch = Vec::new();
    loop {
        let changes = tokio::select! {
            count = resource_receiver.recv_many(&mut request_batch, MAX_BATCHED_REQUESTS) => {
                if count == 0 {
                    return;
                }
                subscribe_batch(&control_client, &mut request_batch)
            }
            _ = sweep_interval.tick() => {
                control_client.clear_eviction_conditions();
                unsubscribe_idle(&control_client, idle_timeout)
            }
        };
        for request in changes.into_iter().flatten() {
            if let Err(error) = control_requests.try_send(request) {
                revert_request(&control_client, error.into_inner());
            }
        }
    }
}

/// At most two control plane requests for each of services, addresses and names: to subscribe to new entries,
/// and to unsubscribe the entries that they evict.
type SubscriptionChanges = [Option<ProxyRequest>; 6];

/// Subscribes to the requested resources, and evicts other entries if a table is full.
fn subscribe_batch(
    control_client: &ControlClient,
    request_batch: &mut Vec<ResourceRequest>,
) -> SubscriptionChanges {
    // A table that is more than three quarters full is crowded: its entries count as idle sooner.
    let are_addresses_crowded =
        control_client.subscribed_addresses.borrow().len() > MAX_ADDRESSES / 4 * 3;
    let mut evicted_addresses = if are_addresses_crowded {
        remove_idle_addresses(control_client, CROWDED_IDLE_TIMEOUT)
    } else {
        Vec::new()
    };
    let are_names_crowded = control_client.subscribed_names.borrow().len() > MAX_NAMES / 4 * 3;
    let mut evicted_names = if are_names_crowded {
        remove_idle_names(control_client, CROWDED_IDLE_TIMEOUT)
    } else {
        Vec::new()
    };
    let mut subscribed_services = control_client.subscribed_services.borrow_mut();
    let mut subscribed_addresses = control_client.subscribed_addresses.borrow_mut();
    let mut subscribed_names = control_client.subscribed_names.borrow_mut();
    let (mut new_services, mut new_addresses, mut new_names) = (Vec::new(), Vec::new(), Vec::new());
    for request in request_batch.drain(..) {
        match request {
            ResourceRequest::Service(service) if subscribed_services.insert(service.clone()) => {
                new_services.push(service)
            }
            ResourceRequest::Address(address) if subscribed_addresses.insert(address) => {
                new_addresses.push(address)
            }
            ResourceRequest::Name(name) if subscribed_names.insert(name.clone()) => {
                new_names.push(name)
            }
            ResourceRequest::Service(_)
            | ResourceRequest::Address(_)
            | ResourceRequest::Name(_) => {}
        }
    }
    // The new entries of the batch have no response yet, and entries without a response are evicted last.
    let mut evicted_services = evict_unknown_services(control_client, &mut subscribed_services);
    let service_priority = control_client.config_store.service_eviction_priority();
    evicted_services.extend(evict_excess(
        control_client,
        &mut subscribed_services,
        MAX_SUBSCRIPTIONS,
        SubscriptionTable::Services,
        service_priority,
    ));
    let address_priority = control_client.config_store.address_eviction_priority();
    evicted_addresses.extend(evict_excess(
        control_client,
        &mut subscribed_addresses,
        MAX_ADDRESSES,
        SubscriptionTable::Addresses,
        address_priority,
    ));
    let name_priority = control_client.config_store.name_eviction_priority();
    evicted_names.extend(evict_excess(
        control_client,
        &mut subscribed_names,
        MAX_NAMES,
        SubscriptionTable::Names,
        name_priority,
    ));
    // Unsubscribes first, so that the control plane's limit on subscriptions is not exceeded in between.
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

/// Evicts names of services that do not exist if there are more than [`MAX_UNKNOWN_SERVICES`], so that an application
/// that invents names does not fill the table for existing services.
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

/// Evicts the entries beyond `max_len` from a table, and [`MAX_BATCHED_REQUESTS`] more, as room for the next
/// batch.
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

/// Reverts the subscriptions of a request that did not fit into the queue, so that later uses repeat it.
fn revert_request(control_client: &ControlClient, request: ProxyRequest) {
    let mut subscribed_services = control_client.subscribed_services.borrow_mut();
    let mut subscribed_addresses = control_client.subscribed_addresses.borrow_mut();
    let mut subscribed_names = control_client.subscribed_names.borrow_mut();
    match request {
        ProxyRequest::SubscribeAddresses(addresses) => subscribed_addresses.remove_all(&addresses),
        ProxyRequest::UnsubscribeAddresses(addresses) => subscribed_addresses.extend(addresses),
        ProxyRequest::SubscribeNames(names) => subscribed_names.remove_all(&names),
        ProxyRequest::UnsubscribeNames(names) => subscribed_names.extend(names),
        ProxyRequest::Subscribe(services) => subscribed_services.remove_all(&services),
        ProxyRequest::Unsubscribe(services) => subscribed_services.extend(services),
        ProxyRequest::Listeners(..) | ProxyRequest::Renew { .. } | ProxyRequest::Tapped { .. } => {}
    }
}

/// Unsubscribes the services, addresses and names that were not used for `idle_timeout`.
fn unsubscribe_idle(control_client: &ControlClient, idle_timeout: Duration) -> SubscriptionChanges {
    let mut subscribed_services = control_client.subscribed_services.borrow_mut();
    let mut idle_services = control_client.config_store.idle_services(idle_timeout);
    idle_services.retain(|service| subscribed_services.remove(service));
    let (addresses, names) = (
        remove_idle_addresses(control_client, idle_timeout),
        remove_idle_names(control_client, idle_timeout),
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

/// Removes and returns the addresses without a connection for `idle_timeout`.
fn remove_idle_addresses(control_client: &ControlClient, idle_timeout: Duration) -> Vec<IpAddr> {
    let mut subscribed_addresses = control_client.subscribed_addresses.borrow_mut();
    let mut idle_addresses = control_client.config_store.idle_addresses(idle_timeout);
    idle_addresses.retain(|address| subscribed_addresses.remove(address));
    idle_addresses
}

/// Removes and returns the names without a query for `idle_timeout`.
fn remove_idle_names(control_client: &ControlClient, idle_timeout: Duration) -> Vec<ServiceName> {
    let mut subscribed_names = control_client.subscribed_names.borrow_mut();
    let mut idle_names = control_client.config_store.idle_names(idle_timeout);
    idle_names.retain(|name| subscribed_names.remove(name));
    idle_names
}

/// Reconciles the listeners with the configuration, and reports their addresses to the control plane. A
/// listener that cannot bind its address is retried until it opens: the previous process may still hold the
/// address.
pub(crate) async fn reconcile_listeners(
    control_client: Rc<ControlClient>,
    mut listeners: Listeners,
    control_requests: mpsc::Sender<ProxyRequest>,
    open_listeners: OpenListeners,
) {
    let mut changes = control_client.config_store.subscribe();
    let mut failed_attempts = 0_u32;
    let mut must_report = false;
    let (mut reported_at, mut last_report) = (Instant::now(), ProxyReport::default());
    loop {
        if let Some(config) = control_client.config_store.current_config()
            && control_client.config_store.credential().is_some()
            && !control_client.is_withdrawn.get()
        {
            let workload_config = &config.compiled.snapshot.config;
            let listen_errors = listeners.reconcile(&control_client.config, workload_config).await;
            failed_attempts =
                if listen_errors.is_empty() { 0 } else { failed_attempts.saturating_add(1) };
            for problem in &listen_errors {
                tracing::error!(%problem, failures = failed_attempts, "cannot open a listener; retrying");
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
            if *control_client.inbound_listeners.borrow() != inbound_listeners {
                control_client.inbound_listeners.replace(inbound_listeners);
                must_report = true;
            }
        }
        // Before the first configuration there are no listeners to report, and an empty list would withdraw
        // them.
        let has_changed = open_listeners.current_states().is_some()
            && control_client.status_report() != last_report;
        let retry_pause = backoff::backoff_delay(
            failed_attempts,
            control_client.seed.rotate_left(failed_attempts),
        )
        .min(MAX_LISTENER_RETRY);
        tokio::select! {
            // Waits while there is no stream; the hello of the next stream contains the listeners as well.
            slot = control_requests.reserve(), if must_report => {
                must_report = false;
                reported_at = Instant::now();
                last_report = control_client.status_report();
                if let Ok(slot) = slot && !control_client.is_withdrawn.get() {
                    let inbound_listeners = control_client.inbound_listeners.borrow().clone();
                    let request =
                        ProxyRequest::Listeners(inbound_listeners, last_report.clone());
                    slot.send(request);
                }
            }
            () = control_client.config_store.conditions.wait_for_change() => {}
            () = sleep_until((reported_at + REPORT_INTERVAL).into()), if has_changed => {
                must_report = true;
            }
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(retry_pause), if failed_attempts > 0 => {}
        }
    }
}

/// Returns the name of a listener that is not open, and the condition text: its address and the cause.
fn closed_listener(listen_error: &ListenError) -> (String, String) {
    (listen_error.name.clone(), format!("{}: {}", listen_error.address, listen_error.cause))
}

/// The time without use after which addresses and names are removed from a crowded table: an application with
/// very many connections soon requests them again.
const CROWDED_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause between two reports of conditions: circuits may open and close many times in a second.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of subscribed names of services that do not exist: as many as an application with a long list of
/// wrong names uses. They stay subscribed so that a service is found as soon as it is created.
const MAX_UNKNOWN_SERVICES: usize = 1024;
/// The number of unknown names that remain after an eviction, so that not every new name causes an eviction.
const RETAINED_UNKNOWN_SERVICES: usize = MAX_UNKNOWN_SERVICES / 4 * 3;
/// The maximum number of requests for services, addresses and names that are processed at once.
const MAX_BATCHED_REQUESTS: usize = 64;
/// The maximum pause before a listener is retried.
const MAX_LISTENER_RETRY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
