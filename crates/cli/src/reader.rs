//! Detection of a closed standard output while nothing is printed.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Resolves when the reader of standard output is gone: the other end of the pipe or socket is closed, or the
/// terminal hung up, even without a SIGHUP. A write would fail, but a command that prints rarely makes none.
///
/// Container runtimes keep the pipe of a command open when the client of `kubectl exec` is lost. With `kubectl
/// exec -i` they close its standard input, which counts as well.
pub(crate) async fn wait_until_gone() {
    tokio::select! {
        () = hung_up(io::stdout()) => {}
        () = session_closed() => {}
    }
}

/// Resolves when the other end of an output is closed. Files have none.
#[allow(
    deprecated,
    reason = "the successor is unsafe; the descriptor stays open as long as it is watched"
)]
async fn hung_up(output: impl AsRawFd) {
    // Files cannot be polled.
    let Ok(output) = AsyncFd::with_interest(output, Interest::WRITABLE) else {
        return pending().await;
    };
    while let Ok(mut guard) = output.ready(Interest::WRITABLE).await {
        if guard.ready().is_write_closed() {
            return;
        }
        // Writable: wait for the next event.
        guard.clear_ready();
    }
    pending().await
}

/// Resolves when standard input closes, if both standard input and output are streams of a session.
async fn session_closed() {
    match is_stream(io::stdin()) && is_stream(io::stdout()) {
        true => input_closed(io::stdin(), INPUT_AT_START).await,
        false => pending().await,
    }
}

/// Resolves when an input ends that was open for the time `at_start`. An input that ends earlier was never
/// meant to stay open: `ssh -n`, or a program that closes it at once.
#[allow(
    deprecated,
    reason = "the successor is unsafe; the descriptor stays open as long as it is watched"
)]
async fn input_closed(input: impl AsRawFd, at_start: Duration) {
    let until = Instant::now() + at_start;
    let Ok(input) = AsyncFd::with_interest(input, Interest::READABLE) else {
        return pending().await;
    };
    while let Ok(mut guard) = input.ready(Interest::READABLE).await {
        if guard.ready().is_read_closed() {
            match Instant::now() >= until {
                true => return,
                false => break,
            }
        }
        guard.clear_ready();
    }
    pending().await
}

/// True for a pipe or a socket.
fn is_stream(file: impl AsFd) -> bool {
    let kind = fstat(file).map(|found| FileType::from_raw_mode(found.st_mode));
    kind.is_ok_and(|kind| matches!(kind, FileType::Fifo | FileType::Socket))
}

/// The time after the start during which the end of the input is ignored.
const INPUT_AT_START: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::{Write as _, pipe};
    use std::os::unix::net::UnixStream;

    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// Longer than any machine stalls, so that a test fails instead of hanging.
    const MAX_WAIT: Duration = Duration::from_secs(20);

    /// Polls a few times, processing system events in between.
    async fn is_pending(waiting: &mut (impl Future<Output = ()> + Unpin)) -> bool {
        let looks = async {
            for _ in 0..8 {
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = waiting => false,
            () = looks => true,
        }
    }

    #[tokio::test]
    async fn a_reader_that_closes_its_end_is_noticed_without_a_write() {
        let (reader, writer) = pipe().unwrap();
        let mut of_pipe = Box::pin(hung_up(writer));
        let (other, socket) = UnixStream::pair().unwrap();
        let mut of_socket = Box::pin(hung_up(socket));
        assert!(is_pending(&mut of_pipe).await && is_pending(&mut of_socket).await);
        // One direction is shut down, the other is open.
        other.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_pending(&mut of_socket).await, "half-closed");
        drop((reader, other));
        timeout(MAX_WAIT, of_pipe).await.unwrap();
        timeout(MAX_WAIT, of_socket).await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_reader_of_a_full_pipe_is_noticed() {
        let (reader, writer) = pipe().unwrap();
        let mut filling = writer.try_clone().unwrap();
        let flags = rustix::fs::fcntl_getfl(&filling).unwrap();
        rustix::fs::fcntl_setfl(&filling, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        while filling.write(b"x").is_ok() {}
        let mut waiting = Box::pin(hung_up(writer));
        assert!(is_pending(&mut waiting).await, "a slow reader is no absent one");
        drop(reader);
        timeout(MAX_WAIT, waiting).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_has_no_reader_to_lose() {
        let mut waiting = Box::pin(hung_up(tempfile::tempfile().unwrap()));
        assert!(is_pending(&mut waiting).await);
    }

    #[tokio::test]
    async fn an_input_that_ends_later_than_at_the_start_closes_its_session() {
        for (at_start, closes) in [(Duration::ZERO, true), (MAX_WAIT * 2, false)] {
            let (reader, mut writer) = pipe().unwrap();
            let mut waiting = Box::pin(input_closed(reader, at_start));
            writer.write_all(b"x").unwrap();
            assert!(is_pending(&mut waiting).await, "bytes are no end");
            drop(writer);
            match closes {
                true => timeout(MAX_WAIT, waiting).await.unwrap(),
                false => assert!(is_pending(&mut waiting).await),
            }
        }
    }
}
