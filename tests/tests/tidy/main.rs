//! Repository rules: dependencies between crates, captions, lengths, names.

mod language;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The permitted dependencies of each crate on our others.
const ARROWS: &[(&str, &[&str])] = &[
    ("model", &[]),
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
const FOREIGN: &[(&str, &[&str])] = &[
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
const RATCHET: &[(&str, usize)] = &[];

const FILE_LINES_MAX: usize = 600;

#[test]
fn crates_import_only_what_stands_below_them() {
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let foreign: BTreeMap<_, _> = FOREIGN.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, manifest) in manifests() {
        let allowed = allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no arrows"));
        for dependency in dependencies(&manifest) {
            if let Some(ours) = dependency.strip_prefix("leno-")
                && !allowed.contains(&ours)
            {
                wrong.push(format!("{name} must not import {ours}"));
            }
            if foreign.get(name.as_str()).is_some_and(|list| list.contains(&dependency.as_str())) {
                wrong.push(format!("{name} must not import {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_crate_of_the_design_exists() {
    let found: BTreeSet<_> = manifests().into_iter().map(|(name, _)| name).collect();
    let drawn: BTreeSet<_> = ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, drawn);
}

#[test]
fn every_file_opens_with_a_caption() {
    check(|path, text| {
        let first = text.lines().next().unwrap_or_default();
        let generated = first.starts_with("// @generated") || first.starts_with("//! @generated");
        let is_caption = first.starts_with("//! ") && first.len() > 12;
        (!generated && !is_caption)
            .then(|| format!("{}: the first line is no caption: {first}", path.display()))
    });
}

#[test]
fn files_stay_short() {
    check(|path, text| {
        let lines = production_lines(path, text);
        let shown = path.display().to_string();
        let limit = RATCHET
            .iter()
            .find(|(file, _)| shown.ends_with(file))
            .map_or(FILE_LINES_MAX, |(_, lines)| *lines);
        (lines > limit).then(|| format!("{shown}: {lines} lines, at most {limit}"))
    });
}

#[test]
fn modules_have_names_that_mean_something() {
    check(|path, _| {
        let stem = path.file_stem()?.to_str()?;
        FORBIDDEN_MODULES
            .contains(&stem)
            .then(|| format!("{}: `{stem}` is a name for what has no home", path.display()))
    });
}

#[test]
fn connections_are_accepted_in_one_place() {
    // These accept handshakes and streams, or only one connection.
    let others = [
        "identity/src/client_hello.rs",
        "proxy/src/http2/server.rs",
        "proxy/src/http2/server/proxy_port.rs",
        "cli/src/redirect/verify.rs",
        "src/testing.rs",
    ];
    check(|path, text| {
        let shown = path.display().to_string();
        let is_allowed =
            shown.contains("crates/listen/") || others.iter().any(|it| shown.ends_with(it));
        if is_allowed || !shown.contains("/src/") || shown.contains("/tests/src/") {
            return None;
        }
        let mut lines = text.lines().take(production_lines(path, text));
        let accepts = |line: &&str| {
            let call = [".accept()", ".incoming()", "poll_accept(", "accept_one("]
                .iter()
                .any(|it| line.contains(it));
            // The `accept` of such a listener does not fail.
            call && !text.contains("Listener::new(")
        };
        lines.find(accepts).map(|line| {
            format!("{shown}: accepts connections by itself, instead of a `leno_listen::Listener`: {line}")
        })
    });
}

#[test]
fn open_ends_carry_an_issue_number() {
    let mark = ["TO", "DO"].concat();
    check(|path, text| {
        text.lines()
            .find(|line| line.contains(&mark) && !line.contains(&format!("{mark}(#")))
            .map(|line| format!("{}: {}", path.display(), line.trim()))
    });
}

/// The keywords of items with a name.
const KINDS: &[&str] = &["fn", "struct", "enum", "trait", "mod", "const", "impl"];

/// Returns the names of the items that a source defines.
fn item_names(text: &str) -> BTreeSet<&str> {
    let words: Vec<&str> = text
        .split(|it: char| !it.is_alphanumeric() && it != '_')
        .filter(|it| !it.is_empty())
        .collect();
    words.windows(2).filter(|pair| KINDS.contains(&pair[0])).map(|pair| pair[1]).collect()
}

#[test]
fn the_life_documents_name_only_what_exists() {
    let sources = sources();
    let sources: Vec<(&PathBuf, BTreeSet<&str>)> =
        sources.iter().map(|(path, text)| (path, item_names(text))).collect();
    let mut unknown = Vec::new();
    for document in ["docs/life-of-a-request.md", "docs/life-of-a-change.md"] {
        let text = fs::read_to_string(root().join(document)).expect(document);
        for symbol in text.split('`').skip(1).step_by(2) {
            let Some((path, last)) = symbol.rsplit_once("::") else {
                continue;
            };
            let last = last.trim_end_matches("()");
            let parent = path.rsplit("::").next().unwrap_or_default();
            let defines = |(path, items): &(&PathBuf, BTreeSet<&str>)| {
                let in_module = path.iter().any(|it| it.to_str() == Some(parent))
                    || path.file_stem().is_some_and(|it| it == parent);
                (in_module || items.contains(parent)) && items.contains(last)
            };
            if !sources.iter().any(defines) {
                unknown.push(format!("{document}: {symbol}"));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

fn check(rule: impl Fn(&Path, &str) -> Option<String>) {
    let wrong: Vec<_> = sources().iter().filter_map(|(path, text)| rule(path, text)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_owned()
}

fn manifests() -> Vec<(String, String)> {
    let crates = fs::read_dir(root().join("crates")).expect("crates/");
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

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for top in ["crates", "tests"] {
        walk(&root().join(top), &mut found);
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            found.push((path, text));
        }
    }
}

/// Returns the number of lines before the tests of a file; 0 for test files and generated files.
fn production_lines(path: &Path, text: &str) -> usize {
    let shown = path.to_string_lossy();
    let generated =
        ["// @generated", "//! Generated from "].iter().any(|mark| text.starts_with(mark));
    if shown.ends_with("tests.rs") || shown.contains("/tests/") || generated {
        return 0;
    }
    text.lines().take_while(|line| *line != "#[cfg(test)]").count()
}
