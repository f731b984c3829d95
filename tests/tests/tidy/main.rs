//! Repository rules: dependencies between crates, captions, lengths, names.

mod language;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The permitted dependencies of each crate on the other crates of the project.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("derive", &[]),
    ("model", &["derive"]),
    ("wire", &[]),
    ("telemetry", &[]),
    ("traffic", &["model"]),
    ("identity", &["model"]),
    ("discovery", &["model"]),
    ("registry", &["model"]),
    ("listen", &[]),
    ("outside", &["model", "identity", "telemetry"]),
    ("load", &["wire", "telemetry"]),
    ("kubernetes", &["model", "registry", "identity", "telemetry", "listen"]),
    ("control", &["model", "registry", "discovery", "identity", "telemetry", "outside", "listen"]),
    (
        "proxy",
        &["model", "wire", "traffic", "discovery", "identity", "telemetry", "outside", "listen"],
    ),
    (
        "cli",
        &[
            "model",
            "registry",
            "kubernetes",
            "traffic",
            "discovery",
            "identity",
            "telemetry",
            "control",
            "proxy",
            "load",
            "listen",
        ],
    ),
];

/// The external dependencies that the lowest crates may not declare.
const FORBIDDEN_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("model", &["tokio", "serde", "prost", "kube", "hyper"]),
    ("wire", &["tokio", "hyper", "h2"]),
    ("traffic", &["tokio", "hyper"]),
    ("telemetry", &["tokio"]),
];

/// Names that attract unrelated code.
const FORBIDDEN_MODULES: &[&str] = &[
    "core", "common", "util", "utils", "helper", "helpers", "manager", "misc", "base", "info",
    "data", "process", "handler", "handlers", "mod",
];

/// Files that exceed the length limit, with their current length, which may only shrink.
const LENGTH_EXCEPTIONS: &[(&str, usize)] = &[];

/// The maximum number of lines of a file, without its tests.
const MAX_FILE_LINES: usize = 600;

