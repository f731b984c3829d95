//! Reads objects from YAML and JSON files repeatedly, and reports the changes since the previous report.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_model::{Change, Object, ObjectKey};

use crate::document::{DocumentNode, TextPosition, parse_documents};
use crate::kinds::{self, DeclaredIdentity};
use crate::lint::lint_objects;
use crate::outline::field_position;
use crate::rejections::{DocumentLocation, RejectedDocument, Warning};
use crate::scan::{
    self, ContentMode, DirectoryIdentity, FileContent, MAX_FILE_BYTES, Scan, scan_paths,
};

/// Objects from YAML files and directories.
///
/// The last valid version of each object stays active: if a document is rejected, the source retains the previous
/// version of its object from the same file. A file that cannot be read or parsed keeps all its objects. Absence
/// is not deletion: a missing path, a dangling link, and an empty directory in place of another one (an
/// unmounted share) keep their objects. A file counts as deleted if its directory exists and no longer contains
/// it. An object defined in two files belongs to the first file that defined it.
#[derive(Debug)]
pub struct FileSource {
    /// The configured files and directories.
    paths: Vec<PathBuf>,
    /// The active documents by file.
    files: BTreeMap<PathBuf, Vec<ValidDocument>>,
    /// Files that may be partially written.
    uncertain_files: BTreeMap<PathBuf, UncertainFile>,
    /// The identities of the listed directories; for one that was replaced by an empty directory, the former identity.
    directory_identities: BTreeMap<PathBuf, DirectoryIdentity>,
    /// The time of the next reading while a path is missing. Files are read again at this time because a mount causes
    /// no event.
    missing_retry_at: Option<Instant>,
    /// The reported objects and their files.
    reported_objects: BTreeMap<ObjectKey, (Object, PathBuf)>,
}

/// The result of reading all files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegistryUpdate {
    /// The changes since the last report: removals first, then additions and updates.
    pub changes: Vec<Change>,
    /// All current rejections, including those reported before.
    pub rejected: Vec<RejectedDocument>,
    /// All current warnings.
    pub warnings: Vec<Warning>,
    /// The number of active objects.
    pub object_count: usize,
    /// The file locations of the active objects.
    pub locations: Vec<ObjectLocation>,
    /// The time of the first file system event that caused this reading; `None` if no event did.
    pub first_event_at: Option<Instant>,
}

impl RegistryUpdate {
    /// Returns the rejections of documents that may be the mesh's `MeshConfig`. The first reading has no previous
    /// `MeshConfig` to retain, so without these documents the mesh would use the default policy, `allow`.
    pub fn possible_mesh_config_rejections(&self) -> impl Iterator<Item = &RejectedDocument> {
        let has_mesh_config = self
            .changes
            .iter()
            .any(|change| matches!(change, Change::Upsert(Object::MeshConfig(_))));
        self.rejected.iter().filter(move |rejected| match rejected.location.kind.as_deref() {
            Some(kind) => kinds::may_be_mesh_config(kind),
            // A whole file, or a document without a kind.
            None => !has_mesh_config,
        })
    }
}

/// The location of an active object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectLocation {
    /// The kind and name of the object.
    pub key: ObjectKey,
    /// The path of the file that defines it.
    pub file: PathBuf,
    /// The first line of its document in the last valid reading, counted from 1.
    pub line: u32,
}

/// A valid document of a file.
#[derive(Debug, Clone)]
struct ValidDocument {
    key: ObjectKey,
    object: Object,
    position: TextPosition,
    warnings: Vec<Warning>,
}

/// A file that lost objects and is possibly being written.
#[derive(Debug)]
struct UncertainFile {
    /// The latest content of the file.
    text: String,
    /// The time of the first reading with this content.
    unchanged_since: Instant,
    /// The time at which the file became uncertain.
    uncertain_since: Instant,
}

impl UncertainFile {
    fn from_reading(text: String, previous: Option<Self>, now: Instant) -> Self {
        match previous {
            Some(previous) if previous.text == text => previous,
            Some(previous) => {
                Self { text, unchanged_since: now, uncertain_since: previous.uncertain_since }
            }
            None => Self { text, unchanged_since: now, uncertain_since: now },
        }
    }

    /// Returns the time at which the content is accepted as it is.
    fn accepted_at(&self) -> Instant {
        (self.unchanged_since + UNCHANGED_TIME).min(self.uncertain_since + MAX_UNCERTAIN_TIME)
    }
}

