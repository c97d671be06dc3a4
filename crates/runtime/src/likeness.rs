//! The properties of a node that must be the same on all nodes of a job: ranks move between nodes with their memory.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nix::unistd::{SysconfVar, getuid, sysconf};
use resurgo_wire::control::Alike;

use crate::suspended::{lacks, processor};

/// The node that this process runs on.
pub fn of_this_node(files: &[OsString]) -> io::Result<Alike> {
    let hashed = files.iter().map(|file| {
        let hash = hash(Path::new(file));
        hash.map_err(|error| error.to_string())
    });
    Ok(Alike {
        resurgo: hash(Path::new("/proc/self/exe"))?,
        files: hashed.collect(),
        user: getuid().as_raw(),
        page: sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or(0) as u64,
        processor: processor(),
    })
}

/// BLAKE3 of a file, in hexadecimal digits. A directory only has to be one.
fn hash(path: &Path) -> io::Result<String> {
    if path.is_dir() {
        return Ok("directory".to_string());
    }
    let (mut file, mut hasher) = (File::open(path)?, blake3::Hasher::new());
    let mut bytes = vec![0; 256 << 10];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            length => hasher.update(&bytes[..length]),
        };
    }
}

/// The difference of a node that runs servers, as a sentence that follows the node's name.
pub fn difference_of_resurgo(ours: &Alike, theirs: &Alike) -> Option<String> {
    if theirs.resurgo != ours.resurgo {
        return Some("has another build of resurgo under the same name; install the same on all nodes".to_string());
    }
    if theirs.user != ours.user {
        let (ours, theirs) = (ours.user, theirs.user);
        return Some(format!("runs resurgo as user {theirs}, and this one as user {ours}"));
    }
    None
}

/// The difference of another node, as a sentence that follows the node's name. `ours`: this node's properties, with
/// `files`.
pub fn difference(ours: &Alike, theirs: &Alike, files: &[OsString]) -> Option<String> {
    if let Some(difference) = difference_of_resurgo(ours, theirs) {
        return Some(difference);
    }
    for (file, (ours, theirs)) in files.iter().zip(ours.files.iter().zip(&theirs.files)) {
        let file = file.display();
        match (ours, theirs) {
            (_, Err(why)) => return Some(format!("cannot read {file}: {why}")),
            (ours, theirs) if ours != theirs => return Some(format!("has another {file}; it must be the same file")),
            _ => {}
        }
    }
    if theirs.page != ours.page {
        let (ours, theirs) = (ours.page, theirs.page);
        return Some(format!("has pages of {theirs} bytes, and this one of {ours}"));
    }
    for (has, without, which) in [(ours, theirs, "does not have"), (theirs, ours, "alone has")] {
        let missing = lacks(&has.processor, &without.processor).join(", ");
        if !missing.is_empty() {
            return Some(format!(
                "{which} what other processors of the job have: {missing}; ranks could not move between them"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_like_itself_and_nothing_else() {
        let files = ["/proc/self/exe".into(), "/nowhere".into()];
        let ours = of_this_node(&files[..1]).unwrap();
        assert_eq!(difference(&ours, &ours, &files[..1]), None);
        let without = |what: &str, change: &dyn Fn(&mut Alike)| {
            let mut theirs = ours.clone();
            change(&mut theirs);
            let found = difference(&ours, &theirs, &files[..1]).unwrap();
            assert!(found.contains(what), "{found}");
        };
        without("build of resurgo", &|theirs| theirs.resurgo.clear());
        without("another /proc/self/exe", &|theirs| {
            theirs.files[0] = Ok("7".to_string())
        });
        without("cannot read /proc/self/exe: gone", &|theirs| {
            theirs.files[0] = Err("gone".to_string())
        });
        without("as user", &|theirs| theirs.user += 1);
        without("bytes", &|theirs| theirs.page *= 4);
        without("alone has", &|theirs| theirs.processor.push("avx99".to_string()));
        if ours.processor.iter().any(|flag| flag == "sse2") {
            without("sse2", &|theirs| theirs.processor.retain(|flag| flag != "sse2"));
        }
        let unreadable = of_this_node(&files).unwrap();
        assert!(unreadable.files[1].is_err());
    }
}
