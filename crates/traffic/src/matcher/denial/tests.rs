//! Property tests of deny rules: no alternative encoding bypasses a rule. Requests are modified by the equivalences
//! that web frameworks document.

use leno_model::{FieldMatch, RequestMatch};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::variant::PathKind;

/// A denied request, which is modified to a request that a framework treats as equal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SentRequest {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    /// The separator of two parameters.
    separator: &'static str,
    fields: Vec<(String, String)>,
}

impl SentRequest {
    fn get(path: &str) -> Self {
        let (method, path) = ("GET".to_owned(), path.to_owned());
        Self { method, path, query: Vec::new(), separator: "&", fields: Vec::new() }
    }

    fn is_denied_by(&self, matcher: &DenialMatcher) -> bool {
        let pairs: Vec<String> =
            self.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let query = (!pairs.is_empty()).then(|| pairs.join(self.separator));
        let (method, path, fields) = (self.method.as_str(), self.path.as_str(), &self.fields);
        let request =
            RequestView { method, path, query: query.as_deref(), authority: "shop", fields };
        matcher.may_match(&request, &PathVariants::from_path(path, PathKind::from_path(path)))
    }
}

/// A function that modifies the encoding of a request at some position.
type Variation = fn(SentRequest, &Index) -> SentRequest;

/// The equivalences of a framework's routing, each with its documentation.
struct Framework {
    name: &'static str,
    variants: &'static [(Variation, &'static str)],
}

