//! Implements bookinfo, modeled on the demo application of Istio: five small HTTP services without knowledge of the
//! mesh.
//!
//! Each service runs in a process of its own and calls the other services like any unmodified application:
//! through the HTTP proxy in `http_proxy`, or, in a pod, by their names.

mod catalogue;
mod details;
mod gateway;
pub(crate) mod manifests;
mod page;
pub(crate) mod pods;
mod productpage;
mod ratings;
mod response;
mod reviews;
mod server;
mod upstream;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use reviews::ReviewsVersion;
use server::ServiceApplication;
use upstream::{HttpProxy, UpstreamClient};

use crate::stop;

/// The services of bookinfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceKind {
    /// The page of a book; calls details and reviews.
    Productpage,
    /// Details of a book, such as its publisher.
    Details,
    /// Reviews of a book; versions 2 and 3 call ratings.
    Reviews,
    /// Star ratings of a book.
    Ratings,
    /// A gateway in front of ratings.
    Gateway,
}

/// The options of a service.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceOptions {
    /// Port to listen on
    #[arg(long)]
    pub(crate) port: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub(crate) address: IpAddr,
    /// Version of reviews: v1 without stars, v2 with black stars, v3 with red stars
    #[arg(long, value_enum, default_value_t = ReviewsVersion::V1)]
    pub(crate) version: ReviewsVersion,
    /// HTTP proxy for calls to other services [default: direct calls by name, port 9080]
    #[arg(long, env = "http_proxy", hide_env_values = true)]
    pub(crate) http_proxy: Option<HttpProxy>,
}

/// Arguments of the hidden `leno demo-service`. Its option `--version` is the version of the reviews service.
#[derive(Debug, Clone, Args)]
#[command(disable_version_flag = true)]
pub(crate) struct DemoServiceArgs {
    /// Service to run
    #[arg(value_enum)]
    pub(crate) kind: ServiceKind,
    #[command(flatten)]
    pub(crate) options: ServiceOptions,
}

impl DemoServiceArgs {
    /// Runs the service on a runtime of its own until SIGTERM or SIGINT.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime of the demo service")?;
        LocalSet::new().block_on(&runtime, serve(self.kind, self.options))
    }
}

/// Serves until SIGTERM or SIGINT, then finishes requests in progress, within a timeout. Must run inside a
/// [`LocalSet`].
pub(crate) async fn serve(kind: ServiceKind, options: ServiceOptions) -> anyhow::Result<()> {
    let application = build_application(kind, &options);
    let address = SocketAddr::new(options.address, options.port);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another --port"))?;
    let stop_signal = stop::stop_signal()?;
    tracing::debug!(%address, ?kind, "demo service listens");
    server::serve(listener, application, stop_signal).await;
    Ok(())
}

fn build_application(kind: ServiceKind, options: &ServiceOptions) -> ServiceApplication {
    let build_client = || UpstreamClient::new(options.http_proxy.clone());
    match kind {
        ServiceKind::Productpage => ServiceApplication::Productpage(build_client()),
        ServiceKind::Details => ServiceApplication::Details,
        ServiceKind::Ratings => ServiceApplication::Ratings,
        ServiceKind::Gateway => ServiceApplication::Gateway(build_client()),
        ServiceKind::Reviews => match options.version.star_color() {
            None => ServiceApplication::UnratedReviews(options.version),
            Some(color) => ServiceApplication::RatedReviews(options.version, color, build_client()),
        },
    }
}

#[cfg(test)]
mod tests;
