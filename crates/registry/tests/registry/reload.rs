//! Tests of file changes: the differences are reported, and the last valid version of each object stays active.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use leno_model::Change;
use leno_registry::{FileSource, RegistryUpdate};

struct FolderFixture {
    dir: tempfile::TempDir,
    source: FileSource,
}

impl FolderFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = FileSource::new(vec![dir.path().to_owned()]);
        Self { dir, source }
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and reads all files.
    fn write(&mut self, name: &str, text: &str) -> RegistryUpdate {
        fs::write(self.file_path(name), text).unwrap();
        self.source.reload()
    }

    fn remove(&mut self, name: &str) -> RegistryUpdate {
        fs::remove_file(self.file_path(name)).unwrap();
        self.source.reload()
    }
}

/// Returns a service with one port.
fn service_manifest(name: &str, port: u16) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{ports: [{{port: {port}}}]}}\n"
    )
}

/// Returns the changes as `+Service default/a -Service default/b`, in order.
fn format_changes(update: &RegistryUpdate) -> String {
    let format_change = |change: &Change| match change {
        Change::Upsert(object) => format!("+{}", object.object_key()),
        Change::Remove(key) => format!("-{key}"),
    };
    let changes: Vec<String> = update.changes.iter().map(format_change).collect();
    changes.join(" ").replace("Service default/", "")
}

fn update_problems(update: &RegistryUpdate) -> Vec<&str> {
    update.rejected.iter().map(|rejection| rejection.problem.as_str()).collect()
}

#[test]
fn only_changes_are_reported_removals_first() {
    let mut folder = FolderFixture::new();
    let update = folder.write("a.yaml", &(service_manifest("a", 1) + &service_manifest("b", 1)));
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("+a +b", 2));
    assert_eq!(format_changes(&folder.source.reload()), "");
    let update = folder.write("a.yaml", &(service_manifest("a", 2) + &service_manifest("c", 1)));
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("-b +a +c", 2));
    assert_eq!(format_changes(&folder.write("below.yml", &service_manifest("d", 1))), "+d");
    assert_eq!(format_changes(&folder.remove("a.yaml")), "-a -c");
    let located = folder.source.object_locations();
    assert_eq!(located.len(), 1);
    assert_eq!(located[0].file, folder.file_path("below.yml"));
    assert_eq!(located[0].line, 2);
}

#[test]
fn comments_and_moved_documents_are_not_changes() {
    let mut folder = FolderFixture::new();
    folder.write("a.yaml", &service_manifest("a", 1));
    assert_eq!(
        format_changes(&folder.write("a.yaml", &format!("# hello\n{}", service_manifest("a", 1)))),
        ""
    );
    fs::rename(folder.file_path("a.yaml"), folder.file_path("b.yaml")).unwrap();
    assert_eq!(format_changes(&folder.source.reload()), "");
}

#[test]
fn valid_documents_are_loaded_on_the_first_reading() {
    let mut folder = FolderFixture::new();
    let text = service_manifest("a", 1)
        + &service_manifest("b", 0)
        + &service_manifest("c", 1)
        + "---\nkind: Pod\n";
    let update = folder.write("a.yaml", &text);
    assert_eq!(format_changes(&update), "+a +c");
    assert_eq!(update.rejected.len(), 2);
}

#[test]
fn the_last_valid_version_of_a_rejected_document_stays_in_force() {
    let mut folder = FolderFixture::new();
    folder.write("a.yaml", &(service_manifest("a", 1) + &service_manifest("b", 1)));
    let update = folder.write("a.yaml", &(service_manifest("a", 0) + &service_manifest("b", 2)));
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("+b", 2));
    assert_eq!(update_problems(&update), ["0 is out of range"]);
    let update = folder.source.reload();
    assert_eq!(format_changes(&update), "");
    assert_eq!(update.rejected.len(), 1, "it stands until it is mended");
    let update = folder.write("a.yaml", &(service_manifest("a", 3) + &service_manifest("b", 2)));
    assert_eq!((format_changes(&update).as_str(), update.rejected.len()), ("+a", 0));
    folder.write("a.yaml", &(service_manifest("a", 0) + &service_manifest("b", 2)));
    let update = folder.write("a.yaml", &service_manifest("b", 2));
    assert_eq!(format_changes(&update), "-a", "what is no longer there is removed");
}

