//! Ten load balancing candidates.

use leno_traffic::Candidates;
use leno_traffic::balance::Load;

/// The number of requests in progress of each candidate, and true if the candidate may be chosen.
pub(crate) struct TenCandidates([(u32, bool); 10]);

impl Candidates for TenCandidates {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn load(&self, index: usize) -> Load {
        self.0
            .get(index)
            .map_or(Load::from_requests(u32::MAX), |(load, _)| Load::from_requests(*load))
    }

    fn is_usable(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|(_, is_usable)| *is_usable)
    }
}

pub(crate) fn ten_candidates() -> TenCandidates {
    let loads = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3];
    TenCandidates(loads.map(|load| (load, load != 9)))
}
