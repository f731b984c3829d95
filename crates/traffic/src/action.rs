//! Actions, compiled: the edits of heads as they are spliced in, and where a redirection leads.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BackendEdits, Cors, HeaderEdits, PathEdit, PathMatch, PolicyName, Redirect, RequestMatch,
    RetryRule, RuleActions, Scheme, ServiceRetry, UrlRewrite, WeightedBackend,
};

use crate::hits::HitSlot;
use crate::matcher::prefix_elements;
use crate::request::{RequestView, is_similar_name};

/// What a rule does beside choosing a backend, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompiledActions {
    /// Edits of the heads of requests.
    pub request: FieldEdits,
    /// Edits of the heads of answers.
    pub response: FieldEdits,
    /// The same without what the backend does, where it does something.
    without_backend: Option<Arc<Self>>,
    /// How long one attempt may take; no limit of its own when absent.
    pub attempt_limit: Option<AttemptLimit>,
    /// When requests are sent once more.
    pub retry: Option<RetryRule>,
    /// The policy that says so, where it is no rule of a route; and where its retries are counted.
    pub retried_by: Option<(PolicyName, HitSlot)>,
    /// Services that get a copy of requests, each with its share in millionths.
    pub mirrors: Box<[WeightedBackend]>,
    /// What pages of other origins may.
    pub cors: Option<Cors>,
    redirect: Option<Redirect>,
    rewrite: Option<UrlRewrite>,
    /// How many bytes of a path the prefix takes that the rule's only match names.
    prefix_bytes: usize,
}

/// How long one attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptLimit {
    /// To the end of its answer.
    Whole(Duration),
    /// Until the client gets the beginning of its answer.
    Head(Duration),
}

impl AttemptLimit {
    /// The time.
    #[must_use]
    pub const fn time(self) -> Duration {
        match self {
            Self::Whole(time) | Self::Head(time) => time,
        }
    }

    /// Whether it says nothing about what comes after the beginning of the answer.
    #[must_use]
    pub const fn is_of_head(self) -> bool {
        matches!(self, Self::Head(_))
    }
}

impl CompiledActions {
    /// Compiles the actions of a rule; `None` when it has none.
    #[must_use]
    pub fn compile(actions: &RuleActions, matches: &[RequestMatch]) -> Option<Self> {
        if *actions == RuleActions::default() {
            return None;
        }
        Some(Self {
            request: FieldEdits::compile(&actions.request_headers),
            response: FieldEdits::compile(&actions.response_headers),
            without_backend: None,
            attempt_limit: actions.attempt_timeout.map(AttemptLimit::Whole),
            retry: actions.retry.clone(),
            retried_by: None,
            mirrors: actions.mirrors.as_slice().into(),
            cors: actions.cors.clone(),
            redirect: actions.redirect.clone(),
            rewrite: actions.rewrite.clone(),
            prefix_bytes: prefix_bytes(matches),
        })
    }

    /// What is done for one backend of a rule with these matches, which does `rule` or nothing, by its own
    /// edits: of requests after those of the rule, of answers before them, of host and path instead of them.
    #[must_use]
    pub fn for_backend(
        rule: Option<&Arc<Self>>,
        edits: &BackendEdits,
        matches: &[RequestMatch],
    ) -> Self {
        let without = rule.cloned().unwrap_or_default();
        let request = FieldEdits::compile(&edits.request_headers);
        let response = FieldEdits::compile(&edits.response_headers);
        let of_rule = without.rewrite.clone();
        let rewrite = match (edits.rewrite.clone(), of_rule) {
            (Some(own), Some(rule)) => Some(UrlRewrite {
                hostname: own.hostname.or(rule.hostname),
                path: own.path.or(rule.path),
            }),
            (own, rule) => own.or(rule),
        };
        Self {
            request: without.request.then(&request),
            response: response.then(&without.response),
            rewrite,
            prefix_bytes: prefix_bytes(matches),
            without_backend: Some(without.clone()),
            ..Self::clone(&without)
        }
    }

    /// The same where a policy says when requests are sent once more: it decides where the rule does not.
    #[must_use]
    pub(crate) fn under(&self, policy: &ServiceRetry) -> Self {
        let mut actions = self.clone();
        if actions.retry.is_none() {
            actions.retry = Some(policy.rule.clone());
            actions.retried_by = Some((policy.policy.clone(), HitSlot::default()));
            let limit = policy.answer_timeout.map(AttemptLimit::Head);
            actions.attempt_limit = actions.attempt_limit.or(limit);
        }
        actions
    }

    /// What the application answers under this name goes no further.
    pub(crate) fn hide(&mut self, name: &str) {
        let hidden = FieldEdits { remove: Box::new([name.into()]), lines: Box::default() };
        self.response = hidden.then(&self.response);
    }

    /// What is done to copies, which go to none of the backends.
    #[must_use]
    pub fn of_copies(&self) -> &Self {
        self.without_backend.as_deref().unwrap_or(self)
    }

    /// Edits of heads, and nothing else.
    #[must_use]
    pub fn editing(request: FieldEdits, response: FieldEdits) -> Self {
        Self { request, response, ..Self::default() }
    }

    /// Whether requests go nowhere: their answer is a redirection.
    #[must_use]
    pub fn redirects(&self) -> bool {
        self.redirect.is_some()
    }

    /// The redirection that a request to this port of the service is answered with.
    ///
    /// A part that the rule does not name is that of the request. Where the rule names no port, it
    /// is that of its scheme; without a scheme that of the authority, or, beside another host name,
    /// that of the service. A port that goes without saying is not said.
    #[must_use]
    pub fn redirection(&self, request: &RequestView<'_>, port: u16) -> Option<Redirection> {
        let redirect = self.redirect.as_ref()?;
        let (_, own_port) = split_authority(request.authority);
        let implied = if redirect.hostname.is_some() { Some(port) } else { own_port };
        self.redirected(redirect, request, (Scheme::Http, implied))
    }

