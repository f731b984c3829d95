//! Control loop of the control thread: subscriptions for the application's requests, and listeners.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_discovery::condition::kind;
use leno_discovery::{ADDRESSES_MAX, NAMES_MAX, ProxyReport, Request, SUBSCRIPTIONS_MAX};
use leno_model::ServiceName;
use leno_traffic::backoff;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, sleep_until};

use crate::follow::Follower;
use crate::listeners::{ListenError, Listeners};
use crate::opened::OpenListeners;
use crate::subscriptions::{Priority, Subscriptions, Table};
use crate::world::Want;

/// Subscribes on first use, and unsubscribes entries that are idle.
pub(crate) async fn keep_subscriptions(
    follower: Rc<Follower>,
    mut wanted: mpsc::Receiver<Want>,
    requests: mpsc::Sender<Request>,
) {
    let idle = follower.config.limits.idle_subscription;
    let mut sweep = tokio::time::interval(idle / 4);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        let changes = tokio::select! {
            count = wanted.recv_many(&mut batch, BATCH_MAX) => {
                if count == 0 {
                    return;
                }
                subscribe_batch(&follower, &mut batch)
            }
            _ = sweep.tick() => {
                follower.forget_evictions();
                unsubscribe_idle(&follower, idle)
            }
        };
        for request in changes.into_iter().flatten() {
            if let Err(unsent) = requests.try_send(request) {
                take_back(&follower, unsent.into_inner());
            }
        }
    }
}

/// At most two requests for each of services, addresses and names: new entries may evict others.
type Requests = [Option<Request>; 6];

