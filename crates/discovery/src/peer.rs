//! Exchanges the connected sidecars between the control planes of one mesh.
//!
//! Each control plane reads the mesh configuration itself, but knows only the addresses of the sidecars that
//! are connected to it. So each control plane follows all others, over one stream in each direction. While a
//! receiver is slow, changes are merged into one difference instead of queued as messages.

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
    FrameReader, FrameWriter, MAX_MESSAGE_BYTES, MAX_OUTBOX_BYTES, MAX_REQUEST_BYTES,
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
    /// The listeners of the sidecar, ordered by port.
    pub listeners: Vec<InboundListener>,
    /// The number of the sidecar's stream. Of two registrations of a workload, the higher number is newer.
    pub session: u64,
}

/// The sidecars that are connected to one control plane, by workload.
pub type RegisteredSidecars = BTreeMap<WorkloadName, Registration>;

/// Sends the sidecars of this control plane to another one, now and on changes, until the stream ends. The
/// first message is sent even if no sidecar is connected.
///
/// # Errors
/// [`ServeError`] if the stream breaks, or the other control plane sends an invalid message or is silent for
/// too long.
pub async fn serve_peer<S>(
    stream: S,
    mut local_sidecars: watch::Receiver<Arc<RegisteredSidecars>>,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MAX_REQUEST_BYTES);
    let mut writer = FrameWriter::new(write);
    let mut keepalive = Keepalive::new(Instant::now());
    let mut reported_sidecars = Arc::<RegisteredSidecars>::default();
    let mut is_first_message = true;
    // The first message does not wait for a change.
    local_sidecars.mark_changed();
    loop {
        // A slow receiver gets only the latest state, later.
        let has_room = writer.queued_bytes() < MAX_OUTBOX_BYTES;
        tokio::select! {
            frame = reader.next() => {
                let Some(frame) = frame? else { return Ok(()) };
                // The other control plane sends only pings, which have no content to handle.
                proto::ToPeer::decode(frame)?;
                keepalive.record_received(Instant::now());
            }
            write_result = writer.flush(), if !writer.is_idle() => write_result?,
            change_result = local_sidecars.changed(), if has_room => {
                if change_result.is_err() {
                    return Ok(());
                }
                let current_sidecars = Arc::clone(&local_sidecars.borrow_and_update());
                let mut messages = encode_changes(&reported_sidecars, &current_sidecars);
                if is_first_message && messages.is_empty() {
                    // Without sidecars, an empty message still completes the list.
                    messages.push(proto::Registrations::default());
                }
                is_first_message = false;
                for registrations in messages {
                    let message = Some(to_peer::Message::Registrations(registrations));
                    writer.push(&proto::ToPeer { message }, MAX_MESSAGE_BYTES)?;
                }
                keepalive.record_sent(Instant::now());
                reported_sidecars = current_sidecars;
            }
            () = sleep_until(keepalive.ping_at()), if writer.is_idle() => {
                writer.push(&ping_message(), MAX_MESSAGE_BYTES)?;
                keepalive.record_sent(Instant::now());
            }
            () = sleep_until(keepalive.timeout_at()) => return Err(ServeError::Timeout),
        }
    }
}

/// Follows another control plane until the stream ends, and returns the reason.
///
/// Sends [`Event::PeerSidecars`] for reported sidecars, and [`Event::PeerDisconnected`] at the end.
pub async fn follow_peer<S>(
    stream: S,
    connection: ConnectionId,
    event_sender: EventSender,
) -> DiscoveryError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let error = match receive_registrations(stream, connection, &event_sender).await {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // The state task may have stopped.
    event_sender.send_event(Event::PeerDisconnected { connection }).await.ok();
    error
}

/// Receives the sidecars of another control plane, and sends them as events.
async fn receive_registrations<S>(
    stream: S,
    connection: ConnectionId,
    event_sender: &EventSender,
) -> Result<std::convert::Infallible, DiscoveryError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MAX_MESSAGE_BYTES);
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
                        event_sender.send_event(event).await.map_err(|_| DiscoveryError::Stopped)?;
                    }
                }
            }
            write_result = writer.flush(), if !writer.is_idle() => write_result?,
            () = sleep_until(keepalive.ping_at()), if writer.is_idle() => {
                writer.push(&ping_message(), MAX_REQUEST_BYTES)?;
                keepalive.record_sent(Instant::now());
            }
            () = sleep_until(keepalive.timeout_at()) => return Err(DiscoveryError::Timeout),
        }
    }
}

