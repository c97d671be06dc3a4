//! Meshes of two or three nodes in a simulated network, from a seed. Connections break at any byte, and each side
//! notices in its own time; ranks send, read and have images; logs are emptied, or cut off at a wave, node after node.
//! What ranks read is as it was sent, what has been flushed is there, and at the end everything is.
//!
//! `SEEDS=N` takes so many seeds instead of the usual ones, `SEED=N` one of them.

use std::collections::VecDeque;
use std::time::Instant;

use resurgo_wire::mesh::Table;

use super::super::mesh::{Conversation, Mesh};
use super::ranks::{Place, Random, Receiver, Sender};
use super::*;

/// A fault that the simulation must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    /// A frame is lost although its connection goes on.
    LoseAFrame,
    /// Positions are not told: the sender does not know how far the copies go.
    TellNoPositions,
    /// What is behind a cut is not told to be void.
    CutOffSilently,
    /// Images are not told: senders have no room.
    ForgetNothing,
    /// The epoch of data is not told: data of a former one counts.
    TellNoEpochs,
    /// Data of a later epoch does not wait until that has begun.
    WaitForNoEpoch,
    /// A flush is answered before what was sent before it has come.
    AnswerEarly,
    /// A new connection goes on with the output of the one before.
    KeepOutput,
    /// The receiver goes on in the middle of a frame of the connection before.
    KeepInput,
    /// A rank rings for nobody.
    RingForNobody,
    /// Ranks run after a return before all nodes have cut their logs off.
    RunEarly,
}

const MUTATIONS: [Mutation; 11] = [
    Mutation::LoseAFrame,
    Mutation::TellNoPositions,
    Mutation::CutOffSilently,
    Mutation::ForgetNothing,
    Mutation::TellNoEpochs,
    Mutation::WaitForNoEpoch,
    Mutation::AnswerEarly,
    Mutation::KeepOutput,
    Mutation::KeepInput,
    Mutation::RingForNobody,
    Mutation::RunEarly,
];

const EPOCH: u64 = 3;
/// Steps with breaks, and the most until everything is there without any.
const STEPS: usize = 4_000;
const MOST: usize = 60_000;

fn length(number: u64) -> usize {
    match number % 7 {
        0 => 0,
        3 => 30_000 + 977 * (number as usize % 31),
        5 => 9_000,
        _ => 40 * (number as usize % 11),
    }
}

/// What a node stands on.
struct Ground {
    memory: NodeMemory,
    mapped: Arc<Mapped>,
    bell: EventFd,
}

/// One side of a connection between two nodes.
#[derive(Default)]
struct End {
    /// The connection that this side has; none: it has noticed that it is over.
    connection: Option<u64>,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Between two nodes, the lower one first.
struct Cable {
    nodes: [usize; 2],
    ends: [End; 2],
    /// The connection that carries data, if one does.
    present: Option<u64>,
    /// What is on its way from each end to the other.
    under_way: [VecDeque<u8>; 2],
}

/// A channel between ranks of two nodes.
struct Channel<'a> {
    source: usize,
    destination: usize,
    /// Messages that are sent whole.
    sent: u64,
    receiver: Receiver<'a>,
    /// From which message on the content is that of which seed.
    seeds: Vec<(u64, u64)>,
}

/// Where a channel was at a wave.
#[derive(Clone)]
struct AtWave<'a> {
    place: Place,
    sent: u64,
    receiver: Receiver<'a>,
}

/// A flush of a node: what other nodes have when it is answered.
struct Flush {
    node: usize,
    number: u64,
    /// Per channel from there, by its place.
    sent: Vec<(usize, u64)>,
}

struct World<'a> {
    random: Random,
    mutation: Option<Mutation>,
    job: Job,
    logs: bool,
    /// Images are those of waves, and all return to the last one; otherwise each rank's own.
    waves: bool,
    of_rank: Vec<u32>,
    grounds: &'a [Ground],
    meshes: Vec<Mesh>,
    epochs: Vec<u64>,
    senders: Vec<Sender<'a>>,
    channels: Vec<Channel<'a>>,
    cables: Vec<Cable>,
    /// Nodes whose ranks stand still, as they have yet to begin the present epoch.
    still: Vec<bool>,
    flushes: Vec<Flush>,
    flushed: u64,
    wave: Option<Vec<AtWave<'a>>>,
    /// Flushes that ranks wait for after a return.
    returning: Vec<u64>,
    slots: Vec<usize>,
    connections: u64,
    seed: u64,
    /// Messages of each channel.
    count: u64,
    now: Instant,
    /// There are no images any more.
    settles: bool,
    /// Of waves, returns and epochs that have come about.
    happened: [usize; 3],
}