/// Reads the documents of a text; `file` is its file name in locations. Returns the objects with the first lines of their
/// documents, and the rejections. The second definition of an object is rejected.
#[must_use]
pub fn read_str(file: &str, text: &str) -> (Vec<(Object, u32)>, Vec<RejectedDocument>) {
    let reading = FileReading::from_text(file, text, &[]);
    let documents = reading.documents.into_iter();
    (
        documents.map(|document| (document.object, document.position.line)).collect(),
        reading.rejected,
    )
}

impl FileSource {
    /// Creates a source for these files and directories, without reading them.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            files: BTreeMap::new(),
            uncertain_files: BTreeMap::new(),
            directory_identities: BTreeMap::new(),
            missing_retry_at: None,
            reported_objects: BTreeMap::new(),
        }
    }

    /// Returns the files of a path that a source would read.
    #[must_use]
    pub fn list_files(path: &Path) -> Vec<PathBuf> {
        scan_paths(&[path.to_owned()], ContentMode::Skip).files.into_keys().collect()
    }

    /// Reads everything now and returns the changes since the last report. Every file is accepted as it is.
    pub fn reload(&mut self) -> RegistryUpdate {
        let scan = scan_paths(&self.paths, ContentMode::Read);
        self.apply_scan(scan, None)
    }

    /// Reads everything and returns the changes since the last report. Unlike with [`FileSource::reload`], a file that
    /// lost objects and looks partially written keeps its objects until a later reading finds it unchanged, at most
    /// for [`MAX_UNCERTAIN_TIME`].
    pub(crate) fn reload_with_grace(&mut self, now: Instant) -> RegistryUpdate {
        let scan = scan_paths(&self.paths, ContentMode::Read);
        self.apply_scan(scan, Some(now))
    }

    /// Returns the time of the next reading that is due regardless of events.
    pub(crate) fn next_reload_at(&self) -> Option<Instant> {
        self.uncertain_files
            .values()
            .map(UncertainFile::accepted_at)
            .chain(self.missing_retry_at)
            .min()
    }

    /// Returns the active objects.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.reported_objects.values().map(|(object, _)| object)
    }

    /// Returns the locations of the active objects.
    #[must_use]
    pub fn object_locations(&self) -> Vec<ObjectLocation> {
        let to_location = |(key, (_, file)): (&ObjectKey, &(Object, PathBuf))| {
            Some(ObjectLocation {
                key: key.clone(),
                file: file.clone(),
                line: self.find_document(file, key)?.position.line,
            })
        };
        self.reported_objects.iter().filter_map(to_location).collect()
    }

    /// Returns the warnings about the active objects as a whole, with locations.
    #[must_use]
    pub fn lint_warnings(&self) -> Vec<Warning> {
        let objects: Vec<Object> = self.objects().cloned().collect();
        let mut warnings = lint_objects(&objects);
        warnings.extend(objects.iter().filter_map(warn_about_cluster_only_kind));
        let locations_by_object: BTreeMap<String, ObjectLocation> = self
            .object_locations()
            .into_iter()
            .map(|location| {
                (object_text(&DocumentLocation::for_object(&location.key, "")), location)
            })
            .collect();
        let mut field_lines = FieldLines::default();
        for warning in &mut warnings {
            let object = object_text(&warning.location);
            let Some(location) = locations_by_object.get(&object) else { continue };
            let field = warning.location.field.as_deref().unwrap_or_default();
            let line = field_lines.find_line(&location.file, location.line, field);
            warning.location.file = Some(location.file.display().to_string());
            warning.location.line = Some(line.unwrap_or(location.line));
        }
        warnings
    }

    /// Returns the paths of this source.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn find_document(&self, file: &Path, key: &ObjectKey) -> Option<&ValidDocument> {
        let documents = self.files.get(file)?;
        documents.iter().find(|document| document.key == *key)
    }

    /// Applies a scan and returns the changes since the last report. `grace_start` is the time of the reading if files that
    /// look partially written keep their objects for a grace period, and `None` if there is no grace period.
    fn apply_scan(&mut self, mut scan: Scan, grace_start: Option<Instant>) -> RegistryUpdate {
        self.retain_replaced_directories(&mut scan);
        for symlink in std::mem::take(&mut scan.dangling_symlinks) {
            if self.has_files_below(&symlink) {
                scan.reject_dangling_symlink(&symlink);
            }
        }
        let (mut rejected, name_warnings) = (scan.rejected, scan.warnings);
        let mut previous_files = std::mem::take(&mut self.files);
        let mut uncertain_files = std::mem::take(&mut self.uncertain_files);
        // A file that cannot be read, or may be incomplete, keeps its previous documents.
        for (path, content) in scan.files {
            let previous_documents = previous_files.remove(&path).unwrap_or_default();
            let documents = match content {
                FileContent::Text(text) => {
                    let reading = FileReading::from_text(
                        &path.display().to_string(),
                        &text,
                        &previous_documents,
                    );
                    rejected.extend(reading.rejected);
                    let mut documents = reading.documents;
                    let lost_documents = find_lost_documents(&previous_documents, &documents);
                    if let Some(now) = grace_start
                        && !lost_documents.is_empty()
                        && may_be_partially_written(&text)
                    {
                        let uncertain =
                            UncertainFile::from_reading(text, uncertain_files.remove(&path), now);
                        if now < uncertain.accepted_at() {
                            documents.extend(lost_documents);
                            self.uncertain_files.insert(path.clone(), uncertain);
                        }
                    }
                    documents
                }
                FileContent::Unreadable(rejection) => {
                    rejected.push(rejection);
                    previous_documents
                }
                // The file was listed, but does not exist now; the next reading decides whether it was removed.
                FileContent::Absent => {
                    scan.needs_retry = true;
                    previous_documents
                }
            };
            self.files.insert(path, documents);
        }
        // The documents of files in directories that currently cannot be listed are retained.
        let is_unknown =
            |path: &PathBuf| scan.unknown_paths.iter().any(|unknown| path.starts_with(unknown));
        let retained_files = previous_files.into_iter().filter(|(path, _)| is_unknown(path));
        self.files.extend(retained_files);
        self.missing_retry_at =
            grace_start.filter(|_| scan.needs_retry).map(|now| now + MISSING_RETRY_INTERVAL);
        let (current_objects, mut warnings) = self.resolve_duplicates(&mut rejected);
        warnings.extend(name_warnings);
        let changes = compare_objects(&self.reported_objects, &current_objects);
        self.reported_objects = current_objects;
        rejected.sort();
        let (object_count, locations) = (self.reported_objects.len(), self.object_locations());
        // `watch_source` sets the time of the event.
        let first_event_at = None;
        RegistryUpdate { changes, rejected, warnings, object_count, locations, first_event_at }
    }

    /// Retains the objects of a directory that was replaced by an empty one: an unmounted share, or a checkout in
    /// progress.
    fn retain_replaced_directories(&mut self, scan: &mut Scan) {
        let mut replaced_directories = Vec::new();
        for (path, listed) in &scan.directories {
            let previous_identity = self.directory_identities.get(path);
            if listed.is_empty && previous_identity != Some(&listed.identity) {
                replaced_directories.push(path.clone());
            } else {
                self.directory_identities.insert(path.clone(), listed.identity);
            }
        }
        for path in replaced_directories {
            if self.has_files_below(&path) {
                scan.needs_retry = true;
                let problem = "is empty, and is not the directory that was read before";
                scan.rejected.push(scan::path_rejection(&path, problem, REPLACED_HINT));
                scan.unknown_paths.push(path);
            }
        }
        let (listed_directories, unknown_paths) = (&scan.directories, &scan.unknown_paths);
        self.directory_identities.retain(|path, _| {
            listed_directories.contains_key(path)
                || unknown_paths.iter().any(|unknown| path.starts_with(unknown))
        });
    }

    fn has_files_below(&self, directory: &Path) -> bool {
        self.files.keys().any(|file| file.starts_with(directory))
    }

    /// Selects one definition of each object and rejects the others: the definition in the file of the last report takes
    /// precedence, then the first by path. Returns the selected objects with their files, and their warnings.
    fn resolve_duplicates(
        &self,
        rejected: &mut Vec<RejectedDocument>,
    ) -> (BTreeMap<ObjectKey, (Object, PathBuf)>, Vec<Warning>) {
        let mut selected_documents: BTreeMap<&ObjectKey, (&PathBuf, &ValidDocument)> =
            BTreeMap::new();
        let mut duplicates = Vec::new();
        let documents = self
            .files
            .iter()
            .flat_map(|(path, documents)| documents.iter().map(move |document| (path, document)));
        for (path, document) in documents {
            match selected_documents.entry(&document.key) {
                Entry::Vacant(entry) => {
                    entry.insert((path, document));
                }
                Entry::Occupied(mut entry) => {
                    let reported_file =
                        self.reported_objects.get(&document.key).map(|(_, file)| file);
                    let duplicate = match reported_file == Some(path) {
                        true => entry.insert((path, document)),
                        false => (path, document),
                    };
                    duplicates.push(duplicate);
                }
            }
        }
        for (path, document) in duplicates {
            if let Some((selected_path, selected)) = selected_documents.get(&document.key) {
                let selected_location =
                    format!("{}:{}", selected_path.display(), selected.position.line);
                let file = path.display().to_string();
                rejected.push(duplicate_rejection(&file, document, &selected_location));
            }
        }
        let warnings = selected_documents.values().flat_map(|(_, document)| &document.warnings);
        let mut warnings: Vec<Warning> = warnings.cloned().collect();
        warnings.sort();
        let current_objects = selected_documents.into_values().map(|(path, document)| {
            let object_and_file = (document.object.clone(), path.clone());
            (document.key.clone(), object_and_file)
        });
        (current_objects.collect(), warnings)
    }
}

