use super::*;
use crate::file::MOST_COMPRESSED;
use crate::file::helper::Pipe;
use crate::file::writer::{self, About};
use crate::pages::PAGE;
use crate::tests::{Alone, alone};
use crate::zone;
use std::os::fd::AsRawFd;

mod mutants;
mod parts;

/// A file that a test may damage. It is an image of a copy of the test's own process.
struct Victim {
    path: PathBuf,
    whole: Vec<u8>,
}

/// A note that is so many bytes longer than it need be.
fn note(more: usize) -> format::Note {
    format::Note::new(&format!("{{\"job\":\"test{}\"}}", "-".repeat(more))).unwrap()
}

fn shown(path: &Path) -> Result<String, Defect> {
    crate::file::show(path, &|note| Ok(format!("{note}\n")))
}

fn new_file(path: &Path) -> File {
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap();
    file.write_all_at(&note(0).page, format::NOTE_OFFSET).unwrap();
    file
}

/// Opens a file to write over it.
fn again(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Writes image `number` of a copy of this process, compressed at `level`.
fn write_copy(_: &Alone, file: &File, number: u64, level: u8) {
    let node = tempfile_in_memory();
    // The copy's own stack changes while it writes.
    let here = (&raw const node as usize) & !4095;
    let about = About {
        number,
        entry: 1,
        stack: 2,
        thread_pointer: 3,
        level,
        hole: (here - (512 << 10), here + 8192),
    };
    // SAFETY: the copy makes raw system calls only, and ends.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            crate::threads::leave_rseq();
            libc::dup2(node.as_raw_fd(), resurgo_wire::node_memory::NODE_MEMORY_FD);
            // Every other image goes to the disk through the kernel's cache.
            let pipe = if number.is_multiple_of(2) { None } else { Pipe::open() };
            let result = writer::write(file.as_raw_fd(), pipe, &about, &mut || {});
            libc::_exit(result.map_or_else(|trouble| 100 + trouble.errno.min(100), |_| 0));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!(status, 0, "the image was written");
}

impl Victim {
    fn new(name: &str, level: u8) -> Victim {
        Victim::within(&std::env::temp_dir(), name, level)
    }

    fn within(directory: &Path, name: &str, level: u8) -> Victim {
        let path = directory.join(format!("resurgo-image-{name}-{level}-{}", std::process::id()));
        write_copy(&alone(), &new_file(&path), 7, level);
        Victim {
            whole: std::fs::read(&path).unwrap(),
            path,
        }
    }

    fn check(&self) -> Result<Image, Defect> {
        let image = Image::open(&self.path)?;
        image.verify()?;
        Ok(image)
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        let file = File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn tempfile_in_memory() -> File {
    use std::os::fd::FromRawFd;
    // SAFETY: a new descriptor.
    unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) }
}

/// xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn what_is_written_can_be_read() {
    let marker: Vec<u64> = (0..100_000).map(|index| index * 0x9e37_79b9 + 1).collect();
    let zeros = vec![0u64; 1 << 20];
    let touched = std::hint::black_box(&zeros).iter().sum::<u64>();
    let (disk, memory) = (std::env::temp_dir(), PathBuf::from("/dev/shm"));
    let places = [0, 1, 3, MOST_COMPRESSED].map(|level| (level, &disk));
    for (level, directory) in places.into_iter().chain([(0, &memory), (1, &memory)]) {
        let victim = Victim::within(directory, "read", level);
        let image = victim.check().unwrap();
        assert_eq!((image.header.number, touched), (7, 0));
        assert_eq!(image.note, "{\"job\":\"test\"}");
        assert!(image.files.iter().any(|file| file.build_id_length == 20));
        let bytes: Vec<u8> = marker.iter().flat_map(|word| word.to_le_bytes()).collect();
        let start = marker.as_ptr() as u64;
        assert!(stored(&victim.path, start, bytes.len()) == bytes, "level {level}");
        let zero = (zeros.as_ptr() as u64 + (4 << 20)) & !4095;
        let mut extents = image.extents.iter();
        assert!(!extents.any(|extent| extent.address <= zero && zero < extent.address + extent.length));
        assert!(image.text(image.header.vdso).starts_with(b"\x7fELF"));
        let shown = shown(&victim.path).unwrap();
        assert!(
            shown.contains(&format!("image 7 (format {FORMAT_VERSION})")) && shown.contains("by zstd") == (level > 0)
        );
        let header = image.header;
        assert_eq!(header.data_length < header.plain_length, level > 0);
        copy_of_parts(&victim.path);
    }
}

