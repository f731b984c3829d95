//! Exporter: sends requests to collectors, with retries.

use std::path::PathBuf;
use std::time::Duration;

use leno_model::Collector;
use tokio::time::{sleep, timeout};

use crate::fate::{Counts, Fate};
use crate::parcel::{self, Failed, Parcel, Refused};
use crate::servers::{Dial, Sessions};

/// An exporter.
#[derive(Debug)]
pub struct Post<D> {
    dial: D,
    sessions: Sessions,
}

impl<D: Dial> Post<D> {
    /// Creates an exporter that connects with `dial`. `roots` is a PEM file with trust roots of collectors; the
    /// default is the system's roots.
    pub fn new(dial: D, roots: Option<PathBuf>) -> Self {
        Self { dial, sessions: Sessions::new(roots) }
    }

    /// Sends OTLP requests in sequence. If one fails, the rest is dropped, unless the error concerns only this
    /// request. Returns the retry delay that the collector requests.
    pub async fn deliver_all(
        &self,
        collector: &Collector,
        requests: Vec<(Vec<u8>, u64)>,
        fate: &mut Fate<impl Counts>,
    ) -> Option<Duration> {
        fate.toward(collector);
        let mut is_taken = true;
        let mut asked = None;
        for parcel in requests.into_iter().map(Parcel::otlp) {
            if is_taken {
                let told = self.try_patiently(collector, &parcel).await;
                if let Err(error) = &told {
                    is_taken = error.is_of_parcel();
                    asked = error.after();
                }
                fate.note(parcel.count, &told);
            } else {
                fate.lost(parcel.count);
            }
        }
        asked
    }

    /// Sends one request.
    pub async fn deliver(
        &self,
        collector: &Collector,
        parcel: &Parcel,
        fate: &mut Fate<impl Counts>,
    ) {
        let told = self.try_patiently(collector, parcel).await;
        fate.toward(collector);
        fate.note(parcel.count, &told);
    }

    /// Sends a request, with retries; returns the part that the collector rejected.
    async fn try_patiently(
        &self,
        collector: &Collector,
        parcel: &Parcel,
    ) -> Result<Refused, Failed> {
        let mut pause = PAUSE_FIRST;
        let mut tries = TRIES_MAX;
        loop {
            let posted = parcel::post(collector, parcel, (&self.dial, &self.sessions));
            let outcome = timeout(SEND_MAX, posted).await.unwrap_or(Err(Failed::Late));
            tries -= 1;
            match outcome {
                Err(error) if error.may_pass() && tries > 0 => {
                    let asked = error.after().unwrap_or_default();
                    if asked > PAUSE_MAX {
                        return Err(error);
                    }
                    sleep(pause.max(asked)).await;
                }
                outcome => return outcome,
            }
            pause *= 2;
        }
    }
}

/// The timeout of one attempt.
const SEND_MAX: Duration = Duration::from_secs(10);
/// The maximum number of attempts.
const TRIES_MAX: u32 = 3;
/// The delay before the second attempt; it doubles for the third one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest accepted retry delay; beyond it the request is dropped.
const PAUSE_MAX: Duration = Duration::from_secs(10);
