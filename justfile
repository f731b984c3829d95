# The everyday recipes; each is one line. `./test` needs none of them.
check:
    cargo clippy --workspace --all-targets -- -D warnings
test *args:
    ./test {{args}}
demo *args:
    cargo run --release -- demo {{args}}
fuzz target seconds="60":
    cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}
tidy:
    cargo test -p leno-tests --test tidy
release:
    cargo build --release