/// Returns the documents currently in a file; none if it cannot be read or parsed.
fn read_documents(file: &Path) -> Vec<DocumentNode> {
    let mut remaining_bytes = MAX_FILE_BYTES;
    match scan::read_file(file, &mut remaining_bytes) {
        FileContent::Text(text) => parse_documents(&text).unwrap_or_default(),
        FileContent::Unreadable(_) | FileContent::Absent => Vec::new(),
    }
}

/// The result of reading one file.
struct FileReading {
    documents: Vec<ValidDocument>,
    rejected: Vec<RejectedDocument>,
}

impl FileReading {
    /// Reads `text`. Objects of rejected documents are retained; if the text cannot be parsed, all previous objects.
    fn from_text(file: &str, text: &str, previous_documents: &[ValidDocument]) -> Self {
        let nodes = match parse_documents(text) {
            Ok(nodes) => nodes,
            Err(error) => {
                let location = DocumentLocation {
                    file: Some(file.to_owned()),
                    line: Some(error.position.line),
                    column: Some(error.position.column),
                    ..DocumentLocation::default()
                };
                return Self {
                    documents: previous_documents.to_vec(),
                    rejected: vec![RejectedDocument {
                        location,
                        problem: error.problem,
                        hint: error.hint,
                    }],
                };
            }
        };
        let mut reading = Self { documents: Vec::new(), rejected: Vec::new() };
        let mut first_lines: BTreeMap<ObjectKey, u32> = BTreeMap::new();
        let mut rejected_identities: Vec<DeclaredIdentity> = Vec::new();
        for node in &nodes {
            let document_reading = kinds::read_document(Some(file), node);
            match document_reading.outcome {
                Ok(accepted) => {
                    let document = ValidDocument {
                        key: accepted.object.object_key(),
                        object: accepted.object,
                        position: document_reading.position,
                        warnings: accepted.warnings,
                    };
                    reading.add_document(file, document, &mut first_lines);
                }
                Err(rejected) => {
                    reading.rejected.extend(rejected);
                    rejected_identities.push(document_reading.identity);
                }
            }
        }
        reading.retain_previous(previous_documents, &rejected_identities);
        reading
    }

