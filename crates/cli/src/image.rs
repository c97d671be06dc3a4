//! `resurgo image show`: what an image file holds.

use std::ffi::OsString;
use std::io::Write;

/// Verifies and describes image files; returns the exit status: 1 when one cannot be used.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let [verb, files @ ..] = arguments.as_slice() else {
        return usage();
    };
    if verb != "show" || files.is_empty() {
        return usage();
    }
    let mut status = 0;
    for file in files {
        match resurgo_image::file::show(file.as_ref()) {
            Ok(text) => {
                let _ = std::io::stdout().write_all(text.as_bytes());
            }
            Err(defect) => {
                eprintln!("resurgo: {defect}");
                status = 1;
            }
        }
    }
    status
}

fn usage() -> i32 {
    eprintln!("resurgo: write: resurgo image show FILE...");
    i32::from(crate::USAGE)
}
