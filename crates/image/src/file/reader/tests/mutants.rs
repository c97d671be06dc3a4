//! Damaged image files by the thousand, the same ones in every run. The reader refuses each with its name and the
//! fault, or reads it as if nothing had happened. Nothing else happens.

use super::parts::{EXTENTS, Parts, bytes_of_all, put_header};
use super::*;
use crate::pages::PAGE;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// Notes the largest piece of memory that a thread asks for.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static WATCHED: Watched = Watched;

/// The processor time of this thread: other work on the machine does not count.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes `time`.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A file in memory that mutants are written to.
struct Place {
    file: File,
    path: PathBuf,
}

/// All that a reader learns of an image.
#[derive(PartialEq)]
struct Reading {
    shown: String,
    records: String,
    memory: Vec<u8>,
}

impl Place {
    fn new() -> Place {
        let file = tempfile_in_memory();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        Place { file, path }
    }

    fn put(&self, bytes: &[u8]) {
        self.file.set_len(0).unwrap();
        self.file.write_all_at(bytes, 0).unwrap();
    }

    /// Reads what is there, watched.
    fn read(&self, length: usize) -> Result<Reading, String> {
        let start = worked();
        LARGEST.set(0);
        let result = self.read_all();
        let largest = LARGEST.get();
        let took = worked() - start;
        assert!(took < Duration::from_secs(20), "it takes {took:?}");
        assert!(
            largest <= 2 * length + (2 << 20),
            "{largest} bytes for a file of {length}"
        );
        if let Err(text) = &result {
            assert!(
                text.starts_with(&format!("image file {}: ", self.path.display())) && text.len() < 400,
                "{text}"
            );
        }
        result
    }

    fn read_all(&self) -> Result<Reading, String> {
        let shown = shown(&self.path).map_err(|defect| defect.to_string())?;
        let image = Image::open(&self.path).map_err(|defect| defect.to_string())?;
        let data = image.verified_data().map_err(|defect| defect.to_string())?;
        let mut memory = Vec::new();
        for extent in &image.extents {
            let at = memory.len();
            memory.resize(at + extent.length as usize, 0);
            data.read_exact_at(&mut memory[at..], extent.offset).unwrap();
        }
        assert!(memory.len() as u64 <= image.header.plain_length);
        assert!(data.metadata().unwrap().len() >= DATA_OFFSET + image.header.plain_length);
        let records = format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            image.header, image.mappings, image.files, image.descriptors, image.threads, image.extents, image.auxv
        );
        Ok(Reading { shown, records, memory })
    }
}

/// Numbers that lengths, counts and places never are.
fn hostile(random: &mut Random) -> [u8; 8] {
    let values = [
        0,
        1,
        4095,
        4096,
        1 << 20,
        1 << 40,
        1 << 63,
        u64::MAX,
        u64::MAX - 4095,
        u64::MAX / 24,
        random.0,
    ];
    values[random.below(values.len())].to_le_bytes()
}

/// Damages a file as disks, file systems, and programs that copy files do. `sibling`: another file of the same process.
fn damage(whole: &[u8], sibling: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let pages = bytes.len() / PAGE;
    // Header, note and tables are small and get half of the blows.
    let at = match random.below(4) {
        0 => random.below(2 * PAGE),
        1 => bytes.len() - 1 - random.below(4 * PAGE),
        _ => random.below(bytes.len()),
    };
    let run = (1 + random.below(3 * PAGE)).min(bytes.len() - at);
    let (one, other) = (random.below(pages), random.below(pages));
    match random.below(12) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => (0..8).for_each(|_| {
            let at = random.below(whole.len());
            bytes[at] ^= 1 << random.below(8);
        }),
        3 => bytes[at..at + run]
            .iter_mut()
            .for_each(|byte| *byte = random.below(256) as u8),
        4 => bytes[at..at + run].fill(0),
        5 => bytes.truncate(at),
        6 => bytes.extend(vec![random.below(2) as u8; 1 + random.below(2 * PAGE)]),
        7 => bytes.copy_within(one * PAGE..(one + 1) * PAGE, other * PAGE),
        8 => (0..PAGE).for_each(|at| bytes.swap(one * PAGE + at, other * PAGE + at)),
        // Pages that were brought up to date, or were not.
        9 => {
            let end = (one + 1 + random.below(pages / 3)).min(sibling.len() / PAGE).min(pages);
            if one < end {
                bytes[one * PAGE..end * PAGE].copy_from_slice(&sibling[one * PAGE..end * PAGE]);
            }
        }
        10 => drop(bytes.drain(one * PAGE..(one + 1) * PAGE)),
        _ => {
            let at = (at & !7).min(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&hostile(random));
        }
    }
    bytes
}

