//! Reads the documents to convert from files, from a text or from a cluster. Each document keeps its original text
//! and its parsed content.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use leno_model::{Egress, Object};
use leno_registry::{FileSource, RejectedDocument, outline_document, read_str};

use super::config_center::ConfigCenterItem;
use super::{config_center, mesh_config};
use crate::output;

/// One document of the input, with the file to which its conversion is written.
pub(super) struct SourceDocument {
    /// The file and the line, or the cluster, for the report.
    pub(super) location: String,
    /// The kind and name, for the report.
    pub(super) title: String,
    /// The output file, relative to the output directory.
    pub(super) output_file: PathBuf,
    /// The original text, with the final newline.
    pub(super) text: String,
    pub(super) content: DocumentContent,
}

/// The source of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentSource {
    /// A file of the input.
    File,
    /// The API server of a cluster, where settings stay in effect while they exist.
    Cluster,
}

/// The content of a document.
pub(super) enum DocumentContent {
    /// An object that Leno reads.
    Object(Box<Object>),
    /// The `MeshConfig` of another mesh: its permissive traffic policy mode, its egress mode, and enabled settings
    /// that Leno does not support.
    Settings { is_permissive: bool, egress: Egress, unsupported: Vec<String> },
    /// An item of Sermant's configuration center without a corresponding object.
    ConfigCenter(ConfigCenterItem),
    /// A document that Leno does not read: of another kind, or of another mesh with features that Leno lacks.
    Unread {
        reason: String,
        /// True if the document may have denied or restricted access.
        may_restrict_access: bool,
    },
    /// Comments only.
    Comments,
}

impl SourceDocument {
    /// Returns the object, if Leno reads it.
    pub(super) fn object(&self) -> Option<&Object> {
        match &self.content {
            DocumentContent::Object(object) => Some(object),
            DocumentContent::Settings { .. }
            | DocumentContent::ConfigCenter(_)
            | DocumentContent::Unread { .. }
            | DocumentContent::Comments => None,
        }
    }

    /// True if the document, or its unsupported settings, may have denied or restricted access.
    pub(super) fn may_restrict_access(&self) -> bool {
        match &self.content {
            DocumentContent::Object(_) | DocumentContent::Comments => false,
            DocumentContent::ConfigCenter(item) => config_center::limits_requests(item),
            DocumentContent::Settings { unsupported, .. } => {
                unsupported.iter().any(|setting| setting.contains(EXTERNAL_AUTHORIZATION))
            }
            DocumentContent::Unread { may_restrict_access, .. } => *may_restrict_access,
        }
    }

    /// Reads an object of a cluster from YAML.
    ///
    /// # Errors
    /// If Leno reads its kind and rejects the object.
    pub(super) fn from_cluster(text: &str) -> anyhow::Result<Option<Self>> {
        let content = read_document(Path::new(CLUSTER_LOCATION), 1, text, DocumentSource::Cluster)
            .map_err(anyhow::Error::msg)?;
        Ok(content.map(|(title, content)| Self {
            location: CLUSTER_LOCATION.to_owned(),
            title,
            output_file: PathBuf::new(),
            text: text.to_owned(),
            content,
        }))
    }
}

impl fmt::Display for SourceDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.title, self.location)
    }
}

/// Reads all documents of all files, in order.
///
/// # Errors
/// If a file cannot be read, two output files would have the same name, or a document of a native kind is
/// rejected. Rejected documents of another mesh are reported as dropped instead.
pub(super) fn read_files(
    paths: &[PathBuf],
    namespace: &str,
) -> anyhow::Result<Vec<SourceDocument>> {
    let mut reader = DocumentReader::default();
    let mut output_files: Vec<PathBuf> = Vec::new();
    for path in paths {
        for file in find_files(path)? {
            let output_file = match file.strip_prefix(path) {
                Ok(relative) if !relative.as_os_str().is_empty() => relative.to_owned(),
                // The path is that of the file itself.
                _ => file.file_name().map(PathBuf::from).context("a file has a name")?,
            };
            if output_files.contains(&output_file) {
                bail!(
                    "two input files would be written to {}: migrate them separately",
                    output_file.display()
                );
            }
            output_files.push(output_file.clone());
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            reader.read_file_text(&file, &output_file, &text, namespace);
        }
    }
    reader.into_documents()
}

/// Reads all documents of one text, in order.
///
/// # Errors
/// If there is no document, or a document of a native kind is rejected.
pub(super) fn read_text(text: &str, namespace: &str) -> anyhow::Result<Vec<SourceDocument>> {
    let mut reader = DocumentReader::default();
    reader.read_file_text(Path::new("text"), Path::new("text"), text, namespace);
    reader.into_documents()
}