impl<'a> World<'a> {
    fn new(seed: u64, mutation: Option<Mutation>, job: Job, of_rank: Vec<u32>, grounds: &'a [Ground]) -> World<'a> {
        let nodes = grounds.len();
        let habits = Habits {
            logs: job.protocol.logs(),
            ..LOGS_ALONE
        };
        let plan = |own: usize| Nodes {
            copies: Vec::new(),
            is_encrypted: false,
            own: own as u32,
            epoch: EPOCH,
            mesh: vec![vec![SocketAddr::from(([127, 0, 0, 1], 1))]; nodes],
            of_rank: of_rank.clone(),
        };
        let meshes = (0..nodes).map(|own| {
            let mut mesh = Mesh::new(grounds[own].mapped.clone(), habits, Default::default(), None);
            mesh.grow(&plan(own));
            mesh
        });
        let pairs = (0..nodes).flat_map(|low| (low + 1..nodes).map(move |high| [low, high]));
        let cable = |nodes| Cable {
            nodes,
            ends: Default::default(),
            present: None,
            under_way: Default::default(),
        };
        let mut world = World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x51),
            mutation,
            logs: job.protocol.logs(),
            waves: job.protocol == Protocol::Auto,
            job,
            grounds,
            meshes: meshes.collect(),
            epochs: vec![EPOCH; nodes],
            senders: Vec::new(),
            channels: Vec::new(),
            cables: pairs.map(cable).collect(),
            still: vec![false; nodes],
            flushes: Vec::new(),
            flushed: 0,
            wave: None,
            returning: Vec::new(),
            slots: vec![0; of_rank.len()],
            of_rank,
            connections: 0,
            seed,
            count: 40,
            now: Instant::now(),
            settles: false,
            happened: [0; 3],
        };
        world.tell_ranks();
        world.begin();
        world
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn node_of(&self, rank: usize) -> usize {
        self.of_rank[rank] as usize
    }

    fn tell_ranks(&self) {
        for node in 0..self.grounds.len() {
            self.tell_ranks_of(node);
        }
    }

    fn tell_ranks_of(&self, node: usize) {
        for rank in (0..self.of_rank.len()).filter(|rank| self.node_of(*rank) != node) {
            let word = self.grounds[node].mapped.control32(rank, control::SLEEPING);
            word.store(ELSEWHERE, Ordering::SeqCst);
        }
    }

    /// All ranks begin, with empty logs.
    fn begin(&mut self) {
        let size = self.of_rank.len();
        let grounds = self.grounds;
        let sender = |rank: usize| {
            let ground = &grounds[self.of_rank[rank] as usize];
            Sender::new(&ground.mapped, &ground.bell, rank, self.logs, self.seed)
        };
        self.senders = (0..size).map(sender).collect();
        let pairs = (0..size).flat_map(|source| (0..size).map(move |destination| (source, destination)));
        let channel = |(source, destination): (usize, usize)| {
            let mut receiver = Receiver::new(&grounds[self.of_rank[destination] as usize].mapped, source, destination);
            receiver.length = Some(length);
            Channel {
                source,
                destination,
                sent: 0,
                receiver,
                seeds: vec![(0, self.seed)],
            }
        };
        let apart = pairs.filter(|(source, destination)| self.of_rank[*source] != self.of_rank[*destination]);
        self.channels = apart.map(channel).collect();
        self.wave = None;
        self.flushes.clear();
        self.returning.clear();
        self.slots.fill(0);
    }

    /// The ranks of this node run.
    fn runs(&self, rank: usize) -> bool {
        let waits = !self.returning.is_empty() && !self.is(Mutation::RunEarly);
        !self.still[self.node_of(rank)] && !waits
    }

