//! Parts and manifests: what a generation consists of.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::chunk::LONGEST;
use crate::error::Kind;
use crate::name::{ChunkName, Generation, Hash};

/// Changes whenever the meaning of a record changes.
const FORMAT: u32 = 1;
/// Bytes of the name of a file, at most.
const LONGEST_NAME: usize = 255;

/// A file of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// A plain file name.
    pub name: String,
    pub length: u64,
    /// Its permissions.
    pub mode: u32,
    /// The BLAKE3 of its bytes.
    #[serde(with = "hex")]
    pub digest: Hash,
    /// Its chunks in order, each with the length of its plain bytes.
    pub chunks: Vec<(ChunkName, u32)>,
}

/// What one node has put of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    format: u32,
    pub generation: Generation,
    pub node: u32,
    pub files: Vec<FileEntry>,
}

/// A part, as the launcher hears of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartNote {
    pub node: u32,
    /// The last part of its name.
    pub number: u64,
    pub files: u64,
    /// Of all its files.
    pub bytes: u64,
    /// The BLAKE3 of its object.
    #[serde(with = "hex")]
    pub digest: Hash,
}

/// What the launcher says about a generation, for those that look for one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// When it was written, for people only: seconds since 1970.
    pub unix_time: f64,
    /// The name or the command of the job.
    pub title: String,
    pub ranks: u32,
    pub protocol: String,
    /// What else a launcher needs to go on.
    #[serde(default)]
    pub more: serde_json::Value,
}

/// What makes a generation count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    pub generation: Generation,
    pub about: About,
    pub parts: Vec<PartNote>,
}

/// Whether a file may have this name in a directory.
fn is_file_name(name: &str) -> bool {
    let good = |c: char| c != '/' && !c.is_control();
    !name.is_empty() && name.len() <= LONGEST_NAME && name != "." && name != ".." && name.chars().all(good)
}

fn read<'a, R: Deserialize<'a>>(bytes: &'a [u8]) -> Result<R, Kind> {
    #[derive(Deserialize)]
    struct Form {
        format: u32,
    }
    let damaged = |error: serde_json::Error| Kind::Damaged(error.to_string());
    let Form { format } = serde_json::from_slice(bytes).map_err(damaged)?;
    match format {
        FORMAT => serde_json::from_slice(bytes).map_err(damaged),
        format => Err(Kind::Damaged(format!(
            "it has format {format}, of another version of Resurgo"
        ))),
    }
}

fn written(record: &impl Serialize) -> Result<Vec<u8>, Kind> {
    serde_json::to_vec(record).map_err(|error| Kind::BadName(error.to_string()))
}

impl FileEntry {
    fn fault(&self) -> Option<&'static str> {
        let long = |(_, length): &(ChunkName, u32)| *length == 0 || *length as usize > LONGEST;
        let sum = self.chunks.iter().map(|(_, length)| u64::from(*length)).sum::<u64>();
        match () {
            () if !is_file_name(&self.name) => Some("a file has a name that is none"),
            () if self.chunks.iter().any(long) || sum != self.length => Some("a file has a wrong length"),
            () if self.mode & !0o7777 != 0 => Some("a file has impossible permissions"),
            () => None,
        }
    }
}

impl Part {
    /// # Errors
    /// Two files have the same name, or one has none.
    pub fn new(generation: Generation, node: u32, files: Vec<FileEntry>) -> Result<Part, Kind> {
        let part = Part {
            format: FORMAT,
            generation,
            node,
            files,
        };
        match part.fault() {
            None => Ok(part),
            Some(fault) => Err(Kind::BadName(fault.to_string())),
        }
    }

    fn fault(&self) -> Option<&'static str> {
        let names: BTreeSet<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
        let fault = self.files.iter().find_map(FileEntry::fault);
        fault.or((names.len() < self.files.len()).then_some("two files have the same name"))
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// # Errors
    /// It cannot be written.
    pub fn written(&self) -> Result<Vec<u8>, Kind> {
        written(self)
    }

