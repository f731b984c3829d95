//! Tests of parsing, continuing and writing, with the examples of both specifications.

use proptest::prelude::*;

use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn headers_with<'a>(fields: &'a [(&str, &str)]) -> TraceHeaders<'a> {
    let mut headers = TraceHeaders::default();
    for (name, value) in fields {
        headers.record_header(name.as_bytes(), value.as_bytes());
    }
    headers
}

fn parse_context(name: &str, value: &str) -> Option<TraceContext> {
    headers_with(&[(name, value)]).parse_context()
}

/// Describes the trace, span and sampling decision of a parsed context.
fn describe_context(context: Option<TraceContext>) -> String {
    let Some(TraceContext { ids, decision, .. }) = context else { return "nothing".to_owned() };
    let ids = ids.map(|(trace, span)| format!("{trace} {span} ")).unwrap_or_default();
    format!("{ids}{decision:?}")
}

/// Returns the headers that are propagated for these received ones, with 1, 2 and so on as random numbers.
fn propagated_lines(fields: &[(&str, &str)], samples: bool) -> Vec<String> {
    let headers = headers_with(fields);
    let mut random_count = 0;
    let mut random = || {
        random_count += 1;
        random_count
    };
    let forms = PropagationFormats { w3c: true, ..PropagationFormats::default() };
    let span = TraceSpan::from_headers(&headers, forms, &mut random, |_| samples);
    let written_headers = PropagatedHeaders::from_span(&span);
    let fields: Vec<_> = written_headers.fields().collect();
    assert!(fields.len() <= MAX_FIELDS);
    fields
        .into_iter()
        .map(|(name, value)| format!("{name}: {}", str::from_utf8(value).unwrap()))
        .collect()
}

#[test]
fn traceparent_is_parsed_by_the_w3c_rules() {
    let sampled = format!("{TRACE} {SPAN} Sampled");
    for (value, expected) in [
        (format!("00-{TRACE}-{SPAN}-01"), &*sampled),
        (format!("00-{TRACE}-{SPAN}-00"), &*format!("{TRACE} {SPAN} NotSampled")),
        // §3.2.2.5: other flags are ignored.
        (format!("00-{TRACE}-{SPAN}-ff"), &*sampled),
        (format!("00-{TRACE}-{SPAN}-02"), &*format!("{TRACE} {SPAN} NotSampled")),
        // §4.3: future versions may append parts after a dash.
        (format!("cc-{TRACE}-{SPAN}-01"), &*sampled),
        (format!("cc-{TRACE}-{SPAN}-01-what-will-be"), &*sampled),
        (format!("cc-{TRACE}-{SPAN}-01.what"), "nothing"),
        (format!("00-{TRACE}-{SPAN}-01-what"), "nothing"),
        (format!("ff-{TRACE}-{SPAN}-01"), "nothing"),
        (format!("00-{}-{SPAN}-01", "0".repeat(32)), "nothing"),
        (format!("00-{TRACE}-{}-01", "0".repeat(16)), "nothing"),
        (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), "nothing"),
        (format!("00-{TRACE}-{SPAN}-0"), "nothing"),
        (format!("00-{TRACE}-{SPAN}--1"), "nothing"),
        (format!("0-0{TRACE}-{SPAN}-01"), "nothing"),
        (format!("00_{TRACE}_{SPAN}_01"), "nothing"),
        (String::new(), "nothing"),
    ] {
        assert_eq!(describe_context(parse_context("TraceParent", &value)), expected, "{value}");
    }
    let value = format!("00-{TRACE}-{SPAN}-01");
    let repeated_headers = [("traceparent", &*value), ("traceparent", &*value)];
    assert_eq!(headers_with(&repeated_headers).parse_context(), None);
}

