//! Databases and a mail server with their own clients, on ports without a declared protocol.

use std::process::Command;
use std::time::{Duration, Instant};

use leno_tests::manifests::{
    client_manifest, mesh_config, server_with_protocol, tcp_access_manifest,
};
use leno_tests::{
    MariaDb, Postgres, SelfSigned, TestMesh, eventually, free_port, get_page, python_program,
    script_path,
};

use super::{DEFAULT_POLICIES, bounded_command};

/// A database behind one sidecar, with an outbound listener at another sidecar.
struct DatabaseMesh {
    mesh: TestMesh,
    listener: String,
}

fn start_pair(default_policy: &str, port: u16, command: &[&str]) -> DatabaseMesh {
    let listener = free_port();
    let manifests = [
        mesh_config(default_policy),
        server_with_protocol("database", port, "", command),
        client_manifest("user", &[], &[("database.shop", listener)]),
    ];
    DatabaseMesh { mesh: TestMesh::up(&manifests.concat()), listener: listener.to_string() }
}

impl DatabaseMesh {
    fn client_command(&self, program: &str, arguments: &[&str]) -> Command {
        let mail_script = script_path("smtp_client.py");
        let address = match program {
            _ if program.starts_with("mariadb") => {
                ["--no-defaults", "--protocol=tcp", "-uroot", "-h127.0.0.1", "-P", &self.listener]
            }
            _ if program == python_program() => [&mail_script[..], &self.listener, "", "", "", ""],
            _ => ["-h", "127.0.0.1", "-p", &self.listener, "", ""],
        };
        let mut command = bounded_command(program);
        command.args(address.iter().filter(|argument| !argument.is_empty())).args(arguments);
        command
    }

