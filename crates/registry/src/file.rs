//! The file source: reads files repeatedly and reports changes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_model::{Change, Object, ObjectKey};

use crate::document::{DocumentNode, TextPosition, parse_documents};
use crate::kinds::{self, DeclaredIdentity};
use crate::lint::lint_objects;
use crate::outline::dns_record;
use crate::rejected::{DocumentLocation, RejectedDocument, Warning};
use crate::scan::{
    self, ContentMode, DirectoryIdentity, FILE_BYTES_MAX, FileContent, Scan, scan_paths,
};

/// Objects from YAML files and directories.
///
/// The last good state stays in force, per object: if a document is rejected, the last good version of its
/// object from the same file stays. A file that cannot be read or parsed keeps all its objects. Absence is not
/// deletion: a missing path, a dangling link, and an empty directory in place of another one (an unmounted
/// share) keep their objects. A file counts as deleted if its directory exists and no longer contains it. An
/// object defined in two files belongs to the first file that defined it.
#[derive(Debug)]
pub struct FileSource {
    paths: Vec<PathBuf>,
    files: BTreeMap<PathBuf, Vec<ValidDocument>>,
    /// Files that may be partially written.
    uncertain_files: BTreeMap<PathBuf, UncertainFile>,
    /// The identities of directories that have had entries.
    directories: BTreeMap<PathBuf, DirectoryIdentity>,
    /// The time of the next reading while a path is missing: a mount causes no event.
    missing_again_at: Option<Instant>,
    /// The reported objects and their files.
    reported: BTreeMap<ObjectKey, (Object, PathBuf)>,
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
    /// The number of objects in force.
    pub objects: usize,
    /// The file locations of the objects in force.
    pub locations: Vec<ObjectLocation>,
    /// The time of the first file system event that caused this reading, if any.
    pub noticed: Option<Instant>,
}

impl RegistryUpdate {
    /// Returns the rejections that may hide the mesh's `MeshConfig` on a first reading: there is no previous
    /// state then, and the default policy is `allow`.
    pub fn mesh_config_in_doubt(&self) -> impl Iterator<Item = &RejectedDocument> {
        let known = self.changes.iter().any(|c| matches!(c, Change::Upsert(Object::MeshConfig(_))));
        self.rejected.iter().filter(move |rejected| match rejected.at.kind.as_deref() {
            Some(kind) => kinds::means_mesh_config(kind),
            // A whole file, or a document without a kind.
            None => !known,
        })
    }
}

/// The location of an object in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectLocation {
    /// The object.
    pub key: ObjectKey,
    /// The file.
    pub file: PathBuf,
    /// The first line of its document, in the last good reading.
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
    /// The text as read.
    text: String,
    /// The time at which this text was first read.
    since: Instant,
    /// The time at which the file became uncertain.
    began: Instant,
}

impl UncertainFile {
    fn from_reading(text: String, earlier: Option<Self>, now: Instant) -> Self {
        match earlier {
            Some(earlier) if earlier.text == text => earlier,
            Some(earlier) => Self { text, since: now, began: earlier.began },
            None => Self { text, since: now, began: now },
        }
    }

    /// Returns the time at which the content is accepted as it is.
    fn accepted_at(&self) -> Instant {
        (self.since + DOUBT_STEADY).min(self.began + DOUBT_MAX)
    }
}

/// Reads the documents of a text. Returns the objects with the first lines of their documents, and the
/// rejections. The second definition of an object is rejected.
#[must_use]
pub fn read_str(name: &str, text: &str) -> (Vec<(Object, u32)>, Vec<RejectedDocument>) {
    let reading = FileReading::from_text(name, text, &[]);
    let objects = reading.held.into_iter();
    (objects.map(|held| (held.object, held.position.line)).collect(), reading.rejected)
}

impl FileSource {
    /// Creates a source for these files and directories, without reading them.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            files: BTreeMap::new(),
            uncertain_files: BTreeMap::new(),
            directories: BTreeMap::new(),
            missing_again_at: None,
            reported: BTreeMap::new(),
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

    /// As [`FileSource::reload`], but a file that is empty or truncated, and so possibly being written, keeps
    /// its objects until another reading finds it unchanged.
    pub(crate) fn reload_warily(&mut self, now: Instant) -> RegistryUpdate {
        let scan = scan_paths(&self.paths, ContentMode::Read);
        self.apply_scan(scan, Some(now))
    }

