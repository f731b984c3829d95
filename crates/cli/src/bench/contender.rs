//! Selects and starts contenders: the proxies under test, from none at all to third-party proxies.

mod built_in;
mod description;
mod installed;
mod leno;
mod running;
mod yaml;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::layout::Layout;
use super::testbed::Testbed;
use crate::ports::ChosenPorts;
use description::ContenderDescription;

pub(super) use installed::{BenchInstallArgs, contenders_directory};
pub(super) use leno::BenchObservability;
pub(super) use running::{MAX_START_WAIT, ProcessRole, RunningContender};

/// A contender: one kind of proxy under test, or no proxy.
#[derive(Debug, Clone)]
pub(super) enum Contender {
    /// No proxy: clients reach the backend directly.
    None,
    /// The built-in bare TCP forwarder.
    Floor,
    /// Leno's sidecars.
    Leno(BenchObservability),
    /// Proxies described by contender files, one file per layout.
    Described(Vec<ContenderDescription>),
}

/// The name of a contender on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContenderName(String);

/// The description of a contender in reports.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ContenderReport {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) version: String,
    /// The processes of the contender, exactly as started, for every layout of the suite.
    pub(super) configuration: Vec<ProcessConfiguration>,
}

/// One process of a contender, exactly as started.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProcessConfiguration {
    pub(super) layout: Layout,
    pub(super) process: String,
    pub(super) command: Vec<String>,
    /// The configuration files of the process: name and content.
    pub(super) files: Vec<(String, String)>,
}

/// The environment of a contender in one trial.
pub(super) struct TrialEnvironment<'a, 'b> {
    pub(super) testbed: &'a Testbed,
    pub(super) layout: Layout,
    /// The directory for the files of the contender's processes.
    pub(super) dir: PathBuf,
    pub(super) ports: &'a mut ChosenPorts<'b>,
}

impl Contender {
    /// Loads the contender with this name.
    ///
    /// # Errors
    /// If a contender file is unreadable or invalid.
    pub(super) fn load(name: &ContenderName) -> anyhow::Result<Self> {
        if let Some(path) = name.0.strip_prefix("command:") {
            let description = ContenderDescription::load(Path::new(path))?;
            let is_reserved = CONTENDER_NAMES.contains(&description.name.as_str());
            if is_reserved {
                bail!("{path}: the name `{}` is in use; choose another one", description.name);
            }
            return Ok(Self::Described(vec![description]));
        }
        Ok(match name.0.as_str() {
            "none" => Self::None,
            "floor" => Self::Floor,
            "leno" => Self::Leno(BenchObservability::Nothing),
            "leno-seen" => Self::Leno(BenchObservability::Everything),
            name => Self::Described(built_in::built_in_descriptions(name)?),
        })
    }

    /// Returns the contender's name in reports.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::None => "none",
            Self::Floor => "floor",
            Self::Leno(BenchObservability::Nothing) => "leno",
            Self::Leno(BenchObservability::Everything) => "leno-seen",
            Self::Described(descriptions) => descriptions.first().map_or("", |first| &first.name),
        }
    }

    /// Returns the contender's description for reports. Fails if the contender does not support the layout on this
    /// machine.
    ///
    /// # Errors
    /// If a prerequisite is missing; the error names it and contains a hint.
    pub(super) fn build_report(
        &self,
        testbed: &Testbed,
        layout: Layout,
    ) -> anyhow::Result<ContenderReport> {
        let leno_version = || env!("CARGO_PKG_VERSION").to_owned();
        let (about, version) = match self {
            Self::None => (ABOUT_NONE.to_owned(), String::new()),
            Self::Floor if !matches!(layout, Layout::Http | Layout::Tcp) => {
                bail!("a bare forwarder cannot distinguish services")
            }
            Self::Floor => (ABOUT_FLOOR.to_owned(), leno_version()),
            Self::Leno(observability) => {
                (leno::describe_configuration(*observability), leno_version())
            }
            Self::Described(descriptions) => {
                let description = find_description(descriptions, layout)?;
                (description.about.clone(), description.program_version(testbed)?)
            }
        };
        let name = self.name().to_owned();
        Ok(ContenderReport { name, about, version, configuration: Vec::new() })
    }

    /// Starts the contender. Its processes may not be ready yet, so the first requests may fail.
    ///
    /// # Errors
    /// If a process of the contender cannot be started.
    pub(super) async fn start(
        &self,
        environment: &mut TrialEnvironment<'_, '_>,
    ) -> anyhow::Result<RunningContender> {
        std::fs::create_dir_all(&environment.dir)
            .with_context(|| format!("cannot create {}", environment.dir.display()))?;
        match self {
            Self::None => start_without_proxy(environment),
            Self::Floor => start_floor(environment),
            Self::Leno(observability) => leno::start(environment, *observability).await,
            Self::Described(descriptions) => {
                find_description(descriptions, environment.layout)?.start(environment)
            }
        }
    }
}

impl FromStr for ContenderName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match CONTENDER_NAMES.contains(&text) || text.starts_with("command:") {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("use {} or command:FILE", CONTENDER_NAMES.join(", "))),
        }
    }
}

impl fmt::Display for ContenderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn find_description(
    descriptions: &[ContenderDescription],
    layout: Layout,
) -> anyhow::Result<&ContenderDescription> {
    let description = descriptions.iter().find(|description| description.layout == layout);
    description.with_context(|| format!("it has no contender file for the layout `{layout}`"))
}

/// Makes the entry ports of the layout aliases of the applications' ports, and starts no process.
fn start_without_proxy(
    environment: &mut TrialEnvironment<'_, '_>,
) -> anyhow::Result<RunningContender> {
    let port_aliases: &[(&str, &str)] = match environment.layout {
        Layout::Http | Layout::Tcp => &[("entry", "backend")],
        Layout::Bookinfo => {
            &[("entry-ratings", "ratings"), ("entry-gateway", "gateway"), ("outbound", "ratings")]
        }
        Layout::Fan => {
            &[("entry-1", "backend-1"), ("entry-2", "backend-2"), ("entry-3", "backend-3")]
        }
        // The consumer selects a provider itself, like a client with a service registry.
        Layout::Chain | Layout::TaggedChain => &[
            ("listener-1", "provider-1"),
            ("listener-2", "provider-2"),
            ("listener-3", "provider-3"),
        ],
    };
    for (alias, application_role) in port_aliases {
        let port = environment.ports.port_for(application_role)?;
        environment.ports.share_port(alias, port);
    }
    Ok(RunningContender::default())
}

fn start_floor(environment: &mut TrialEnvironment<'_, '_>) -> anyhow::Result<RunningContender> {
    let port = environment.ports.port_for("entry")?.to_string();
    let backend_port = environment.ports.port_for("backend")?.to_string();
    let mut running_contender = RunningContender::default();
    let arguments = ["bench", "floor", "--port", &port, "--to", &backend_port].map(str::to_owned);
    running_contender.start_leno(
        environment,
        ProcessRole::Proxy,
        "forwarder",
        arguments.to_vec(),
        Vec::new(),
    )?;
    Ok(running_contender)
}

const CONTENDER_NAMES: [&str; 7] =
    ["leno", "leno-seen", "envoy", "haproxy", "nginx", "none", "floor"];
const ABOUT_NONE: &str = "no proxy: the load generator reaches the backend directly";
const ABOUT_FLOOR: &str = "a minimal built-in TCP forwarder: no TLS, no HTTP, no features, and one hop \
    instead of two. The minimum cost of a proxy on the path";
