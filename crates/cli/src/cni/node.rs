//! `leno cni node`: the node agent that installs the CNI plugin and serves its requests.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leno_identity::create_private_directory;
use leno_kubernetes::node::{NodeAgentClient, PodRedirection};
use leno_listen::{Listener, SocketPath};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::conflist::{self, PLUGIN_NAME};
use super::redirect_request::{MAX_LINE_BYTES, RedirectRequest, RedirectResponse};
use crate::output;
use crate::stop;

/// Arguments of `leno cni node`.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Directory of the node's CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    bin_dir: PathBuf,
    /// Directory of the node's CNI configuration
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
    /// Unix socket for the plugin; the same path on the node and in this container
    #[arg(long, value_name = "FILE", default_value = "/run/leno/cni.sock")]
    socket: PathBuf,
    /// Namespaces excluded from redirection: their pods start without a request to this agent
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', default_value = "kube-system")]
    exclude_namespaces: Vec<String>,
    /// DaemonSet of this agent; once it is deleted, the agent uninstalls the plugin
    #[arg(long, value_name = "NAMESPACE/NAME")]
    daemon_set: Option<String>,
}

impl NodeArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(self.serve())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(self) -> anyhow::Result<()> {
        let stop_signal = stop::stop_signal()?;
        let node_client = Arc::new(NodeAgentClient::connect().await?);
        // The agent listens before the plugin is installed.
        let listener = self.open_socket()?;
        self.copy_program()?;
        tokio::select! {
            () = stop_signal => {}
            () = serve_requests(listener, Arc::clone(&node_client)) => {}
            () = self.maintain_installation() => {}
        }
        if self.is_uninstalled(&node_client).await {
            self.uninstall_plugin()?;
            tracing::info!("removed the plugin from the node's CNI configuration");
        } else {
            tracing::info!(
                "the plugin stays installed: pods of the mesh wait until the node agent is back"
            );
        }
        Ok(())
    }

    fn open_socket(&self) -> anyhow::Result<UnixListener> {
        if let Some(parent) = self.socket.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            create_private_directory(parent)?;
        }
        // A previous agent may have left its socket.
        std::fs::remove_file(&self.socket).ok();
        let listener = SocketPath::for_path(&self.socket)
            .and_then(|socket_path| UnixListener::bind(socket_path.path()))
            .with_context(|| format!("cannot listen at {}", self.socket.display()))?;
        // Container runtimes run plugins as root.
        std::fs::set_permissions(&self.socket, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Installs this program next to the node's other plugins, atomically.
    fn copy_program(&self) -> anyhow::Result<()> {
        let copy = || -> std::io::Result<()> {
            let new_file = tempfile::NamedTempFile::new_in(&self.bin_dir)?;
            std::fs::copy("/proc/self/exe", new_file.path())?;
            std::fs::set_permissions(new_file.path(), Permissions::from_mode(0o755))?;
            new_file.persist(self.bin_dir.join(PLUGIN_NAME))?;
            Ok(())
        };
        copy().with_context(|| format!("cannot copy the plugin to {}", self.bin_dir.display()))
    }

    /// Keeps the plugin in the active list: network plugins that are installed or updated later rewrite the list.
    async fn maintain_installation(&self) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported_error = None;
        loop {
            ticks.tick().await;
            let error = match self.add_plugin_entry() {
                Ok(None) => continue,
                Ok(Some(file)) => {
                    tracing::info!(file = %file.display(), "added the plugin to the node's CNI configuration");
                    None
                }
                Err(error) => Some(output::format_error(&error)),
            };
            if let Some(error) = error.as_ref().filter(|_| error != reported_error) {
                tracing::warn!(%error, "cannot add the plugin to the node's CNI configuration");
            }
            reported_error = error;
        }
    }

    /// Adds the plugin to the active list. Returns the file of the list; `None` if the list has the plugin already.
    fn add_plugin_entry(&self) -> anyhow::Result<Option<PathBuf>> {
        let file = conflist::find_active_list(&self.conf_dir)?;
        let text = std::fs::read_to_string(&file)?;
        let Some(new_text) = conflist::add_plugin(
            &text,
            &conflist::plugin_entry(&self.socket, &self.exclude_namespaces),
        )?
        else {
            return Ok(None);
        };
        replace_file(&file, &new_text)?;
        Ok(Some(file))
    }

    /// Removes the plugin from the lists before its program: a list that names a missing program prevents all pods
    /// from starting.
    fn uninstall_plugin(&self) -> anyhow::Result<()> {
        for file in conflist::find_all_lists(&self.conf_dir)? {
            let text = std::fs::read_to_string(&file)?;
            // Files that are not plugin lists belong to other programs.
            if let Ok(Some(new_text)) = conflist::remove_plugin(&text) {
                replace_file(&file, &new_text)?;
            }
        }
        std::fs::remove_file(self.bin_dir.join(PLUGIN_NAME)).ok();
        std::fs::remove_file(&self.socket).ok();
        Ok(())
    }

    /// True if the DaemonSet is deleted, so that no other agent replaces this one. False if the API server does
    /// not respond.
    async fn is_uninstalled(&self, node_client: &NodeAgentClient) -> bool {
        let daemon_set = self.daemon_set.as_deref().and_then(|name| name.split_once('/'));
        let Some((namespace, name)) = daemon_set else {
            return false;
        };
        let deletion_result =
            timeout(SHUTDOWN_TIMEOUT, node_client.is_daemon_set_gone(namespace, name)).await;
        matches!(deletion_result, Ok(Ok(true)))
    }
}

