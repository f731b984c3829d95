//! Full disks and removed files: state is not saved, and running programs continue.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use leno_tests::{
    BackgroundLoad, ControlProgram, SidecarProgram, TestProgram, eventually, get, is_root,
    leno_command,
};
use serde_json::Value;
use tempfile::TempDir;

use super::{ALLOW_GETS, CountingApplication, MAX_WAIT, start_shop, wait_until_status};

#[test]
#[allow(clippy::print_stderr, reason = "the output names what was not tested")]
fn a_sidecar_with_a_full_disk_serves_renews_and_applies_changes() {
    let Some(disk) = SmallDisk::mount_disk() else {
        // Mounting a separate disk requires root; file modes do not restrict root.
        eprintln!("skipped: a full disk needs root and mount");
        return;
    };
    let shop = start_shop("deny", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &["--certificate-lifetime", "8s"]);
    control.write("policy.yaml", ALLOW_GETS);
    let token = control.issue_token("shop/ratings-1");
    let ratings = SidecarProgram::start_unready(
        "shop/ratings-1",
        &token,
        &disk.mount_path().join("state"),
        &[],
    );
    ratings.wait_until_ready();
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);

    let load = BackgroundLoad::start("GET", shop.listener, 2);
    disk.fill_disk();
    let renewals =
        || ratings.admin_endpoint.metric_value("leno_certificate_renewals_total{result=\"ok\"}");
    let renewals_before = renewals();
    ratings.program.wait_for_line("cannot write the certificate to disk", MAX_WAIT);
    eventually("the certificate is renewed", MAX_WAIT, || {
        (renewals() > renewals_before).then_some(())
    });
    load.wait_for(10);
    load.finish_load().assert_no_failures();

    control.remove("policy.yaml");
    wait_until_status(shop.listener, 403);
    ratings.program.wait_for_line("cannot write the state directory", MAX_WAIT);
    control.write("policy.yaml", ALLOW_GETS);
    wait_until_status(shop.listener, 200);
}

#[test]
#[allow(clippy::print_stderr, reason = "the output names what was not tested")]
fn a_control_plane_with_a_full_disk_publishes_changes_and_renews_certificates() {
    let Some(disk) = SmallDisk::mount_disk() else {
        eprintln!("skipped: a full disk needs root and mount");
        return;
    };
    let shop = start_shop("deny", CountingApplication::start_echo());
    let arguments = ["--certificate-lifetime", "8s"];
    let mut control =
        ControlProgram::start_on_disk(&disk.mount_path(), &shop.manifests, &arguments);
    control.write("policy.yaml", ALLOW_GETS);
    let ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);

    let load = BackgroundLoad::start("GET", shop.listener, 2);
    disk.fill_disk();
    let renewals =
        || ratings.admin_endpoint.metric_value("leno_certificate_renewals_total{result=\"ok\"}");
    let renewals_before = renewals();
    eventually("the certificate is renewed", MAX_WAIT, || {
        (renewals() > renewals_before).then_some(())
    });
    load.wait_for(10);
    load.finish_load().assert_no_failures();
    control.remove("policy.yaml");
    wait_until_status(shop.listener, 403);
    control.write("policy.yaml", ALLOW_GETS);
    wait_until_status(shop.listener, 200);

    // The control plane restarts from its saved state, even while it cannot write.
    control.kill();
    control.restart();
    let renewals_before = renewals();
    eventually("the new control plane renews the certificate", MAX_WAIT, || {
        (renewals() > renewals_before).then_some(())
    });
    wait_until_status(shop.listener, 200);
}

#[test]
#[allow(clippy::print_stderr, reason = "the output names what was not tested")]
fn state_is_written_again_when_the_disk_has_space() {
    let Some(disk) = SmallDisk::mount_disk() else {
        eprintln!("skipped: a full disk needs root and mount");
        return;
    };
    let shop = start_shop("deny", CountingApplication::start_echo());
    let mut control = ControlProgram::start_on_disk(&disk.mount_path(), &shop.manifests, &[]);
    control.write("policy.yaml", ALLOW_GETS);
    let token = control.issue_token("shop/ratings-1");
    let state_directory = disk.mount_path().join("state");
    let mut ratings =
        SidecarProgram::start_unready("shop/ratings-1", &token, &state_directory, &[]);
    ratings.wait_until_ready();
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);

    disk.fill_disk();
    control.remove("policy.yaml");
    wait_until_status(shop.listener, 403);
    for finding in [
        "the control plane cannot write its state in",
        "the sidecar of shop/ratings-1 cannot write its state in",
    ] {
        wait_for_status(&control, finding, |is_healthy, text| {
            !is_healthy && text.contains(finding)
        });
    }
    disk.free_space();
    wait_for_status(&control, "no finding about state", |_, text| !text.contains("its state"));

    // Both restart from their latest state: the control plane with its authority, the sidecar with the policy.
    control.kill();
    ratings.kill();
    ratings.restart();
    wait_until_status(shop.listener, 403);
    control.restart();
    control.write("policy.yaml", ALLOW_GETS);
    wait_until_status(shop.listener, 200);
}

