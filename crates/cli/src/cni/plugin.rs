//! Runs this program as the CNI plugin `leno-cni`, which the container runtime calls for each pod (CNI specification
//! 1.1, section 2). The plugin queries the node agent, and sets the redirection rules in the pod's network namespace.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use serde_json::{Value, json};

use super::conflist::PLUGIN_NAME;
use super::redirect_request::{MAX_LINE_BYTES, RedirectRequest, RedirectResponse};
use crate::output;
use crate::redirect::RedirectArgs;

/// True if a container runtime runs this process as a plugin.
pub(crate) fn is_called_as_plugin() -> bool {
    let program_path = env::args_os().next();
    let program_name = program_path.as_deref().map(Path::new).and_then(Path::file_name);
    program_name.is_some_and(|name| name == PLUGIN_NAME) && env::var_os("CNI_COMMAND").is_some()
}

/// Executes the CNI command, and reports the result in CNI format.
pub(crate) fn run_as_plugin() -> ExitCode {
    let cni_call = CniCall::parse();
    let mut input = String::new();
    let input_result = std::io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut input);
    let outcome = input_result
        .context("cannot read the configuration")
        .and_then(|_| cni_call.execute_command(&input));
    match outcome {
        Ok(result) => {
            print!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let result = json!({"cniVersion": CNI_VERSION, "code": PLUGIN_ERROR, "msg": output::format_error(&error)});
            print!("{result}");
            ExitCode::FAILURE
        }
    }
}

/// The parameters that the container runtime sets in the environment.
#[derive(Debug, Parser)]
struct CniCall {
    #[arg(env = "CNI_COMMAND")]
    command: String,
    #[arg(env = "CNI_ARGS", default_value = "")]
    arguments: String,
    #[arg(env = "CNI_NETNS")]
    netns: Option<PathBuf>,
}

/// The configuration from standard input: this plugin's entry in the node's list, with the result of the
/// previous plugin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CniConfiguration {
    cni_version: String,
    socket: PathBuf,
    #[serde(default)]
    exclude_namespaces: Vec<String>,
    /// The result of the previous plugin; `None` if there is none, which is an error for ADD.
    prev_result: Option<Value>,
}

impl CniCall {
    fn execute_command(&self, input: &str) -> anyhow::Result<String> {
        match self.command.as_str() {
            "VERSION" => {
                Ok(json!({"cniVersion": CNI_VERSION, "supportedVersions": SUPPORTED_VERSIONS})
                    .to_string())
            }
            "ADD" => {
                let configuration: CniConfiguration =
                    serde_json::from_str(input).context("invalid configuration")?;
                self.add_container(&configuration)?;
                let mut result = configuration.prev_result.context(
                    "prevResult is missing: list this plugin after the one that creates the network",
                )?;
                if let Some(fields) = result.as_object_mut() {
                    fields.insert("cniVersion".to_owned(), configuration.cni_version.into());
                }
                Ok(result.to_string())
            }
            // The kernel removes the rules with the network namespace, so DEL and GC have nothing to remove.
            "DEL" | "CHECK" | "GC" | "STATUS" => Ok(String::new()),
            command => bail!("CNI_COMMAND `{command}` is unknown"),
        }
    }

    /// Sets the redirection rules in the container's network namespace, if the container is a pod of the mesh.
    fn add_container(&self, configuration: &CniConfiguration) -> anyhow::Result<()> {
        let Some(request) = parse_pod(&self.arguments) else {
            // The container is not a pod.
            return Ok(());
        };
        if configuration.exclude_namespaces.contains(&request.namespace) {
            return Ok(());
        }
        let options = match query_node(&configuration.socket, &request)? {
            RedirectResponse::Skip => return Ok(()),
            RedirectResponse::Redirect(options) => options,
            RedirectResponse::Rejected(reason) => bail!("{reason}"),
        };
        let redirect = RedirectArgs::from_options(&options)?;
        let netns_path = self.netns.as_deref().context("CNI_NETNS is missing")?;
        let netns_file = File::open(netns_path)
            .with_context(|| format!("cannot open {}", netns_path.display()))?;
        move_into_link_name_space(netns_file.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter the network namespace of the pod")?;
        redirect.replace_rules()
    }
}

/// Parses the pod from `CNI_ARGS` (`KEY=VALUE;…`); `None` if the container does not belong to a pod.
fn parse_pod(arguments: &str) -> Option<RedirectRequest> {
    let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
    let values: BTreeMap<&str, &str> = pairs.collect();
    let value_of = |key: &str| values.get(key).map(|value| (*value).to_owned());
    Some(RedirectRequest {
        namespace: value_of("K8S_POD_NAMESPACE")?,
        pod: value_of("K8S_POD_NAME")?,
        uid: value_of("K8S_POD_UID"),
    })
}

/// Queries the node agent for the redirection of a pod.
fn query_node(socket: &Path, request: &RedirectRequest) -> anyhow::Result<RedirectResponse> {
    let query = || -> anyhow::Result<RedirectResponse> {
        let mut stream = UnixStream::connect(leno_listen::SocketPath::for_path(socket)?.path())?;
        stream.set_read_timeout(Some(AGENT_TIMEOUT))?;
        stream.set_write_timeout(Some(AGENT_TIMEOUT))?;
        stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    query().with_context(|| {
        format!(
            "no response at {} for pod {}/{}: is the pod leno-cni of this node running?",
            socket.display(),
            request.namespace,
            request.pod
        )
    })
}

/// The newest supported CNI version. Older supported versions differ only in parts of the result that the plugin
/// forwards without reading them.
const CNI_VERSION: &str = "1.1.0";
const SUPPORTED_VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The CNI error code of all failures; codes from 100 on are plugin-specific.
const PLUGIN_ERROR: u32 = 100;
/// The maximum size of a configuration, in bytes; the usual size is a few kilobytes.
const MAX_INPUT_BYTES: u64 = 1 << 20;
/// The timeout for the agent, which may query the API server; afterwards the kubelet retries.
const AGENT_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_parsed_from_the_arguments_of_the_runtime() {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-1;\
                         K8S_POD_INFRA_CONTAINER_ID=0f;K8S_POD_UID=7";
        let request = RedirectRequest {
            namespace: "shop".to_owned(),
            pod: "cart-1".to_owned(),
            uid: Some("7".to_owned()),
        };
        assert_eq!(parse_pod(arguments), Some(request));
        assert_eq!(parse_pod("IgnoreUnknown=1"), None);
        assert_eq!(parse_pod(""), None);
    }
}
