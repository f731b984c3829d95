//! The compiled actions of a route rule: header edits, rewrites, redirects, mirroring, CORS, attempt timeouts and
//! retries. The proxy applies them to each request after the rule is selected.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BackendEdits, Cors, HeaderEdits, PathEdit, PathMatch, PolicyName, Redirect, RequestMatch,
    RetryRule, RuleActions, Scheme, ServiceRetry, UrlRewrite, WeightedBackend,
};

use crate::match_slot::MatchSlot;
use crate::matcher::prefix_elements;
use crate::request::{RequestView, is_similar_name};

/// The compiled actions of a rule, in addition to its choice of a backend. The default has no actions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompiledActions {
    /// Edits of request heads.
    pub request: FieldEdits,
    /// Edits of response heads.
    pub response: FieldEdits,
    /// The rule's actions without the backend's edits, for mirrored copies; absent if these actions contain no backend
    /// edits.
    without_backend: Option<Arc<Self>>,
    /// The time limit of one attempt; attempts have no separate limit when absent.
    pub attempt_limit: Option<AttemptLimit>,
    /// The retry rule; when absent, only requests that were never sent are retried.
    pub retry: Option<RetryRule>,
    /// The retry policy and its match counter, if the retry rule comes from a policy and not from a route.
    pub retry_policy: Option<(PolicyName, MatchSlot)>,
    /// The services that receive copies of requests. The weight of each service is its share of the requests, in
    /// millionths.
    pub mirrors: Box<[WeightedBackend]>,
    /// The CORS policy; when absent, the application handles CORS itself.
    pub cors: Option<Cors>,
    redirect: Option<Redirect>,
    rewrite: Option<UrlRewrite>,
    /// The length in bytes of the path prefix that a rewrite replaces; 0 if the rule does not have exactly one match
    /// with a path prefix.
    prefix_bytes: usize,
}

/// The time limit of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptLimit {
    /// The limit of the time until the response ends.
    UntilEnd(Duration),
    /// The limit of the time until the client receives the start of the response.
    UntilStart(Duration),
}

impl AttemptLimit {
    /// Returns the time limit.
    #[must_use]
    pub const fn time_limit(self) -> Duration {
        match self {
            Self::UntilEnd(time_limit) | Self::UntilStart(time_limit) => time_limit,
        }
    }

    /// True if the limit ends with the start of the response.
    #[must_use]
    pub const fn ends_with_head(self) -> bool {
        matches!(self, Self::UntilStart(_))
    }
}

impl CompiledActions {
    /// Compiles the actions of a rule with these matches; `None` if the rule has no actions.
    #[must_use]
    pub fn compile(actions: &RuleActions, matches: &[RequestMatch]) -> Option<Self> {
        if *actions == RuleActions::default() {
            return None;
        }
        Some(Self {
            request: FieldEdits::compile(&actions.request_headers),
            response: FieldEdits::compile(&actions.response_headers),
            without_backend: None,
            attempt_limit: actions.attempt_timeout.map(AttemptLimit::UntilEnd),
            retry: actions.retry.clone(),
            retry_policy: None,
            mirrors: actions.mirrors.as_slice().into(),
            cors: actions.cors.clone(),
            redirect: actions.redirect.clone(),
            rewrite: actions.rewrite.clone(),
            prefix_bytes: prefix_bytes(matches),
        })
    }

    /// Returns the actions for one backend of a rule with these matches: the rule's actions, if any, combined with the
    /// backend's edits. The backend's edits are closer to the backend: they apply to requests after the rule's edits,
    /// and to responses before the rule's edits. A host or path rewrite of the backend replaces that of the rule.
    #[must_use]
    pub fn for_backend(
        rule: Option<&Arc<Self>>,
        edits: &BackendEdits,
        matches: &[RequestMatch],
    ) -> Self {
        let rule_actions = rule.cloned().unwrap_or_default();
        let request = FieldEdits::compile(&edits.request_headers);
        let response = FieldEdits::compile(&edits.response_headers);
        let rule_rewrite = rule_actions.rewrite.clone();
        let rewrite = match (edits.rewrite.clone(), rule_rewrite) {
            (Some(backend_rewrite), Some(rule_rewrite)) => Some(UrlRewrite {
                hostname: backend_rewrite.hostname.or(rule_rewrite.hostname),
                path: backend_rewrite.path.or(rule_rewrite.path),
            }),
            (backend_rewrite, rule_rewrite) => backend_rewrite.or(rule_rewrite),
        };
        Self {
            request: rule_actions.request.followed_by(&request),
            response: response.followed_by(&rule_actions.response),
            rewrite,
            prefix_bytes: prefix_bytes(matches),
            without_backend: Some(rule_actions.clone()),
            ..Self::clone(&rule_actions)
        }
    }