    fn send(&mut self) {
        let place = self.random.below(self.channels.len());
        let Channel {
            source,
            destination,
            sent,
            ..
        } = self.channels[place];
        if !self.runs(source) || sent >= self.count {
            return;
        }
        self.senders[source].seed = self.channels[place].seed_of(sent);
        if self.senders[source].append(destination, sent, length(sent)) {
            self.channels[place].sent += 1;
        }
        if self.is(Mutation::RingForNobody) && self.one_in(3) {
            let memory = &self.grounds[self.node_of(source)].mapped;
            memory.header(header::NEWS.item(0)).store(0, Ordering::SeqCst);
        }
    }

    fn read(&mut self) {
        let place = self.random.below(self.channels.len());
        let (source, destination) = (self.channels[place].source, self.channels[place].destination);
        if !self.runs(destination) {
            return;
        }
        for _ in 0..1 + self.random.below(3) {
            let Some(segments) = self.channels[place].receive() else {
                return;
            };
            if !self.logs && segments > 0 {
                self.senders[destination].consumed(source, segments);
            }
        }
    }

    /// The rank has an image, and senders may forget what that has.
    fn take_image(&mut self, rank: usize) {
        let node = self.node_of(rank);
        let memory = &self.grounds[node].mapped;
        let slot = self.slots[rank];
        self.slots[rank] = (slot + 1) % 8;
        for channel in self.channels.iter().filter(|channel| channel.destination == rank) {
            let at = memory.layout.arena(rank) + memory.layout.cursors(slot) + channel.source * 8;
            memory.word(at).store(channel.receiver.serial(), Ordering::Release);
        }
        memory
            .arena32(rank, arena::OLDEST_IMAGE)
            .store(slot as u32 + 1, Ordering::Release);
        if !self.is(Mutation::ForgetNothing) {
            self.meshes[node].obey(&Command::Oldest(rank as u32));
        }
    }

