//! The disk is full: what would be remembered is lost, what runs goes on.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use leno_tests::{ControlPlane, Load, Proxy, eventually, is_root};
use tempfile::TempDir;

use super::{ALLOWED, Counted, PATIENCE, shop, turns};

#[test]
#[allow(clippy::print_stderr, reason = "who reads the output must see what was not tested")]
fn a_sidecar_whose_disk_is_full_serves_renews_and_follows_on() {
    let Some(disk) = SmallDisk::mount() else {
        // Only root can have a disk of its own; modes do not stop a file system's owner.
        eprintln!("skipped: a full disk needs root and mount");
        return;
    };
    let shop = shop("strict", Counted::echo());
    let control = ControlPlane::start(&shop.manifests, &["--certificate-lifetime", "8s"]);
    control.write("policy.yaml", ALLOWED);
    let token = control.token("shop/ratings-1");
    let ratings = Proxy::launch("shop/ratings-1", &token, &disk.path().join("state"), &[]);
    ratings.wait_until_ready();
    let _web = Proxy::join(&control, "shop/web-1", &[]);
    turns(shop.door, 200);

    let load = Load::start("GET", shop.door, 2);
    disk.fill();
    let renewed = || ratings.page.metric("leno_certificate_renewals_total{result=\"ok\"}");
    let before = renewed();
    ratings.program.wait_for_line("the certificate cannot be kept on disk", PATIENCE);
    eventually("it is renewed all the same", PATIENCE, || (renewed() > before).then_some(()));
    load.wait_for(10);
    load.finish().assert_whole();

    control.remove("policy.yaml");
    turns(shop.door, 403);
    ratings.program.wait_for_line("the state directory cannot be written", PATIENCE);
    control.write("policy.yaml", ALLOWED);
    turns(shop.door, 200);
}

#[test]
#[allow(clippy::print_stderr, reason = "who reads the output must see what was not tested")]
fn a_control_plane_whose_disk_is_full_tells_of_changes_and_renews() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: a full disk needs root and mount");
        return;
    };
    let shop = shop("strict", Counted::echo());
    let arguments = ["--certificate-lifetime", "8s"];
    let mut control = ControlPlane::start_on(&disk.path(), &shop.manifests, &arguments);
    control.write("policy.yaml", ALLOWED);
    let ratings = Proxy::join(&control, "shop/ratings-1", &[]);
    let _web = Proxy::join(&control, "shop/web-1", &[]);
    turns(shop.door, 200);

    let load = Load::start("GET", shop.door, 2);
    disk.fill();
    let renewed = || ratings.page.metric("leno_certificate_renewals_total{result=\"ok\"}");
    let before = renewed();
    eventually("it is renewed all the same", PATIENCE, || (renewed() > before).then_some(()));
    load.wait_for(10);
    load.finish().assert_whole();
    control.remove("policy.yaml");
    turns(shop.door, 403);
    control.write("policy.yaml", ALLOWED);
    turns(shop.door, 200);

    // It comes back on what was written before, also while nothing more can be.
    control.kill();
    control.start_again();
    let before = renewed();
    eventually("the new one renews it", PATIENCE, || (renewed() > before).then_some(()));
    turns(shop.door, 200);
}

/// A file system of its own, in memory.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory to mount at");
        let mount = || {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]);
            mount.arg(directory.path()).status().is_ok_and(|status| status.success())
        };
        (is_root() && mount()).then(|| Self(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Writes until nothing more fits.
    fn fill(&self) {
        let mut file = File::create(self.path().join("filler")).expect("a file");
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open there may keep it.
        drop(Command::new("umount").arg("-l").arg(Path::new(self.0.path())).status());
    }
}
