//! What commands print, and the exit status that goes with it.

use std::io::Write;

use crate::check;

/// Prints to standard output, whose reader may be gone.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The command line is wrong.
pub fn usage(text: &str) -> i32 {
    eprintln!("resurgo: {text}");
    i32::from(check::USAGE)
}

/// What was asked for could not be done.
pub fn failed(text: &str) -> i32 {
    eprintln!("resurgo: {text}");
    1
}

/// Something that the user may want to know.
pub fn note(text: &str) {
    eprintln!("resurgo: note: {text}");
}
