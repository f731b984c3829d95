//! Tests of hints: mistakes are inserted into the documented examples of every kind, and the proposed replacements are
//! applied and read again.

use super::*;
use crate::document::parse_documents;
use crate::kinds;

/// Returns the documents of all pages.
fn documented_examples() -> Vec<DocumentNode> {
    let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules");
    let mut nodes = Vec::new();
    for page in std::fs::read_dir(pages).unwrap() {
        let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            nodes.extend(parse_documents(block.split("```").next().unwrap()).unwrap());
        }
    }
    assert!(nodes.len() > 40, "{}", nodes.len());
    nodes
}

/// Counts the values and keys of a document.
fn count_scalars(node: &DocumentNode) -> usize {
    match &node.value {
        NodeValue::List(list) => 1 + list.iter().map(count_scalars).sum::<usize>(),
        NodeValue::Map(map) => {
            1 + map
                .iter()
                .map(|(key, value)| count_scalars(key) + count_scalars(value))
                .sum::<usize>()
        }
        _ => 1,
    }
}

/// Changes the value or key with this number, counted in document order; false if the change does not apply to it.
fn insert_mistake(
    node: &mut DocumentNode,
    number: &mut usize,
    change: &dyn Fn(&NodeValue) -> Option<NodeValue>,
) -> bool {
    if *number == 0 {
        let changed_value = change(&node.value);
        return changed_value.map(|value| node.value = value).is_some();
    }
    *number -= 1;
    match &mut node.value {
        NodeValue::List(list) => {
            for node in list {
                let scalar_count = count_scalars(node);
                if *number < scalar_count {
                    return insert_mistake(node, number, change);
                }
                *number -= scalar_count;
            }
            false
        }
        NodeValue::Map(map) => {
            for node in map.iter_mut().flat_map(|(key, value)| [key, value]) {
                let scalar_count = count_scalars(node);
                if *number < scalar_count {
                    return insert_mistake(node, number, change);
                }
                *number -= scalar_count;
            }
            false
        }
        _ => false,
    }
}

