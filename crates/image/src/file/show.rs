//! `resurgo image show`: what an image file holds, for people.

use std::fmt::Write;
use std::path::Path;

use resurgo_wire::text::{one_line, readable_size};

use super::format::{self, DESCRIPTOR_KINDS, DescriptorKind, MAPPING_KINDS, MappingKind, OTHERS_WRITE};
use super::reader::{Defect, Image};
use crate::pages;

/// Describes a file after having verified all of it.
pub fn show(path: &Path) -> Result<String, Defect> {
    let image = Image::open(path)?;
    image.verify()?;
    Ok(describe(&image))
}

fn describe(image: &Image) -> String {
    let header = &image.header;
    let mut text = String::new();
    let stored: u64 = image.extents.iter().map(|extent| extent.length).sum();
    let mapped: u64 = image.mappings.iter().map(|mapping| mapping.end - mapping.start).sum();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "image {} (format {}), {}, whole",
        header.number,
        header.version,
        readable_size(header.length)
    );
    let _ = writeln!(text, "written    {}", moment(header.unix_time));
    let _ = writeln!(text, "agent      {}", one_line(&image.note));
    let directory = shown(image.text(header.directory));
    let _ = writeln!(text, "directory  {directory} (umask {:03o})", header.umask);
    let _ = writeln!(text, "goes on    at {:x}, stack {:x}", header.entry, header.stack);
    let _ = writeln!(
        text,
        "memory     {} stored of {} mapped, in {} pieces",
        readable_size(stored),
        readable_size(mapped),
        image.extents.len()
    );
    if header.compression == format::ZSTD {
        let _ = writeln!(text, "compressed {}, by zstd", readable_size(header.data_length));
    }
    let _ = writeln!(text, "\n{} threads", image.threads.len());
    for thread in &image.threads {
        let end = thread
            .name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(thread.name.len());
        let name = shown(&thread.name[..end]);
        let main = if thread.is_main != 0 { " (main)" } else { "" };
        let _ = writeln!(text, "  {:>7} {name}{main}", thread.tid);
    }
    let _ = writeln!(text, "\n{} descriptors", image.descriptors.len());
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
        let _ = writeln!(text, "  {:>4} {what}", descriptor.fd);
    }
    let _ = writeln!(text, "\n{} mappings", image.mappings.len());
    let mut extents = image.extents.iter().peekable();
    for mapping in &image.mappings {
        let mut stored = 0;
        while let Some(extent) = extents.next_if(|extent| extent.address < mapping.end) {
            stored += extent.length;
        }
        let letter = |bit: i32, letter| {
            if mapping.protection & bit as u32 != 0 {
                letter
            } else {
                '-'
            }
        };
        let what = match MAPPING_KINDS[mapping.kind as usize] {
            _ if mapping.advice == pages::GUARD => "guard".into(),
            MappingKind::Anonymous if mapping.flags & libc::MAP_GROWSDOWN as u32 != 0 => "stack".to_string(),
            MappingKind::Anonymous => "".into(),
            MappingKind::File => shown(image.text(image.files[mapping.file as usize].path)),
            MappingKind::Node => "node memory".into(),
            MappingKind::Vvar => "[vvar]".into(),
            MappingKind::VvarClock => "[vvar_vclock]".into(),
            MappingKind::Vdso => "[vdso]".into(),
        };
        let _ = writeln!(
            text,
            "  {:x}-{:x} {}{}{}{} {:>10}, {:>10} stored  {what}",
            mapping.start,
            mapping.end,
            letter(libc::PROT_READ, 'r'),
            letter(libc::PROT_WRITE, 'w'),
            letter(libc::PROT_EXEC, 'x'),
            if mapping.flags & libc::MAP_SHARED as u32 != 0 {
                's'
            } else {
                'p'
            },
            readable_size(mapping.end - mapping.start),
            readable_size(stored),
        );
    }
    text
}

/// Text in an image, which may be anything.
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
