//! The protocol between control planes of one mesh: they exchange their connected sidecars.
//!
//! Each control plane reads the files itself. Only the addresses of sidecars are known to a single control
//! plane, the one that they are connected to. Each follows all others, over one stream in each direction; a
//! slow receiver gets the difference to the current state, so nothing queues for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::WorkloadName;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::client::DiscoveryError;
use crate::envelope::{listener_to_wire, listeners_from_wire};
use crate::event::{ConnectionId, Event};
use crate::frame::{
    FrameReader, FrameWriter, MESSAGE_BYTES_MAX, OUTBOX_BYTES_MAX, REQUEST_BYTES_MAX,
};
use crate::keepalive::Keepalive;
use crate::message::InboundListener;
use crate::proto::{self, to_peer};
use crate::queue::EventSender;
use crate::resource::parse_name;
use crate::server::ServeError;

/// A sidecar that is connected to a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Its listeners, ordered by port.
    pub listeners: Vec<InboundListener>,
    /// The number of its stream; the highest is the newest.
    pub session: u64,
}

/// The sidecars that are connected to one control plane, by workload.
pub type RegisteredSidecars = BTreeMap<WorkloadName, Registration>;

/// Sends the sidecars of this control plane to another one, now and on changes, until the stream ends. The
/// first message is sent even if there are none.
///
/// # Errors
/// [`ServeError`] unless the other control plane closed the stream, or this one is shutting down.
pub async fn serve_peer<S>(
    stream: S,
    mut here: watch::Receiver<Arc<RegisteredSidecars>>,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, REQUEST_BYTES_MAX);
    let mut writer = FrameWriter::new(write);
    let mut keepalive = Keepalive::new(Instant::now());
    let mut sent = Arc::<RegisteredSidecars>::default();
    let mut is_first = true;
    here.mark_changed();
    loop {
        // A slow receiver gets only the latest state, later.
        let room = writer.queued_bytes() < OUTBOX_BYTES_MAX;
        tokio::select! {
            frame = reader.next() => {
                let Some(frame) = frame? else { return Ok(()) };
                proto::ToPeer::decode(frame)?;
                keepalive.record_received(Instant::now());
            }
            written = writer.advance(), if !writer.is_idle() => written?,
            changed = here.changed(), if room => {
                if changed.is_err() {
                    return Ok(());
                }
                let now = Arc::clone(&here.borrow_and_update());
                let mut parts = registration_changes(&sent, &now);
                if is_first && parts.is_empty() {
                    // Without sidecars, an empty message still completes the list.
                    parts.push(proto::Registrations::default());
                }
                is_first = false;
                for part in parts {
                    let message = Some(to_peer::Message::Registrations(part));
                    writer.push(&proto::ToPeer { message }, MESSAGE_BYTES_MAX)?;
                }
                keepalive.record_sent(Instant::now());
                sent = now;
            }
            () = sleep_until(keepalive.ping_at()), if writer.is_idle() => {
                writer.push(&ping_message(), MESSAGE_BYTES_MAX)?;
                keepalive.record_sent(Instant::now());
            }
            () = sleep_until(keepalive.silent_at()) => return Err(ServeError::Silent),
        }
    }
}

/// Follows another control plane until the stream ends, and returns the reason.
///
/// Sends [`Event::OtherReplica`] for reported sidecars, and [`Event::PeerLeft`] at the end.
pub async fn follow_peer<S>(
    stream: S,
    connection: ConnectionId,
    events: EventSender,
) -> DiscoveryError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ended = match receive_registrations(stream, connection, &events).await {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // The mesh owner may be gone.
    events.send_event(Event::PeerLeft { connection }).await.ok();
    ended
}

