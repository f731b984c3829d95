//! HTTP/1.1 on sockets and on links, by the same code.

pub(crate) mod again;
pub(crate) mod ahead;
pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod claims;
pub(crate) mod date;
pub(crate) mod edge;
pub(crate) mod exchange;
pub(crate) mod forward;
pub(crate) mod grpc;
pub(crate) mod message;
pub(crate) mod mirror;
pub(crate) mod outside;
pub(crate) mod replay;
pub(crate) mod request;
pub(crate) mod rescue;
pub(crate) mod respond;
pub(crate) mod route;
mod scheme;
pub(crate) mod server;
pub(crate) mod spare;
pub(crate) mod trailers;
