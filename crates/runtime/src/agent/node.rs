//! The node memory as the agent sees it: created here, its fields written and read one at a time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use resurgo_wire::control::{Job, LifeStatistics};
use resurgo_wire::counters::{Costs, Sizes};
use resurgo_wire::node_memory::{
    self as nm, Arena, Control, Field, Header, Layout, Lifetime, Text, Word, arena, control, header,
};
use resurgo_wire::trace::Clock;

use crate::note::{Channel, Counts};

/// Bytes of log per message beyond its payload, about: entries begin at multiples of 64 bytes.
const LOG_ENTRY: u64 = 64;

/// The node memory of one job.
pub struct NodeMemory {
    file: File,
    pub(super) layout: Layout,
    /// See [`header::VALID_UNTIL`].
    valid_until: u64,
    /// Of the traces of ranks.
    pub(super) clock: Clock,
}

/// The clock for traces on this machine, if the job is traced.
fn clock(is_on: bool) -> Clock {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    match is_on {
        false => Clock::Off,
        true if has("constant_tsc") && has("nonstop_tsc") => Clock::Ticks,
        true => Clock::Nanoseconds,
    }
}

impl NodeMemory {
    /// Creates the memory and writes its header; `ranks` are launched. Pages come into being when they are first
    /// touched.
    pub fn create(job: &Job, ranks: usize) -> io::Result<NodeMemory> {
        let layout = job.layout(ranks);
        let file = File::from(memfd_create(c"resurgo-node-memory", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(layout.total() as u64)?;
        let memory = NodeMemory {
            file,
            layout,
            valid_until: 0,
            clock: clock(job.addresses.trace.is_on),
        };
        memory.write_header(job, ranks)?;
        Ok(memory)
    }

    /// The memory has come from a file: its job may have had another protocol at its start, and so other parts.
    pub fn know_layout(&mut self) -> io::Result<()> {
        self.layout.undoes = self.get::<u32>(header::UNDOES.at)? != 0;
        self.layout.rereads = self.get::<u32>(header::REREADS.at)? != 0;
        Ok(())
    }

    /// The same memory, for a thread.
    pub fn again(&self) -> io::Result<NodeMemory> {
        Ok(NodeMemory {
            file: self.file.try_clone()?,
            ..*self
        })
    }

    /// Empties the memory while no rank runs, for `ranks` ranks. What counts for this run, the ranks' deeds on files,
    /// and their traces stay.
    pub fn reset(&self, job: &Job, ranks: usize) -> io::Result<()> {
        let mut kept = Vec::new();
        for rank in 0..ranks {
            for field in control::ALL.iter().filter(|field| field.lifetime == Lifetime::Run) {
                let mut bytes = vec![0; field.bytes];
                let at = self.layout.control(rank) + field.at;
                self.read(&mut bytes, at)?;
                kept.push((at, bytes));
            }
            kept.push((self.layout.arena(rank) + self.layout.deeds(), self.deeds(rank)?));
            kept.extend(self.undo_log(rank)?);
        }
        self.empty(ranks)?;
        self.write_header(job, ranks)?;
        let mut kept = kept.iter().filter(|(_, bytes)| !bytes.is_empty());
        kept.try_for_each(|(at, bytes)| self.write(bytes, *at))
    }

    /// The files that `rank` has noted as made or removed ([`nm::deeds`]); empty if none.
    fn deeds(&self, rank: usize) -> io::Result<Vec<u8>> {
        let at = self.layout.arena(rank) + self.layout.deeds();
        let mut count = [0u8; 8];
        self.read(&mut count, at + nm::deeds::COUNT)?;
        let length = if count == [0; 8] { 0 } else { nm::deeds::BYTES };
        let mut bytes = vec![0u8; length];
        self.read(&mut bytes, at)?;
        Ok(bytes)
    }

    /// The same in words, without what is empty.
    pub fn noted(&self, rank: usize) -> io::Result<Vec<u64>> {
        let at = self.layout.arena(rank) + self.layout.deeds();
        let count = self.read_u64(at + nm::deeds::COUNT)?;
        let mut words = vec![count];
        words.extend(self.table(at + nm::deeds::NOTES, count.min(nm::deeds::MOST as u64) as usize * 2)?);
        Ok(words)
    }

    /// Puts there what [`NodeMemory::noted`] has found.
    pub fn set_noted(&self, rank: usize, words: &[u64]) -> io::Result<()> {
        let at = self.layout.arena(rank) + self.layout.deeds();
        let Some((count, notes)) = words
            .split_first()
            .filter(|(_, notes)| notes.len() <= nm::deeds::MOST * 2)
        else {
            return Ok(());
        };
        let bytes: Vec<u8> = notes.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(&bytes, at + nm::deeds::NOTES)?;
        self.write_u64(at + nm::deeds::COUNT, *count)
    }

    /// What the present life of `rank` could not do because a former one did it.
    pub fn undone(&self, rank: usize) -> io::Result<Option<String>> {
        let at = self.layout.arena(rank) + self.layout.deeds() + nm::deeds::TEXT;
        self.text(at, nm::deeds::TEXT_BYTES)
    }

    /// A new run of the job counts its costs anew.
    pub fn forget_costs(&self, ranks: usize) -> io::Result<()> {
        (0..ranks).try_for_each(|rank| self.set_costs(rank, &Costs::default()))
    }

    fn costs(&self, rank: usize) -> io::Result<Costs> {
        let mut costs = Costs::default();
        let words = self.table(self.layout.control(rank) + control::COSTS.at, costs.len())?;
        costs.copy_from_slice(&words);
        Ok(costs)
    }

    fn set_costs(&self, rank: usize, costs: &Costs) -> io::Result<()> {
        let mut costs = costs.iter().enumerate();
        costs.try_for_each(|(cost, value)| self.set_control(rank, control::COSTS.item(cost), *value))
    }

    fn sizes(&self, rank: usize) -> io::Result<Sizes> {
        let mut sizes = Sizes::default();
        let words = self.table(self.layout.control(rank) + control::SIZES.at, sizes.len() * 2)?;
        sizes.as_flattened_mut().copy_from_slice(&words);
        Ok(sizes)
    }

    fn write_header(&self, job: &Job, ranks: usize) -> io::Result<()> {
        let layout = self.layout;
        self.set_header(header::MAGIC, nm::MAGIC)?;
        self.set_header(header::VERSION, nm::VERSION)?;
        self.set_header(header::SIZE, layout.size as u32)?;
        self.set_ranks(ranks)?;
        self.set_header(header::PROTOCOL, job.protocol.number())?;
        let tolerated = match job.moves_ranks() {
            true => nm::OF_SEVERAL,
            false => u32::from(job.tolerate_node),
        };
        self.set_header(header::TOLERATE_NODE, tolerated)?;
        self.set_header(header::ARENA_BASE, layout.arena_base() as u64)?;
        self.set_header(header::ARENA_STRIDE, layout.arena_stride() as u64)?;
        self.set_header(header::PLACE, job.addresses.place as u64)?;
        self.set_header(header::VALID_UNTIL, self.valid_until)?;
        self.set_header(header::LOG_SEGMENTS, job.log_segments as u64)?;
        self.set_header(header::SPILL, u32::from(job.spill_directory.is_some()))?;
        self.set_header(header::PREFAULT_SEGMENTS, job.prefault_segments)?;
        self.set_header(header::SPIN_NS, job.spin_ns)?;
        self.set_header(header::SPILL_NEXT, 0)?;
        self.set_header(header::REDUCTION, job.reduction)?;
        self.set_header(header::CLOCK_SPREAD, job.clock_spread)?;
        self.set_header(header::JOB_BEGAN_NS, job.began_ns())?;
        self.set_header(header::KEEPS_NOTES, u32::from(job.keeps_file_notes()))?;
        self.set_header(header::SURVIVORS, job.survivors())?;
        self.set_header(header::TRACE_RECORDS, layout.trace_records as u64)?;
        self.set_header(header::UNDOES, u32::from(layout.undoes))?;
        self.set_header(header::REREADS, u32::from(layout.rereads))?;
        let words = job.services.iter().flat_map(|service| service.to_words());
        for (at, word) in words.enumerate() {
            self.set_header(header::SERVICES.item(at), word)?;
        }
        self.write(&job.key, header::JOB_KEY.at)
    }

    /// Ranks may speak to other nodes until then, since the machine was started.
    pub fn set_valid_until(&mut self, until: Duration) -> io::Result<()> {
        let until = until.as_nanos() as u64;
        if std::mem::replace(&mut self.valid_until, until) == until {
            return Ok(());
        }
        self.set_header(header::VALID_UNTIL, until)
    }

    /// The number of ranks that the job has, or is about to have.
    pub fn set_ranks(&self, ranks: usize) -> io::Result<()> {
        self.set_header(header::RANKS, ranks as u32)
    }

    /// The descriptor that ranks inherit.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes the initial control fields of a new life of `rank`.
    pub fn begin_life(
        &self,
        rank: usize,
        life: u64,
        fault_at_messages: u64,
        output_behind: bool,
        together: bool,
        repeats: bool,
    ) -> io::Result<()> {
        self.set_control(rank, control::INCARNATION, life)?;
        self.set_control(rank, control::FAULT_AT_MESSAGES, fault_at_messages)?;
        self.set_control(rank, control::OUTPUT_BEHIND, u64::from(output_behind))?;
        self.set_control(rank, control::TOGETHER, u64::from(together))?;
        self.set_control(rank, control::IN_VAIN, 0)?;
        // The clock that says when files are made.
        let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME_COARSE)?);
        self.set_control(rank, control::BEGAN_NS, now.as_nanos() as u64)?;
        let own = control::ALL.iter().filter(|field| field.is_cleared_before_a_life());
        for place in own.map(|field| field.to_clear()) {
            self.write(&vec![0; place.len()], self.layout.control(rank) + place.start)?;
        }
        if repeats {
            self.set_control(rank, control::PHASE, nm::PHASE_REPLAY)?;
        }
        self.begin_trace(rank)?;
        if life > 1 {
            self.write_u32(self.layout.arena(rank) + self.layout.deeds() + nm::deeds::TEXT, 0)?;
        }
        Ok(())
    }