async fn receive_registrations<S>(
    stream: S,
    connection: ConnectionId,
    events: &EventSender,
) -> Result<std::convert::Infallible, DiscoveryError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MESSAGE_BYTES_MAX);
    let mut writer = FrameWriter::new(write);
    let mut keepalive = Keepalive::new(Instant::now());
    loop {
        tokio::select! {
            frame = reader.next() => {
                let frame = frame?.ok_or(DiscoveryError::Closed)?;
                keepalive.record_received(Instant::now());
                let message = proto::ToPeer::decode(frame);
                let message = message.map_err(|error| DiscoveryError::Malformed(error.to_string()))?;
                // Messages of unknown kinds, from newer releases, are ignored.
                if let Some(to_peer::Message::Registrations(wire)) = message.message {
                    for part in split_registrations(wire) {
                        let event = registrations_event(connection, part)?;
                        events.send_event(event).await.map_err(|_| DiscoveryError::Stopped)?;
                    }
                }
            }
            written = writer.advance(), if !writer.is_idle() => written?,
            () = sleep_until(keepalive.ping_at()), if writer.is_idle() => {
                writer.push(&ping_message(), REQUEST_BYTES_MAX)?;
                keepalive.record_sent(Instant::now());
            }
            () = sleep_until(keepalive.silent_at()) => return Err(DiscoveryError::Silent),
        }
    }
}

fn ping_message() -> proto::ToPeer {
    proto::ToPeer { message: Some(to_peer::Message::Ping(proto::Ping::default())) }
}

/// The differences, in messages of bounded length.
fn registration_changes(
    before: &RegisteredSidecars,
    now: &RegisteredSidecars,
) -> Vec<proto::Registrations> {
    let new = now.iter().filter(|(name, here)| before.get(name) != Some(here));
    let new = new.map(|(name, Registration { listeners, session })| proto::Registration {
        workload: name.to_string(),
        listeners: listeners.iter().map(listener_to_wire).collect(),
        session: *session,
    });
    let gone = before.keys().filter(|name| !now.contains_key(name)).map(ToString::to_string);
    let (new, gone): (Vec<_>, Vec<_>) = (new.collect(), gone.collect());
    let mut parts: Vec<proto::Registrations> = new
        .chunks(REGISTRATIONS_MAX)
        .map(|here| proto::Registrations { here: here.to_vec(), gone: Vec::new() })
        .collect();
    parts.extend(
        gone.chunks(REGISTRATIONS_MAX)
            .map(|gone| proto::Registrations { here: Vec::new(), gone: gone.to_vec() }),
    );
    parts
}

/// Splits a message so that others are served between two parts. An empty message yields one part.
fn split_registrations(wire: proto::Registrations) -> impl Iterator<Item = proto::Registrations> {
    let proto::Registrations { here, gone } = wire;
    let mut is_first = true;
    let (mut here, mut gone) = (here.into_iter(), gone.into_iter());
    std::iter::from_fn(move || {
        let part = proto::Registrations {
            here: here.by_ref().take(REGISTRATIONS_PER_EVENT).collect(),
            gone: gone.by_ref().take(REGISTRATIONS_PER_EVENT).collect(),
        };
        let has_some = !part.here.is_empty() || !part.gone.is_empty();
        (std::mem::take(&mut is_first) || has_some).then_some(part)
    })
}

fn registrations_event(
    connection: ConnectionId,
    wire: proto::Registrations,
) -> Result<Event, DiscoveryError> {
    let here = wire.here.into_iter().map(|wire| {
        let listeners = listeners_from_wire(&wire.listeners)?;
        let registration = Registration { listeners, session: wire.session };
        Ok((parse_name("registration.workload", &wire.workload)?, registration))
    });
    let here = here.collect::<Result<RegisteredSidecars, DiscoveryError>>()?;
    let gone = wire.gone.iter().map(|name| Ok(parse_name("registrations.gone", name)?));
    let gone = gone.collect::<Result<Vec<WorkloadName>, DiscoveryError>>()?;
    Ok(Event::OtherReplica { connection, here, gone })
}

/// Keeps a message with the longest names and many ports within its limit.
const REGISTRATIONS_MAX: usize = 1024;

