//! Tests of both ends of queries over a stream in memory: limits of time, bytes and number.

use tokio::io::{DuplexStream, duplex};
use tokio::time::{Instant, sleep};

use super::*;
use crate::budget::Budget;
use crate::client::{UpdateHandler, follow_control_plane};
use crate::event::Event;
use crate::fixture::gateway_hello;
use crate::message::{ConfigUpdate, Hello, ResourceRejection};
use crate::queue::event_queue;
use crate::server::{OperatorSessions, serve_proxy};
use crate::subscriber::Subscriber;

const CONNECTION: ConnectionId = ConnectionId(7);

/// A proxy that passes its queries to the test.
struct QueryForwarder(mpsc::Sender<Query>);

impl UpdateHandler for QueryForwarder {
    fn apply_update(&mut self, _: ConfigUpdate) -> Result<(), Vec<ResourceRejection>> {
        Ok(())
    }

    fn handle_query(&mut self, query: Query) {
        self.0.try_send(query).unwrap();
    }
}

/// A control plane and a connected proxy.
struct Exchange {
    queries: Arc<Queries>,
    received_queries: mpsc::Receiver<Query>,
    budget: Arc<Budget>,
    /// Ends the stream.
    disconnect: oneshot::Sender<()>,
}

impl Exchange {
    async fn send_query(&self, path: &str) -> Result<QueryResponse, QueryError> {
        self.queries.send_query(CONNECTION, path.to_owned()).await
    }

    /// Responds to the next query at the proxy with this body, and returns its path.
    async fn respond_next(&mut self, body: &[u8]) -> String {
        let query = self.received_queries.recv().await.unwrap();
        query.reply.send(QueryResponse { status: 200, body: body.to_vec() }).unwrap();
        query.path
    }
}

async fn run_control_plane(
    server_end: DuplexStream,
    budget: Arc<Budget>,
    operators: OperatorSessions,
) {
    let (queue, mut events) = event_queue(16);
    let result = serve_proxy(server_end, CONNECTION, queue.create_sender(budget), None, operators);
    let state_task = async {
        let mut response_senders = Vec::new();
        while let Some(queued) = events.recv().await {
            if let Event::Connected(connected) = queued.event {
                response_senders.push(connected.responses);
            }
        }
    };
    tokio::select! {
        result = result => result.unwrap_or_else(|error| assert!(!error.to_string().is_empty())),
        () = state_task => {}
    }
}

