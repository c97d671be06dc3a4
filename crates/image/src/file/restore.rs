//! Rebuilding a process from a file: everything that ordinary code can do, up to executing the restorer.
//!
//! 1. It reads the file's tables, and compares what the image needs from outside: the kernel, the mapped files. Here,
//!    or in the process that fills the memory (`filler.rs`), it verifies the data.
//! 2. It opens files: those that are mapped under high numbers, those of the program under their own.
//! 3. It makes the plan: unmap everything, map and fill the image's memory, set what the kernel knows about it, go on.
//! 4. It executes the restorer from memory. The restorer does the plan's steps and jumps into the image's own code.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::IMAGE_FD;

use super::format::{self, MappingKind, OTHERS_WRITE, page_up};
use super::plan::{self, ANY, Head, MAY_FAIL, PARKED_NAMES, RESTORER, RESTORER_END, Step};
use super::reader::Image;
use super::scan;
use crate::pages::PAGE;
use crate::talk;
use filler::Filler;
use obstacle::Obstacle;
use open::Never;
use steps::Plan;

mod filler;
mod mapping;
mod obstacle;
mod open;
mod steps;
mod vdso;

pub use plan::EXIT_NOT_RESTORED;

static RESTORER_FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/restorer"));

/// Becomes the process of image `file`, called `path`. That fails if the file has another `digest`, or if `check`
/// objects to the agent's note in it. Returns only on failure, after it has told the agent: the exit code to use.
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
    let failed = Datagram::new(Kind::Failed, 0, 0, 0).with_text(&why.to_string());
    let _ = talk::send(IMAGE_FD, &failed, &[]);
    EXIT_NOT_RESTORED
}

fn try_restore(
    path: &Path,
    file: io::Result<fs::File>,
    digest: &[u8],
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Never, Obstacle> {
    let image = match file {
        Ok(file) => Image::of(path, file)?,
        Err(error) => return Err(Obstacle::with(format!("image file {}", path.display()))(error)),
    };
    check(&image.note).map_err(Obstacle::Note)?;
    image.must_be(digest)?;
    let kernels_code = kernels_code(&image)?;
    for file in &image.files {
        check_file(&image, file)?;
    }
    let filler = Filler::start(&image);
    let data = match &filler {
        Some(_) => image.plain_data()?,
        None => image.verified_data()?,
    };
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
fn own_pages() -> Result<[Option<(u64, u64)>; 3], Obstacle> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(Obstacle::with("/proc/self/maps"))?;
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

/// What takes the place of the kernel's own code, in which programs hold addresses. None: the code is the same, and can
/// be moved to where it was. Empty: this process has none.
fn kernels_code(image: &Image) -> Result<Option<Vec<u8>>, Obstacle> {
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
        return Err(Obstacle::InVdso);
    }
    let code = vdso::with_system_calls(theirs);
    code.map(Some).ok_or(Obstacle::UnknownVdso)
}

/// Checks that a mapped file is what it was: most of its pages are not in the image.
fn check_file(image: &Image, file: &format::File) -> Result<(), Obstacle> {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(image.text(file.path)));
    let shown = path.display().to_string();
    let metadata = fs::metadata(path).map_err(Obstacle::with(format!("{shown}, which the program had mapped")))?;
    let changed = |what: &str| {
        Err(Obstacle::Changed {
            path: shown.clone(),
            what: what.to_string(),
        })
    };
    if metadata.len() != file.size {
        return changed(&format!("{} bytes, were {}", metadata.len(), file.size));
    }
    if (metadata.mtime(), metadata.mtime_nsec() as u64) != (file.modified_s, file.modified_ns) {
        return changed("its time of modification");
    }
    if file.build_id_length > 0 {
        let mut page = [0u8; PAGE];
        let opened = fs::File::open(path).map_err(Obstacle::with(shown.clone()))?;
        std::os::unix::fs::FileExt::read_exact_at(&opened, &mut page, 0).map_err(Obstacle::with(shown.clone()))?;
        if scan::build_id(&page) != Some(&file.build_id[..file.build_id_length as usize]) {
            return changed("its build id");
        }
    }
    Ok(())
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
        mapping::plan(&mut plan, mapping, own, is_filled, opened);
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
    // No new executable file: to set one needs rights.
    numbers.extend(u32::MAX.to_le_bytes());
    let (set_mm, set_mm_map) = (35, 14);
    let at = plan.place(&numbers);
    plan.step(libc::SYS_prctl, &[set_mm, set_mm_map, at, numbers.len() as u64], 0);
}

// SAFETY: words only.
unsafe impl format::Record for Head {}
// SAFETY: words only.
unsafe impl format::Record for Step {}

const _: () = assert!(ANY > MAY_FAIL);
