//! The hidden `leno exec`: becomes another command, tied to the life of whoever started it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::process::{Pid, Signal};

use crate::limits;

/// Arguments of the hidden `leno exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The process that started this one, and without which it is not to live
    #[arg(long)]
    parent: i32,
    /// The soft limit of open files to give back
    #[arg(long)]
    open_files: Option<u64>,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl ExecArgs {
    /// Becomes the command; returns only if that fails.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        die_with(self.parent, Signal::KILL)?;
        if let Some(soft) = self.open_files {
            limits::restore_open_files(soft).context("the limit of open files")?;
        }
        let (program, arguments) =
            self.command.split_first().context("there is no command to run")?;
        let error = Command::new(program).args(arguments).exec();
        let program = program.to_string_lossy();
        Err(error).with_context(|| {
            format!("cannot run `{program}`: correct spec.run of the Workload or install it")
        })
    }
}

/// Asks the kernel for `signal` when `parent` dies. The setting outlives `exec`, not `fork`.
///
/// # Errors
/// When the parent is gone already, or the kernel refuses.
pub(crate) fn die_with(parent: i32, signal: Signal) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal))
        .context("cannot be tied to the life of the supervisor")?;
    // It may have died before the signal was asked for.
    if rustix::process::getppid() != Pid::from_raw(parent) {
        bail!("the supervisor {parent} is gone");
    }
    Ok(())
}
