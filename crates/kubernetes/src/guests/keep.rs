//! Keeps the Secrets of guests as they should be, by one control plane of all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{DeleteParams, PostParams, Preconditions};
use leno_identity::Authority;
use leno_model::SecretName;
use leno_telemetry::with_causes;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::secret::{Finding, Terms, filled, is_of, judge};
use super::wish::{GuestWish, GuestWishes, Outcomes};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};

/// Makes a Secret with a key and a certificate for each guest that is wished for, while this control plane leads;
/// makes it anew well before its end, and at once when the authority is another one; and takes it away when nobody
/// wants it any more. What became of it is told. Never ends by itself.
///
/// No Secret is watched: each is looked at by its name, its metadata alone while nobody has changed it.
pub async fn keep_guests(
    client: Client,
    lifetime: Duration,
    authority: watch::Receiver<Arc<Authority>>,
    (wishes, leading): (watch::Receiver<Arc<GuestWishes>>, watch::Receiver<bool>),
    outcomes: watch::Sender<Arc<Outcomes>>,
) {
    let keeper = Keeper { client, lifetime, kept: BTreeMap::new(), outcomes };
    keeper.run(authority, wishes, leading).await;
}

struct Keeper {
    client: Client,
    /// How long certificates live of which nobody says it.
    lifetime: Duration,
    kept: BTreeMap<SecretName, Kept>,
    outcomes: watch::Sender<Arc<Outcomes>>,
}

/// A Secret that somebody wants, or wanted.
struct Kept {
    wish: GuestWish,
    /// Whether somebody still does.
    is_wanted: bool,
    /// What was good when it was looked at last.
    good: Option<Good>,
    /// When its certificate is to be made anew, if there ever was a good one.
    due: Option<SystemTime>,
    /// When it is looked at next.
    next: Instant,
    /// How many times in a row something went wrong.
    failures: u32,
    /// What is told of it; nothing while nobody knows.
    outcome: Option<Result<(), String>>,
}

/// A Secret that needs nothing.
struct Good {
    /// The version that was seen.
    version: Option<String>,
    until: SystemTime,
    edition: u64,
}

/// Why a Secret is not as it should be.
enum Trouble {
    /// Who wants it can help, or whoever installed the control plane.
    Told(String),
    /// It may pass.
    Passing(String),
}