/// A file that has the parts of an image is that image. Returns how much of the file they are.
fn copy_of_parts(path: &Path) -> u64 {
    let image = Image::open(path).unwrap();
    let copy = tempfile_in_memory();
    copy.set_len(image.header.length).unwrap();
    let mut length = 0;
    for part in image.parts() {
        let mut bytes = vec![0; (part.end - part.start) as usize];
        image.file.read_exact_at(&mut bytes, part.start).unwrap();
        copy.write_all_at(&bytes, part.start).unwrap();
        length += part.end - part.start;
    }
    let copy = Image::of(path, copy).unwrap();
    copy.verify().unwrap();
    copy.must_be(&image.digest).unwrap();
    length
}

#[test]
fn every_damage_is_noticed() {
    let victim = Victim::new("damage", 0);
    let mut random = Random(20_261_122);
    let length = victim.whole.len();
    for round in 0..400 {
        // The tables and the header are small and get two thirds of the blows.
        let at = match round % 3 {
            0 => random.below(length),
            1 => random.below(2 * PAGE),
            _ => length - 1 - random.below(8 * PAGE),
        };
        let bit = 1 << random.below(8);
        victim.put(at, &[victim.whole[at] ^ bit]);
        let defect = victim.check().expect_err("a flipped bit");
        assert!(defect.to_string().contains("resurgo-image-damage"), "{defect}");
        victim.put(at, &victim.whole[at..=at]);
    }
    assert!(victim.check().is_ok());
    for _ in 0..200 {
        let file = File::options().write(true).open(&victim.path).unwrap();
        let cut = random.below(length);
        file.set_len(cut as u64).unwrap();
        assert!(victim.check().is_err(), "cut to {cut}");
        // A hole where something was: a file whose end never came to the disk.
        file.set_len(length as u64).unwrap();
        let lost = victim.whole[cut..].iter().any(|byte| *byte != 0);
        assert_eq!(victim.check().is_err(), lost, "zeros from {cut}");
        victim.put(cut, &victim.whole[cut..]);
    }
    let file = File::options().write(true).open(&victim.path).unwrap();
    file.set_len(length as u64 + 1).unwrap();
    assert!(matches!(victim.check(), Err(Defect::Length { .. })));
}

/// The same file with a note that is so many bytes longer.
fn with_note(whole: &[u8], more: usize) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let note = note(more);
    bytes[format::NOTE_OFFSET as usize..][..PAGE].copy_from_slice(&note.page);
    bytes.extend(note.rest);
    bytes
}

#[test]
fn a_note_may_be_longer_than_its_page() {
    let victim = Victim::new("note", 0);
    let (empty, length) = (note(0).page[..4].to_vec(), victim.whole.len());
    let empty = u32::from_le_bytes(empty.try_into().unwrap()) as usize;
    let room = PAGE - 20 - empty;
    for (more, pages) in [
        (room, 0),
        (room + 1, 1),
        (room + PAGE - 16, 1),
        (room + PAGE - 15, 2),
        (1 << 20, 256),
    ] {
        let bytes = with_note(&victim.whole, more);
        assert_eq!(bytes.len(), length + pages * PAGE, "{more}");
        std::fs::write(&victim.path, &bytes).unwrap();
        let text = victim.check().unwrap().note;
        assert_eq!((text.len(), text.ends_with("-\"}")), (empty + more, true), "{more}");
        let mut random = Random(more as u64);
        for at in (0..10).map(|_| random.below(bytes.len() - length + 1) + length - 1) {
            let Some(byte) = bytes.get(at).filter(|_| at >= length) else {
                continue;
            };
            victim.put(at, &[byte ^ 4]);
            assert!(matches!(victim.check(), Err(Defect::Sum { part: "note", .. })), "{at}");
            victim.put(at, &[*byte]);
            let file = again(&victim.path);
            file.set_len(at as u64).unwrap();
            assert!(matches!(victim.check(), Err(Defect::Length { .. })), "cut to {at}");
            victim.put(at, &bytes[at..]);
        }
        assert!(victim.check().is_ok());
    }
    // The image that was written over the file has a shorter note than the one before.
    write_copy(&alone(), &again(&victim.path), 8, 0);
    assert!(
        matches!(victim.check(), Err(Defect::Length { .. })),
        "its rest is missing"
    );
    let page = note(1).page;
    victim.put(format::NOTE_OFFSET as usize, &page);
    assert!(victim.check().is_ok());
}