    /// Reads the part of a node: whatever wrote it, all names in it are names, and all lengths are possible.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(bytes: &[u8], generation: Generation, node: u32) -> Result<Part, Kind> {
        let part: Part = read(bytes)?;
        match part.fault() {
            Some(fault) => Err(Kind::Damaged(fault.to_string())),
            None if (part.generation, part.node) == (generation, node) => Ok(part),
            None => Err(Kind::Damaged(
                "it is the part of another node or generation".to_string(),
            )),
        }
    }
}

impl Manifest {
    pub fn new(generation: Generation, about: About, mut parts: Vec<PartNote>) -> Manifest {
        parts.sort_by_key(|part| part.node);
        Manifest {
            format: FORMAT,
            generation,
            about,
            parts,
        }
    }

    /// Of all files.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    pub fn files(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.files))
    }

    /// # Errors
    /// It cannot be written.
    pub fn written(&self) -> Result<Vec<u8>, Kind> {
        written(self)
    }

    /// # Errors
    /// It is damaged.
    pub fn read(bytes: &[u8], generation: Generation) -> Result<Manifest, Kind> {
        let manifest: Manifest = read(bytes)?;
        match manifest.generation == generation {
            true => Ok(manifest),
            false => Err(Kind::Damaged("it is the manifest of another generation".to_string())),
        }
    }
}

/// Hashes as hexadecimal text.
mod hex {
    use super::*;

    pub fn serialize<S: Serializer>(hash: &Hash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&blake3::Hash::from(*hash).to_hex())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Hash, D::Error> {
        let text = String::deserialize(deserializer)?;
        blake3::Hash::from_hex(text)
            .map(Hash::from)
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: Generation = Generation { number: 3, attempt: 4 };

    fn entry(name: &str) -> FileEntry {
        let chunk = ChunkName {
            hash: [1; 32],
            attempt: 4,
            number: 5,
        };
        FileEntry {
            name: name.to_string(),
            length: 10,
            mode: 0o600,
            digest: [2; 32],
            chunks: vec![(chunk, 10)],
        }
    }

    fn part(files: Vec<FileEntry>) -> Part {
        Part {
            format: FORMAT,
            generation: GENERATION,
            node: 5,
            files,
        }
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let part = part(vec![entry("rank-0.image-1"), entry("größe 3")]);
        let bytes = part.written().unwrap();
        assert_eq!(Part::read(&bytes, GENERATION, 5).unwrap(), part);
        assert!(Part::read(&bytes, GENERATION, 6).is_err());
        let other = Generation {
            number: 4,
            ..GENERATION
        };
        assert!(Part::read(&bytes, other, 5).is_err());
    }

    #[test]
    fn hostile_parts_are_damaged_ones() {
        let mut bad: Vec<Part> = ["", ".", "..", "a/b", "../../etc/passwd", "a\0b", &"x".repeat(256)]
            .map(|name| part(vec![entry(name)]))
            .into();
        bad.push(part(vec![entry("a"), entry("a")]));
        let with = |change: fn(&mut FileEntry)| {
            let mut file = entry("a");
            change(&mut file);
            part(vec![file])
        };
        bad.push(with(|file| file.length = 1 << 60));
        bad.push(with(|file| file.chunks[0].1 = 0));
        bad.push(with(|file| {
            (file.chunks[0].1, file.length) = (u32::MAX, u64::from(u32::MAX))
        }));
        bad.push(with(|file| file.mode = u32::MAX));
        bad.push(Part {
            format: 2,
            ..part(vec![])
        });
        for part in bad {
            let read = Part::read(&part.written().unwrap(), GENERATION, 5);
            assert!(matches!(read, Err(Kind::Damaged(_))), "{part:?}");
        }
        for bytes in ["", "{", "[1]", "{\"format\":1}"] {
            assert!(Part::read(bytes.as_bytes(), GENERATION, 5).is_err(), "{bytes}");
        }
    }
}
