//! `leno cni`: a CNI plugin that redirects pods' traffic to their sidecars, so that pods need no privileges.

mod conflist;
mod node;
mod plugin;
mod redirect_request;

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(crate) use plugin::{is_called_as_plugin, run_as_plugin};

/// Arguments of `leno cni`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CniArgs {
    #[command(subcommand)]
    command: CniCommand,
}

#[derive(Debug, Subcommand)]
enum CniCommand {
    /// Run the agent: install the plugin on this node, keep it in the CNI configuration, and set up the
    /// redirection of new pods
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
  leno install --cni --apply                  runs the next command in a pod on each node
  leno cni node --bin-dir /host/bin --conf-dir /host/net.d

The plugin is this program under the name `leno-cni`: the container runtime runs it for each new pod,
after the plugins that set up the pod's network. It requests the redirection of the pod from the agent on
its node. While the agent is down, pods outside --exclude-namespaces do not start, so that no pod runs
without redirection.
";
