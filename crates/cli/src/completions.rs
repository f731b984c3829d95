//! `leno completions`: prints shell completion scripts.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::output;

/// Arguments of `leno completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "leno", &mut script);
        output::print_raw(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}

const EXAMPLES: &str = "\
Examples:
  leno completions bash > ~/.local/share/bash-completion/completions/leno
  leno completions zsh  > ~/.zfunc/_leno
  leno completions fish > ~/.config/fish/completions/leno.fish
";
