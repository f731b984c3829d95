//! Plain English: sentences and words by text kind, invented words in identifiers, and the length of the lexicon.
//!
//! `language.txt` holds the limit of each figure. A limit may only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

/// Sentences that open with a relative clause.
const OPENINGS: &str = r"^(What|Who|Whom|Whose|Whoever|Whatever|Whether|How|Where|Which|That)\b";

/// Patterns with a limit per 1,000 words.
const PATTERNS: &[(&str, &str)] = &[
    (
        "passive",
        r"(?i)\b(is|are|was|were|be|been) (told|said|asked|shown|given|led|let|heeded|looked up|passed on)\b",
    ),
    ("what", r"(?i)\bwhat (is|it|they|was|were|goes|comes|becomes|came)\b"),
    ("nobody", r"(?i)\b(nobody|somebody|everybody|anybody|whoever|whomever)\b"),
    ("who", r"(?i)\b(who|whom|whose)\b"),
    ("beside", r"(?i)\bbeside\b"),
];

/// Invented words, each with the standard term.
const INVENTED_WORDS: &[(&str, &str)] = &[
    ("audience", "subscribers"),
    ("border", "ingress and egress"),
    ("bystander", "unmeshed workload"),
    ("contact", "connected proxy"),
    ("crew", "task pool"),
    ("decider", "check service"),
    ("desk", "control loop"),
    ("door", "listener"),
    ("edition", "CA generation"),
    ("elsewhere", "forwarded, not found"),
    ("entrance", "listener kind"),
    ("farewell", "shutdown"),
    ("guest", "external principal"),
    ("heeded", "supported"),
    ("ledger", "store"),
    ("lookups", "DNS queries"),
    ("mischief", "fault"),
    ("newcomer", "slow-start endpoint"),
    ("news", "watch event"),
    ("occupant", "address entry"),
    ("outlet", "egress rule"),
    ("parcel", "export request"),
    ("patience", "timeout"),
    ("remark", "diagnostic"),
    ("rivals", "conflicting routes"),
    ("ruling", "authorization decision"),
    ("scene", "configuration snapshot"),
    ("sighting", "request trace"),
    ("spelling", "normalized form"),
    ("stranger", "external client"),
    ("told", "reported, sent"),
    ("treatment", "traffic policy"),
    ("vigil", "keepalive"),
    ("visitors", "pending connections"),
    ("ward", "upstream cluster"),
    ("whereabouts", "DNS record"),
    ("wish", "desired state"),
    ("wishes", "desired state"),
    ("witness", "observer"),
];

/// Names of other projects: the file and the identifier.
const EXTERNAL_NAMES: &[(&str, &str)] = &[
    // A field of TokenReview in the API of Kubernetes.
    ("crates/kubernetes/src/review.rs", "audience"),
    ("crates/kubernetes/src/review.rs", "audiences"),
    // The audience of a token, RFC 7519 §4.1.3.
    ("crates/identity/src/jwt.rs", "WrongAudience"),
    ("crates/identity/src/jwt/tests.rs", "WrongAudience"),
];

/// The longest list of places that a failure prints.
const MAX_LISTED_LOCATIONS: usize = 40;