/// A forged file: its checksums are right.
fn forge(parts: &Parts, random: &mut Random) -> Vec<u8> {
    let mut parts = parts.clone();
    let kind = random.below(6);
    for _ in 0..1 + random.below(3) {
        let table = &mut parts.tables[random.below(7)];
        let words = table.len() / 8;
        match kind {
            0 if words > 0 => {
                let at = 8 * random.below(words);
                table[at..at + 8].copy_from_slice(&hostile(random));
            }
            1 if words > 0 => {
                let (one, other) = (8 * random.below(words), 8 * random.below(words));
                (0..8).for_each(|at| table.swap(one + at, other + at));
            }
            // Extents in another order, or at the same place of the file.
            2 => {
                let extents = &mut parts.tables[EXTENTS];
                let count = extents.len() / 24;
                let (one, other) = (24 * random.below(count), 24 * random.below(count));
                let from = 8 * random.below(3);
                (from..24).for_each(|at| extents.swap(one + at, other + at));
            }
            // What lies in the data: of a frame of zstd, anything.
            3 => {
                let limit = [32, parts.packed.len()][random.below(2)];
                parts.packed[random.below(limit)] ^= 1 << random.below(8);
            }
            _ => {}
        }
    }
    let mut file = parts.file();
    let mut first: [u8; PAGE] = *file.first_chunk().unwrap();
    match kind {
        5 => {
            let mut header: Header = record_at(&first, 0).unwrap();
            match random.below(4) {
                0 => header.version = [0, 1, 2, 4, u32::MAX][random.below(5)],
                1 => std::mem::swap(&mut header.sums, &mut header.tables),
                2 => header.plain_length -= PAGE as u64,
                _ => header.plain_length += PAGE as u64,
            }
            put_header(&mut first, &header);
        }
        4 => {
            for _ in 0..1 + random.below(3) {
                let at = 8 * (2 + random.below(size_of::<Header>() / 8 - 2));
                first[at..at + 8].copy_from_slice(&hostile(random));
            }
            format::seal(&mut first);
        }
        _ => {}
    }
    file[..PAGE].copy_from_slice(&first);
    file
}

/// True when all that differs is in places of the data that no extent names.
fn differs_in_free_places(whole: &[u8], mutant: &[u8]) -> bool {
    let header: Header = record_at(whole, 0).unwrap();
    let tables = &whole[header.tables.offset as usize..];
    let extents: Vec<Extent> = table(tables, header.index.extents).unwrap();
    let data = DATA_OFFSET as usize..(DATA_OFFSET + header.data_length) as usize;
    whole.len() == mutant.len()
        && (0..whole.len()).filter(|at| whole[*at] != mutant[*at]).all(|at| {
            let named = |extent: &Extent| (extent.offset..extent.offset + extent.length).contains(&(at as u64));
            header.compression == PLAIN && data.contains(&at) && !extents.iter().any(named)
        })
}

/// Mutants of a plain and of a compressed image. How many of those were read all the same that are damaged, and how
/// many that are forged.
fn mutants(count: usize, seed: u64) -> (usize, usize) {
    let place = Place::new();
    let mut random = Random(seed);
    let (mut harmless, mut credible) = (0, 0);
    for compression in [PLAIN, ZSTD] {
        let parts = Parts::new(compression, &mut random);
        let (whole, sibling) = (parts.file(), parts.sibling().file());
        place.put(&whole);
        let good = place.read(whole.len()).unwrap();
        for number in 0..count {
            let told = Told {
                seed,
                compression,
                number,
            };
            let mutant = damage(&whole, &sibling, &mut random);
            place.put(&mutant);
            if let Ok(reading) = place.read(mutant.len()) {
                assert!(reading == good && differs_in_free_places(&whole, &mutant));
                harmless += usize::from(mutant != whole);
            }
            let forged = forge(&parts, &mut random);
            place.put(&forged);
            credible += usize::from(place.read(forged.len()).is_ok());
            drop(told);
        }
    }
    (harmless, credible)
}

/// Says which mutant it was when a test fails.
struct Told {
    seed: u64,
    compression: u32,
    number: usize,
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Told {
                seed,
                compression,
                number,
            } = self;
            eprintln!("seed {seed}, compression {compression}, mutant {number}");
        }
    }
}

#[test]
fn mutants_are_refused_or_read_as_if_nothing_had_happened() {
    let (harmless, credible) = mutants(3000, 20_261_122);
    assert!(
        harmless > 10 && credible > 300,
        "{harmless} harmless, {credible} credible"
    );
}

/// `make soak`: MUTANTS of each kind from seed SEED.
#[test]
#[ignore = "takes minutes"]
fn many_mutants() {
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (harmless, credible) = mutants(number("MUTANTS", 300_000) as usize, number("SEED", 7) + 1);
    println!("{harmless} damaged in places that nobody needs, {credible} forged ones that make sense");
}

/// They would take long to read.
#[test]
fn many_pieces_of_memory_at_one_place_are_refused() {
    let mut parts = Parts::new(PLAIN, &mut Random(1));
    let mappings = parts.tables[0].chunks(size_of::<Mapping>());
    let everywhere = mappings.map(|bytes| Extent {
        address: record_at::<Mapping>(bytes, 0).unwrap().start,
        length: 16 * PAGE as u64,
        offset: DATA_OFFSET,
    });
    parts.tables[EXTENTS] = bytes_of_all(&everywhere.collect::<Vec<_>>());
    let place = Place::new();
    let file = parts.file();
    place.put(&file);
    assert!(
        place
            .read(file.len())
            .is_err_and(|text| text.contains("two pieces of memory"))
    );
}

#[test]
fn an_elf_file_may_say_anything_of_its_build_id() {
    let mut page = [0; PAGE];
    File::open("/proc/self/exe")
        .unwrap()
        .read_exact_at(&mut page, 0)
        .unwrap();
    assert!(crate::file::scan::build_id(&page).is_some());
    let mut random = Random(99);
    for _ in 0..20_000 {
        let mut mutant = page;
        for _ in 0..1 + random.below(4) {
            let limit = [1024, PAGE - 8][random.below(2)];
            let at = random.below(limit);
            mutant[at..at + 8].copy_from_slice(&hostile(&mut random));
        }
        crate::file::scan::build_id(&mutant);
    }
}
