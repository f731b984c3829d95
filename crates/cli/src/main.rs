//! Entry point of the `leno` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    leno::run()
}
