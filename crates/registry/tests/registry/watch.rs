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
struct WatchFixture {
    updates: Receiver<RegistryUpdate>,
    reload_requests: Arc<Notify>,
}

impl WatchFixture {
    /// Returns the next update. The timeout makes the test fail instead of hanging.
    async fn next_update(&mut self) -> RegistryUpdate {
        let update = tokio::time::timeout(Duration::from_secs(20), self.updates.recv());
        update.await.expect("an update is sent").expect("the watch continues")
    }

    /// Waits until a service has this port; updates before that may be partial.
    async fn wait_for_port(&mut self, name: &str, port: u16) {
        loop {
            let update = self.next_update().await;
            let has_port = update.changes.iter().any(|change| match change {
                Change::Upsert(leno_model::Object::Service(service)) => {
                    service.name.name.as_str() == name && service.ports[0].port == port
                }
                _ => false,
            });
            if has_port {
                return;
            }
        }
    }

    /// Waits until this problem is reported, and checks that one object is still active.
    async fn wait_for_problem_with_active_object(&mut self, problem: &str) {
        loop {
            let update = self.next_update().await;
            assert_eq!(update.object_count, 1, "{update:?}");
            if update.rejected.iter().any(|rejected| rejected.problem.contains(problem)) {
                return;
            }
        }
    }

    /// Waits until no object is left.
    async fn wait_until_empty(&mut self) {
        while self.next_update().await.object_count > 0 {}
    }
}

/// Runs a watch concurrently with a scenario; it ends when the scenario drops its receiver.
fn run<F: Future<Output = ()>>(paths: Vec<PathBuf>, scenario: impl FnOnce(WatchFixture) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (sender, updates) = channel(4);
    let reload_requests = Arc::new(Notify::new());
    let watch_task = watch_source(FileSource::new(paths), sender, Arc::clone(&reload_requests));
    let watch_and_scenario =
        async { tokio::join!(watch_task, scenario(WatchFixture { updates, reload_requests })) };
    let (result, ()): (Result<(), WatchError>, ()) = runtime.block_on(watch_and_scenario);
    result.unwrap();
}

/// Saves as editors do: writes another file and renames it.
fn save_by_rename(path: &Path, text: &str) {
    let draft = path.with_extension("tmp");
    fs::write(&draft, text).unwrap();
    fs::rename(draft, path).unwrap();
}

#[test]
fn written_renamed_and_removed_files_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path_of = |name: &str| dir.path().join(name);
    run(vec![dir.path().to_owned()], async |mut watched: WatchFixture| {
        assert_eq!(
            watched.next_update().await,
            RegistryUpdate::default(),
            "the first update is always sent"
        );
        fs::write(path_of("a.yaml"), service_manifest("a", 1)).unwrap();
        watched.wait_for_port("a", 1).await;
        save_by_rename(&path_of("a.yaml"), &service_manifest("a", 2));
        watched.wait_for_port("a", 2).await;
        fs::create_dir(path_of("below")).unwrap();
        fs::write(path_of("below/b.yaml"), service_manifest("b", 1)).unwrap();
        watched.wait_for_port("b", 1).await;
        fs::write(path_of("below/b.yaml"), service_manifest("b", 2)).unwrap();
        watched.wait_for_port("b", 2).await;
        fs::remove_dir_all(path_of("below")).unwrap();
        fs::remove_file(path_of("a.yaml")).unwrap();
        watched.wait_until_empty().await;
    });
}

#[test]
fn an_emptied_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service_manifest("a", 1)).unwrap();
    run(vec![file.clone()], async |mut watched: WatchFixture| {
        watched.wait_for_port("a", 1).await;
        fs::write(&file, "").unwrap();
        watched.wait_until_empty().await;
        fs::write(&file, service_manifest("a", 2)).unwrap();
        watched.wait_for_port("a", 2).await;
    });
}

#[test]
fn a_file_and_its_directory_are_noticed_when_created_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().join("house");
    let file = parent.join("room/mesh.yaml");
    run(vec![file.clone()], async |mut watched: WatchFixture| {
        assert_eq!(watched.next_update().await.rejected.len(), 1);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        save_by_rename(&file, &service_manifest("a", 1));
        watched.wait_for_port("a", 1).await;
        save_by_rename(&file, &service_manifest("a", 2));
        watched.wait_for_port("a", 2).await;
        fs::remove_dir_all(&parent).unwrap();
        watched.wait_for_problem_with_active_object("does not exist").await;
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, service_manifest("a", 3)).unwrap();
        watched.wait_for_port("a", 3).await;
    });
}

#[test]
fn objects_of_a_missing_or_replaced_directory_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path_of = |name: &str| dir.path().join(name);
    fs::create_dir(path_of("live")).unwrap();
    fs::write(path_of("live/a.yaml"), service_manifest("a", 1)).unwrap();
    run(vec![path_of("live")], async |mut watched: WatchFixture| {
        watched.wait_for_port("a", 1).await;
        fs::rename(path_of("live"), path_of("away")).unwrap();
        watched.wait_for_problem_with_active_object("does not exist").await;
        fs::create_dir(path_of("live")).unwrap();
        watched
            .wait_for_problem_with_active_object(
                "is empty, and is not the directory that was read before",
            )
            .await;
        fs::create_dir(path_of("live/.git")).unwrap();
        fs::write(path_of("live/a.yaml"), service_manifest("a", 2)).unwrap();
        watched.wait_for_port("a", 2).await;
        fs::remove_file(path_of("live/a.yaml")).unwrap();
        watched.wait_until_empty().await;
    });
}

