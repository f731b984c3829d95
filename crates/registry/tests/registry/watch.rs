//! Tests that the watcher reports changes promptly, however a file is saved.

use std::fs;
use std::future::Future;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_model::Change;
use leno_registry::{FileSource, RegistryUpdate, WatchError, watch_source};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, channel};

fn service_manifest(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{ports: [{{port: {port}}}]}}\n"
    )
}

/// The receiving end of a watch.
struct Watched {
    updates: Receiver<RegistryUpdate>,
    demand: Arc<Notify>,
}

impl Watched {
    /// Returns the next update. The timeout makes the test fail instead of hanging.
    async fn next(&mut self) -> RegistryUpdate {
        let next = tokio::time::timeout(Duration::from_secs(20), self.updates.recv());
        next.await.expect("an update comes").expect("the watch goes on")
    }

    /// Waits until a service has this port; updates before that may be partial.
    async fn wait_for_port(&mut self, name: &str, port: u16) {
        loop {
            let update = self.next().await;
            let found = update.changes.iter().any(|change| match change {
                Change::Upsert(leno_model::Object::Service(service)) => {
                    service.name.name.as_str() == name && service.ports[0].port == port
                }
                _ => false,
            });
            if found {
                return;
            }
        }
    }

    /// Waits until a problem is reported; one object stays in force meanwhile.
    async fn expect_kept(&mut self, problem: &str) {
        loop {
            let update = self.next().await;
            assert_eq!(update.objects, 1, "{update:?}");
            if update.rejected.iter().any(|rejected| rejected.problem.contains(problem)) {
                return;
            }
        }
    }

    /// Waits until no object is left.
    async fn expect_nothing(&mut self) {
        while self.next().await.objects > 0 {}
    }
}

/// Runs a watch concurrently with a scenario; it ends when the scenario drops its receiver.
fn run<F: Future<Output = ()>>(paths: Vec<PathBuf>, scenario: impl FnOnce(Watched) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (sender, updates) = channel(4);
    let demand = Arc::new(Notify::new());
    let watching = watch_source(FileSource::new(paths), sender, Arc::clone(&demand));
    let both = async { tokio::join!(watching, scenario(Watched { updates, demand })) };
    let (ended, ()): (Result<(), WatchError>, ()) = runtime.block_on(both);
    ended.unwrap();
}

/// Saves as editors do: writes another file and renames it.
fn save_by_rename(path: &Path, text: &str) {
    let beside = path.with_extension("tmp");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[test]
fn sees_files_written_renamed_and_removed_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    run(vec![dir.path().to_owned()], async |mut watched: Watched| {
        assert_eq!(watched.next().await, RegistryUpdate::default(), "the first is always sent");
        fs::write(at("a.yaml"), service_manifest("a", 1)).unwrap();
        watched.wait_for_port("a", 1).await;
        save_by_rename(&at("a.yaml"), &service_manifest("a", 2));
        watched.wait_for_port("a", 2).await;
        fs::create_dir(at("below")).unwrap();
        fs::write(at("below/b.yaml"), service_manifest("b", 1)).unwrap();
        watched.wait_for_port("b", 1).await;
        fs::write(at("below/b.yaml"), service_manifest("b", 2)).unwrap();
        watched.wait_for_port("b", 2).await;
        fs::remove_dir_all(at("below")).unwrap();
        fs::remove_file(at("a.yaml")).unwrap();
        watched.expect_nothing().await;
    });
}

#[test]
fn sees_that_a_file_was_emptied_and_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service_manifest("a", 1)).unwrap();
    run(vec![file.clone()], async |mut watched: Watched| {
        watched.wait_for_port("a", 1).await;
        fs::write(&file, "").unwrap();
        watched.expect_nothing().await;
        fs::write(&file, service_manifest("a", 2)).unwrap();
        watched.wait_for_port("a", 2).await;
    });
}

#[test]
fn sees_one_file_come_and_go_and_its_directory_too() {
    let dir = tempfile::tempdir().unwrap();
    let house = dir.path().join("house");
    let file = house.join("room/mesh.yaml");
    run(vec![file.clone()], async |mut watched: Watched| {
        assert_eq!(watched.next().await.rejected.len(), 1);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        save_by_rename(&file, &service_manifest("a", 1));
        watched.wait_for_port("a", 1).await;
        save_by_rename(&file, &service_manifest("a", 2));
        watched.wait_for_port("a", 2).await;
        fs::remove_dir_all(&house).unwrap();
        watched.expect_kept("does not exist").await;
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, service_manifest("a", 3)).unwrap();
        watched.wait_for_port("a", 3).await;
    });
}