/// Replaces a file atomically, keeping its permissions.
fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let replace = || -> std::io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut new_file = tempfile::NamedTempFile::new_in(directory)?;
        std::io::Write::write_all(&mut new_file, text.as_bytes())?;
        std::fs::set_permissions(new_file.path(), std::fs::metadata(path)?.permissions())?;
        new_file.persist(path)?;
        Ok(())
    };
    replace().with_context(|| format!("cannot write {}", path.display()))
}

/// Serves plugin requests until dropped.
async fn serve_requests(listener: UnixListener, node_client: Arc<NodeAgentClient>) {
    let mut requests = JoinSet::new();
    let mut listener = Listener::new("CNI plugin", listener);
    loop {
        tokio::select! {
            (stream, _) = listener.accept(), if requests.len() < MAX_REQUESTS => {
                let node_client = Arc::clone(&node_client);
                let request_task = async move { serve_request(stream, &node_client).await };
                requests.spawn(timeout(REQUEST_TIMEOUT, request_task));
            }
            // The nested results are those of the task, its timeout, and the request.
            Some(outcome) = requests.join_next() => match outcome {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => tracing::warn!(%error, "cannot respond to a plugin"),
                Ok(Err(_)) => tracing::warn!("timeout while responding to a plugin"),
                Err(error) => tracing::error!(%error, "response to a plugin failed"),
            },
        }
    }
}

async fn serve_request(stream: UnixStream, node_client: &NodeAgentClient) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut request_line = String::new();
    BufReader::new(reader.take(MAX_LINE_BYTES)).read_line(&mut request_line).await?;
    let request: RedirectRequest = serde_json::from_str(&request_line)?;
    let redirection =
        node_client.pod_redirection(&request.namespace, &request.pod, request.uid.as_deref()).await;
    let response = match redirection {
        Ok(PodRedirection::Unchanged) => RedirectResponse::Skip,
        Ok(PodRedirection::Redirect(options)) => RedirectResponse::Redirect(options),
        Err(error) => RedirectResponse::Rejected(format!(
            "cannot determine if pod {}/{} is part of the mesh: {error}",
            request.namespace, request.pod
        )),
    };
    let response_line = format!("{}\n", serde_json::to_string(&response)?);
    writer.write_all(response_line.as_bytes()).await?;
    Ok(())
}

/// The interval of checks of the active list; short enough not to delay a starting node.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum number of concurrent requests; more than the pods that start at once on a node.
const MAX_REQUESTS: usize = 64;
/// The timeout of a request; less than the plugin's timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(12);
/// The timeout of the request to the API server at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
