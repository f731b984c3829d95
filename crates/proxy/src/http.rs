//! Implements the request pipeline (routing, policies, attempts, responses), and HTTP/1.1 on sockets and on
//! links. A link is a connection between two sidecars that carries many streams. Requests over HTTP/2 pass the same
//! pipeline.

pub(crate) mod body;
pub(crate) mod buffered_body;
pub(crate) mod date;
pub(crate) mod error_response;
pub(crate) mod exchange;
pub(crate) mod forward;
pub(crate) mod gateway_request;
pub(crate) mod generated_response;
pub(crate) mod grpc;
pub(crate) mod message;
pub(crate) mod mirror;
pub(crate) mod object_pool;
pub(crate) mod outside;
pub(crate) mod proxy_headers;
pub(crate) mod replay;
pub(crate) mod request;
pub(crate) mod respond;
pub(crate) mod retry;
pub(crate) mod route;
mod scheme;
pub(crate) mod server;
pub(crate) mod trailers;
