//! Files of a user that nobody else may use.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Opens a file to read. `what` is in it, as in "this key".
///
/// # Errors
/// It cannot be opened, is no file, or others may use it; with its path.
pub fn open(path: &Path, what: &str) -> io::Result<File> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let wrong = |why: String| Err(named(io::Error::new(io::ErrorKind::InvalidData, why)));
    let file = File::open(path).map_err(named)?;
    let about = file.metadata().map_err(named)?;
    if !about.is_file() {
        return wrong("it is no file".to_string());
    }
    if about.mode() & 0o077 != 0 {
        return wrong(format!("others may use {what}: forbid that (chmod go= FILE)"));
    }
    Ok(file)
}