const FRAMEWORKS: &[Framework] = &[
    Framework {
        name: "Express",
        variants: &[
            (
                upper_letter,
                "expressjs.com/en/api.html#express.router: caseSensitive is off by default",
            ),
            (last_slash, "expressjs.com/en/api.html#express.router: strict is off by default"),
            (
                escaped_letter,
                "express decodes parameters of paths; RFC 3986 §6.2.2.2 makes both equal",
            ),
            (listed_parameter, "github.com/ljharb/qs#parsing-arrays: a[]=b, a[0]=b"),
            (bracketed_parameter, "github.com/ljharb/qs, lib/parse.js: [a]=b is a=b"),
            (text_after_key, "the same: text between brackets is dropped"),
            (repeated_parameter, "github.com/ljharb/qs#parsing-arrays: a=b&a=c"),
            (plus_for_blank, "github.com/ljharb/qs: + is a space"),
            (override_header, "expressjs.com/en/resources/middleware/method-override.html"),
            (override_parameter, "the same: methodOverride('_method')"),
            (escaped_value, "github.com/jshttp/cookie: decodeURIComponent"),
            (quoted_value, "the same: quotes around a value are dropped"),
            (quoted_pair, "RFC 9110 §5.6.4: a quoted pair is the octet after the backslash"),
            (blank_of_latin, "tc39.es/ecma262, String.prototype.trim: U+00A0 is a blank"),
            (upper_header_name, "nodejs.org/api/http.html#messageheaders: names are lower-cased"),
        ],
    },
    Framework {
        name: "Spring MVC, AntPathMatcher",
        variants: &[
            (
                last_slash,
                "docs.spring.io, PathMatchConfigurer.setUseTrailingSlashMatch: on before 6.0",
            ),
            (
                add_suffix,
                "docs.spring.io, PathMatchConfigurer.setUseSuffixPatternMatch: on before 5.3",
            ),
            (element_parameter, "docs.spring.io, UrlPathHelper.setRemoveSemicolonContent"),
            (escaped_letter, "docs.spring.io, UrlPathHelper.setUrlDecode: on by default"),
            (doubled_slash, "docs.spring.io, UrlPathHelper.getSanitizedPath: // is /"),
            (escaped_blank, "docs.spring.io, AntPathMatcher.setTrimTokens: on before 4.3"),
            (upper_letter, "docs.spring.io, AntPathMatcher.setCaseSensitive(false)"),
            (comma_in_parameter, "docs.spring.io, StringToCollectionConverter: a,b is a list"),
            (override_parameter, "docs.spring.io, HiddenHttpMethodFilter: _method"),
            (
                quoted_key,
                "docs.spring.io, PropertyAccessorUtils.canonicalPropertyName: a['b'] is a[b]",
            ),
        ],
    },
    Framework {
        name: "Spring, PathPattern",
        variants: &[
            (
                last_slash,
                "docs.spring.io, PathPatternParser.setMatchOptionalTrailingSeparator: on before 6.0",
            ),
            (
                element_parameter,
                "docs.spring.io, PathContainer.PathSegment.valueToMatch: without parameters",
            ),
            (escaped_letter, "the same: decoded"),
            (upper_letter, "docs.spring.io, PathPatternParser.setCaseSensitive(false)"),
            (repeated_parameter, "docs.spring.io, @RequestParam List"),
        ],
    },
    Framework {
        name: "ASP.NET",
        variants: &[
            (
                upper_letter,
                "learn.microsoft.com/aspnet/core/fundamentals/routing: matching is case-insensitive",
            ),
            (last_slash, "the same: trailing slashes are ignored"),
            (escaped_letter, "the same: paths are decoded"),
            (
                use_backslash,
                "learn.microsoft.com, http.sys: \\ is / (UrlSegment, RFC 3986 is not followed)",
            ),
            (escaped_slash, "learn.microsoft.com, HttpSysOptions: unescaped before it is routed"),
            (escaped_escape, "learn.microsoft.com/iis, requestFiltering allowDoubleEscaping"),
            (iis_escape, "learn.microsoft.com, Http.sys registry settings: PercentUAllowed is on"),
            (
                last_dot,
                "learn.microsoft.com, Naming Files: a dot or a blank at the end does not count",
            ),
            (
                upper_parameter_name,
                "learn.microsoft.com, HttpRequest.Query: names are case-insensitive",
            ),
            (
                comma_in_parameter,
                "learn.microsoft.com, StringValues: several values are joined by commas",
            ),
            (override_header, "learn.microsoft.com, HttpMethodOverrideMiddleware"),
            (
                upper_value,
                "learn.microsoft.com, roles and schemes are compared without regard to case",
            ),
        ],
    },
    Framework {
        name: "PHP and WSGI",
        variants: &[
            (underscored_header, "peps.python.org/pep-3333: HTTP_ variables; RFC 3875 §4.1.18"),
            (dotted_header, "php.net/manual/language.variables.external: dots become underscores"),
            (listed_parameter, "the same: a[]=b"),
            (text_after_key, "github.com/php/php-src, main/php_variables.c: a[b]c=d is a[b]=d"),
            (
                blank_before_name,
                "php.net/manual/function.parse-str: blanks before a name are dropped",
            ),
            (escaped_letter, "PEP 3333: PATH_INFO is decoded"),
            (doubled_slash, "werkzeug.palletsprojects.com, Map(merge_slashes=True)"),
            (
                last_slash,
                "werkzeug.palletsprojects.com, Map(strict_slashes=False); Django's APPEND_SLASH",
            ),
            (line_feed, "docs.djangoproject.com, re_path: $ matches before a last line feed"),
            (plus_for_blank, "php.net/manual/function.urldecode: + is a space"),
            (semicolon_for_and, "docs.python.org/3/library/urllib.parse: ; before 3.10"),
            (list_of_values, "RFC 9110 §5.3: values of a field are joined by commas"),
            (escaped_value, "php.net/manual/reserved.variables.cookies: values are decoded"),
            (quoted_value, "werkzeug.palletsprojects.com, parse_cookie: quotes are dropped"),
            (blank_of_latin, "docs.python.org/3, str.strip: U+00A0 is a blank; WSGI reads Latin-1"),
        ],
    },
    Framework {
        name: "Rails",
        variants: &[
            (add_suffix, "guides.rubyonrails.org/routing.html: (.:format)"),
            (last_slash, "api.rubyonrails.org, Journey::Router::Utils.normalize_path"),
            (doubled_slash, "the same"),
            (escaped_letter, "the same"),
            (underscored_header, "github.com/rack/rack, SPEC: HTTP_ variables"),
            (listed_parameter, "guides.rubyonrails.org/action_controller_overview.html: ids[]=1"),
            (bracketed_parameter, "github.com/rack/rack, QueryParser: [a]=b is a=b"),
            (loose_brackets, r"the same: \A[\[\]]*([^\[\]]+)\]*"),
            (semicolon_for_and, "github.com/rack/rack, QueryParser: & and ; before 3.0"),
            (override_header, "github.com/rack/rack, MethodOverride: HTTP_X_HTTP_METHOD_OVERRIDE"),
            (override_parameter, "the same: _method"),
            (use_head, "github.com/rack/rack, Head: GET routes answer HEAD"),
        ],
    },
    Framework {
        name: "Parsers of URLs",
        variants: &[
            (network_path, "nodejs.org/api/http.html#messageurl: new URL(request.url, base)"),
            (network_path, "docs.python.org/3/library/urllib.parse: urlsplit, netloc after //"),
            (network_path, "php.net/manual/function.parse-url: //www.example.com/path"),
            (doubled_slash, "url.spec.whatwg.org, special authority ignore slashes state"),
            (escaped_slash, "PEP 3333 and urlsplit: the path is decoded, and then parsed"),
            (escaped_escape, "the same behind a proxy that decodes"),
            (use_backslash, "url.spec.whatwg.org, special authority slashes state: \\ is /"),
            (escaped_letter, "the same: escapes stay, and applications decode them"),
            (escaped_query, "the same, of a path that is decoded before: ? ends it, and # does"),
            (tab_within, "url.spec.whatwg.org, basic URL parser: tabs and line ends are removed"),
        ],
    },
];

