//! Measurements of a flood of messages against another process: its CPU time, and the latency of other queries.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;

/// A control plane in its own process, killed on drop.
struct ControlProcess {
    child: Child,
    directory: TempDir,
    bundle: JoinBundle,
}

impl ControlProcess {
    async fn start(program: Option<String>, yaml: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_objects(directory.path(), yaml);
        let mut command = match program {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(["control", "--listen", "127.0.0.1:0", "--page", "off", "-f"]);
                command.arg(directory.path().join("mesh.yaml"));
                command.arg("--data").arg(directory.path().join("data"));
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["flood::figures::a_control_plane_alone", "--exact", "--ignored"]);
                command.env(DIRECTORY, directory.path());
                command
            }
        };
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let socket = directory.path().join("data/control.sock");
        let bundle = loop {
            match admin::query_admin(&socket, "POST", "/token?workload=shop/client-1").await {
                Ok((200, text)) => break JoinBundle::parse(&text).unwrap(),
                _ => tokio::task::yield_now().await,
            }
        };
        Self { child, directory, bundle }
    }

    async fn join_identity(&self, name: &str) -> Identity {
        let socket = self.directory.path().join("data/control.sock");
        let path = format!("/token?workload=shop/{name}");
        let (_, text) = admin::query_admin(&socket, "POST", &path).await.unwrap();
        let bundle = JoinBundle::parse(&text).unwrap();
        join_with(&bundle, bundle.control_addresses[0], &workload_name(name)).await.unwrap()
    }

    /// Returns the process's CPU time so far.
    fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = [11, 12].map(|index| fields[index].parse::<u64>().unwrap()).iter().sum();
        Duration::from_millis(ticks * 10)
    }

    /// Returns the number of configurations compiled so far.
    async fn compiled_count(&self) -> u64 {
        const NAME: &str = "leno_control_snapshots_compiled_total ";
        let socket = self.directory.path().join("data/control.sock");
        loop {
            let Ok((200, page)) = admin::query_admin(&socket, "GET", "/metrics").await else {
                continue;
            };
            return page.lines().find_map(|line| line.strip_prefix(NAME)?.parse().ok()).unwrap();
        }
    }

    /// Returns the latency of an operator's query for all services: the median of `query_count` queries, and the
    /// maximum.
    async fn query_latency(&self, query_count: usize) -> (Duration, Duration) {
        let socket = self.directory.path().join("data/control.sock");
        let mut durations = Vec::new();
        for _ in 0..query_count {
            let start = Instant::now();
            // A timed-out query counts with its timeout.
            drop(admin::query_admin(&socket, "GET", "/services").await);
            durations.push(start.elapsed());
        }
        durations.sort();
        (durations[query_count / 2], durations[query_count - 1])
    }
}

impl Drop for ControlProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs the control plane of this build, until it is killed.
#[test]
#[ignore = "the measurement starts it"]
#[expect(clippy::disallowed_methods, reason = "the measurement says where its files are")]
fn a_control_plane_alone() {
    let directory = std::env::var(DIRECTORY).expect("the measurement starts this");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let _control = Control::start(test_config(Path::new(&directory))).await.unwrap();
        std::future::pending::<()>().await
    });
}

/// `cargo test -p leno-control --test scenario figures_of -- --ignored --nocapture`; with the path of another
/// program in `LENO` it is measured instead.
#[test]
#[ignore = "it measures for half a minute"]
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a person runs it, says what to measure, and reads the figures"
)]
fn figures_of_a_flood_of_pairs() {
    const SERVICES: usize = 3000;
    const FLOOD_TIME: Duration = Duration::from_secs(20);
    let program = std::env::var("LENO").ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let program = ControlProcess::start(program, &large_mesh(SERVICES)).await;
        let identity = program.join_identity("client-1").await;
        let services: Vec<ServiceName> = (0..SERVICES).map(numbered_service).collect();
        let (address, trust_domain) =
            (program.bundle.control_addresses[0], &program.bundle.trust_domain);
        let start = Instant::now();
        let mut proxy = Proxy::connect_to(address, trust_domain, &identity, &services).await;
        proxy.wait_for_update(|update| update.snapshot.services.len() == SERVICES).await;
        println!("3000 services in a Hello: {:?}", start.elapsed());
        println!("calm: median and longest of `/services` {:?}", program.query_latency(20).await);
        let compiled = program.compiled_count().await;
        let (cpu_before, start, mut sent_messages) = (program.cpu_time(), Instant::now(), 0_u64);
        let send_flood = async {
            while start.elapsed() < FLOOD_TIME {
                proxy.send_request(ProxyRequest::Subscribe(vec![stock_service()])).await;
                proxy.send_request(ProxyRequest::Unsubscribe(vec![stock_service()])).await;
                sent_messages += 2;
            }
        };
        let measure_latency = async {
            // In the middle of the flood.
            tokio::time::sleep(FLOOD_TIME / 4).await;
            program.query_latency(5).await
        };
        let ((), latency) = tokio::join!(send_flood, measure_latency);
        let duration = start.elapsed();
        println!("flooded: median and longest of `/services` {latency:?}");
        let compiled = program.compiled_count().await - compiled;
        let cpu = program.cpu_time() - cpu_before;
        println!(
            "{sent_messages} messages in {duration:?}, {compiled} configurations compiled, CPU {cpu:?}"
        );
    }));
}

/// The variable with the directory of the measured control plane.
const DIRECTORY: &str = "LENO_FIGURES_DIRECTORY";