fn subscribe_batch(follower: &Follower, batch: &mut Vec<Want>) -> Requests {
    let crowded = follower.asked.borrow().len() > ADDRESSES_MAX / 4 * 3;
    let mut forgotten =
        if crowded { idle_addresses(follower, IDLE_IF_CROWDED) } else { Vec::new() };
    let crowded = follower.dns_names.borrow().len() > NAMES_MAX / 4 * 3;
    let mut lost = if crowded { idle_names(follower, IDLE_IF_CROWDED) } else { Vec::new() };
    let mut subscribed = follower.subscribed.borrow_mut();
    let mut asked = follower.asked.borrow_mut();
    let mut dns_names = follower.dns_names.borrow_mut();
    let (mut services, mut addresses, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for want in batch.drain(..) {
        match want {
            Want::Service(service) if subscribed.insert(service.clone()) => services.push(service),
            Want::Address(address) if asked.insert(address) => addresses.push(address),
            Want::Name(name) if dns_names.insert(name.clone()) => names.push(name),
            Want::Service(_) | Want::Address(_) | Want::Name(_) => {}
        }
    }
    // The batch is pending and newer than all other entries, so none of it is evicted.
    let mut left = evict_unknown(follower, &mut subscribed);
    let by_use = follower.world.services_by_use();
    left.extend(evict_excess(
        follower,
        &mut subscribed,
        SUBSCRIPTIONS_MAX,
        Table::Services,
        by_use,
    ));
    let by_use = follower.world.addresses_by_use();
    forgotten.extend(evict_excess(follower, &mut asked, ADDRESSES_MAX, Table::Addresses, by_use));
    let by_use = follower.world.names_by_use();
    lost.extend(evict_excess(follower, &mut dns_names, NAMES_MAX, Table::Names, by_use));
    [
        (!left.is_empty()).then_some(Request::Unsubscribe(left)),
        (!forgotten.is_empty()).then_some(Request::Forget(forgotten)),
        (!lost.is_empty()).then_some(Request::ForgetNames(lost)),
        (!services.is_empty()).then_some(Request::Subscribe(services)),
        (!addresses.is_empty()).then_some(Request::Ask(addresses)),
        (!names.is_empty()).then_some(Request::LookUp(names)),
    ]
}

/// Evicts names of services that do not exist beyond [`UNKNOWN_MAX`], so that an application that invents names
/// leaves the table to existing services.
fn evict_unknown(
    follower: &Follower,
    subscribed: &mut Subscriptions<ServiceName>,
) -> Vec<ServiceName> {
    let Some(config) = follower.world.current_config() else {
        return Vec::new();
    };
    let unknown = config.absent_services().filter(|name| subscribed.contains(name)).count();
    if unknown <= UNKNOWN_MAX {
        return Vec::new();
    }
    let by_use = follower.world.services_by_use();
    let absent = |name: &ServiceName| {
        Some(by_use(name)).filter(|priority| matches!(priority, Priority::Absent(_)))
    };
    let evicted = subscribed.evict_smallest(unknown - UNKNOWN_KEPT, absent);
    follower.note_evicted(Table::UnknownServices, evicted.len());
    evicted
}

/// Evicts the entries beyond the bound of a table, and [`BATCH_MAX`] more as room for the next ones.
fn evict_excess<K: Ord + Clone>(
    follower: &Follower,
    subscriptions: &mut Subscriptions<K>,
    max: usize,
    table: Table,
    by_use: impl Fn(&K) -> Priority,
) -> Vec<K> {
    if subscriptions.len() <= max {
        return Vec::new();
    }
    let evicted = subscriptions
        .evict_smallest(subscriptions.len() - max + BATCH_MAX, |key| Some(by_use(key)));
    follower.note_evicted(table, evicted.len());
    evicted
}

/// Reverts a request that did not fit into the queue; later requests repeat it.
fn take_back(follower: &Follower, unsent: Request) {
    let mut subscribed = follower.subscribed.borrow_mut();
    let mut asked = follower.asked.borrow_mut();
    let mut dns_names = follower.dns_names.borrow_mut();
    match unsent {
        Request::Ask(addresses) => asked.remove_all(&addresses),
        Request::Forget(addresses) => asked.extend(addresses),
        Request::LookUp(names) => dns_names.remove_all(&names),
        Request::ForgetNames(names) => dns_names.extend(names),
        Request::Subscribe(services) => subscribed.remove_all(&services),
        Request::Unsubscribe(services) => subscribed.extend(services),
        Request::Listeners(..) | Request::Renew { .. } | Request::Tapped { .. } => {}
    }
}

fn unsubscribe_idle(follower: &Follower, after: Duration) -> Requests {
    let mut subscribed = follower.subscribed.borrow_mut();
    let mut idle = follower.world.idle_services(after);
    idle.retain(|service| subscribed.remove(service));
    let (addresses, names) = (idle_addresses(follower, after), idle_names(follower, after));
    [
        (!idle.is_empty()).then_some(Request::Unsubscribe(idle)),
        (!addresses.is_empty()).then_some(Request::Forget(addresses)),
        (!names.is_empty()).then_some(Request::ForgetNames(names)),
        None,
        None,
        None,
    ]
}

/// Removes the addresses without a connection for this long.
fn idle_addresses(follower: &Follower, after: Duration) -> Vec<IpAddr> {
    let mut asked = follower.asked.borrow_mut();
    let mut idle = follower.world.idle_addresses(after);
    idle.retain(|address| asked.remove(address));
    idle
}

/// Removes the names without a query for this long.
fn idle_names(follower: &Follower, after: Duration) -> Vec<ServiceName> {
    let mut dns_names = follower.dns_names.borrow_mut();
    let mut idle = follower.world.idle_names(after);
    idle.retain(|name| dns_names.remove(name));
    idle
}

/// Reconciles the listeners with the configuration, and reports their addresses to the control plane. A
/// listener that cannot bind its address, perhaps since a predecessor still holds it, is retried until it
/// opens.
pub(crate) async fn keep_listeners(
    follower: Rc<Follower>,
    mut listeners: Listeners,
    requests: mpsc::Sender<Request>,
    open_listeners: OpenListeners,
) {
    let mut changes = follower.world.subscribe();
    let mut failures = 0_u32;
    let mut untold = false;
    let (mut reported, mut last) = (Instant::now(), ProxyReport::default());
    loop {
        if let Some(config) = follower.world.current_config()
            && follower.world.credential().is_some()
            && !follower.withdrawn.get()
        {
            let plan = &config.plans.snapshot.plan;
            let problems = listeners.reconcile(&follower.config, plan).await;
            failures = if problems.is_empty() { 0 } else { failures.saturating_add(1) };
            for problem in &problems {
                tracing::error!(%problem, failures, "cannot open a listener; retrying");
            }
            let closed: BTreeMap<String, String> = problems.iter().map(describe_closed).collect();
            follower.world.conditions.replace_kind(kind::LISTENER_CLOSED, closed.clone());
            follower.note_addresses(&listeners.addresses());
            open_listeners.publish(listeners.addresses(), closed);
            follower.world.set_own_listeners(listeners.application_listeners());
            let inbound = listeners.inbound_listeners(&follower.config, plan);
            if *follower.listening.borrow() != inbound {
                follower.listening.replace(inbound);
                untold = true;
            }
        }
        // Before the first configuration there are no listeners to report, and an empty list would withdraw
        // them.
        let has_changed =
            open_listeners.current_states().is_some() && follower.status_report() != last;
        let again =
            backoff::backoff_delay(failures, follower.seed.rotate_left(failures)).min(LISTENER_MAX);
        tokio::select! {
            // Waits while there is no stream; the hello of the next stream contains the listeners as well.
            place = requests.reserve(), if untold => {
                untold = false;
                reported = Instant::now();
                last = follower.status_report();
                if let Ok(place) = place && !follower.withdrawn.get() {
                    let listening = follower.listening.borrow().clone();
                    place.send(Request::Listeners(listening, last.clone()));
                }
            }
            () = follower.world.conditions.wait_for_change() => {}
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