/// Replaces one of the replaceable bytes of a path.
fn replace_in_path(
    mut sent: SentRequest,
    at: &Index,
    is_replaceable: fn(u8) -> bool,
    replacement: impl Fn(char) -> String,
) -> SentRequest {
    let positions: Vec<usize> = sent
        .path
        .bytes()
        .enumerate()
        .filter(|(_, byte)| is_replaceable(*byte))
        .map(|(index, _)| index)
        .collect();
    if !positions.is_empty() {
        let position = *at.get(&positions);
        let replaced = char::from(sent.path.as_bytes()[position]);
        sent.path.replace_range(position..=position, &replacement(replaced));
    }
    sent
}

fn upper_letter(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(
        sent,
        at,
        |byte| byte.is_ascii_lowercase(),
        |letter| letter.to_ascii_uppercase().to_string(),
    )
}

fn escaped_letter(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(
        sent,
        at,
        |byte| byte.is_ascii_alphabetic(),
        |letter| format!("%{:02x}", u32::from(letter)),
    )
}

fn escaped_escape(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(
        sent,
        at,
        |byte| byte.is_ascii_alphabetic(),
        |letter| format!("%25{:02X}", u32::from(letter)),
    )
}

fn iis_escape(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(
        sent,
        at,
        |byte| byte.is_ascii_alphabetic(),
        |letter| format!("%u{:04x}", u32::from(letter)),
    )
}

fn doubled_slash(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(sent, at, |byte| byte == b'/', |_| "//".to_owned())
}

fn network_path(mut sent: SentRequest, at: &Index) -> SentRequest {
    sent.path.insert_str(0, ["//x", "//x:80", "///u@x", "/%2fx"][at.index(4)]);
    sent
}

fn escaped_query(mut sent: SentRequest, at: &Index) -> SentRequest {
    sent.path.push_str(["%3fx=1", "%23x", "%253Fx"][at.index(3)]);
    sent
}

fn tab_within(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(sent, at, |byte| matches!(byte, b'g'..=b'z'), |letter| format!("%09{letter}"))
}