/// The number of registrations that the mesh owner handles at once.
const REGISTRATIONS_PER_EVENT: usize = 64;

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::budget::Budget;
    use crate::queue::event_queue;

    fn registered_sidecars(names: &[(&str, u64)]) -> Arc<RegisteredSidecars> {
        let one = |(name, session): &(&str, u64)| {
            let address = ([127, 0, 0, 1], 15_000).into();
            let listeners = vec![InboundListener { port: 9080, address }];
            (name.parse().unwrap(), Registration { listeners, session: *session })
        };
        Arc::new(names.iter().map(one).collect())
    }

    /// The known sidecars after this event.
    fn apply_event(known: &mut RegisteredSidecars, event: Event) {
        let Event::OtherReplica { here, gone, .. } = event else { panic!("{event:?}") };
        known.extend(here);
        for name in gone {
            known.remove(&name);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_ends_up_with_what_the_other_has_and_hears_of_its_end() {
        // So small that the sender always has to wait.
        let (ours, theirs) = duplex(64);
        let (sent, watched) = watch::channel(registered_sidecars(&[("a/one", 1), ("a/two", 2)]));
        let (queue, mut heard) = event_queue(1);
        let events = queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async { drop(serve_peer(ours, watched).await) });
        tasks.spawn(async { drop(follow_peer(theirs, ConnectionId(7), events).await) });
        let mut known = RegisteredSidecars::new();
        for state in [
            registered_sidecars(&[("a/one", 1), ("a/two", 2)]),
            registered_sidecars(&[("a/one", 3)]),
            registered_sidecars(&[]),
            registered_sidecars(&[("a/three", 4), ("a/one", 5)]),
        ] {
            sent.send_replace(Arc::clone(&state));
            while known != *state {
                apply_event(&mut known, heard.recv().await.unwrap().event);
            }
        }
        // Silence does not end the stream; closing it does.
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert!(heard.try_recv().is_err());
        drop(sent);
        let last = heard.recv().await.unwrap().event;
        assert!(matches!(last, Event::PeerLeft { connection: ConnectionId(7) }), "{last:?}");
        while tasks.join_next().await.is_some() {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_hears_of_a_control_plane_without_sidecars() {
        let (ours, theirs) = duplex(64);
        let (_reported, watched) = watch::channel(registered_sidecars(&[]));
        let (queue, mut heard) = event_queue(1);
        let events = queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async { drop(serve_peer(ours, watched).await) });
        tasks.spawn(async { drop(follow_peer(theirs, ConnectionId(7), events).await) });
        let Event::OtherReplica { connection, here, gone } = heard.recv().await.unwrap().event
        else {
            panic!("the first event is about its sidecars");
        };
        assert_eq!((connection, here.len(), gone.len()), (ConnectionId(7), 0, 0));
        assert!(heard.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn many_registrations_are_taken_in_slices() {
        let names: Vec<String> = (0..1000).map(|number| format!("a/one-{number}")).collect();
        let names: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let all = registered_sidecars(&names);
        let (ours, theirs) = duplex(1 << 20);
        let (_reported, watched) = watch::channel(Arc::clone(&all));
        let (queue, mut heard) = event_queue(1);
        let events = queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async { drop(serve_peer(ours, watched).await) });
        tasks.spawn(async { drop(follow_peer(theirs, ConnectionId(7), events).await) });
        let mut known = RegisteredSidecars::new();
        while known != *all {
            let event = heard.recv().await.unwrap().event;
            if let Event::OtherReplica { here, gone, .. } = &event {
                assert!(here.len() + gone.len() <= 2 * REGISTRATIONS_PER_EVENT);
            }
            apply_event(&mut known, event);
        }
    }

    #[test]
    fn many_are_reported_of_in_messages_within_the_limit() {
        let name = |number: usize| format!("{}/{}-{number}", "n".repeat(63), "w".repeat(56));
        let names: Vec<String> = (0..3000).map(name).collect();
        let names: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let parts = registration_changes(&RegisteredSidecars::new(), &registered_sidecars(&names));
        assert_eq!(parts.len(), 3);
        let gone = registration_changes(&registered_sidecars(&names), &RegisteredSidecars::new());
        assert_eq!(gone.len(), 3);
        assert!(parts.iter().chain(&gone).all(|part| part.encoded_len() < MESSAGE_BYTES_MAX));
    }
}
