//! Sidecars, applications and clients in one thread, over real sockets and real TLS.

mod bodies;
mod connect;
mod cost;
mod doors;
mod drain;
pub(crate) mod fixture;
mod foreign;
mod forwarding;
mod grpc;
mod hostile;
mod http;
mod http2;
mod identity;
mod instructions;
mod limits;
mod memory;
mod policy;
mod removal;
mod renewal;
mod retry;
mod routes;
mod stalls;
mod strictness;
mod tcp;
mod telemetry;
mod upgrade;
