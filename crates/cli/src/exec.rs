//! The hidden `leno exec`, with which `leno up` starts applications: executes a command that ends with its supervisor.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::process::{Gid, Pid, Signal, Uid};

use crate::up::{descendants, process_groups};
use crate::{limits, output};

/// Arguments of the hidden `leno exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Process ID of the supervisor; the command ends with it
    #[arg(long)]
    parent: i32,
    /// File that records the process group
    #[arg(long)]
    record: Option<PathBuf>,
    /// Soft limit of open files to restore
    #[arg(long)]
    open_files: Option<u64>,
    /// Working directory of the command
    #[arg(long)]
    cwd: Option<PathBuf>,
    /// User of the command: NAME, UID or UID:GID
    #[arg(long)]
    user: Option<UserSpec>,
    /// Name of a variable that the Workload sets, which stays unchanged
    #[arg(long)]
    set: Vec<String>,
    /// Command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl ExecArgs {
    /// Executes the command; returns only on failure.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(soft_limit) = self.open_files {
            limits::restore_open_files(soft_limit)
                .context("cannot restore the limit of open files")?;
        }
        // The group is recorded before the user changes: the user of the command may lack write access. The
        // application runs even without a record.
        if let Some(Err(error)) = self.record.as_deref().map(process_groups::record_group) {
            crate::log::print_to_stderr(&format!(
                "processes of this application would survive a killed `leno up`: {}",
                output::format_error(&error)
            ));
        }
        let user_home = self.user.as_ref().map(switch_user).transpose()?.flatten();
        // The kernel clears this setting when the user changes.
        end_with_parent(self.parent, Signal::KILL)?;
        // Descendants that lose their parents, as daemons do, stay descendants of the application.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .context("cannot become a child subreaper")?;
        if let Some(cwd) = &self.cwd {
            std::env::set_current_dir(cwd).with_context(|| {
                format!(
                    "cannot run in {}: correct spec.cwd of the Workload or create the directory",
                    cwd.display()
                )
            })?;
        }
        let (program, arguments) =
            self.command.split_first().context("there is no command to run")?;
        let mut command = Command::new(program);
        command.args(arguments);
        // Descendants inherit the variable, which identifies them when the application stops.
        if let Ok(run) = descendants::current_process_run() {
            command.envs(run.environment_variable());
        }
        if let Some(UserHome { name, directory }) = user_home {
            let variables = [("USER", &name), ("LOGNAME", &name), ("HOME", &directory)];
            command.envs(
                variables.into_iter().filter(|(key, _)| !self.set.iter().any(|name| name == key)),
            );
        }
        let error = command.exec();
        let program_name = program.to_string_lossy();
        Err(error).with_context(|| {
            format!("cannot run `{program_name}`: correct spec.run of the Workload or install it")
        })
    }
}

/// The value of `--user`: the user of the command, by name, or by user ID with an optional group ID.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UserSpec {
    Named(String),
    /// A user ID and a group ID. Without the latter the group is that of the user's entry, or has the user ID.
    Id(u32, Option<u32>),
}

impl FromStr for UserSpec {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with(|character: char| character.is_ascii_digit()) {
            return Ok(Self::Named(text.to_owned()));
        }
        match text.split_once(':') {
            Some((user, group)) => Ok(Self::Id(user.parse()?, Some(group.parse()?))),
            None => Ok(Self::Id(text.parse()?, None)),
        }
    }
}

/// Drops the privileges of this process to those of a user and its groups.
///
/// Returns the name and home directory for the environment of the command; `None` if the user stays the same.
fn switch_user(user_spec: &UserSpec) -> anyhow::Result<Option<UserHome>> {
    // Comments and names of other users may have any encoding. A container image may have neither file.
    let read_text = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (users_text, groups_text) =
        (read_text(USERS_FILE).unwrap_or_default(), read_text(GROUPS_FILE).unwrap_or_default());
    let user_ids = resolve_user(user_spec, &users_text, &groups_text)?;
    let own_user_id = rustix::process::geteuid().as_raw();
    let own_group_id = rustix::process::getegid().as_raw();
    if (own_user_id, own_group_id) == (user_ids.user_id, user_ids.group_id) {
        return Ok(None);
    }
    if own_user_id != 0 {
        bail!(
            "cannot run as user {}: spec.user needs a `leno up` that runs as root",
            user_ids.user_id
        );
    }
    let group_ids: Vec<Gid> = user_ids.group_ids.iter().copied().map(Gid::from_raw).collect();
    // Before exec this process has one thread, so the thread's credentials are those of the process.
    rustix::thread::set_thread_groups(&group_ids)
        .and_then(|()| rustix::thread::set_thread_gid(Gid::from_raw(user_ids.group_id)))
        .and_then(|()| rustix::thread::set_thread_uid(Uid::from_raw(user_ids.user_id)))
        .with_context(|| format!("cannot run as user {}", user_ids.user_id))?;
    Ok(Some(user_ids.home))
}

