//! Parses contender files, which contain the start commands and the configuration of third-party proxies, and starts
//! those proxies.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::running::{ProcessRole, RunningContender};
use super::{TrialEnvironment, installed, yaml};
use crate::bench::certificates;
use crate::bench::child::ProcessSpec;
use crate::bench::layout::Layout;
use crate::bench::testbed::Testbed;

/// A contender as described by its file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::bench) struct ContenderDescription {
    /// The contender's name in reports.
    pub(in crate::bench) name: String,
    /// A one-sentence description.
    pub(super) about: String,
    /// The layout that the processes build.
    pub(super) layout: Layout,
    /// The program: a path, or a name in the search path.
    program: String,
    /// The advice for users who have not installed the program.
    #[serde(default)]
    hint: String,
    /// Files that must exist on this machine.
    #[serde(default)]
    needs: Vec<PathBuf>,
    /// The arguments that print the program's version.
    #[serde(default)]
    version: Vec<String>,
    /// The processes to start, in order.
    processes: Vec<ProcessDescription>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessDescription {
    name: String,
    command: Vec<String>,
    /// The content of files that are written before the process starts, by their names below the trial's directory.
    #[serde(default)]
    files: BTreeMap<String, String>,
}

impl ContenderDescription {
    /// Loads a contender file.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the contender file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("the contender file {}", path.display()))
    }

    /// Parses the text of a contender file.
    ///
    /// # Errors
    /// The reason why the text is not a contender file.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let description: Self = serde_json::from_value(yaml::parse(text)?)?;
        if description.processes.is_empty() {
            bail!("it has no processes: define at least one");
        }
        Ok(description)
    }

    /// Returns the version that the program prints.
    ///
    /// # Errors
    /// If the program is not installed, with a hint.
    pub(super) fn program_version(&self, testbed: &Testbed) -> anyhow::Result<String> {
        let program = self.find_program(testbed)?;
        if let Some(missing_file) = self.needs.iter().find(|path| !path.exists()) {
            bail!("there is no {}: {}", missing_file.display(), self.hint);
        }
        if self.version.is_empty() {
            return Ok("unknown".to_owned());
        }
        let output = Command::new(&program)
            .args(&self.version)
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        // Some programs write their version to standard error. The first line with a digit contains it, such as
        // `nginx version: nginx/1.24.0`.
        let output_bytes = [output.stdout, output.stderr].concat();
        let output_text = String::from_utf8_lossy(&output_bytes);
        let has_digit = |line: &&str| line.chars().any(|character| character.is_ascii_digit());
        let version_line = output_text.lines().find(has_digit).unwrap_or("unknown").trim();
        let version =
            version_line.split_once("version").map_or(version_line, |(_, version)| version);
        Ok(version.trim_start_matches([':', ' ']).to_owned())
    }

    fn find_program(&self, testbed: &Testbed) -> anyhow::Result<PathBuf> {
        installed::find_program(&self.program, testbed).with_context(|| match self.hint.as_str() {
            "" => format!("`{}` is not installed", self.program),
            hint => format!("`{}` is not installed: {hint}", self.program),
        })
    }

    /// Starts the contender's processes, in order.
    ///
    /// # Errors
    /// If a file cannot be written, a process cannot be started, or a placeholder is unknown.
    pub(super) fn start(
        &self,
        environment: &mut TrialEnvironment<'_, '_>,
    ) -> anyhow::Result<RunningContender> {
        let program = self.find_program(environment.testbed)?;
        let certificates_directory = environment.testbed.certificates_directory()?;
        let mut running_contender = RunningContender::default();
        for process in &self.processes {
            let mut files = Vec::new();
            for (name, template) in &process.files {
                let text = fill_template(template, &program, &certificates_directory, environment)?;
                write_contender_file(&environment.dir, name, &text)?;
                files.push((name.clone(), text));
            }
            let mut command = Vec::new();
            for argument in &process.command {
                command.push(OsString::from(fill_template(
                    argument,
                    &program,
                    &certificates_directory,
                    environment,
                )?));
            }
            let spec = ProcessSpec::new(command);
            running_contender.start(
                environment,
                ProcessRole::Proxy,
                &process.name,
                &spec,
                files,
            )?;
        }
        Ok(running_contender)
    }
}

/// Writes a file of a contender below its directory.
fn write_contender_file(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let relative_path = Path::new(name);
    let is_below = relative_path
        .components()
        .all(|component| matches!(component, std::path::Component::Normal(_)));
    if !is_below {
        bail!("the file `{name}` is outside the directory of the run");
    }
    let path = dir.join(relative_path);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces the placeholders of a template, such as `@port:entry@`.
fn fill_template(
    template: &str,
    program: &Path,
    certificates_directory: &Path,
    environment: &mut TrialEnvironment<'_, '_>,
) -> anyhow::Result<String> {
    let mut text = String::with_capacity(template.len());
    let mut remaining_template = template;
    while let Some((before, after)) = remaining_template.split_once('@') {
        text.push_str(before);
        // An @ that begins no placeholder is kept, such as that of `"@type"`.
        let placeholder = after.split_once('@').filter(|(name, _)| is_placeholder(name));
        let Some((name, after_placeholder)) = placeholder else {
            text.push('@');
            remaining_template = after;
            continue;
        };
        match name {
            "program" => text.push_str(&program.to_string_lossy()),
            "dir" => text.push_str(&environment.dir.to_string_lossy()),
            "certificates" => text.push_str(&certificates_directory.to_string_lossy()),
            "cores" => text.push_str(&environment.testbed.proxy_threads().to_string()),
            // Workers of a program that root started change their user, who cannot read the files of the trial.
            "user" if rustix::process::geteuid().is_root() => text.push_str("user root root;"),
            "user" => {}
            name => match (name.strip_prefix("port:"), name.strip_suffix("-id")) {
                (Some(role), _) => text.push_str(&environment.ports.port_for(role)?.to_string()),
                (None, Some(identity)) => text.push_str(&certificates::spiffe_id(identity)),
                (None, None) => bail!("unknown placeholder `@{name}@`"),
            },
        }
        remaining_template = after_placeholder;
    }
    text.push_str(remaining_template);
    Ok(text)
}

fn is_placeholder(name: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":-".contains(&byte);
    !name.is_empty() && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_an_unknown_field_is_rejected() {
        let valid = "name: x\nabout: y\nlayout: http\nprogram: /bin/x\n\
                    processes: [{name: one, command: [\"@program@\"]}]\n";
        ContenderDescription::parse(valid).unwrap();
        for invalid in [
            valid.replace("about", "abut"),
            valid.replace("layout: http", "layout: star"),
            "name: x\nabout: y\nlayout: http\nprogram: x\nprocesses: []\n".to_owned(),
        ] {
            assert!(ContenderDescription::parse(&invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn files_stay_below_the_directory_of_the_run() {
        let scratch = tempfile::tempdir().unwrap();
        write_contender_file(scratch.path(), "a/b.conf", "x").unwrap();
        assert!(scratch.path().join("a/b.conf").exists());
        for name in ["../b.conf", "/tmp/b.conf", "a/../../b.conf"] {
            assert!(write_contender_file(scratch.path(), name, "x").is_err(), "{name}");
        }
    }
}
