//! Speaking HTTP/2 to the application: few connections, shared by the requests of one thread.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use leno_model::Reason;
use leno_telemetry::Count;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::transport::Transport;
use crate::upstream::connect;
use crate::worker::Worker;

/// The connections of one thread to one application.
#[derive(Default)]
pub(crate) struct Http2Pool {
    open: RefCell<Vec<SendRequest<Bytes>>>,
    /// One connection is opened at a time; who waits for it may use it.
    opening: Mutex<()>,
}

impl Http2Pool {
    /// A connection on which a stream may be opened now.
    pub(crate) async fn lease(
        &self,
        address: SocketAddr,
        worker: &Rc<Worker>,
    ) -> Result<SendRequest<Bytes>, Reason> {
        if let Some(ready) = self.ready() {
            worker.shard.add(Count::LeaseReused, 1);
            return Ok(ready);
        }
        let _opening = self.opening.lock().await;
        if let Some(ready) = self.ready() {
            return Ok(ready);
        }
        let full = self.open.borrow().first().filter(|_| self.is_full()).cloned();
        if let Some(mut waiting) = full {
            let patience = worker.config.limits.connect_timeout;
            let room = timeout(patience, poll_fn(|cx| waiting.poll_ready(cx))).await;
            return match room {
                Ok(Ok(())) => Ok(waiting),
                Ok(Err(_)) | Err(_) => Err(Reason::UpstreamRefused),
            };
        }
        worker.shard.add(Count::LeaseOpened, 1);
        let opened = open(address, worker).await?;
        self.open.borrow_mut().push(opened.clone());
        Ok(opened)
    }

    fn is_full(&self) -> bool {
        self.open.borrow().len() >= CONNECTIONS_MAX
    }

    /// The first connection with room; those that are over are forgotten.
    fn ready(&self) -> Option<SendRequest<Bytes>> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut open = self.open.borrow_mut();
        let mut found = None;
        open.retain(|connection| {
            if found.is_some() {
                return true;
            }
            let mut connection = connection.clone();
            match connection.poll_ready(&mut cx) {
                Poll::Ready(Ok(())) => {
                    found = Some(connection);
                    true
                }
                Poll::Ready(Err(_)) => false,
                Poll::Pending => true,
            }
        });
        found
    }
}

async fn open(address: SocketAddr, worker: &Rc<Worker>) -> Result<SendRequest<Bytes>, Reason> {
    let connected = connect::application(address, worker).await?;
    let transport = Transport::new(connected.reader.io.clone(), BytesMut::new());
    let shaken = builder().handshake(transport);
    let patience = worker.config.limits.connect_timeout;
    let (send, connection) = timeout(patience, shaken)
        .await
        .map_err(|_| Reason::ConnectTimeout)?
        .map_err(|_| Reason::ConnectFailed)?;
    tokio::task::spawn_local(async move {
        // Keeps the connection's place and count while it lives.
        let _connected = connected;
        if let Err(error) = connection.await {
            tracing::debug!(%address, %error, "an HTTP/2 connection to the application broke");
        }
    });
    Ok(send)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX);
    builder
}

/// Connections of one thread to one application; each has as many streams as it allows.
const CONNECTIONS_MAX: usize = 8;
/// What an application may send ahead on one stream.
const WINDOW_BYTES: u32 = 64 * 1024;
/// What it may send ahead on all streams of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// As much as a head of HTTP/1.1 may have.
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;
/// What may wait for it on one stream.
const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
