//! The memory that an image must hold: the mappings, and the pages that come from nowhere else.

use super::format::{self, MappingKind, Name, bytes_of};
use super::layout::{Former, Stretch};
use super::piece::Piece;
use super::tables::Tables;
use crate::pages::{self, AT_ONCE, Guards, IS_FILE, IS_GUARD, IS_PRESENT, IS_SWAPPED, IS_ZERO, PAGE, Scan};
use crate::proc::{Lines, MapsLine};
use crate::sys::{self, Errno, call};
use crate::trouble::Trouble;
use crate::zone;
use resurgo_wire::node_memory::NODE_MEMORY_FD;

const FROM_FILE: Trouble = Trouble::new("its memory map cannot be read", 0);

/// Notes all mappings and their files. The program's advice for each is in smaps, for which the kernel looks at all
/// pages. If `former` has the same mappings, and none may be of a device, the advice comes from there. `quickly`: also
/// if they differ, as well as can be.
pub fn mappings(tables: &mut Tables, former: Option<&mut Former>, quickly: bool) -> Result<(), Trouble> {
    if let Some(former) = former {
        let noted = read_mappings(tables, Some(former), quickly);
        if quickly || noted != Err(NEW) {
            return noted;
        }
        tables.forget_mappings()?;
    }
    read_mappings(tables, None, false)
}

fn read_mappings(tables: &mut Tables, former: Option<&mut Former>, quickly: bool) -> Result<(), Trouble> {
    let node = sys::stat(NODE_MEMORY_FD).map_err(|errno| Trouble::new("the node memory", errno))?;
    let path: &[u8] = match former {
        Some(_) => b"/proc/self/maps\0",
        None => b"/proc/self/smaps\0",
    };
    let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC).map_err(|errno| FROM_FILE.with(errno))?;
    let result = note_mappings(tables, (former, quickly), Lines::new(file), node.st_ino);
    sys::close(file);
    result
}

fn note_mappings(
    tables: &mut Tables,
    (mut former, quickly): (Option<&mut Former>, bool),
    mut lines: Lines,
    node: u64,
) -> Result<(), Trouble> {
    let mut pending = None;
    while let Some(line) = lines.next_line().map_err(|errno| FROM_FILE.with(errno))? {
        let noted = if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            pending.take().map(|mapping| add_flags(mapping, flags)).transpose()?
        } else if let Some(line) = MapsLine::parse(line).filter(|line| !is_left_out(line)) {
            let mapping = describe(tables, &line, node)?;
            match &mut former {
                Some(former) => Some(as_before(former, mapping, &line, quickly)?),
                None => {
                    pending = Some(mapping);
                    None
                }
            }
        } else {
            None
        };
        if let Some(mapping) = noted {
            tables.mappings.push(bytes_of(&mapping)).map_err(Trouble::memory)?;
        }
    }
    Ok(())
}

/// The writer's own memory, and a page that every process has.
fn is_left_out(line: &MapsLine) -> bool {
    (zone::ZONE..zone::ZONE_END).contains(&line.start) || line.path == "[vsyscall]"
}

/// Completes a mapping from the former image, with what only the longer listing tells. The error: that is not known.
fn as_before(
    former: &mut Former,
    mut mapping: format::Mapping,
    line: &MapsLine,
    quickly: bool,
) -> Result<format::Mapping, Trouble> {
    // The kernel says nothing special about it, and mapping it again without a reservation does no harm.
    let is_plain = !line.shared && (matches!(line.path, "" | "[heap]") || line.path.starts_with("[anon:"));
    let is_device = line.path.starts_with("/dev/");
    let place = |mapping: &format::Mapping| (mapping.start, mapping.end, mapping.offset);
    match former.mapping(&mapping) {
        Some(known) if quickly || place(&known) == place(&mapping) && !is_device => {
            (mapping.flags, mapping.advice) = (known.flags, known.advice);
            mapping.may_write |= known.may_write;
        }
        None if quickly && is_plain => {
            mapping.flags |= libc::MAP_NORESERVE as u32;
            mapping.may_write |= 1;
        }
        _ => return Err(NEW),
    }
    Ok(mapping)
}

const NEW: Trouble = Trouble::new("it has mapped memory of some kind since", 0);

/// Bit in a mapping's `may_write` while the tables are made: store every page, even those that a file has.
const WHOLE: u32 = 2;