    /// Forgets what `rank` has said of its record.
    pub fn forget_counts(&self, rank: usize) -> io::Result<()> {
        let counts = vec![0; self.layout.size * 8];
        self.write(&counts, self.layout.arena(rank) + self.layout.consumed())
    }

    /// `rank` comes here from a lost node: of its arena only those logs count that ranks here have copies of.
    pub fn take_over(&self, rank: usize) -> io::Result<()> {
        self.write(&vec![0; nm::arena::CHANNELS], self.layout.arena(rank))?;
        self.lose_record(rank, 0)
    }

    /// The record of `rank` is what its event logger has; its first `above` deliveries are not needed.
    pub fn lose_record(&self, rank: usize, above: u64) -> io::Result<()> {
        self.set_control(rank, control::RECORD_LOST, 1 + above)
    }

    /// What is here of the log from `source` to `destination` is no part of it.
    pub fn forget_log(&self, source: usize, destination: usize) -> io::Result<()> {
        self.write_u64(self.channel_word(source, destination), 0)
    }

    /// `rank` wants an image after so many messages; 0: never.
    pub fn set_image_at(&self, rank: usize, messages: u64) -> io::Result<()> {
        self.set_control(rank, control::IMAGE_AT_MESSAGES, messages)
    }

    /// Whether `rank` has yet to repeat some of its output.
    pub fn set_output_behind(&self, rank: usize, is_behind: bool) -> io::Result<()> {
        self.set_control(rank, control::OUTPUT_BEHIND, u64::from(is_behind))
    }

