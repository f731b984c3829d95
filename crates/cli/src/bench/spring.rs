//! Builds and starts two services of bookinfo as Spring Cloud applications, with a Eureka server for discovery.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::child::{BenchProcess, ProcessSpec};
use super::maven::{self, MavenProject};
use super::readiness::wait_until_ready;
use super::testbed::Testbed;
use crate::ports::ChosenPorts;

/// Returns the directory of the applications, building it if missing.
///
/// # Errors
/// If Java is missing, or the build fails.
pub(super) async fn build_programs(testbed: &Testbed) -> anyhow::Result<PathBuf> {
    maven::require_tool(testbed, "java", "running Spring applications")?;
    maven::build_product(&PROJECT, testbed).await
}

/// Starts the registry, waits for its first response, and starts ratings and the gateway. The registry returns the
/// gateway's sidecar as the address of ratings, so that requests of the gateway to ratings pass through the mesh.
///
/// # Errors
/// If an application cannot be started, or the registry does not respond.
pub(super) async fn start(
    testbed: &Testbed,
    ports: &mut ChosenPorts<'_>,
    dir: &Path,
) -> anyhow::Result<Vec<BenchProcess>> {
    let program_directory = build_programs(testbed).await?;
    let start_application = |name: &str, properties: &[String]| {
        let mut command: Vec<OsString> = vec!["java".into()];
        command.extend(JVM_OPTIONS.iter().map(Into::into));
        command.extend(["-jar".into(), program_directory.join(format!("{name}.jar")).into()]);
        command.extend(properties.iter().map(|property| format!("--{property}").into()));
        let spec = ProcessSpec::new(command).with_cores(testbed.load_cores.as_ref());
        let process = BenchProcess::start(&spec, &dir.join(format!("{name}.log")));
        process.with_context(|| format!("the application {name}"))
    };
    let registry_address = ports.address_for("registry")?;
    let mut registry =
        start_application("registry", &[format!("server.port={}", registry_address.port())])?;
    wait_until_ready(registry_address, "/eureka/apps", MAX_START_WAIT, || {
        registry.try_exit_status().map_or(Ok(()), |status| bail!("it exited, {status}"))
    })
    .await
    .with_context(|| format!("the registry does not respond: {}", registry.log_tail()))?;
    let eureka_zone =
        format!("eureka.client.service-url.defaultZone=http://{registry_address}/eureka");
    let ratings_properties = [
        format!("server.port={}", ports.port_for("ratings")?),
        format!("eureka.instance.non-secure-port={}", ports.port_for("outbound")?),
        eureka_zone.clone(),
    ];
    let gateway_properties = [
        format!("server.port={}", ports.port_for("gateway")?),
        format!("ratings.host={RATINGS}"),
        eureka_zone,
    ];
    let ratings = start_application("ratings", &ratings_properties)?;
    let gateway = start_application("gateway", &gateway_properties)?;
    Ok(vec![registry, ratings, gateway])
}

/// The description of the applications in reports.
pub(super) const ABOUT: &str = "Spring Cloud applications: ratings (Spring MVC on Tomcat), Spring Cloud \
    Gateway in front of it, and a Eureka server as the registry of the gateway; Spring Boot 3.3.8, Spring \
    Cloud 2023.0.5, 256 MiB of heap each";
/// The additional time of a trial for starting three JVMs.
pub(super) const STARTUP_TIME: Duration = Duration::from_secs(30);
/// The startup timeout of the registry, for a busy machine on which three JVMs share part of one core.
pub(super) const MAX_START_WAIT: Duration = Duration::from_secs(300);
/// The host and port of ratings in the mesh.
const RATINGS: &str = "ratings.bookinfo:9080";
/// JVM options with a small heap: three JVMs share a machine.
const JVM_OPTIONS: &[&str] = &["-Xms256m", "-Xmx256m", "-XX:+UseSerialGC"];

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../deploy/bench/spring/", $path)))),*]
    };
}

const PROJECT: MavenProject = MavenProject {
    name: "spring",
    about: "the Spring applications",
    sources: sources![
        "pom.xml",
        "registry/pom.xml",
        "registry/src/main/java/dev/leno/bench/Registry.java",
        "registry/src/main/resources/application.properties",
        "ratings/pom.xml",
        "ratings/src/main/java/dev/leno/bench/Ratings.java",
        "ratings/src/main/resources/application.properties",
        "gateway/pom.xml",
        "gateway/src/main/java/dev/leno/bench/Gateway.java",
        "gateway/src/main/resources/application.properties",
    ],
    build_output: "target/apps",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_name_the_versions_that_are_built() {
        let (_, pom) = PROJECT.sources[0];
        for (name, tag) in [("Spring Boot", "spring.boot"), ("Spring Cloud", "spring.cloud")] {
            let version = pom.split_once(&format!("<{tag}.version>")).unwrap().1;
            let version = version.split_once('<').unwrap().0;
            assert!(ABOUT.contains(&format!("{name} {version}")), "{name} {version}");
        }
    }
}