#[test]
fn keeps_what_a_missing_or_replaced_directory_held() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("live")).unwrap();
    fs::write(at("live/a.yaml"), service_manifest("a", 1)).unwrap();
    run(vec![at("live")], async |mut watched: Watched| {
        watched.wait_for_port("a", 1).await;
        fs::rename(at("live"), at("away")).unwrap();
        watched.expect_kept("does not exist").await;
        fs::create_dir(at("live")).unwrap();
        watched.expect_kept("is empty, and is not the directory that was read before").await;
        fs::create_dir(at("live/.git")).unwrap();
        fs::write(at("live/a.yaml"), service_manifest("a", 2)).unwrap();
        watched.wait_for_port("a", 2).await;
        fs::remove_file(at("live/a.yaml")).unwrap();
        watched.expect_nothing().await;
    });
}

/// Replaces the link to a release directory by a link to another one. `given` is the path of the source;
/// `links` are further links in the parent of the releases.
fn switch_releases(given: &str, links: &[(&str, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (version, port) in [("v1", 1), ("v2", 2), ("v3", 3)] {
        fs::create_dir_all(at("releases").join(version).join("mesh")).unwrap();
        let file = at("releases").join(version).join("mesh/a.yaml");
        fs::write(file, service_manifest("a", port)).unwrap();
    }
    fs::create_dir(at("config")).unwrap();
    let switch = |version: &str| {
        symlink(format!("releases/{version}"), at("next")).unwrap();
        fs::rename(at("next"), at("current")).unwrap();
    };
    switch("v1");
    for (link, target) in links {
        symlink(target, at(link)).unwrap();
    }
    run(vec![at(given)], async |mut watched: Watched| {
        watched.wait_for_port("a", 1).await;
        switch("v2");
        watched.wait_for_port("a", 2).await;
        fs::remove_dir_all(at("releases/v1")).unwrap();
        fs::remove_file(at("current")).unwrap();
        watched.expect_kept("").await;
        switch("v3");
        watched.wait_for_port("a", 3).await;
        fs::write(at("releases/v3/mesh/a.yaml"), service_manifest("a", 4)).unwrap();
        watched.wait_for_port("a", 4).await;
    });
}

#[test]
fn sees_each_link_on_the_way_replaced() {
    switch_releases("config", &[("config/a.yaml", "../current/mesh/a.yaml")]);
    switch_releases("config/a.yaml", &[("config/a.yaml", "../current/mesh/a.yaml")]);
    switch_releases("config", &[("config/team.yaml", "../far"), ("far", "current/mesh/a.yaml")]);
    switch_releases("link", &[("link", "second"), ("second", "current/mesh")]);
}

#[test]
fn sees_the_layout_of_git_sync() {
    // A fixed link below a root to a worktree named by its commit.
    switch_releases("current/mesh", &[]);
    switch_releases("current/mesh/a.yaml", &[]);
    switch_releases("config", &[("config/team", "../current/mesh")]);
}

#[test]
fn sees_a_directory_replaced_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (name, port) in [("live", 1), ("next", 2)] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("a.yaml"), service_manifest("a", port)).unwrap();
    }
    run(vec![at("live")], async |mut watched: Watched| {
        watched.wait_for_port("a", 1).await;
        fs::rename(at("live"), at("old")).unwrap();
        fs::rename(at("next"), at("live")).unwrap();
        watched.wait_for_port("a", 2).await;
        fs::write(at("live/a.yaml"), service_manifest("a", 3)).unwrap();
        watched.wait_for_port("a", 3).await;
    });
}

#[test]
fn sees_the_swap_of_a_config_map_in_a_directory_and_of_one_file_of_it() {
    for given in [".", "a.yaml"] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (version, port) in [("..v1", 1), ("..v2", 2)] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("a.yaml"), service_manifest("a", port)).unwrap();
        }
        symlink("..v1", at("..data")).unwrap();
        symlink("..data/a.yaml", at("a.yaml")).unwrap();
        run(vec![at(given)], async |mut watched: Watched| {
            watched.wait_for_port("a", 1).await;
            symlink("..v2", at("..tmp")).unwrap();
            fs::rename(at("..tmp"), at("..data")).unwrap();
            fs::remove_dir_all(at("..v1")).unwrap();
            watched.wait_for_port("a", 2).await;
        });
    }
}

#[test]
fn sees_a_changed_target_of_a_link_outside_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("another")).unwrap();
    fs::write(at("another/text.txt"), service_manifest("a", 1)).unwrap();
    fs::create_dir(at("mesh")).unwrap();
    symlink(at("another/text.txt"), at("mesh/a.yaml")).unwrap();
    run(vec![at("mesh")], async |mut watched: Watched| {
        watched.wait_for_port("a", 1).await;
        fs::write(at("another/text.txt"), service_manifest("a", 2)).unwrap();
        watched.wait_for_port("a", 2).await;
    });
}

#[test]
fn tells_of_refusals_and_answers_demands() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service_manifest("a", 1)).unwrap();
    run(vec![file.clone()], async |mut watched: Watched| {
        watched.wait_for_port("a", 1).await;
        save_by_rename(&file, &service_manifest("a", 0));
        let update = watched.next().await;
        assert_eq!((update.changes.len(), update.rejected.len()), (0, 1));
        watched.demand.notify_one();
        let update = watched.next().await;
        assert_eq!((update.changes.len(), update.rejected.len()), (0, 1));
    });
}