#[test]
fn a_rejected_document_retains_only_objects_that_it_may_define() {
    for (rejected, is_retained) in [
        // The same object, misspelled in various places.
        (service_manifest("a", 1).replace("Service", "Servce"), true),
        (service_manifest("a", 1).replace("apiVersion: v1", "apiVersion: v2"), true),
        (service_manifest("a", 1).replace("kind: Service\n", ""), true),
        (service_manifest("a", 1).replace("name:", "nmae:"), true),
        (service_manifest("a", 1).replace("ports", "prots"), true),
        ("just a text\n".to_owned(), true),
        // Another object.
        (service_manifest("b", 0), false),
        (service_manifest("a", 0).replace("{name: a}", "{name: a, namespace: x}"), false),
        (service_manifest("a", 1).replace("Service", "Deployment"), false),
        (service_manifest("a", 1).replace("v1\nkind: Service", "x/v1\nkind: TCPRoute"), false),
    ] {
        let mut folder = FolderFixture::new();
        folder.write("a.yaml", &service_manifest("a", 1));
        let update = folder.write("a.yaml", &rejected);
        assert!(!update.rejected.is_empty(), "{rejected}");
        assert_eq!(update.object_count == 1, is_retained, "{rejected}");
    }
}

#[test]
fn a_rejected_typed_list_retains_the_objects_of_its_file() {
    let list = |kind: &str, items: &str| {
        format!("apiVersion: leno.dev/v1alpha1\nkind: {kind}\nitems: {items}\n")
    };
    let policy = "{metadata: {name: a}, spec: {serviceAccounts: [stock], allow: [{}]}}";
    for rejected in [list("AccessPolicyList", "[a]"), list("AccesPolicyList", "{}")] {
        let mut folder = FolderFixture::new();
        let update = folder.write("a.yaml", &list("AccessPolicyList", &format!("[{policy}]")));
        assert_eq!((update_problems(&update), update.object_count), (vec![], 1));
        let update = folder.write("a.yaml", &rejected);
        assert!(!update.rejected.is_empty(), "{rejected}");
        assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 1), "{rejected}");
    }
}

#[test]
fn a_file_that_is_not_yaml_retains_its_objects_and_is_rejected_once() {
    let mut folder = FolderFixture::new();
    folder.write("a.yaml", &(service_manifest("a", 1) + &service_manifest("b", 1)));
    let update = folder
        .write("a.yaml", &(service_manifest("a", 2) + "spec: [\n" + &service_manifest("c", 1)));
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 2));
    assert_eq!(update.rejected.len(), 1);
    assert!(update.rejected[0].problem.starts_with("is not YAML"));
    assert!(update.rejected[0].location.line.is_some());
    fs::write(folder.file_path("a.yaml"), b"\xff").unwrap();
    let update = folder.source.reload();
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 2));
    assert_eq!(format_changes(&folder.write("a.yaml", "")), "-a -b");
}

#[test]
fn unreadable_paths_retain_their_objects() {
    let mut folder = FolderFixture::new();
    fs::create_dir(folder.file_path("below")).unwrap();
    folder.write("below/a.yaml", &service_manifest("a", 1));
    folder.write("b.yaml", &service_manifest("b", 1));
    fs::rename(folder.file_path("below"), folder.file_path(".away")).unwrap();
    // A link to itself cannot be followed, and is not gone either.
    symlink("below", folder.file_path("below")).unwrap();
    fs::remove_file(folder.file_path("b.yaml")).unwrap();
    symlink("b.yaml", folder.file_path("b.yaml")).unwrap();
    let update = folder.source.reload();
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 2));
    assert_eq!(update.rejected.len(), 2);
    fs::remove_file(folder.file_path("below")).unwrap();
    assert_eq!(format_changes(&folder.source.reload()), "-a");
}

#[test]
fn an_object_belongs_to_the_first_file_that_defined_it() {
    let mut folder = FolderFixture::new();
    folder.write("b.yaml", &service_manifest("x", 1));
    let update = folder.write("a.yaml", &(service_manifest("x", 2) + &service_manifest("y", 2)));
    assert_eq!(format_changes(&update), "+y");
    let (a, b) = (folder.file_path("a.yaml"), folder.file_path("b.yaml"));
    assert_eq!(
        update.rejected[0].to_string(),
        format!(
            "{}:2:1: Service default/x: metadata.name: is already defined at {}:2; \
             remove one of the two, or rename it",
            a.display(),
            b.display()
        )
    );
    let update = folder.remove("b.yaml");
    assert_eq!((format_changes(&update).as_str(), update.rejected.len()), ("+x", 0));
    // Initially, the order of the files decides.
    fs::write(&b, service_manifest("x", 1)).unwrap();
    let update = FileSource::new(vec![b, a.clone()]).reload();
    assert_eq!(update.object_count, 2);
    assert!(update.rejected[0].problem.contains(a.to_str().unwrap()));
}

