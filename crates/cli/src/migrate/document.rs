//! Documents of the input files, with their text and content.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use leno_model::{Egress, Object};
use leno_registry::{FileSource, RejectedDocument, outline_document, read_str};

use super::published::PublishedItem;
use super::{mesh_config, published};
use crate::output;

/// One document of the input, with its place in the output.
pub(super) struct SourceDocument {
    /// Its location, for people.
    pub(super) place: String,
    /// Its kind and name, for people.
    pub(super) title: String,
    /// The output file, relative to the output directory.
    pub(super) target: PathBuf,
    /// The original text, with the final newline.
    pub(super) text: String,
    pub(super) found: DocumentContent,
}

/// The source of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentSource {
    File,
    /// Settings in a cluster stay in effect while they exist.
    Cluster,
}

/// The content of a document.
pub(super) enum DocumentContent {
    /// An object that Leno reads.
    Object(Box<Object>),
    /// The settings of another mesh: its permissive traffic policy mode, its egress mode, and other settings in
    /// effect.
    Settings { permissive: bool, egress: Egress, others: Vec<String> },
    /// An item of Sermant's configuration center without a corresponding object.
    Published(PublishedItem),
    /// A document that Leno does not read: of another kind, or of another mesh with features that Leno lacks.
    Unread {
        reason: String,
        /// True if it may have denied or restricted access.
        may_keep_out: bool,
    },
    /// Comments only.
    Comments,
}

impl SourceDocument {
    /// Returns the object, if Leno reads it.
    pub(super) fn object(&self) -> Option<&Object> {
        match &self.found {
            DocumentContent::Object(object) => Some(object),
            DocumentContent::Settings { .. }
            | DocumentContent::Published(_)
            | DocumentContent::Unread { .. }
            | DocumentContent::Comments => None,
        }
    }

    /// True if a dropped part may have denied or restricted access.
    pub(super) fn may_keep_out(&self) -> bool {
        match &self.found {
            DocumentContent::Object(_) | DocumentContent::Comments => false,
            DocumentContent::Published(item) => published::is_limit(item),
            DocumentContent::Settings { others, .. } => {
                others.iter().any(|it| it.contains(ASKS_ANOTHER))
            }
            DocumentContent::Unread { may_keep_out, .. } => *may_keep_out,
        }
    }

    /// Reads an object of a cluster from YAML.
    ///
    /// # Errors
    /// If Leno reads its kind and rejects the object.
    pub(super) fn of_cluster(text: &str) -> anyhow::Result<Option<Self>> {
        let found = read_one(Path::new(CLUSTER), 1, text, DocumentSource::Cluster)
            .map_err(anyhow::Error::msg)?;
        Ok(found.map(|(title, found)| Self {
            place: CLUSTER.to_owned(),
            title,
            target: PathBuf::new(),
            text: text.to_owned(),
            found,
        }))
    }
}

impl fmt::Display for SourceDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.title, self.place)
    }
}

/// Reads all documents of all files, in order.
///
/// # Errors
/// If a file cannot be read, two output files would have the same name, or a document of a native kind is
/// rejected. Rejected documents of another mesh are reported as dropped instead.
pub(super) fn read(paths: &[PathBuf], namespace: &str) -> anyhow::Result<Vec<SourceDocument>> {
    let mut reading = DocumentReader::default();
    let mut targets: Vec<PathBuf> = Vec::new();
    for path in paths {
        for file in find_files(path)? {
            let target = match file.strip_prefix(path) {
                Ok(below) if !below.as_os_str().is_empty() => below.to_owned(),
                _ => file.file_name().map(PathBuf::from).context("a file has a name")?,
            };
            if targets.contains(&target) {
                bail!(
                    "two input files would be written to {}: migrate them separately",
                    target.display()
                );
            }
            targets.push(target.clone());
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            reading.read(&file, &target, &text, namespace);
        }
    }
    reading.into_documents()
}

/// Reads all documents of one text, in order.
///
/// # Errors
/// As [`read`].
pub(super) fn read_text(text: &str, namespace: &str) -> anyhow::Result<Vec<SourceDocument>> {
    let mut reading = DocumentReader::default();
    reading.read(Path::new("text"), Path::new("text"), text, namespace);
    reading.into_documents()
}

/// The documents of the files so far, and the problems.
#[derive(Default)]
struct DocumentReader {
    documents: Vec<SourceDocument>,
    refused: Vec<String>,
}

