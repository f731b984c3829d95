//! Exports to collectors over HTTP and gRPC, and the loss of data when a collector is unavailable.

mod called;
mod pushed;
mod receiver;

use tokio::task::LocalSet;

/// Runs a test on a runtime of its own, with a timeout.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        tokio::time::timeout(MAX_WAIT, test).await.expect("the test hangs");
    }));
}

/// More than any test takes, even on a busy machine.
const MAX_WAIT: std::time::Duration = std::time::Duration::from_secs(60);
