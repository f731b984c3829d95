//! The one binary: leno.

use std::process::ExitCode;

fn main() -> ExitCode {
    leno::run()
}