    /// Whether only its output keeps `rank` from going on.
    pub fn awaits_output(&self, rank: usize) -> io::Result<bool> {
        Ok(self.control(rank, control::OUTPUT_AWAITED)? != 0)
    }

    /// Output or PMI lines went out that may depend on all deliveries of `rank` so far: they count as known, even if
    /// the rank dies.
    pub fn passed_on(&self, rank: usize) -> io::Result<()> {
        let made = self.control(rank, control::DELIVERIES)?;
        if made > self.control(rank, control::PASSED_ON)? {
            self.set_control(rank, control::PASSED_ON, made)?;
        }
        Ok(())
    }

    /// From here on `rank` is never recovered from an image before `number`, whose cursors are in `slot`.
    pub fn set_oldest_image(&self, rank: usize, slot: usize, number: u64) -> io::Result<()> {
        self.set_arena(rank, arena::OLDEST_IMAGE, 1 + slot as u32)?;
        self.set_arena(rank, arena::OLDEST_WAVE, number)
    }

    /// Empties the channels between these ranks: they begin with the next message. None of the ranks runs.
    pub fn cut_off_inside(&self, ranks: &[usize]) -> io::Result<()> {
        for source in ranks {
            let channels = self.layout.arena(*source) + arena::CHANNELS;
            ranks.iter().try_for_each(|to| self.write_u64(channels + to * 8, 0))?;
        }
        Ok(())
    }