    /// Adds a document, or rejects it if `first_lines` contains the line of another definition of its object.
    fn add_document(
        &mut self,
        file: &str,
        document: ValidDocument,
        first_lines: &mut BTreeMap<ObjectKey, u32>,
    ) {
        match first_lines.get(&document.key) {
            Some(line) => {
                let first_location = format!("{file}:{line}");
                self.rejected.push(duplicate_rejection(file, &document, &first_location));
            }
            None => {
                first_lines.insert(document.key.clone(), document.position.line);
                self.documents.push(document);
            }
        }
    }

    /// Retains the last valid version of the objects that rejected documents may define.
    fn retain_previous(
        &mut self,
        previous_documents: &[ValidDocument],
        rejected_identities: &[DeclaredIdentity],
    ) {
        if rejected_identities.is_empty() {
            return;
        }
        let current_keys: BTreeSet<ObjectKey> =
            self.documents.iter().map(|document| document.key.clone()).collect();
        let retained_documents = previous_documents.iter().filter(|document| {
            !current_keys.contains(&document.key)
                && rejected_identities.iter().any(|identity| identity.may_define(&document.key))
        });
        self.documents.extend(retained_documents.cloned());
    }
}

/// Returns the previous documents with objects that the current ones no longer define.
fn find_lost_documents(
    previous_documents: &[ValidDocument],
    current_documents: &[ValidDocument],
) -> Vec<ValidDocument> {
    let current_keys: BTreeSet<&ObjectKey> =
        current_documents.iter().map(|document| &document.key).collect();
    previous_documents
        .iter()
        .filter(|document| !current_keys.contains(&document.key))
        .cloned()
        .collect()
}