impl Keeper {
    async fn run(
        mut self,
        mut authority: watch::Receiver<Arc<Authority>>,
        mut wishes: watch::Receiver<Arc<GuestWishes>>,
        mut leading: watch::Receiver<bool>,
    ) {
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Ok(()) = wishes.changed() => {}
                Ok(()) = authority.changed() => {}
                Ok(()) = leading.changed() => {}
                _ = clock.tick() => {}
            }
            self.want(&wishes.borrow_and_update().clone());
            if !*leading.borrow_and_update() {
                self.forget();
                self.tell();
                continue;
            }
            let authority = Arc::clone(&authority.borrow_and_update());
            for name in self.due(&authority) {
                if !*leading.borrow() {
                    break;
                }
                self.see_to(&name, &authority).await;
            }
            self.tell();
        }
    }

    /// Takes in what is wanted now. What is not any more is to be taken away, unless who wanted it wants
    /// something that cannot be.
    fn want(&mut self, wishes: &GuestWishes) {
        for kept in self.kept.values_mut() {
            kept.is_wanted = false;
        }
        for wish in &wishes.wanted {
            let known = self.kept.get_mut(&wish.id.secret);
            match known.filter(|known| known.wish == *wish) {
                Some(known) => known.is_wanted = true,
                None => {
                    let fresh = Kept::new(wish.clone());
                    self.kept.insert(wish.id.secret.clone(), fresh);
                }
            }
        }
        self.kept.retain(|_, kept| kept.is_wanted || !wishes.left.contains(&kept.wish.owner.uid));
        for kept in self.kept.values_mut().filter(|kept| !kept.is_wanted && kept.outcome.is_some())
        {
            // At once.
            (kept.outcome, kept.next, kept.failures) = (None, Instant::now(), 0);
        }
    }

    /// Whoever leads does all of this, and knows best what it did.
    fn forget(&mut self) {
        self.kept.retain(|_, kept| kept.is_wanted);
        for kept in self.kept.values_mut() {
            *kept = Kept::new(kept.wish.clone());
        }
    }

    fn due(&self, authority: &Authority) -> Vec<SecretName> {
        let (now, edition) = (Instant::now(), authority.edition());
        let is_due = |kept: &Kept| kept.next <= now || kept.is_outdated(edition);
        self.kept.iter().filter(|(_, kept)| is_due(kept)).map(|(name, _)| name.clone()).collect()
    }

    async fn see_to(&mut self, name: &SecretName, authority: &Authority) {
        let Some(kept) = self.kept.get(name) else { return };
        let terms = Terms { authority, lifetime: self.lifetime, now: SystemTime::now() };
        let namespace = match NamespaceName::try_from(&name.namespace) {
            Ok(namespace) => namespace,
            Err(error) => return self.put_off(name, Trouble::Told(error.to_string())),
        };
        let api: ObjectApi<Secret> = ObjectApi::namespaced(self.client.clone(), &namespace);
        let late = || Trouble::Passing("the API server does not answer in time".to_owned());
        if !kept.is_wanted {
            let removed = timeout(ANSWER_MAX, remove(&api, &kept.wish)).await;
            match removed.unwrap_or_else(|_| Err(late())) {
                Ok(()) => drop(self.kept.remove(name)),
                Err(trouble) => self.put_off(name, trouble),
            }
            return;
        }
        let looked = timeout(ANSWER_MAX, look(&api, kept, terms)).await;
        match looked.unwrap_or_else(|_| Err(late())) {
            Ok(good) => {
                let Some(kept) = self.kept.get_mut(name) else { return };
                let left = good.until.duration_since(terms.now).unwrap_or_default();
                kept.next = Instant::now() + left.min(LOOK_EVERY);
                kept.due = Some(good.until);
                (kept.good, kept.failures, kept.outcome) = (Some(good), 0, Some(Ok(())));
            }
            Err(trouble) => self.put_off(name, trouble),
        }
    }

    /// Tries again later, and later still each time. What passes is told when it has not passed, and makes no good
    /// certificate a bad one before its time.
    fn put_off(&mut self, name: &SecretName, trouble: Trouble) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        kept.next =
            Instant::now() + AGAIN_AFTER.saturating_mul(1 << kept.failures.min(6)).min(AGAIN_MAX);
        kept.failures = kept.failures.saturating_add(1);
        // It is looked at as a whole, and is not of another authority again and again.
        kept.good = None;
        let (why, is_told) = match trouble {
            Trouble::Told(why) => (why, true),
            Trouble::Passing(why) => {
                let is_due = kept.due.is_none_or(|due| due <= SystemTime::now());
                (why, is_due && kept.failures > PASSING_MAX)
            }
        };
        let outcome = Err(format!("{}: {why}", kept.wish.field("secret")));
        if kept.outcome.as_ref() == Some(&outcome) {
            return;
        }
        tracing::warn!(secret = %name, of = %kept.wish.owner, why, "the Secret of a guest is not seen to");
        if kept.is_wanted && is_told {
            kept.outcome = Some(outcome);
        }
    }

    fn tell(&self) {
        let told = self
            .kept
            .values()
            .filter(|kept| kept.is_wanted)
            .filter_map(|kept| Some((kept.wish.owner.uid.clone(), kept.outcome.clone()?)));
        let told: Outcomes = told.collect();
        self.outcomes.send_if_modified(|known| {
            let news = **known != told;
            if news {
                *known = Arc::new(told);
            }
            news
        });
    }
}

impl Kept {
    fn new(wish: GuestWish) -> Self {
        let next = Instant::now();
        Self { wish, is_wanted: true, good: None, due: None, next, failures: 0, outcome: None }
    }

    /// Whether another authority would make its certificate now.
    fn is_outdated(&self, edition: u64) -> bool {
        self.is_wanted && self.good.as_ref().is_some_and(|good| good.edition != edition)
    }
}

