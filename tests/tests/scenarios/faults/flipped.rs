//! Flipped or lost bytes between a sidecar and its control plane.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use leno_tests::{BackgroundLoad, ControlProgram, SidecarProgram, eventually};

use super::{ALLOW_GETS, CountingApplication, MAX_WAIT, start_shop, wait_until_status};

#[test]
fn flipped_bytes_end_only_the_discovery_stream() {
    let shop = start_shop("deny", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    control.write("policy.yaml", ALLOW_GETS);
    let relay = Relay::start(control.listen_address());
    let relay_address = relay.address.to_string();
    let ratings = SidecarProgram::join(&control, "shop/ratings-1", &["--control", &relay_address]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    let load = BackgroundLoad::start("GET", shop.listener, 2);
    let connects = || ratings.admin_endpoint.metric_value("leno_control_connects_total");
    for (direction, methods) in
        [(RelayAction::TO_SIDECAR, "[GET, HEAD]"), (RelayAction::TO_CONTROL, "[GET, PUT]")]
    {
        let connects_before = connects();
        relay.flip_bit(direction);
        // Traffic is required before a byte can be flipped.
        control.write("policy.yaml", &ALLOW_GETS.replace("[GET]", methods));
        eventually("the sidecar has another stream", MAX_WAIT, || {
            (connects() > connects_before).then_some(())
        });
    }
    load.wait_for(50);
    load.finish_load().assert_no_failures();
    // Messages from the other side arrive again.
    control.remove("policy.yaml");
    wait_until_status(shop.listener, 403);
}

#[test]
fn a_sidecar_with_a_silent_control_plane_continues_to_serve() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    let relay = Relay::start(control.listen_address());
    let relay_address = relay.address.to_string();
    let _ratings = SidecarProgram::join(&control, "shop/ratings-1", &["--control", &relay_address]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &["--control", &relay_address]);
    wait_until_status(shop.listener, 200);
    // Half-open: both ends have a connection, and no bytes get through.
    relay.set_action(RelayAction::DISCARD);
    let load = BackgroundLoad::start("GET", shop.listener, 2);
    load.wait_for(200);
    load.finish_load().assert_no_failures();
}

/// A relay between a sidecar and its control plane.
struct Relay {
    address: SocketAddr,
    action: Arc<AtomicU8>,
}

/// The action on the next bytes.
struct RelayAction;

impl RelayAction {
    /// Relay the bytes unchanged.
    const NONE: u8 = 0;
    /// Flip a bit of the next bytes to the sidecar.
    const TO_SIDECAR: u8 = 1;
    /// Flip a bit of the next bytes to the control plane.
    const TO_CONTROL: u8 = 2;
    /// Discard all bytes in both directions.
    const DISCARD: u8 = 3;
}

impl Relay {
    fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let action = Arc::new(AtomicU8::new(RelayAction::NONE));
        let shared_action = Arc::clone(&action);
        std::thread::spawn(move || {
            for sidecar in listener.incoming().map_while(Result::ok) {
                let Ok(control) = TcpStream::connect(upstream) else { continue };
                for (source, destination, direction) in [
                    (&control, &sidecar, RelayAction::TO_SIDECAR),
                    (&sidecar, &control, RelayAction::TO_CONTROL),
                ] {
                    let clones = (source.try_clone(), destination.try_clone());
                    let (Ok(source), Ok(destination)) = clones else { continue };
                    let action = Arc::clone(&shared_action);
                    std::thread::spawn(move || {
                        relay_bytes(source, destination, direction, &action)
                    });
                }
            }
        });
        Self { address, action }
    }

    /// Flips a bit of the next bytes in this direction.
    fn flip_bit(&self, direction: u8) {
        self.set_action(direction);
    }

    fn set_action(&self, action: u8) {
        self.action.store(action, Ordering::SeqCst);
    }
}

fn relay_bytes(
    mut source: TcpStream,
    mut destination: TcpStream,
    direction: u8,
    action: &AtomicU8,
) {
    let mut buffer = [0; 4096];
    while let Ok(read_bytes @ 1..) = source.read(&mut buffer) {
        let bytes = &mut buffer[..read_bytes];
        if action
            .compare_exchange(direction, RelayAction::NONE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            bytes[read_bytes / 2] ^= 0x10;
        }
        if action.load(Ordering::SeqCst) != RelayAction::DISCARD
            && destination.write_all(bytes).is_err()
        {
            break;
        }
    }
    // The other end notices the shutdown.
    drop(destination.shutdown(Shutdown::Both));
}
