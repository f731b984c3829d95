//! The hidden `leno bench pinned`: becomes another command, on chosen cores, tied to our life.

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
    /// The process that started this one, and without which it is not to live
    #[arg(long)]
    parent: i32,
    /// The cores that it may run on
    #[arg(long)]
    cores: Option<Cores>,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl PinnedArgs {
    /// Becomes the command; returns only if that fails.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        // A proxy that has workers ends them when it is asked to end, not when it is killed.
        exec::die_with(self.parent, Signal::TERM)?;
        if let Some(cores) = &self.cores {
            cores.confine_us()?;
        }
        let (program, arguments) =
            self.command.split_first().context("there is no command to run")?;
        let error = Command::new(program).args(arguments).exec();
        Err(error).with_context(|| format!("cannot run `{}`", program.to_string_lossy()))
    }
}
