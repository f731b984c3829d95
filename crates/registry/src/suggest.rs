//! The closest known word to a misspelt one.

/// The known word that is a slip of the finger away from `word`, if there is one.
#[must_use]
pub fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
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
                // Cut short, hence a better guess than any slip.
                return (0, *candidate);
            }
            let target: Vec<char> = candidate_lower.chars().collect();
            (distance(&given, &target), *candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The known words in a row: ``one of `a`, `b` or `c` ``.
pub(crate) fn one_of(known: &[&str]) -> String {
    match known {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => format!("`{}` or `{last}`", first.join("`, `")),
    }
}

/// The known words in a row: `` `a`, `b` and `c` ``.
pub(crate) fn all_of(known: &[&str]) -> String {
    match known {
        [] | [_] => one_of(known),
        [first @ .., last] => format!("`{}` and `{last}`", first.join("`, `")),
    }
}

/// The insertions, deletions, replacements and swaps of neighbours from one word to the other.
fn distance(a: &[char], b: &[char]) -> usize {
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

/// From here on a beginning counts as the word.
const BEGINNING_CHARACTERS_MIN: usize = 3;
/// Longer words are not misspelt field names.
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
            let found = closest(word, &known);
            if expected == Some("port") {
                assert!(matches!(found, Some("port" | "ports")), "{word}: {found:?}");
            } else {
                assert_eq!(found, expected, "{word}");
            }
        }
    }
}
