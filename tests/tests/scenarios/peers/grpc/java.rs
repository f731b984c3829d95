//! The gRPC cases with grpc-java, which uses Netty, at both ends.

use std::process::Command;
use std::time::{Duration, Instant};

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, server_with_protocol,
};
use leno_tests::{TestMesh, TestProgram, eventually, free_port, java_programs};

use super::super::DEFAULT_POLICIES;
use super::{CASES, WHOLE_SERVICE};

#[test]
#[ignore = "fetches grpc-java with Maven: `./test grpc-java` runs it"]
fn every_standard_case_passes_between_java_programs_in_either_mode() {
    for default_policy in DEFAULT_POLICIES {
        let (port, listener) = (free_port(), free_port());
        let mut server_command = java_command("TestServiceServer");
        server_command.push(format!("--port={port}"));
        let server_command: Vec<&str> = server_command.iter().map(String::as_str).collect();
        let manifests = [
            mesh_config(default_policy),
            server_with_protocol("grpc", port, "GRPC", &server_command),
            client_manifest("user", &[], &[("grpc.shop", listener)]),
            http_access_manifest("user", "grpc", WHOLE_SERVICE),
        ];
        let _mesh = TestMesh::up(&manifests.concat());
        eventually("an empty call gets a response", MAX_WAIT, || {
            run_case(listener, "empty_unary").ok()
        });
        for case in CASES {
            let started = Instant::now();
            let outcome = run_case(listener, case);
            eprintln!("{default_policy}, {case}: {:?}", started.elapsed());
            assert!(outcome.is_ok(), "{default_policy}, {case}: {}", outcome.unwrap_err());
        }
    }
}

/// Runs one case through the outbound listener; the error is the client's output.
fn run_case(listener: u16, case: &str) -> Result<(), String> {
    let (port, case) = (format!("--server_port={listener}"), format!("--test_case={case}"));
    let [program, arguments @ ..] = &java_command("TestServiceClient")[..] else {
        unreachable!("a command has a program")
    };
    let mut command = Command::new(program);
    // The first call of a new JVM may take a second.
    let latency_argument = "--soak_per_iteration_max_acceptable_latency_ms=20000";
    command.args(arguments).args(["--server_host=127.0.0.1", &port, &case, latency_argument]);
    let mut client = TestProgram::start("grpc-java's client", &mut command);
    match client.wait_for_exit(MAX_WAIT).success() {
        true => Ok(()),
        false => Err(client.printed_output()),
    }
}

/// Returns the command line of a grpc-java program with plaintext.
fn java_command(program: &str) -> Vec<String> {
    let class_path = format!("{}/*", java_programs().display());
    let main_class = format!("io.grpc.testing.integration.{program}");
    let flags = ["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp"];
    let flags = flags.map(str::to_owned).into_iter();
    flags.chain([class_path, main_class, "--use_tls=false".to_owned()]).collect()
}

/// The timeout of conditions: a JVM starts within a second or two, and the longest case takes the same time.
const MAX_WAIT: Duration = Duration::from_secs(60);
