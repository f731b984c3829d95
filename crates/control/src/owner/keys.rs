//! JWKS endpoints in use, and the results of their fetches.

use std::sync::Arc;

use super::{Now, Owner};
use crate::keys::{Fetched, KeyUpdate};
use crate::publish::Cause;

impl Owner {
    /// Publishes the JWKS endpoints in use.
    pub(super) fn want_keys(&self) {
        let mesh = &self.mesh;
        self.sent.keys.send_if_modified(|wanted| {
            let differs = !wanted.iter().eq(mesh.key_sources());
            if differs {
                *wanted = Arc::new(mesh.key_sources().cloned().collect());
            }
            differs
        });
    }

    pub(super) fn keys_read(&mut self, update: KeyUpdate, now: Now) {
        self.keys.record_result(&update);
        let KeyUpdate { source, fetched } = update;
        let set = match fetched {
            Fetched::Changed(set) => Some(set),
            // The endpoint is in use again: its keys stay valid until the next fetch.
            Fetched::Dropped if self.mesh.key_sources().any(|wanted| *wanted == source) => return,
            Fetched::Dropped => None,
            Fetched::Same | Fetched::Failed(_) => return,
        };
        let affected_set = self.mesh.set_keys(&source, set);
        if !affected_set.is_empty() {
            self.connected.record_change(
                &affected_set,
                &self.mesh,
                Cause::Keys(source),
                now.clock,
                now.clock,
            );
        }
    }
}