    fn take_images(&mut self) {
        if !self.logs || (0..self.of_rank.len()).any(|rank| !self.runs(rank)) {
            return;
        }
        if !self.waves {
            let rank = self.random.below(self.of_rank.len());
            return self.take_image(rank);
        }
        let at_wave = |channel: &Channel<'a>| AtWave {
            place: self.senders[channel.source].place(channel.destination),
            sent: channel.sent,
            receiver: channel.receiver.clone(),
        };
        self.wave = Some(self.channels.iter().map(at_wave).collect());
        self.happened[0] += 1;
        (0..self.of_rank.len()).for_each(|rank| self.take_image(rank));
    }

    /// All ranks return to the last wave: they cut their logs off, and run when all other nodes know of that.
    fn all_return(&mut self) {
        let is_whole = self.returning.is_empty() && !self.still.contains(&true);
        let Some(wave) = self.wave.clone().filter(|_| self.waves && is_whole) else {
            return;
        };
        self.happened[1] += 1;
        self.flushes.clear();
        self.seed += 1;
        for (channel, at) in self.channels.iter_mut().zip(wave) {
            channel.sent = at.sent;
            channel.receiver = at.receiver;
            // What has begun goes on as it began.
            let begun = self.senders[channel.source].cut_off(channel.destination, at.place);
            channel.seeds.retain(|(from, _)| *from < at.sent + u64::from(begun));
            channel.seeds.push((at.sent + u64::from(begun), self.seed));
        }
        for rank in 0..self.of_rank.len() {
            if !self.is(Mutation::CutOffSilently) {
                let node = self.node_of(rank);
                self.meshes[node].obey(&Command::CutOff(rank as u32));
            }
        }
        for node in 0..self.meshes.len() {
            let number = self.flush(node);
            self.returning.push(number);
        }
    }

    fn flush(&mut self, node: usize) -> u64 {
        self.flushed += 1;
        let number = self.flushed;
        let here = self.channels.iter().enumerate();
        let here = here.filter(|(_, channel)| self.of_rank[channel.source] as usize == node);
        let sent = here.map(|(place, channel)| (place, channel.sent)).collect();
        self.meshes[node].obey(&Command::Flush(number));
        self.flushes.push(Flush { node, number, sent });
        number
    }

    /// All logs are emptied: ranks end everywhere, and begin where that has been done.
    fn empty(&mut self) {
        if self.still.contains(&true) || !self.returning.is_empty() {
            return;
        }
        self.happened[2] += 1;
        self.still.fill(true);
        self.seed += 1;
        self.flushes.clear();
        self.wave = None;
    }

    fn begin_epoch(&mut self, node: usize) {
        let ground = &self.grounds[node];
        ground.memory.reset(&self.job, self.of_rank.len()).unwrap();
        self.tell_ranks_of(node);
        if self.still.iter().all(|still| *still) {
            self.begin();
        }
        self.still[node] = false;
        self.epochs[node] += 1;
        let number = self.epochs[node];
        self.meshes[node].obey(&Command::Epoch(number));
        for cable in 0..self.cables.len() {
            for side in 0..2 {
                if self.cables[cable].nodes[side] == node {
                    self.hear(cable, side);
                }
            }
        }
    }

    /// The conversation of this side of the cable.
    fn with(&mut self, cable: usize, side: usize) -> &mut Conversation {
        let [own, other] = match side {
            0 => self.cables[cable].nodes,
            _ => [self.cables[cable].nodes[1], self.cables[cable].nodes[0]],
        };
        let mut all = self.meshes[own].conversations.iter_mut();
        all.find(|with| with.node as usize == other).expect("of all nodes")
    }

    fn cut(&mut self, cable: usize) {
        let cable = &mut self.cables[cable];
        cable.present = None;
        cable.under_way.iter_mut().for_each(VecDeque::clear);
    }

    /// This side notices that its connection is over.
    fn notice(&mut self, cable: usize, side: usize) {
        let keeps = [Mutation::KeepOutput, Mutation::KeepInput].map(|mutation| self.is(mutation));
        let present = self.cables[cable].present;
        let end = &mut self.cables[cable].ends[side];
        if end.connection.is_none() || end.connection == present {
            return;
        }
        *end = End {
            connection: None,
            output: if keeps[0] {
                std::mem::take(&mut end.output)
            } else {
                Vec::new()
            },
            input: if keeps[1] {
                std::mem::take(&mut end.input)
            } else {
                Vec::new()
            },
        };
        self.with(cable, side).end();
    }

    /// The higher node calls.
    fn call(&mut self, cable: usize) {
        if self.cables[cable].ends[1].connection.is_none() && self.cables[cable].present.is_none() {
            self.connections += 1;
            self.cables[cable].present = Some(self.connections);
            self.join(cable, 1);
        }
    }

    /// This side joins the connection that stands. The called one may not have noticed that another was over.
    fn join(&mut self, cable: usize, side: usize) {
        let present = self.cables[cable].present;
        let end = &mut self.cables[cable].ends[side];
        if present.is_none() || end.connection == present {
            return;
        }
        let (mut output, mut input) = (Vec::new(), Vec::new());
        if self.mutation == Some(Mutation::KeepOutput) {
            output = std::mem::take(&mut end.output);
        }
        if self.mutation == Some(Mutation::KeepInput) {
            input = std::mem::take(&mut end.input);
        }
        assert!(self.with(cable, side).begin(None, &mut output).unwrap());
        self.cables[cable].ends[side] = End {
            connection: present,
            input,
            output,
        };
    }

    fn stands(&self, cable: usize, side: usize) -> bool {
        let cable = &self.cables[cable];
        cable.ends[side].connection.is_some() && cable.ends[side].connection == cable.present
    }

    /// The node does its work for this side: takes what ranks have rung for, and sends some of it.
    fn pump(&mut self, cable: usize, side: usize) {
        let node = self.cables[cable].nodes[side];
        self.meshes[node].hear_ranks();
        let mut output = std::mem::take(&mut self.cables[cable].ends[side].output);
        let has = self.cables[cable].ends[side].connection.is_some();
        let (now, most) = (self.now, 1 + self.random.below(40_000));
        let with = self.with(cable, side);
        with.tend(now, has.then_some(&mut output)).unwrap();
        if has && output.len() < 100_000 {
            with.fill(&mut output, most).unwrap();
        }
        if self.stands(cable, side) {
            let moved = self.random.below(output.len() + 1);
            self.cables[cable].under_way[side].extend(output.drain(..moved));
        }
        self.cables[cable].ends[side].output = output;
    }

    /// Bytes arrive at this side.
    fn arrive(&mut self, cable: usize, side: usize) {
        let length = self.cables[cable].under_way[1 - side].len();
        if length == 0 || !self.stands(cable, side) {
            return;
        }
        let came = 1 + self.random.below(length);
        let Cable { ends, under_way, .. } = &mut self.cables[cable];
        ends[side].input.extend(under_way[1 - side].drain(..came));
        self.hear(cable, side);
    }

    fn hear(&mut self, cable: usize, side: usize) {
        if self.cables[cable].ends[side].connection.is_none() {
            return;
        }
        let input = std::mem::take(&mut self.cables[cable].ends[side].input);
        let (mut used, mut answers) = (0, Vec::new());
        let waits = !self.is(Mutation::WaitForNoEpoch);
        while self.with(cable, side).listens() || !waits {
            let (frame, bytes) = match Frame::decode(&input[used..]) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => panic!("what is no frame: {error}"),
            };
            used += bytes;
            let is_dropped = match frame {
                Frame::Position { .. } => self.is(Mutation::TellNoPositions),
                Frame::Epoch { .. } => self.is(Mutation::TellNoEpochs),
                Frame::Run { .. } => self.is(Mutation::LoseAFrame) && self.one_in(20),
                _ => false,
            };
            if is_dropped {
                continue;
            }
            self.with(cable, side)
                .take(&frame, &mut answers)
                .unwrap_or_else(|trouble| panic!("{trouble}"));
        }
        let end = &mut self.cables[cable].ends[side];
        end.input = input[used..].to_vec();
        end.output.append(&mut answers);
    }

    /// Takes the answers of a node's mesh. What has been flushed is where it is read.
    fn answers(&mut self, node: usize) {
        let mut answers = self.meshes[node].answers().unwrap();
        if self.is(Mutation::AnswerEarly) && self.one_in(4) {
            let early = self.flushes.iter().filter(|flush| flush.node == node);
            answers.extend(early.map(|flush| Answer::Flushed(flush.number)));
        }
        for answer in answers {
            let Answer::Flushed(number) = answer else { continue };
            self.returning.retain(|waits| *waits != number);
            let Some(at) = self.flushes.iter().position(|flush| flush.number == number) else {
                continue;
            };
            let flush = self.flushes.swap_remove(at);
            for (place, sent) in flush.sent {
                let channel = &self.channels[place];
                let mut probe = channel.probe();
                while probe.receive().is_some() {}
                let read = probe.receiver.received;
                assert!(
                    read >= sent,
                    "flush {number} of node {node}: {} of {sent} from {} are at {}",
                    read,
                    channel.source,
                    channel.destination
                );
            }
        }
    }

    fn step(&mut self, is_calm: bool) {
        let cable = self.random.below(self.cables.len());
        let side = self.random.below(2);
        match self.random.below(100) {
            0..25 => self.send(),
            25..50 => self.read(),
            50..52 if !self.settles => self.take_images(),
            52..70 => self.pump(cable, side),
            70..88 => self.arrive(cable, side),
            88..91 => {
                let node = self.random.below(self.meshes.len());
                self.answers(node);
            }
            91..93 => self.call(cable),
            93..96 => self.join(cable, side),
            96 => self.notice(cable, side),
            97 => {
                if let Some(node) = self.still.iter().position(|still| *still) {
                    self.begin_epoch(node);
                }
            }
            _ if is_calm => {}
            98 => match self.random.below(6) {
                0..4 => self.cut(cable),
                _ => {
                    let node = self.random.below(self.meshes.len());
                    if !self.still[node] && self.returning.is_empty() {
                        self.flush(node);
                    }
                }
            },
            _ => match self.random.below(40) {
                0 => self.empty(),
                1..16 => self.all_return(),
                _ => {}
            },
        }
        // A side that waits in vain notices at last, and a rank that stands still begins.
        if is_calm {
            self.notice(cable, side);
            self.call(cable);
            self.join(cable, side);
        }
    }

    fn is_done(&self) -> bool {
        let all = |channel: &Channel<'_>| channel.sent == self.count && channel.receiver.received == self.count;
        self.channels.iter().all(all)
            && !self.still.contains(&true)
            && self.returning.is_empty()
            && self.flushes.is_empty()
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step(false);
        }
        let mut left = MOST;
        while !self.is_done() {
            self.step(true);
            left -= 1;
            assert!(left > 0, "not all that was sent has come: {}", self.describe());
        }
        self.check_words();
    }

    fn describe(&self) -> String {
        let of = |channel: &Channel<'_>| {
            format!(
                "{} has sent {}, and {} has {}; ",
                channel.source,
                channel.sent,
                channel.destination,
                channel.receiver.describe()
            )
        };
        self.channels.iter().map(of).collect()
    }

    /// When nothing is on its way any more, words are the same where they are read. (Beginnings of channels that nothing
    /// has replaced may come later.)
    fn check_words(&mut self) {
        self.settles = true;
        for _ in 0..MOST {
            if self.words_differ().is_none() {
                return;
            }
            self.step(true);
        }
        panic!("{}", self.words_differ().expect("a word"));
    }

    fn words_differ(&self) -> Option<String> {
        for Channel {
            source, destination, ..
        } in &self.channels
        {
            let [here, there] = [*source, *destination].map(|rank| &self.grounds[self.node_of(rank)].mapped);
            let word = |memory: &Mapped, rank: usize, table: Table, index: usize| {
                memory
                    .word(memory.layout.arena(rank) + table.place(&memory.layout, index))
                    .load(Ordering::SeqCst)
            };
            if self.logs {
                let oldest = [here, there]
                    .map(|memory| memory.arena32(*destination, arena::OLDEST_IMAGE).load(Ordering::SeqCst));
                if oldest[0] != oldest[1] {
                    return Some(format!("the oldest image of {destination} is {oldest:?}"));
                }
            } else {
                let read = [here, there].map(|memory| word(memory, *destination, Table::Consumed, *source));
                if read[0] != read[1] {
                    return Some(format!("{destination} has read {read:?} segments of {source}"));
                }
            }
        }
        None
    }
}

