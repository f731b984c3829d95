//! Control loop of the control thread: subscriptions for the application's requests, and listeners.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_discovery::condition::kind;
use leno_discovery::{ADDRESSES_MAX, NAMES_MAX, ProxyReport, ProxyRequest, SUBSCRIPTIONS_MAX};
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
pub(crate) async fn keep_subscriptions(
    control_client: Rc<ControlClient>,
    mut wanted: mpsc::Receiver<ResourceRequest>,
    requests: mpsc::Sender<ProxyRequest>,
) {
    let idle = control_client.config.limits.idle_subscription;
    let mut sweep = tokio::time::interval(idle / 4);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        let changes = tokio::select! {
            count = wanted.recv_many(&mut batch, BATCH_MAX) => {
                if count == 0 {
                    return;
                }
                subscribe_batch(&control_client, &mut batch)
            }
            _ = sweep.tick() => {
                control_client.forget_evictions();
                unsubscribe_idle(&control_client, idle)
            }
        };
        for request in changes.into_iter().flatten() {
            if let Err(unsent) = requests.try_send(request) {
                take_back(&control_client, unsent.into_inner());
            }
        }
    }
}

/// At most two requests for each of services, addresses and names: new entries may evict others.
type Requests = [Option<ProxyRequest>; 6];