    /// See [`control::PHASE`].
    pub fn phase(&self, rank: usize) -> io::Result<u32> {
        self.control(rank, control::PHASE)
    }

    /// Bytes of others' logs delivered to `rank`, about.
    pub fn delivered_log(&self, rank: usize) -> io::Result<u64> {
        let deliveries = self.control(rank, control::DELIVERIES)?;
        Ok(deliveries * LOG_ENTRY + self.control(rank, control::DELIVERED_BYTES)?)
    }

    /// What the present life of `rank` has counted so far. `asked_ns`: when the agent was told to begin it
    /// (CLOCK_MONOTONIC).
    pub fn statistics(&self, rank: usize, asked_ns: u64) -> io::Result<LifeStatistics> {
        let word = |field| self.control(rank, field);
        let since = |field| word(field).map(|moment: u64| moment.saturating_sub(asked_ns));
        Ok(LifeStatistics {
            phase: self.phase(rank)?,
            deliveries: word(control::DELIVERIES)?,
            delivered_bytes: word(control::DELIVERED_BYTES)?,
            replay_deliveries: word(control::REPLAY_DELIVERIES)?,
            first_delivery_ns: since(control::FIRST_DELIVERY_NS)?,
            caught_up_ns: since(control::CAUGHT_UP_NS)?,
            replayed_ns: since(control::REPLAYED_NS)?,
            collected_ns: since(control::COLLECTED_NS)?,
            collecting_ns: word(control::COLLECTING_NS)?,
            sizes: self.sizes(rank)?,
            costs: self.costs(rank)?,
        })
    }

    /// When the injected fault of the present life of `rank` struck, by CLOCK_MONOTONIC; 0: it has not.
    pub fn killed_ns(&self, rank: usize) -> io::Result<u64> {
        self.control(rank, control::KILLED_NS)
    }

    /// The position of `rank` in its messages with the first `ranks` ranks, as it noted in this slot.
    pub fn counts(&self, rank: usize, slot: usize, ranks: usize) -> io::Result<Counts> {
        let table = |offset| self.table(self.layout.arena(rank) + offset, ranks);
        let sent = table(self.layout.image_sent(slot))?;
        let delivered = table(self.layout.image_delivered(slot))?;
        let cursors = table(self.layout.cursors(slot))?;
        let channel = |peer| Channel {
            peer,
            sent: sent[peer],
            delivered: delivered[peer],
            cursor: cursors[peer],
        };
        let channels = (0..ranks).map(channel);
        Ok(Counts {
            deliveries: self.deliveries_of_image(rank, slot)?,
            channels: channels
                .filter(|channel| channel.sent > 0 || channel.delivered > 0)
                .collect(),
        })
    }

    /// The slot of the oldest image that `rank` may be recovered from; none: that is the beginning of the program.
    pub fn oldest_image(&self, rank: usize) -> io::Result<Option<usize>> {
        let image: u32 = self.arena(rank, arena::OLDEST_IMAGE)?;
        Ok(image.checked_sub(1).map(|slot| slot as usize))
    }

    /// How many deliveries `rank` had made by the image in this slot.
    pub fn deliveries_of_image(&self, rank: usize, slot: usize) -> io::Result<u64> {
        self.arena(rank, arena::IMAGE_CLOCKS.item(slot))
    }

