//! The node memory as the agent sees it: created here, its fields written and read one at a time.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use resurgo_wire::control::{Job, LifeStatistics};
use resurgo_wire::counters::{Costs, Sizes};
use resurgo_wire::node_memory::{self as nm, Layout, control, header};

/// What a message takes in a log beyond its payload, about: entries begin at multiples of 64 bytes.
const LOG_ENTRY: u64 = 64;

/// The node memory of one job.
pub struct NodeMemory {
    file: File,
    pub(super) layout: Layout,
}

impl NodeMemory {
    /// Creates the memory and writes its header; `ranks` are launched. Pages come into being when they are first touched.
    pub fn create(job: &Job, ranks: usize) -> io::Result<NodeMemory> {
        let layout = job.layout(ranks);
        let file = File::from(memfd_create(c"resurgo-node-memory", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(layout.total() as u64)?;
        let memory = NodeMemory { file, layout };
        memory.write_header(job, ranks)?;
        Ok(memory)
    }

    /// Empties the memory, but for what ranks have cost and done to files: no rank is running, and there are `ranks` of them again.
    pub fn reset(&self, job: &Job, ranks: usize) -> io::Result<()> {
        let costs = (0..ranks)
            .map(|rank| self.costs(rank))
            .collect::<io::Result<Vec<_>>>()?;
        let deeds = (0..ranks)
            .map(|rank| self.deeds(rank))
            .collect::<io::Result<Vec<_>>>()?;
        self.file.set_len(0)?;
        self.file.set_len(self.layout.total() as u64)?;
        self.write_header(job, ranks)?;
        (0..ranks).try_for_each(|rank| self.set_costs(rank, &costs[rank]))?;
        let place = |rank: usize| (self.layout.arena(rank) + self.layout.deeds()) as u64;
        let mut deeds = deeds.iter().enumerate().filter(|(_, deeds)| !deeds.is_empty());
        deeds.try_for_each(|(rank, deeds)| self.file.write_all_at(deeds, place(rank)))
    }

    /// What `rank` has noted of what it made and removed ([`nm::deeds`]); empty if that is nothing.
    fn deeds(&self, rank: usize) -> io::Result<Vec<u8>> {
        let at = self.layout.arena(rank) + self.layout.deeds();
        let mut count = [0u8; 8];
        self.read(&mut count, at + nm::deeds::COUNT)?;
        let length = if count == [0; 8] { 0 } else { nm::deeds::BYTES };
        let mut bytes = vec![0u8; length];
        self.read(&mut bytes, at)?;
        Ok(bytes)
    }

    /// What the present life of `rank` could not do because a former one had done it.
    pub fn undone(&self, rank: usize) -> io::Result<Option<String>> {
        let at = self.layout.arena(rank) + self.layout.deeds() + nm::deeds::TEXT;
        self.text(at, nm::deeds::TEXT_BYTES)
    }

    /// A new run of the job counts its costs anew.
    pub fn forget_costs(&self, ranks: usize) -> io::Result<()> {
        (0..ranks).try_for_each(|rank| self.set_costs(rank, &Costs::default()))
    }

    fn costs(&self, rank: usize) -> io::Result<Costs> {
        let mut bytes = [0u8; size_of::<Costs>()];
        let at = self.layout.control(rank) + control::COSTS;
        self.file.read_exact_at(&mut bytes, at as u64)?;
        let mut costs = Costs::default();
        costs
            .iter_mut()
            .zip(words(&bytes))
            .for_each(|(cost, word)| *cost = word);
        Ok(costs)
    }

    fn set_costs(&self, rank: usize, costs: &Costs) -> io::Result<()> {
        let base = self.layout.control(rank) + control::COSTS;
        let mut places = (base..).step_by(8).zip(costs);
        places.try_for_each(|(at, cost)| self.write_u64(at, *cost))
    }

    fn sizes(&self, rank: usize) -> io::Result<Sizes> {
        let mut bytes = [0u8; size_of::<Sizes>()];
        let at = self.layout.control(rank) + control::SIZES;
        self.file.read_exact_at(&mut bytes, at as u64)?;
        let mut sizes = Sizes::default();
        let places = sizes.iter_mut().flatten();
        places.zip(words(&bytes)).for_each(|(place, word)| *place = word);
        Ok(sizes)
    }

    fn write_header(&self, job: &Job, ranks: usize) -> io::Result<()> {
        let (memory, layout, size) = (self, self.layout, self.layout.size);
        memory.write_u64(header::MAGIC, nm::MAGIC)?;
        memory.write_u32(header::VERSION, nm::VERSION)?;
        memory.write_u32(header::SIZE, size as u32)?;
        memory.set_ranks(ranks)?;
        memory.write_u32(header::PROTOCOL, job.protocol.number())?;
        memory.write_u32(header::TOLERATE_NODE, u32::from(job.tolerate_node))?;
        memory.write_u64(header::ARENA_BASE, layout.arena_base() as u64)?;
        memory.write_u64(header::ARENA_STRIDE, layout.arena_stride() as u64)?;
        memory.write_u64(header::PLACE, job.place as u64)?;
        memory.write_u64(header::LOG_SEGMENTS, job.log_segments as u64)?;
        memory.write_u32(header::SPILL, u32::from(job.spill_directory.is_some()))?;
        memory.write_u32(header::PREFAULT_SEGMENTS, job.prefault_segments)?;
        memory.write_u64(header::SPIN_NS, job.spin_ns)?;
        memory.write_u64(header::SPILL_NEXT, 0)?;
        memory.write_u32(header::EVENT_LOGGERS, job.event_logger_ports.len() as u32)?;
        for (logger, port) in job.event_logger_ports.iter().enumerate() {
            memory.write_u32(header::EVENT_LOGGER_PORTS + logger * 4, u32::from(*port))?;
        }
        memory.write_u32(header::REDUCTION, job.reduction)?;
        memory.write_u32(header::CLOCK_SPREAD, job.clock_spread)?;
        memory.write_u32(header::EVENT_LOGGER_ADDRESS, job.event_logger_address)?;
        memory.write_u32(header::CHANNEL_MEMORIES, job.channel_memory_ports.len() as u32)?;
        for (number, port) in job.channel_memory_ports.iter().enumerate() {
            memory.write_u32(header::CHANNEL_MEMORY_PORTS + number * 4, u32::from(*port))?;
        }
        memory.write_u32(header::CHANNEL_MEMORY_ADDRESS, job.channel_memory_address)?;
        memory.file.write_all_at(&job.key, header::JOB_KEY as u64)
    }

    /// So many ranks has the job had, or is about to have.
    pub fn set_ranks(&self, ranks: usize) -> io::Result<()> {
        self.write_u32(header::RANKS, ranks as u32)
    }

    /// The descriptor that ranks inherit.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes what a new life of `rank` finds in its control.
    pub fn begin_life(
        &self,
        rank: usize,
        life: u64,
        fault_at_messages: u64,
        output_behind: u64,
        together: bool,
        repeats: bool,
    ) -> io::Result<()> {
        let base = self.layout.control(rank);
        self.write_u64(base + control::INCARNATION, life)?;
        self.write_u64(base + control::FAULT_AT_MESSAGES, fault_at_messages)?;
        self.write_u64(base + control::OUTPUT_BEHIND, output_behind)?;
        self.write_u64(base + control::TOGETHER, u64::from(together))?;
        // The rank's own words, not the doorbell and ready bits: neighbours go on writing those.
        let own = [0u8; control::OUTPUT_BEHIND - control::PHASE];
        self.file.write_all_at(&own, (base + control::PHASE) as u64)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.write_u64(base + control::BEGAN_NS, now.as_nanos() as u64)?;
        if repeats {
            self.write_u32(base + control::PHASE, nm::PHASE_REPLAY)?;
        }
        self.file
            .write_all_at(&[0u8; size_of::<Sizes>()], (base + control::SIZES) as u64)?;
        if life > 1 {
            self.write_u32(self.layout.arena(rank) + self.layout.deeds() + nm::deeds::TEXT, 0)?;
        }
        self.write_u32(base + control::REPORT, 0)
    }

    /// After so many messages `rank` wants an image; 0: never.
    pub fn set_image_at(&self, rank: usize, messages: u64) -> io::Result<()> {
        self.write_u64(self.layout.control(rank) + control::IMAGE_AT_MESSAGES, messages)
    }

    /// How many bytes of its output `rank` has yet to repeat.
    pub fn set_output_behind(&self, rank: usize, bytes: u64) -> io::Result<()> {
        self.write_u64(self.layout.control(rank) + control::OUTPUT_BEHIND, bytes)
    }

    /// Whether `rank` would go on, but for that.
    pub fn awaits_output(&self, rank: usize) -> io::Result<bool> {
        let mut word = [0u8; 8];
        let at = self.layout.control(rank) + control::OUTPUT_AWAITED;
        self.file.read_exact_at(&mut word, at as u64)?;
        Ok(u64::from_le_bytes(word) != 0)
    }

    /// Something has been passed on that may depend on all deliveries that `rank` has made so far: whatever becomes of the
    /// rank, they are known.
    pub fn passed_on(&self, rank: usize) -> io::Result<()> {
        let base = self.layout.control(rank);
        let word = |field: usize| {
            let mut word = [0u8; 8];
            self.file.read_exact_at(&mut word, (base + field) as u64)?;
            Ok::<u64, io::Error>(u64::from_le_bytes(word))
        };
        let made = word(control::DELIVERIES)?;
        if made > word(control::PASSED_ON)? {
            self.write_u64(base + control::PASSED_ON, made)?;
        }
        Ok(())
    }

    /// From here on `rank` is never recovered from anything older than its image `number`, whose cursors are in `slot`.
    pub fn set_oldest_image(&self, rank: usize, slot: usize, number: u64) -> io::Result<()> {
        let arena = self.layout.arena(rank);
        self.write_u32(arena + nm::arena::OLDEST_IMAGE, 1 + slot as u32)?;
        self.write_u64(arena + nm::arena::OLDEST_WAVE, number)
    }

    /// The channels between these ranks, none of which runs, begin with what is sent next.
    pub fn cut_off_inside(&self, ranks: &[usize]) -> io::Result<()> {
        for source in ranks {
            let channels = self.layout.arena(*source) + nm::arena::CHANNELS;
            ranks.iter().try_for_each(|to| self.write_u64(channels + to * 8, 0))?;
        }
        Ok(())
    }

    /// See [`control::PHASE`].
    pub fn phase(&self, rank: usize) -> io::Result<u32> {
        let mut bytes = [0u8; 4];
        let at = self.layout.control(rank) + control::PHASE;
        self.file.read_exact_at(&mut bytes, at as u64)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// About how many bytes of others' logs has been delivered to `rank`.
    pub fn delivered_log(&self, rank: usize) -> io::Result<u64> {
        let mut bytes = [0u8; 16];
        let at = self.layout.control(rank) + control::DELIVERIES;
        self.file.read_exact_at(&mut bytes, at as u64)?;
        let mut words = words(&bytes);
        let deliveries = words.next().unwrap_or(0);
        Ok(deliveries * LOG_ENTRY + words.next().unwrap_or(0))
    }

    /// What the present life of `rank` has counted so far.
    pub fn statistics(&self, rank: usize) -> io::Result<LifeStatistics> {
        let mut bytes = [0u8; control::OUTPUT_BEHIND - control::PHASE];
        self.file
            .read_exact_at(&mut bytes, (self.layout.control(rank) + control::PHASE) as u64)?;
        let word = |offset: usize| {
            let at = offset - control::PHASE;
            bytes[at..]
                .first_chunk::<8>()
                .map_or(0, |word| u64::from_le_bytes(*word))
        };
        Ok(LifeStatistics {
            phase: word(control::PHASE) as u32,
            deliveries: word(control::DELIVERIES),
            delivered_bytes: word(control::DELIVERED_BYTES),
            replay_deliveries: word(control::REPLAY_DELIVERIES),
            first_delivery_ns: word(control::FIRST_DELIVERY_NS),
            caught_up_ns: word(control::CAUGHT_UP_NS),
            killed_ns: word(control::KILLED_NS),
            replayed_ns: word(control::REPLAYED_NS),
            collected_ns: word(control::COLLECTED_NS),
            collecting_ns: word(control::COLLECTING_NS),
            sizes: self.sizes(rank)?,
            costs: self.costs(rank)?,
        })
    }

    /// The process that has opened the provider in the present life of `rank`, by the number that it knows.
    pub fn attached(&self, rank: usize) -> io::Result<Option<i32>> {
        let mut word = [0u8; 8];
        self.file
            .read_exact_at(&mut word, (self.layout.control(rank) + control::ATTACHED) as u64)?;
        Ok(i32::try_from(u64::from_le_bytes(word)).ok().filter(|pid| *pid > 0))
    }

    /// None of the first `ranks` ranks has said that it cannot be replayed.
    pub fn repeats(&self, ranks: usize) -> io::Result<bool> {
        for rank in 0..ranks {
            let mut word = [0u8; 4];
            self.file
                .read_exact_at(&mut word, (self.layout.control(rank) + control::THREADS) as u64)?;
            if u32::from_le_bytes(word) == nm::MANY_THREADS {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Why `rank` ended itself, if it has said so.
    pub fn report(&self, rank: usize) -> io::Result<Option<String>> {
        self.text(self.layout.control(rank) + control::REPORT, control::REPORT_BYTES)
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
        self.read(&mut text, at + 4)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The segments of the first `ranks` ranks in which nothing lies, in bytes from the start of the memory.
    pub fn free_segments(&self, ranks: usize) -> io::Result<Vec<Range<u64>>> {
        let mut free = Vec::new();
        for rank in 0..ranks {
            let arena = self.layout.arena(rank);
            let mut word = [0u8; 8];
            self.file
                .read_exact_at(&mut word, (arena + nm::arena::SLOTS_TAKEN) as u64)?;
            let taken = (u64::from_le_bytes(word) as usize).min(self.layout.log_segments);
            let mut serials = vec![0u8; taken * 8];
            self.file
                .read_exact_at(&mut serials, (arena + self.layout.serials()) as u64)?;
            let slot = |slot: usize| (arena + self.layout.segments() + slot * nm::SEGMENT) as u64;
            let serials = serials.chunks_exact(8).enumerate();
            free.extend(
                serials
                    .filter(|(_, serial)| serial.iter().all(|byte| *byte == 0))
                    .map(|(number, _)| slot(number)..slot(number + 1)),
            );
            // Those that have never been used.
            free.push(slot(taken)..slot(self.layout.log_segments));
        }
        Ok(free)
    }

    pub(super) fn read(&self, bytes: &mut [u8], offset: usize) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset as u64)
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

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| {
        let word = word.first_chunk::<8>();
        word.map_or(0, |word| u64::from_le_bytes(*word))
    })
}

/// Opens a file, as that to which full segments are written. It never has a name, so nothing is left behind
/// however the job ends.
pub fn open_nameless(directory: &OsStr) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(OFlag::O_TMPFILE.bits()).open(directory) {
        Ok(file) => Ok(file),
        // Some network file systems cannot make nameless files.
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EOPNOTSUPP as i32) => {
            let path = Path::new(directory).join(format!(".resurgo-spill-{}", std::process::id()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use resurgo_protocol::Protocol;
    use resurgo_wire::control::Stdin;
    use resurgo_wire::counters::Cost;

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
            event_logger_ports: Vec::new(),
            reduction: 0,
            clock_spread: 0,
            event_logger_address: 0,
            channel_memory_ports: Vec::new(),
            channel_memory_address: 0,
            key: [7; 32],
            stdin: Stdin::Nothing,
            images: false,
            checkpoint_directory: None,
            checkpoint_compress: None,
            checkpoint_keep: false,
            local_copies: true,
            cpus: Vec::new(),
            open_files: (1024, 1024),
            fixed_addresses: true,
            place: 1 << 44,
            stack_limit: 8 << 20,
            legacy_layout: false,
            message_faults: Vec::new(),
            image_at_messages: Vec::new(),
            groups: resurgo_wire::control::Grouping::One,
            groups_at_once: 0,
        }
    }

    #[test]
    fn a_new_life_starts_with_clean_counters_and_keeps_its_neighbours_words() {
        let memory = NodeMemory::create(&job(), 3).unwrap();
        let base = memory.layout.control(2);
        let held = Cost::HeldSends as usize;
        for field in [
            control::DOORBELL,
            control::READY,
            control::DELIVERIES,
            control::COLLECTING_NS,
            control::SIZES + 16,
            control::COSTS + held * 8,
        ] {
            memory.write_u64(base + field, 99).unwrap();
        }
        let former = memory.statistics(2).unwrap();
        assert_eq!((former.deliveries, former.sends(), former.sizes[1]), (99, 99, [99, 0]));
        let deeds = memory.layout.arena(2) + memory.layout.deeds();
        memory.write_u64(deeds + nm::deeds::COUNT, 7).unwrap();
        memory.write_u64(deeds + nm::deeds::NOTES + 8, 77).unwrap();
        memory
            .write_u64(deeds + nm::deeds::TEXT, 1 | u64::from(b'x') << 32)
            .unwrap();
        assert_eq!(memory.undone(2).unwrap().as_deref(), Some("x"));
        memory.begin_life(2, 5, 0, 1234, false, false).unwrap();
        assert_eq!(memory.undone(2).unwrap(), None);
        let mut expected = LifeStatistics::default();
        expected.costs[held] = 99;
        assert_eq!(memory.statistics(2).unwrap(), expected, "costs are those of all lives");
        memory.reset(&job(), 3).unwrap();
        assert_eq!(
            memory.statistics(2).unwrap(),
            expected,
            "also when all ranks return to a wave"
        );
        let noted = memory.deeds(2).unwrap();
        assert_eq!(
            (noted[0], noted[nm::deeds::NOTES + 8], memory.deeds(1).unwrap().len()),
            (7, 77, 0)
        );
        memory.begin_life(2, 5, 0, 1234, false, false).unwrap();
        for field in [control::DOORBELL, control::READY] {
            memory.write_u64(base + field, 99).unwrap();
        }
        let mut word = [0u8; 8];
        for (field, value) in [
            (control::DOORBELL, 99),
            (control::READY, 99),
            (control::INCARNATION, 5),
            (control::OUTPUT_BEHIND, 1234),
        ] {
            memory.file.read_exact_at(&mut word, (base + field) as u64).unwrap();
            assert_eq!(u64::from_le_bytes(word), value);
        }
    }

    #[test]
    fn a_report_is_read_back() {
        let memory = NodeMemory::create(&job(), 1).unwrap();
        assert_eq!(memory.report(0).unwrap(), None);
        let base = memory.layout.control(0) + control::REPORT;
        memory.write_u32(base, 5).unwrap();
        memory.file.write_all_at(b"wrong", base as u64 + 4).unwrap();
        assert_eq!(memory.report(0).unwrap().as_deref(), Some("wrong"));
    }

    #[test]
    fn a_spill_file_has_no_name() {
        let directory = std::env::temp_dir().join(format!("resurgo-test-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = open_nameless(directory.as_os_str()).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }
}
