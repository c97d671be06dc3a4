//! `resurgo image show`: the content of an image file.

use std::ffi::OsString;

use resurgo_runtime::note;
use resurgo_runtime::units::one_line;

/// Verifies and describes image files; returns the exit status: 1 if one cannot be used.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let [verb, files @ ..] = arguments.as_slice() else {
        return usage();
    };
    if verb != "show" || files.is_empty() {
        return usage();
    }
    let mut status = 0;
    for file in files {
        // Reading a pipe would wait.
        if std::fs::metadata(file).is_ok_and(|about| !about.is_file()) {
            let shown = one_line(&file.display().to_string());
            eprintln!("resurgo: {shown} is not a file; images are DIR/job/rank-N.image-M below --checkpoint-dir DIR");
            status = 1;
            continue;
        }
        let described = |text: &str| note::describe(text).map_err(|error| error.to_string());
        match resurgo_image::file::show(file.as_ref(), &described) {
            Ok(text) => {
                crate::say::print(&text);
            }
            Err(defect) => {
                eprintln!("resurgo: {}", one_line(&defect.to_string()));
                status = 1;
            }
        }
    }
    status
}

fn usage() -> i32 {
    eprintln!("resurgo: write: resurgo image show FILE...");
    i32::from(crate::check::USAGE)
}