#[test]
#[allow(clippy::print_stderr, reason = "the output names what was not tested")]
fn an_access_log_on_a_full_disk_drops_lines_and_fails_no_request() {
    let Some(disk) = SmallDisk::mount_disk() else {
        eprintln!("skipped: a full disk needs root and mount");
        return;
    };
    let shop = start_shop("deny", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    control.write("policy.yaml", ALLOW_GETS);
    let log_file = disk.mount_path().join("access.log");
    let token = control.issue_token("shop/ratings-1");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" >> \"$LOG\"", "sh"]).env("LOG", &log_file);
    command.arg(leno_command().get_program()).args(["proxy", "--workload", "shop/ratings-1"]);
    command.arg("--state").arg(control.state_directory("shop/ratings-1"));
    command.arg("--token-file").arg(token).args(["--access-log", "json"]);
    let _ratings = TestProgram::start("leno proxy into a file", &mut command);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    let send_requests = |name: &str| {
        for number in 0..20 {
            assert_eq!(get(shop.listener, &format!("/{name}/{number}")).unwrap().status, 200);
        }
    };
    let count_lines = |name: &str| {
        let text = std::fs::read_to_string(&log_file).unwrap();
        text.lines().filter(|line| line.contains(&format!("/{name}/"))).count()
    };
    send_requests("before");
    eventually("all lines", MAX_WAIT, || (count_lines("before") == 20).then_some(()));
    disk.fill_disk();
    let finding = "shop/ratings-1: its sidecar drops log";
    // The last pages of existing files have space for some lines.
    wait_for_status(&control, finding, |_, text| {
        send_requests("full");
        text.contains(finding)
    });
    disk.free_space();
    send_requests("after");
    eventually("all later lines", MAX_WAIT, || (count_lines("after") == 20).then_some(()));
    let text = eventually("the number of dropped lines", MAX_WAIT, || {
        send_requests("last");
        let text = std::fs::read_to_string(&log_file).unwrap();
        text.contains(" lines were dropped").then_some(text)
    });
    let is_partial = |line: &&str| serde_json::from_str::<Value>(line).is_err();
    let partial_lines: Vec<&str> = text.0.lines().filter(is_partial).collect();
    let notice_count =
        partial_lines.iter().filter(|line| line.contains(" lines were dropped")).count();
    // The line that was written partially.
    assert!(notice_count == 1 && partial_lines.len() <= 2, "{partial_lines:?}");
}

#[test]
fn a_removed_data_directory_is_restored_with_the_same_authority() {
    let shop = start_shop("deny", CountingApplication::start_echo());
    let mut control = ControlProgram::start(&shop.manifests, &[]);
    control.write("policy.yaml", ALLOW_GETS);
    let _ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let mut web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    let root_file = control.data_directory().join("authority/ca.pem");
    let original_root = std::fs::read(&root_file).unwrap();

    // A partial authority is a finding: an operator may be replacing it.
    std::fs::remove_file(&root_file).unwrap();
    let finding = "the files of the authority cannot be used";
    wait_for_status(&control, finding, |is_healthy, text| !is_healthy && text.contains(finding));
    std::fs::write(&root_file, &original_root).unwrap();
    wait_for_status(&control, "no finding", |is_healthy, _| is_healthy);

    std::fs::remove_dir_all(control.data_directory()).unwrap();
    eventually("the same root", MAX_WAIT, || {
        std::fs::read(&root_file).ok().filter(|content| *content == original_root)
    });
    wait_for_status(&control, "no finding", |is_healthy, _| is_healthy);
    assert_eq!(get(shop.listener, "/").unwrap().status, 200);
    // Tokens can be issued and used, and members of this control plane trust the next one.
    web.kill();
    std::fs::remove_dir_all(control.state_directory("shop/web-1")).unwrap();
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    control.kill();
    control.restart();
    wait_for_status(&control, "all sidecars are back", |is_healthy, text| {
        is_healthy && text.contains("2 sidecars connected")
    });
    wait_until_status(shop.listener, 200);
}

/// Waits until `leno status` satisfies `matches`, called with the success of its exit code and its output.
fn wait_for_status(
    control: &ControlProgram,
    condition: &str,
    matches: impl Fn(bool, &str) -> bool,
) {
    eventually(condition, MAX_WAIT, || {
        let output = control.run_leno(&["status"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        matches(output.status.success(), &text).then_some(())
    });
}

/// A separate file system in memory.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount_disk() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory to mount at");
        let mount = || {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]);
            mount.arg(directory.path()).status().is_ok_and(|status| status.success())
        };
        (is_root() && mount()).then(|| Self(directory))
    }

    fn mount_path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Writes until the disk is full.
    fn fill_disk(&self) {
        let mut file = File::create(self.mount_path().join("filler")).expect("a file");
        while file.write_all(&[0; 512]).is_ok() {}
    }

    /// Removes the file written by [`Self::fill_disk`].
    fn free_space(&self) {
        std::fs::remove_file(self.mount_path().join("filler")).expect("the disk was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: processes may still have files open there.
        drop(Command::new("umount").arg("-l").arg(Path::new(self.0.path())).status());
    }
}