/// Collects the documents of the input, and the problems of rejected documents.
#[derive(Default)]
struct DocumentReader {
    documents: Vec<SourceDocument>,
    problems: Vec<String>,
}

impl DocumentReader {
    /// Reads one file with the content `file_text`. The results of its documents are written to `output_file`.
    fn read_file_text(
        &mut self,
        file: &Path,
        output_file: &Path,
        file_text: &str,
        namespace: &str,
    ) {
        for (line, text) in split_documents(file_text) {
            let location = format!("{}:{line}", output::format_line(&file.display()));
            let items = config_center::parse_items(text);
            if !items.is_empty() {
                let results = items
                    .into_iter()
                    .map(|item| read_item(item, namespace, &location, output_file));
                let (documents, problems): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
                self.documents.extend(documents.into_iter().flatten());
                self.problems.extend(problems.into_iter().filter_map(Result::err));
                continue;
            }
            match read_document(file, line, text, DocumentSource::File) {
                Ok(Some((title, content))) => self.documents.push(SourceDocument {
                    location,
                    title,
                    output_file: output_file.to_owned(),
                    text: text.trim_end().to_owned() + "\n",
                    content,
                }),
                Ok(None) => {}
                Err(problem) => self.problems.push(problem),
            }
        }
    }

    fn into_documents(self) -> anyhow::Result<Vec<SourceDocument>> {
        let Self { documents, problems } = self;
        if !problems.is_empty() {
            bail!(
                "documents are rejected, and nothing was written; correct them first:\n  {}",
                problems.join("\n  ")
            );
        }
        if documents.iter().all(|document| matches!(document.content, DocumentContent::Comments)) {
            bail!("no documents: set YAML files with -f");
        }
        Ok(documents)
    }
}

/// Reads an item of Sermant's configuration center as a document.
fn read_item(
    item: ConfigCenterItem,
    namespace: &str,
    location: &str,
    output_file: &Path,
) -> Result<SourceDocument, String> {
    let (title, text, content) = config_center::read_item(item, namespace)?;
    Ok(SourceDocument {
        location: location.to_owned(),
        title,
        output_file: output_file.to_owned(),
        text,
        content,
    })
}

/// Returns the YAML files at a path: the same files that `leno check -f` reads.
fn find_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = FileSource::list_files(path);
    if files.is_empty() {
        bail!("{} has no YAML files, or is not readable", path.display());
    }
    Ok(files)
}