#[test]
fn crates_depend_only_on_allowed_crates() {
    let allowed: BTreeMap<_, _> = ALLOWED_DEPENDENCIES.iter().copied().collect();
    let forbidden: BTreeMap<_, _> = FORBIDDEN_DEPENDENCIES.iter().copied().collect();
    let mut violations = Vec::new();
    for (name, manifest) in crate_manifests() {
        let allowed = allowed
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} has no allowed dependencies"));
        for dependency in dependencies(&manifest) {
            if let Some(own_crate) = dependency.strip_prefix("leno-")
                && !allowed.contains(&own_crate)
            {
                violations.push(format!("{name} must not import {own_crate}"));
            }
            if forbidden.get(name.as_str()).is_some_and(|list| list.contains(&dependency.as_str()))
            {
                violations.push(format!("{name} must not import {dependency}"));
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn every_crate_of_the_design_exists() {
    let existing_crates: BTreeSet<_> =
        crate_manifests().into_iter().map(|(name, _)| name).collect();
    let declared_crates: BTreeSet<_> =
        ALLOWED_DEPENDENCIES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(existing_crates, declared_crates);
}

#[test]
fn every_file_opens_with_a_caption() {
    check_sources(|path, text| {
        let first = text.lines().next().unwrap_or_default();
        let is_generated =
            first.starts_with("// @generated") || first.starts_with("//! @generated");
        let is_caption = first.starts_with("//! ") && first.len() > 12;
        (!is_generated && !is_caption)
            .then(|| format!("{}: the first line is no caption: {first}", path.display()))
    });
}

#[test]
fn files_do_not_exceed_the_length_limit() {
    check_sources(|path, text| {
        let lines = production_lines(path, text);
        let path_text = path.display().to_string();
        let limit = LENGTH_EXCEPTIONS
            .iter()
            .find(|(file, _)| path_text.ends_with(file))
            .map_or(MAX_FILE_LINES, |(_, lines)| *lines);
        (lines > limit).then(|| format!("{path_text}: {lines} lines, at most {limit}"))
    });
}

#[test]
fn modules_have_specific_names() {
    check_sources(|path, _| {
        let stem = path.file_stem()?.to_str()?;
        FORBIDDEN_MODULES
            .contains(&stem)
            .then(|| format!("{}: `{stem}` is an unspecific name", path.display()))
    });
}

#[test]
fn connections_are_accepted_in_one_place() {
    // These accept handshakes and streams, or only one connection.
    let exceptions = [
        "identity/src/client_hello.rs",
        "proxy/src/http2/server.rs",
        "proxy/src/http2/server/proxy_port.rs",
        "cli/src/redirect/verify.rs",
        "src/testing.rs",
    ];
    check_sources(|path, text| {
        let path_text = path.display().to_string();
        let is_allowed = path_text.contains("crates/listen/")
            || exceptions.iter().any(|exception| path_text.ends_with(exception));
        if is_allowed || !path_text.contains("/src/") || path_text.contains("/tests/src/") {
            return None;
        }
        let mut lines = text.lines().take(production_lines(path, text));
        let accepts_connections = |line: &&str| {
            let is_accept_call = [".accept()", ".incoming()", "poll_accept(", "accept_one("]
                .iter()
                .any(|call| line.contains(call));
            // The `accept` of such a listener does not fail.
            is_accept_call && !text.contains("Listener::new(")
        };
        lines.find(accepts_connections).map(|line| {
            format!("{path_text}: accepts connections by itself, instead of a `leno_listen::Listener`: {line}")
        })
    });
}

#[test]
fn open_tasks_have_an_issue_number() {
    let marker = ["TO", "DO"].concat();
    check_sources(|path, text| {
        text.lines()
            .find(|line| line.contains(&marker) && !line.contains(&format!("{marker}(#")))
            .map(|line| format!("{}: {}", path.display(), line.trim()))
    });
}

/// The keywords of items with a name.
const ITEM_KEYWORDS: &[&str] = &["fn", "struct", "enum", "trait", "mod", "const", "impl"];

/// Returns the names of the items that a source defines.
fn item_names(text: &str) -> BTreeSet<&str> {
    let words: Vec<&str> = text
        .split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| !word.is_empty())
        .collect();
    words.windows(2).filter(|pair| ITEM_KEYWORDS.contains(&pair[0])).map(|pair| pair[1]).collect()
}

/// Returns true if the path of a source names these crates and modules, in this order.
fn is_in_modules(path: &Path, modules: &[&str]) -> bool {
    let path = path.with_extension("");
    let mut components = path.iter().filter_map(|name| name.to_str());
    modules.iter().all(|module| {
        let module = module.strip_prefix("leno_").unwrap_or(module);
        components.any(|component| component == module)
    })
}

#[test]
fn the_life_documents_name_only_existing_items() {
    let sources = source_files();
    let sources: Vec<(&PathBuf, BTreeSet<&str>)> =
        sources.iter().map(|(path, text)| (path, item_names(text))).collect();
    let mut unknown_symbols = Vec::new();
    for document in ["docs/life-of-a-request.md", "docs/life-of-a-change.md"] {
        let text = fs::read_to_string(project_root().join(document)).expect(document);
        for symbol in text.split('`').skip(1).step_by(2) {
            let Some((path, item_name)) = symbol.rsplit_once("::") else {
                continue;
            };
            let item_name = item_name.trim_end_matches("()");
            let segments: Vec<&str> = path.split("::").collect();
            let defines_symbol = |(path, items): &(&PathBuf, BTreeSet<&str>)| {
                let (owner, modules) = segments.split_last().expect("a segment");
                items.contains(item_name)
                    && (is_in_modules(path, &segments)
                        || items.contains(owner) && is_in_modules(path, modules))
            };
            if !sources.iter().any(defines_symbol) {
                unknown_symbols.push(format!("{document}: {symbol}"));
            }
        }
    }
    assert!(unknown_symbols.is_empty(), "{unknown_symbols:#?}");
}

fn check_sources(rule: impl Fn(&Path, &str) -> Option<String>) {
    let violations: Vec<_> =
        source_files().iter().filter_map(|(path, text)| rule(path, text)).collect();
    assert!(violations.is_empty(), "{violations:#?}");
}

fn project_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_owned()
}

fn crate_manifests() -> Vec<(String, String)> {
    let crates = fs::read_dir(project_root().join("crates")).expect("crates/");
    crates
        .map(|entry| {
            let path = entry.expect("a folder of crates/").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(path.join("Cargo.toml")).expect("Cargo.toml"))
        })
        .collect()
}

/// Returns the names under `[dependencies]`; dev-dependencies are unrestricted.
fn dependencies(manifest: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn source_files() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for top_directory in ["crates", "tests"] {
        collect_sources(&project_root().join(top_directory), &mut files);
    }
    assert!(files.len() > 50, "the sources were not found");
    files
}

fn collect_sources(directory: &Path, files: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(directory).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            files.push((path, text));
        }
    }
}

/// Returns the number of lines before the tests of a file; 0 for test files and generated files.
fn production_lines(path: &Path, text: &str) -> usize {
    let path_text = path.to_string_lossy();
    let is_generated =
        ["// @generated", "//! Generated from "].iter().any(|marker| text.starts_with(marker));
    if path_text.ends_with("tests.rs") || path_text.contains("/tests/") || is_generated {
        return 0;
    }
    text.lines().take_while(|line| *line != "#[cfg(test)]").count()
}