/// The name and the home directory of a user, for its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UserHome {
    name: String,
    directory: String,
}

/// The numeric IDs of a user, with its home directory.
#[derive(Debug, PartialEq, Eq)]
struct UserIds {
    user_id: u32,
    group_id: u32,
    /// The IDs of all groups of the user, the primary group first.
    group_ids: Vec<u32>,
    home: UserHome,
}

/// Resolves a user from the text of `/etc/passwd` and `/etc/group`.
fn resolve_user(
    user_spec: &UserSpec,
    users_text: &str,
    groups_text: &str,
) -> anyhow::Result<UserIds> {
    // NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL
    let user_entries = users_text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let user: u32 = fields.nth(1)?.parse().ok()?;
        let group: u32 = fields.next()?.parse().ok()?;
        Some((name, (user, group), fields.nth(1).unwrap_or("/")))
    });
    let user_entry = match user_spec {
        UserSpec::Named(requested) => user_entries.into_iter().find(|(name, ..)| name == requested),
        UserSpec::Id(requested, _) => {
            user_entries.into_iter().find(|(_, (user, _), _)| user == requested)
        }
    };
    // The home of a UID without an entry is the root directory, as in containers.
    let home = UserHome {
        name: user_entry.map_or_else(|| user_name(user_spec), |(name, ..)| name.to_owned()),
        directory: user_entry.map_or("/", |(.., home)| home).to_owned(),
    };
    let (name, user_id, group_id) = match (user_spec, user_entry) {
        (UserSpec::Named(name), None) => {
            bail!("no user {name}: correct spec.user of the Workload or add the user")
        }
        (UserSpec::Id(user, group), None) => (None, *user, group.unwrap_or(*user)),
        (UserSpec::Named(_), Some((name, (user, group), _))) => (Some(name), user, group),
        (UserSpec::Id(_, requested_group), Some((name, (user, group), _))) => {
            (Some(name), user, requested_group.unwrap_or(group))
        }
    };
    // NAME:PASSWORD:GID:MEMBER,MEMBER
    let supplementary_ids = groups_text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let supplementary_id: u32 = fields.nth(2)?.parse().ok()?;
        let is_member = fields.next()?.split(',').any(|member| Some(member) == name);
        is_member.then_some(supplementary_id)
    });
    let mut group_ids = vec![group_id];
    group_ids.extend(supplementary_ids.filter(|id| *id != group_id));
    Ok(UserIds { user_id, group_id, group_ids, home })
}

fn user_name(user_spec: &UserSpec) -> String {
    match user_spec {
        UserSpec::Named(name) => name.clone(),
        UserSpec::Id(user, _) => user.to_string(),
    }
}

/// Requests `signal` from the kernel when `parent` dies. The setting survives `exec`, but not `fork`.
///
/// # Errors
/// If the parent has already ended, or the kernel rejects the request.
pub(crate) fn end_with_parent(parent: i32, signal: Signal) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal))
        .context("cannot set the parent death signal")?;
    // The parent may have died before the request.
    if rustix::process::getppid() != Pid::from_raw(parent) {
        bail!("the supervisor {parent} has exited");
    }
    Ok(())
}

/// The users of this machine (passwd(5)).
const USERS_FILE: &str = "/etc/passwd";
/// The groups of this machine (group(5)).
const GROUPS_FILE: &str = "/etc/group";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_resolved_by_name_and_by_number_with_their_groups() {
        let users = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/srv:/bin/false\n";
        let groups = "root:x:0:\nweb:x:33:\nlogs:x:4:other,web\n";
        let user_ids =
            |user_id, group_id, group_ids: &[u32], (name, directory): (&str, &str)| UserIds {
                user_id,
                group_id,
                group_ids: group_ids.to_vec(),
                home: UserHome { name: name.to_owned(), directory: directory.to_owned() },
            };
        for (user_spec, expected) in [
            ("web", user_ids(33, 33, &[33, 4], ("web", "/srv"))),
            ("33", user_ids(33, 33, &[33, 4], ("web", "/srv"))),
            ("33:7", user_ids(33, 7, &[7, 4], ("web", "/srv"))),
            ("1000", user_ids(1000, 1000, &[1000], ("1000", "/"))),
        ] {
            let user_spec: UserSpec = user_spec.parse().unwrap();
            assert_eq!(resolve_user(&user_spec, users, groups).unwrap(), expected, "{user_spec:?}");
        }
        let error = resolve_user(&UserSpec::Named("nosuch".to_owned()), users, groups).unwrap_err();
        assert!(error.to_string().contains("no user nosuch"), "{error}");
    }
}
