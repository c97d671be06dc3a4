//! `resurgo image show`: what an image file holds, for people.

use std::fmt::Write;
use std::path::Path;

use super::format::{self, DESCRIPTOR_KINDS, DescriptorKind, MAPPING_KINDS, MappingKind, OTHERS_WRITE};
use super::reader::{Defect, Image};

/// Describes a file after having verified all of it.
pub fn show(path: &Path) -> Result<String, Defect> {
    let image = Image::open(path)?;
    image.verify()?;
    Ok(describe(&image))
}

fn describe(image: &Image) -> String {
    let header = &image.header;
    let mut text = String::new();
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let stored: u64 = image.extents.iter().map(|extent| extent.length).sum();
    let mapped: u64 = image.mappings.iter().map(|mapping| mapping.end - mapping.start).sum();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "image {} (format {}), {} KiB, whole",
        header.number,
        header.version,
        kib(header.length)
    );
    let _ = writeln!(text, "written    {} s after 1970", header.unix_time / 1_000_000_000);
    let _ = writeln!(text, "agent      {}", image.note);
    let directory = String::from_utf8_lossy(image.text(header.directory));
    let _ = writeln!(text, "directory  {directory} (umask {:03o})", header.umask);
    let _ = writeln!(text, "goes on    at {:x}, stack {:x}", header.entry, header.stack);
    let _ = writeln!(
        text,
        "memory     {} KiB stored of {} KiB mapped, in {} pieces",
        kib(stored),
        kib(mapped),
        image.extents.len()
    );
    if header.compression == format::ZSTD {
        let _ = writeln!(text, "compressed {} KiB, by zstd", kib(header.data_length));
    }
    let _ = writeln!(text, "\n{} threads", image.threads.len());
    for thread in &image.threads {
        let end = thread
            .name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(thread.name.len());
        let name = String::from_utf8_lossy(&thread.name[..end]);
        let main = if thread.is_main != 0 { " (main)" } else { "" };
        let _ = writeln!(text, "  {:>7} {name}{main}", thread.tid);
    }
    let _ = writeln!(text, "\n{} descriptors", image.descriptors.len());
    for descriptor in &image.descriptors {
        let path = String::from_utf8_lossy(image.text(descriptor.path));
        let what = match DESCRIPTOR_KINDS[descriptor.kind as usize] {
            DescriptorKind::Output if descriptor.same_as == 2 => "standard error".to_string(),
            DescriptorKind::Output => "standard output".to_string(),
            DescriptorKind::Input => "standard input".to_string(),
            DescriptorKind::File if descriptor.flags & OTHERS_WRITE != 0 => {
                format!("{path} at {}, written to by others as well", descriptor.offset)
            }
            DescriptorKind::File => format!("{path} at {}", descriptor.offset),
            DescriptorKind::Device => path.into_owned(),
            DescriptorKind::Given => "given by the agent".to_string(),
            DescriptorKind::Leftover => format!("{path} (private memory now)"),
            DescriptorKind::Pipe | DescriptorKind::Removed => format!("{path}, {} bytes", descriptor.content.length),
            DescriptorKind::Object => path.into_owned(),
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
            _ if mapping.advice == format::GUARD => "guard".into(),
            MappingKind::Anonymous if mapping.flags & libc::MAP_GROWSDOWN as u32 != 0 => "stack".into(),
            MappingKind::Anonymous => "".into(),
            MappingKind::File => String::from_utf8_lossy(image.text(image.files[mapping.file as usize].path)),
            MappingKind::Node => "node memory".into(),
            MappingKind::Vvar => "[vvar]".into(),
            MappingKind::VvarClock => "[vvar_vclock]".into(),
            MappingKind::Vdso => "[vdso]".into(),
        };
        let _ = writeln!(
            text,
            "  {:x}-{:x} {}{}{}{} {:>9} KiB, {:>9} stored  {what}",
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
            kib(mapping.end - mapping.start),
            kib(stored),
        );
    }
    text
}
