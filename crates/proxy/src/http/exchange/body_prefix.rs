//! Buffers the beginning of a request's body for an authorization service.

use leno_model::{BodyExcerpt, LongBodyAction, Protocol, Reason};
use leno_telemetry::Count;
use leno_traffic::request_checks::CompiledAuthorization;
use leno_wire::http1::BodyLength;

use super::Exchange;
use crate::error::{Failure, downstream_reason};
use crate::http::buffered_body::{BufferTarget, BufferedExcerpt, BufferedPrefix, BufferingError};
use crate::http::route::ResolvedRoute;
use crate::max_wait::wait_within;
use crate::session::ListenerKind;

impl Exchange<'_, '_> {
    /// Returns the excerpt of the body for an authorization service, after reading as much of the body as
    /// necessary; `None` without a body, and for an upgrade. `prefix` holds the data read so far.
    pub(super) async fn buffer_excerpt(
        &mut self,
        authorization: &CompiledAuthorization,
        excerpt_rule: BodyExcerpt,
        prefix: &mut Option<BufferedPrefix>,
        resolved_route: &ResolvedRoute,
    ) -> Result<Option<BufferedExcerpt>, Failure> {
        if self.body.is_empty() || self.request.is_upgrade {
            return Ok(None);
        }
        let max_bytes = usize::try_from(excerpt_rule.max_bytes).unwrap_or(usize::MAX);
        let rejects_long_bodies = excerpt_rule.long_body == LongBodyAction::Reject;
        let reject_too_large = || {
            Err(Failure {
                policy: Some(authorization.policy_decision()),
                ..Reason::BodyTooLarge.into()
            })
        };
        if let BodyLength::ContentLength(length) = self.request.head.body
            && rejects_long_bodies
            && length > u64::from(excerpt_rule.max_bytes)
        {
            return reject_too_large();
        }
        if prefix.is_none() && self.request.head.expect_continue {
            // The client waits for 100 Continue, and the application has not received the request yet.
            self.responder.send_continue().await.map_err(|_| Reason::DownstreamClosed)?;
        }
        let (worker, client) = (&self.session.worker, self.session.peer.ip());
        let buffered_prefix = prefix.get_or_insert_with(|| {
            BufferedPrefix::new(worker.check_services.buffered_bodies.clone(), client)
        });
        let buffer_target = if rejects_long_bodies {
            BufferTarget::WholeBody(max_bytes)
        } else {
            BufferTarget::Prefix(max_bytes)
        };
        let may_check_early = !rejects_long_bodies && self.is_grpc_call(resolved_route);
        let time_limit = match may_check_early {
            true => authorization.rule.check_service.timeout,
            false => worker.config.limits.body_stall_timeout,
        };
        let read = buffered_prefix.read(self.body, buffer_target);
        let read_result = match wait_within(time_limit, read).await {
            Some(read_result) => read_result,
            None if may_check_early => Ok(()),
            // A slow client must not bypass the check: a shorter excerpt is not sufficient.
            None => return Err(Reason::BodyStalled.into()),
        };
        match read_result {
            Ok(()) if rejects_long_bodies && buffered_prefix.len() > max_bytes => {
                reject_too_large()
            }
            Ok(()) => Ok(Some(buffered_prefix.excerpt(max_bytes))),
            Err(BufferingError::Broken(error)) => Err(downstream_reason(&error).into()),
            Err(BufferingError::OutOfMemory) => {
                // Many clients together must not bypass the check either.
                worker.metrics.add(Count::AuthorizationFailed, 1);
                let policy = Some(authorization.policy_decision());
                Err(Failure { policy, ..Reason::AuthorizationUnavailable.into() })
            }
        }
    }

    /// True for a gRPC call, whose body may pause until a response arrives. The content type alone is not
    /// sufficient, because an application on a port that is not declared as gRPC may ignore it.
    fn is_grpc_call(&self, resolved_route: &ResolvedRoute) -> bool {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else { return false };
        let mut ports = resolved_route.config.compiled.snapshot.config.ports.iter();
        self.request.is_grpc()
            && ports.any(|port_config| {
                port_config.port == *port && port_config.protocol == Protocol::Grpc
            })
    }
}
