//! Eviction and turns of pending connections that run as tasks.

use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use super::*;

fn test_admission(waiting: usize) -> Arc<ConnectionAdmission> {
    ConnectionAdmission::new(PendingLimits::new(waiting, 1000))
}

fn loopback_address() -> IpAddr {
    [127, 0, 0, 1].into()
}

#[tokio::test]
async fn a_connection_with_a_silent_peer_is_evicted_for_the_next_one_of_its_source() {
    let admission = test_admission(2);
    let mut silent_connections = JoinSet::new();
    let mut results = Vec::new();
    for _ in 0..20 {
        let pending_connection = admission.admit(loopback_address());
        silent_connections
            .spawn(async move { pending_connection.await_peer(pending::<()>()).await });
        yield_now().await;
        let pending_connection = admission.admit(loopback_address());
        results.push(pending_connection.await_peer(yield_now()).await);
    }
    for _ in 0..19 {
        assert_eq!(silent_connections.join_next().await.unwrap().unwrap(), Err(Evicted));
    }
    // A peer that sends at once does not count as silent, although its connection waits for a moment.
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(admission.evicted_count(), 20);
}

#[tokio::test]
async fn a_connection_that_does_not_wait_for_its_peer_is_not_evicted() {
    let admission = test_admission(2);
    let (busy, complete) =
        (admission.admit(loopback_address()), admission.admit(loopback_address()));
    busy.mark_waiting();
    busy.mark_served();
    complete.mark_waiting();
    complete.mark_established();
    for _ in 0..10 {
        let other = admission.admit(loopback_address());
        other.mark_waiting();
    }
    assert_eq!(busy.record_progress(), Ok(()));
    assert!(timeout(Duration::from_millis(1), busy.wait_for_eviction()).await.is_err());
    busy.mark_waiting();
    let other = admission.admit(loopback_address());
    other.mark_waiting();
    busy.wait_for_eviction().await;
    assert_eq!(admission.pending_count(), 1);
}

#[tokio::test]
async fn work_that_waits_for_its_peer_holds_no_turn() {
    let admission =
        ConnectionAdmission::new(PendingLimits { waiting: 100, ..PendingLimits::new(200, 1000) });
    let mut tasks = JoinSet::new();
    let mut senders = Vec::new();
    for number in 0..50 {
        let pending_connection = admission.admit(loopback_address());
        let (sender, response) = oneshot::channel::<()>();
        senders.push(sender);
        tasks.spawn(async move {
            // The peer responds after the first piece of work.
            let work = async move { response.await.map(|()| number) };
            pending_connection.run_in_turns(work).await
        });
    }
    while admission.pending_count() < 50 {
        yield_now().await;
    }
    for sender in senders.into_iter().rev() {
        sender.send(()).unwrap();
        assert!(tasks.join_next().await.unwrap().unwrap().unwrap().is_ok());
    }
    assert_eq!((admission.pending_count(), admission.evicted_count()), (0, 0));
}

#[tokio::test]
async fn the_turn_of_a_dropped_connection_passes_to_the_next_one() {
    let admission = test_admission(100);
    let tasks = LocalSet::new();
    let completed = Rc::new(std::cell::Cell::new(0));
    let run = async {
        let mut handles = Vec::new();
        for number in 0..100 {
            let (pending_connection, completed) =
                (admission.admit(loopback_address()), completed.clone());
            handles.push(tokio::task::spawn_local(async move {
                pending_connection.run_in_turns(async {}).await.unwrap();
                completed.set(completed.get() + 1);
            }));
            if number % 3 == 0 {
                handles[number / 2].abort();
            }
            if number % 7 == 0 {
                yield_now().await;
            }
        }
        for handle in handles {
            drop(handle.await);
        }
    };
    timeout(Duration::from_secs(60), tasks.run_until(run)).await.expect("a turn is lost");
    assert!(completed.get() > 50 && admission.pending_count() == 0);
}
