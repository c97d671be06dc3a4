//! The tables of an image file while they are made, in memory that is not part of the image.

use super::format::{
    self, Descriptor, DescriptorKind, Header, Name, OTHERS_WRITE, Record, Table, Thread, bytes_of, record_at,
};
use super::piece::Piece;
use crate::eventfds::Object;
use crate::proc::read_file;
use crate::sys::{self, Errno};
use crate::trouble::Trouble;
use crate::zone::Area;
use crate::{descriptors, mappings, pages, pipes, sharing, threads};

/// The longest removed file: memory holds its content while the image is written.
const MOST_REMOVED: i64 = 64 << 20;

pub struct Tables {
    pub mappings: Area,
    pub files: Area,
    pub descriptors: Area,
    pub threads: Area,
    pub extents: Area,
    pub strings: Area,
    pub auxv: Area,
    /// All tables one after the other.
    pub all: Area,
    /// Memory to store, in the order of addresses.
    pub pieces: Area,
    /// Where the mapping begins whose pages are being looked for.
    pub mapping_start: usize,
    /// Guard pages: pairs of start and end, in ascending order.
    guards: Area,
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            mappings: Area::new(0),
            files: Area::new(1),
            descriptors: Area::new(2),
            threads: Area::new(3),
            extents: Area::new(4),
            strings: Area::new(5),
            auxv: Area::new(6),
            all: Area::new(7),
            pieces: Area::new(17),
            mapping_start: 0,
            guards: Area::new(28),
        }
    }

    /// Forgets mappings and their files; nothing else has been noted.
    pub fn forget_mappings(&mut self) -> Result<(), Trouble> {
        let mut noted = [&mut self.mappings, &mut self.files, &mut self.strings].into_iter();
        noted.try_for_each(|area| area.resize(0)).map_err(Trouble::memory)
    }

    pub fn name(&mut self, text: &[u8]) -> Result<Name, Trouble> {
        let at = self.strings.bytes().len() as u32;
        self.strings.push(text).map_err(Trouble::memory)?;
        Ok(Name {
            at,
            length: text.len() as u32,
        })
    }

    /// Appends to the strings what `read` gives, part by part.
    fn strung(
        &mut self,
        read: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Trouble>,
    ) -> Result<Name, Trouble> {
        let mut name = self.name(b"")?;
        read(&mut |bytes| {
            name.length += bytes.len() as u32;
            self.strings.push(bytes)
        })?;
        Ok(name)
    }

    pub fn text(&self, name: Name) -> &[u8] {
        &self.strings.bytes()[name.at as usize..][..name.length as usize]
    }

    pub fn file(&self, index: usize) -> format::File {
        record(&self.files, index)
    }

    pub fn mapping_count(&self) -> usize {
        self.mappings.bytes().len() / size_of::<format::Mapping>()
    }

    pub fn mapping(&self, index: usize) -> format::Mapping {
        record(&self.mappings, index)
    }

    pub fn set_mapping(&mut self, index: usize, mapping: &format::Mapping) {
        let size = size_of::<format::Mapping>();
        self.mappings.bytes_mut()[index * size..][..size].copy_from_slice(bytes_of(mapping));
    }

    /// Notes that there is a guard from `start` to `end`.
    pub fn guard(&mut self, start: usize, end: usize) -> Result<(), Trouble> {
        if let Some(last) = self.guards.words_mut().last_mut().filter(|last| **last == start as u64)
            && start > self.mapping_start
        {
            *last = end as u64;
            return Ok(());
        }
        let mut words = [start, end].into_iter();
        words
            .try_for_each(|word| self.guards.push(&(word as u64).to_ne_bytes()))
            .map_err(Trouble::memory)
    }

    /// Makes guards mappings of their own: parts of others that hold nothing and have their own advice.
    pub fn split_guards(&mut self) -> Result<(), Trouble> {
        let mut guards = self
            .guards
            .words()
            .chunks_exact(2)
            .map(|guard| (guard[0], guard[1]))
            .peekable();
        if guards.peek().is_none() {
            return Ok(());
        }
        // They go behind the old ones, which are then taken away.
        let old = self.mappings.bytes().len();
        for index in 0..old / size_of::<format::Mapping>() {
            let mapping = record::<format::Mapping>(&self.mappings, index);
            let mut add = |start: u64, end: u64, advice: u32| {
                let offset = match mapping.kind == format::MappingKind::File as u32 {
                    true => mapping.offset + (start - mapping.start),
                    false => mapping.offset,
                };
                let part = format::Mapping {
                    start,
                    end,
                    offset,
                    advice,
                    ..mapping
                };
                if start == end {
                    Ok(())
                } else {
                    self.mappings.push(bytes_of(&part)).map_err(Trouble::memory)
                }
            };
            let mut from = mapping.start;
            while let Some((start, end)) = guards.next_if(|guard| guard.0 < mapping.end) {
                add(from, start, mapping.advice)?;
                add(start, end, pages::GUARD)?;
                from = end;
            }
            add(from, mapping.end, mapping.advice)?;
        }
        let all = self.mappings.bytes_mut();
        all.copy_within(old.., 0);
        let new = all.len() - old;
        self.mappings.resize(new).map_err(Trouble::memory)
    }

    pub fn piece_count(&self) -> usize {
        self.pieces.bytes().len() / size_of::<Piece>()
    }

    pub fn piece(&self, index: usize) -> Piece {
        record(&self.pieces, index)
    }

    pub fn all_pieces(&self) -> impl Iterator<Item = Piece> {
        (0..self.piece_count()).map(|index| self.piece(index))
    }

    pub fn note_threads(&mut self) -> Result<(), Trouble> {
        for thread in threads::parked() {
            let record = Thread {
                tid: thread.tid,
                is_main: u32::from(thread.is_main),
                name: thread.name,
            };
            self.threads.push(bytes_of(&record)).map_err(Trouble::memory)?;
        }
        Ok(())
    }

    pub fn note_descriptors(&mut self) -> Result<(), Trouble> {
        let mut target = [0u8; 4096];
        for entry in descriptors::noted() {
            let mut link = [0u8; 64];
            let path = sys::readlink(sys::path(&mut link, "/proc/self/fd/", entry.fd, ""), &mut target).unwrap_or(b"");
            let mut own = [0u8; 256];
            let path = match entry.of_process {
                true => {
                    let nameless = |errno| Trouble::new("an open file of its own in /proc has no name", errno);
                    let name = descriptors::name_of_own(entry.fd, &mut own).map_err(nameless)?;
                    name.strip_suffix(b"\0").unwrap_or(name)
                }
                false => path,
            };
            let of_library = mappings::is_of_library(path);
            let device = entry.mode & libc::S_IFMT == libc::S_IFCHR;
            let (kind, same_as) = match entry.kind {
                descriptors::Kind::Output(which) => (DescriptorKind::Output, which),
                descriptors::Kind::Input => (DescriptorKind::Input, -1),
                descriptors::Kind::File if of_library => (DescriptorKind::Leftover, entry.same_as.unwrap_or(-1)),
                descriptors::Kind::File => (DescriptorKind::File, entry.same_as.unwrap_or(-1)),
                descriptors::Kind::Shared if device => (DescriptorKind::Device, entry.same_as.unwrap_or(-1)),
                descriptors::Kind::Shared => (DescriptorKind::Given, -1),
                descriptors::Kind::Object(Object::Pipe) => (DescriptorKind::Pipe, entry.same_as.unwrap_or(-1)),
                descriptors::Kind::Object(_) => (DescriptorKind::Object, entry.same_as.unwrap_or(-1)),
            };
            let is_removed = || sys::stat(entry.fd).is_ok_and(|stat| stat.st_nlink == 0);
            let kind = match kind {
                DescriptorKind::File if is_removed() => DescriptorKind::Removed,
                kind => kind,
            };
            let content = match kind {
                DescriptorKind::Pipe => self.strung(|each| pipes::content(entry, each))?,
                DescriptorKind::Removed if entry.same_as.is_none() => self.strung(|each| content(entry, each))?,
                _ => Name::default(),
            };
            let record = Descriptor {
                fd: entry.fd,
                kind: kind as u32,
                status: entry.status,
                flags: entry.flags | if entry.others_write { OTHERS_WRITE } else { 0 },
                offset: entry.offset,
                length: entry.length as u64,
                device: entry.inode.0 as u32,
                inode: entry.inode.1,
                birth: entry.birth,
                same_as,
                mode: entry.mode,
                path: self.name(path)?,
                content,
            };
            self.descriptors.push(bytes_of(&record)).map_err(Trouble::memory)?;
        }
        Ok(())
    }

    /// Marks files that others also write to.
    pub fn note_sharing(&mut self) {
        let bytes = self.descriptors.bytes_mut();
        let is_written = |entry: &Descriptor| {
            entry.kind == DescriptorKind::File as u32
                && entry.flags & OTHERS_WRITE == 0
                && sharing::is_written(entry.mode, entry.status)
        };
        sharing::find_shared(|is_shared| {
            for bytes in bytes.chunks_exact_mut(size_of::<Descriptor>()) {
                if let Some(mut entry) = record_at::<Descriptor>(bytes, 0).filter(is_written)
                    && is_shared((entry.device.into(), entry.inode))
                {
                    entry.flags |= OTHERS_WRITE;
                    bytes.copy_from_slice(bytes_of(&entry));
                }
            }
        });
    }

    pub fn note_directory(&mut self) -> Result<Name, Trouble> {
        let mut path = [0u8; 4096];
        let path = sys::readlink(b"/proc/self/cwd\0", &mut path)
            .map_err(|errno| Trouble::new("its working directory cannot be found", errno))?;
        self.name(path)
    }

    pub fn note_auxv(&mut self) -> Result<(), Trouble> {
        let mut bytes = [0u8; 4096];
        let length = read_file(b"/proc/self/auxv\0", &mut bytes)
            .map_err(|errno| Trouble::new("its auxiliary vector cannot be read", errno))?;
        self.auxv.push(&bytes[..length]).map_err(Trouble::memory)
    }

    /// Puts the tables one after the other and says in the header where they are.
    pub fn assemble(&mut self, header: &mut Header) -> Result<(), Trouble> {
        let parts = [
            (&self.mappings, size_of::<format::Mapping>()),
            (&self.files, size_of::<format::File>()),
            (&self.descriptors, size_of::<Descriptor>()),
            (&self.threads, size_of::<Thread>()),
            (&self.extents, size_of::<format::Extent>()),
            (&self.auxv, 1),
            (&self.strings, 1),
        ];
        let mut tables = [Table::default(); 7];
        for (table, (area, size)) in tables.iter_mut().zip(parts) {
            *table = Table {
                at: self.all.bytes().len() as u64,
                count: (area.bytes().len() / size) as u64,
            };
            self.all.push(area.bytes()).map_err(Trouble::memory)?;
        }
        [
            header.index.mappings,
            header.index.files,
            header.index.descriptors,
            header.index.threads,
            header.index.extents,
            header.index.auxv,
            header.index.strings,
        ] = tables;
        let length = self.all.bytes().len();
        let padding = format::page_up(length as u64) as usize - length;
        self.all.grow(padding).map_err(Trouble::memory)
    }
}