impl DocumentReader {
    /// Reads one file; its documents go to the output file `target`.
    fn read(&mut self, file: &Path, target: &Path, text: &str, namespace: &str) {
        for (line, text) in split_documents(text) {
            let place = format!("{}:{line}", output::format_line(&file.display()));
            let items = published::parse_items(text);
            if !items.is_empty() {
                let place = (place, target.to_owned());
                let read = items.into_iter().map(|item| read_item(item, namespace, &place));
                let (good, bad): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
                self.documents.extend(good.into_iter().flatten());
                self.refused.extend(bad.into_iter().filter_map(Result::err));
                continue;
            }
            match read_one(file, line, text, DocumentSource::File) {
                Ok(Some((title, found))) => self.documents.push(SourceDocument {
                    place,
                    title,
                    target: target.to_owned(),
                    text: text.trim_end().to_owned() + "\n",
                    found,
                }),
                Ok(None) => {}
                Err(problem) => self.refused.push(problem),
            }
        }
    }

    fn into_documents(self) -> anyhow::Result<Vec<SourceDocument>> {
        let Self { documents, refused } = self;
        if !refused.is_empty() {
            bail!("correct these first; nothing was written:\n  {}", refused.join("\n  "));
        }
        if documents.iter().all(|document| matches!(document.found, DocumentContent::Comments)) {
            bail!("no documents: set YAML files with -f");
        }
        Ok(documents)
    }
}

/// Reads an item as a document at this location and of this file.
fn read_item(
    item: PublishedItem,
    namespace: &str,
    (place, target): &(String, PathBuf),
) -> Result<SourceDocument, String> {
    let (title, text, found) = published::read(item, namespace)?;
    Ok(SourceDocument { place: place.clone(), title, target: target.clone(), text, found })
}

/// Returns the files of a path, like every other command.
fn find_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let found = FileSource::list_files(path);
    if found.is_empty() {
        bail!("{} has no YAML files, or is not readable", path.display());
    }
    Ok(found)
}

/// Reads a document and its title; `None` if it is empty.
fn read_one(
    file: &Path,
    line: usize,
    text: &str,
    whence: DocumentSource,
) -> Result<Option<(String, DocumentContent)>, String> {
    let name = output::format_line(&file.display());
    let values = outline_document(text);
    let value = |path: &str| {
        let found = values.iter().flatten().find(|(known, _)| known == path);
        found.map(|(_, value)| value.as_str())
    };
    if value("kind") == Some("List") {
        return Err(format!("{name}:{line}: is a List; write each item as a separate document"));
    }
    let (mut objects, rejected) = read_str(&name, text);
    if let (Some((object, _)), true) = (objects.pop(), rejected.is_empty()) {
        let title = object.object_key().to_string();
        return Ok(Some((title, DocumentContent::Object(Box::new(object)))));
    }
    if rejected.is_empty() {
        let has_comment = text.lines().any(|line| line.trim_start().starts_with('#'));
        return Ok(has_comment.then(|| ("comments".to_owned(), DocumentContent::Comments)));
    }
    let kind = value("kind").unwrap_or("document");
    let title = match (value("metadata.namespace"), value("metadata.name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => kind.to_owned(),
    };
    if let Some(found) = mesh_config::read(values.as_deref().unwrap_or_default(), whence) {
        return Ok(Some((title, found)));
    }
    let of_another_kind = rejected
        .iter()
        .any(|refusal| matches!(refusal.at.field.as_deref(), Some("kind" | "apiVersion")));
    let version = value("apiVersion").unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let is_foreign = is_foreign(group);
    let may_keep_out = (is_foreign || is_below(group, ISTIO)) && !LETTING.contains(&kind);
    match (of_another_kind, is_foreign) {
        (true, _) => {
            let problem = |refusal: &RejectedDocument| {
                let field = refusal.at.field.as_deref();
                let field = field.filter(|_| refusal.problem.starts_with("is "));
                let field = field.map(|field| format!("{field} ")).unwrap_or_default();
                format!("{field}{}", refusal.problem)
            };
            let reason = rejected.first().map(problem).unwrap_or_default();
            Ok(Some((title, DocumentContent::Unread { reason, may_keep_out })))
        }
        (false, true) => {
            let reason = rejected.iter().map(|refusal| {
                let field = refusal.at.field.as_deref().unwrap_or("document");
                format!("{field}: {}; {}", refusal.problem, refusal.hint)
            });
            let reason = reason.collect::<Vec<_>>().join("; ");
            Ok(Some((title, DocumentContent::Unread { reason, may_keep_out })))
        }
        (false, false) => {
            let shown = rejected.iter().map(|refusal| {
                let within = refusal.at.line.unwrap_or(1) as usize;
                let line = line + within.saturating_sub(1);
                let field = refusal.at.field.as_deref().unwrap_or("document");
                format!("{name}:{line}: {title}: {field}: {}; {}", refusal.problem, refusal.hint)
            });
            Err(shown.collect::<Vec<_>>().join("\n  "))
        }
    }
}

/// Splits a text into documents at lines that begin with `---`, each with its first line number.
fn split_documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut begin, mut first, mut at) = (0, 1, 0);
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        let ends = line.starts_with("---")
            && line
                .get(3..)
                .is_none_or(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if ends {
            documents.push((first, text.get(begin..at).unwrap_or_default()));
            // Text after `---` on the same line belongs to the document.
            begin = at + 3;
            first = number;
            if line.trim_end() == "---" {
                begin = at + line.len();
                first = number + 1;
            }
        }
        at += line.len();
    }
    documents.push((first, text.get(begin..).unwrap_or_default()));
    documents.retain(|(_, text)| !text.trim().is_empty());
    documents
}

