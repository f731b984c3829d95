//! Collectors are told what was counted, and one that is away costs nothing but that.

mod called;
mod pushed;
mod receiver;

use tokio::task::LocalSet;

/// Runs a test on a runtime of its own; it may not take for ever.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        tokio::time::timeout(PATIENCE, test).await.expect("the test hangs");
    }));
}

/// No test takes so long, also on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
