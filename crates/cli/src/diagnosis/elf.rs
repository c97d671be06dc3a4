//! The headers of a program or library: what they say about the libraries it wants.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::elf::{
    DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRTAB, DynamicTag, ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, SHT_DYNSYM,
    SHT_SYMTAB,
};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadRef};

/// The dynamic section of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Elf {
    /// Whether a dynamic loader loads it at all.
    pub dynamic: bool,
    pub needed: Vec<String>,
    /// Directories, `$ORIGIN` already replaced.
    pub rpath: Vec<PathBuf>,
    pub runpath: Vec<PathBuf>,
}

/// Reads the headers of `path`; None if it is no 64-bit ELF file.
pub fn read(path: &Path) -> Option<Elf> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let mut elf = Elf::default();
    let Some(entries) = segments
        .iter()
        .find_map(|segment| segment.dynamic(endian, data).ok().flatten())
    else {
        return Some(elf);
    };
    elf.dynamic = true;
    let value = |tag: DynamicTag| {
        entries
            .iter()
            .find(|entry| entry.d_tag(endian) == tag)
            .map(|entry| entry.d_val(endian))
    };
    let strings = value(DT_STRTAB)?;
    // The place in the file of the address at which the loader would map the string table.
    let base = segments.iter().find_map(|segment| {
        let start = segment.p_vaddr(endian);
        let inside = (start..start + segment.p_filesz(endian)).contains(&strings)
            && segment.p_type(endian) == object::elf::PT_LOAD;
        inside.then(|| segment.p_offset(endian) + (strings - start))
    })?;
    let end = data.len().ok()?;
    let text = |offset: u64| {
        let bytes = data.read_bytes_at_until(base + offset..end, 0).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let origin = path.parent().unwrap_or(Path::new("/"));
    for entry in entries {
        let Some(string) = (match entry.d_tag(endian) {
            DT_NEEDED | DT_RPATH | DT_RUNPATH => text(entry.d_val(endian)),
            _ => None,
        }) else {
            continue;
        };
        match entry.d_tag(endian) {
            DT_NEEDED => elf.needed.push(string),
            DT_RPATH => elf.rpath = directories(&string, origin),
            _ => elf.runpath = directories(&string, origin),
        }
    }
    Some(elf)
}

fn directories(list: &str, origin: &Path) -> Vec<PathBuf> {
    let origin = origin.to_string_lossy();
    list.split(':')
        .filter(|entry| !entry.is_empty())
        .map(|entry| PathBuf::from(entry.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)))
        .collect()
}

/// The build ID that a linker has put into the file.
pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, data).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, data) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

/// Which of `names` the file defines. `in_full_table` looks into the table for debuggers, which also has what a program
/// does not export.
pub fn defines<'a>(path: &Path, names: &[&'a str], in_full_table: bool) -> Vec<&'a str> {
    let look = || {
        let cache = ReadCache::new(File::open(path).ok()?);
        let data = &cache;
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let kind = if in_full_table { SHT_SYMTAB } else { SHT_DYNSYM };
        let symbols = header.sections(endian, data).ok()?.symbols(endian, data, kind).ok()?;
        let mut found = Vec::new();
        for symbol in symbols.iter().filter(|symbol| !symbol.is_undefined(endian)) {
            let Ok(name) = symbol.name(endian, symbols.strings()) else {
                continue;
            };
            found.extend(names.iter().copied().filter(|wanted| wanted.as_bytes() == name));
            if found.len() == names.len() {
                break;
            }
        }
        Some(found)
    };
    look().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_libc() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(elf.dynamic);
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.so")), "{elf:?}");
    }

    #[test]
    fn other_files_are_not_elf() {
        assert_eq!(read(Path::new("/etc/passwd")), None);
        assert_eq!(read(Path::new("/nowhere")), None);
        assert!(defines(Path::new("/etc/passwd"), &["MPI_Init"], false).is_empty());
    }

    #[test]
    fn origin_is_the_directory_of_the_file() {
        let found = directories("$ORIGIN/../lib:${ORIGIN}:/opt::", Path::new("/a/bin"));
        assert_eq!(found, [PathBuf::from("/a/bin/../lib"), "/a/bin".into(), "/opt".into()]);
    }
}
