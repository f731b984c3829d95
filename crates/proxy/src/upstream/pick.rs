//! Choosing an endpoint: the less loaded of two drawn at random, avoiding the unreachable.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use leno_model::{Endpoint, EndpointId, Reason};
use leno_traffic::balance::{self, Candidates};

use super::Upstream;
use crate::worker::Worker;

/// Chooses among `endpoints`, not `avoid` if there is another.
pub(crate) fn pick(
    worker: &Rc<Worker>,
    endpoints: &[Arc<Endpoint>],
    avoid: Option<&EndpointId>,
) -> Result<Rc<Upstream>, Reason> {
    let field = Field { worker, endpoints, avoid, now: Instant::now() };
    let index = balance::pick(&field, worker.draw()).ok_or(Reason::NoEndpoint)?;
    let endpoint = endpoints.get(index).ok_or(Reason::NoEndpoint)?;
    Ok(worker.upstream(endpoint))
}

struct Field<'a> {
    worker: &'a Rc<Worker>,
    endpoints: &'a [Arc<Endpoint>],
    avoid: Option<&'a EndpointId>,
    now: Instant,
}

impl Candidates for Field<'_> {
    fn len(&self) -> usize {
        self.endpoints.len()
    }

    fn load(&self, index: usize) -> u32 {
        self.endpoints.get(index).map_or(u32::MAX, |e| self.worker.upstream(e).load())
    }

    fn usable(&self, index: usize) -> bool {
        self.endpoints.get(index).is_some_and(|endpoint| {
            self.avoid != Some(&endpoint.id) && self.worker.upstream(endpoint).is_usable(self.now)
        })
    }
}
