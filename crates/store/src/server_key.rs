//! The keys between checkpoint servers and their users: lines of `USER: KEY`, the key in 64 hexadecimal digits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::name::is_plain;
use crate::{private, random};

/// Bytes of a file with keys, at most.
const LONGEST: u64 = 1 << 20;

/// One line.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey {
    pub user: String,
    pub key: [u8; 32],
}

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerKey({})", self.user)
    }
}

fn parse(line: &str) -> Option<ServerKey> {
    let (user, key) = line.split_once(':')?;
    let (user, key) = (user.trim(), key.trim());
    let key = blake3::Hash::from_hex(key).ok()?.into();
    is_plain(user).then(|| ServerKey {
        user: user.to_string(),
        key,
    })
}

/// The lines of a file; empty ones and those after `#` are none.
///
/// # Errors
/// The file cannot be read, others can read it, or a line is none. The text says which.
pub fn read(path: &Path) -> Result<Vec<ServerKey>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let file = private::open(path, "these keys").map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
    let mut keys: Vec<ServerKey> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |why: &str| format!("{}, line {}: {why}", path.display(), number + 1);
        let hint = "write USER: KEY, with a key of 64 hexadecimal digits (openssl rand -hex 32)";
        let key = parse(line).ok_or_else(|| wrong(hint))?;
        if keys.iter().any(|other| other.user == key.user || other.key == key.key) {
            return Err(wrong("the user, or the key, is there twice"));
        }
        keys.push(key);
    }
    match keys.is_empty() {
        true => Err(format!("{}: there is no key in it", path.display())),
        false => Ok(keys),
    }
}

/// Makes a file with the key of one user, if there is none.
///
/// # Errors
/// It cannot be made.
pub fn make(path: &Path, user: &str) -> io::Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    write(path, user, random()?).map(|()| true)
}

/// Writes the key of one user into a file.
///
/// # Errors
/// The file is as before.
pub fn write(path: &Path, user: &str, key: [u8; 32]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let _ = std::fs::remove_file(&temporary);
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    writeln!(file, "{user}: {}", blake3::Hash::from(key).to_hex())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_or_what_is_wrong_is_said() {
        let path = std::env::temp_dir().join(format!("resurgo-server-key-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(make(&path, "ada").unwrap() && !make(&path, "bob").unwrap());
        let made = read(&path).unwrap();
        assert_eq!(made[0].user, "ada");
        let one = "11".repeat(32);
        let two = "22".repeat(32);
        std::fs::write(&path, format!("# keys\nada: {one}\n\n bob:{two} # two\n")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        for (text, word) in [
            (String::new(), "no key"),
            (format!("ada {one}"), "line 1"),
            (format!("../x: {one}"), "line 1"),
            ("ada: 11".to_string(), "64 hexadecimal"),
            (format!("ada: {one}\nada: {two}"), "line 2: the user"),
            (format!("ada: {one}\nbob: {one}"), "twice"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&path, open).unwrap();
        assert!(read(&path).unwrap_err().contains("chmod go="));
        std::fs::remove_file(&path).unwrap();
    }
}