#[test]
fn figures_do_not_exceed_their_limits() {
    let figures = measure_figures();
    let limits = read_limits();
    let names: BTreeSet<_> = figures.keys().chain(limits.keys()).collect();
    let mut violations = Vec::new();
    for name in names {
        match (figures.get(name), limits.get(name)) {
            (Some(figure), Some(limit)) if figure.value <= *limit => {}
            (Some(figure), Some(limit)) => violations.push(format!(
                "{name}: {:.2}, at most {limit}\n{}",
                figure.value,
                figure.locations.join("\n")
            )),
            _ => violations.push(format!("{name}: not in language.txt, or not measured")),
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn captions_open_with_a_noun() {
    let opening = Regex::new(OPENINGS).expect("a pattern");
    super::check_sources(|path, text| {
        let caption = text.lines().next()?.strip_prefix("//! ")?;
        opening.is_match(caption).then(|| format!("{}: {caption}", path.display()))
    });
}

#[test]
fn sentences_and_identifiers_are_split_into_parts() {
    let lines = [(1, "Which rule applies"), (2, "is fixed. Is it what is asked?"), (4, "- A list")];
    let lines: Vec<_> = lines.iter().map(|(line, text)| (*line, (*text).to_owned())).collect();
    assert_eq!(
        split_sentences(&lines),
        [(1, "Which rule applies is fixed.".to_owned()), (1, "Is it what is asked?".to_owned()),]
    );
    assert_eq!(split_words("OutboundDoor_2HTTPNews"), ["outbound", "door", "2", "news"]);
    let source = "let door = \"a stranger\"; // a guest\nfn told_twice() {}\nfn told() {}";
    let code = strip_comments_and_strings(source);
    assert!(code.contains("door") && !code.contains("stranger") && !code.contains("guest"));
}

/// One measured figure and the places that contribute to it.
#[derive(Default)]
struct Figure {
    value: f64,
    locations: Vec<String>,
}

impl Figure {
    fn add_location(&mut self, location: String) {
        if self.locations.len() < MAX_LISTED_LOCATIONS {
            self.locations.push(location);
        }
    }
}

/// A sentence with its file and line.
struct Sentence {
    file: String,
    line: usize,
    text: String,
}

/// Returns the limits of `language.txt`: a name and a number in each line.
fn read_limits() -> BTreeMap<String, f64> {
    include_str!("language.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (name, limit) = line.rsplit_once(' ').expect("a name and a limit");
            (name.trim().to_owned(), limit.parse().expect("a number"))
        })
        .collect()
}

fn measure_figures() -> BTreeMap<String, Figure> {
    let files = project_files();
    let mut figures = BTreeMap::new();
    for (kind, sentences) in sentences_by_kind(&files) {
        measure_sentences(kind, &sentences, &mut figures);
    }
    measure_identifiers(&files, &mut figures);
    let lexicon = &files.iter().find(|(path, _)| path == "docs/lexicon.md").expect("a lexicon").1;
    let entries = Regex::new(r"\*\*[^*]+\*\*").expect("a pattern").find_iter(lexicon).count();
    figures.insert(
        "lexicon entries".to_owned(),
        Figure { value: entries as f64, locations: Vec::new() },
    );
    figures
}

fn measure_sentences(kind: &str, sentences: &[Sentence], figures: &mut BTreeMap<String, Figure>) {
    let words: usize =
        sentences.iter().map(|sentence| sentence.text.split_whitespace().count()).sum();
    assert!(words > 0, "no {kind} found");
    let opening = Regex::new(OPENINGS).expect("a pattern");
    let mut openings = Figure::default();
    for sentence in sentences {
        // Questions may open with these words.
        if opening.is_match(&sentence.text) && !sentence.text.trim_end().ends_with('?') {
            openings.value += 100.0 / sentences.len() as f64;
            openings.add_location(sentence.location());
        }
    }
    figures.insert(format!("{kind} openings"), openings);
    for (name, pattern) in PATTERNS {
        let pattern = Regex::new(pattern).expect("a pattern");
        let mut figure = Figure::default();
        for sentence in sentences {
            let count = pattern.find_iter(&sentence.text).count();
            if count > 0 {
                figure.value += 1000.0 * count as f64 / words as f64;
                figure.add_location(sentence.location());
            }
        }
        figures.insert(format!("{kind} {name}"), figure);
    }
}

impl Sentence {
    fn location(&self) -> String {
        format!("  {}:{}: {}", self.file, self.line, self.text)
    }
}

/// Counts the invented words in identifiers, and the share of functions with a name of one word.
fn measure_identifiers(files: &[(String, String)], figures: &mut BTreeMap<String, Figure>) {
    let identifier = Regex::new(r"[A-Za-z_][A-Za-z0-9_]*").expect("a pattern");
    let function = Regex::new(r"\bfn ([a-z_0-9]+)").expect("a pattern");
    let invented: BTreeMap<_, _> = INVENTED_WORDS.iter().copied().collect();
    let mut invented_words = Figure::default();
    let (mut function_count, mut one_word_count) = (0.0, 0.0);
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let code = strip_comments_and_strings(text);
        for name in function.captures_iter(&code) {
            function_count += 1.0;
            one_word_count += f64::from(u8::from(!name[1].contains('_')));
        }
        for name in identifier.find_iter(&code) {
            for word in split_words(name.as_str()) {
                let singular = word.strip_suffix('s').unwrap_or(&word);
                let term = invented.get(word.as_str()).or_else(|| invented.get(singular));
                let term =
                    term.filter(|_| !EXTERNAL_NAMES.contains(&(path.as_str(), name.as_str())));
                if let Some(term) = term {
                    invented_words.value += 1.0;
                    invented_words.add_location(format!(
                        "  {path}: {}; the field says: {term}",
                        name.as_str()
                    ));
                }
            }
        }
    }
    figures.insert("identifiers invented".to_owned(), invented_words);
    let one_word_share =
        Figure { value: 100.0 * one_word_count / function_count, locations: Vec::new() };
    figures.insert("functions short".to_owned(), one_word_share);
}

/// Returns the words of an identifier in lower case; acronyms are left out.
fn split_words(identifier: &str) -> Vec<String> {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[A-Z]?[a-z0-9]+").expect("a pattern"));
    WORD.find_iter(identifier).map(|word| word.as_str().to_lowercase()).collect()
}

/// Returns the code without comments and without the texts of strings.
fn strip_comments_and_strings(source: &str) -> String {
    let token = Regex::new(concat!(
        r###"(?s)//[^\n]*|/\*.*?\*/|b?r##".*?"##|b?r#".*?"#|b?r".*?""###,
        r##"|[bc]?"(?:[^"\\]|\\.)*"|'(?:[^'\\\n]|\\[^\n]{1,8}?)'"##
    ))
    .expect("a pattern");
    token.replace_all(source, " ").into_owned()
}

fn sentences_by_kind(files: &[(String, String)]) -> Vec<(&'static str, Vec<Sentence>)> {
    let mut kinds = vec![
        ("comments", Vec::new()),
        ("help", Vec::new()),
        ("documents", Vec::new()),
        ("messages", Vec::new()),
    ];
    for (path, text) in files {
        let is_source = [".rs", ".java", ".go", ".js", ".proto"]
            .iter()
            .any(|extension| path.ends_with(extension));
        if is_source {
            // The doc comments of the command line are its help texts.
            let kind = usize::from(path.starts_with("crates/cli/src"));
            add_sentences(&mut kinds[kind].1, path, split_sentences(&comment_lines(text)));
        }
        if path.ends_with(".md") {
            add_sentences(&mut kinds[2].1, path, split_sentences(&prose_lines(text)));
        }
        if path.ends_with(".rs") && !path.contains("test") {
            add_sentences(&mut kinds[3].1, path, message_texts(text));
        }
    }
    kinds
}

fn add_sentences(sentences: &mut Vec<Sentence>, file: &str, new_sentences: Vec<(usize, String)>) {
    sentences.extend(new_sentences.into_iter().map(|(line, text)| Sentence {
        file: file.to_owned(),
        line,
        text,
    }));
}

fn comment_lines(text: &str) -> Vec<(usize, String)> {
    let full_line = Regex::new(r"^\s*//[/!]?\s?(.*)").expect("a pattern");
    let trailing = Regex::new(r"\s//\s(.*)").expect("a pattern");
    let comment = |line: &str| {
        let captures = full_line.captures(line).or_else(|| trailing.captures(line))?;
        Some(captures[1].to_owned())
    };
    numbered_lines(text).filter_map(|(number, line)| Some((number, comment(line)?))).collect()
}

/// Returns the lines of a document without code, tables, headings and inline code.
fn prose_lines(text: &str) -> Vec<(usize, String)> {
    let code = Regex::new(r"`[^`]*`").expect("a pattern");
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("a pattern");
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (number, line) in numbered_lines(text) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced
            && !line.trim_start().starts_with(['|', '#'])
            && !line.starts_with("    ")
        {
            let line = code.replace_all(line, "x");
            lines.push((number, link.replace_all(&line, "$1").into_owned()));
        }
    }
    lines
}