    /// Returns the time of the next reading that is due regardless of events.
    pub(crate) fn again_at(&self) -> Option<Instant> {
        self.uncertain_files
            .values()
            .map(UncertainFile::accepted_at)
            .chain(self.missing_again_at)
            .min()
    }

    /// Returns the objects in force.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.reported.values().map(|(object, _)| object)
    }

    /// Returns the locations of the objects in force.
    #[must_use]
    pub fn object_locations(&self) -> Vec<ObjectLocation> {
        let located = |(key, (_, file)): (&ObjectKey, &(Object, PathBuf))| {
            Some(ObjectLocation {
                key: key.clone(),
                file: file.clone(),
                line: self.find_held(file, key)?.position.line,
            })
        };
        self.reported.iter().filter_map(located).collect()
    }

    /// Returns the warnings about the objects in force as a whole, with locations.
    #[must_use]
    pub fn lint_warnings(&self) -> Vec<Warning> {
        let objects: Vec<Object> = self.objects().cloned().collect();
        let mut warnings = lint_objects(&objects);
        warnings.extend(objects.iter().filter_map(only_in_clusters));
        let places: BTreeMap<String, ObjectLocation> = self
            .object_locations()
            .into_iter()
            .map(|located| (object_text(&DocumentLocation::for_object(&located.key, "")), located))
            .collect();
        let mut lines = FieldLines::default();
        for warning in &mut warnings {
            let Some(located) = places.get(&object_text(&warning.at)) else { continue };
            let field = warning.at.field.as_deref().unwrap_or_default();
            let line = lines.line_of(&located.file, located.line, field);
            warning.at.file = Some(located.file.display().to_string());
            warning.at.line = Some(line.unwrap_or(located.line));
        }
        warnings
    }

    /// Returns the paths of this source.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn find_held(&self, file: &Path, key: &ObjectKey) -> Option<&ValidDocument> {
        let held = self.files.get(file)?;
        held.iter().find(|held| held.key == *key)
    }

    /// Applies a scan; `wary` is the time of the reading if incomplete files are kept back.
    fn apply_scan(&mut self, mut scan: Scan, wary: Option<Instant>) -> RegistryUpdate {
        self.keep_replaced(&mut scan);
        for link in std::mem::take(&mut scan.dangling) {
            if self.holds_below(&link) {
                scan.reject_dangling(&link);
            }
        }
        let (mut rejected, odd_names) = (scan.rejected, scan.warnings);
        let mut before = std::mem::take(&mut self.files);
        let mut uncertain_files = std::mem::take(&mut self.uncertain_files);
        for (path, content) in scan.files {
            let previous = before.remove(&path).unwrap_or_default();
            let held = match content {
                FileContent::Text(text) => {
                    let reading =
                        FileReading::from_text(&path.display().to_string(), &text, &previous);
                    rejected.extend(reading.rejected);
                    let mut held = reading.held;
                    let lost = lost_objects(&previous, &held);
                    if let Some(now) = wary
                        && !lost.is_empty()
                        && looks_unfinished(&text)
                    {
                        let doubt =
                            UncertainFile::from_reading(text, uncertain_files.remove(&path), now);
                        if now < doubt.accepted_at() {
                            held.extend(lost);
                            self.uncertain_files.insert(path.clone(), doubt);
                        }
                    }
                    held
                }
                FileContent::Unreadable(rejection) => {
                    rejected.push(rejection);
                    previous
                }
                // It was listed a moment ago; the next reading decides.
                FileContent::Absent => {
                    scan.missing = true;
                    previous
                }
            };
            self.files.insert(path, held);
        }
        // Files in a directory that cannot be listed at the moment are kept.
        let unknown = |path: &PathBuf| scan.unknown.iter().any(|place| path.starts_with(place));
        let kept = before.into_iter().filter(|(path, _)| unknown(path));
        self.files.extend(kept);
        self.missing_again_at = wary.filter(|_| scan.missing).map(|now| now + MISSING_EVERY);
        let (current, mut warnings) = self.resolve_duplicates(&mut rejected);
        warnings.extend(odd_names);
        let changes = compare_objects(&self.reported, &current);
        self.reported = current;
        rejected.sort();
        let (objects, locations) = (self.reported.len(), self.object_locations());
        RegistryUpdate { changes, rejected, warnings, objects, locations, noticed: None }
    }

    /// Keeps the objects of a directory that was replaced by an empty one: an unmounted share, or a checkout in
    /// progress.
    fn keep_replaced(&mut self, scan: &mut Scan) {
        let mut replaced = Vec::new();
        for (path, listed) in &scan.directories {
            let known = self.directories.get(path);
            if listed.is_empty && known != Some(&listed.identity) {
                replaced.push(path.clone());
            } else {
                self.directories.insert(path.clone(), listed.identity);
            }
        }
        for path in replaced {
            if self.holds_below(&path) {
                scan.missing = true;
                let problem = "is empty, and is not the directory that was read before";
                scan.rejected.push(scan::path_rejection(&path, problem, REMEDY_REPLACED));
                scan.unknown.push(path);
            }
        }
        let (listed, unknown) = (&scan.directories, &scan.unknown);
        self.directories.retain(|path, _| {
            listed.contains_key(path) || unknown.iter().any(|place| path.starts_with(place))
        });
    }

    fn holds_below(&self, directory: &Path) -> bool {
        self.files.keys().any(|file| file.starts_with(directory))
    }

    /// Selects one definition of each object and rejects the others.
    fn resolve_duplicates(
        &self,
        rejected: &mut Vec<RejectedDocument>,
    ) -> (BTreeMap<ObjectKey, (Object, PathBuf)>, Vec<Warning>) {
        let mut chosen: BTreeMap<&ObjectKey, (&PathBuf, &ValidDocument)> = BTreeMap::new();
        let mut refused = Vec::new();
        for (path, held) in
            self.files.iter().flat_map(|(path, all)| all.iter().map(move |held| (path, held)))
        {
            match chosen.entry(&held.key) {
                Entry::Vacant(entry) => {
                    entry.insert((path, held));
                }
                Entry::Occupied(mut entry) => {
                    let owner = self.reported.get(&held.key).map(|(_, file)| file);
                    let loser = match owner == Some(path) {
                        true => entry.insert((path, held)),
                        false => (path, held),
                    };
                    refused.push(loser);
                }
            }
        }
        for (path, held) in refused {
            if let Some((file, first)) = chosen.get(&held.key) {
                let first = format!("{}:{}", file.display(), first.position.line);
                rejected.push(duplicate_rejection(&path.display().to_string(), held, &first));
            }
        }
        let warnings = chosen.values().flat_map(|(_, held)| &held.warnings);
        let mut warnings: Vec<Warning> = warnings.cloned().collect();
        warnings.sort();
        let current = chosen.into_values().map(|(path, held)| {
            let object = (held.object.clone(), path.clone());
            (held.key.clone(), object)
        });
        (current.collect(), warnings)
    }
}

