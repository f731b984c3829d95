//! The hidden `leno bench pinned`: executes a command on selected cores, and stops it when its supervisor exits.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::Args;
use rustix::process::Signal;

use super::cores::Cores;
use crate::exec;

/// Arguments of the hidden `leno bench pinned`.
#[derive(Debug, Args)]
pub(crate) struct PinnedArgs {
    /// Process ID of the supervisor; the command ends with it
    #[arg(long)]
    parent: i32,
    /// Cores that the command may use
    #[arg(long)]
    cores: Option<Cores>,
    /// Command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl PinnedArgs {
    /// Executes the command; returns only on failure.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        // A proxy stops its workers on SIGTERM, but not when it is killed.
        exec::end_with_parent(self.parent, Signal::TERM)?;
        if let Some(cores) = &self.cores {
            cores.pin_current_thread()?;
        }
        let (program, arguments) =
            self.command.split_first().context("there is no command to run")?;
        let error = Command::new(program).args(arguments).exec();
        Err(error).with_context(|| format!("cannot run `{}`", program.to_string_lossy()))
    }
}
