//! Formats latencies, CPU usage, memory sizes and sparklines for tables.

pub(crate) use leno_control::figures::{
    DEGRADED_BELOW, FAILING_BELOW, format_count, format_rate, format_share,
};

/// Formats milliseconds: `0.42 ms`, `12.3 ms`, `1.20 s`; empty for `None`.
pub(crate) fn format_latency(ms: Option<f64>) -> String {
    // From each bound on, rounding would yield a fourth digit.
    match ms {
        None => String::new(),
        Some(ms) if ms < 9.995 => format!("{ms:.2} ms"),
        Some(ms) if ms < 99.95 => format!("{ms:.1} ms"),
        Some(ms) if ms < 999.5 => format!("{ms:.0} ms"),
        Some(ms) => format!("{:.2} s", ms / 1e3),
    }
}

/// Formats CPU usage in thousandths of a core: `0.2 mCPU`, `41 mCPU`.
pub(crate) fn format_cpu(cores: f64) -> String {
    match cores * 1e3 {
        millicores if millicores <= 0.0 => "0 mCPU".to_owned(),
        millicores if millicores < 9.95 => format!("{millicores:.1} mCPU"),
        millicores => format!("{millicores:.0} mCPU"),
    }
}

/// Formats a memory size in KiB: `4.2 MiB`.
pub(crate) fn format_memory(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

/// Renders numbers as a line of blocks, relative to the largest number; a zero is a blank.
pub(crate) fn render_sparkline(numbers: &[u32]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let largest = numbers.iter().copied().max().unwrap_or(0).max(1);
    let block = |number: &u32| match number {
        0 => ' ',
        number => {
            let height = u64::from(*number) * (BLOCKS.len() as u64 - 1) / u64::from(largest);
            BLOCKS[usize::try_from(height).unwrap_or(0)]
        }
    };
    numbers.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_according_to_their_size() {
        let rates = [0.0, 0.04, 12.34, 99.94, 99.96, 1234.4].map(format_rate);
        assert_eq!(rates, ["0/s", "0.0/s", "12.3/s", "99.9/s", "100/s", "1234/s"]);
        let shares = [None, Some(1.0), Some(0.99999), Some(0.5), Some(0.0)].map(format_share);
        assert_eq!(shares, ["", "100 %", "99.99 %", "50.00 %", "0.00 %"]);
        let times = [None, Some(0.4), Some(12.34), Some(250.2), Some(1200.0)].map(format_latency);
        assert_eq!(times, ["", "0.40 ms", "12.3 ms", "250 ms", "1.20 s"]);
        assert_eq!([0.0, 0.0002, 0.041].map(format_cpu), ["0 mCPU", "0.2 mCPU", "41 mCPU"]);
        assert_eq!(format_memory(4_300), "4.2 MiB");
    }

    #[test]
    fn a_sparkline_leaves_missing_values_blank() {
        assert_eq!(render_sparkline(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(render_sparkline(&[0, 0]), "  ");
        assert_eq!(render_sparkline(&[u32::MAX]), "█");
        assert_eq!(render_sparkline(&[]), "");
    }
}
