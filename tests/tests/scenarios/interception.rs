//! What `leno intercept` makes of a network namespace, as `nft` shows it.
#![allow(clippy::print_stderr, reason = "a scenario that cannot be shown says so")]

mod plugin;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use leno_tests::{is_root, leno};

/// Every kind of rule.
const OPTIONS: &[&str] = &[
    "--exclude-outbound-ports=25,5432",
    "--exclude-outbound-ranges=192.0.2.0/24,10.128.0.0/9,2001:db8::/32,203.0.113.7",
    "--exclude-inbound-ports=9000",
    "--exclude-interfaces=eth1,net.2",
];

/// A network namespace of this test's own, gone when dropped.
struct Namespace(String);

impl Namespace {
    fn new(what: &str) -> Self {
        let name = format!("lenotest{}-{what}", std::process::id());
        ip(&["netns", "add", &name]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        Self(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }

    /// Gives it a way out, so that the kernel routes what it is to redirect.
    fn add_way_out(&self) {
        ip(&["-n", &self.0, "link", "add", "out0", "type", "veth", "peer", "name", "out1"]);
        ip(&["-n", &self.0, "address", "add", "192.0.2.7/24", "dev", "out0"]);
        ip(&["-n", &self.0, "link", "set", "out0", "up"]);
    }

    fn intercept(&self, options: &[&str]) -> Output {
        let program = leno().get_program().to_owned();
        self.command(program).arg("intercept").args(options).output().unwrap()
    }

    fn rules(&self) -> String {
        let output = self.command("nft").args(["list", "ruleset"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success() || std::thread::panicking(), "ip {arguments:?}");
}

#[test]
fn the_kernel_has_the_rules_that_are_shown() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let (ours, theirs) = (Namespace::new("ours"), Namespace::new("theirs"));
    // The second time replaces what the first one left.
    for options in [&["--exclude-outbound-ports=26"][..], OPTIONS, OPTIONS] {
        let output = ours.intercept(options);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let shown = leno().arg("intercept").args(OPTIONS).arg("--dry-run").output().unwrap();
    let mut nft = theirs.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(&shown.stdout).unwrap();
    assert!(nft.wait().unwrap().success());
    assert!(theirs.rules().contains("redirect to :15001"), "{}", theirs.rules());
    assert_eq!(ours.rules(), theirs.rules());
}

#[test]
fn without_the_capability_nothing_changes() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = Namespace::new("without");
    let output = namespace
        .command("setpriv")
        .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
        .arg(leno().get_program())
        .arg("intercept")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("NET_ADMIN"), "{said}");
    assert_eq!(namespace.rules(), "");
}

#[test]
fn connections_go_to_the_sidecar_but_its_own() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = Namespace::new("leads");
    namespace.add_way_out();
    assert!(namespace.intercept(&["--exclude-outbound-ports=81"]).status.success());
    let script = "
import socket, sys
here = socket.socket()
here.bind(('127.0.0.1', 15001))
here.listen()
def connect(port):
    there = socket.socket()
    there.settimeout(0.3)
    try:
        there.connect(('192.0.2.9', port))
        wanted = here.accept()[0].getsockopt(socket.SOL_IP, 80, 16)
        return 'led, wanted port %d' % int.from_bytes(wanted[2:4], 'big')
    except OSError:
        return 'left alone'
import os
print(connect(80)); print(connect(81))
os.setuid(1500)
print(connect(80))
";
    let output = namespace.command("python3").args(["-c", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "led, wanted port 80\nleft alone\nleft alone\n", "{output:?}");
}

#[test]
fn whether_rules_are_there_can_be_found_out() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = Namespace::new("verify");
    namespace.add_way_out();
    let without = namespace.intercept(&["--verify"]);
    assert!(!without.status.success());
    assert!(String::from_utf8_lossy(&without.stderr).contains("delete the pod"), "{without:?}");
    assert!(namespace.intercept(&[]).status.success());
    let with = namespace.intercept(&["--verify"]);
    assert!(with.status.success(), "{with:?}");
}
