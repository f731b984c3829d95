//! The closest known word to a misspelled one.

/// Returns the known word within a typo's distance of `word`.
#[must_use]
pub fn closest_word<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.is_empty() || word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let given: Vec<char> = word.chars().collect();
    known
        .iter()
        .map(|candidate| {
            let candidate_lower = candidate.to_lowercase();
            if given.len() >= BEGINNING_CHARACTERS_MIN && candidate_lower.starts_with(&word) {
                // A truncated word is a better guess than a typo.
                return (0, *candidate);
            }
            let target: Vec<char> = candidate_lower.chars().collect();
            (edit_distance(&given, &target), *candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Lists the known words: ``one of `a`, `b` or `c` ``.
pub(crate) fn one_of(known: &[&str]) -> String {
    match known {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => format!("`{}` or `{last}`", first.join("`, `")),
    }
}

/// Lists the known words: `` `a`, `b` and `c` ``.
pub(crate) fn all_of(known: &[&str]) -> String {
    match known {
        [] | [_] => one_of(known),
        [first @ .., last] => format!("`{}` and `{last}`", first.join("`, `")),
    }
}

/// Returns the edit distance: insertions, deletions, replacements and swaps of neighbors.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, from) in a.iter().enumerate() {
        let above = &rows[i];
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(from != to);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// The minimum length at which a prefix matches.
const BEGINNING_CHARACTERS_MIN: usize = 3;
/// Longer words are not misspelled field names.
const WORD_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_slips_and_nothing_far_fetched() {
        let known = ["account", "ports", "port", "Service", "TCPRoute"];
        for (word, expected) in [
            ("Account", Some("account")),
            ("acount", Some("account")),
            ("prots", Some("port")),
            ("portz", Some("port")),
            ("Servce", Some("Service")),
            ("TcpRoute", Some("TCPRoute")),
            ("serv", Some("Service")),
            ("ServiceEntry", None),
            ("Deployment", None),
            ("", None),
            ("é", None),
        ] {
            let found = closest_word(word, &known);
            if expected == Some("port") {
                assert!(matches!(found, Some("port" | "ports")), "{word}: {found:?}");
            } else {
                assert_eq!(found, expected, "{word}");
            }
        }
    }
}
