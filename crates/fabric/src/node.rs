//! The node memory as a rank sees it: mapped at a fixed address, the arenas of other ranks read-only.

mod large;

pub use large::Large;
use resurgo_protocol::chandy_lamport::{Place, Waves};
use resurgo_protocol::group::Turn;
use resurgo_protocol::{Protocol, kinds};
use resurgo_wire::counters::Cost;
use resurgo_wire::direct;
use resurgo_wire::handshake::Server;
use resurgo_wire::node_memory::{
    self as nm, Arena, Control, CutTable, Field, Header, Layout, SEGMENT, Text, Word, arena, control, header,
};
use resurgo_wire::services::{Service, Services};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The mapped node memory and what the agent wrote into its header.
pub struct Node {
    base: *mut u8,
    pub layout: Layout,
    pub rank: usize,
    /// The number of ranks with room; see [`Node::ranks`].
    pub size: usize,
    /// Messages and the order of their deliveries are logged.
    pub logs: bool,
    /// Ranks take images in waves. Without logging the data path is that of `none`.
    pub waves: bool,
    /// All ranks can return to a wave.
    pub returns_together: bool,
    /// Waves stop no rank.
    pub waves_pass: bool,
    /// Waves stop one group of ranks after the other.
    pub in_groups: bool,
    /// Per rank: whether it is in this rank's group, so that both return together (hierarchical). Otherwise empty.
    inside: Vec<bool>,
    /// Determinants are piggybacked: causal logging, where the loss of a node is tolerated.
    pub piggybacking: bool,
    pub reduction: u32,
    pub clock_spread: u32,
    pub tolerate_node: bool,
    /// The node is one of several, and is lost with records and logs: later lives of its ranks begin on other nodes
    /// (pessimistic, causal). So images do not know where channels lie.
    pub moves: bool,
    pub spill: bool,
    pub spin_ns: u64,
    pub prefault_segments: usize,
    /// Where the event loggers are.
    pub event_loggers: Vec<SocketAddr>,
    /// Whether these servers receive what the kernel takes, whatever becomes of this rank and its node.
    pub servers_are_here: bool,
    /// The channel memories, which carry all messages if there are any.
    pub channel_memories: Vec<SocketAddr>,
    pub job_key: [u8; 32],
    /// The program deals with failures itself.
    pub survives: bool,
    /// The socket that wakes ranks which sleep at theirs; -1: no rank sleeps there.
    pub bell: AtomicI32,
}

/// The header as it was when the rank began.
struct HeaderPage([u8; header::BYTES]);

impl HeaderPage {
    fn bytes<const N: usize>(&self, field: Field<Header, [u8; N]>) -> [u8; N] {
        self.0[field.at..field.at + N].try_into().expect("as many bytes")
    }

    fn get<T: Word>(&self, field: Field<Header, T>) -> T {
        let mut word = [0; 8];
        word[..size_of::<T>()].copy_from_slice(&self.0[field.at..field.at + size_of::<T>()]);
        T::from_u64(u64::from_le_bytes(word))
    }

    fn services(&self) -> Services {
        services(|at| self.get(header::SERVICES.item(at)))
    }
}

/// The servers, of which `word` reads the words in the header.
fn services(word: impl Fn(usize) -> u64) -> Services {
    let places = (0..nm::MAX_SERVICES).map(|place| std::array::from_fn(|at| word(place * Service::WORDS + at)));
    places.map_while(Service::from_words).collect()
}

/// Why a rank cannot use its node memory.
#[derive(Debug)]
pub struct AttachError(pub String);

fn failed(what: &str) -> AttachError {
    AttachError(format!("{what}: {}", std::io::Error::last_os_error()))
}

/// The number of this rank, from the agent.
fn own_rank() -> Result<usize, AttachError> {
    let rank = std::env::var(nm::ENV_RANK).ok().and_then(|text| text.parse().ok());
    rank.ok_or_else(|| {
        let name = nm::ENV_RANK;
        AttachError(format!("{name} is not set: start the program with `resurgo run`"))
    })
}