fn use_backslash(sent: SentRequest, at: &Index) -> SentRequest {
    replace_in_path(sent, at, |byte| byte == b'/', |_| r"\".to_owned())
}

/// Encodes a slash other than the first, without which there is no path.
fn escaped_slash(mut sent: SentRequest, at: &Index) -> SentRequest {
    let tail = SentRequest { path: sent.path.split_off(1), ..sent.clone() };
    let tail = replace_in_path(tail, at, |byte| byte == b'/', |_| "%2f".to_owned());
    SentRequest { path: sent.path + &tail.path, ..tail }
}

fn element_parameter(mut sent: SentRequest, at: &Index) -> SentRequest {
    sent.path.push('/');
    let mut sent = replace_in_path(sent, at, |byte| byte == b'/', |_| ";v=1/".to_owned());
    if sent.path.starts_with(';') {
        sent.path = format!("/{}", sent.path);
    }
    sent
}

fn last_slash(mut sent: SentRequest, _: &Index) -> SentRequest {
    sent.path.push('/');
    sent
}

fn last_dot(mut sent: SentRequest, _: &Index) -> SentRequest {
    sent.path.push('.');
    sent
}

fn escaped_blank(mut sent: SentRequest, _: &Index) -> SentRequest {
    sent.path.push_str("%20");
    sent
}

fn line_feed(mut sent: SentRequest, _: &Index) -> SentRequest {
    sent.path.push_str("%0a");
    sent
}

fn add_suffix(mut sent: SentRequest, _: &Index) -> SentRequest {
    if !sent.path.ends_with(['/', '.']) && !sent.path.ends_with("%20") {
        sent.path.push_str(".json");
    }
    sent
}

fn use_head(mut sent: SentRequest, _: &Index) -> SentRequest {
    if sent.method == "GET" {
        sent.method = "HEAD".to_owned();
    }
    sent
}

fn override_header(mut sent: SentRequest, _: &Index) -> SentRequest {
    let method = std::mem::replace(&mut sent.method, "POST".to_owned());
    sent.fields.push(("X-HTTP-Method-Override".to_owned(), method));
    sent
}

fn override_parameter(mut sent: SentRequest, _: &Index) -> SentRequest {
    let method = std::mem::replace(&mut sent.method, "POST".to_owned());
    sent.query.push(("_method".to_owned(), method.to_lowercase()));
    sent
}

fn each_parameter(mut sent: SentRequest, change: impl Fn(&mut (String, String))) -> SentRequest {
    let is_parameter = |field: &&mut (String, String)| field.0 != "_method";
    sent.query.iter_mut().filter(is_parameter).for_each(change);
    sent
}

fn listed_parameter(sent: SentRequest, at: &Index) -> SentRequest {
    let index_suffix = ["[]", "[0]", "%5B%5D"][at.index(3)];
    each_parameter(sent, |(name, _)| name.push_str(index_suffix))
}

fn bracketed_parameter(sent: SentRequest, at: &Index) -> SentRequest {
    let brackets = [("[", "]"), ("%5B", "%5d"), ("%255b", "]")][at.index(3)];
    each_parameter(sent, |(name, _)| {
        let word_end = name.find(['[', '%']).unwrap_or(name.len());
        name.insert_str(word_end, brackets.1);
        name.insert_str(0, brackets.0);
    })
}

fn loose_brackets(sent: SentRequest, at: &Index) -> SentRequest {
    let (prefix, suffix) =
        [("]", ""), ("[", ""), ("", "]"), ("[[", "]]"), ("[]", ""), ("%5d", "%5D")][at.index(6)];
    each_parameter(sent, |(name, _)| {
        let word_end = name.find(['[', '%']).unwrap_or(name.len());
        name.insert_str(word_end, suffix);
        name.insert_str(0, prefix);
    })
}

/// Appends text after a key in brackets.
fn text_after_key(sent: SentRequest, _: &Index) -> SentRequest {
    each_parameter(sent, |(name, _)| {
        if name.ends_with(']') && name.contains('[') {
            name.push('x');
        }
    })
}

fn quoted_key(sent: SentRequest, at: &Index) -> SentRequest {
    let quote = ["'", "\"", "%22"][at.index(3)];
    each_parameter(sent, |(name, _)| {
        *name = name.replace("[role]", &format!("[{quote}role{quote}]"));
    })
}

fn upper_parameter_name(sent: SentRequest, _: &Index) -> SentRequest {
    each_parameter(sent, |(name, _)| *name = name.to_uppercase())
}

fn blank_before_name(sent: SentRequest, _: &Index) -> SentRequest {
    each_parameter(sent, |(name, _)| name.insert(0, '+'))
}

fn plus_for_blank(sent: SentRequest, _: &Index) -> SentRequest {
    each_parameter(sent, |(_, value)| *value = value.replace("%20", "+"))
}

fn comma_in_parameter(sent: SentRequest, _: &Index) -> SentRequest {
    each_parameter(sent, |(_, value)| value.insert_str(0, "other,"))
}

fn repeated_parameter(mut sent: SentRequest, _: &Index) -> SentRequest {
    if let Some((name, _)) = sent.query.first().cloned() {
        sent.query.insert(0, (name, "other".to_owned()));
    }
    sent
}

fn semicolon_for_and(mut sent: SentRequest, _: &Index) -> SentRequest {
    sent.query.insert(0, ("x".to_owned(), "y".to_owned()));
    sent.separator = ";";
    sent
}

fn each_field(mut sent: SentRequest, change: impl Fn(&mut (String, String))) -> SentRequest {
    sent.fields.iter_mut().for_each(change);
    sent
}

fn upper_header_name(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(name, _)| *name = name.to_uppercase())
}

fn underscored_header(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(name, _)| *name = name.replace('-', "_"))
}

fn dotted_header(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(name, _)| *name = name.replace('-', "."))
}