/// Replaces the link to a release directory by a link to another one. `source_path` is the path of the source;
/// `links` are further links in the parent of the releases.
fn switch_releases(source_path: &str, links: &[(&str, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    let path_of = |name: &str| dir.path().join(name);
    for (version, port) in [("v1", 1), ("v2", 2), ("v3", 3)] {
        fs::create_dir_all(path_of("releases").join(version).join("mesh")).unwrap();
        let file = path_of("releases").join(version).join("mesh/a.yaml");
        fs::write(file, service_manifest("a", port)).unwrap();
    }
    fs::create_dir(path_of("config")).unwrap();
    let switch = |version: &str| {
        symlink(format!("releases/{version}"), path_of("next")).unwrap();
        fs::rename(path_of("next"), path_of("current")).unwrap();
    };
    switch("v1");
    for (link, target) in links {
        symlink(target, path_of(link)).unwrap();
    }
    run(vec![path_of(source_path)], async |mut watched: WatchFixture| {
        watched.wait_for_port("a", 1).await;
        switch("v2");
        watched.wait_for_port("a", 2).await;
        fs::remove_dir_all(path_of("releases/v1")).unwrap();
        fs::remove_file(path_of("current")).unwrap();
        watched.wait_for_problem_with_active_object("").await;
        switch("v3");
        watched.wait_for_port("a", 3).await;
        fs::write(path_of("releases/v3/mesh/a.yaml"), service_manifest("a", 4)).unwrap();
        watched.wait_for_port("a", 4).await;
    });
}

#[test]
fn each_replaced_link_on_a_path_is_noticed() {
    switch_releases("config", &[("config/a.yaml", "../current/mesh/a.yaml")]);
    switch_releases("config/a.yaml", &[("config/a.yaml", "../current/mesh/a.yaml")]);
    switch_releases("config", &[("config/team.yaml", "../far"), ("far", "current/mesh/a.yaml")]);
    switch_releases("link", &[("link", "second"), ("second", "current/mesh")]);
}

#[test]
fn an_update_by_git_sync_is_noticed() {
    // A fixed link below a root to a worktree named by its commit.
    switch_releases("current/mesh", &[]);
    switch_releases("current/mesh/a.yaml", &[]);
    switch_releases("config", &[("config/team", "../current/mesh")]);
}

#[test]
fn a_directory_replaced_by_another_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path_of = |name: &str| dir.path().join(name);
    for (name, port) in [("live", 1), ("next", 2)] {
        fs::create_dir(path_of(name)).unwrap();
        fs::write(path_of(name).join("a.yaml"), service_manifest("a", port)).unwrap();
    }
    run(vec![path_of("live")], async |mut watched: WatchFixture| {
        watched.wait_for_port("a", 1).await;
        fs::rename(path_of("live"), path_of("old")).unwrap();
        fs::rename(path_of("next"), path_of("live")).unwrap();
        watched.wait_for_port("a", 2).await;
        fs::write(path_of("live/a.yaml"), service_manifest("a", 3)).unwrap();
        watched.wait_for_port("a", 3).await;
    });
}

#[test]
fn an_updated_config_map_mount_is_noticed() {
    for source_path in [".", "a.yaml"] {
        let dir = tempfile::tempdir().unwrap();
        let path_of = |name: &str| dir.path().join(name);
        for (version, port) in [("..v1", 1), ("..v2", 2)] {
            fs::create_dir(path_of(version)).unwrap();
            fs::write(path_of(version).join("a.yaml"), service_manifest("a", port)).unwrap();
        }
        symlink("..v1", path_of("..data")).unwrap();
        symlink("..data/a.yaml", path_of("a.yaml")).unwrap();
        run(vec![path_of(source_path)], async |mut watched: WatchFixture| {
            watched.wait_for_port("a", 1).await;
            symlink("..v2", path_of("..tmp")).unwrap();
            fs::rename(path_of("..tmp"), path_of("..data")).unwrap();
            fs::remove_dir_all(path_of("..v1")).unwrap();
            watched.wait_for_port("a", 2).await;
        });
    }
}

#[test]
fn a_changed_link_target_outside_the_directory_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path_of = |name: &str| dir.path().join(name);
    fs::create_dir(path_of("another")).unwrap();
    fs::write(path_of("another/text.txt"), service_manifest("a", 1)).unwrap();
    fs::create_dir(path_of("mesh")).unwrap();
    symlink(path_of("another/text.txt"), path_of("mesh/a.yaml")).unwrap();
    run(vec![path_of("mesh")], async |mut watched: WatchFixture| {
        watched.wait_for_port("a", 1).await;
        fs::write(path_of("another/text.txt"), service_manifest("a", 2)).unwrap();
        watched.wait_for_port("a", 2).await;
    });
}

#[test]
fn rejections_are_reported_and_requested_reloads_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service_manifest("a", 1)).unwrap();
    run(vec![file.clone()], async |mut watched: WatchFixture| {
        watched.wait_for_port("a", 1).await;
        save_by_rename(&file, &service_manifest("a", 0));
        let update = watched.next_update().await;
        assert_eq!((update.changes.len(), update.rejected.len()), (0, 1));
        watched.reload_requests.notify_one();
        let update = watched.next_update().await;
        assert_eq!((update.changes.len(), update.rejected.len()), (0, 1));
    });
}
