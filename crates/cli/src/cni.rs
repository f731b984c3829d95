//! `leno cni`: the network plugin of a node leads pods' connections to their sidecars, so that pods
//! need no privilege for it.

mod conflist;
mod node;
mod plugin;
mod question;

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(crate) use plugin::{is_called, run_as_plugin};

/// Arguments of `leno cni`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CniArgs {
    #[command(subcommand)]
    command: CniCommand,
}

#[derive(Debug, Subcommand)]
enum CniCommand {
    /// Put the plugin into this node's network, keep it there, and answer what it asks
    Node(node::NodeArgs),
}

impl CniArgs {
    /// Runs until SIGTERM or SIGINT.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            CniCommand::Node(args) => args.run(),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  leno install --cni --apply                  a pod on each node runs the next line
  leno cni node --bin-dir /host/bin --conf-dir /host/net.d

The plugin is this program under the name `leno-cni`: the container runtime calls it for each pod
after the plugins that give the pod its network. It asks the pod on its node what is to be led to
the sidecar. While that pod is away, pods outside of --pass namespaces are not started: none runs
without what it was promised.
";