fn ping_message() -> proto::ToPeer {
    proto::ToPeer { message: Some(to_peer::Message::Ping(proto::Ping::default())) }
}

/// Encodes the differences between the reported and the current sidecars, in messages of bounded length.
fn encode_changes(
    reported_sidecars: &RegisteredSidecars,
    current_sidecars: &RegisteredSidecars,
) -> Vec<proto::Registrations> {
    let changed_sidecars = current_sidecars
        .iter()
        .filter(|(name, registration)| reported_sidecars.get(name) != Some(registration));
    let changed_registrations =
        changed_sidecars.map(|(name, Registration { listeners, session })| proto::Registration {
            workload: name.to_string(),
            listeners: listeners.iter().map(listener_to_wire).collect(),
            session: *session,
        });
    let disconnected = reported_sidecars
        .keys()
        .filter(|name| !current_sidecars.contains_key(name))
        .map(ToString::to_string);
    let (changed_registrations, disconnected): (Vec<_>, Vec<_>) =
        (changed_registrations.collect(), disconnected.collect());
    let mut messages: Vec<proto::Registrations> = changed_registrations
        .chunks(MAX_REGISTRATIONS_PER_MESSAGE)
        .map(|connected| proto::Registrations { here: connected.to_vec(), gone: Vec::new() })
        .collect();
    messages.extend(disconnected.chunks(MAX_REGISTRATIONS_PER_MESSAGE).map(|disconnected| {
        proto::Registrations { here: Vec::new(), gone: disconnected.to_vec() }
    }));
    messages
}

/// Splits a message into parts, so that the state task can handle other events between them. An empty message
/// yields one part.
fn split_registrations(wire: proto::Registrations) -> impl Iterator<Item = proto::Registrations> {
    let proto::Registrations { here: connected, gone: disconnected } = wire;
    let mut is_first_part = true;
    let (mut connected, mut disconnected) = (connected.into_iter(), disconnected.into_iter());
    std::iter::from_fn(move || {
        let part = proto::Registrations {
            here: connected.by_ref().take(MAX_REGISTRATIONS_PER_EVENT).collect(),
            gone: disconnected.by_ref().take(MAX_REGISTRATIONS_PER_EVENT).collect(),
        };
        let is_nonempty = !part.here.is_empty() || !part.gone.is_empty();
        (std::mem::take(&mut is_first_part) || is_nonempty).then_some(part)
    })
}

/// Parses one part of a message into an event.
fn registrations_event(
    connection: ConnectionId,
    wire: proto::Registrations,
) -> Result<Event, DiscoveryError> {
    let connected = wire.here.into_iter().map(|wire| {
        let listeners = listeners_from_wire(&wire.listeners)?;
        let registration = Registration { listeners, session: wire.session };
        Ok((parse_name("registration.workload", &wire.workload)?, registration))
    });
    let connected = connected.collect::<Result<RegisteredSidecars, DiscoveryError>>()?;
    let disconnected = wire.gone.iter().map(|name| Ok(parse_name("registrations.gone", name)?));
    let disconnected = disconnected.collect::<Result<Vec<WorkloadName>, DiscoveryError>>()?;
    Ok(Event::PeerSidecars { connection, connected, disconnected })
}

/// The maximum number of registrations in one message: with the longest names and many ports the message stays
/// within its size limit.
const MAX_REGISTRATIONS_PER_MESSAGE: usize = 1024;