fn subscribe_batch(control_client: &ControlClient, batch: &mut Vec<ResourceRequest>) -> Requests {
    let crowded = control_client.asked.borrow().len() > ADDRESSES_MAX / 4 * 3;
    let mut forgotten =
        if crowded { idle_addresses(control_client, IDLE_IF_CROWDED) } else { Vec::new() };
    let crowded = control_client.dns_names.borrow().len() > NAMES_MAX / 4 * 3;
    let mut lost = if crowded { idle_names(control_client, IDLE_IF_CROWDED) } else { Vec::new() };
    let mut subscribed = control_client.subscribed.borrow_mut();
    let mut asked = control_client.asked.borrow_mut();
    let mut dns_names = control_client.dns_names.borrow_mut();
    let (mut services, mut addresses, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for want in batch.drain(..) {
        match want {
            ResourceRequest::Service(service) if subscribed.insert(service.clone()) => {
                services.push(service)
            }
            ResourceRequest::Address(address) if asked.insert(address) => addresses.push(address),
            ResourceRequest::Name(name) if dns_names.insert(name.clone()) => names.push(name),
            ResourceRequest::Service(_)
            | ResourceRequest::Address(_)
            | ResourceRequest::Name(_) => {}
        }
    }
    // The batch is pending and newer than all other entries, so none of it is evicted.
    let mut left = evict_unknown(control_client, &mut subscribed);
    let by_use = control_client.config_store.services_by_use();
    left.extend(evict_excess(
        control_client,
        &mut subscribed,
        SUBSCRIPTIONS_MAX,
        SubscriptionTable::Services,
        by_use,
    ));
    let by_use = control_client.config_store.addresses_by_use();
    forgotten.extend(evict_excess(
        control_client,
        &mut asked,
        ADDRESSES_MAX,
        SubscriptionTable::Addresses,
        by_use,
    ));
    let by_use = control_client.config_store.names_by_use();
    lost.extend(evict_excess(
        control_client,
        &mut dns_names,
        NAMES_MAX,
        SubscriptionTable::Names,
        by_use,
    ));
    [
        (!left.is_empty()).then_some(ProxyRequest::Unsubscribe(left)),
        (!forgotten.is_empty()).then_some(ProxyRequest::UnsubscribeAddresses(forgotten)),
        (!lost.is_empty()).then_some(ProxyRequest::UnsubscribeNames(lost)),
        (!services.is_empty()).then_some(ProxyRequest::Subscribe(services)),
        (!addresses.is_empty()).then_some(ProxyRequest::SubscribeAddresses(addresses)),
        (!names.is_empty()).then_some(ProxyRequest::SubscribeNames(names)),
    ]
}

/// Evicts names of services that do not exist beyond [`UNKNOWN_MAX`], so that an application that invents names
/// leaves the table to existing services.
fn evict_unknown(
    control_client: &ControlClient,
    subscribed: &mut Subscriptions<ServiceName>,
) -> Vec<ServiceName> {
    let Some(config) = control_client.config_store.current_config() else {
        return Vec::new();
    };
    let unknown = config.absent_services().filter(|name| subscribed.contains(name)).count();
    if unknown <= UNKNOWN_MAX {
        return Vec::new();
    }
    let by_use = control_client.config_store.services_by_use();
    let absent = |name: &ServiceName| {
        Some(by_use(name)).filter(|priority| matches!(priority, EvictionPriority::Absent(_)))
    };
    let evicted = subscribed.evict_smallest(unknown - UNKNOWN_KEPT, absent);
    control_client.note_evicted(SubscriptionTable::UnknownServices, evicted.len());
    evicted
}

/// Evicts the entries beyond the bound of a table, and [`BATCH_MAX`] more as room for the next ones.
fn evict_excess<K: Ord + Clone>(
    control_client: &ControlClient,
    subscriptions: &mut Subscriptions<K>,
    max: usize,
    table: SubscriptionTable,
    by_use: impl Fn(&K) -> EvictionPriority,
) -> Vec<K> {
    if subscriptions.len() <= max {
        return Vec::new();
    }
    let evicted = subscriptions
        .evict_smallest(subscriptions.len() - max + BATCH_MAX, |key| Some(by_use(key)));
    control_client.note_evicted(table, evicted.len());
    evicted
}

/// Reverts a request that did not fit into the queue; later requests repeat it.
fn take_back(control_client: &ControlClient, unsent: ProxyRequest) {
    let mut subscribed = control_client.subscribed.borrow_mut();
    let mut asked = control_client.asked.borrow_mut();
    let mut dns_names = control_client.dns_names.borrow_mut();
    match unsent {
        ProxyRequest::SubscribeAddresses(addresses) => asked.remove_all(&addresses),
        ProxyRequest::UnsubscribeAddresses(addresses) => asked.extend(addresses),
        ProxyRequest::SubscribeNames(names) => dns_names.remove_all(&names),
        ProxyRequest::UnsubscribeNames(names) => dns_names.extend(names),
        ProxyRequest::Subscribe(services) => subscribed.remove_all(&services),
        ProxyRequest::Unsubscribe(services) => subscribed.extend(services),
        ProxyRequest::Listeners(..) | ProxyRequest::Renew { .. } | ProxyRequest::Tapped { .. } => {}
    }
}

fn unsubscribe_idle(control_client: &ControlClient, after: Duration) -> Requests {
    let mut subscribed = control_client.subscribed.borrow_mut();
    let mut idle = control_client.config_store.idle_services(after);
    idle.retain(|service| subscribed.remove(service));
    let (addresses, names) =
        (idle_addresses(control_client, after), idle_names(control_client, after));
    [
        (!idle.is_empty()).then_some(ProxyRequest::Unsubscribe(idle)),
        (!addresses.is_empty()).then_some(ProxyRequest::UnsubscribeAddresses(addresses)),
        (!names.is_empty()).then_some(ProxyRequest::UnsubscribeNames(names)),
        None,
        None,
        None,
    ]
}

/// Removes the addresses without a connection for this long.
fn idle_addresses(control_client: &ControlClient, after: Duration) -> Vec<IpAddr> {
    let mut asked = control_client.asked.borrow_mut();
    let mut idle = control_client.config_store.idle_addresses(after);
    idle.retain(|address| asked.remove(address));
    idle
}

/// Removes the names without a query for this long.
fn idle_names(control_client: &ControlClient, after: Duration) -> Vec<ServiceName> {
    let mut dns_names = control_client.dns_names.borrow_mut();
    let mut idle = control_client.config_store.idle_names(after);
    idle.retain(|name| dns_names.remove(name));
    idle
}

/// Reconciles the listeners with the configuration, and reports their addresses to the control plane. A
/// listener that cannot bind its address, perhaps since a predecessor still holds it, is retried until it
/// opens.
pub(crate) async fn keep_listeners(
    control_client: Rc<ControlClient>,
    mut listeners: Listeners,
    requests: mpsc::Sender<ProxyRequest>,
    open_listeners: OpenListeners,
) {
    let mut changes = control_client.config_store.subscribe();
    let mut failures = 0_u32;
    let mut untold = false;
    let (mut reported, mut last) = (Instant::now(), ProxyReport::default());
    loop {
        if let Some(config) = control_client.config_store.current_config()
            && control_client.config_store.credential().is_some()
            && !control_client.withdrawn.get()
        {
            let plan = &config.plans.snapshot.config;
            let problems = listeners.reconcile(&control_client.config, plan).await;
            failures = if problems.is_empty() { 0 } else { failures.saturating_add(1) };
            for problem in &problems {
                tracing::error!(%problem, failures, "cannot open a listener; retrying");
            }
            let closed: BTreeMap<String, String> = problems.iter().map(describe_closed).collect();
            control_client
                .config_store
                .conditions
                .replace_kind(kind::LISTENER_CLOSED, closed.clone());
            control_client.note_addresses(&listeners.addresses());
            open_listeners.publish(listeners.addresses(), closed);
            control_client.config_store.set_own_listeners(listeners.application_listeners());
            let inbound = listeners.inbound_listeners(&control_client.config, plan);
            if *control_client.listening.borrow() != inbound {
                control_client.listening.replace(inbound);
                untold = true;
            }
        }
        // Before the first configuration there are no listeners to report, and an empty list would withdraw
        // them.
        let has_changed =
            open_listeners.current_states().is_some() && control_client.status_report() != last;
        let again = backoff::backoff_delay(failures, control_client.seed.rotate_left(failures))
            .min(LISTENER_MAX);
        tokio::select! {
            // Waits while there is no stream; the hello of the next stream contains the listeners as well.
            place = requests.reserve(), if untold => {
                untold = false;
                reported = Instant::now();
                last = control_client.status_report();
                if let Ok(place) = place && !control_client.withdrawn.get() {
                    let listening = control_client.listening.borrow().clone();
                    place.send(ProxyRequest::Listeners(listening, last.clone()));
                }
            }
            () = control_client.config_store.conditions.wait_for_change() => {}
            () = sleep_until((reported + REPORT_PAUSE).into()), if has_changed => untold = true,
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(again), if failures > 0 => {}
        }
    }
}

/// Returns a closed listener by name, with its address and the cause.
fn describe_closed(problem: &ListenError) -> (String, String) {
    (problem.name.clone(), format!("{}: {}", problem.address, problem.cause))
}

/// The idle time after which addresses are removed from a crowded table: an application with very many
/// connections soon queries them again.
const IDLE_IF_CROWDED: Duration = Duration::from_secs(20);
/// The pause between two reports of conditions: circuits may open and close many times in a second.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Subscribed names of services that do not exist, kept so that a service is found as soon as it is created: as
/// many as an application with a long list of wrong names uses.
const UNKNOWN_MAX: usize = 1024;
/// The number kept after an eviction, so that not every new name causes one.
const UNKNOWN_KEPT: usize = UNKNOWN_MAX / 4 * 3;
/// Requests for services, addresses and names processed at once.
const BATCH_MAX: usize = 64;
/// The maximum pause before a listener is retried.
const LISTENER_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
