//! Rebuilding a process from a file: everything that ordinary code can do, up to executing the restorer.
//!
//! 1. The file's tables are read, and what it needs from outside is compared: the kernel, the mapped files. Its data is verified
//!    here, or by the process that fills the memory (`filler.rs`).
//! 2. Files are opened: those that are mapped under high numbers, those of the program under their own.
//! 3. The plan is made: unmap everything, map and fill the image's memory, set what the kernel knows about it, go on.
//! 4. The restorer is executed from memory. It does the plan's steps and jumps into the image's own code.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{IMAGE_FD, NODE_MEMORY_FD};

use super::format::{self, Extent, Mapping, MappingKind, OTHERS_WRITE, page_up};
use super::plan::{self, ANY, Head, MAY_FAIL, PARKED, PARKED_NAMES, PLAN, RESTORER, RESTORER_END, Step};
use super::reader::Image;
use super::scan;
use crate::pages::{self, GUARD, PAGE};
use crate::talk;
use filler::Filler;

mod filler;
mod open;
mod vdso;

pub use plan::EXIT_NOT_RESTORED;

static RESTORER_FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/restorer"));

/// Read at once, at most: the kernel stops a little below 2 GiB.
const READ: u64 = 1 << 30;
/// Of a copy that is given back piece by piece.
const READ_COPY: u64 = 16 << 20;

/// Becomes the process whose image `file` is, called `path`, unless it has another `digest` or `check` objects to the agent's note in it.
/// Returns only when that fails, after having told the agent; the exit code to use.
pub fn restore(
    path: &Path,
    file: io::Result<fs::File>,
    digest: &[u8],
    check: &dyn Fn(&str) -> Result<(), String>,
) -> i32 {
    let why = match try_restore(path, file, digest, check) {
        Ok(never) => match never {},
        Err(why) => why,
    };
    let failed = Datagram::new(Kind::Failed, 0, 0, 0).with_text(&why);
    let _ = talk::send(IMAGE_FD, &failed, &[]);
    EXIT_NOT_RESTORED
}

enum Never {}

fn try_restore(
    path: &Path,
    file: io::Result<fs::File>,
    digest: &[u8],
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Never, String> {
    let file = file.map_err(|error| format!("image file {}: {error}", path.display()))?;
    let image = Image::of(path, file).map_err(|defect| defect.to_string())?;
    check(&image.note)?;
    image.must_be(digest).map_err(|defect| defect.to_string())?;
    let kernels_code = kernels_code(&image)?;
    for file in &image.files {
        check_file(&image, file)?;
    }
    let filler = Filler::start(&image);
    let data = match &filler {
        Some(_) => image.plain_data(),
        None => image.verified_data(),
    };
    let data = data.map_err(|defect| defect.to_string())?;
    let mut opened = open::Opened::new(&image, &data)?;
    if let Some(code) = kernels_code {
        opened.give_code(&code)?;
    }
    if let Some(filler) = &filler {
        opened.give_filler(filler)?;
    }
    let plan = make_plan(&image, &opened, filler.as_ref());
    open::finish(&image, opened, RESTORER_FILE, &plan)
}

/// The kernel's own pages in this process: start and end, in the order of [`PARKED_NAMES`].
fn own_pages() -> Result<[Option<(u64, u64)>; 3], String> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let mut pages = [None; 3];
    for line in maps.lines() {
        let Some(which) = PARKED_NAMES.iter().position(|name| line.as_bytes().ends_with(name)) else {
            continue;
        };
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        pages[which] = range
            .and_then(|(start, end)| Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)));
    }
    Ok(pages)
}

/// Programs hold addresses inside the kernel's own code. None: it is what it was, and can be moved to where it was. Otherwise what
/// takes its place; empty where the process has none.
fn kernels_code(image: &Image) -> Result<Option<Vec<u8>>, String> {
    let theirs = image.text(image.header.vdso);
    let own = own_pages()?;
    let kinds = [MappingKind::Vvar, MappingKind::VvarClock, MappingKind::Vdso];
    let is_as_long = |(kind, own): (MappingKind, Option<(u64, u64)>)| {
        let theirs = image.mappings.iter().find(|mapping| mapping.kind == kind as u32);
        theirs.map(|mapping| mapping.end - mapping.start) == own.map(|(start, end)| end - start)
    };
    if kinds.into_iter().zip(own).all(is_as_long) {
        let own = own[2].map_or(&[][..], |(start, end)| {
            // SAFETY: mapped and readable in every process.
            unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) }
        });
        if own == theirs {
            return Ok(None);
        }
    }
    if theirs.is_empty() {
        return Ok(Some(Vec::new()));
    }
    if image.header.in_vdso > 0 {
        return Err(
            "the image was taken under another kernel, while a thread was in that one's own code (vDSO)".into(),
        );
    }
    let code = vdso::with_system_calls(theirs);
    code.map(Some)
        .ok_or_else(|| "the image was taken under another kernel, whose vDSO has other functions than are known".into())
}