/// True if the text may be the beginning of a longer text that is being written.
fn may_be_partially_written(text: &str) -> bool {
    text.trim().is_empty() || !text.ends_with('\n')
}

/// Returns the rejection of a further definition of an object; `first_location` is the file and line of the first one.
fn duplicate_rejection(
    file: &str,
    document: &ValidDocument,
    first_location: &str,
) -> RejectedDocument {
    let mut location = DocumentLocation::for_object(&document.key, "metadata.name");
    location.file = Some(file.to_owned());
    location.line = Some(document.position.line);
    location.column = Some(document.position.column);
    let (problem, hint) = match document.key {
        ObjectKey::MeshConfig => {
            let problem = format!("a mesh has one MeshConfig, and {first_location} is in force");
            (problem, "remove one of the two: its name makes no difference")
        }
        _ => {
            let problem = format!("is already defined at {first_location}");
            (problem, "remove one of the two, or rename it")
        }
    };
    RejectedDocument { location, problem, hint: hint.to_owned() }
}

/// Returns the changes from the previous to the current objects: removals first, then additions and updates.
fn compare_objects(
    previous_objects: &BTreeMap<ObjectKey, (Object, PathBuf)>,
    current_objects: &BTreeMap<ObjectKey, (Object, PathBuf)>,
) -> Vec<Change> {
    let removed_keys = previous_objects.keys().filter(|key| !current_objects.contains_key(*key));
    let removals = removed_keys.cloned().map(Change::Remove);
    let upserts = current_objects.iter().filter_map(|(key, (object, _))| {
        let is_unchanged =
            previous_objects.get(key).is_some_and(|(previous_object, _)| previous_object == object);
        (!is_unchanged).then(|| Change::Upsert(object.clone()))
    });
    removals.chain(upserts).collect()
}

/// A lookup of the lines of fields. It reads each file once more, because sources do not store the lines of fields.
#[derive(Debug, Default)]
pub struct FieldLines(BTreeMap<PathBuf, Vec<DocumentNode>>);

impl FieldLines {
    /// Returns the line of a field in the document that begins at `first_line` of a file; for an absent field, the
    /// line of its parent. `None` if no document begins there, or if the file cannot be read.
    pub fn find_line(&mut self, file: &Path, first_line: u32, field: &str) -> Option<u32> {
        let documents = self.0.entry(file.to_owned()).or_insert_with(|| read_documents(file));
        let document = documents.iter().find(|document| document.position.line == first_line)?;
        Some(field_position(document, field).line)
    }
}

/// Adds file and line to warnings without a file: the first line of the document that defines the object.
pub fn locate_warnings(warnings: &mut [Warning], locations: &[ObjectLocation]) {
    let locations_by_object: BTreeMap<String, &ObjectLocation> = locations
        .iter()
        .map(|location| (object_text(&DocumentLocation::for_object(&location.key, "")), location))
        .collect();
    for warning in warnings.iter_mut().filter(|warning| warning.location.file.is_none()) {
        let object = object_text(&warning.location);
        let Some(location) = locations_by_object.get(&object) else { continue };
        warning.location.file = Some(location.file.display().to_string());
        warning.location.line = Some(location.line);
    }
}

/// Returns the kind, namespace and name at a location as one text, such as `Service shop/web`.
fn object_text(location: &DocumentLocation) -> String {
    let text_or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    format!(
        "{} {}/{}",
        text_or_empty(&location.kind),
        text_or_empty(&location.namespace),
        text_or_empty(&location.name)
    )
}

/// The time for which an uncertain file must be unchanged before its content is accepted. A writer that truncates
/// a file completes it sooner.
const UNCHANGED_TIME: Duration = Duration::from_millis(250);
/// The time after which an uncertain file that keeps changing is accepted as it is.
const MAX_UNCERTAIN_TIME: Duration = Duration::from_millis(600);
/// The interval between checks for a missing path.
const MISSING_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The hint for a directory in place of the one that was read before.
const REPLACED_HINT: &str = "mount or fill it; until then its last content stays in force (to \
                               delete those objects, add a file `none.yaml` with a comment)";

