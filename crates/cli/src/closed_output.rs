//! Detects that the other end of standard output is closed while nothing is printed.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Resolves when standard output is closed: the other end of the pipe or socket is closed, or the terminal hung up,
/// even without a SIGHUP. Only a write would fail, and a command that prints rarely does not
/// notice the closed output for a long time.
///
/// Container runtimes keep the pipe of a command open when the client of `kubectl exec` is lost. With `kubectl
/// exec -i` they close its standard input, which counts as well.
pub(crate) async fn wait_until_closed() {
    tokio::select! {
        () = wait_until_output_closed(io::stdout()) => {}
        () = wait_until_session_closed() => {}
    }
}

/// Resolves when the other end of an output is closed; never resolves for a file.
#[allow(
    deprecated,
    reason = "the successor is unsafe; the descriptor stays open as long as it is watched"
)]
async fn wait_until_output_closed(output: impl AsRawFd) {
    // Files cannot be polled.
    let Ok(polled_output) = AsyncFd::with_interest(output, Interest::WRITABLE) else {
        return pending().await;
    };
    while let Ok(mut ready_guard) = polled_output.ready(Interest::WRITABLE).await {
        if ready_guard.ready().is_write_closed() {
            return;
        }
        // The output is still open and only has room for more: wait for the next event.
        ready_guard.clear_ready();
    }
    pending().await
}

/// Resolves when standard input closes, if both standard input and output are pipes or sockets, as in a session of
/// `kubectl exec -i`; otherwise never resolves.
async fn wait_until_session_closed() {
    match is_stream(io::stdin()) && is_stream(io::stdout()) {
        true => wait_until_input_closed(io::stdin(), STARTUP_GRACE).await,
        false => pending().await,
    }
}

/// Resolves when an input ends after `startup_grace`. An input that ends earlier, as with `ssh -n`, was never
/// meant to stay open, and this function never resolves.
#[allow(
    deprecated,
    reason = "the successor is unsafe; the descriptor stays open as long as it is watched"
)]
async fn wait_until_input_closed(input: impl AsRawFd, startup_grace: Duration) {
    let grace_end = Instant::now() + startup_grace;
    let Ok(polled_input) = AsyncFd::with_interest(input, Interest::READABLE) else {
        return pending().await;
    };
    while let Ok(mut ready_guard) = polled_input.ready(Interest::READABLE).await {
        if ready_guard.ready().is_read_closed() {
            match Instant::now() >= grace_end {
                true => return,
                false => break,
            }
        }
        ready_guard.clear_ready();
    }
    pending().await
}

/// True for a pipe or a socket, as opposed to a file or a terminal.
fn is_stream(file: impl AsFd) -> bool {
    let type_result = fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    type_result.is_ok_and(|file_type| matches!(file_type, FileType::Fifo | FileType::Socket))
}

/// The time after the start during which the end of the input is ignored.
const STARTUP_GRACE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::{Write as _, pipe};
    use std::os::unix::net::UnixStream;

    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// The timeout of each wait: a test fails instead of hanging.
    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    /// Polls a few times, processing system events in between.
    async fn is_pending(closed: &mut (impl Future<Output = ()> + Unpin)) -> bool {
        let polls = async {
            for _ in 0..8 {
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = closed => false,
            () = polls => true,
        }
    }

    #[tokio::test]
    async fn a_closed_output_is_detected_without_a_write() {
        let (reader, writer) = pipe().unwrap();
        let mut pipe_closed = Box::pin(wait_until_output_closed(writer));
        let (peer, socket) = UnixStream::pair().unwrap();
        let mut socket_closed = Box::pin(wait_until_output_closed(socket));
        assert!(is_pending(&mut pipe_closed).await && is_pending(&mut socket_closed).await);
        // One direction is shut down, the other is open.
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_pending(&mut socket_closed).await, "half-closed");
        drop((reader, peer));
        timeout(TEST_TIMEOUT, pipe_closed).await.unwrap();
        timeout(TEST_TIMEOUT, socket_closed).await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_full_pipe_is_detected() {
        let (reader, writer) = pipe().unwrap();
        let mut filler = writer.try_clone().unwrap();
        let flags = rustix::fs::fcntl_getfl(&filler).unwrap();
        rustix::fs::fcntl_setfl(&filler, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        while filler.write(b"x").is_ok() {}
        let mut closed = Box::pin(wait_until_output_closed(writer));
        assert!(is_pending(&mut closed).await, "a full pipe is not closed");
        drop(reader);
        timeout(TEST_TIMEOUT, closed).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_as_output_is_never_closed() {
        let mut closed = Box::pin(wait_until_output_closed(tempfile::tempfile().unwrap()));
        assert!(is_pending(&mut closed).await);
    }

    #[tokio::test]
    async fn an_input_that_ends_after_the_startup_grace_closes_its_session() {
        for (startup_grace, closes) in [(Duration::ZERO, true), (TEST_TIMEOUT * 2, false)] {
            let (reader, mut writer) = pipe().unwrap();
            let mut closed = Box::pin(wait_until_input_closed(reader, startup_grace));
            writer.write_all(b"x").unwrap();
            assert!(is_pending(&mut closed).await, "received bytes do not close the input");
            drop(writer);
            match closes {
                true => timeout(TEST_TIMEOUT, closed).await.unwrap(),
                false => assert!(is_pending(&mut closed).await),
            }
        }
    }
}
