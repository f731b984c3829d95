//! The suite `all`: measures every other suite within a time budget.

use std::time::Duration;

use clap::Args;

use super::gateway_ratings::GatewayRatingsArgs;
use super::latency::LatencyArgs;
use super::router::{RouterArgs, RouterSuite};
use super::scale::ScaleArgs;
use super::sidecar::SidecarArgs;
use crate::bench::options::SuiteOptions;
use crate::bench::report::SuiteReport;

/// Arguments of `leno bench all`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AllArgs {
    #[command(flatten)]
    pub(crate) options: SuiteOptions,
}

impl AllArgs {
    /// Measures one suite after the other. Prints the name of each suite before its progress lines.
    ///
    /// # Errors
    /// If a suite cannot be measured at all.
    pub(crate) async fn measure(&self) -> anyhow::Result<Vec<SuiteReport>> {
        let budget = self.options.budget().unwrap_or(DEFAULT_BUDGET);
        let options_with_share =
            |budget_share: f64| self.options.with_budget(Some(budget.mul_f64(budget_share)));
        let router = RouterArgs::with_options(options_with_share(ROUTER_SHARE));
        eprintln!("sidecar");
        let mut reports =
            vec![SidecarArgs::with_options(options_with_share(SIDECAR_SHARE)).measure().await?];
        eprintln!("gateway-ratings");
        reports.push(
            GatewayRatingsArgs::with_options(options_with_share(GATEWAY_RATINGS_SHARE))
                .measure()
                .await?,
        );
        eprintln!("latency");
        reports.push(LatencyArgs::with_options(options_with_share(LATENCY_SHARE)).measure().await?);
        eprintln!("scale");
        reports.push(ScaleArgs::with_options(options_with_share(SCALE_SHARE)).measure().await?);
        eprintln!("router");
        reports.push(router.measure(RouterSuite::Router).await?);
        eprintln!("removal");
        reports.push(router.measure(RouterSuite::Removal).await?);
        Ok(reports)
    }
}

/// The default time budget.
const DEFAULT_BUDGET: Duration = Duration::from_secs(15 * 60);

// The share of the budget of each suite, by its number of trials. `router` and `removal` have the same share each, so
// that the sum is 1.
const SIDECAR_SHARE: f64 = 0.38;
const GATEWAY_RATINGS_SHARE: f64 = 0.14;
const LATENCY_SHARE: f64 = 0.18;
const SCALE_SHARE: f64 = 0.12;
const ROUTER_SHARE: f64 = 0.09;

const EXAMPLES: &str = "\
Examples:
  leno bench all --budget 15m --html report.html
  leno bench all --budget 1h -o json
";