    /// Returns the actions with this retry policy as the default. Retry settings of the rule take precedence.
    #[must_use]
    pub(crate) fn with_retry(&self, policy: &ServiceRetry) -> Self {
        let mut actions = self.clone();
        if actions.retry.is_none() {
            actions.retry = Some(policy.rule.clone());
            actions.retry_policy = Some((policy.policy.clone(), MatchSlot::default()));
            let response_limit = policy.response_timeout.map(AttemptLimit::UntilStart);
            actions.attempt_limit = actions.attempt_limit.or(response_limit);
        }
        actions
    }

    /// Adds an edit that removes this field from responses of the application, before all other edits.
    pub(crate) fn hide_field(&mut self, name: &str) {
        let removal = FieldEdits { remove: Box::new([name.into()]), lines: Box::default() };
        self.response = removal.followed_by(&self.response);
    }

    /// Returns the actions for mirrored copies, which have no backend edits.
    #[must_use]
    pub fn for_mirrors(&self) -> &Self {
        self.without_backend.as_deref().unwrap_or(self)
    }

    /// Creates actions that only edit request and response heads.
    #[must_use]
    pub fn from_edits(request: FieldEdits, response: FieldEdits) -> Self {
        Self { request, response, ..Self::default() }
    }

    /// True if the response to a request is a redirect.
    #[must_use]
    pub fn is_redirect(&self) -> bool {
        self.redirect.is_some()
    }

    /// Returns the redirect for a request to this port of the service; `None` if the rule does not redirect.
    ///
    /// The query is taken from the request, and so is a host or path that the rule does not set. A rule without a port
    /// uses the default port of its scheme. A rule without port and scheme uses the service's port if it sets a host
    /// name, and otherwise the port of the request's authority. Default ports are omitted.
    #[must_use]
    pub fn redirection(&self, request: &RequestView<'_>, port: u16) -> Option<Redirection> {
        let redirect = self.redirect.as_ref()?;
        let (_, authority_port) = split_authority(request.authority);
        let default_port = if redirect.hostname.is_some() { Some(port) } else { authority_port };
        self.build_redirection(redirect, request, Scheme::Http, default_port)
    }

    /// Returns the redirect for a request at a gateway port; `None` if the rule does not redirect. `scheme` and
    /// `port` of the gateway apply if the rule sets neither.
    #[must_use]
    pub fn redirection_at(
        &self,
        request: &RequestView<'_>,
        scheme: Scheme,
        port: u16,
    ) -> Option<Redirection> {
        self.build_redirection(self.redirect.as_ref()?, request, scheme, Some(port))
    }

    /// Builds the redirect for a request. `default_scheme` is the scheme if the rule sets none. `default_port` is the
    /// port if the rule sets neither port nor scheme; `None` means the default port of the scheme.
    fn build_redirection(
        &self,
        redirect: &Redirect,
        request: &RequestView<'_>,
        default_scheme: Scheme,
        default_port: Option<u16>,
    ) -> Option<Redirection> {
        let (host, _) = split_authority(request.authority);
        let port = match (redirect.port, redirect.scheme) {
            (Some(port), _) => Some(port),
            (None, Some(_)) => None,
            (None, None) => default_port,
        };
        let scheme = redirect.scheme.unwrap_or(default_scheme);
        let host = redirect.hostname.as_ref().map_or(host, |name| name.as_str());
        let mut location = format!("{}://{host}", scheme.as_str());
        if let Some(port) = port.filter(|port| *port != scheme.default_port()) {
            write!(location, ":{port}").expect("writing to a String never fails");
        }
        location.push_str(&self.edit_path(redirect.path.as_ref(), request.path));
        if let Some(query) = request.query {
            location.push('?');
            location.push_str(query);
        }
        Some(Redirection { status: redirect.status, location })
    }