/// Returns the documents currently in a file; none if it cannot be read.
fn read_documents(file: &Path) -> Vec<DocumentNode> {
    match scan::read(file, &mut FILE_BYTES_MAX.clone()) {
        FileContent::Text(text) => parse_documents(&text).unwrap_or_default(),
        FileContent::Unreadable(_) | FileContent::Absent => Vec::new(),
    }
}

/// The result of reading one file.
struct FileReading {
    held: Vec<ValidDocument>,
    rejected: Vec<RejectedDocument>,
}

impl FileReading {
    fn from_text(file: &str, text: &str, previous: &[ValidDocument]) -> Self {
        let nodes = match parse_documents(text) {
            Ok(nodes) => nodes,
            Err(error) => {
                let at = DocumentLocation {
                    file: Some(file.to_owned()),
                    line: Some(error.position.line),
                    column: Some(error.position.column),
                    ..DocumentLocation::default()
                };
                return Self {
                    held: previous.to_vec(),
                    rejected: vec![RejectedDocument {
                        at,
                        problem: error.problem,
                        hint: error.hint,
                    }],
                };
            }
        };
        let mut reading = Self { held: Vec::new(), rejected: Vec::new() };
        let mut lines: BTreeMap<ObjectKey, u32> = BTreeMap::new();
        let mut bad: Vec<DeclaredIdentity> = Vec::new();
        for node in &nodes {
            let document = kinds::read(Some(file), node);
            match document.outcome {
                Ok(good) => {
                    let held = ValidDocument {
                        key: good.object.object_key(),
                        object: good.object,
                        position: document.position,
                        warnings: good.warnings,
                    };
                    reading.add_held(file, held, &mut lines);
                }
                Err(rejected) => {
                    reading.rejected.extend(rejected);
                    bad.push(document.identity);
                }
            }
        }
        reading.retain_previous(previous, &bad);
        reading
    }