fn list_of_values(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(_, value)| *value = format!("other, {value};q=1"))
}

fn upper_value(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(_, value)| *value = value.to_uppercase())
}

fn escaped_value(sent: SentRequest, at: &Index) -> SentRequest {
    each_field(sent, |(_, value)| {
        let position = at.index(value.len());
        let letter = value.as_bytes()[position];
        if letter.is_ascii_alphabetic() {
            value.replace_range(position..=position, &format!("%{letter:02X}"));
        }
    })
}

fn quoted_value(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(_, value)| *value = format!("\"{value}\""))
}

fn quoted_pair(sent: SentRequest, at: &Index) -> SentRequest {
    each_field(sent, |(_, value)| {
        let positions: Vec<usize> = value.char_indices().map(|(position, _)| position).collect();
        value.insert(*at.get(&positions), '\\');
    })
}

/// Appends U+FFFD, which replaces invalid UTF-8 in a parsed request head.
fn blank_of_latin(sent: SentRequest, _: &Index) -> SentRequest {
    each_field(sent, |(_, value)| value.push('\u{fffd}'))
}

/// Returns a path, and a rule for it alone.
fn path_and_rule() -> impl Strategy<Value = (String, PathMatch)> {
    let element = "[a-z][a-z0-9_-]{0,5}";
    let path = prop::collection::vec(element, 1..4)
        .prop_map(|elements| format!("/{}", elements.join("/")));
    (path, 0..8_usize, any::<Index>()).prop_map(|(path, kind, at)| {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        let beginning = path.get(..=at.index(path.len())).unwrap_or(&path).to_owned();
        let rule = match kind {
            0 => PathMatch::Exact(path.clone()),
            1 => PathMatch::Exact(format!("{path}/")),
            2 => PathMatch::Prefix(path.clone()),
            3 => PathMatch::Prefix(format!("{parent}/")),
            4 => PathMatch::Regex(path.clone()),
            5 => PathMatch::Regex(format!("{beginning}.*")),
            6 => PathMatch::Regex(format!("{parent}/[a-z0-9_-]+")),
            _ => PathMatch::Regex(format!("{path}/(x)?")),
        };
        (path, rule)
    })
}

