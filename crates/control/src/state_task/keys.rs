//! Publishes the JWKS endpoints in use to the task that fetches them, and applies the fetched keys to the mesh.

use std::sync::Arc;

use super::{ControlState, EventTime};
use crate::keys::{FetchOutcome, KeyUpdate};
use crate::publish::ChangeCause;

impl ControlState {
    /// Publishes the JWKS endpoints in use.
    pub(super) fn publish_key_sources(&self) {
        let mesh = &self.mesh;
        self.outputs.key_sources.send_if_modified(|used_sources| {
            let differs = !used_sources.iter().eq(mesh.key_sources());
            if differs {
                *used_sources = Arc::new(mesh.key_sources().cloned().collect());
            }
            differs
        });
    }

    /// Applies the result of a fetch, and pushes changed keys to the affected proxies.
    pub(super) fn apply_key_update(&mut self, update: KeyUpdate, now: EventTime) {
        self.jwks_fetches.record_result(&update);
        let KeyUpdate { source, outcome } = update;
        let jwks = match outcome {
            FetchOutcome::Changed(jwks) => Some(jwks),
            // A policy uses the endpoint again since the fetching task dropped it: its keys stay until the next fetch.
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
            self.connected_proxies.record_change(
                &affected_set,
                &self.mesh,
                ChangeCause::KeysChanged(source),
                now.clock,
                now.clock,
            );
        }
    }
}