    fn add_held(&mut self, file: &str, held: ValidDocument, lines: &mut BTreeMap<ObjectKey, u32>) {
        match lines.get(&held.key) {
            Some(line) => {
                let first = format!("{file}:{line}");
                self.rejected.push(duplicate_rejection(file, &held, &first));
            }
            None => {
                lines.insert(held.key.clone(), held.position.line);
                self.held.push(held);
            }
        }
    }

    /// Keeps the last good version of the objects that rejected documents may define.
    fn retain_previous(&mut self, previous: &[ValidDocument], bad: &[DeclaredIdentity]) {
        if bad.is_empty() {
            return;
        }
        let read: BTreeSet<ObjectKey> = self.held.iter().map(|held| held.key.clone()).collect();
        let kept = previous.iter().filter(|held| {
            !read.contains(&held.key) && bad.iter().any(|identity| identity.may_be(&held.key))
        });
        self.held.extend(kept.cloned());
    }
}

/// Returns the objects that were held before and no longer are.
fn lost_objects(previous: &[ValidDocument], held: &[ValidDocument]) -> Vec<ValidDocument> {
    let keys: BTreeSet<&ObjectKey> = held.iter().map(|held| &held.key).collect();
    previous.iter().filter(|held| !keys.contains(&held.key)).cloned().collect()
}

/// True if the text may be the beginning of a longer text that is being written.
fn looks_unfinished(text: &str) -> bool {
    text.trim().is_empty() || !text.ends_with('\n')
}

fn duplicate_rejection(file: &str, held: &ValidDocument, first: &str) -> RejectedDocument {
    let mut at = DocumentLocation::for_object(&held.key, "metadata.name");
    at.file = Some(file.to_owned());
    at.line = Some(held.position.line);
    at.column = Some(held.position.column);
    let (problem, hint) = match held.key {
        ObjectKey::MeshConfig => {
            let problem = format!("a mesh has one MeshConfig, and {first} is in force");
            (problem, "remove one of the two: its name makes no difference")
        }
        _ => (format!("is already defined at {first}"), "remove one of the two, or rename it"),
    };
    RejectedDocument { at, problem, hint: hint.to_owned() }
}

fn compare_objects(
    before: &BTreeMap<ObjectKey, (Object, PathBuf)>,
    now: &BTreeMap<ObjectKey, (Object, PathBuf)>,
) -> Vec<Change> {
    let gone = before.keys().filter(|key| !now.contains_key(*key));
    let removals = gone.cloned().map(Change::Remove);
    let upserts = now.iter().filter_map(|(key, (object, _))| {
        let same = before.get(key).is_some_and(|(known, _)| known == object);
        (!same).then(|| Change::Upsert(object.clone()))
    });
    removals.chain(upserts).collect()
}

/// The lines of fields. Files are read again for it, because field lines are not kept.
#[derive(Debug, Default)]
pub struct FieldLines(BTreeMap<PathBuf, Vec<DocumentNode>>);

impl FieldLines {
    /// Returns the line of a field in the document that begins at this line of a file; for an absent field, the
    /// line of its parent. Reads the file.
    pub fn line_of(&mut self, file: &Path, document: u32, field: &str) -> Option<u32> {
        let documents = self.0.entry(file.to_owned()).or_insert_with(|| read_documents(file));
        let document = documents.iter().find(|found| found.position.line == document)?;
        Some(dns_record(document, field).line)
    }
}