    /// Returns the rewritten request target with path and query; `None` if it is unchanged.
    #[must_use]
    pub fn rewritten_target(&self, path: &str, query: Option<&str>) -> Option<String> {
        let edit = self.rewrite.as_ref()?.path.as_ref()?;
        let path = match self.edit_path(Some(edit), path) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(path) => path,
        };
        Some(match query {
            Some(query) => path + "?" + query,
            None => path,
        })
    }

    /// Returns the rewritten host; `None` if it is unchanged.
    #[must_use]
    pub fn rewritten_host(&self) -> Option<&str> {
        self.rewrite.as_ref()?.hostname.as_ref().map(|name| name.as_str())
    }

    /// Returns the path after an edit; borrowed if unchanged. The target `*` is not a path and is never edited.
    fn edit_path<'a>(&self, edit: Option<&PathEdit>, path: &'a str) -> Cow<'a, str> {
        match edit.filter(|_| path.starts_with('/')) {
            None => Cow::Borrowed(path),
            Some(PathEdit::Full(new_path)) => Cow::Owned(new_path.clone()),
            Some(PathEdit::Prefix(replacement)) => {
                let remainder = path.get(self.prefix_bytes..).unwrap_or_default();
                match (prefix_elements(replacement), remainder) {
                    ("", "") => Cow::Owned("/".to_owned()),
                    (prefix, remainder) => Cow::Owned(format!("{prefix}{remainder}")),
                }
            }
        }
    }
}

/// Returns the length in bytes of the path prefix of the only match; 0 if there are several matches, or if the match
/// has no path prefix.
fn prefix_bytes(matches: &[RequestMatch]) -> usize {
    match matches {
        [RequestMatch { path: PathMatch::Prefix(prefix), .. }] => prefix_elements(prefix).len(),
        _ => 0,
    }
}

/// A redirect response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// The status code.
    pub status: u16,
    /// The value of `Location`.
    pub location: String,
}

/// Edits of a request or response head, in the form in which they are applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldEdits {
    /// The lower-case names of received fields to remove.
    pub remove: Box<[Box<str>]>,
    /// The field lines to append, each with its final CR LF.
    pub lines: Box<str>,
}

impl FieldEdits {
    /// Compiles edits; a header that is set is removed and appended.
    pub(crate) fn compile(edits: &HeaderEdits) -> Self {
        let set_names = edits.set.iter().map(|header| &header.name);
        let remove =
            edits.remove.iter().chain(set_names).map(|name| name.as_str().into()).collect();
        let mut lines = String::new();
        for header in edits.set.iter().chain(&edits.add) {
            // The configuration readers reject other names and values already. This check ensures that a value never
            // adds a second line.
            if HeaderEdits::is_valid_name(&header.name)
                && HeaderEdits::is_valid_value(&header.value)
            {
                write!(lines, "{}: {}\r\n", header.name, header.value)
                    .expect("writing to a String never fails");
            }
        }
        Self { remove, lines: lines.into() }
    }

    /// Returns the edits that have the effect of these edits followed by `other`.
    fn followed_by(&self, other: &Self) -> Self {
        let is_removed =
            |name: &str| other.remove.iter().any(|removed_name| **removed_name == *name);
        let mut lines = String::new();
        for (name, value) in self.appended().filter(|(name, _)| !is_removed(name)) {
            write!(lines, "{name}: {value}\r\n").expect("writing to a String never fails");
        }
        lines.push_str(&other.lines);
        let mut remove: Vec<Box<str>> = self.remove.iter().chain(&other.remove).cloned().collect();
        remove.sort_unstable();
        remove.dedup();
        Self { remove: remove.into(), lines: lines.into() }
    }

    /// True if there are no edits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.lines.is_empty()
    }

    /// Returns the names and values of the appended fields.
    pub fn appended(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lines.split_terminator("\r\n").filter_map(|line| line.split_once(": "))
    }

    /// Returns the fields of a head after the edits, for diagnostic tools such as `leno explain`.
    #[must_use]
    pub fn apply_to(&self, fields: &[(String, String)]) -> Vec<(String, String)> {
        let is_removed = |name: &str| {
            let is_similar =
                |removed_name: &str| is_similar_name(removed_name.as_bytes(), name.as_bytes());
            self.remove.iter().any(|removed_name| is_similar(removed_name))
        };
        let retained = fields.iter().filter(|(name, _)| !is_removed(name)).cloned();
        let appended = self.appended().map(|(name, value)| (name.to_owned(), value.to_owned()));
        retained.chain(appended).collect()
    }
}

/// Splits an authority into host and port; the port is `None` if it is absent or not a number.
pub(crate) fn split_authority(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests;
