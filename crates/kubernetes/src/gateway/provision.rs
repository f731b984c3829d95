//! Makes what runs for gateways, and keeps it as it should be.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use leno_model::GatewayName;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use super::manifests::manifests;
use super::resolve::Wish;
use crate::failure::in_words;
use crate::inject::Settings;
use crate::install::api_of;
use crate::words::GATEWAY_PART;

/// Makes an account, a Service and a Deployment for each gateway that is wished for, while this
/// control plane leads. They go with their gateway, which owns them. Never ends by itself.
pub async fn provision(
    client: Client,
    settings: watch::Receiver<Settings>,
    wishes: watch::Receiver<Arc<Vec<Wish>>>,
    leading: watch::Receiver<bool>,
) {
    Maker { client, made: HashMap::new() }.run(settings, wishes, leading).await;
}

struct Maker {
    client: Client,
    made: HashMap<GatewayName, Made>,
}

/// What was made last for a gateway.
struct Made {
    wish: Wish,
    settings: Settings,
    at: Instant,
    /// Why it was not, if it was not.
    refused: Option<String>,
}

impl Maker {
    async fn run(
        mut self,
        mut settings: watch::Receiver<Settings>,
        mut wishes: watch::Receiver<Arc<Vec<Wish>>>,
        mut leading: watch::Receiver<bool>,
    ) {
        let mut again = interval(AGAIN_EVERY);
        loop {
            tokio::select! {
                Ok(()) = wishes.changed() => {}
                Ok(()) = settings.changed() => {}
                Ok(()) = leading.changed() => {}
                _ = again.tick() => {}
            }
            let batch = Arc::clone(&wishes.borrow_and_update());
            let settings = settings.borrow_and_update().clone();
            if !*leading.borrow_and_update() {
                // Whoever leads in between may do otherwise.
                self.made.clear();
                continue;
            }
            self.made.retain(|name, _| batch.iter().any(|wish| wish.name == *name));
            for wish in batch.iter() {
                if !*leading.borrow() {
                    break;
                }
                if self.is_due(wish, &settings) {
                    self.make(wish, &settings).await;
                } else if let Some(made) = self.made.get_mut(&wish.name) {
                    made.wish.incomplete = wish.incomplete;
                }
            }
        }
    }

    fn is_due(&self, wish: &Wish, settings: &Settings) -> bool {
        let Some(made) = self.made.get(&wish.name) else { return true };
        // What was whole and is not any more was taken away.
        let is_gone = wish.incomplete && !made.wish.incomplete;
        let is_same = Wish { incomplete: wish.incomplete, ..made.wish.clone() } == *wish
            && made.settings == *settings
            && !is_gone;
        let soon = wish.incomplete || made.refused.is_some();
        let patience = if soon { AGAIN_EVERY } else { WHOLE_AGAIN };
        !is_same || made.at.elapsed() >= patience
    }

    async fn make(&mut self, wish: &Wish, settings: &Settings) {
        let mut refused = None;
        for manifest in manifests(wish, settings) {
            if let Err(why) = apply(&self.client, &manifest).await {
                refused = Some(why);
                break;
            }
        }
        let before = self.made.get(&wish.name).and_then(|made| made.refused.as_ref());
        if let Some(why) = &refused
            && before != Some(why)
        {
            tracing::warn!(gateway = %wish.name, why, "what runs for a gateway cannot be made");
        }
        let (wish, settings) = (wish.clone(), settings.clone());
        let at = Instant::now();
        self.made.insert(wish.name.clone(), Made { wish, settings, at, refused });
    }
}

/// Only what was made here before is changed: somebody else's object of the name stays.
async fn apply(client: &Client, manifest: &Value) -> Result<(), String> {
    let (object, api): (String, Api<DynamicObject>) = api_of(client, manifest);
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let failed = |error: kube::Error| format!("{object}: {}", in_words(&error));
    let known = api.get_opt(name).await.map_err(failed)?;
    if known.is_some_and(|known| !known.labels().contains_key(GATEWAY_PART)) {
        return Err(format!("{object} belongs to somebody else: rename it, or the Gateway"));
    }
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(name, &parameters, &Patch::Apply(manifest)).await.map_err(failed)?;
    Ok(())
}

const FIELD_MANAGER: &str = "leno-gateway";
/// How often what is not there yet is made again.
const AGAIN_EVERY: Duration = Duration::from_secs(10);
/// How often all is made again, whoever changed it.
const WHOLE_AGAIN: Duration = Duration::from_secs(300);