/// Adds file and line to warnings without them: those of the document that defines the object.
pub fn locate_warnings(warnings: &mut [Warning], locations: &[ObjectLocation]) {
    let places: BTreeMap<String, &ObjectLocation> = locations
        .iter()
        .map(|located| (object_text(&DocumentLocation::for_object(&located.key, "")), located))
        .collect();
    for warning in warnings.iter_mut().filter(|warning| warning.at.file.is_none()) {
        let Some(located) = places.get(&object_text(&warning.at)) else { continue };
        warning.at.file = Some(located.file.display().to_string());
        warning.at.line = Some(located.line);
    }
}

/// Returns the object of a location as text.
fn object_text(place: &DocumentLocation) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{} {}/{}", part(&place.kind), part(&place.namespace), part(&place.name))
}

/// A writer that truncates a file completes it within this time; unchanged content is accepted after it.
const DOUBT_STEADY: Duration = Duration::from_millis(250);
/// A file that keeps changing is accepted as it is after this time.
const DOUBT_MAX: Duration = Duration::from_millis(600);
/// The interval between checks for a missing path.
const MISSING_EVERY: Duration = Duration::from_millis(500);
const REMEDY_REPLACED: &str = "mount or fill it; until then its last content stays in force (to \
                               delete those objects, add a file `none.yaml` with a comment)";

/// Warns about objects that have no effect in a mesh configured by files.
fn only_in_clusters(object: &Object) -> Option<Warning> {
    matches!(object, Object::AccessCert(_)).then(|| Warning {
        at: DocumentLocation::for_object(&object.object_key(), "spec.secret"),
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

    /// Checks the number of objects in force after each reading, given as (time in ms, text, objects).
    fn check_readings(readings: &[(u64, Option<&str>, usize)]) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, service_document("a") + &service_document("b")).unwrap();
        let mut source = FileSource::new(vec![dir.path().to_owned()]);
        let start = Instant::now();
        assert_eq!(source.reload_warily(start).objects, 2);
        for (at, text, objects) in readings {
            match text {
                Some(text) => fs::write(&file, text).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let update = source.reload_warily(start + Duration::from_millis(*at));
            assert_eq!(update.objects, *objects, "{at} ms: {readings:?}");
            assert_eq!(update.rejected, [], "{at} ms: {readings:?}");
        }
        let settled = source.again_at().is_none();
        assert!(settled, "no reading is to come after {readings:?}");
    }

    #[test]
    fn what_a_rewritten_file_has_not_got_yet_stays_in_force() {
        let (a, both) = (service_document("a"), service_document("a") + &service_document("b"));
        let cut = format!("{a}---\n# b comes");
        check_readings(&[(100, Some(""), 2), (200, Some(&both), 2)]);
        check_readings(&[(100, Some(" \n"), 2), (300, Some(&cut), 2), (400, Some(&both), 2)]);
        check_readings(&[(100, Some(""), 2), (349, Some(""), 2), (350, Some(""), 0)]);
        check_readings(&[(100, Some(&cut), 2), (350, Some(&cut), 1)]);
    }

    #[test]
    fn what_was_taken_out_of_a_whole_file_goes_at_once() {
        check_readings(&[(100, Some(&service_document("a")), 1)]);
        check_readings(&[(100, Some("# nothing left\n"), 0)]);
        check_readings(&[(100, None, 0)]);
        check_readings(&[(100, Some(""), 2), (110, None, 0)]);
    }

    #[test]
    fn a_file_that_is_written_all_the_time_is_taken_at_its_word_in_the_end() {
        check_readings(&[
            (0, Some("#"), 2),
            (200, Some("#1"), 2),
            (400, Some("#2"), 2),
            (600, Some("#3"), 0),
        ]);
    }

    #[test]
    fn what_may_hide_the_mesh_config_is_reported() {
        let config = |kind: &str, spec: &str| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
            )
        };
        let good = config("MeshConfig", "{defaultPolicy: deny}");
        for (text, expected) in [
            (service_document("a"), false),
            (good.clone(), false),
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
            (format!("{good}---\nspec: {{}}\n"), false),
            (format!("{good}---\n{}", config("MeshConfig", "{defaultPolicy: allow}")), true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("a.yaml"), &text).unwrap();
            let update = FileSource::new(vec![dir.path().to_owned()]).reload();
            let found: Vec<_> = update.mesh_config_in_doubt().collect();
            assert_eq!(!found.is_empty(), expected, "{text}: {found:?}");
        }
    }
}