fn scalar_text(value: &NodeValue) -> Option<String> {
    match value {
        NodeValue::Text(text) | NodeValue::Number(text) => Some(text.clone()),
        NodeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

/// A function that returns a wrong value in place of a value; `None` if the mistake does not apply to the value.
type Mistake = Box<dyn Fn(&NodeValue) -> Option<NodeValue>>;

/// Returns the kinds of mistakes that hints cover.
fn mistakes() -> Vec<Mistake> {
    let number = |text: &'static str| -> Mistake {
        Box::new(move |value| scalar_text(value).map(|_| NodeValue::Number(text.to_owned())))
    };
    vec![
        number("1"),
        number("-1"),
        number("70000"),
        number("1.5"),
        Box::new(|value| scalar_text(value).map(|_| NodeValue::Boolean(true))),
        // Quoted, out of range, misspelled, capitalized.
        Box::new(|value| scalar_text(value).map(NodeValue::Text)),
        Box::new(|value| scalar_text(value).map(|_| NodeValue::Text("99999999".to_owned()))),
        Box::new(|value| {
            scalar_text(value).map(|text| NodeValue::Text(text.chars().skip(1).collect()))
        }),
        Box::new(|value| scalar_text(value).map(|text| NodeValue::Text(format!("{text}s")))),
        Box::new(|value| scalar_text(value).map(|text| NodeValue::Text(text.to_uppercase()))),
    ]
}

/// Returns the problems as reported.
fn reported_problems(node: &DocumentNode) -> Vec<FieldDiagnostic> {
    verify_hints(node, kinds::find_problems(None, node), |node| kinds::find_problems(None, node))
}

#[test]
fn a_proposed_replacement_is_accepted() {
    let mut hint_counts = [0; 4];
    for document in documented_examples() {
        for number in 0..count_scalars(&document) {
            for mistake in mistakes() {
                let mut document_with_mistake = document.clone();
                if !insert_mistake(&mut document_with_mistake, &mut number.clone(), &*mistake) {
                    continue;
                }
                let diagnostics = reported_problems(&document_with_mistake);
                for diagnostic in &diagnostics {
                    check_hint(&document_with_mistake, diagnostic, &diagnostics, &mut hint_counts);
                }
            }
        }
    }
    assert!(
        hint_counts.iter().all(|count| *count > 50),
        "quote, unquote, other words, durations: {hint_counts:?}"
    );
}

fn check_hint(
    document: &DocumentNode,
    diagnostic: &FieldDiagnostic,
    diagnostics: &[FieldDiagnostic],
    hint_counts: &mut [usize; 4],
) {
    let hint_phrases = [" in quotes", "without quotes or a tag", "did you mean"];
    let proposes_seconds = diagnostic
        .hint
        .strip_prefix("write `")
        .and_then(|proposal| proposal.strip_suffix("s`"))
        .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(phrase_index) = hint_phrases
        .iter()
        .position(|phrase| diagnostic.hint.contains(phrase))
        .or(proposes_seconds.then_some(hint_phrases.len()))
    else {
        assert_eq!(diagnostic.replacement, None, "{}", diagnostic.hint);
        return;
    };
    hint_counts[phrase_index] += 1;
    let replacement = diagnostic.replacement.as_ref();
    let replacement = replacement.unwrap_or_else(|| panic!("{} is not tried", diagnostic.hint));
    let mut corrected_document = document.clone();
    // Documents embedded in a text are not changed.
    if !apply_replacement(&mut corrected_document, &diagnostic.field, replacement) {
        assert!(diagnostic.field.starts_with("spec.config."), "{}", diagnostic.field);
        return;
    }
    let path = path_after_replacement(&diagnostic.field, replacement);
    for other in
        kinds::find_problems(None, &corrected_document).iter().filter(|other| other.field == path)
    {
        // The value of a misspelled key may be wrong as well; that problem is reported at the same time.
        let is_reported = diagnostic.hint.contains(&other.problem)
            || diagnostics
                .iter()
                .any(|diagnostic| diagnostic.field == path && diagnostic.problem == other.problem);
        assert!(
            is_reported,
            "{}: {}; {} → {}",
            diagnostic.field, diagnostic.problem, diagnostic.hint, other.problem
        );
    }
}

#[test]
fn a_number_without_a_unit_is_not_proposed_in_quotes() {
    let text = "apiVersion: leno.dev/v1alpha1\nkind: RateLimit\nmetadata: {name: r}\n\
        spec: {targetRefs: [{kind: Service, name: api}], rules: [{name: a, requests: 5, per: 1}]}\n";
    let document = parse_documents(text).unwrap().remove(0);
    let diagnostics = reported_problems(&document);
    let diagnostic =
        diagnostics.iter().find(|diagnostic| diagnostic.field.ends_with(".per")).unwrap();
    assert_eq!(diagnostic.problem, "1 is not a duration");
    assert_eq!(diagnostic.hint, "write `1s`");
}

/// Returns a document of `kind` with this `spec` in flow style.
fn document_with_spec(kind: &str, spec: &str) -> DocumentNode {
    let group =
        if kind == "HTTPRoute" { "gateway.networking.k8s.io/v1" } else { "leno.dev/v1alpha1" };
    let text = format!("apiVersion: {group}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n");
    parse_documents(&text).unwrap().remove(0)
}

const TARGET: &str = "targetRefs: [{kind: Service, name: api}]";

#[test]
fn a_scalar_in_place_of_a_map_gets_an_accepted_proposal() {
    let fault = |delay: &str| format!("{{{TARGET}, rules: [{{name: a, {delay}}}]}}");
    for (document, hint) in [
        (
            document_with_spec("AccessPolicy", "{deny: [{requests: [{path: /admin}]}]}"),
            "write a map, such as {type: PathPrefix, value: \"/admin\"}",
        ),
        (
            document_with_spec("FaultInjection", &fault("delay: 100ms")),
            "write a map, such as {fixedDelay: \"100ms\"}",
        ),
        (
            document_with_spec("FaultInjection", &fault("delay: 100")),
            "write a map, such as {fixedDelay: 100ms}",
        ),
        (
            document_with_spec("FaultInjection", &fault("abort: 503")),
            "write a map, such as {httpStatus: 503}",
        ),
        (
            document_with_spec("FaultInjection", &fault("abort: x")),
            "write a map; its fields are `httpStatus`, `grpcStatus`, `body`, `headers` and `percent`",
        ),
        (
            document_with_spec("Hedging", "{targetRefs: [api], after: 1s}"),
            "write a map, such as {name: \"api\"}",
        ),
    ] {
        let diagnostics = reported_problems(&document);
        let [diagnostic] = &diagnostics[..] else { panic!("{}", diagnostics.len()) };
        assert_eq!(diagnostic.hint, hint, "{}: {}", diagnostic.field, diagnostic.problem);
    }
}

/// Replaces each map of the pages by a scalar.
#[test]
fn each_map_in_a_hint_is_accepted() {
    let mut proposal_count = 0;
    for document in documented_examples() {
        for number in 0..count_scalars(&document) {
            for text in ["api", "/x", "5s"] {
                let replace_map = |value: &NodeValue| {
                    matches!(value, NodeValue::Map(_)).then(|| NodeValue::Text(text.to_owned()))
                };
                let mut document_with_mistake = document.clone();
                if !insert_mistake(&mut document_with_mistake, &mut number.clone(), &replace_map) {
                    continue;
                }
                for diagnostic in reported_problems(&document_with_mistake) {
                    assert_ne!(
                        diagnostic.replacement.as_ref().map(|_| &diagnostic.hint),
                        Some(&diagnostic.hint)
                    );
                    let Some((_, map)) = diagnostic.hint.split_once("such as {") else { continue };
                    let map = parse_documents(&format!("{{{map}\n")).unwrap().remove(0);
                    let mut corrected_document = document_with_mistake.clone();
                    assert!(
                        set_value(&mut corrected_document, &diagnostic.field, &map),
                        "{}",
                        diagnostic.field
                    );
                    let problems = kinds::find_problems(None, &corrected_document);
                    let remaining_problem = problems
                        .iter()
                        .find(|problem| problem.field.starts_with(&diagnostic.field));
                    assert!(
                        remaining_problem.is_none(),
                        "{}: {}",
                        diagnostic.field,
                        diagnostic.hint
                    );
                    proposal_count += 1;
                }
            }
        }
    }
    assert!(proposal_count > 100, "{proposal_count}");
}

/// Sets the value at a path.
fn set_value(node: &mut DocumentNode, path: &str, value: &DocumentNode) -> bool {
    fn set_below(node: &mut DocumentNode, prefix: &str, path: &str, value: &DocumentNode) -> bool {
        if prefix == path {
            node.value = value.value.clone();
            return true;
        }
        match &mut node.value {
            NodeValue::List(list) => {
                let mut elements = list.iter_mut().enumerate();
                elements.any(|(index, node)| {
                    set_below(node, &format!("{prefix}[{index}]"), path, value)
                })
            }
            NodeValue::Map(map) => map.iter_mut().any(|(key, node)| {
                let NodeValue::Text(name) = &key.value else { return false };
                set_below(node, &crate::field::append_key(prefix, name), path, value)
            }),
            _ => false,
        }
    }
    set_below(node, "", path, value)
}

#[test]
fn a_misspelled_key_causes_one_rejection() {
    let cases = [
        (
            "Hedging",
            "{targetRef: {kind: Service, name: api}, after: 1s}".to_owned(),
            "spec.targetRef",
        ),
        (
            "RateLimit",
            format!("{{{TARGET}, ruls: [{{name: a, requests: 1, per: 1s}}]}}"),
            "spec.ruls",
        ),
        (
            "AccessPolicy",
            "{deny: [{requests: [{paths: [/admin]}]}]}".to_owned(),
            "spec.deny[0].requests[0].paths",
        ),
        ("CircuitBreaker", format!("{{{TARGET}, limits: {{request: 2}}}}"), "spec.limits.request"),
    ];
    for (kind, spec, field) in cases {
        let diagnostics = reported_problems(&document_with_spec(kind, &spec));
        let lines: Vec<_> = diagnostics
            .iter()
            .map(|diagnostic| {
                format!("{}: {}; {}", diagnostic.field, diagnostic.problem, diagnostic.hint)
            })
            .collect();
        assert_eq!(diagnostics.len(), 1, "{lines:?}");
        assert_eq!(diagnostics[0].field, field, "{lines:?}");
        assert!(diagnostics[0].hint.starts_with("did you mean"), "{lines:?}");
    }
    let diagnostics = reported_problems(&document_with_spec(
        "Hedging",
        "{targetRef: {kind: Service, name: api}, after: 1s}",
    ));
    let hint = "did you mean `targetRefs`? Its value is a map, not a list: write a list, each element after `- `";
    assert_eq!(diagnostics[0].hint, hint);
    // The misspelled key does not explain an unrelated mistake.
    assert_eq!(
        reported_problems(&document_with_spec(
            "RateLimit",
            "{ruls: [{name: a, requests: 1, per: 1s}]}"
        ))
        .len(),
        2
    );
}

#[test]
fn percentages_are_proposed_in_the_form_of_their_field() {
    let fault = |percent: &str| {
        document_with_spec(
            "FaultInjection",
            &format!("{{{TARGET}, rules: [{{delay: {{fixedDelay: 1s, percent: {percent}}}}}]}}"),
        )
    };
    let sampling = |text: &str| {
        document_with_spec(
            "MeshConfig",
            &format!(
                "{{tracing: {{sampling: {text}, export: {{otlp: {{endpoint: 'http://127.0.0.1:4317'}}}}}}}}"
            ),
        )
    };
    for (document, hint) in [
        (fault("'50%'"), "write 50, without quotes or a tag"),
        (fault("50 %"), "write 50, without quotes or a tag"),
        (fault("'12.5'"), "write 12.5, without quotes or a tag"),
        (
            fault("'500%'"),
            "use a number above 0, up to 100, with at most four decimals, such as 12.5",
        ),
        (sampling("10"), "did you mean `10%`?"),
        (sampling("'0.5'"), "did you mean `0.5%`?"),
    ] {
        let diagnostics = reported_problems(&document);
        let hints: Vec<&str> =
            diagnostics.iter().map(|diagnostic| diagnostic.hint.as_str()).collect();
        assert_eq!(hints, [hint]);
    }
}

#[test]
fn terms_of_other_systems_get_a_hint_with_the_kind() {
    for (term, kind) in
        [("PassiveHealthCheck", "OutlierDetection"), ("RateLimitPolicy", "RateLimit")]
    {
        let diagnostics = reported_problems(&document_with_spec(term, "{}"));
        assert_eq!(diagnostics[0].hint, format!("did you mean `{kind}`?"));
    }
}
