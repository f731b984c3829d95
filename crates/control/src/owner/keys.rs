//! JWKS endpoints in use, and the results of their fetches.

use std::sync::Arc;

use super::{Now, Owner};
use crate::keys::{KeyUpdate, Reading};
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
        let KeyUpdate { source, reading } = update;
        let set = match reading {
            Reading::Changed(set) => Some(set),
            // The endpoint is in use again: its keys stay valid until the next fetch.
            Reading::Dropped if self.mesh.key_sources().any(|wanted| *wanted == source) => return,
            Reading::Dropped => None,
            Reading::Same | Reading::Failed(_) => return,
        };
        let touched = self.mesh.set_keys(&source, set);
        if !touched.is_empty() {
            let cause = (Cause::Keys(source), now.clock);
            self.connected.record_change(&touched, &self.mesh, cause, now.clock);
        }
    }
}
