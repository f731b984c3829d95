//! Holds the metrics of a process in a registry of all shards, series and rules, and sums their counts on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cell::{SingleWriterCell, cell_array};
use crate::names::{Count, Gauge, Level};
use crate::outcome_table::OutcomeTable;
use crate::rule::{RuleCells, RuleLabels, RuleNumber, RuleNumbers};
use crate::series::{MAX_SERIES, RequestLabels, SeriesCells, SeriesSummary, SeriesTotals};

/// All metrics of a process. Readers never block the threads that count; only the creation of a series takes a
/// lock.
#[derive(Debug)]
pub struct Telemetry {
    registry: Mutex<MetricRegistry>,
    /// The process-wide gauges: any thread may set them, while the other metrics are counted per shard.
    levels: [SingleWriterCell; Level::ALL.len()],
}

impl Telemetry {
    /// Creates the telemetry of a process, without shards and series.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let telemetry = Self { registry: Mutex::default(), levels: cell_array() };
        telemetry.levels.iter().for_each(|level| level.set(UNSET));
        Arc::new(telemetry)
    }

    /// Sets a process-wide gauge from any thread. Gauges that were never set are not exposed.
    pub fn set_level(&self, level: Level, value: u64) {
        self.levels[level as usize].set(value);
    }

    /// Returns the last value of a process-wide gauge; `None` if it was never set.
    #[must_use]
    pub fn level(&self, level: Level) -> Option<u64> {
        Some(self.levels[level as usize].read()).filter(|value| *value != UNSET)
    }

    /// Returns the sum of a counter over all shards.
    #[must_use]
    pub fn count(&self, count: Count) -> u64 {
        let shards = &self.lock().shards;
        let shard_count = |shard: &Arc<ShardCells>| shard.counts[count as usize].read();
        shards.iter().map(shard_count).fold(0, u64::wrapping_add)
    }

    /// Returns the sum of a gauge over all shards. One shard may decrement a gauge that another shard
    /// incremented; concurrent readers never see a value below zero.
    #[must_use]
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        let shards = &self.lock().shards;
        let shard_value = |shard: &Arc<ShardCells>| shard.gauges[gauge as usize].read();
        let sum = shards.iter().map(shard_value).fold(0, u64::wrapping_add);
        u64::try_from(sum.cast_signed()).unwrap_or(0)
    }

    /// Returns the number of rejected connections, by reason.
    #[must_use]
    pub fn rejected_connections(&self) -> BTreeMap<&'static str, u64> {
        let mut count_by_reason = BTreeMap::new();
        for shard in &self.lock().shards {
            for (outcome, count) in shard.rejected_connections.read() {
                *count_by_reason.entry(outcome.reason).or_default() += count;
            }
        }
        count_by_reason
    }

    /// Returns a summary of each series, ordered by labels.
    #[must_use]
    pub fn series_summaries(&self) -> Vec<SeriesSummary> {
        let summarize =
            |(labels, cells): (_, Vec<_>)| SeriesTotals::sum_shards(labels, &cells).into_summary();
        self.series_cells().into_iter().map(summarize).collect()
    }

    /// Returns the rules that matched, with the number of matches, in order of the rule numbers.
    #[must_use]
    pub fn matched_rules(&self) -> Vec<(RuleLabels, u64)> {
        let registry = self.lock();
        let count_matches = |index: usize| {
            let shards = registry.shards.iter();
            shards.map(|shard| shard.rules.read(index)).fold(0, u64::wrapping_add)
        };
        let indexed_labels = registry.rules.labels().iter().enumerate();
        indexed_labels
            .map(|(index, labels)| (labels, count_matches(index)))
            .filter(|(_, match_count)| *match_count > 0)
            .map(|(labels, match_count)| (labels.clone(), match_count))
            .collect()
    }

    /// Returns the number of a rule; assigns a number to a new rule.
    pub(crate) fn rule_number(&self, labels: &RuleLabels) -> RuleNumber {
        self.lock().rules.number_for(labels)
    }

    /// Creates the cells of another shard, and returns them with its number.
    pub(crate) fn register_shard(&self) -> (u32, Arc<ShardCells>) {
        let cells = Arc::new(ShardCells::new());
        let mut registry = self.lock();
        let number = u32::try_from(registry.shards.len()).unwrap_or(u32::MAX);
        registry.shards.push(Arc::clone(&cells));
        (number, cells)
    }

    /// Returns the labels under which requests with these labels are counted: the same labels while there is
    /// room, otherwise the labels of the overflow series.
    pub(crate) fn admit_labels(&self, labels: &RequestLabels) -> RequestLabels {
        let mut registry = self.lock();
        let is_known = registry.series.contains_key(labels);
        let admitted_labels = match is_known || registry.series.len() < MAX_SERIES {
            true => labels.clone(),
            false => labels.overflow_labels(),
        };
        registry.series.entry(admitted_labels.clone()).or_default();
        admitted_labels
    }

    /// Creates the cells in which the calling shard counts a series.
    pub(crate) fn attach_series(&self, labels: &RequestLabels) -> Arc<SeriesCells> {
        let cells = Arc::new(SeriesCells::new());
        let mut registry = self.lock();
        let series_cells = registry.series.entry(labels.clone()).or_default();
        series_cells.push(Arc::clone(&cells));
        cells
    }

    /// Returns all series and their cells, which can be read without the lock.
    pub(crate) fn series_cells(&self) -> BTreeMap<RequestLabels, Vec<Arc<SeriesCells>>> {
        self.lock().series.clone()
    }

    /// Takes the lock. A thread that panicked while it held the lock left no partial state.
    fn lock(&self) -> MutexGuard<'_, MetricRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The series, shards and rules of a process.
#[derive(Debug, Default)]
struct MetricRegistry {
    /// The counts of each series, one for each shard that has counted it.
    series: BTreeMap<RequestLabels, Vec<Arc<SeriesCells>>>,
    shards: Vec<Arc<ShardCells>>,
    rules: RuleNumbers,
}

/// Metrics of a shard, other than those of requests.
#[derive(Debug)]
pub(crate) struct ShardCells {
    pub(crate) counts: [SingleWriterCell; Count::ALL.len()],
    pub(crate) gauges: [SingleWriterCell; Gauge::ALL.len()],
    pub(crate) rejected_connections: OutcomeTable,
    pub(crate) rules: RuleCells,
}

impl ShardCells {
    pub(crate) fn new() -> Self {
        Self {
            counts: cell_array(),
            gauges: cell_array(),
            rejected_connections: OutcomeTable::new(),
            rules: RuleCells::new(),
        }
    }
}

/// The value of a process-wide gauge that was never set.
const UNSET: u64 = u64::MAX;