#[test]
fn b3_is_parsed_from_one_header() {
    let short_id = &TRACE[16..];
    for (value, expected) in [
        (format!("{TRACE}-{SPAN}-1-{SPAN}"), format!("{TRACE} {SPAN} Sampled")),
        (format!("{TRACE}-{SPAN}-0"), format!("{TRACE} {SPAN} NotSampled")),
        (format!("{TRACE}-{SPAN}-d"), format!("{TRACE} {SPAN} Debug")),
        (format!("{TRACE}-{SPAN}"), format!("{TRACE} {SPAN} Deferred")),
        (format!("{short_id}-{SPAN}-1"), format!("{}{short_id} {SPAN} Sampled", "0".repeat(16))),
        ("0".to_owned(), "NotSampled".to_owned()),
        ("d".to_owned(), "Debug".to_owned()),
        (format!("{TRACE}-{SPAN}-2"), "nothing".to_owned()),
        (format!("{TRACE}-{SPAN}-1-x"), "nothing".to_owned()),
        (format!("{TRACE}-{SPAN}-1-{SPAN}-"), "nothing".to_owned()),
        (format!("{}-{SPAN}-1", "0".repeat(32)), "nothing".to_owned()),
        (TRACE.to_owned(), "nothing".to_owned()),
        (String::new(), "nothing".to_owned()),
    ] {
        assert_eq!(describe_context(parse_context("b3", &value)), expected, "{value}");
    }
}

#[test]
fn b3_is_parsed_from_several_headers() {
    let ids = [("X-B3-TraceId", TRACE), ("X-B3-SpanId", SPAN)];
    let with = |more: &[(&'static str, &'static str)]| {
        let fields = [&ids[..], more].concat();
        describe_context(headers_with(&fields).parse_context())
    };
    for (more, decision) in [
        (&[][..], "Deferred"),
        (&[("x-b3-sampled", "1")], "Sampled"),
        (&[("x-b3-sampled", "true")], "Sampled"),
        (&[("x-b3-sampled", "0")], "NotSampled"),
        (&[("x-b3-sampled", "0"), ("x-b3-flags", "1")], "Debug"),
        (&[("x-b3-sampled", "yes")], "Deferred"),
    ] {
        assert_eq!(with(more), format!("{TRACE} {SPAN} {decision}"), "{more:?}");
    }
    assert_eq!(with(&[("x-b3-traceid", TRACE)]), "nothing");
    assert_eq!(describe_context(parse_context("x-b3-sampled", "0")), "NotSampled");
    assert_eq!(describe_context(parse_context("x-b3-spanid", SPAN)), "nothing");
}

#[test]
fn a_trace_is_started_without_a_received_context() {
    let truncated_header = "traceparent: 00-00000000000000010000000000000002-0000000000000003-0";
    assert_eq!(propagated_lines(&[("host", "a")], true), [format!("{truncated_header}1")]);
    assert_eq!(propagated_lines(&[("host", "a")], false), [format!("{truncated_header}0")]);
    assert_eq!(
        propagated_lines(&[("traceparent", "nonsense")], true),
        [format!("{truncated_header}1")]
    );
    // The context has a sampling decision and no trace.
    assert_eq!(
        propagated_lines(&[("b3", "0")], true),
        ["b3: 00000000000000010000000000000002-0000000000000003-0"]
    );
}

#[test]
fn a_context_is_propagated_in_the_received_formats() {
    let w3c = format!("00-{TRACE}-{SPAN}-01");
    let b3 = format!("{TRACE}-{SPAN}-d");
    let continued = format!("traceparent: 00-{TRACE}-0000000000000001-01");
    assert_eq!(propagated_lines(&[("traceparent", &w3c)], false), [&*continued]);
    assert_eq!(
        propagated_lines(&[("b3", &b3)], false),
        [format!("b3: {TRACE}-0000000000000001-d-{SPAN}")]
    );
    // The first valid context is used; all received formats are written.
    assert_eq!(
        propagated_lines(&[("b3", "0"), ("traceparent", &w3c)], false),
        [&*continued, &*format!("b3: {TRACE}-0000000000000001-1-{SPAN}")]
    );
    let short_id = &TRACE[16..];
    assert_eq!(
        propagated_lines(
            &[("x-b3-traceid", short_id), ("x-b3-spanid", SPAN), ("x-b3-flags", "1")],
            false
        ),
        [
            &*format!("x-b3-traceid: {short_id}"),
            "x-b3-spanid: 0000000000000001",
            &*format!("x-b3-parentspanid: {SPAN}"),
            "x-b3-flags: 1",
        ]
    );
}