/// A mapped file must be what it was: most of its pages are not in the image.
fn check_file(image: &Image, file: &format::File) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(image.text(file.path)));
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| format!("{shown}, which the program had mapped: {error}"))?;
    let changed = |what: &str| {
        Err(format!(
            "{shown}, which the program had mapped, has changed since: {what}"
        ))
    };
    if metadata.len() != file.size {
        return changed(&format!("{} bytes, were {}", metadata.len(), file.size));
    }
    if (metadata.mtime(), metadata.mtime_nsec() as u64) != (file.modified_s, file.modified_ns) {
        return changed("its time of modification");
    }
    if file.build_id_length > 0 {
        let mut page = [0u8; PAGE];
        let opened = fs::File::open(path).map_err(|error| format!("{shown}: {error}"))?;
        std::os::unix::fs::FileExt::read_exact_at(&opened, &mut page, 0)
            .map_err(|error| format!("{shown}: {error}"))?;
        if scan::build_id(&page) != Some(&file.build_id[..file.build_id_length as usize]) {
            return changed("its build id");
        }
    }
    Ok(())
}

#[derive(Default)]
struct Plan {
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

impl Plan {
    /// Places bytes that steps point to; returns their address.
    fn place(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(at, 0);
        self.bytes.extend(bytes);
        (PLAN + size_of::<Head>() + at) as u64
    }

    fn place_words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.place(&bytes)
    }

    fn step(&mut self, call: i64, arguments: &[u64], result: u64) {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        self.steps.push(Step {
            call: call as u64,
            arguments: all,
            result,
        });
    }

    fn map(&mut self, start: u64, length: u64, protection: u32, flags: u32, file: i32, offset: u64) {
        let arguments = [
            start,
            length,
            u64::from(protection),
            u64::from(flags),
            file as u64,
            offset,
        ];
        self.step(libc::SYS_mmap, &arguments, start);
    }
}

fn make_plan(image: &Image, opened: &open::Opened, filler: Option<&Filler>) -> Vec<u8> {
    let mut plan = Plan::default();
    plan.step(libc::SYS_munmap, &[0, RESTORER as u64], 0);
    plan.step(
        libc::SYS_munmap,
        &[RESTORER_END as u64, 0x7fff_ffff_f000 - RESTORER_END as u64],
        0,
    );
    let mut extents = image.extents.as_slice();
    for mapping in &image.mappings {
        let count = extents.iter().take_while(|extent| extent.address < mapping.end).count();
        let (own, rest) = extents.split_at(count);
        extents = rest;
        let is_filled = filler.is_some_and(|filler| filler.fills(mapping.start));
        plan_mapping(&mut plan, mapping, own, is_filled, opened);
    }
    if let (Some(filler), Some(numbers)) = (filler, opened.filler()) {
        filler.plan(&mut plan, numbers);
    }
    plan.step(libc::SYS_arch_prctl, &[0x1002, image.header.thread_pointer], 0); // ARCH_SET_FS
    for fd in opened.temporary() {
        plan.step(libc::SYS_close, &[fd as u64], 0);
    }
    plan_numbers(&mut plan, image);

    let told = plan.place_words(&told(image, filler));

    let steps_at = size_of::<Head>() + plan.bytes.len().next_multiple_of(8);
    let head = Head {
        steps: plan.steps.len() as u64,
        steps_at: steps_at as u64,
        agent: IMAGE_FD as u64,
        entry: image.header.entry,
        stack: image.header.stack,
        arguments: [RESTORER as u64, (RESTORER_END - RESTORER) as u64, told],
    };
    let mut bytes = format::bytes_of(&head).to_vec();
    bytes.extend(&plan.bytes);
    bytes.resize(steps_at, 0);
    for step in &plan.steps {
        bytes.extend(format::bytes_of(step));
    }
    let whole = page_up(bytes.len() as u64) as usize;
    bytes.resize(whole, 0);
    bytes
}

/// See `resume.rs`.
fn told(image: &Image, filler: Option<&Filler>) -> Vec<u64> {
    let locks_renamed = filler.is_some_and(|filler| filler.fills_all());
    let shared = image.descriptors.iter().filter(|entry| entry.flags & OTHERS_WRITE != 0);
    let shared: Vec<u64> = shared.map(|entry| entry.fd as u64).collect();
    let mut told = vec![u64::from(locks_renamed), shared.len() as u64];
    told.extend(shared);
    told
}

