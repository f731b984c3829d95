//! The standard health service of gRPC: its one question, and what its answer means
//! (`grpc.health.v1`, grpc/doc/health-checking.md).

use bytes::Bytes;
use prost::{DecodeError, Message};

/// The path of its method `Check`.
pub(crate) const METHOD: &str = "/grpc.health.v1.Health/Check";

/// The question for the health of a service; of the whole server when empty. Framed.
pub(crate) fn question(service: &str) -> Bytes {
    let question = Question { service: service.to_owned() };
    super::message::framed(&question.encode_to_vec())
}

/// Whether an answer, without its frame, says that the service serves.
pub(crate) fn serves(answer: Bytes) -> Result<bool, DecodeError> {
    Answer::decode(answer).map(|answer| answer.status == SERVING)
}

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The one status that is well.
const SERVING: i32 = 1;
