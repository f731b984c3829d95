//! JWKS endpoints in use, and the results of their fetches.

use std::sync::Arc;

use super::{EventTime, Owner};
use crate::keys::{FetchOutcome, KeyUpdate};
use crate::publish::ChangeCause;

impl Owner {
    /// Publishes the JWKS endpoints in use.
    pub(super) fn publish_key_sources(&self) {
        let mesh = &self.mesh;
        self.outputs.keys.send_if_modified(|active| {
            let differs = !active.iter().eq(mesh.key_sources());
            if differs {
                *active = Arc::new(mesh.key_sources().cloned().collect());
            }
            differs
        });
    }

    pub(super) fn apply_key_update(&mut self, update: KeyUpdate, now: EventTime) {
        self.keys.record_result(&update);
        let KeyUpdate { source, fetched } = update;
        let jwks = match fetched {
            FetchOutcome::Changed(jwks) => Some(jwks),
            // The endpoint is in use again: its keys stay valid until the next fetch.
            FetchOutcome::EndpointUnused
                if self.mesh.key_sources().any(|active| *active == source) =>
            {
                return;
            }
            FetchOutcome::EndpointUnused => None,
            FetchOutcome::Unchanged | FetchOutcome::Failed(_) => return,
        };
        let affected_set = self.mesh.set_keys(&source, jwks);
        if !affected_set.is_empty() {
            self.connected.record_change(
                &affected_set,
                &self.mesh,
                ChangeCause::KeysChanged(source),
                now.clock,
                now.clock,
            );
        }
    }
}