/// Runs a test against both ends of a stream.
async fn run_with_stream(answers_queries: bool, test: impl AsyncFnOnce(Exchange)) {
    let (server_end, proxy_end) = duplex(64 << 10);
    let (operators, budget) =
        (OperatorSessions::new(u64::MAX), Arc::new(Budget::new(Instant::now())));
    let (sender, received_queries) = mpsc::channel(4);
    let (disconnect, disconnect_receiver) = oneshot::channel();
    let queries = Arc::clone(&operators.queries);
    let test = async {
        // The proxy has sent its Hello.
        while queries.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let budget = Arc::clone(&budget);
        test(Exchange { queries: Arc::clone(&queries), received_queries, budget, disconnect })
            .await;
    };
    let proxy = async {
        let (_requests, mut requests) = mpsc::channel(1);
        let (mut subscriber, mut forwarder) = (Subscriber::new(), QueryForwarder(sender));
        let hello = Hello { answers_queries, ..gateway_hello() };
        let client =
            follow_control_plane(proxy_end, hello, &mut subscriber, &mut requests, &mut forwarder);
        tokio::select! {
            error = client => panic!("{error}"),
            _ = disconnect_receiver => {}
        }
    };
    let control = run_control_plane(server_end, Arc::clone(&budget), operators);
    // The test continues after both ends of the stream ended.
    let stream = async {
        tokio::join!(proxy, control);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = test => {}
        () = stream => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_response_arrives_whole_and_is_not_charged_to_the_proxy() {
    run_with_stream(true, async |mut exchange: Exchange| {
        let body: Vec<u8> = (0..1_000_001_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let now = Instant::now();
        // Nearly the whole reading budget is spent.
        exchange.budget.charge_reading(999_000, now);
        let queries = Arc::clone(&exchange.queries);
        let query = queries.send_query(CONNECTION, "/config".to_owned());
        let (response, path) = tokio::join!(query, exchange.respond_next(&body));
        assert_eq!(path, "/config");
        assert_eq!(response, Ok(QueryResponse { status: 200, body }));
        assert_eq!(exchange.budget.next_read_at(now), None);
        let (empty_response, _) =
            tokio::join!(queries.send_query(CONNECTION, "/".into()), exchange.respond_next(b""));
        assert_eq!(empty_response, Ok(QueryResponse { status: 200, body: Vec::new() }));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_late_response_is_dropped_and_the_next_query_gets_its_own() {
    run_with_stream(true, async |mut exchange: Exchange| {
        let start = Instant::now();
        assert_eq!(exchange.send_query("/first").await, Err(QueryError::Timeout));
        assert_eq!(start.elapsed(), QUERY_DEADLINE);
        assert_eq!(exchange.respond_next(b"late").await, "/first");
        // The late response is sent before the next query.
        sleep(Duration::from_millis(1)).await;
        let queries = Arc::clone(&exchange.queries);
        let query = queries.send_query(CONNECTION, "/second".to_owned());
        let (second_response, path) = tokio::join!(query, exchange.respond_next(b"second"));
        assert_eq!((second_response.unwrap().body, path.as_str()), (b"second".to_vec(), "/second"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_oversized_response_is_an_error_and_the_stream_stays_open() {
    run_with_stream(true, async |mut exchange: Exchange| {
        let queries = Arc::clone(&exchange.queries);
        let query = |path: &str| queries.send_query(CONNECTION, path.to_owned());
        let oversized = vec![0; MAX_RESPONSE_BYTES + 1];
        let (response, _) = tokio::join!(query("/config"), exchange.respond_next(&oversized));
        assert_eq!(response, Err(QueryError::Oversized));
        assert_eq!(query(&"/".repeat(MAX_PATH_BYTES + 1)).await, Err(QueryError::PathTooLong));
        let (response, _) = tokio::join!(query("/ready"), exchange.respond_next(b"ready"));
        assert_eq!(response.unwrap().body, b"ready");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_query_fails_at_once_when_its_proxy_disconnects() {
    run_with_stream(true, async |mut exchange: Exchange| {
        let start = Instant::now();
        let queries = Arc::clone(&exchange.queries);
        let query = queries.send_query(CONNECTION, "/config".to_owned());
        let disconnect = async {
            let query = exchange.received_queries.recv().await.unwrap();
            exchange.disconnect.send(()).unwrap();
            query
        };
        let (response, _query) = tokio::join!(query, disconnect);
        assert_eq!((response, start.elapsed()), (Err(QueryError::Disconnected), Duration::ZERO));
        let later_response = queries.send_query(CONNECTION, "/config".to_owned()).await;
        assert_eq!(later_response, Err(QueryError::Disconnected), "its stream is removed");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_proxy_has_one_query_at_a_time_and_each_operator_gets_their_own_response() {
    run_with_stream(true, async |mut exchange: Exchange| {
        let queries = Arc::clone(&exchange.queries);
        let query = |path: &str| queries.send_query(CONNECTION, path.to_owned());
        let proxy = async {
            let first_query = exchange.received_queries.recv().await.unwrap();
            sleep(Duration::from_secs(1)).await;
            assert!(exchange.received_queries.try_recv().is_err(), "the second query waits");
            let body = first_query.path.clone().into_bytes();
            first_query.reply.send(QueryResponse { status: 200, body }).unwrap();
            let second_query = exchange.received_queries.recv().await.unwrap();
            let body = second_query.path.clone().into_bytes();
            second_query.reply.send(QueryResponse { status: 503, body }).unwrap();
        };
        let (first_response, second_response, ()) =
            tokio::join!(query("/one"), query("/two"), proxy);
        assert_eq!(first_response, Ok(QueryResponse { status: 200, body: b"/one".to_vec() }));
        assert_eq!(second_response, Ok(QueryResponse { status: 503, body: b"/two".to_vec() }));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_leaves_does_not_block_the_next_one() {
    run_with_stream(true, async |mut exchange: Exchange| {
        let queries = Arc::clone(&exchange.queries);
        let query = |path: &str| queries.send_query(CONNECTION, path.to_owned());
        let first_response = timeout(Duration::from_secs(1), query("/first")).await;
        assert!(first_response.is_err(), "the operator still waits");
        // Dropping a query at the proxy is a response as well.
        drop(exchange.received_queries.recv().await.unwrap());
        let (second_response, _) = tokio::join!(query("/second"), exchange.respond_next(b"second"));
        assert_eq!(second_response.unwrap().body, b"second");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_queries_of_a_control_plane_are_bounded() {
    run_with_stream(true, async |exchange: Exchange| {
        let queries = Arc::clone(&exchange.queries);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..=MAX_QUERIES {
            let queries = Arc::clone(&queries);
            tasks.spawn(async move { queries.send_query(CONNECTION, "/config".to_owned()).await });
        }
        let start = Instant::now();
        let first_response = tasks.join_next().await.unwrap().unwrap();
        // One query does not get a permit in time.
        assert_eq!((first_response, start.elapsed()), (Err(QueryError::Busy), PERMIT_TIMEOUT));
        let mut timeout_count = 0;
        while let Some(response) = tasks.join_next().await {
            timeout_count += usize::from(response.unwrap() == Err(QueryError::Timeout));
        }
        assert_eq!(timeout_count, 1, "the proxy has received one query");
        assert!(start.elapsed() <= PERMIT_TIMEOUT + QUERY_DEADLINE + STREAM_TIMEOUT);
        drop(exchange);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_query_support_is_sent_no_query() {
    run_with_stream(false, async |mut exchange: Exchange| {
        let start = Instant::now();
        assert_eq!(exchange.send_query("/config").await, Err(QueryError::Unsupported));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(exchange.received_queries.try_recv().is_err());
    })
    .await;
}
