//! Builds embedded Java sources with Maven, and caches the result.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::timeout;

use super::child::{BenchProcess, ProcessSpec};
use super::testbed::Testbed;

/// A Maven project.
#[derive(Debug)]
pub(super) struct MavenProject {
    /// The first part of the directory's name in the cache.
    pub(super) name: &'static str,
    /// A description for people.
    pub(super) about: &'static str,
    /// The source files: relative path and content.
    pub(super) sources: &'static [(&'static str, &'static str)],
    /// The path of the built directory, relative to the project directory.
    pub(super) build_output: &'static str,
}

/// Returns the path of the product: the built directory of a project in the cache. Builds it if missing.
///
/// # Errors
/// If a tool is missing, or Maven fails.
pub(super) async fn build_product(
    project: &MavenProject,
    testbed: &Testbed,
) -> anyhow::Result<PathBuf> {
    let cache_directory = testbed.cache_directory.as_path();
    let product =
        cache_directory.join(format!("{}-{:016x}", project.name, source_fingerprint(project)));
    if product.is_dir() {
        return Ok(product);
    }
    let purpose = format!("building {}", project.about);
    for tool in ["mvn", "javac"] {
        require_tool(testbed, tool, &purpose)?;
    }
    eprintln!("{purpose} with Maven, once, into {}", product.display());
    std::fs::create_dir_all(cache_directory)
        .with_context(|| format!("cannot create {}", cache_directory.display()))?;
    let build_directory = tempfile::Builder::new()
        .prefix("building-")
        .tempdir_in(cache_directory)
        .context("no build directory")?;
    run_maven(project, build_directory.path())
        .await
        .with_context(|| format!("{purpose} failed"))?;
    let build_output = build_directory.path().join(project.build_output);
    match std::fs::rename(&build_output, &product) {
        // Another process has built the same product in the meantime.
        Err(_) if product.is_dir() => Ok(product),
        Err(error) => Err(error).with_context(|| format!("cannot create {}", product.display())),
        Ok(()) => Ok(product),
    }
}

/// Fails if a tool is not in the search path.
///
/// # Errors
/// The tool to install.
pub(super) fn require_tool(testbed: &Testbed, tool: &str, purpose: &str) -> anyhow::Result<()> {
    if testbed.search_path.iter().any(|directory| directory.join(tool).is_file()) {
        return Ok(());
    }
    bail!(
        "{purpose} requires `{tool}`, which is not in PATH: install a JDK, 17 or later, and Maven (on \
         Debian: apt-get install default-jdk-headless maven)"
    )
}

async fn run_maven(project: &MavenProject, dir: &Path) -> anyhow::Result<()> {
    for (path, text) in project.sources {
        let file = dir.join(path);
        let parent = file.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&file, text))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut command = vec!["mvn", "--batch-mode", "--quiet", "--no-transfer-progress", "--file"]
        .into_iter()
        .map(Into::into)
        .collect::<Vec<std::ffi::OsString>>();
    command.extend([dir.join("pom.xml").into(), "package".into()]);
    let mut maven = BenchProcess::start(&ProcessSpec::new(command), &dir.join("maven.log"))?;
    let Ok(output) = timeout(MAX_BUILD_WAIT, maven.wait_with_output()).await else {
        bail!("the build did not finish within {MAX_BUILD_WAIT:?}: {}", maven.log_tail());
    };
    let (status, _) = output?;
    if !status.success() {
        bail!("Maven exited, {status}:\n{}", maven.log_tail());
    }
    Ok(())
}

/// Returns a hash of the sources. It is part of the cached product's name, so that changed sources are built again.
fn source_fingerprint(project: &MavenProject) -> u64 {
    let mut hasher = DefaultHasher::new();
    project.sources.hash(&mut hasher);
    hasher.finish()
}

/// The timeout of a build, which downloads some hundred libraries over a possibly slow connection.
const MAX_BUILD_WAIT: Duration = Duration::from_secs(15 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_tools_are_named_with_their_package() {
        let empty = tempfile::tempdir().unwrap();
        let [bin, cache_directory] = ["bin", "cache"].map(|name| empty.path().join(name));
        let testbed = Testbed::new(vec![bin], PathBuf::new(), cache_directory.clone()).unwrap();
        let project =
            MavenProject { name: "thing", about: "a thing", sources: &[], build_output: "target" };
        let error = build_product(&project, &testbed).await.unwrap_err().to_string();
        assert!(error.contains("building a thing requires `mvn`"), "{error}");
        assert!(error.contains("apt-get install default-jdk-headless maven"), "{error}");
        assert!(!cache_directory.exists(), "a build was started");
        let product = cache_directory.join(format!("thing-{:016x}", source_fingerprint(&project)));
        std::fs::create_dir_all(&product).unwrap();
        assert_eq!(build_product(&project, &testbed).await.unwrap(), product);
    }
}