    /// The same for each source.
    pub fn delivered_by_image(&self, rank: usize, slot: usize, ranks: usize) -> io::Result<Vec<u64>> {
        self.table(self.layout.arena(rank) + self.layout.image_delivered(slot), ranks)
    }

    /// The image comes from the node where the rank was before. `delivered`: per source, where senders look for it.
    pub fn set_deliveries_of_image(
        &self,
        rank: usize,
        slot: usize,
        deliveries: u64,
        delivered: &[u64],
    ) -> io::Result<()> {
        let bytes: Vec<u8> = delivered.iter().flat_map(|count| count.to_le_bytes()).collect();
        for table in [self.layout.image_delivered(slot), self.layout.cursors(slot)] {
            self.write(&bytes, self.layout.arena(rank) + table)?;
        }
        self.set_arena(rank, arena::IMAGE_CLOCKS.item(slot), deliveries)
    }

    /// The process that opened the provider in the present life of `rank`, by its own number.
    pub fn attached(&self, rank: usize) -> io::Result<Option<i32>> {
        let number = self.control(rank, control::ATTACHED)?;
        Ok(i32::try_from(number).ok().filter(|pid| *pid > 0))
    }

    /// How much `source` has sent to `destination`, as it announced in its last wave, or when it left MPI.
    pub fn announced(&self, source: usize, destination: usize) -> io::Result<u64> {
        self.read_u64(self.layout.arena(source) + self.layout.announced() + destination * 8)
    }

    /// From here on `rank`, which has finished, is never recovered: its end becomes the image `number` in this slot.
    pub fn set_end(&self, rank: usize, slot: usize, number: u64, ranks: usize) -> io::Result<()> {
        let arena = self.layout.arena(rank);
        let cursors = self.table(arena + self.layout.consumed(), ranks)?;
        let bytes: Vec<u8> = cursors.iter().flat_map(|cursor| cursor.to_le_bytes()).collect();
        self.write(&bytes, arena + self.layout.cursors(slot))?;
        self.set_oldest_image(rank, slot, number)
    }

    /// MPI_Finalize has failed in the present life of `rank`, which has ended since.
    pub fn finalize_failed(&self, rank: usize) -> io::Result<bool> {
        Ok(self.control(rank, control::FINALIZE_FAILED)? != 0)
    }

    /// The code with which the present life of `rank` has ended itself, after a report.
    pub fn report_code(&self, rank: usize) -> io::Result<Option<i32>> {
        let code = self.control(rank, control::REPORT_CODE)?;
        Ok(i32::try_from(code).ok().filter(|code| *code > 0))
    }