fn describe(tables: &mut Tables, mapping: &MapsLine, node: u64) -> Result<format::Mapping, Trouble> {
    let mut record = format::Mapping {
        start: mapping.start as u64,
        end: mapping.end as u64,
        offset: mapping.offset,
        kind: MappingKind::Anonymous as u32,
        protection: mapping.protection as u32,
        flags: (if mapping.shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        }) as u32,
        file: 0,
        advice: 0,
        may_write: 0,
    };
    match mapping.path {
        "[vvar]" => record.kind = MappingKind::Vvar as u32,
        "[vvar_vclock]" => record.kind = MappingKind::VvarClock as u32,
        "[vdso]" => record.kind = MappingKind::Vdso as u32,
        _ if mapping.shared && mapping.inode == node => record.kind = MappingKind::Node as u32,
        path if path.starts_with('/') => of_file(tables, &mut record, mapping)?,
        _ if mapping.shared => return Err(Trouble::new("it has shared memory that is no file", 0)),
        _ => record.offset = 0,
    }
    Ok(record)
}

fn of_file(tables: &mut Tables, record: &mut format::Mapping, mapping: &MapsLine) -> Result<(), Trouble> {
    let found = sys::stat_path(mapping.path)
        .ok()
        .filter(|stat| stat.st_ino == mapping.inode);
    if let Some(stat) = found {
        record.kind = MappingKind::File as u32;
        record.file = file(tables, mapping, &stat)?;
        return Ok(());
    }
    if mapping.shared {
        return Err(Trouble::new("it has mapped a shared file that has no name any more", 0));
    }
    // The file was removed or replaced (an update of the system does that): store the memory as if it came from
    // nowhere. Pages behind the end of the file cannot be read.
    record.offset = 0;
    record.may_write = WHOLE;
    Ok(())
}

/// The index of the file that `mapping` is of.
fn file(tables: &mut Tables, mapping: &MapsLine, stat: &libc::stat) -> Result<u32, Trouble> {
    let count = tables.files.bytes().len() / size_of::<format::File>();
    for index in (0..count).rev() {
        let known: format::File = tables.file(index);
        if tables.text(known.path) == mapping.path.as_bytes() {
            return Ok(index as u32);
        }
    }
    let path: Name = tables.name(mapping.path.as_bytes())?;
    let mut record = format::File {
        size: stat.st_size as u64,
        modified_s: stat.st_mtime,
        modified_ns: stat.st_mtime_nsec as u64,
        path,
        build_id_length: 0,
        build_id: [0; format::BUILD_ID],
    };
    if mapping.offset == 0 && mapping.protection & libc::PROT_READ != 0 && stat.st_size >= PAGE as i64 {
        // SAFETY: the first page of a mapping that can be read, of a file that is long enough.
        let page = unsafe { std::slice::from_raw_parts(mapping.start as *const u8, PAGE) };
        if let Some(id) = build_id(page) {
            record.build_id[..id.len()].copy_from_slice(id);
            record.build_id_length = id.len() as u64;
        }
    }
    tables.files.push(bytes_of(&record)).map_err(Trouble::memory)?;
    Ok(count as u32)
}

/// The GNU build id that the first page of an ELF file holds.
pub fn build_id(page: &[u8]) -> Option<&[u8]> {
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(*page.get(at..)?.first_chunk()?)));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*page.get(at..)?.first_chunk()?) as usize);
    if !page.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (u32_at(32)?, u16_at(54)?, u16_at(56)?);
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        const PT_NOTE: usize = 4;
        if u32_at(header)? != PT_NOTE {
            continue;
        }
        let (mut at, length) = (u32_at(header + 8)?, u32_at(header + 32)?);
        let end = at.checked_add(length)?;
        while at + 16 <= end {
            let (name, content, kind) = (u32_at(at)?, u32_at(at + 4)?, u32_at(at + 8)?);
            const NT_GNU_BUILD_ID: usize = 3;
            if name == 4 && kind == NT_GNU_BUILD_ID && page.get(at + 12..at + 16)? == b"GNU\0" {
                return page
                    .get(at + 16..at + 16 + content)
                    .filter(|id| id.len() <= format::BUILD_ID);
            }
            at = at
                .checked_add(12 + name.next_multiple_of(4))?
                .checked_add(content.next_multiple_of(4))?;
        }
    }
    None
}