/// Calls `each` with the content of a removed file, part by part.
fn content(entry: &descriptors::Descriptor, each: &mut dyn FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Trouble> {
    const UNREADABLE: Trouble = Trouble::new("it has open a removed file that cannot be read", 0);
    if entry.mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Trouble::new("it has open a directory that has been removed", 0));
    }
    if entry.length > MOST_REMOVED {
        return Err(Trouble::new("it has open a removed file of more than 64 MiB", 0));
    }
    let mut link = [0u8; 64];
    let link = sys::path(&mut link, "/proc/self/fd/", entry.fd, "");
    let file = sys::open(link, libc::O_RDONLY | libc::O_CLOEXEC).map_err(|errno| UNREADABLE.with(errno))?;
    let mut left = entry.length as usize;
    let mut bytes = [0; 16 << 10];
    let result = loop {
        let most = left.min(bytes.len());
        match sys::read(file, &mut bytes[..most]) {
            Ok(0) => break Ok(()),
            Ok(length) => {
                left -= length;
                if let Err(errno) = each(&bytes[..length]) {
                    break Err(Trouble::memory(errno));
                }
            }
            Err(errno) => break Err(UNREADABLE.with(errno)),
        }
    };
    sys::close(file);
    result
}

fn record<T: Record>(area: &Area, index: usize) -> T {
    let record = record_at(area.bytes(), index * size_of::<T>());
    record.expect("callers count the records")
}

/// The numbers of PR_SET_MM_MAP, from /proc/self/stat and the kernel's brk.
pub fn memory_numbers() -> Result<[u64; 11], Trouble> {
    const UNREADABLE: Trouble = Trouble::new("/proc/self/stat cannot be read", 0);
    let mut bytes = [0u8; 2048];
    let length = read_file(b"/proc/self/stat\0", &mut bytes).map_err(|errno| UNREADABLE.with(errno))?;
    let text = std::str::from_utf8(&bytes[..length]).unwrap_or("");
    let mut fields = [0u64; 60];
    // After the name, which may hold anything: field 3 and on.
    let rest = text.rsplit_once(") ").ok_or(UNREADABLE)?.1;
    for (field, word) in fields[3..].iter_mut().zip(rest.split_ascii_whitespace()) {
        *field = word.parse().unwrap_or(0);
    }
    // SAFETY: asks where the heap ends.
    let brk = unsafe { crate::sys::call!(libc::SYS_brk, 0) }.unwrap_or(0) as u64;
    Ok([
        fields[26], fields[27], fields[45], fields[46], fields[47], brk, fields[28], fields[48], fields[49],
        fields[50], fields[51],
    ])
}