/// Returns the texts of errors and log messages.
fn message_texts(source: &str) -> Vec<(usize, String)> {
    let message_pattern = Regex::new(concat!(
        r#"#\[error\("((?:[^"\\]|\\.)*)""#,
        r#"|\b(?:error|warn|info|debug)!\([^"]*?"((?:[^"\\]|\\.)*)""#
    ))
    .expect("a pattern");
    message_pattern
        .captures_iter(source)
        .map(|captures| {
            let matched = captures.get(0).expect("a match");
            let line = source[..matched.start()].matches('\n').count() + 1;
            let text =
                captures.get(1).or_else(|| captures.get(2)).map_or("", |group| group.as_str());
            (line, text.to_owned())
        })
        .collect()
}

/// Joins lines into sentences of three words or more. An empty line, a gap and a list item end a sentence.
fn split_sentences(lines: &[(usize, String)]) -> Vec<(usize, String)> {
    let list_item = Regex::new(r"^([-*#>|]|\d+\.)").expect("a pattern");
    let list_marker = Regex::new(r"^([-*#>]+|\d+\.)\s*").expect("a pattern");
    let mut sentences = Vec::new();
    let mut paragraph: Option<(usize, String)> = None;
    let mut last_number = None;
    for (number, line) in lines {
        let line = line.trim();
        let is_separate = last_number.is_some_and(|last_number| *number != last_number + 1);
        if line.is_empty() || is_separate || list_item.is_match(line) {
            split_paragraph(paragraph.take(), &mut sentences);
        }
        let text = list_marker.replace(line, "");
        if !text.is_empty() {
            let (_, joined) = paragraph.get_or_insert((*number, String::new()));
            joined.push(' ');
            joined.push_str(&text);
        }
        last_number = Some(*number);
    }
    split_paragraph(paragraph, &mut sentences);
    sentences
}