fn add_flags(mut mapping: format::Mapping, flags: &[u8]) -> Result<format::Mapping, Trouble> {
    for flag in flags.split(|byte| *byte == b' ') {
        match flag {
            b"nr" => mapping.flags |= libc::MAP_NORESERVE as u32,
            b"gd" => mapping.flags |= libc::MAP_GROWSDOWN as u32,
            b"hg" => mapping.advice = libc::MADV_HUGEPAGE as u32,
            b"nh" => mapping.advice = libc::MADV_NOHUGEPAGE as u32,
            b"mw" => mapping.may_write |= 1,
            b"ht" => return Err(Trouble::new("it has memory on huge pages of hugetlbfs", 0)),
            b"pf" | b"io" if mapping.kind < MappingKind::Vvar as u32 => {
                return Err(Trouble::new("it has mapped a device", 0));
            }
            _ => {}
        }
    }
    Ok(mapping)
}

/// Finds the pages to store of every mapping, except those of `hole`, and which of them `former` holds already. It also
/// finds guard pages, which become mappings of their own. It makes mappings readable: undo that with [`protect_again`].
pub fn pieces(tables: &mut Tables, former: &mut Option<Former>, hole: (usize, usize)) -> Result<(), Trouble> {
    let pages = sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC)
        .map_err(|errno| Trouble::new("its page map cannot be read", errno))?;
    let (count, guards) = (tables.mapping_count(), pages::guards(pages));
    let result = (0..count).try_for_each(|index| pieces_of((pages, guards), tables, former, (index, hole)));
    sys::close(pages);
    result?;
    tables.split_guards()
}

fn pieces_of(
    (pages, guards): (i32, Guards),
    tables: &mut Tables,
    former: &mut Option<Former>,
    (index, hole): (usize, (usize, usize)),
) -> Result<(), Trouble> {
    let mut mapping = tables.mapping(index);
    let whole = mapping.may_write & WHOLE != 0;
    mapping.may_write &= !WHOLE;
    tables.set_mapping(index, &mapping);
    let anonymous = mapping.kind == MappingKind::Anonymous as u32;
    if !anonymous && mapping.kind != MappingKind::File as u32 {
        return Ok(());
    }
    let is_stored = mapping.flags & libc::MAP_PRIVATE as u32 != 0;
    tables.mapping_start = mapping.start as usize;
    let is_readable = mapping.protection & libc::PROT_READ as u32 != 0;
    // Shared memory is not read, and would stay readable: see `protect_again`.
    let mut made_readable = is_readable || !is_stored;
    let mut make_readable = || match std::mem::replace(&mut made_readable, true) {
        true => Ok(()),
        false => protect(&mapping, mapping.protection | libc::PROT_READ as u32)
            .map_err(|errno| Trouble::new("its memory cannot be read", errno)),
    };
    if guards == Guards::Swapped {
        make_readable()?;
    }
    let mut each = |tables: &mut Tables, start: usize, end: usize, is_guard: bool| {
        if is_guard {
            return tables.guard(start, end);
        }
        make_readable()?;
        for (start, end) in [(start, end.min(hole.0)), (start.max(hole.1), end)] {
            if is_stored && start < end {
                add(tables, former, (start, end), (anonymous, whole))?;
            }
        }
        Ok(())
    };
    // Without the right to read, nobody can tell where the file ends: take what is there.
    if whole && is_readable {
        let (start, end) = (mapping.start as usize, mapping.end as usize);
        pages::read_in((start, end))
            .map_err(|errno| Trouble::new("it has mapped a file that has been removed and is too short", errno))?;
        return each(tables, start, end, false);
    }
    let of_file = is_stored && (!anonymous || whole);
    present(
        (pages, guards),
        tables,
        (mapping.start as usize, mapping.end as usize),
        of_file,
        each,
    )
}

fn protect(mapping: &format::Mapping, protection: u32) -> Result<(), Errno> {
    // SAFETY: only ever adds or takes away the right to read, in a process whose program does not run.
    unsafe {
        call!(
            libc::SYS_mprotect,
            mapping.start,
            mapping.end - mapping.start,
            protection
        )
    }
    .map(|_| ())
}

/// Takes back the right to read that [`pieces`] gave itself.
pub fn protect_again(tables: &Tables) {
    for index in 0..tables.mapping_count() {
        let mapping = tables.mapping(index);
        let private = mapping.flags & libc::MAP_PRIVATE as u32 != 0;
        if private && mapping.kind <= MappingKind::File as u32 && mapping.protection & libc::PROT_READ as u32 == 0 {
            let _ = protect(&mapping, mapping.protection);
        }
    }
}