/// Why the node memory cannot be mapped at `place`, and what the user can do.
fn not_mapped(place: usize, bytes: usize) -> AttachError {
    let error = std::io::Error::last_os_error();
    let what = match error.raw_os_error() {
        Some(libc::ENOMEM) => "; raise the limit of virtual memory (ulimit -v), or lower --log-memory".to_string(),
        Some(libc::EEXIST) => {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
            let there = maps.lines().find(|line| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let [start, end] = range.map_or(["", ""], |(start, end)| [start, end]);
                let address = |text| usize::from_str_radix(text, 16).unwrap_or_default();
                address(start) < place.saturating_add(bytes) && address(end) > place
            });
            format!(
                "; the program has memory there: {}",
                there.unwrap_or("it is not known what")
            )
        }
        _ => String::new(),
    };
    AttachError(format!(
        "cannot map the node memory, {} MiB at {place:#x}: {error}{what}",
        bytes >> 20
    ))
}

impl HeaderPage {
    /// The first page of the memory that the rank was started with.
    fn read() -> Result<HeaderPage, AttachError> {
        let mut page = [0u8; header::BYTES];
        // SAFETY: reads at most one page into one page.
        let got = unsafe { libc::pread(nm::NODE_MEMORY_FD, page.as_mut_ptr().cast(), page.len(), 0) };
        if got != page.len() as isize {
            return Err(failed("cannot read the node memory"));
        }
        let page = HeaderPage(page);
        if page.get(header::MAGIC) != nm::MAGIC || page.get(header::VERSION) != nm::VERSION {
            return Err(AttachError(
                "the node memory was made by another version of resurgo".into(),
            ));
        }
        Ok(page)
    }
}

/// Maps the node memory at `place`, to be read.
fn map(layout: &Layout, place: usize) -> Result<*mut u8, AttachError> {
    // SAFETY: maps unused address space (NOREPLACE); the memfd is as long as the layout says.
    let base = unsafe {
        libc::mmap(
            place as *mut _,
            layout.total(),
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
            nm::NODE_MEMORY_FD,
            0,
        )
    };
    if base as usize != place {
        return Err(not_mapped(place, layout.total()));
    }
    Ok(base.cast::<u8>())
}

impl Node {
    /// Maps the node memory inherited as [`nm::NODE_MEMORY_FD`].
    pub fn attach() -> Result<Node, AttachError> {
        let rank = own_rank()?;
        let page = HeaderPage::read()?;
        let protocol = Protocol::numbered(page.get(header::PROTOCOL))
            .ok_or_else(|| AttachError("the node memory names no protocol that there is".into()))?;
        let size = page.get(header::SIZE) as usize;
        let layout = Layout {
            size,
            log_segments: page.get(header::LOG_SEGMENTS) as usize,
            spills: page.get(header::SPILL) != 0,
            piggybacks: protocol.piggybacks(page.get(header::TOLERATE_NODE) != 0),
            trace_records: page.get(header::TRACE_RECORDS) as usize,
            undoes: page.get(header::UNDOES) != 0,
            rereads: page.get(header::REREADS) != 0,
        };
        if rank >= size
            || page.get(header::ARENA_BASE) as usize != layout.arena_base()
            || page.get(header::ARENA_STRIDE) as usize != layout.arena_stride()
        {
            return Err(AttachError("the node memory does not fit this rank".into()));
        }
        let base = map(&layout, page.get(header::PLACE) as usize)?;
        // SAFETY: aligned words inside the mapping, which the agent has written before this rank was started.
        let group = |of: usize| unsafe { *base.add(layout.control(of) + control::GROUP.at).cast::<u64>() };
        let waves = protocol.waves();
        let moves = page.get(header::TOLERATE_NODE) == nm::OF_SEVERAL && protocol.logs();
        let inside = match waves {
            // Where ranks move, all channels keep the same.
            kinds::Waves::OfEachGroup if !moves => (0..size).map(|other| group(other) == group(rank)).collect(),
            _ => Vec::new(),
        };
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        for (from, bytes) in [(0, layout.arena_base()), (layout.arena(rank), layout.arena_stride())] {
            // SAFETY: a part of the mapping made above.
            if unsafe { libc::mprotect(base.add(from).cast(), bytes, writable) } != 0 {
                return Err(failed("cannot make this rank's part of the node memory writable"));
            }
        }
        // SAFETY: an aligned word of the rank's own control inside the mapping, only ever accessed as an atomic.
        let attached = unsafe {
            &*base
                .add(layout.control(rank) + control::ATTACHED.at)
                .cast::<AtomicU64>()
        };
        crate::claim::take(attached).map_err(AttachError)?;
        if layout.trace_records > 0 {
            // SAFETY: the ring lies in the rank's own arena, which is writable, and nothing unmaps the node memory.
            unsafe { crate::trace::attach(base.add(layout.arena(rank) + layout.trace()), layout.trace_records) };
        }
        let services = page.services();
        // A core dump is about the program, and this mapping is sparse and enormous.
        // SAFETY: the mapping made above.
        unsafe { libc::madvise(base.cast(), layout.total(), libc::MADV_DONTDUMP) };
        Ok(Node {
            base,
            layout,
            rank,
            size,
            logs: protocol.logs(),
            waves: protocol.has_waves(),
            returns_together: protocol.can_return_together(),
            waves_pass: waves == kinds::Waves::Passing,
            in_groups: waves == kinds::Waves::GroupByGroup,
            inside,
            piggybacking: layout.piggybacks,
            reduction: page.get(header::REDUCTION),
            clock_spread: page.get(header::CLOCK_SPREAD),
            tolerate_node: page.get(header::TOLERATE_NODE) != 0,
            moves,
            spill: layout.spills,
            spin_ns: page.get(header::SPIN_NS),
            prefault_segments: page.get(header::PREFAULT_SEGMENTS) as usize,
            servers_are_here: services.are_here(),
            event_loggers: services.of(Server::EventLogger),
            channel_memories: services.of(Server::ChannelMemory),
            job_key: page.bytes(header::JOB_KEY),
            survives: page.get(header::SURVIVORS) != 0,
            bell: AtomicI32::new(-1),
        })
    }