fn split_paragraph(paragraph: Option<(usize, String)>, sentences: &mut Vec<(usize, String)>) {
    let Some((line, text)) = paragraph else { return };
    let sentence_boundary = Regex::new(r"[.!?:]\s+([A-Z`*])").expect("a pattern");
    let text = text.trim();
    let mut sentence_start = 0;
    let mut add_sentence = |sentence: &str| {
        if sentence.split_whitespace().count() > 2 {
            sentences.push((line, sentence.trim().to_owned()));
        }
    };
    for boundary in sentence_boundary.captures_iter(text) {
        let (end_of_sentence, next_sentence) =
            (boundary.get(0).expect("all"), boundary.get(1).expect("a letter"));
        add_sentence(&text[sentence_start..=end_of_sentence.start()]);
        sentence_start = next_sentence.start();
    }
    add_sentence(&text[sentence_start..]);
}

fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Returns the project's files with their paths from the root, without generated and foreign texts.
fn project_files() -> Vec<(String, String)> {
    let root = super::project_root();
    let mut files = Vec::new();
    collect_files(&root, &root, &mut files);
    assert!(files.len() > 500, "the project was not found");
    files
}

fn collect_files(root: &Path, directory: &Path, files: &mut Vec<(String, String)>) {
    let skipped_directories =
        ["target", "node_modules", "corpus", "golden", "vectors", "conformance", "changelog.d"];
    let extensions = ["rs", "java", "go", "js", "proto", "md"];
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !skipped_directories.contains(&name.as_str()) {
                collect_files(root, &path, files);
            }
        } else if path.extension().is_some_and(|extension| {
            extensions.iter().any(|source_extension| extension == *source_extension)
        }) && !name.ends_with("proto.rs")
        {
            let relative = path.strip_prefix(root).expect("a path below the root");
            let text = String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned();
            files.push((relative.to_string_lossy().into_owned(), text));
        }
    }
}