/// Calls `each` for ranges of pages that were written to, and with true for guards. Where pages may be `of_file`, the
/// kernel has to look at each page itself, which takes ten times as long.
fn present(
    (file, guards): (i32, Guards),
    tables: &mut Tables,
    (start, end): (usize, usize),
    of_file: bool,
    mut each: impl FnMut(&mut Tables, usize, usize, bool) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    // Ask for all others: most memory is full, and the kernel takes twice as long for a page that it has to list.
    let mut scan = Scan::new((start, end));
    scan.inverted = IS_PRESENT;
    scan.any_of = IS_PRESENT | IS_ZERO | if of_file { IS_FILE } else { 0 };
    scan.returned = IS_SWAPPED | if guards == Guards::Told { IS_GUARD } else { 0 };
    let mut from = start;
    let mut found = [pages::Range::NONE; AT_ONCE];
    loop {
        match scan.next(file, &mut found) {
            Ok(Some(ranges)) => {
                for range in ranges {
                    let (start, end) = (range.start as usize, range.end as usize);
                    if from < start {
                        each(tables, from, start, false)?;
                    }
                    from = end;
                    let has = |category| range.categories & category != 0;
                    if has(IS_GUARD) || has(IS_SWAPPED) && guards != Guards::Swapped {
                        each(tables, start, end, has(IS_GUARD))?;
                    } else if has(IS_SWAPPED) {
                        let mut pages = (start..end).step_by(PAGE);
                        pages.try_for_each(|page| each(tables, page, page + PAGE, pages::is_guard(page)))?;
                    }
                }
            }
            Ok(None) if from < end => return each(tables, from, end, false),
            Ok(None) => return Ok(()),
            // Before Linux 6.7.
            Err(libc::ENOTTY | libc::EINVAL) => return present_by_entries((file, guards), tables, scan.rest(), each),
            Err(errno) => return Err(Trouble::new("its page map cannot be read", errno)),
        }
    }
}

fn present_by_entries(
    (file, guards): (i32, Guards),
    tables: &mut Tables,
    (mut start, end): (usize, usize),
    mut each: impl FnMut(&mut Tables, usize, usize, bool) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mut entries = [0u64; 1024];
    while start < end {
        let count = entries.len().min((end - start) / PAGE);
        // SAFETY: fills the entries.
        let got = unsafe {
            call!(
                libc::SYS_pread64,
                file,
                entries.as_mut_ptr(),
                count * 8,
                start / PAGE * 8
            )
        };
        let count = got.map_err(|errno| Trouble::new("its page map cannot be read", errno))? / 8;
        if count == 0 {
            return Err(Trouble::new("its page map ends early", 0));
        }
        for (index, entry) in entries[..count].iter().enumerate() {
            // Bit 63: present, 62: swapped, 61: of a file or shared.
            if entry >> 62 != 0 && entry >> 61 & 1 == 0 {
                let page = start + index * PAGE;
                // Needed where PAGEMAP_SCAN is forbidden but guards are not.
                let is_guard = entry >> 63 == 0 && guards != Guards::None && pages::is_guard(page);
                each(tables, page, page + PAGE, is_guard)?;
            }
        }
        start += count * PAGE;
    }
    Ok(())
}

/// Adds a range to the pieces. What `former` holds unchanged need not be looked at. For a mapping that is stored as a
/// whole, nobody knows what has changed.
fn add(
    tables: &mut Tables,
    former: &mut Option<Former>,
    (start, end): (usize, usize),
    (anonymous, whole): (bool, bool),
) -> Result<(), Trouble> {
    let mut from = start;
    while from < end {
        let part = match former {
            Some(former) => former.look(from, end),
            None => Stretch::new(end),
        };
        let mut piece = Piece::new(from, part.end, part.offset);
        if from == tables.mapping_start {
            piece.flags |= Piece::FIRST;
        }
        if part.offset.is_none() || part.changed || whole {
            piece.flags |= Piece::WRITE;
        }
        if whole {
            piece.flags |= Piece::UNKNOWN;
        }
        if anonymous {
            piece.flags |= Piece::SKIP_ZEROS;
        }
        tables.pieces.push(bytes_of(&piece)).map_err(Trouble::memory)?;
        from = part.end;
    }
    Ok(())
}