    /// The same at a port of a gateway, whose scheme and number are those of what the rule leaves
    /// open.
    #[must_use]
    pub fn redirection_at(
        &self,
        request: &RequestView<'_>,
        (scheme, port): (Scheme, u16),
    ) -> Option<Redirection> {
        self.redirected(self.redirect.as_ref()?, request, (scheme, Some(port)))
    }

    /// `implied`: the port where the rule names neither port nor scheme.
    fn redirected(
        &self,
        redirect: &Redirect,
        request: &RequestView<'_>,
        (scheme, implied): (Scheme, Option<u16>),
    ) -> Option<Redirection> {
        let (host, _) = split_authority(request.authority);
        let port = match (redirect.port, redirect.scheme) {
            (Some(port), _) => Some(port),
            (None, Some(_)) => None,
            (None, None) => implied,
        };
        let scheme = redirect.scheme.unwrap_or(scheme);
        let host = redirect.hostname.as_ref().map_or(host, |name| name.as_str());
        let mut location = format!("{}://{host}", scheme.as_str());
        if let Some(port) = port.filter(|port| *port != scheme.port()) {
            write!(location, ":{port}").expect("a String takes what is written");
        }
        location.push_str(&self.path(redirect.path.as_ref(), request.path));
        if let Some(query) = request.query {
            location.push('?');
            location.push_str(query);
        }
        Some(Redirection { status: redirect.status, location })
    }

    /// The target that a request is sent on with, path and query; `None` when it stays.
    #[must_use]
    pub fn target(&self, path: &str, query: Option<&str>) -> Option<String> {
        let edit = self.rewrite.as_ref()?.path.as_ref()?;
        let path = match self.path(Some(edit), path) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(path) => path,
        };
        Some(match query {
            Some(query) => path + "?" + query,
            None => path,
        })
    }

    /// The host that a request is for from here on; `None` when it stays.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.rewrite.as_ref()?.hostname.as_ref().map(|name| name.as_str())
    }

    /// The path after an edit; borrowed when it stays. `*` is no path, and stays.
    fn path<'a>(&self, edit: Option<&PathEdit>, path: &'a str) -> Cow<'a, str> {
        match edit.filter(|_| path.starts_with('/')) {
            None => Cow::Borrowed(path),
            Some(PathEdit::Full(full)) => Cow::Owned(full.clone()),
            Some(PathEdit::Prefix(replacement)) => {
                let rest = path.get(self.prefix_bytes..).unwrap_or_default();
                match (prefix_elements(replacement), rest) {
                    ("", "") => Cow::Owned("/".to_owned()),
                    (begin, rest) => Cow::Owned(format!("{begin}{rest}")),
                }
            }
        }
    }
}

/// How many bytes of a path the prefix takes that the only match names.
fn prefix_bytes(matches: &[RequestMatch]) -> usize {
    match matches {
        [RequestMatch { path: PathMatch::Prefix(prefix), .. }] => prefix_elements(prefix).len(),
        _ => 0,
    }
}

/// An answer that sends the client elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// Its status.
    pub status: u16,
    /// Where to.
    pub location: String,
}

/// Edits of a head, as they are spliced in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldEdits {
    /// The names, in lower case, of received fields that go no further.
    pub remove: Box<[Box<str>]>,
    /// The field lines that are appended, each with the CR LF that ends it.
    pub lines: Box<str>,
}

impl FieldEdits {
    pub(crate) fn compile(edits: &HeaderEdits) -> Self {
        let set = edits.set.iter().map(|header| &header.name);
        let remove = edits.remove.iter().chain(set).map(|name| name.as_str().into()).collect();
        let mut lines = String::new();
        for header in edits.set.iter().chain(&edits.add) {
            // Readers let nothing else through; a line that would be two is none.
            if HeaderEdits::is_name(&header.name) && HeaderEdits::is_value(&header.value) {
                write!(lines, "{}: {}\r\n", header.name, header.value)
                    .expect("a String takes what is written");
            }
        }
        Self { remove, lines: lines.into() }
    }

    /// These edits, and then others of what they leave.
    fn then(&self, other: &Self) -> Self {
        let removed = |name: &str| other.remove.iter().any(|removed| **removed == *name);
        let mut lines = String::new();
        for (name, value) in self.appended().filter(|(name, _)| !removed(name)) {
            write!(lines, "{name}: {value}\r\n").expect("a String takes what is written");
        }
        lines.push_str(&other.lines);
        let mut remove: Vec<Box<str>> = self.remove.iter().chain(&other.remove).cloned().collect();
        remove.sort_unstable();
        remove.dedup();
        Self { remove: remove.into(), lines: lines.into() }
    }

    /// Whether nothing is edited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.lines.is_empty()
    }

    /// The appended fields, one by one.
    pub fn appended(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lines.split_terminator("\r\n").filter_map(|line| line.split_once(": "))
    }

    /// The fields of a request as they are after the edits; for tools.
    #[must_use]
    pub fn applied(&self, fields: &[(String, String)]) -> Vec<(String, String)> {
        let removed = |name: &str| {
            let is_similar = |removed: &str| is_similar_name(removed.as_bytes(), name.as_bytes());
            self.remove.iter().any(|removed| is_similar(removed))
        };
        let kept = fields.iter().filter(|(name, _)| !removed(name)).cloned();
        let appended = self.appended().map(|(name, value)| (name.to_owned(), value.to_owned()));
        kept.chain(appended).collect()
    }
}

/// Host and port of an authority.
pub(crate) fn split_authority(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests;