/// Returns a warning for an object that has no effect in a mesh configured by files.
fn warn_about_cluster_only_kind(object: &Object) -> Option<Warning> {
    matches!(object, Object::AccessCert(_)).then(|| Warning {
        location: DocumentLocation::for_object(&object.object_key(), "spec.secret"),
        problem:
            "is written only by control planes in Kubernetes, not in a mesh configured by files"
                .to_owned(),
        hint: "let the client join with its own token (`leno token`), or allow its address"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn service_document(name: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{ports: [{{port: 1}}]}}\n"
        )
    }

    /// Checks the number of active objects after each reading, given as (time in ms, text, number). Without a text,
    /// the file is removed.
    fn check_readings(readings: &[(u64, Option<&str>, usize)]) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, service_document("a") + &service_document("b")).unwrap();
        let mut source = FileSource::new(vec![dir.path().to_owned()]);
        let start = Instant::now();
        assert_eq!(source.reload_with_grace(start).object_count, 2);
        for (time, text, expected_count) in readings {
            match text {
                Some(text) => fs::write(&file, text).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let update = source.reload_with_grace(start + Duration::from_millis(*time));
            assert_eq!(update.object_count, *expected_count, "{time} ms: {readings:?}");
            assert_eq!(update.rejected, [], "{time} ms: {readings:?}");
        }
        assert!(source.next_reload_at().is_none(), "no reading is due after {readings:?}");
    }

    #[test]
    fn objects_missing_from_a_partially_written_file_stay_active() {
        let (a, both_documents) =
            (service_document("a"), service_document("a") + &service_document("b"));
        let truncated = format!("{a}---\n# b comes");
        check_readings(&[(100, Some(""), 2), (200, Some(&both_documents), 2)]);
        check_readings(&[
            (100, Some(" \n"), 2),
            (300, Some(&truncated), 2),
            (400, Some(&both_documents), 2),
        ]);
        check_readings(&[(100, Some(""), 2), (349, Some(""), 2), (350, Some(""), 0)]);
        check_readings(&[(100, Some(&truncated), 2), (350, Some(&truncated), 1)]);
    }

    #[test]
    fn objects_removed_from_a_complete_file_are_removed_at_once() {
        check_readings(&[(100, Some(&service_document("a")), 1)]);
        check_readings(&[(100, Some("# nothing left\n"), 0)]);
        check_readings(&[(100, None, 0)]);
        check_readings(&[(100, Some(""), 2), (110, None, 0)]);
    }

    #[test]
    fn a_file_that_keeps_changing_is_accepted_after_the_limit() {
        check_readings(&[
            (0, Some("#"), 2),
            (200, Some("#1"), 2),
            (400, Some("#2"), 2),
            (600, Some("#3"), 0),
        ]);
    }

    #[test]
    fn rejections_that_may_hide_the_mesh_config_are_reported() {
        let config = |kind: &str, spec: &str| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
            )
        };
        let valid = config("MeshConfig", "{defaultPolicy: deny}");
        for (text, expected) in [
            (service_document("a"), false),
            (valid.clone(), false),
            (config("MeshConfig", "{defaultPolicy: Deny}"), true),
            (config("meshconfg", "{defaultPolicy: deny}"), true),
            (config("MeshConfiguration", "{defaultPolicy: deny}"), true),
            ("kind: MeshConfig\nspec: {defaultPolicy: deny}\n".to_owned(), true),
            ("metadata: {name: x}\nspec: {defaultPolicy: deny}\n".to_owned(), true),
            ("kind: MeshConfig\nspec: {defaultPolicy: deny\n".to_owned(), true),
            (config("ConfigMap", "{}"), false),
            // Kinds of other meshes.
            (config("ProxyConfig", "{concurrency: 2}"), false),
            (config("MeshTLSAuthentication", "{}"), false),
            (config("MeshRateLimit", "{}"), false),
            (format!("{valid}---\nspec: {{}}\n"), false),
            (format!("{valid}---\n{}", config("MeshConfig", "{defaultPolicy: allow}")), true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("a.yaml"), &text).unwrap();
            let update = FileSource::new(vec![dir.path().to_owned()]).reload();
            let rejections: Vec<_> = update.possible_mesh_config_rejections().collect();
            assert_eq!(!rejections.is_empty(), expected, "{text}: {rejections:?}");
        }
    }
}