#[test]
fn a_second_mesh_config_is_rejected() {
    let config = |mode: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: {mode}}}\n\
             spec: {{defaultPolicy: {mode}}}\n"
        )
    };
    let mut folder = FolderFixture::new();
    folder.write("a.yaml", &config("deny"));
    let update = folder.write("b.yaml", &config("allow"));
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 1));
    assert!(update.rejected[0].problem.contains("a mesh has one MeshConfig"));
    let update = folder.write("a.yaml", &(config("deny") + &config("deny")));
    assert_eq!(update.rejected.len(), 2);
}

#[test]
fn a_missing_source_path_is_rejected_and_retains_its_objects() {
    let mut folder = FolderFixture::new();
    let path = folder.file_path("a.yaml");
    folder.source = FileSource::new(vec![path.clone()]);
    assert_eq!(update_problems(&folder.source.reload()), ["does not exist"]);
    assert_eq!(format_changes(&folder.write("a.yaml", &service_manifest("a", 1))), "+a");
    let update = folder.remove("a.yaml");
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 1));
    assert_eq!(update_problems(&update), ["does not exist"]);
    assert_eq!(format_changes(&folder.write("a.yaml", "# none")), "-a");
}

#[test]
fn a_dangling_link_retains_its_objects_until_it_is_deleted() {
    for (link, target) in [("mesh/a.yaml", "../away/a.yaml"), ("mesh/team", "../away")] {
        let mut folder = FolderFixture::new();
        fs::create_dir(folder.file_path("mesh")).unwrap();
        fs::create_dir(folder.file_path("away")).unwrap();
        fs::write(folder.file_path("away/a.yaml"), service_manifest("a", 1)).unwrap();
        symlink(target, folder.file_path(link)).unwrap();
        folder.source = FileSource::new(vec![folder.file_path("mesh")]);
        assert_eq!(format_changes(&folder.source.reload()), "+a");
        fs::rename(folder.file_path("away"), folder.file_path("moved")).unwrap();
        let update = folder.source.reload();
        assert_eq!((format_changes(&update).as_str(), update.object_count), ("", 1), "{link}");
        assert_eq!(update_problems(&update), ["is a link to a missing target"], "{link}");
        assert_eq!(format_changes(&folder.remove(link)), "-a");
        assert_eq!(update_problems(&folder.source.reload()), Vec::<&str>::new());
    }
}

#[test]
fn an_updated_config_map_mount_is_read() {
    let mut folder = FolderFixture::new();
    for (version, port) in [("..v1", 1), ("..v2", 2)] {
        fs::create_dir(folder.file_path(version)).unwrap();
        fs::write(folder.file_path(version).join("a.yaml"), service_manifest("a", port)).unwrap();
    }
    symlink("..v1", folder.file_path("..data")).unwrap();
    symlink("..data/a.yaml", folder.file_path("a.yaml")).unwrap();
    assert_eq!(format_changes(&folder.source.reload()), "+a");
    symlink("..v2", folder.file_path("..tmp")).unwrap();
    fs::rename(folder.file_path("..tmp"), folder.file_path("..data")).unwrap();
    let update = folder.source.reload();
    assert_eq!((format_changes(&update).as_str(), update.object_count), ("+a", 1));
}

#[test]
fn warnings_stay_as_long_as_their_documents() {
    let mut folder = FolderFixture::new();
    let target = "apiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\n\
        metadata: {name: t}\nspec:\n  \
        destination: {kind: ServiceAccount, name: a, namespace: default}\n  \
        sources: [{kind: ServiceAccount, name: b, namespace: default}]\n  \
        rules:\n  - {kind: HTTPRouteGroup, name: g}\n";
    let update = folder.write("a.yaml", target);
    let file = folder.file_path("a.yaml");
    assert_eq!(update.object_count, 1);
    assert_eq!(
        update.warnings[0].to_string(),
        format!(
            "{}:8:5: TrafficTarget default/t: spec.rules[0]: has no `matches`, and allows no \
             request; list the names of the group's matches that are allowed",
            file.display()
        )
    );
    assert_eq!(folder.source.reload().warnings.len(), 1);
    assert_eq!(folder.remove("a.yaml").warnings, []);
}
