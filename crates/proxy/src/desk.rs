//! The control thread's desk: what requests ask for, what has gone idle, which doors to open.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_discovery::condition::kind;
use leno_discovery::{ADDRESSES_MAX, NAMES_MAX, ProxyReport, Request, SUBSCRIPTIONS_MAX};
use leno_traffic::backoff;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, sleep_until};

use crate::follow::Follower;
use crate::listeners::{ListenError, Listeners};
use crate::opened::Doors;
use crate::world::Want;

/// Subscribes on first use and unsubscribes what nobody uses any more.
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
        let wishes = tokio::select! {
            count = wanted.recv_many(&mut batch, BATCH_MAX) => {
                if count == 0 {
                    return;
                }
                subscribe(&follower, &mut batch)
            }
            _ = sweep.tick() => unsubscribe(&follower, idle),
        };
        for request in wishes.into_iter().flatten() {
            if let Err(unsent) = requests.try_send(request) {
                take_back(&follower, unsent.into_inner());
            }
        }
    }
}

/// At most one request about services, and two about addresses and about names: some may have to
/// make room.
type Wishes = [Option<Request>; 5];

fn subscribe(follower: &Follower, batch: &mut Vec<Want>) -> Wishes {
    let mut subscribed = follower.subscribed.borrow_mut();
    let crowded = follower.asked.borrow().len() > ADDRESSES_MAX / 4 * 3;
    let forgotten = if crowded { forget(follower, IDLE_IF_CROWDED) } else { None };
    let crowded = follower.looked_up.borrow().len() > NAMES_MAX / 4 * 3;
    let lost = if crowded { forget_names(follower, IDLE_IF_CROWDED) } else { None };
    let mut asked = follower.asked.borrow_mut();
    let mut looked_up = follower.looked_up.borrow_mut();
    let (mut services, mut addresses, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for want in batch.drain(..) {
        match want {
            Want::Service(service) => {
                if subscribed.len() < SUBSCRIPTIONS_MAX && subscribed.insert(service.clone()) {
                    services.push(service);
                }
            }
            Want::Address(address) => {
                if asked.len() < ADDRESSES_MAX && asked.insert(address) {
                    addresses.push(address);
                }
            }
            Want::Name(name) => {
                if looked_up.len() < NAMES_MAX && looked_up.insert(name.clone()) {
                    names.push(name);
                }
            }
        }
    }
    let services = (!services.is_empty()).then_some(Request::Subscribe(services));
    let addresses = (!addresses.is_empty()).then_some(Request::Ask(addresses));
    let names = (!names.is_empty()).then_some(Request::LookUp(names));
    [forgotten, lost, services, addresses, names]
}

/// The queue is full: what could not be said is not so, and whoever needs it asks again.
fn take_back(follower: &Follower, unsent: Request) {
    let mut subscribed = follower.subscribed.borrow_mut();
    let mut asked = follower.asked.borrow_mut();
    let mut looked_up = follower.looked_up.borrow_mut();
    match unsent {
        Request::Ask(addresses) => asked.retain(|address| !addresses.contains(address)),
        Request::Forget(addresses) => asked.extend(addresses),
        Request::LookUp(names) => looked_up.retain(|name| !names.contains(name)),
        Request::ForgetNames(names) => looked_up.extend(names),
        Request::Subscribe(services) => subscribed.retain(|service| !services.contains(service)),
        Request::Unsubscribe(services) => subscribed.extend(services),
        Request::Listeners(..) | Request::Renew { .. } | Request::Tapped { .. } => {}
    }
}

fn unsubscribe(follower: &Follower, after: Duration) -> Wishes {
    let mut subscribed = follower.subscribed.borrow_mut();
    let mut idle = follower.world.idle_services(after);
    idle.retain(|service| subscribed.remove(service));
    let services = (!idle.is_empty()).then_some(Request::Unsubscribe(idle));
    [services, forget(follower, after), forget_names(follower, after), None, None]
}

/// Lets go of addresses to which nobody has connected for this long.
fn forget(follower: &Follower, after: Duration) -> Option<Request> {
    let mut asked = follower.asked.borrow_mut();
    let mut idle = follower.world.idle_addresses(after);
    idle.retain(|address| asked.remove(address));
    (!idle.is_empty()).then_some(Request::Forget(idle))
}

/// Lets go of names that nobody has looked up for this long.
fn forget_names(follower: &Follower, after: Duration) -> Option<Request> {
    let mut looked_up = follower.looked_up.borrow_mut();
    let mut idle = follower.world.idle_names(after);
    idle.retain(|name| looked_up.remove(name));
    (!idle.is_empty()).then_some(Request::ForgetNames(idle))
}

/// Keeps the doors in step with the plan, and tells the control plane where they are. A door whose
/// address is taken, as by a predecessor that is still going, is tried again until it opens.
pub(crate) async fn keep_listeners(
    follower: Rc<Follower>,
    mut listeners: Listeners,
    requests: mpsc::Sender<Request>,
    doors: Doors,
) {
    let mut changes = follower.world.changes();
    let mut failures = 0_u32;
    let mut untold = false;
    let (mut reported, mut last) = (Instant::now(), ProxyReport::default());
    loop {
        if let Some(scene) = follower.world.scene()
            && follower.world.credential().is_some()
            && !follower.withdrawn.get()
        {
            let plan = &scene.plans.snapshot.plan;
            let problems = listeners.reconcile(&follower.config, plan).await;
            failures = if problems.is_empty() { 0 } else { failures.saturating_add(1) };
            for problem in &problems {
                tracing::error!(%problem, failures, "a listener is closed and will be tried again");
            }
            let closed: BTreeMap<String, String> = problems.iter().map(closed).collect();
            follower.world.conditions.replace(kind::LISTENER_CLOSED, closed.clone());
            follower.note_addresses(&listeners.addresses());
            doors.publish(listeners.addresses(), closed);
            follower.world.set_own_doors(listeners.own());
            let inbound = listeners.inbound(&follower.config, plan);
            if *follower.listening.borrow() != inbound {
                follower.listening.replace(inbound);
                untold = true;
            }
        }
        // Before the first plan there are no listeners to report, and an empty list would withdraw them.
        let has_changed = doors.now().is_some() && follower.report() != last;
        let again = backoff::delay(failures, follower.seed.rotate_left(failures)).min(DOOR_MAX);
        tokio::select! {
            // Without a stream this waits; the next one's hello says it too.
            place = requests.reserve(), if untold => {
                untold = false;
                reported = Instant::now();
                last = follower.report();
                if let Ok(place) = place && !follower.withdrawn.get() {
                    let listening = follower.listening.borrow().clone();
                    place.send(Request::Listeners(listening, last.clone()));
                }
            }
            () = follower.world.conditions.changed() => {}
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

/// A closed listener by its name, with its address and the cause.
fn closed(problem: &ListenError) -> (String, String) {
    (problem.name.clone(), format!("{}: {}", problem.address, problem.cause))
}

/// An application that connects to very many addresses soon asks again for those that it has not
/// connected to for this long.
const IDLE_IF_CROWDED: Duration = Duration::from_secs(20);
/// The pause between two reports of conditions: circuits may open and close many times in a second.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Services and addresses taken up at once.
const BATCH_MAX: usize = 64;
/// How long a door that could not be opened is left alone at most.
const DOOR_MAX: Duration = Duration::from_secs(5);
