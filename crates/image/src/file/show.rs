//! `resurgo image show`: what an image file holds, for people.

use std::fmt::{self, Write};
use std::path::Path;

use resurgo_wire::text::{one_line, readable_size};

use super::format::{self, DESCRIPTOR_KINDS, DescriptorKind, MAPPING_KINDS, Mapping, MappingKind, OTHERS_WRITE};
use super::reader::{Defect, Image};
use crate::pages::GUARD;

/// Verifies all of a file, then describes it. `describe_note` makes lines of the agent's note, or says why it cannot.
pub fn show(path: &Path, describe_note: &dyn Fn(&str) -> Result<String, String>) -> Result<String, Defect> {
    let image = Image::open(path)?;
    image.verify()?;
    match describe_note(&image.note) {
        Ok(note) => Ok(describe(&image, &note)),
        Err(why) => Err(Defect::Note { path: image.path, why }),
    }
}

fn describe(image: &Image, note: &str) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = describe_whole(&mut text, image, note)
        .and_then(|()| list_threads(&mut text, image))
        .and_then(|()| list_descriptors(&mut text, image))
        .and_then(|()| list_mappings(&mut text, image));
    text
}

fn describe_whole(text: &mut String, image: &Image, note: &str) -> fmt::Result {
    let header = &image.header;
    let stored: u64 = image.extents.iter().map(|extent| extent.length).sum();
    let mapped: u64 = image.mappings.iter().map(|mapping| mapping.end - mapping.start).sum();
    let (number, format, length) = (header.number, header.version, readable_size(header.length));
    writeln!(text, "image {number} (format {format}), {length}, whole")?;
    writeln!(text, "written    {}", moment(header.unix_time))?;
    text.push_str(note);
    let directory = shown(image.text(header.directory));
    writeln!(text, "directory  {directory} (umask {:03o})", header.umask)?;
    writeln!(text, "goes on    at {:x}, stack {:x}", header.entry, header.stack)?;
    let (stored, mapped, pieces) = (readable_size(stored), readable_size(mapped), image.extents.len());
    writeln!(
        text,
        "memory     {stored} stored of {mapped} mapped, in {pieces} pieces"
    )?;
    if header.compression == format::ZSTD {
        writeln!(text, "compressed {}, by zstd", readable_size(header.data_length))?;
    }
    Ok(())
}

fn list_threads(text: &mut String, image: &Image) -> fmt::Result {
    writeln!(text, "\n{} threads", image.threads.len())?;
    for thread in &image.threads {
        let name = thread.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let main = if thread.is_main != 0 { " (main)" } else { "" };
        writeln!(text, "  {:>7} {}{main}", thread.tid, shown(name))?;
    }
    Ok(())
}

fn list_descriptors(text: &mut String, image: &Image) -> fmt::Result {
    writeln!(text, "\n{} descriptors", image.descriptors.len())?;
    for descriptor in &image.descriptors {
        let path = shown(image.text(descriptor.path));
        let what = match DESCRIPTOR_KINDS[descriptor.kind as usize] {
            DescriptorKind::Output if descriptor.same_as == 2 => "standard error".to_string(),
            DescriptorKind::Output => "standard output".to_string(),
            DescriptorKind::Input => "standard input".to_string(),
            DescriptorKind::File if descriptor.flags & OTHERS_WRITE != 0 => {
                format!("{path} at {}, written to by others as well", descriptor.offset)
            }
            DescriptorKind::File => format!("{path} at {}", descriptor.offset),
            DescriptorKind::Device => path,
            DescriptorKind::Given => "given by the agent".to_string(),
            DescriptorKind::Leftover => format!("{path} (private memory now)"),
            DescriptorKind::Pipe | DescriptorKind::Removed => format!("{path}, {} bytes", descriptor.content.length),
            DescriptorKind::Object => path,
        };
        writeln!(text, "  {:>4} {what}", descriptor.fd)?;
    }
    Ok(())
}

fn list_mappings(text: &mut String, image: &Image) -> fmt::Result {
    writeln!(text, "\n{} mappings", image.mappings.len())?;
    let mut extents = image.extents.iter().peekable();
    for mapping in &image.mappings {
        let mut stored = 0;
        while let Some(extent) = extents.next_if(|extent| extent.address < mapping.end) {
            stored += extent.length;
        }
        let what = match MAPPING_KINDS[mapping.kind as usize] {
            _ if mapping.advice == GUARD => "guard".to_string(),
            MappingKind::Anonymous if mapping.flags & libc::MAP_GROWSDOWN as u32 != 0 => "stack".to_string(),
            MappingKind::Anonymous => String::new(),
            MappingKind::File => shown(image.text(image.files[mapping.file as usize].path)),
            MappingKind::Node => "node memory".to_string(),
            MappingKind::Vvar => "[vvar]".to_string(),
            MappingKind::VvarClock => "[vvar_vclock]".to_string(),
            MappingKind::Vdso => "[vdso]".to_string(),
        };
        let (start, end, rights) = (mapping.start, mapping.end, rights(mapping));
        let (bytes, stored) = (readable_size(end - start), readable_size(stored));
        writeln!(
            text,
            "  {start:x}-{end:x} {rights} {bytes:>10}, {stored:>10} stored  {what}"
        )?;
    }
    Ok(())
}

/// As /proc/self/maps has them.
fn rights(mapping: &Mapping) -> String {
    let is_shared = mapping.flags & libc::MAP_SHARED as u32 != 0;
    let has = |bit: i32| mapping.protection & bit as u32 != 0;
    let letters = [
        (has(libc::PROT_READ), 'r'),
        (has(libc::PROT_WRITE), 'w'),
        (has(libc::PROT_EXEC), 'x'),
    ];
    let letters = letters.map(|(has, letter)| if has { letter } else { '-' });
    letters.into_iter().chain([if is_shared { 's' } else { 'p' }]).collect()
}

/// Text from an image, which may be anything.
fn shown(text: &[u8]) -> String {
    one_line(&String::from_utf8_lossy(text))
}

/// A moment as the clocks here show it, from nanoseconds since 1970.
fn moment(unix_time: u64) -> String {
    let seconds = (unix_time / 1_000_000_000) as libc::time_t;
    // SAFETY: all fields of `tm` are numbers or a pointer that may be null, so zeros are a value.
    let mut at: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to variables of this function.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut at) }.is_null() {
        return format!("{seconds} s after 1970");
    }
    let east = at.tm_gmtoff / 60;
    format!(
        "{}-{:02}-{:02} {:02}:{:02}:{:02} {}{:02}{:02}",
        at.tm_year + 1900,
        at.tm_mon + 1,
        at.tm_mday,
        at.tm_hour,
        at.tm_min,
        at.tm_sec,
        if east < 0 { '-' } else { '+' },
        east.abs() / 60,
        east.abs() % 60,
    )
}