#[test]
fn tracestate_is_propagated_only_with_its_own_traceparent() {
    let span = |fields: &[(&str, &str)]| {
        TraceSpan::from_headers(
            &headers_with(fields),
            PropagationFormats::default(),
            &mut || 1,
            |_| true,
        )
    };
    let value = format!("00-{TRACE}-{SPAN}-01");
    let state = ("tracestate", "a=1");
    assert!(!span(&[("traceparent", &value), state]).replaced_headers().contains(&"tracestate"));
    assert!(span(&[("traceparent", "00"), state]).replaced_headers().contains(&"tracestate"));
    assert!(span(&[("b3", "1"), state]).replaced_headers().contains(&"tracestate"));
    assert!(span(&[state]).replaced_headers().contains(&"tracestate"));
}

#[test]
fn only_received_headers_are_replaced() {
    let span = |fields: &[(&str, &str)]| {
        TraceSpan::from_headers(
            &headers_with(fields),
            PropagationFormats::default(),
            &mut || 1,
            |_| true,
        )
    };
    assert!(span(&[("host", "a"), ("user-agent", "b")]).replaced_headers().is_empty());
    for name in [
        "TraceParent",
        "b3",
        "x-b3-traceid",
        "x-b3-spanid",
        "X-B3-ParentSpanId",
        "x-b3-sampled",
        "x-b3-flags",
        "tracestate",
    ] {
        let span = span(&[(name, "what it says does not matter")]);
        let replaces = |replaced: &&str| replaced.eq_ignore_ascii_case(name);
        assert!(span.replaced_headers().iter().any(replaces), "{name}");
    }
}

proptest! {
    #[test]
    fn any_header_value_is_parsed_without_a_panic(
        name in "(traceparent|b3|x-b3-(traceid|spanid|sampled|flags))",
        value in prop::collection::vec(any::<u8>(), 0..80),
        edit in (0..80_usize, any::<u8>()),
    ) {
        let mut headers = TraceHeaders::default();
        headers.record_header(name.as_bytes(), &value);
        let mut altered_value = format!("00-{TRACE}-{SPAN}-01").into_bytes();
        if let Some(byte) = altered_value.get_mut(edit.0) {
            *byte = edit.1;
        }
        headers.record_header(name.as_bytes(), &altered_value);
        let mut single_header = TraceHeaders::default();
        single_header.record_header(name.as_bytes(), &altered_value);
        for headers in [headers, single_header] {
            let span = TraceSpan::from_headers(&headers, PropagationFormats::default(), &mut || 7, |_| true);
            for (_, value) in PropagatedHeaders::from_span(&span).fields() {
                prop_assert!(value.iter().all(u8::is_ascii_graphic));
            }
        }
    }

    #[test]
    fn propagated_headers_are_parsed_at_the_next_hop(
        draws in prop::collection::vec(any::<u64>(), 4),
        is_sampled in any::<bool>(),
        forms in any::<(bool, bool, bool)>(),
    ) {
        let forms = PropagationFormats { w3c: forms.0, b3: forms.1, b3_multi: forms.2 };
        let mut draws = draws.into_iter().cycle();
        let mut random = || draws.next().unwrap();
        let first = TraceSpan::from_headers(&TraceHeaders::default(), forms, &mut random, |_| is_sampled);
        let written_headers = PropagatedHeaders::from_span(&first);
        let mut headers = TraceHeaders::default();
        written_headers.fields().for_each(|(name, value)| headers.record_header(name.as_bytes(), value));
        prop_assert_eq!(headers.received_formats(), forms);
        if forms != PropagationFormats::default() {
            let next_span = TraceSpan::from_headers(&headers, PropagationFormats::default(), &mut random, |_| !is_sampled);
            prop_assert_eq!(next_span.trace, first.trace);
            prop_assert_eq!(next_span.parent, Some(first.id));
            prop_assert_eq!(next_span.is_sampled, is_sampled);
        }
    }
}
