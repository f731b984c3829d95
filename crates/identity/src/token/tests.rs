//! Tests of tokens: single use, lifetime, one workload; across threads and restarts.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::thread;

use super::*;
use crate::testing::{now, workload_name};

const MINUTE: Duration = Duration::from_secs(60);

/// Opens the tokens in a new directory, which exists as long as the returned guard.
fn open_tokens() -> (tempfile::TempDir, Tokens) {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(&directory.path().join("tokens")).unwrap();
    (directory, tokens)
}

#[test]
fn a_token_is_valid_once_even_across_a_restart() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let token = tokens.issue_token(&ratings, MINUTE, now()).unwrap();
    let restarted = Tokens::open(&tokens.directory).unwrap();
    restarted.redeem(&token, &ratings, now()).unwrap();
    for tokens in [&tokens, &restarted, &Tokens::open(&tokens.directory).unwrap()] {
        assert!(matches!(tokens.redeem(&token, &ratings, now()), Err(TokenError::Unknown)));
    }
}

#[test]
fn a_removed_directory_is_created_again() {
    let (directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    fs::remove_dir_all(directory.path()).unwrap();
    let token = tokens.issue_token(&ratings, MINUTE, now()).unwrap();
    tokens.redeem(&token, &ratings, now()).unwrap();
}

#[test]
fn exactly_one_of_several_concurrent_redemptions_succeeds() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    for _ in 0..50 {
        let token = tokens.issue_token(&ratings, MINUTE, now()).unwrap();
        let start = Barrier::new(4);
        let redeem = || {
            start.wait();
            tokens.redeem(&token, &ratings, now())
        };
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(redeem)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for error in results.into_iter().filter_map(Result::err) {
            assert!(matches!(error, TokenError::Unknown), "{error}");
        }
    }
}

#[test]
fn an_expired_token_is_rejected_and_removed() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let issue_time = now();
    let token = tokens.issue_token(&ratings, MINUTE, issue_time).unwrap();
    let first = tokens.redeem(&token, &ratings, issue_time + MINUTE);
    assert!(matches!(first, Err(TokenError::Expired)));
    let second = tokens.redeem(&token, &ratings, issue_time);
    assert!(matches!(second, Err(TokenError::Unknown)));
    let token = tokens.issue_token(&ratings, MINUTE, issue_time).unwrap();
    let in_time = issue_time + MINUTE - Duration::from_secs(2);
    tokens.redeem(&token, &ratings, in_time).unwrap();
}

#[test]
fn a_token_for_another_workload_is_rejected_and_stays_valid() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let token = tokens.issue_token(&ratings, MINUTE, now()).unwrap();
    for other in [workload_name("ratings-2"), WorkloadName::new("shop", "ratings-1").unwrap()] {
        assert!(matches!(tokens.redeem(&token, &other, now()), Err(TokenError::OtherWorkload)));
    }
    tokens.redeem(&token, &ratings, now()).unwrap();
}

#[test]
fn unknown_tokens_are_rejected() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let token = tokens.issue_token(&ratings, MINUTE, now()).unwrap();
    let mut wrong_token = token.clone();
    let last_digit = wrong_token.pop().unwrap();
    wrong_token.push(if last_digit == '0' { '1' } else { '0' });
    let digits = token.trim_start_matches(TOKEN_PREFIX);
    for rejected_token in ["", "leno-join-", "../../etc/passwd", digits, &wrong_token, &token[1..]]
    {
        assert!(
            matches!(tokens.redeem(rejected_token, &ratings, now()), Err(TokenError::Unknown)),
            "{rejected_token}"
        );
    }
    let uppercase = token.to_uppercase();
    assert!(tokens.redeem(&uppercase, &ratings, now()).is_err());
    tokens.redeem(&token, &ratings, now()).unwrap();
}

#[test]
fn no_token_is_stored_on_disk() {
    let (_directory, tokens) = open_tokens();
    let token = tokens.issue_token(&workload_name("ratings-1"), MINUTE, now()).unwrap();
    let entries: Vec<_> = fs::read_dir(&tokens.directory).unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 1);
    let digits = token.trim_start_matches(TOKEN_PREFIX);
    assert!(!entries[0].file_name().to_str().unwrap().contains(digits));
    assert!(!fs::read_to_string(entries[0].path()).unwrap().contains(digits));
    assert_eq!(entries[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&tokens.directory).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn tokens_differ_and_their_lifetimes_are_bounded() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let issue_token = |lifetime| tokens.issue_token(&ratings, lifetime, now());
    assert_ne!(issue_token(MINUTE).unwrap(), issue_token(MINUTE).unwrap());
    assert!(issue_token(MAX_TOKEN_LIFETIME).is_ok());
    for lifetime in [Duration::ZERO, MAX_TOKEN_LIFETIME + Duration::from_secs(1)] {
        let error = issue_token(lifetime).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn only_expired_tokens_and_old_temporary_files_are_removed() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let issue_time = now();
    tokens.issue_token(&ratings, MINUTE, issue_time).unwrap();
    let valid = tokens.issue_token(&ratings, 3 * MINUTE, issue_time).unwrap();
    let temporary_path = tokens.directory.join(".draft-0000000000000000");
    File::create(&temporary_path).unwrap();
    File::create(tokens.directory.join("README")).unwrap();
    // A token file truncated by a failing disk.
    disk::create(&tokens.directory.join("0".repeat(64)), b"bookinfo", FileAccess::Owner).unwrap();
    assert_eq!(
        tokens.remove_expired(issue_time + 2 * MINUTE).unwrap(),
        2,
        "one token, one temporary file"
    );
    assert_eq!(fs::read_dir(&tokens.directory).unwrap().count(), 3);
    tokens.redeem(&valid, &ratings, issue_time + 2 * MINUTE).unwrap();
    assert_eq!(tokens.remove_expired(issue_time + 2 * MAX_TOKEN_LIFETIME).unwrap(), 0);
    assert!(!temporary_path.exists());
    assert!(tokens.directory.join("README").exists());
}

#[test]
fn minting_removes_expired_tokens_periodically() {
    let (_directory, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let issue_time = now();
    tokens.issue_token(&ratings, Duration::from_secs(10), issue_time).unwrap();
    tokens.issue_token(&ratings, MINUTE, issue_time + EXPIRY_CHECK_INTERVAL).unwrap();
    assert_eq!(fs::read_dir(&tokens.directory).unwrap().count(), 1);
}