    /// None of the first `ranks` ranks has said that it cannot be replayed.
    pub fn repeats(&self, ranks: usize) -> io::Result<bool> {
        for rank in 0..ranks {
            if self.control(rank, control::THREADS)? == nm::MANY_THREADS {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Why `rank` ended itself, if it has said so.
    pub fn report(&self, rank: usize) -> io::Result<Option<String>> {
        self.text(self.layout.control(rank) + control::REPORT.at, control::REPORT_BYTES)
    }

    /// A length and a text.
    fn text(&self, at: usize, most: usize) -> io::Result<Option<String>> {
        let mut length = [0u8; 4];
        self.read(&mut length, at)?;
        let length = (u32::from_le_bytes(length) as usize).min(most);
        if length == 0 {
            return Ok(None);
        }
        let mut text = vec![0u8; length];
        self.read(&mut text, at + Text::<0>::HEAD)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The segments of the first `ranks` ranks in which nothing lies, in bytes from the start of the memory.
    pub fn free_segments(&self, ranks: usize) -> io::Result<Vec<Range<u64>>> {
        let mut free = Vec::new();
        for rank in 0..ranks {
            let base = self.layout.arena(rank);
            // The trace belongs to this run.
            free.extend(self.ring(rank));
            let taken = self.arena(rank, arena::SLOTS_TAKEN)? as usize;
            let taken = taken.min(self.layout.log_segments);
            let mut serials = vec![0u8; taken * 8];
            self.file
                .read_exact_at(&mut serials, (base + self.layout.serials()) as u64)?;
            let slot = |slot: usize| (base + self.layout.segments() + slot * nm::SEGMENT) as u64;
            let serials = serials.chunks_exact(8).enumerate();
            free.extend(
                serials
                    .filter(|(_, serial)| serial.iter().all(|byte| *byte == 0))
                    .map(|(number, _)| slot(number)..slot(number + 1)),
            );
            // Segments that were never used.
            free.push(slot(taken)..slot(self.layout.log_segments));
        }
        Ok(free)
    }

    pub(super) fn read(&self, bytes: &mut [u8], offset: usize) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset as u64)
    }

    fn get<T: Word>(&self, offset: usize) -> io::Result<T> {
        let mut word = [0; 8];
        self.read(&mut word[..size_of::<T>()], offset)?;
        Ok(T::from_u64(u64::from_le_bytes(word)))
    }

    fn set<T: Word>(&self, offset: usize, value: T) -> io::Result<()> {
        self.write(&value.to_u64().to_le_bytes()[..size_of::<T>()], offset)
    }

    pub(super) fn set_header<T: Word>(&self, field: Field<Header, T>, value: T) -> io::Result<()> {
        self.set(field.at, value)
    }

    pub(super) fn control<T: Word>(&self, rank: usize, field: Field<Control, T>) -> io::Result<T> {
        self.get(self.layout.control(rank) + field.at)
    }

    pub(super) fn set_control<T: Word>(&self, rank: usize, field: Field<Control, T>, value: T) -> io::Result<()> {
        self.set(self.layout.control(rank) + field.at, value)
    }

    pub(super) fn arena<T: Word>(&self, rank: usize, field: Field<Arena, T>) -> io::Result<T> {
        self.get(self.layout.arena(rank) + field.at)
    }

    pub(super) fn set_arena<T: Word>(&self, rank: usize, field: Field<Arena, T>, value: T) -> io::Result<()> {
        self.set(self.layout.arena(rank) + field.at, value)
    }

    /// Where the reference to the first segment of a channel is.
    pub(super) fn channel_word(&self, source: usize, destination: usize) -> usize {
        self.layout.arena(source) + arena::CHANNELS + destination * 8
    }

    pub(super) fn read_u64(&self, offset: usize) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(&mut word, offset)?;
        Ok(u64::from_le_bytes(word))
    }

    /// `count` words from `offset` on.
    pub(super) fn table(&self, offset: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.read(&mut bytes, offset)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    pub(super) fn write(&self, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.file.write_all_at(bytes, offset as u64)
    }

    fn write_u32(&self, offset: usize, value: u32) -> io::Result<()> {
        self.file.write_all_at(&value.to_le_bytes(), offset as u64)
    }

    pub(super) fn write_u64(&self, offset: usize, value: u64) -> io::Result<()> {
        self.file.write_all_at(&value.to_le_bytes(), offset as u64)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use resurgo_protocol::Protocol;
    use resurgo_wire::control::{Addresses, ImageFiles, Stdin};
    use resurgo_wire::counters::Cost;
    use resurgo_wire::services::Services;

    pub fn job() -> Job {
        Job {
            name: "t".into(),
            programs: Vec::new(),
            most_ranks: 8,
            protocol: Protocol::Pessimistic,
            tolerate_node: false,
            log_segments: 16,
            prefault_segments: 4,
            spin_ns: 1000,
            spill_directory: None,
            reduction: 0,
            clock_spread: 0,
            services: Services::default(),
            key: [7; 32],
            stdin: Stdin::Nothing,
            images: false,
            image_files: ImageFiles {
                partners: false,
                waves_to_suspend: false,
                replicas: 1,
                parity: None,
                copy_rate: None,
                shared: false,
                directory: None,
                compress: None,
                keep: false,
                local_copies: true,
                are_named: false,
                places: Vec::new(),
                secret: resurgo_wire::control::Secret::default(),
            },
            cpus: Vec::new(),
            binding: Vec::new(),
            open_files: (1024, 1024),
            addresses: Addresses {
                are_fixed: true,
                place: 1 << 44,
                stack_limit: 8 << 20,
                legacy_layout: false,
                trace: resurgo_wire::control::Trace {
                    records: 64,
                    is_on: true,
                },
            },
            message_faults: Vec::new(),
            image_at_messages: Vec::new(),
            groups: resurgo_wire::control::Grouping::One,
            groups_at_once: 0,
            nodes: None,
        }
    }

    #[test]
    fn a_new_life_finds_what_counts_for_it() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        memory
            .write(&[0xee; nm::CONTROL_STRIDE], memory.layout.control(2))
            .unwrap();
        memory.begin_life(2, 5, 3, true, false, false).unwrap();
        let mut bytes = [0; nm::CONTROL_STRIDE];
        memory.read(&mut bytes, memory.layout.control(2)).unwrap();
        let agents = [
            control::INCARNATION,
            control::FAULT_AT_MESSAGES,
            control::OUTPUT_BEHIND,
            control::TOGETHER,
            control::IN_VAIN,
        ];
        assert_eq!(agents.map(|field| memory.control(2, field).unwrap()), [5, 3, 1, 0, 0]);
        let agents = agents.map(|field| field.at);
        for field in control::ALL
            .iter()
            .filter(|field| !agents.contains(&field.at) && field.at != control::BEGAN_NS.at)
        {
            let (cleared, kept) = bytes[field.at..field.at + field.bytes].split_at(field.cleared);
            let expected = if field.is_cleared_before_a_life() { 0 } else { 0xee };
            assert!(cleared.iter().all(|byte| *byte == expected), "{}", field.name);
            assert!(kept.iter().all(|byte| *byte == 0xee), "{}", field.name);
        }
    }

    #[test]
    fn costs_and_deeds_outlive_the_memory() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        let held = Cost::HeldSends as usize;
        memory.set_control(2, control::DELIVERIES, 99).unwrap();
        memory.set_control(2, control::SIZES.item(1).item(0), 99).unwrap();
        memory.set_control(2, control::COSTS.item(held), 99).unwrap();
        let ring = memory.layout.arena(2) + memory.layout.trace();
        memory.write_u64(ring, 5).unwrap();
        let former = memory.statistics(2, 0).unwrap();
        assert_eq!((former.deliveries, former.sends(), former.sizes[1]), (99, 99, [99, 0]));
        let deeds = memory.layout.arena(2) + memory.layout.deeds();
        memory.write_u64(deeds + nm::deeds::COUNT, 7).unwrap();
        memory.write_u64(deeds + nm::deeds::NOTES + 8, 77).unwrap();
        let text = 1 | u64::from(b'x') << 32;
        memory.write_u64(deeds + nm::deeds::TEXT, text).unwrap();
        assert_eq!(memory.undone(2).unwrap().as_deref(), Some("x"));
        memory.begin_life(2, 5, 0, true, false, false).unwrap();
        assert_eq!(memory.undone(2).unwrap(), None);
        let mut expected = LifeStatistics::default();
        expected.costs[held] = 99;
        assert_eq!(
            memory.statistics(2, 0).unwrap(),
            expected,
            "costs are those of all lives"
        );
        memory.reset(&job(), 3).unwrap();
        let emptied = memory.statistics(2, 0).unwrap();
        assert_eq!(emptied, expected, "also when all ranks return to a wave");
        assert_eq!(memory.control(2, control::INCARNATION).unwrap(), 0);
        assert_eq!(memory.read_u64(ring).unwrap(), 5, "so is the trace");
        let noted = memory.deeds(2).unwrap();
        assert_eq!(
            (noted[0], noted[nm::deeds::NOTES + 8], memory.deeds(1).unwrap().len()),
            (7, 77, 0)
        );
    }

    #[test]
    fn a_report_is_read_back() {
        let memory = NodeMemory::create(&job(), 1).unwrap();
        assert_eq!(memory.report(0).unwrap(), None);
        let base = memory.layout.control(0) + control::REPORT.at;
        memory.write_u32(base, 5).unwrap();
        memory.file.write_all_at(b"wrong", base as u64 + 4).unwrap();
        assert_eq!(memory.report(0).unwrap().as_deref(), Some("wrong"));
    }
}