    /// Runs a client to completion and returns its output.
    fn run_client(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.client_command(program, arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// True if a client succeeds.
    fn is_successful(&self, program: &str, arguments: &[&str]) -> bool {
        self.client_command(program, arguments).output().unwrap().status.success()
    }

    /// Runs `work` while the database is reachable, by a policy with `defaultPolicy: deny`; without the policy,
    /// the connection is rejected. `probe` is a client that succeeds if it gets a response.
    fn run_while_reachable(
        &self,
        default_policy: &str,
        program: &str,
        probe: &[&str],
        work: impl FnOnce(),
    ) {
        if default_policy == "deny" {
            self.mesh.write("policy.yaml", &tcp_access_manifest("user", "database"));
        }
        let condition = format!("{program} gets a response");
        eventually(&condition, MAX_WAIT, || self.is_successful(program, probe).then_some(()));
        work();
        if default_policy == "deny" {
            self.mesh.remove("policy.yaml");
            let condition = format!("{program} gets no response");
            eventually(&condition, MAX_WAIT, || {
                (!self.is_successful(program, probe)).then_some(())
            });
        }
    }
}

#[test]
fn redis_and_its_benchmark() {
    for default_policy in DEFAULT_POLICIES {
        let port = free_port();
        let port_text = port.to_string();
        let server_options =
            ["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"];
        let pair =
            start_pair(default_policy, port, &[&["redis-server"][..], &server_options].concat());
        pair.run_while_reachable(default_policy, "redis-cli", &["PING"], || {
            let output = pair.run_client("redis-benchmark", &["-n", "5000", "-q"]);
            // Progress output overwrites the same line.
            let final_text = |line: &str| line.rsplit('\r').next().unwrap_or_default().to_owned();
            let rates: Vec<_> =
                output.lines().map(final_text).filter(|line| line.contains("second")).collect();
            eprintln!("{default_policy}: {rates:#?}");
            assert_eq!(rates.len(), 20, "all benchmark tests ran: {output}");
            for options in [["-P", "16", "-n", "5000"], ["-d", "100000", "-n", "500"]] {
                pair.run_client(
                    "redis-benchmark",
                    &[&options[..], &["-q", "-t", "set,get"]].concat(),
                );
            }
        });
        assert_not_http(&pair);
    }
}

#[test]
fn postgres_and_its_benchmark_with_and_without_their_own_tls() {
    for default_policy in DEFAULT_POLICIES {
        let postgres = Postgres::prepare();
        let server_command = postgres.command();
        let server_command: Vec<&str> = server_command.iter().map(String::as_str).collect();
        let pair = start_pair(default_policy, postgres.port, &server_command);
        pair.run_while_reachable(
            default_policy,
            "pg_isready",
            &["-U", "tester", "-d", "postgres"][..],
            || {
                for tls in ["disable", "require"] {
                    run_pgbench(&pair, tls);
                }
            },
        );
        assert_not_http(&pair);
    }
}

#[test]
fn mariadb_as_a_server_first_protocol_and_its_benchmark() {
    for default_policy in DEFAULT_POLICIES {
        let mariadb = MariaDb::prepare();
        let server_command = mariadb.command();
        let server_command: Vec<&str> = server_command.iter().map(String::as_str).collect();
        let pair = start_pair(default_policy, mariadb.port, &server_command);
        pair.run_while_reachable(default_policy, "mariadb-admin", &["ping"], || {
            let started = Instant::now();
            assert_eq!(pair.run_client("mariadb", &["-Ne", "SELECT 6 * 7"]), "42\n");
            eprintln!(
                "{default_policy}: a query took {:?}, including the initial silence",
                started.elapsed()
            );
            let load_options =
                ["--auto-generate-sql", "--concurrency=8", "--number-of-queries=800"];
            let output = pair.run_client("mariadb-slap", &load_options);
            assert!(output.contains("Average number of queries per client: 100"), "{output}");
            let rate = output.lines().find(|line| line.contains("Average number of seconds"));
            eprintln!("{default_policy}: {}", rate.unwrap_or_default().trim());
        });
        assert_not_http(&pair);
    }
}

#[test]
fn a_server_first_mail_server_with_and_without_starttls() {
    for default_policy in DEFAULT_POLICIES {
        let directory = tempfile::tempdir().unwrap();
        let certificate_files = SelfSigned::generate_files(directory.path(), "localhost");
        let [key, certificate] = [certificate_files.key, certificate_files.certificate]
            .map(|file| file.display().to_string());
        let mailbox = directory.path().join("letters");
        let (port, mail_file) = (free_port(), directory.path().join("text"));
        std::fs::write(&mail_file, "A line of a letter.\n.\nAnd after a dot.\n".repeat(5000))
            .unwrap();
        let listen = format!("127.0.0.1:{port}");
        let server_command =
            ["-m", "aiosmtpd", "-n", "-l", &listen, "--tlskey", &key, "--tlscert", &certificate];
        let mailbox_options =
            ["--no-requiretls", "-c", "aiosmtpd.handlers.Mailbox", mailbox.to_str().unwrap()];
        let pair = start_pair(
            default_policy,
            port,
            &[&[python_program()][..], &server_command, &mailbox_options].concat(),
        );
        pair.run_while_reachable(default_policy, python_program(), &["hello"], || {
            let mut send_command = pair.client_command(python_program(), &["send", &certificate]);
            let send_output =
                send_command.stdin(std::fs::File::open(&mail_file).unwrap()).output().unwrap();
            assert!(
                send_output.status.success(),
                "{}",
                String::from_utf8_lossy(&send_output.stderr)
            );
            let letters_received: Vec<_> =
                std::fs::read_dir(mailbox.join("new")).unwrap().collect();
            assert_eq!(letters_received.len(), 20);
            let is_complete = |letter: &str| letter.matches("And after a dot.\n").count() == 5000;
            for letter in letters_received {
                let letter = std::fs::read_to_string(letter.unwrap().path()).unwrap();
                assert!(
                    is_complete(&letter.replace("\r\n", "\n")),
                    "a letter of {} bytes",
                    letter.len()
                );
            }
        });
        assert_not_http(&pair);
    }
}

/// Runs pgbench, including its initialization; `tls` is PostgreSQL's `sslmode`.
fn run_pgbench(pair: &DatabaseMesh, tls: &str) {
    let database = format!("dbname=postgres user=tester sslmode={tls}");
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let is_encrypted = pair.run_client("psql", &["-At", "-c", query, &database]);
    assert_eq!(is_encrypted.trim(), if tls == "require" { "t" } else { "f" });
    pair.run_client("pgbench", &["-i", "-q", &database]);
    let output = pair.run_client("pgbench", &["-c", "8", "-j", "2", "-t", "100", &database]);
    let rate = output.lines().find(|line| line.starts_with("tps"));
    eprintln!("sslmode={tls}: {}", rate.unwrap_or_default());
    assert!(output.contains("actually processed: 800/800"), "{output}");
    assert!(output.contains("failed transactions: 0 "), "{output}");
}

/// Asserts that no connection was classified as HTTP.
fn assert_not_http(pair: &DatabaseMesh) {
    let user = pair.mesh.sidecar("shop/user-1");
    let metrics = get_page(user.admin, "/metrics").unwrap();
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let mut request_lines = metrics.lines().filter(|line| line.starts_with("leno_requests_total{"));
    assert!(request_lines.all(|line| line.contains("protocol=\"tcp\"")), "{metrics}");
    let tcp_series =
        "leno_requests_total{direction=\"outbound\",destination_service=\"shop/database\"";
    assert!(user.sum_metrics(tcp_series) > 10.0, "{metrics}");
}

/// The timeout of conditions: databases start in a second or two.
const MAX_WAIT: Duration = Duration::from_secs(20);