impl<'a> Channel<'a> {
    /// Of the content of this message.
    fn seed_of(&self, number: u64) -> u64 {
        let from = self.seeds.iter().rev().find(|(from, _)| *from <= number);
        from.expect("the first is from 0").1
    }

    fn receive(&mut self) -> Option<u64> {
        let seed = self.seed_of(self.receiver.received);
        self.receiver.receive(seed)
    }

    /// Reads on without the rank.
    fn probe(&self) -> Channel<'a> {
        Channel {
            receiver: self.receiver.clone(),
            seeds: self.seeds.clone(),
            ..*self
        }
    }
}

/// Runs a seed. Returns how many waves, returns and epochs came about.
fn run(seed: u64, mutation: Option<Mutation>) -> [usize; 3] {
    let mut random = Random(seed ^ 0xabcd);
    let protocol = [Protocol::None, Protocol::Pessimistic, Protocol::Auto][random.below(3)];
    let nodes = 2 + random.below(2);
    let size = nodes + random.below(3);
    let of_rank: Vec<u32> = (0..size)
        .map(|rank| if rank < nodes { rank } else { random.below(nodes) } as u32)
        .collect();
    let job = Job {
        protocol,
        log_segments: 8,
        ..job()
    };
    let ground = |_| {
        let memory = NodeMemory::create(&job, size).unwrap();
        let mapped = Arc::new(Mapped::new(memory.file(), memory.layout).unwrap());
        let bell = EventFd::from_flags(FLAGS).unwrap();
        Ground { memory, mapped, bell }
    };
    let grounds: Vec<Ground> = (0..nodes).map(ground).collect();
    let mut world = World::new(seed, mutation, job, of_rank, &grounds);
    world.run();
    world.happened
}

/// The number that the variable names.
fn named(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds() -> std::ops::Range<u64> {
    match named("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..named("SEEDS").unwrap_or(60),
    }
}

#[test]
fn everything_arrives_whatever_breaks() {
    let mut happened = [0; 3];
    for seed in seeds() {
        let ran = std::panic::catch_unwind(|| run(seed, None));
        let of_run = ran.unwrap_or_else(|_| panic!("SEED={seed}"));
        happened.iter_mut().zip(of_run).for_each(|(all, here)| *all += here);
    }
    assert!(
        seeds().count() < 60 || happened.iter().all(|count| *count > 20),
        "{happened:?}"
    );
}

#[test]
fn every_mutation_is_found() {
    let missed: Vec<Mutation> = MUTATIONS
        .into_iter()
        .filter(|mutation| !(0..200).any(|seed| std::panic::catch_unwind(|| run(seed, Some(*mutation))).is_err()))
        .collect();
    assert_eq!(missed, [], "no seed fails with these");
}