    /// A process that has woken up may be on another node than the one of its image, where servers have other addresses.
    pub fn find_servers(&mut self) {
        let services = services(|at| {
            self.word_at::<u64>(header::SERVICES.item(at).at)
                .load(Ordering::Relaxed)
        });
        self.servers_are_here = services.are_here();
        self.event_loggers = services.of(Server::EventLogger);
        self.channel_memories = services.of(Server::ChannelMemory);
    }

    fn word_at<T: Word>(&self, offset: usize) -> &T::Atomic {
        debug_assert!(offset + size_of::<T>() <= self.layout.total() && offset.is_multiple_of(size_of::<T>()));
        // SAFETY: inside the mapping, aligned, and only ever accessed as an atomic of this type, as its field or table says.
        unsafe { &*self.base.add(offset).cast() }
    }

    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        self.word_at::<u64>(offset)
    }

    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        self.word_at::<u32>(offset)
    }

    /// A later life repeats what former ones did.
    pub fn replays(&self) -> bool {
        self.logs || !self.channel_memories.is_empty()
    }

    /// Ranks that the job has had so far. Later ranks have sent and received nothing; touching their parts of the
    /// memory would cost a page each.
    pub fn ranks(&self) -> usize {
        (self.header(header::RANKS).load(Ordering::Acquire) as usize).min(self.size)
    }

    /// A field of the header.
    #[inline]
    pub fn header<T: Word>(&self, field: Field<Header, T>) -> &T::Atomic {
        self.word_at::<T>(field.at)
    }

    /// Where the controls of ranks begin.
    pub fn controls(&self) -> *const u8 {
        self.control(0, control::INCARNATION).as_ptr().cast()
    }

    /// Which of the ranks from 64 × `word` on, on other nodes, have news.
    pub fn news(&self, word: usize) -> &AtomicU64 {
        self.header(header::NEWS.item(word))
    }

    /// Whether the mover must be woken.
    pub fn mover_sleeps(&self) -> bool {
        self.header(header::MOVER_SLEEPS).load(Ordering::SeqCst) != 0
    }

    /// Ranks may carry channels to other nodes themselves.
    pub fn is_direct(&self) -> bool {
        self.header(header::DIRECT).load(Ordering::Acquire) != 0
    }

    /// The address at which ranks of other nodes find this node.
    pub fn address(&self) -> [u64; 2] {
        [0, 1].map(|at| self.header(header::ADDRESS.item(at)).load(Ordering::Acquire))
    }

    /// Whether this node may still send: its agent has its lease.
    pub fn is_valid(&self) -> bool {
        let until = self.header(header::VALID_UNTIL).load(Ordering::Relaxed);
        until == 0 || crate::clock::since_boot_ns() < until
    }

    /// `rank` is on another node.
    #[inline]
    pub fn is_elsewhere(&self, rank: usize) -> bool {
        self.control(rank, control::SLEEPING).load(Ordering::Relaxed) == nm::ELSEWHERE
    }

    /// The record is lost with the node of former lives, and not written anew: after so many deliveries it is what the
    /// event logger has.
    pub fn record_lost(&self) -> Option<u64> {
        let lost = self.control(self.rank, control::RECORD_LOST).load(Ordering::Acquire);
        lost.checked_sub(1).filter(|_| self.moves)
    }

    /// The record is there again.
    pub fn find_record_again(&self) {
        self.set(control::RECORD_LOST, 0);
    }

    /// A word that this rank and movers share about its channels to or from `other`.
    #[inline]
    pub fn direct(&self, other: usize, word: direct::Word) -> &AtomicU64 {
        self.u64_at(self.layout.arena(self.rank) + self.layout.direct(other) + word as usize)
    }

    /// Lets this rank write to the copy of the arena of `rank`. False: the system refuses.
    pub fn make_writable(&self, rank: usize) -> bool {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a part of the mapping.
        unsafe {
            let arena = self.base.add(self.layout.arena(rank));
            libc::mprotect(arena.cast(), self.layout.arena_stride(), writable) == 0
        }
    }

    /// A field of the control of `rank`.
    #[inline]
    pub fn control<T: Word>(&self, rank: usize, field: Field<Control, T>) -> &T::Atomic {
        self.word_at::<T>(self.layout.control(rank) + field.at)
    }

    /// Sets a figure of this rank that the agent reads.
    #[inline]
    pub fn set(&self, field: Field<Control, u64>, value: u64) {
        self.control(self.rank, field).store(value, Ordering::Relaxed);
    }

    fn cost(&self, cost: Cost) -> &AtomicU64 {
        self.control(self.rank, control::COSTS.item(cost as usize))
    }

    /// Adds to a count over this rank's lives.
    #[inline]
    pub fn add(&self, cost: Cost, more: u64) {
        // No one else writes there.
        self.put(cost, self.cost(cost).load(Ordering::Relaxed) + more);
    }

    /// Notes it if it is the greatest so far.
    #[inline]
    pub fn most(&self, cost: Cost, value: u64) {
        if value > self.cost(cost).load(Ordering::Relaxed) {
            self.put(cost, value);
        }
    }

    /// Sets a cost to its present value.
    #[inline]
    pub fn put(&self, cost: Cost, value: u64) {
        self.cost(cost).store(value, Ordering::Relaxed);
    }

    /// Deliveries and sends of this life after which an injected fault strikes.
    pub fn fault_at(&self) -> u64 {
        match self
            .control(self.rank, control::FAULT_AT_MESSAGES)
            .load(Ordering::Acquire)
        {
            0 => u64::MAX,
            messages => messages,
        }
    }

    /// Sends and deliveries after which this rank wants an image.
    pub fn image_at(&self) -> u64 {
        match self
            .control(self.rank, control::IMAGE_AT_MESSAGES)
            .load(Ordering::Acquire)
        {
            0 => u64::MAX,
            messages => messages,
        }
    }

    /// A field of this rank's own arena.
    pub fn own<T: Word>(&self, field: Field<Arena, T>) -> &T::Atomic {
        self.of(self.rank, field)
    }

    /// A field of the arena of `rank`.
    pub fn of<T: Word>(&self, rank: usize, field: Field<Arena, T>) -> &T::Atomic {
        self.word_at::<T>(self.layout.arena(rank) + field.at)
    }

    /// Word `word` of event `index` in a half of the knowledge of `rank`.
    #[inline]
    pub fn known(&self, rank: usize, half: usize, index: usize, word: usize) -> &AtomicU64 {
        debug_assert!(index < nm::KNOWLEDGE_EVENTS && word < 4);
        self.u64_at(self.layout.arena(rank) + self.layout.knowledge(half) + index * nm::EVENT_BYTES + word * 8)
    }

    /// Reference of the first segment of the channel `source` → `destination`.
    pub fn channel(&self, source: usize, destination: usize) -> &AtomicU64 {
        self.u64_at(self.layout.arena(source) + arena::CHANNELS + destination * 8)
    }

    /// Segments of the channel `source` → `destination` that `destination` has read to their end; inside a group, the
    /// serial of the one that it reads.
    #[inline]
    pub fn consumed(&self, source: usize, destination: usize) -> &AtomicU64 {
        self.u64_at(self.layout.arena(destination) + self.layout.consumed() + source * 8)
    }

    /// Serial of the first segment of the channel `source` → `destination` that `destination` can still ask for: the
    /// one that its oldest usable image was reading. Where ranks move: the messages that this image has received.
    pub fn needed_from(&self, source: usize, destination: usize) -> u64 {
        let cursors = |slot: usize| self.layout.arena(destination) + self.layout.cursors(slot);
        self.of_oldest_image(destination, |slot| {
            self.u64_at(cursors(slot) + source * 8).load(Ordering::Acquire)
        })
    }

    /// The notes of the oldest image that `rank` may recover from, by slot; 0: that is the beginning of the program.
    fn of_oldest_image(&self, rank: usize, noted: impl Fn(usize) -> u64) -> u64 {
        let oldest = self.of(rank, arena::OLDEST_IMAGE);
        loop {
            let image = oldest.load(Ordering::Acquire);
            if image == 0 {
                return 0;
            }
            let noted = noted(image as usize - 1);
            // A slot is reused only after its image has stopped being the oldest.
            if oldest.load(Ordering::SeqCst) == image {
                return noted;
            }
        }
    }

    /// Where this rank notes its position in `source`'s channel in the image of `slot`: see [`Node::needed_from`].
    pub fn image_cursor(&self, slot: usize, source: usize) -> &AtomicU64 {
        self.u64_at(self.layout.arena(self.rank) + self.layout.cursors(slot) + source * 8)
    }

    /// Where this rank notes the messages sent to `peer` and delivered from it by the image of `slot`.
    pub fn image_counts(&self, slot: usize, peer: usize) -> [&AtomicU64; 2] {
        let tables = [self.layout.image_sent(slot), self.layout.image_delivered(slot)];
        tables.map(|table| self.u64_at(self.layout.arena(self.rank) + table + peer * 8))
    }

    /// Reference of the record's segment where this rank's oldest usable image continues, 0: all are needed.
    pub fn record_needed_from(&self) -> u64 {
        self.of_oldest_image(self.rank, |slot| {
            self.own(arena::RECORD_CURSORS.item(slot)).load(Ordering::Acquire)
        })
    }

    /// How many deliveries of `rank` its oldest usable image covers.
    pub fn covered(&self, rank: usize) -> u64 {
        let clock = |slot: usize| arena::IMAGE_CLOCKS.item(slot);
        self.of_oldest_image(rank, |slot| self.of(rank, clock(slot)).load(Ordering::Acquire))
    }

    /// Messages that `source` had sent to `destination` when a wave stopped it; inside a group, those of all its lives.
    pub fn announced(&self, source: usize, destination: usize) -> &AtomicU64 {
        self.u64_at(self.layout.arena(source) + self.layout.announced() + destination * 8)
    }

    /// Where this rank publishes the number of messages sent to `destination`.
    #[inline]
    pub fn sent(&self, destination: usize) -> &AtomicU64 {
        self.u64_at(self.layout.arena(self.rank) + self.layout.sent() + destination * 8)
    }

    /// How far the waves that stop no rank have come.
    #[inline]
    pub fn waves(&self) -> Waves {
        Waves {
            asked: self.header(header::WAVES_ASKED).load(Ordering::Acquire),
            over: self.header(header::WAVES_OVER).load(Ordering::Acquire),
        }
    }

    /// Whether this rank and `other` are in one group, and return together.
    #[inline]
    pub fn is_inside(&self, other: usize) -> bool {
        !self.inside.is_empty() && self.inside[other]
    }

    /// Number of the oldest wave that this rank's group may return to.
    pub fn oldest_wave(&self) -> u64 {
        self.own(arena::OLDEST_WAVE).load(Ordering::Acquire)
    }

    /// Whether waves of groups let a message to `destination` leave now.
    #[inline]
    pub fn passes(&self, destination: usize) -> bool {
        let turn = Turn::from_word(self.header(header::TURN).load(Ordering::Acquire));
        turn.group == 0 || turn.passes(self.group(self.rank), self.group(destination))
    }

    fn group(&self, rank: usize) -> u32 {
        self.control(rank, control::GROUP).load(Ordering::Relaxed) as u32
    }

    /// Where this rank notes its position at its cut.
    pub fn cut(&self, table: CutTable, other: usize) -> &AtomicU64 {
        self.u64_at(self.layout.arena(self.rank) + self.layout.cut(table) + other * 8)
    }

    /// The position of `destination` at its last cut in the channel from this rank.
    pub fn cut_of(&self, destination: usize) -> Place {
        let start = self.layout.arena(destination);
        let wave = self.of(destination, arena::CUT).load(Ordering::Acquire);
        let reading = self.u64_at(start + self.layout.cut(CutTable::Reading) + self.rank * 8);
        let reference = reading.load(Ordering::Acquire);
        Place {
            wave,
            segment: if reference == 0 {
                0
            } else {
                nm::dereference(reference).0
            },
        }
    }

    /// 1 + serial of the segment in `slot` of `owner`'s arena.
    #[inline]
    pub fn serial_in(&self, owner: usize, slot: usize) -> &AtomicU64 {
        debug_assert!(slot < self.layout.log_segments);
        self.u64_at(self.layout.arena(owner) + self.layout.serials() + slot * 8)
    }

    /// 1 + number in the spill file of `owner`'s segment `serial`.
    pub fn spilled_to(&self, owner: usize, serial: u64) -> &AtomicU32 {
        self.u32_at(self.layout.arena(owner) + self.layout.spill_table() + serial as usize * 4)
    }

    /// Next free segment of the spill file.
    pub fn spill_next(&self) -> &AtomicU64 {
        self.header(header::SPILL_NEXT)
    }

    /// Start of a segment in memory.
    #[inline]
    pub fn segment(&self, owner: usize, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.layout.log_segments);
        // SAFETY: inside the mapping.
        unsafe {
            self.base
                .add(self.layout.arena(owner) + self.layout.segments() + slot * SEGMENT)
        }
    }

    /// Start of this rank's table of created and removed files ([`nm::deeds`]).
    pub fn deeds(&self) -> *mut u8 {
        // SAFETY: inside the mapping.
        unsafe { self.base.add(self.layout.arena(self.rank) + self.layout.deeds()) }
    }

    /// Start of this rank's undo log ([`resurgo_wire::undo`]), if it has one.
    pub fn undo(&self) -> Option<*mut u8> {
        // SAFETY: inside the mapping.
        let start = || unsafe { self.base.add(self.layout.arena(self.rank) + self.layout.undo()) };
        self.layout.undoes.then(start)
    }

    /// Start of its read log, if it has one.
    pub fn reads(&self) -> Option<*mut u8> {
        // SAFETY: inside the mapping.
        let start = || unsafe { self.base.add(self.layout.arena(self.rank) + self.layout.reads()) };
        self.layout.rereads.then(start)
    }

    /// This life begins together with those of all other ranks: they return to a wave.
    pub fn begins_together(&self) -> bool {
        self.control(self.rank, control::TOGETHER).load(Ordering::Acquire) != 0
    }

    /// Leaves `text` for the agent and ends the process: the job ends with this text.
    pub fn report(&self, text: &str) -> ! {
        self.report_and_exit(text, nm::EXIT_REPORT)
    }

    /// As [`Node::report`], with `code`.
    pub fn report_and_exit(&self, text: &str, code: i32) -> ! {
        let text = &text.as_bytes()[..text.len().min(control::REPORT_BYTES)];
        let place = self.layout.control(self.rank) + control::REPORT.at;
        // SAFETY: the report area of the own control, long enough for REPORT_BYTES.
        unsafe {
            let to = self.base.add(place + Text::<{ control::REPORT_BYTES }>::HEAD);
            std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
        }
        self.u32_at(place).store(text.len() as u32, Ordering::Release);
        self.set(control::REPORT_CODE, code as u64);
        // SAFETY: ends the process at once; the program's exit handlers must not run in a state that is not its own.
        unsafe { libc::_exit(code) }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The agent's words about waves.
    pub fn set_waves(node: &Node, asked: u64, over: u64) {
        node.header(header::WAVES_ASKED).store(asked, Ordering::Release);
        node.header(header::WAVES_OVER).store(over, Ordering::Release);
    }

    /// The agent's words about a wave of groups: whose turn it is, and the groups of both ranks.
    pub fn set_turn(node: &Node, turn: Turn, groups: [u64; 2]) {
        for (rank, group) in groups.into_iter().enumerate() {
            node.control(rank, control::GROUP).store(group, Ordering::Relaxed);
        }
        node.header(header::TURN).store(turn.word(), Ordering::Release);
    }

    #[test]
    fn messages_pass_where_a_wave_has_come_to_both_or_to_neither() {
        let (one, _other) = pair(1, false);
        assert!(one.passes(1), "there has been no wave");
        for (group, groups, expected) in [
            (1, [1, 2], false),
            (2, [1, 2], false),
            (3, [1, 2], true),
            (1, [2, 3], true),
            (1, [1, 1], true),
            (0, [1, 2], true),
        ] {
            set_turn(&one, Turn { wave: 1, group }, groups);
            assert_eq!(one.passes(1), expected, "{group} {groups:?}");
            assert!(one.passes(0), "to itself");
        }
    }

    /// Both ranks are one group, which may return to wave `oldest`.
    pub fn set_one_group(node: &mut Node, oldest: u64) {
        node.inside = vec![true; 2];
        node.own(arena::OLDEST_WAVE).store(oldest, Ordering::Release);
    }

    impl Node {
        /// Ranks of other nodes may call this one at that address.
        pub fn be_direct(&self, address: std::net::IpAddr) {
            self.header(header::DIRECT).store(1, Ordering::Relaxed);
            for (at, word) in direct::to_words(address).into_iter().enumerate() {
                self.header(header::ADDRESS.item(at)).store(word, Ordering::Relaxed);
            }
        }
    }

    static NEXT_PLACE: Mutex<usize> = Mutex::new(1 << 44);

    /// A test's own node memory, seen by two ranks; its header has only their number, and every part is writable.
    pub fn pair(log_segments: usize, logs: bool) -> (Node, Node) {
        let layout = Layout {
            size: 2,
            log_segments,
            spills: true,
            piggybacks: true,
            trace_records: 0,
            undoes: true,
            rereads: true,
        };
        let mut place = NEXT_PLACE.lock().expect("no test panics while it holds the lock");
        // SAFETY: anonymous memory at a place of this test alone.
        let base = unsafe {
            libc::mmap(
                *place as *mut _,
                layout.total(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(base as usize, *place);
        *place += layout.total().next_multiple_of(1 << 30);
        let seen_by = |rank| Node {
            base: base.cast(),
            layout,
            rank,
            size: 2,
            logs,
            waves: false,
            returns_together: false,
            waves_pass: false,
            in_groups: false,
            inside: Vec::new(),
            piggybacking: false,
            reduction: 0,
            clock_spread: 0,
            tolerate_node: false,
            moves: false,
            spill: false,
            spin_ns: 0,
            prefault_segments: 0,
            servers_are_here: true,
            event_loggers: Vec::new(),
            channel_memories: Vec::new(),
            job_key: [0; 32],
            survives: false,
            bell: AtomicI32::new(-1),
        };
        let (first, second) = (seen_by(0), seen_by(1));
        first.header(header::RANKS).store(2, Ordering::Relaxed);
        (first, second)
    }
}