/// Reads the title and the content of a document; `None` if the document is empty. `line` is the document's first
/// line in the file.
///
/// # Errors
/// If the document is a `List`, or is of a native kind and rejected. A rejected document of another mesh is returned
/// as [`DocumentContent::Unread`] instead.
fn read_document(
    path: &Path,
    line: usize,
    text: &str,
    source: DocumentSource,
) -> Result<Option<(String, DocumentContent)>, String> {
    let file = output::format_line(&path.display());
    let values = outline_document(text);
    let find_value = |field_path: &str| {
        let entry = values.iter().flatten().find(|(field, _)| field == field_path);
        entry.map(|(_, value)| value.as_str())
    };
    if find_value("kind") == Some("List") {
        return Err(format!("{file}:{line}: is a List; write each item as a separate document"));
    }
    let (mut objects, rejected) = read_str(&file, text);
    if let (Some((object, _)), true) = (objects.pop(), rejected.is_empty()) {
        let title = object.object_key().to_string();
        return Ok(Some((title, DocumentContent::Object(Box::new(object)))));
    }
    // Neither an object nor a rejected document: the text has no fields.
    if rejected.is_empty() {
        let has_comment = text.lines().any(|line| line.trim_start().starts_with('#'));
        return Ok(has_comment.then(|| ("comments".to_owned(), DocumentContent::Comments)));
    }
    let kind = find_value("kind").unwrap_or("document");
    let title = match (find_value("metadata.namespace"), find_value("metadata.name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => kind.to_owned(),
    };
    if let Some(content) =
        mesh_config::read_mesh_config(values.as_deref().unwrap_or_default(), source)
    {
        return Ok(Some((title, content)));
    }
    // Rejected documents of other kinds or meshes are dropped with a reason. A rejected native document is an error.
    let is_unknown_kind = rejected.iter().any(|rejection| {
        matches!(rejection.location.field.as_deref(), Some("kind" | "apiVersion"))
    });
    let api_version = find_value("apiVersion").unwrap_or_default();
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let is_convertible = is_convertible_group(group);
    let may_restrict_access =
        (is_convertible || is_subdomain_of(group, ISTIO_DOMAIN)) && !ALLOWING_KINDS.contains(&kind);
    match (is_unknown_kind, is_convertible) {
        (true, _) => {
            let reason = rejected.first().map(describe_unknown_kind).unwrap_or_default();
            Ok(Some((title, DocumentContent::Unread { reason, may_restrict_access })))
        }
        (false, true) => {
            let problems = rejected.iter().map(|rejection| {
                let field = rejection.location.field.as_deref().unwrap_or("document");
                format!("{field}: {}; {}", rejection.problem, rejection.hint)
            });
            let reason = problems.collect::<Vec<_>>().join("; ");
            Ok(Some((title, DocumentContent::Unread { reason, may_restrict_access })))
        }
        (false, false) => {
            let problems = rejected.iter().map(|rejection| {
                let line_in_document = rejection.location.line.unwrap_or(1) as usize;
                let line_in_file = line + line_in_document.saturating_sub(1);
                let field = rejection.location.field.as_deref().unwrap_or("document");
                format!(
                    "{file}:{line_in_file}: {title}: {field}: {}; {}",
                    rejection.problem, rejection.hint
                )
            });
            Err(problems.collect::<Vec<_>>().join("\n  "))
        }
    }
}

/// Describes the rejection of a document with an unknown kind or API version. A problem such as `is unknown`
/// needs the name of the field before it.
fn describe_unknown_kind(rejection: &RejectedDocument) -> String {
    let problem = &rejection.problem;
    match rejection.location.field.as_deref() {
        Some(field) if problem.starts_with("is ") => format!("{field} {problem}"),
        _ => problem.clone(),
    }
}

/// Splits a text into documents at lines that begin with `---`, each with its first line number.
fn split_documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start_offset, mut first_line, mut offset) = (0, 1, 0);
    for (line, line_number) in text.split_inclusive('\n').zip(1..) {
        let is_separator = line.starts_with("---")
            && line
                .get(3..)
                .is_none_or(|suffix| suffix.is_empty() || suffix.starts_with(char::is_whitespace));
        if is_separator {
            documents.push((first_line, text.get(start_offset..offset).unwrap_or_default()));
            // Text after `---` on the same line belongs to the document.
            start_offset = offset + 3;
            first_line = line_number;
            if line.trim_end() == "---" {
                start_offset = offset + line.len();
                first_line = line_number + 1;
            }
        }
        offset += line.len();
    }
    documents.push((first_line, text.get(start_offset..).unwrap_or_default()));
    documents.retain(|(_, text)| !text.trim().is_empty());
    documents
}

/// True for API groups of other meshes that this command converts.
pub(super) fn is_convertible_group(domain: &str) -> bool {
    MESH_DOMAINS.iter().any(|mesh_domain| is_subdomain_of(domain, mesh_domain))
}

fn is_subdomain_of(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|suffix| suffix.is_empty() || suffix.ends_with('.'))
}

/// The domains of other meshes' API groups.
const MESH_DOMAINS: &[&str] = &["openservicemesh.io", "flomesh.io", "smi-spec.io"];
/// The domain of Istio's API groups. This command does not convert them, but dropping their policies may widen access.
const ISTIO_DOMAIN: &str = "istio.io";

/// Kinds of other meshes that only allow or route requests, so dropping their objects never widens access.
const ALLOWING_KINDS: &[&str] = &[
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

/// The common part of the fields that configure an external authorization service: `externalAuthorization` and
/// `inboundExternalAuthorization`.
const EXTERNAL_AUTHORIZATION: &str = "xternalAuthorization";

/// The location of objects that come from a cluster.
const CLUSTER_LOCATION: &str = "in the cluster";

#[cfg(test)]
mod tests {
    use super::{
        DocumentContent, DocumentSource, is_convertible_group, read_document, split_documents,
    };

    #[test]
    fn domains_of_other_meshes_include_their_subdomains() {
        for group in ["openservicemesh.io", "policy.flomesh.io", "split.smi-spec.io"] {
            assert!(is_convertible_group(group), "{group}");
        }
        for native in ["leno.dev", "notopenservicemesh.io", "openservicemesh.io.example", ""] {
            assert!(!is_convertible_group(native), "{native}");
        }
    }

    #[test]
    fn domains_with_only_the_same_suffix_are_not_of_another_mesh() {
        for (group, expected) in
            [("policy.flomesh.io", true), ("notflomesh.io", false), ("notistio.io", false)]
        {
            let text = format!("apiVersion: {group}/v1\nkind: Wall\nmetadata: {{name: a}}\n");
            let content = read_document("f".as_ref(), 1, &text, DocumentSource::File).unwrap();
            let Some((_, DocumentContent::Unread { may_restrict_access, .. })) = content else {
                panic!("{text}")
            };
            assert_eq!(may_restrict_access, expected, "{group}");
        }
    }

    #[test]
    fn documents_are_split_at_lines_of_dashes() {
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
