//! The stage that buffers the beginning of a body for an authorization service.

use leno_model::{BodyExcerpt, LongBodyAction, Protocol, Reason};
use leno_telemetry::Count;
use leno_traffic::request_checks::CompiledAuthorization;
use leno_wire::http1::BodyLength;

use super::Exchange;
use crate::error::{Failure, downstream_reason};
use crate::http::buffered_body::{BufferTarget, BufferedExcerpt, BufferedPrefix, BufferingError};
use crate::http::route::ResolvedRoute;
use crate::max_wait::finished_within;
use crate::session::ListenerKind;

impl Exchange<'_, '_> {
    /// Returns the excerpt of the body for a service, after reading as far as necessary; `beginning` holds the
    /// data read so far. `None` without a body, and for an upgrade.
    pub(super) async fn read_ahead(
        &mut self,
        rule: &CompiledAuthorization,
        shown: BodyExcerpt,
        beginning: &mut Option<BufferedPrefix>,
        resolved_route: &ResolvedRoute,
    ) -> Result<Option<BufferedExcerpt>, Failure> {
        if self.body.is_empty() || self.request.upgrade {
            return Ok(None);
        }
        let most = usize::try_from(shown.bytes_max).unwrap_or(usize::MAX);
        let is_refused = shown.long_body == LongBodyAction::Reject;
        let too_large =
            || Err(Failure { policy: Some(rule.policy_decision()), ..Reason::BodyTooLarge.into() });
        if let BodyLength::Known(length) = self.request.head.body
            && is_refused
            && length > u64::from(shown.bytes_max)
        {
            return too_large();
        }
        if beginning.is_none() && self.request.head.expect_continue {
            // The client waits for 100 Continue, and the application has not received the request yet.
            self.responder.ask_for_body().await.map_err(|_| Reason::DownstreamClosed)?;
        }
        let (worker, client) = (&self.session.worker, self.session.peer.ip());
        let beginning = beginning.get_or_insert_with(|| {
            BufferedPrefix::new(worker.check_services.ahead.clone(), client)
        });
        let until = if is_refused { BufferTarget::Known(most) } else { BufferTarget::Filled(most) };
        let is_asked_early = !is_refused && self.is_call(resolved_route);
        let limit = match is_asked_early {
            true => rule.rule.check_service.timeout,
            false => worker.config.limits.body_stall_timeout,
        };
        let read = match finished_within(limit, beginning.read(self.body, until)).await {
            Some(read) => read,
            None if is_asked_early => Ok(()),
            // A slow client must not bypass the check: a shorter excerpt is not sufficient.
            None => return Err(Reason::BodyStalled.into()),
        };
        match read {
            Ok(()) if is_refused && beginning.len() > most => too_large(),
            Ok(()) => Ok(Some(beginning.excerpt(most))),
            Err(BufferingError::Broken(error)) => Err(downstream_reason(&error).into()),
            Err(BufferingError::OutOfMemory) => {
                // Many clients together must not bypass the check either.
                worker.shard.add(Count::AuthorizationFailed, 1);
                let policy = Some(rule.policy_decision());
                Err(Failure { policy, ..Reason::AuthorizationUnavailable.into() })
            }
        }
    }

    /// True for a gRPC call, which may pause until it gets a response. The content type alone is not
    /// sufficient: applications that do not use gRPC only may ignore it.
    fn is_call(&self, resolved_route: &ResolvedRoute) -> bool {
        let ListenerKind::Inbound { port } = &self.session.listener_kind else { return false };
        let mut ports = resolved_route.config.plans.snapshot.config.ports.iter();
        self.request.is_grpc() && ports.any(|it| it.port == *port && it.protocol == Protocol::Grpc)
    }
}