/// True for API groups of other meshes that this command converts.
pub(super) fn is_foreign(domain: &str) -> bool {
    MESHES.iter().any(|mesh| is_below(domain, mesh))
}

fn is_below(domain: &str, above: &str) -> bool {
    domain.strip_suffix(above).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The domains of other meshes' API groups.
const MESHES: &[&str] = &["openservicemesh.io", "flomesh.io", "smi-spec.io"];
const ISTIO: &str = "istio.io";

/// Their kinds that only allow or route requests, so dropping them never widens access.
const LETTING: &[&str] = &[
    "TrafficTarget",
    "TrafficSplit",
    "HTTPRouteGroup",
    "TCPRoute",
    "UDPRoute",
    "IngressBackend",
    "AccessControl",
    "AccessCert",
    "Egress",
    "EgressGateway",
    "Retry",
    "HealthCheckPolicy",
    "MeshRootCertificate",
    "VirtualService",
    "DestinationRule",
    "ServiceEntry",
];

/// The field of settings that configures an authorization service.
const ASKS_ANOTHER: &str = "xternalAuthorization";

/// The location of objects that come from a cluster.
const CLUSTER: &str = "in the cluster";

#[cfg(test)]
mod tests {
    use super::{DocumentContent, DocumentSource, is_foreign, read_one, split_documents};

    #[test]
    fn domains_of_other_meshes_include_their_subdomains() {
        for foreign in ["openservicemesh.io", "policy.flomesh.io", "split.smi-spec.io"] {
            assert!(is_foreign(foreign), "{foreign}");
        }
        for other in ["leno.dev", "notopenservicemesh.io", "openservicemesh.io.example", ""] {
            assert!(!is_foreign(other), "{other}");
        }
    }

    #[test]
    fn domains_that_merely_end_alike_are_not_of_another_mesh() {
        for (group, expected) in
            [("policy.flomesh.io", true), ("notflomesh.io", false), ("notistio.io", false)]
        {
            let text = format!("apiVersion: {group}/v1\nkind: Wall\nmetadata: {{name: a}}\n");
            let found = read_one("f".as_ref(), 1, &text, DocumentSource::File).unwrap();
            let Some((_, DocumentContent::Unread { may_keep_out, .. })) = found else {
                panic!("{text}")
            };
            assert_eq!(may_keep_out, expected, "{group}");
        }
    }

    #[test]
    fn documents_stand_between_lines_of_dashes() {
        for (text, expected) in [
            ("a: 1\n", &[(1, "a: 1\n")][..]),
            ("---\na: 1\n---\nb: 2\n", &[(2, "a: 1\n"), (4, "b: 2\n")]),
            ("a: 1\n--- # more\nb: 2", &[(1, "a: 1\n"), (2, " # more\nb: 2")]),
            ("--- {a: 1}\n---\n", &[(1, " {a: 1}\n")]),
            ("a: |\n  ---\n  b\n", &[(1, "a: |\n  ---\n  b\n")]),
            ("a: ---x\n---x: 1\n", &[(1, "a: ---x\n---x: 1\n")]),
            ("", &[]),
        ] {
            assert_eq!(split_documents(text), expected, "{text:?}");
        }
    }
}
