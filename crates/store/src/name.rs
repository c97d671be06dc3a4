//! Names of jobs, generations, chunks and objects.
//!
//! An object's name is `JOB/FOLDER/LAST`. All parts of it are plain: letters, digits, `.`, `_` and `-`, and no dot at
//! the beginning. So no name leads out of a directory, and names that begin with a dot are free for temporary files.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Folders of a job. [`gc`](crate::Store::gc) says what the last five are for.
pub const CHUNKS: &str = "chunks";
pub const PARTS: &str = "parts";
pub const GENERATIONS: &str = "generations";
pub const WRITING: &str = "writing";
pub const WARNED: &str = "warned";
pub const REVOKED: &str = "revoked";
pub const CONDEMNED: &str = "condemned";
pub const BLOCKERS: &str = "blockers";
pub const CLOCK: &str = "clock";
/// All of them; the first ones are removed first.
pub const FOLDERS: [&str; 9] = [
    GENERATIONS,
    PARTS,
    CHUNKS,
    WRITING,
    WARNED,
    REVOKED,
    BLOCKERS,
    CONDEMNED,
    CLOCK,
];

/// Bytes of one part of a name, at most: also with a temporary's prefix it fits into a file system's 255.
const LONGEST: usize = 200;

/// A part of a name.
pub fn is_plain(part: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !part.is_empty() && part.len() <= LONGEST && !part.starts_with('.') && part.bytes().all(good)
}

/// The folder and the last part of `JOB/FOLDER/LAST`.
pub fn split(name: &str) -> Option<(&str, &str, &str)> {
    let mut parts = name.split('/');
    let (job, folder, last) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = [job, folder, last].into_iter().all(is_plain);
    (plain && parts.next().is_none() && FOLDERS.contains(&folder)).then_some((job, folder, last))
}

/// A folder as [`Place::list`](crate::Place::list) takes it: nothing for the jobs, or `JOB/FOLDER`.
pub fn is_folder(folder: &str) -> bool {
    match folder.split_once('/') {
        None => folder.is_empty(),
        Some((job, folder)) => is_plain(job) && FOLDERS.contains(&folder),
    }
}

/// One attempt to write a generation of a job: its number, and a random one that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Generation {
    pub number: u64,
    pub attempt: u64,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names in order are generations in order.
        write!(f, "{:020}-{:016x}", self.number, self.attempt)
    }
}

impl From<Generation> for String {
    fn from(generation: Generation) -> String {
        generation.to_string()
    }
}

impl TryFrom<String> for Generation {
    type Error = String;
    fn try_from(text: String) -> Result<Generation, String> {
        text.parse()
    }
}

impl FromStr for Generation {
    type Err = String;
    fn from_str(text: &str) -> Result<Generation, String> {
        let generation = text.split_once('-').and_then(|(number, attempt)| {
            Some(Generation {
                number: number.parse().ok()?,
                attempt: u64::from_str_radix(attempt, 16).ok()?,
            })
        });
        generation
            .filter(|generation| generation.to_string() == text)
            .ok_or_else(|| format!("{text:?} is no generation"))
    }
}

/// The name of a part of a generation: that of a node, and a random number, as a node may put it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartName {
    pub generation: Generation,
    pub node: u32,
    pub number: u64,
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:010}-{:016x}", self.generation, self.node, self.number)
    }
}

/// Reads the name of a part.
pub fn parse_part(text: &str) -> Option<PartName> {
    let (text_before, number) = text.rsplit_once('-')?;
    let (generation, node) = text_before.rsplit_once('-')?;
    let name = PartName {
        generation: generation.parse().ok()?,
        node: node.parse().ok()?,
        number: u64::from_str_radix(number, 16).ok()?,
    };
    (name.to_string() == text).then_some(name)
}

/// A hash of the plain bytes of a chunk, keyed if there is a key.
pub type Hash = [u8; 32];

/// The name of a chunk: its hash, the attempt that has put it, and a random number. So no name comes back after its
/// removal, not even from a node that goes on after its generation was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ChunkName {
    pub hash: Hash,
    pub attempt: u64,
    pub number: u64,
}

impl fmt::Display for ChunkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = blake3::Hash::from(self.hash).to_hex();
        write!(f, "{hash}.{:016x}-{:016x}", self.attempt, self.number)
    }
}

impl From<ChunkName> for String {
    fn from(name: ChunkName) -> String {
        name.to_string()
    }
}

impl TryFrom<String> for ChunkName {
    type Error = String;
    fn try_from(text: String) -> Result<ChunkName, String> {
        text.parse()
    }
}

impl FromStr for ChunkName {
    type Err = String;
    fn from_str(text: &str) -> Result<ChunkName, String> {
        let name = text.split_once('.').and_then(|(hash, rest)| {
            let (attempt, number) = rest.split_once('-')?;
            Some(ChunkName {
                hash: blake3::Hash::from_hex(hash).ok()?.into(),
                attempt: u64::from_str_radix(attempt, 16).ok()?,
                number: u64::from_str_radix(number, 16).ok()?,
            })
        });
        name.filter(|name| name.to_string() == text)
            .ok_or_else(|| format!("{text:?} is no chunk"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_names() {
        for good in ["4711", "a.b_c-D", "x"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", ".", "..", ".a", "a/b", "a b", "a\n", "ü", &"x".repeat(201)] {
            assert!(!is_plain(bad), "{bad}");
        }
        assert_eq!(split("j/chunks/x"), Some(("j", "chunks", "x")));
        for bad in [
            "j/chunks",
            "j/chunks/x/y",
            "j/other/x",
            "../chunks/x",
            "j/chunks/.x",
            "/chunks/x",
        ] {
            assert_eq!(split(bad), None, "{bad}");
        }
        assert!(is_folder("") && is_folder("j/parts"));
        assert!(!is_folder("j") && !is_folder("j/../k") && !is_folder("j/other") && !is_folder("j/parts/"));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let generation = Generation {
            number: 12,
            attempt: 0xabc,
        };
        assert_eq!(generation.to_string().parse(), Ok(generation));
        assert!("12-abc".parse::<Generation>().is_err());
        let part = PartName {
            generation,
            node: 7,
            number: 0xdef,
        };
        assert_eq!(parse_part(&part.to_string()), Some(part));
        assert_eq!(parse_part(&format!("{generation}-7-def")), None);
        let chunk = ChunkName {
            hash: [9; 32],
            attempt: u64::MAX,
            number: 1,
        };
        assert_eq!(chunk.to_string().parse(), Ok(chunk));
        assert!(split(&format!("j/chunks/{chunk}")).is_some());
        assert!(chunk.to_string().to_uppercase().parse::<ChunkName>().is_err());
    }
}