/// Tells the kernel where heap, arguments, environment and auxiliary vector are (PR_SET_MM_MAP).
fn plan_numbers(plan: &mut Plan, image: &Image) {
    let auxv = plan.place(&image.auxv);
    let mut numbers: Vec<u8> = image
        .header
        .memory
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    numbers.extend(auxv.to_le_bytes());
    numbers.extend((image.auxv.len() as u32).to_le_bytes());
    // No executable file: that one needs rights.
    numbers.extend(u32::MAX.to_le_bytes());
    let (set_mm, set_mm_map) = (35, 14);
    let at = plan.place(&numbers);
    plan.step(libc::SYS_prctl, &[set_mm, set_mm_map, at, numbers.len() as u64], 0);
}

// SAFETY: words only.
unsafe impl format::Record for Head {}
// SAFETY: words only.
unsafe impl format::Record for Step {}

/// `is_filled`: by the filler, later.
fn plan_mapping(plan: &mut Plan, mapping: &Mapping, extents: &[Extent], is_filled: bool, opened: &open::Opened) {
    let length = mapping.end - mapping.start;
    let fixed = libc::MAP_FIXED_NOREPLACE as u32;
    let mut filling = mapping.protection | if extents.is_empty() { 0 } else { libc::PROT_WRITE as u32 };
    if mapping.advice == GUARD && !pages::can_guard() {
        filling = libc::PROT_NONE as u32;
    }
    let kind = format::MAPPING_KINDS[mapping.kind as usize];
    match kind {
        MappingKind::Anonymous => {
            let flags = mapping.flags | libc::MAP_ANONYMOUS as u32 | fixed;
            plan.map(mapping.start, length, filling, flags, -1, 0);
        }
        MappingKind::File => {
            let file = opened.mapped(mapping);
            plan.map(
                mapping.start,
                length,
                filling,
                mapping.flags | fixed,
                file,
                mapping.offset,
            );
        }
        MappingKind::Node => {
            let flags = mapping.flags | fixed;
            plan.map(
                mapping.start,
                length,
                mapping.protection,
                flags,
                NODE_MEMORY_FD,
                mapping.offset,
            );
        }
        MappingKind::Vdso if opened.code().is_some() => {
            let code = opened.code().unwrap_or_default();
            let anonymous = mapping.flags | libc::MAP_ANONYMOUS as u32 | fixed;
            plan.map(
                mapping.start,
                length,
                (libc::PROT_READ | libc::PROT_WRITE) as u32,
                anonymous,
                -1,
                0,
            );
            plan.step(libc::SYS_pread64, &[code as u64, mapping.start, length, 0], length);
            plan.step(
                libc::SYS_mprotect,
                &[mapping.start, length, u64::from(mapping.protection)],
                0,
            );
            return;
        }
        MappingKind::Vvar | MappingKind::VvarClock if opened.code().is_some() => {
            let anonymous = mapping.flags | libc::MAP_ANONYMOUS as u32 | fixed;
            plan.map(mapping.start, length, mapping.protection, anonymous, -1, 0);
            return;
        }
        MappingKind::Vvar | MappingKind::VvarClock | MappingKind::Vdso => {
            let from = PARKED[kind as usize - MappingKind::Vvar as usize] as u64;
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
            plan.step(
                libc::SYS_mremap,
                &[from, length, length, flags, mapping.start],
                mapping.start,
            );
            return;
        }
    }
    if mapping.advice != 0 {
        plan.step(
            libc::SYS_madvise,
            &[mapping.start, length, u64::from(mapping.advice)],
            MAY_FAIL,
        );
    }
    // What the program has given other rights for a while becomes one mapping with its neighbours again, as it was, if the kernel
    // counts their pages together: if they have been made one mapping after the other, while all could be written to.
    if let (true, Some(first)) = (is_filled, extents.first()) {
        plan.step(
            libc::SYS_pread64,
            &[opened.data() as u64, first.address, 1, first.offset],
            1,
        );
        let forget = libc::MADV_DONTNEED as u64;
        plan.step(libc::SYS_madvise, &[first.address, PAGE as u64, forget], 0);
    }
    // Read, never mapped from the image file: a page that the program gives back must be zero when it is used again.
    for extent in extents.iter().filter(|_| !is_filled) {
        let mut done = 0;
        while done < extent.length {
            let bytes = (extent.length - done).min(if opened.is_copy() { READ_COPY } else { READ });
            let arguments = [opened.data() as u64, extent.address + done, bytes, extent.offset + done];
            plan.step(libc::SYS_pread64, &arguments, bytes);
            if opened.is_copy() {
                // It is not needed twice.
                let give_back = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
                let arguments = [opened.data() as u64, give_back, extent.offset + done, bytes];
                plan.step(libc::SYS_fallocate, &arguments, MAY_FAIL);
            }
            done += bytes;
        }
    }
    if filling != mapping.protection && !extents.is_empty() {
        plan.step(
            libc::SYS_mprotect,
            &[mapping.start, length, u64::from(mapping.protection)],
            0,
        );
    }
}

fn last_error(what: &str) -> String {
    format!("{what}: {}", io::Error::last_os_error())
}

const _: () = assert!(ANY > MAY_FAIL);