/// Looks at a Secret, and makes it as it should be.
async fn look(api: &ObjectApi<Secret>, kept: &Kept, terms: Terms<'_>) -> Result<Good, Trouble> {
    let (wish, name) = (&kept.wish, ObjectName::from(&kept.wish.id.secret.name));
    let edition = terms.authority.edition();
    if let Some(good) = &kept.good
        && good.edition == edition
        && good.until > terms.now
    {
        let there = api.get_metadata_opt(&name).await.map_err(|error| trouble(&error))?;
        let version = there.and_then(|there| there.metadata.resource_version);
        if version.is_some() && version == good.version {
            return Ok(Good { version, ..*good });
        }
    }
    let found = api.get_opt(&name).await.map_err(|error| trouble(&error))?;
    if let Some(secret) = &found {
        match judge(secret, wish, terms) {
            Finding::Good(until) => {
                let version = secret.metadata.resource_version.clone();
                return Ok(Good { version, until, edition });
            }
            Finding::Foreign => return Err(Trouble::Told(foreign(wish))),
            Finding::Due => {}
        }
    }
    let is_new = found.is_none();
    let secret = filled(found, wish, terms).map_err(|error| Trouble::Told(with_causes(&error)))?;
    // The version that was read is replaced, and no other.
    let parameters = PostParams::default();
    let written = match is_new {
        true => api.create(&parameters, &secret).await,
        false => api.replace(&name, &parameters, &secret).await,
    };
    let written = written.map_err(|error| match error.code() {
        // Somebody removed it meanwhile.
        Some(NOT_FOUND) if !is_new => Trouble::Passing(error.to_string()),
        _ => trouble(&error),
    })?;
    tracing::info!(secret = %wish.id.secret, of = %wish.owner, "the certificate of a guest is made");
    match judge(&written, wish, terms) {
        Finding::Good(until) => {
            Ok(Good { version: written.metadata.resource_version, until, edition })
        }
        // Whoever admits objects has made something else of it.
        Finding::Due | Finding::Foreign => Err(Trouble::Told(
            "the API server keeps something else; see what changes Secrets".to_owned(),
        )),
    }
}

/// Takes a Secret away that was made here, in the version that was looked at.
async fn remove(api: &ObjectApi<Secret>, wish: &GuestWish) -> Result<(), Trouble> {
    let name = ObjectName::from(&wish.id.secret.name);
    let there = api.get_metadata_opt(&name).await.map_err(|error| trouble(&error))?;
    let Some(there) = there.filter(|there| is_of(&there.metadata, wish)) else { return Ok(()) };
    let preconditions = Preconditions {
        uid: there.metadata.uid,
        resource_version: there.metadata.resource_version,
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&name, &parameters).await {
        Ok(()) => {
            tracing::info!(secret = %wish.id.secret, of = %wish.owner, "a guest is no more: its Secret is removed");
            Ok(())
        }
        Err(error) if error.code() == Some(NOT_FOUND) => Ok(()),
        Err(error) => Err(trouble(&error)),
    }
}

/// What the API server refuses stays refused; what does not come through may another time.
fn trouble(error: &ApiError) -> Trouble {
    let said = error.to_string();
    match error.code() {
        Some(code) if PASSING.contains(&code) || code >= SERVER_ERROR => Trouble::Passing(said),
        Some(_) => Trouble::Told(said),
        None => Trouble::Passing(said),
    }
}

fn foreign(wish: &GuestWish) -> String {
    let (secret, owner) = (&wish.id.secret, &wish.owner);
    format!(
        "{secret} is there already and was not made for the {owner}; delete that Secret, or \
         name another"
    )
}

const NOT_FOUND: u16 = 404;
/// A token that is being renewed, a slow answer, somebody who was faster, and too many questions.
const PASSING: [u16; 4] = [401, 408, 409, 429];
const SERVER_ERROR: u16 = 500;
/// So many times in a row something may pass before it is told.
const PASSING_MAX: u32 = 2;
/// How often it is looked what is due.
const TICK: Duration = Duration::from_secs(5);
/// How often the metadata of each Secret is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long an API server has for all that is asked about one Secret.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// What went wrong is tried again after this time, and then after twice that, up to the other.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