/// The maximum number of registrations that the state task handles at once.
const MAX_REGISTRATIONS_PER_EVENT: usize = 64;

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::budget::Budget;
    use crate::queue::event_queue;

    /// Returns sidecars with these workload names and sessions.
    fn registered_sidecars(names: &[(&str, u64)]) -> Arc<RegisteredSidecars> {
        let registration = |(name, session): &(&str, u64)| {
            let address = ([127, 0, 0, 1], 15_000).into();
            let listeners = vec![InboundListener { port: 9080, address }];
            (name.parse().unwrap(), Registration { listeners, session: *session })
        };
        Arc::new(names.iter().map(registration).collect())
    }

    /// Applies an event to the known sidecars.
    fn apply_event(sidecars: &mut RegisteredSidecars, event: Event) {
        let Event::PeerSidecars { connected, disconnected, .. } = event else {
            panic!("{event:?}")
        };
        sidecars.extend(connected);
        for name in disconnected {
            sidecars.remove(&name);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_receives_the_sidecars_of_a_control_plane_until_its_stream_ends() {
        // So small that the sender always has to wait.
        let (server_end, follower_end) = duplex(64);
        let (sender, sidecars) = watch::channel(registered_sidecars(&[("a/one", 1), ("a/two", 2)]));
        let (queue, mut event_receiver) = event_queue(1);
        let events = queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async { drop(serve_peer(server_end, sidecars).await) });
        tasks.spawn(async { drop(follow_peer(follower_end, ConnectionId(7), events).await) });
        let mut followed = RegisteredSidecars::new();
        for state in [
            registered_sidecars(&[("a/one", 1), ("a/two", 2)]),
            registered_sidecars(&[("a/one", 3)]),
            registered_sidecars(&[]),
            registered_sidecars(&[("a/three", 4), ("a/one", 5)]),
        ] {
            sender.send_replace(Arc::clone(&state));
            while followed != *state {
                apply_event(&mut followed, event_receiver.recv().await.unwrap().event);
            }
        }
        // Silence does not end the stream; closing it does.
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert!(event_receiver.try_recv().is_err());
        drop(sender);
        let last = event_receiver.recv().await.unwrap().event;
        assert!(
            matches!(last, Event::PeerDisconnected { connection: ConnectionId(7) }),
            "{last:?}"
        );
        while tasks.join_next().await.is_some() {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_control_plane_without_sidecars_sends_an_empty_list() {
        let (server_end, follower_end) = duplex(64);
        let (_sender, sidecars) = watch::channel(registered_sidecars(&[]));
        let (queue, mut event_receiver) = event_queue(1);
        let events = queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async { drop(serve_peer(server_end, sidecars).await) });
        tasks.spawn(async { drop(follow_peer(follower_end, ConnectionId(7), events).await) });
        let Event::PeerSidecars { connection, connected, disconnected } =
            event_receiver.recv().await.unwrap().event
        else {
            panic!("the first event is about its sidecars");
        };
        assert_eq!((connection, connected.len(), disconnected.len()), (ConnectionId(7), 0, 0));
        assert!(event_receiver.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn many_registrations_are_split_into_events() {
        let names: Vec<String> = (0..1000).map(|number| format!("a/one-{number}")).collect();
        let names: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let registered = registered_sidecars(&names);
        let (server_end, follower_end) = duplex(1 << 20);
        let (_sender, sidecars) = watch::channel(Arc::clone(&registered));
        let (queue, mut event_receiver) = event_queue(1);
        let events = queue.create_sender(Arc::new(Budget::new(Instant::now())));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async { drop(serve_peer(server_end, sidecars).await) });
        tasks.spawn(async { drop(follow_peer(follower_end, ConnectionId(7), events).await) });
        let mut followed = RegisteredSidecars::new();
        while followed != *registered {
            let event = event_receiver.recv().await.unwrap().event;
            if let Event::PeerSidecars { connected, disconnected, .. } = &event {
                assert!(connected.len() + disconnected.len() <= 2 * MAX_REGISTRATIONS_PER_EVENT);
            }
            apply_event(&mut followed, event);
        }
    }

    #[test]
    fn many_registrations_are_sent_in_messages_within_the_limit() {
        let name = |number: usize| format!("{}/{}-{number}", "n".repeat(63), "w".repeat(56));
        let names: Vec<String> = (0..3000).map(name).collect();
        let names: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let messages = encode_changes(&RegisteredSidecars::new(), &registered_sidecars(&names));
        assert_eq!(messages.len(), 3);
        let removals = encode_changes(&registered_sidecars(&names), &RegisteredSidecars::new());
        assert_eq!(removals.len(), 3);
        assert!(
            messages.iter().chain(&removals).all(|part| part.encoded_len() < MAX_MESSAGE_BYTES)
        );
    }
}