#[test]
fn files_of_the_format_before_are_read_and_written_over() {
    let victim = Victim::new("older", 0);
    for (version, is_read) in [
        (6, false),
        (7, true),
        (8, true),
        (FORMAT_VERSION, true),
        (FORMAT_VERSION + 1, false),
    ] {
        let mut first: [u8; PAGE] = *victim.whole.first_chunk().unwrap();
        first[8..12].copy_from_slice(&u32::to_le_bytes(version));
        format::seal(&mut first);
        victim.put(0, &first);
        let shown = shown(&victim.path);
        match is_read {
            true => assert!(shown.unwrap().starts_with(&format!("image 7 (format {version})"))),
            false => assert!(
                shown
                    .unwrap_err()
                    .to_string()
                    .ends_with("and this resurgo reads 7 to 9")
            ),
        }
        assert_eq!(format::is_image(&first), is_read);
    }
}

#[test]
fn other_versions_and_other_files_are_told_apart() {
    let victim = Victim::new("version", 0);
    victim.put(8, &10u32.to_le_bytes());
    assert!(matches!(victim.check(), Err(Defect::Version { found: 10, .. })));
    victim.put(0, b"\x7fELF");
    assert!(matches!(victim.check(), Err(Defect::Foreign { .. })));
    assert!(matches!(
        Image::open(Path::new("/nowhere/at all")),
        Err(Defect::Unreadable { .. })
    ));
    assert!(matches!(
        Image::open(Path::new("/dev/null")),
        Err(Defect::Foreign { .. })
    ));
}

/// A file with right checksums whose content no writer made. The reader may accept what it cannot check, but it must
/// look at everything without a crash.
#[test]
fn nonsense_with_right_checksums_does_no_harm() {
    let victim = Victim::new("nonsense", 0);
    let header: Header = record_at(&victim.whole, 0).unwrap();
    let tables = header.tables.offset as usize..header.length as usize;
    let mut random = Random(77);
    let mut refused = 0;
    for round in 0..600 {
        let mut head: [u8; PAGE] = victim.whole[..PAGE].try_into().unwrap();
        let mut body = victim.whole[tables.clone()].to_vec();
        for _ in 0..1 + random.below(4) {
            let values = [0, 1, u64::MAX, 1 << 63, 4096, random.0, u64::from(u32::MAX)];
            let value = values[random.below(values.len())].to_le_bytes();
            if round % 2 == 0 {
                let at = 16 + 8 * random.below((size_of::<Header>() - 16) / 8);
                head[at..at + 8].copy_from_slice(&value);
            } else {
                let at = 8 * random.below(body.len() / 8);
                body[at..at + 8].copy_from_slice(&value);
            }
        }
        let mut changed: Header = record_at(&head, 0).unwrap();
        if round % 2 == 1 {
            changed.tables.sum = sum_of(&body);
            head[..size_of::<Header>()].copy_from_slice(format::bytes_of(&changed));
        }
        format::seal(&mut head);
        victim.put(0, &head);
        victim.put(tables.start, &body);
        refused += u32::from(shown(&victim.path).is_err());
    }
    assert!(refused > 200, "{refused} of 600 refused");
}

/// What an image has of a range of memory; pages that it does not have are zeros.
fn stored(path: &Path, from: u64, bytes: usize) -> Vec<u8> {
    let image = Image::open(path).unwrap();
    let data = image.verified_data().unwrap();
    let mut memory = vec![0; bytes];
    for extent in &image.extents {
        let (start, end) = (
            extent.address.max(from),
            (extent.address + extent.length).min(from + bytes as u64),
        );
        if start < end {
            let to = &mut memory[(start - from) as usize..(end - from) as usize];
            data.read_exact_at(to, extent.offset + (start - extent.address))
                .unwrap();
        }
    }
    memory
}

