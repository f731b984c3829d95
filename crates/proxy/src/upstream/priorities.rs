//! Priorities: who may take a request, and who helps out while none of these is well.

use std::rc::Rc;
use std::sync::Arc;

use leno_model::EndpointId;
use leno_traffic::Endpoints;

use super::pick::kept;
use super::ward::Ward;
use crate::worker::Worker;

/// Endpointss of endpoints in order of preference.
#[derive(Clone)]
pub(crate) struct Priorities {
    first: Endpoints,
    /// Mostly there are none.
    others: Option<Arc<[Endpoints]>>,
}

impl Priorities {
    pub(crate) fn new(first: Endpoints, others: Option<Arc<[Endpoints]>>) -> Self {
        Self { first, others }
    }

    /// The list that an attempt chooses from: the first that has an endpoint, other than `avoid`, against
    /// which nothing speaks; otherwise the first of which not all have been removed.
    #[inline]
    pub(crate) fn serving(
        &self,
        worker: &Rc<Worker>,
        ward: Option<&Ward>,
        avoid: Option<&EndpointId>,
    ) -> &Endpoints {
        match &self.others {
            None => &self.first,
            Some(others) => self.first_well(others, (worker, ward), avoid),
        }
    }

    #[inline(never)]
    fn first_well<'a>(
        &'a self,
        others: &'a [Endpoints],
        (worker, ward): (&Rc<Worker>, Option<&Ward>),
        avoid: Option<&EndpointId>,
    ) -> &'a Endpoints {
        let mut lists = std::iter::once(&self.first).chain(others);
        let well =
            |list: &&Endpoints| list.iter().any(|it| kept(worker, (it, ward), avoid).is_some());
        let there = |list: &&Endpoints| {
            list.iter().any(|it| ward.is_none_or(|ward| ward.admits(&worker.upstream(it))))
        };
        lists.clone().find(well).or_else(|| lists.find(there)).unwrap_or(&self.first)
    }
}