/// Returns a request and a rule that denies it.
fn request_and_rule() -> impl Strategy<Value = (SentRequest, RequestMatch)> {
    let field = |name: &str, value: &str, is_regex: bool| {
        let value = if is_regex {
            ValueMatch::Regex(format!("(?:{value})"))
        } else {
            ValueMatch::Exact(value.to_owned())
        };
        FieldMatch { name: name.to_owned(), value }
    };
    let method = select(vec![None, Some("GET"), Some("DELETE")]);
    (path_and_rule(), method, any::<[bool; 5]>()).prop_map(move |((path, rule), method, flags)| {
        let [header, query, regex, any_path, has_key] = flags;
        let mut sent = SentRequest::get(&path);
        sent.method = method.unwrap_or("GET").to_owned();
        let mut request = RequestMatch {
            path: if any_path { PathMatch::Any } else { rule },
            methods: method.into_iter().map(str::to_owned).collect(),
            ..RequestMatch::default()
        };
        if header {
            sent.fields.push(("x-user-role".to_owned(), "root".to_owned()));
            request.headers.push(field("X-User-Role", "root", regex));
        }
        if query {
            let (name, rule) = match has_key {
                true => ("user[role]", "user.role"),
                false => ("user_role", "user_role"),
            };
            sent.query.push((name.to_owned(), "team%20lead".to_owned()));
            request.query.push(field(rule, "team lead", regex));
        }
        (sent, request)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_variant_of_a_denied_request_is_denied(
        (sent, rule) in request_and_rule(),
        framework in 0..FRAMEWORKS.len(),
        variants in prop::collection::vec((any::<Index>(), any::<Index>()), 1..5),
    ) {
        let matcher = DenialMatcher::compile(&rule).unwrap();
        prop_assert!(sent.is_denied_by(&matcher), "{sent:?}");
        let framework = &FRAMEWORKS[framework];
        let (mut varied, mut sources) = (sent, Vec::new());
        for (variation, at) in &variants {
            let (vary, source) = variation.get(framework.variants);
            varied = vary(varied, at);
            sources.push(source);
        }
        prop_assert!(varied.is_denied_by(&matcher), "{}: {sources:?}: {varied:?}", framework.name);
    }

    /// httpd.apache.org/docs/current/content-negotiation.html: MultiViews serves `/a/x` at `/a.php/x`.
    #[test]
    fn a_script_without_its_extension_is_below_a_prefix(
        (path, _) in path_and_rule(),
        extension in "[a-z]{1,4}",
        below in "[a-z]{1,5}",
        at in any::<Index>(),
    ) {
        let path_match = PathMatch::Prefix(path.clone());
        let rule = RequestMatch { path: path_match, ..RequestMatch::default() };
        let sent = SentRequest::get(&format!("{path}.{extension}/{below}"));
        prop_assert!(is_denied(&rule, &sent), "{sent:?}");
        prop_assert!(is_denied(&rule, &upper_letter(sent, &at)));
    }

    #[test]
    fn a_matching_request_as_sent_is_denied(
        request in crate::match_index::tests::any_match(),
        generated in crate::match_index::tests::any_request(),
    ) {
        let view = generated.request_view();
        if super::super::RequestMatcher::compile(&request).unwrap().matches(&view) {
            let denial = DenialMatcher::compile(&request).unwrap();
            prop_assert!(denial.may_match(&view, &generated.path_variants()), "{request:?}");
        }
    }
}

fn is_denied(rule: &RequestMatch, sent: &SentRequest) -> bool {
    sent.is_denied_by(&DenialMatcher::compile(rule).unwrap())
}

#[test]
fn path_matches_cover_their_variants_only() {
    let exact = |path: &str| PathMatch::Exact(path.to_owned());
    let prefix = |path: &str| PathMatch::Prefix(path.to_owned());
    let regex = |path: &str| PathMatch::Regex(path.to_owned());
    for (path, sent, expected) in [
        (exact("/admin"), "/admin/", true),
        (exact("/admin"), "/admin%2f", true),
        (exact("/admin"), "/Admin", true),
        (exact("/admin"), "/admin.json", true),
        (exact("/admin"), "/admin%252f", true),
        (exact("/admin"), "/admin%00x", true),
        (exact("/admin"), "/adm\u{131}n", true),
        (exact("/admin/"), "/admin", true),
        (exact("/admin"), "/admin/x", false),
        (exact("/admin"), "/administrator", false),
        (exact("/admin"), "/admin.d/x", false),
        (exact("/admin"), "/a", false),
        (exact("/admin.php"), "/admin.php/x", true),
        (exact("/admin.php"), "/ADMIN.PHP", true),
        (exact("/admin.php"), "/admin", false),
        (exact("/"), "/", true),
        (exact("/"), "//", true),
        (exact("/Caf\u{e9}"), "/caf%e9", true),
        (exact("/caf\u{e9}"), "/CAF%C9/", true),
        (prefix("/caf\u{e9}"), "/caf%25e9/x", true),
        (exact("/admin"), "/admin%3fx/y", true),
        (exact("/admin"), "/admin%253fx", true),
        (exact("/admin"), "/%61dmin%23x", true),
        (exact("/admin"), "/ad%0amin", true),
        (exact("/admin"), "/x%3f/admin", false),
        (regex("/v[0-9]/admin"), "/v1/admin%3fx", true),
        (exact("/"), "//x", true),
        (exact("/admin"), "//x/admin", true),
        (exact("/admin"), "///x//Admin.json", true),
        (exact("/admin"), r"/\x\admin", true),
        (exact("/admin"), "/%2fx/%61dmin", true),
        (exact("/admin"), "//x//y/admin", true),
        (exact("/admin"), "//x%2fy/admin", true),
        (exact("/admin"), "//x/administrator", false),
        (exact("/admin"), "/x//admin", false),
        (prefix("/ops"), "//x/ops/y", true),
        (prefix("/ops"), "//x/y/ops", false),
        (regex("/v[0-9]/admin"), "//x/v1/admin", true),
        (exact("/"), "/.well-known", false),
        (exact("/"), "/x", false),
        (exact("/a;b"), "/A;B", true),
        (exact("/a;b"), "/a", false),
        (exact("/Ä"), "/%c3%a4", true),
        (prefix("/ops"), "/Ops/x", true),
        (prefix("/ops"), "/ops.json", true),
        (prefix("/ops"), "/opsx", false),
        (prefix("/ops"), "/ops.x/y", true),
        (prefix("/ops"), "/Ops.PHP/y/z", true),
        (prefix("/ops"), "/x/ops.php/y", false),
        (prefix("/"), "/.well-known/x", true),
        (regex("/ops/.*"), "/ops.php/y", true),
        (regex("/admin/.*"), "/ADMIN", true),
        (regex("/v[0-9]/admin"), "/V1/Admin/", true),
        (regex("/v[0-9]/admin/"), "/v1/admin", true),
        (regex("/v[0-9]/admin"), "/v1/admin.json", true),
        (regex("/v[0-9]/admin"), "/v1/admins", false),
        (regex("/v[0-9]/admin"), "/v1;a=b/admin", true),
        (regex("/[^a]+"), "/A", true),
        (regex("/x/[[:^upper:]]+"), "/x/abc", true),
        (regex(r"/x/\p{gc!=Lu}+"), "/x/abc", true),
    ] {
        let rule = RequestMatch { path, ..RequestMatch::default() };
        assert_eq!(is_denied(&rule, &SentRequest::get(sent)), expected, "{:?} {sent}", rule.path);
    }
}

#[test]
fn field_matches_cover_their_variants_only() {
    let value = |text: &str| ValueMatch::Exact(text.to_owned());
    let field = |name: &str, text: &str| FieldMatch { name: name.to_owned(), value: value(text) };
    let rule = RequestMatch { headers: vec![field("x-role", "root")], ..RequestMatch::default() };
    for (name, value, expected) in [
        ("X_Role", "root", true),
        ("x-role", "ROOT", true),
        ("x.role", "a, \"Root\"", true),
        ("x-role", "root; q=1", true),
        ("x-role", "roots", false),
        ("x-roles", "root", false),
    ] {
        let sent = SentRequest {
            fields: vec![(name.to_owned(), value.to_owned())],
            ..SentRequest::get("/")
        };
        assert_eq!(is_denied(&rule, &sent), expected, "{name}: {value}");
    }
    for (value, expected) in [
        ("role=root", true),
        ("a=1; role=%72oot", true),
        ("a=1; role=\"root\"", true),
        ("r%6Fle=root", true),
        ("a=1; role=\"%2572oot\"", true),
        ("role=\"ro\\ot\"", true),
        ("\u{fffd}role=root", true),
        ("role=%72oots", false),
        ("a=\"role\"; b=root", false),
    ] {
        let fields = vec![("cookie".to_owned(), value.to_owned())];
        for field in [
            field("cookie", "role=root"),
            FieldMatch {
                name: "cookie".to_owned(),
                value: ValueMatch::Regex("(.*; *)?role=root".to_owned()),
            },
        ] {
            let rule = RequestMatch { headers: vec![field], ..RequestMatch::default() };
            let sent = SentRequest { fields: fields.clone(), ..SentRequest::get("/") };
            assert_eq!(is_denied(&rule, &sent), expected, "{value}");
        }
    }
    let rule = RequestMatch { headers: vec![field("x-role", "a, b")], ..RequestMatch::default() };
    let fields = [("x-role", "a,b"), ("X_Role", "c")];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    assert!(is_denied(&rule, &SentRequest { fields, ..SentRequest::get("/") }));
    let rule = RequestMatch { query: vec![field("role", "root")], ..RequestMatch::default() };
    for (name, value, expected) in [
        ("Role", "ROOT", true),
        ("role[]", "root", true),
        ("role%5b0%5d", "r%6fot", true),
        ("role[x]", "root", true),
        ("role", "a,root", true),
        ("roles", "root", false),
        ("role", "roots", false),
    ] {
        let query = vec![(name.to_owned(), value.to_owned())];
        assert_eq!(
            is_denied(&rule, &SentRequest { query, ..SentRequest::get("/") }),
            expected,
            "{name}={value}"
        );
    }
}

#[test]
fn a_method_match_covers_the_headers_that_override_the_method() {
    let rule = RequestMatch { methods: vec!["DELETE".to_owned()], ..RequestMatch::default() };
    for (name, value, expected) in [
        ("X-HTTP-Method-Override", "delete", true),
        ("X_HTTP_Method", "DELETE", true),
        ("X-Method-Override", "DELETE", true),
        ("X-Method-Override", "PUT", false),
        ("X-Method", "DELETE", false),
    ] {
        let sent = SentRequest {
            fields: vec![(name.to_owned(), value.to_owned())],
            ..SentRequest::get("/")
        };
        assert_eq!(is_denied(&rule, &sent), expected, "{name}: {value}");
    }
}

#[test]
fn brackets_around_a_parameter_name_are_ignored() {
    for (name, expected) in [
        ("[role]", true),
        ("%5Brole%5D", true),
        ("%255brole%255d[]", true),
        ("]role", true),
        ("[[role]]", true),
        ("role]", true),
        ("[role", true),
        ("[]role", true),
        ("[ role]", true),
        ("[role][x]", true),
        ("role]x", true),
        ("[x]role", false),
        ("x[role]", false),
        ("[roles]", false),
    ] {
        assert_eq!(may_be_named(name, &normalize_rule_parameter("role")), expected, "{name}");
    }
}

#[test]
fn an_unclosed_bracket_is_an_underscore() {
    for (name, normalized, expected) in [
        ("user[role", "user_role", true),
        ("User%5Brole", "user_role", true),
        ("user[role[x", "user_role_x", true),
        ("user]x[role", "user]x_role", true),
        ("user[role]", "user_role", false),
        ("user[roles", "user_role", false),
        ("user_role", "user[role", false),
    ] {
        assert_eq!(may_be_named(name, normalized), expected, "{name} {normalized}");
    }
}

#[test]
fn a_map_element_matches_in_every_form() {
    for (rule, name, expected) in [
        ("user[role]", "user.role", true),
        ("user.role", "user[role]", true),
        ("user.role", "user_role", true),
        ("user.role.name", "User%5Brole][name]", true),
        ("user.role", "[user][role]", true),
        ("user.role", "%5Buser%5D[role]", true),
        ("[user][role]", "user.role", true),
        ("user.role", "[user]role", true),
        ("user.role", "user]role", true),
        ("user.role", "user[[role]]", true),
        ("user.role", "user[role]x", true),
        ("user.role", "user[role]x[y]", true),
        ("user.role", "user[role][]x", true),
        ("user.role", "user[role][+]", true),
        ("user.role", "user['role']", true),
        ("user.role", "user[%22role%22]", true),
        ("user['role']", "user[role]", true),
        ("user.role", "user[role]x[", true),
        ("user.role", "user[roles]x", false),
        ("user.role", "user[x]role[y]", false),
        ("user.role", "role", false),
        ("[role]", "role", true),
        ("role", "!role", true),
        ("user[role]", "user[name]", false),
        ("user_role", "user[role]", false),
    ] {
        let value = ValueMatch::Exact("root".to_owned());
        let field = FieldMatch { name: rule.to_owned(), value };
        let rule = RequestMatch { query: vec![field], ..RequestMatch::default() };
        let query = vec![(name.to_owned(), "root".to_owned())];
        assert_eq!(
            is_denied(&rule, &SentRequest { query, ..SentRequest::get("/") }),
            expected,
            "{name}: {rule:?}"
        );
    }
}

#[test]
fn a_percent_encoded_host_matches() {
    let value = ValueMatch::Exact("admin.shop".to_owned());
    let field = FieldMatch { name: ":authority".to_owned(), value };
    let rule = RequestMatch { headers: vec![field], ..RequestMatch::default() };
    let rule = DenialMatcher::compile(&rule).unwrap();
    for (authority, expected) in
        [("admin.shop", true), ("%61dmin.Shop:80", true), ("%61dmins.shop", false)]
    {
        let sent =
            RequestView { method: "GET", path: "/", query: None, authority, fields: &Vec::new() };
        let variants = PathVariants::from_path("/", PathKind::Plain);
        assert_eq!(rule.may_match(&sent, &variants), expected, "{authority}");
    }
}

#[test]
fn a_decoded_rule_path_matches_its_encoded_form() {
    for (rule, paths) in [
        ("/admin x", ["/admin%20x", "/Admin%2520x/y"]),
        ("/stra\u{df}e", ["/stra%C3%9Fe", "/stra%c3%9fe/1"]),
        ("/100%", ["/100%25", "/100%2525/x"]),
        ("/a\"b", ["/a%22b", "/a%22b/c"]),
    ] {
        for path in paths {
            assert!(denies_path(rule, path), "{rule}: {path}");
        }
        assert!(!denies_path(rule, "/other"), "{rule}");
    }
}

fn denies_path(rule: &str, path: &str) -> bool {
    let path_match = PathMatch::Prefix(rule.to_owned());
    let rule = RequestMatch { path: path_match, ..RequestMatch::default() };
    is_denied(&rule, &SentRequest::get(path))
}