/// Changes that a program makes to its memory between two images.
fn change(memory: *mut u8, pages: usize, random: &mut Random, round: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    for turn in 0..8 {
        let (first, count) = (random.below(pages - 40), 1 + random.below(40));
        // SAFETY: inside of the test's own mapping.
        unsafe {
            let place = memory.add(first * PAGE);
            match random.below(8) {
                0 => assert_eq!(libc::madvise(place.cast(), count * PAGE, libc::MADV_DONTNEED), 0),
                1 => assert_eq!(
                    libc::mmap(place.cast(), count * PAGE, rights, flags, -1, 0),
                    place.cast()
                ),
                2 => place.write_bytes(0, count * PAGE),
                _ => (0..count).for_each(|page| place.add(page * PAGE + turn * 8).write((1 + round % 250) as u8)),
            }
        }
    }
}

#[test]
fn a_file_that_is_written_over_is_the_same_as_a_new_one() {
    const PAGES: usize = 1500;
    const ROUNDS: usize = 18;
    let alone = alone();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, and all of it is ours.
    let memory = unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), (PAGES + 1) * PAGE, rights, flags, -1, 0).cast::<u8>();
        memory.add(PAGES * PAGE).write(7);
        (0..PAGES / 2).for_each(|page| memory.add(page * PAGE).write(7));
        memory
    };
    crate::changes::find_own();
    let directory = std::env::temp_dir();
    // As the agent does: the oldest of three is written over.
    let paths = [0, 1, 2, 3].map(|index| directory.join(format!("resurgo-image-over-{index}-{}", std::process::id())));
    paths.iter().for_each(|path| drop(new_file(path)));
    let mut random = Random(4242);
    for round in 1..=ROUNDS {
        change(memory, PAGES, &mut random, round);
        crate::changes::note(round as u64);
        let over = round % 3;
        // One image is never written.
        if round != 11 {
            write_copy(&alone, &again(&paths[over]), round as u64, 0);
            write_copy(&alone, &new_file(&paths[3]), round as u64, 0);
            let address = memory as u64;
            let [one, other] = [&paths[over], &paths[3]].map(|path| stored(path, address, PAGES * PAGE));
            // SAFETY: mapped, and nobody writes there.
            let now = unsafe { std::slice::from_raw_parts(memory, PAGES * PAGE) };
            assert!(other == now, "round {round}: a new file");
            assert!(one == now, "round {round}: a file that was written over");
            let [one, other] = [&paths[over], &paths[3]].map(|path| std::fs::metadata(path).unwrap().len());
            assert!(one < 3 * other, "round {round}: {one} bytes, {other} in a new file");
            let [one, other] = [&paths[over], &paths[3]].map(|path| copy_of_parts(path));
            assert!(
                one < other + other / 4,
                "round {round}: parts of {one} bytes, {other} in a new file"
            );
        }
    }
    // Where the kernel tells what has changed, nothing else is written: damage to it stays, and is noticed.
    let over = (ROUNDS + 1) % 3;
    let image = Image::open(&paths[over]).unwrap();
    let still = (memory as usize + PAGES * PAGE) as u64;
    let extents = &mut image.extents.iter();
    let extent = extents.find(|extent| (extent.address..extent.address + extent.length).contains(&still));
    let extent = extent.expect("a page that never changes is stored");
    again(&paths[over])
        .write_all_at(b"!", extent.offset + (still - extent.address) + 100)
        .unwrap();
    crate::changes::note(ROUNDS as u64 + 1);
    write_copy(&alone, &again(&paths[over]), ROUNDS as u64 + 1, 0);
    let damaged = Image::open(&paths[over]).unwrap().verify().is_err();
    assert_eq!(damaged, crate::changes::name() != 0);
    crate::changes::forget();
    zone::clear();
    drop(alone);
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    // SAFETY: the test's own mapping.
    unsafe { libc::munmap(memory.cast(), (PAGES + 1) * PAGE) };
}
