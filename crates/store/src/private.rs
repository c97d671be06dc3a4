//! Files of a user that nobody else may use.

use std::ffi::OsStr;
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
    if about.mode() & forbidden(path, std::env::var_os("CREDENTIALS_DIRECTORY").as_deref()) != 0 {
        return wrong(format!("others may use {what}: forbid that (chmod go= FILE)"));
    }
    Ok(file)
}

/// What the mode of this file may not have. systemd shows credentials of a service with an entry for its user, which
/// looks like a right of the group; nobody else can enter their directory.
fn forbidden(path: &Path, credentials: Option<&OsStr>) -> u32 {
    match credentials.is_some_and(|directory| path.parent() == Some(Path::new(directory))) {
        true => 0o037,
        false => 0o077,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_credentials_of_a_service_may_look_readable_for_a_group() {
        let directory = OsStr::new("/run/credentials/resurgo.service");
        let key = Path::new("/run/credentials/resurgo.service/keys");
        assert_eq!(forbidden(key, Some(directory)), 0o037);
        assert_eq!(forbidden(Path::new("/home/me/keys"), Some(directory)), 0o077);
        assert_eq!(forbidden(key, None), 0o077);
    }
}
