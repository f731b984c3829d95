//! The post: takes parcels to collectors, again where that may help.

use std::path::PathBuf;
use std::time::Duration;

use leno_model::Collector;
use tokio::time::{sleep, timeout};

use crate::fate::{Counts, Fate};
use crate::parcel::{self, Failed, Parcel, Refused};
use crate::servers::{Dial, Sessions};

/// Takes parcels to collectors.
#[derive(Debug)]
pub struct Post<D> {
    dial: D,
    sessions: Sessions,
}

impl<D: Dial> Post<D> {
    /// By connections that are opened so. A file of PEM vouches for collectors with TLS, or the system's roots.
    pub fn new(dial: D, roots: Option<PathBuf>) -> Self {
        Self { dial, sessions: Sessions::new(roots) }
    }

    /// Sends requests of OTLP one after the other. Once one could not be sent, neither can the others;
    /// but one that is refused for what is in it says nothing of them. Returns for how long the collector
    /// asks to be left alone.
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

    /// Sends one parcel.
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

    /// Sends a parcel, again if that may help; tells what of it the collector refused.
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

/// How long sending a parcel may take.
const SEND_MAX: Duration = Duration::from_secs(10);
/// How often a parcel is sent before it is dropped.
const TRIES_MAX: u32 = 3;
/// How long to wait before a parcel is sent for the second time; then twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// A collector that wants to be left alone for longer than this does not get the parcel.
const PAUSE_MAX: Duration = Duration::from_secs(10);
