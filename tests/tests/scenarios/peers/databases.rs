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

use super::{MODES, bounded_command};

/// A database behind one sidecar, with an outbound listener at another.
struct DatabaseMesh {
    mesh: TestMesh,
    listener: String,
}

fn start_pair(mode: &str, port: u16, command: &[&str]) -> DatabaseMesh {
    let listener = free_port();
    let manifests = [
        mesh_config(mode),
        server_with_protocol("database", port, "", command),
        client_manifest("user", &[], &[("database.shop", listener)]),
    ];
    DatabaseMesh { mesh: TestMesh::up(&manifests.concat()), listener: listener.to_string() }
}

impl DatabaseMesh {
    fn client_command(&self, program: &str, arguments: &[&str]) -> Command {
        let mail = script_path("smtp_client.py");
        let address = match program {
            _ if program.starts_with("mariadb") => {
                ["--no-defaults", "--protocol=tcp", "-uroot", "-h127.0.0.1", "-P", &self.listener]
            }
            _ if program == python_program() => [&mail[..], &self.listener, "", "", "", ""],
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

    /// Runs `work` while the database is reachable, by a policy with `defaultPolicy: deny`; without it, the
    /// connection is rejected. `probe` is a client that succeeds if it gets a response.
    fn run_while_reachable(&self, mode: &str, program: &str, probe: &[&str], work: impl FnOnce()) {
        if mode == "deny" {
            self.mesh.write("policy.yaml", &tcp_access_manifest("user", "database"));
        }
        let condition = format!("{program} gets a response");
        eventually(&condition, MAX_WAIT, || self.is_successful(program, probe).then_some(()));
        work();
        if mode == "deny" {
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
    for mode in MODES {
        let port = free_port();
        let number = port.to_string();
        let server_options =
            ["--bind", "127.0.0.1", "--port", &number, "--save", "", "--appendonly", "no"];
        let pair = start_pair(mode, port, &[&["redis-server"][..], &server_options].concat());
        pair.run_while_reachable(mode, "redis-cli", &["PING"], || {
            let output = pair.run_client("redis-benchmark", &["-n", "5000", "-q"]);
            // Progress output overwrites the same line.
            let last = |line: &str| line.rsplit('\r').next().unwrap_or_default().to_owned();
            let rates: Vec<_> = output.lines().map(last).filter(|l| l.contains("second")).collect();
            eprintln!("{mode}: {rates:#?}");
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
    for mode in MODES {
        let postgres = Postgres::prepare();
        let run = postgres.command();
        let run: Vec<&str> = run.iter().map(String::as_str).collect();
        let pair = start_pair(mode, postgres.port, &run);
        pair.run_while_reachable(
            mode,
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
    for mode in MODES {
        let maria = MariaDb::prepare();
        let run = maria.command();
        let run: Vec<&str> = run.iter().map(String::as_str).collect();
        let pair = start_pair(mode, maria.port, &run);
        pair.run_while_reachable(mode, "mariadb-admin", &["ping"], || {
            let started = Instant::now();
            assert_eq!(pair.run_client("mariadb", &["-Ne", "SELECT 6 * 7"]), "42\n");
            eprintln!(
                "{mode}: a query took {:?}, including the initial silence",
                started.elapsed()
            );
            let load = ["--auto-generate-sql", "--concurrency=8", "--number-of-queries=800"];
            let output = pair.run_client("mariadb-slap", &load);
            assert!(output.contains("Average number of queries per client: 100"), "{output}");
            let rate = output.lines().find(|line| line.contains("Average number of seconds"));
            eprintln!("{mode}: {}", rate.unwrap_or_default().trim());
        });
        assert_not_http(&pair);
    }
}

#[test]
fn a_server_first_mail_server_with_and_without_starttls() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let certificate_files = SelfSigned::generate_files(folder.path(), "localhost");
        let [key, certificate] = [certificate_files.key, certificate_files.certificate]
            .map(|file| file.display().to_string());
        let letters = folder.path().join("letters");
        let (port, text) = (free_port(), folder.path().join("text"));
        std::fs::write(&text, "A line of a letter.\n.\nAnd after a dot.\n".repeat(5000)).unwrap();
        let listen = format!("127.0.0.1:{port}");
        let run =
            ["-m", "aiosmtpd", "-n", "-l", &listen, "--tlskey", &key, "--tlscert", &certificate];
        let mailbox_options =
            ["--no-requiretls", "-c", "aiosmtpd.handlers.Mailbox", letters.to_str().unwrap()];
        let pair =
            start_pair(mode, port, &[&[python_program()][..], &run, &mailbox_options].concat());
        pair.run_while_reachable(mode, python_program(), &["hello"], || {
            let mut send = pair.client_command(python_program(), &["send", &certificate]);
            let sent = send.stdin(std::fs::File::open(&text).unwrap()).output().unwrap();
            assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
            let letters_received: Vec<_> =
                std::fs::read_dir(letters.join("new")).unwrap().collect();
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
    let encrypted = pair.run_client("psql", &["-At", "-c", query, &database]);
    assert_eq!(encrypted.trim(), if tls == "require" { "t" } else { "f" });
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
    let page = get_page(user.admin, "/metrics").unwrap();
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let mut request_lines = page.lines().filter(|line| line.starts_with("leno_requests_total{"));
    assert!(request_lines.all(|line| line.contains("protocol=\"tcp\"")), "{page}");
    let tcp_series =
        "leno_requests_total{direction=\"outbound\",destination_service=\"shop/database\"";
    assert!(user.sum_metrics(tcp_series) > 10.0, "{page}");
}

/// The timeout of conditions: databases start in a second or two.
const MAX_WAIT: Duration = Duration::from_secs(20);
