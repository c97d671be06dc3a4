//! The steps that make a mapping of the image and bring back its content.

use resurgo_wire::node_memory::NODE_MEMORY_FD;

use super::open::Opened;
use super::steps::Plan;
use crate::file::format::{Extent, MAPPING_KINDS, Mapping, MappingKind};
use crate::file::plan::{MAY_FAIL, PARKED};
use crate::pages::{self, GUARD, PAGE};

/// The most that is read at once: the kernel stops a little below 2 GiB.
const READ: u64 = 1 << 30;
/// The same for a copy that is given back piece by piece.
const READ_COPY: u64 = 16 << 20;

/// `extents`: those in the mapping. `is_filled`: the filler fills it later.
pub fn plan(plan: &mut Plan, mapping: &Mapping, extents: &[Extent], is_filled: bool, opened: &Opened) {
    let kind = MAPPING_KINDS[mapping.kind as usize];
    let (file, offset) = match kind {
        MappingKind::Anonymous => (-1, 0),
        MappingKind::File => (opened.mapped(mapping), mapping.offset),
        MappingKind::Node => (NODE_MEMORY_FD, mapping.offset),
        MappingKind::Vvar | MappingKind::VvarClock | MappingKind::Vdso => {
            return plan_kernels(plan, mapping, kind, opened);
        }
    };
    let protection = match kind {
        MappingKind::Node => mapping.protection,
        _ => while_filled(mapping, extents),
    };
    let anonymous = if kind == MappingKind::Anonymous {
        libc::MAP_ANONYMOUS
    } else {
        0
    };
    let flags = mapping.flags | (anonymous | libc::MAP_FIXED_NOREPLACE) as u32;
    let length = mapping.end - mapping.start;
    plan.map(mapping.start, length, protection, flags, file, offset);
    if mapping.advice != 0 {
        let advice = u64::from(mapping.advice);
        plan.step(libc::SYS_madvise, &[mapping.start, length, advice], MAY_FAIL);
    }
    match is_filled {
        true => plan_past(plan, extents, opened),
        false => plan_content(plan, extents, opened),
    }
    if protection != mapping.protection && !extents.is_empty() {
        plan_protection(plan, mapping);
    }
}

/// The rights that a mapping has until its content is there.
fn while_filled(mapping: &Mapping, extents: &[Extent]) -> u32 {
    if mapping.advice == GUARD && !pages::can_guard() {
        return libc::PROT_NONE as u32;
    }
    mapping.protection | if extents.is_empty() { 0 } else { libc::PROT_WRITE as u32 }
}

fn plan_protection(plan: &mut Plan, mapping: &Mapping) {
    let arguments = [
        mapping.start,
        mapping.end - mapping.start,
        u64::from(mapping.protection),
    ];
    plan.step(libc::SYS_mprotect, &arguments, 0);
}

/// The kernel's own pages: moved to where they were, or replaced by code that does the same.
fn plan_kernels(plan: &mut Plan, mapping: &Mapping, kind: MappingKind, opened: &Opened) {
    let length = mapping.end - mapping.start;
    let Some(code) = opened.code() else {
        let from = PARKED[kind as usize - MappingKind::Vvar as usize] as u64;
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [from, length, length, flags, mapping.start];
        return plan.step(libc::SYS_mremap, &arguments, mapping.start);
    };
    let flags = mapping.flags | (libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u32;
    if kind != MappingKind::Vdso {
        return plan.map(mapping.start, length, mapping.protection, flags, -1, 0);
    }
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u32;
    plan.map(mapping.start, length, writable, flags, -1, 0);
    plan.step(libc::SYS_pread64, &[code as u64, mapping.start, length, 0], length);
    plan_protection(plan, mapping);
}

/// A part that had other rights for a while must become one mapping with its neighbours again. The kernel joins them
/// only if it counts their pages together: if each got its first page while all were writable.
fn plan_past(plan: &mut Plan, extents: &[Extent], opened: &Opened) {
    let Some(first) = extents.first() else { return };
    let arguments = [opened.data() as u64, first.address, 1, first.offset];
    plan.step(libc::SYS_pread64, &arguments, 1);
    let forget = libc::MADV_DONTNEED as u64;
    plan.step(libc::SYS_madvise, &[first.address, PAGE as u64, forget], 0);
}

/// Reads the content, and never maps it from the image file: a page that the program gives back must be zero later.
fn plan_content(plan: &mut Plan, extents: &[Extent], opened: &Opened) {
    let most = if opened.is_copy() { READ_COPY } else { READ };
    let data = opened.data() as u64;
    for extent in extents {
        let mut done = 0;
        while done < extent.length {
            let bytes = (extent.length - done).min(most);
            let arguments = [data, extent.address + done, bytes, extent.offset + done];
            plan.step(libc::SYS_pread64, &arguments, bytes);
            if opened.is_copy() {
                // Nobody needs the copy twice.
                let give_back = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
                plan.step(
                    libc::SYS_fallocate,
                    &[data, give_back, extent.offset + done, bytes],
                    MAY_FAIL,
                );
            }
            done += bytes;
        }
    }
}
