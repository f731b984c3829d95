//! Reads and sets the CPU affinity of processes: the cores that they may use.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Serialize, Serializer};

/// Cores of this machine, by number; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cores(Vec<usize>);

/// The cores of the proxies, and those of their load. Both may have cores in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CoreAssignment {
    /// The cores of the proxies.
    pub(super) proxy_cores: Cores,
    /// The cores of the load generator and the applications.
    pub(super) load_cores: Cores,
}

impl Cores {
    /// Returns the number of cores.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// True if a core is included.
    pub(super) fn contains(&self, core: usize) -> bool {
        self.0.contains(&core)
    }

    /// Returns the cores that this process may use; `None` if the system does not report them.
    pub(super) fn available() -> Option<Self> {
        let cpu_set = sched_getaffinity(None).ok()?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| cpu_set.is_set(*core)).collect();
        (!cores.is_empty()).then_some(Self(cores))
    }

    /// Assigns the first `proxy_core_count` cores to the proxies and the others to the load; `None` if either would have
    /// no core.
    pub(super) fn split(&self, proxy_core_count: usize) -> Option<CoreAssignment> {
        let (proxy_cores, load_cores) = self.0.split_at_checked(proxy_core_count)?;
        let has_both = !proxy_cores.is_empty() && !load_cores.is_empty();
        has_both.then(|| CoreAssignment {
            proxy_cores: Self(proxy_cores.to_vec()),
            load_cores: Self(load_cores.to_vec()),
        })
    }

    /// Returns the first `count` cores, or all if there are fewer; `None` if `count` is 0.
    pub(super) fn first(&self, count: usize) -> Option<Self> {
        let first_cores: Vec<usize> = self.0.iter().copied().take(count).collect();
        (!first_cores.is_empty()).then_some(Self(first_cores))
    }

    /// True if both sets have a core in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|core| other.contains(*core))
    }

    /// Returns the union of both sets.
    pub(super) fn union(&self, other: &Self) -> Self {
        let mut cores = [self.0.as_slice(), other.0.as_slice()].concat();
        cores.sort_unstable();
        cores.dedup();
        Self(cores)
    }

    /// Restricts the calling thread to these cores, and all threads and processes that it starts from now on.
    ///
    /// # Errors
    /// If this process may use none of these cores.
    pub(super) fn pin_current_thread(&self) -> anyhow::Result<()> {
        let mut cpu_set = CpuSet::new();
        for core in &self.0 {
            cpu_set.set(*core);
        }
        sched_setaffinity(None, &cpu_set)
            .with_context(|| format!("cannot be pinned to the cores {self}"))
    }
}

impl CoreAssignment {
    /// True if the proxies and the load have a core in common.
    pub(super) fn shares_cores(&self) -> bool {
        self.proxy_cores.overlaps(&self.load_cores)
    }
}

impl FromStr for Cores {
    type Err = String;

    /// Parses `0`, `0,2` or `0-3`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid_list =
            || format!("`{text}` is not a list of cores: use for example 0, 0,2 or 0-3");
        let mut cores = Vec::new();
        for range in text.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let first: usize = first.trim().parse().map_err(|_| invalid_list())?;
            let last: usize = last.trim().parse().map_err(|_| invalid_list())?;
            if first > last || last >= CpuSet::MAX_CPU {
                return Err(invalid_list());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Self(cores))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl Serialize for Cores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_parsed() {
        for (text, cores) in
            [("0", vec![0]), ("2,0", vec![0, 2]), ("0-2", vec![0, 1, 2]), ("1,1-2", vec![1, 2])]
        {
            assert_eq!(text.parse(), Ok(Cores(cores)), "{text}");
        }
        for text in ["", "a", "2-1", "0,", "99999", "-1"] {
            assert!(text.parse::<Cores>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_split_leaves_cores_for_both_sides() {
        let three = Cores(vec![0, 1, 3]);
        let assignment =
            CoreAssignment { proxy_cores: Cores(vec![0]), load_cores: Cores(vec![1, 3]) };
        assert_eq!(three.split(1), Some(assignment));
        assert_eq!((three.split(3), three.split(4), three.split(0)), (None, None, None));
        assert_eq!(Cores(vec![1, 3]).union(&Cores(vec![0, 1])), three);
    }
}
