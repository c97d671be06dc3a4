//! An option as the user writes it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::types::{Inherit, Options, ProgramOptions};

/// An option as written, with what it may set.
pub struct Written<'a> {
    pub options: &'a mut Options,
    pub program: &'a mut ProgramOptions,
    /// With its dashes.
    pub text: &'a str,
    /// As many as the table requires.
    pub values: Vec<OsString>,
}

impl Written<'_> {
    /// Its only value.
    pub fn value(&self) -> String {
        self.values
            .first()
            .map(|value| value.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub fn path(&self) -> PathBuf {
        self.values.first().map(PathBuf::from).unwrap_or_default()
    }

    /// The names of variables that it lists.
    pub fn listed(&self) -> Inherit {
        Inherit::Listed(self.value().split(',').map(|name| name.trim().to_string()).collect())
    }

    /// A variable and its value.
    pub fn pair(&self) -> Result<(OsString, OsString), String> {
        let [name, value] = self.values.as_slice() else {
            return Err(format!("{} needs a name and a value", self.text));
        };
        if name.is_empty() || name.as_encoded_bytes().contains(&b'=') {
            return Err(format!("{} {}: not a name of a variable", self.text, name.display()));
        }
        Ok((name.clone(), value.clone()))
    }
}

/// Splits `NAME=VALUE` in two.
pub fn separate(pair: &OsStr) -> Option<[OsString; 2]> {
    let bytes = pair.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let parts = [&bytes[..at], &bytes[at + 1..]];
    Some(parts.map(|part| OsStr::from_bytes(part).to_owned()))
}

/// An option without dashes, and the text behind its equals sign.
pub fn split(text: &str) -> (&str, Option<&str>) {
    let bare = text.strip_prefix("--").or(text.strip_prefix('-')).unwrap_or(text);
    match bare.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (bare, None),
    }
}

/// The number in `n4` or `np4`.
pub fn attached_number(name: &str) -> Option<&str> {
    let number = name.strip_prefix("np").or(name.strip_prefix('n'))?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}
