//! The agent's dealings with single ranks: their starts, ends, input and output.

mod output;

use std::io::{self, PipeWriter};
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::unistd::Pid;
use resurgo_pmi::{Place, Progress};
use resurgo_protocol::Fact;
use resurgo_protocol::coordinator::From;
use resurgo_wire::control::{End, Ended, LifeStatistics, ToDispatcher};
use resurgo_wire::node_memory::{EXIT_DIVERGED, EXIT_REPORT, PHASE_CLOSED, PHASE_LIVE, control};

use super::feed::Feed;
use super::images::{Images, Restoring};
use super::life::{Begin, Life, Surroundings};
use super::net::{Held, HeldBack, Net};
use super::program_file::Mapped;
use super::wrapped::Wrapped;
use super::{Agent, PATIENCE, Source, Work, spawn};
use crate::suspended::ranks::RankState;
use crate::{children, leftovers, monotonic_ns, unix_ns};

/// How long the agent waits for a rank that is live again to repeat its output.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// A life as the coordinator asked for it.
#[derive(Default)]
pub(super) struct Asked {
    /// Its number there.
    pub life: u64,
    /// All ranks of its unit begin together, and it waits for them.
    pub together: bool,
    pub waits: bool,
    /// The coordinator has ended it, perhaps before its process was known.
    pub is_ended: bool,
}

/// One rank over all its lives.
pub(super) struct Rank {
    pub program: usize,
    /// Number of the present or last life, from 1.
    pub number: u64,
    /// See [`control::RESTED_NS`].
    pub rested_ns: u64,
    /// See [`control::NOTES_LOST_NS`].
    pub notes_lost_ns: u64,
    /// The image that it began from; 0: the beginning of its program.
    pub began_from: u64,
    /// The life that the coordinator has asked for last.
    pub asked: Asked,
    /// The running process.
    pub life: Option<Life>,
    /// Pipes of a rank that has finished, while others hold their other ends.
    outputs: [Option<std::io::PipeReader>; 2],
    watched: [bool; 2],
    /// Per stream, the present life has yet to print again what former ones printed, as far as is known.
    behind: [bool; 2],
    /// A later life that has not caught up.
    replaying: bool,
    /// A life that makes no new delivery before it has repeated the output of former ones.
    repeats_output: bool,
    /// The present life has opened the provider, or will not.
    pub uses_provider: bool,
    /// The present life has called MPI_Abort where a former one went on.
    pub aborted: bool,
    /// The agent has reported what the life could not do: a call of MPI_Abort returns, and may come again.
    pub has_told_undone: bool,
    /// The last life ended as a program should.
    finished: bool,
    /// The same, with exit code 0.
    ended_well: bool,
    /// Its program, where a wrapper is above it.
    pub wrapped: Wrapped,
    pub images: Images,
    /// The files that hold its first life's code, once known; and whether the present life is compared with them.
    pub mapped: Option<Mapped>,
    pub is_compared: bool,
    /// The injected fault of its present life.
    pub fault_at_messages: u64,
    /// CLOCK_MONOTONIC nanoseconds of the present life: when it was killed on purpose (0: never), and when the agent
    /// was told to start it.
    pub killed_ns: u64,
    asked_ns: u64,
    /// Since when a live rank with output behind has printed nothing, although it could go on.
    quiet_since: Option<Instant>,
}

/// The deed of a rank whose life differs from the former ones.
const HAS_ABORTED: &str = "called MPI_Abort while it repeated what it had done before, when it had gone on";

impl Work {
    /// What the present life of a rank has counted so far.
    pub(super) fn statistics(&self, rank: usize) -> io::Result<LifeStatistics> {
        self.memory.statistics(rank, self.ranks[rank].asked_ns)
    }
}

impl Rank {
    pub fn new(program: usize) -> Rank {
        Rank {
            program,
            number: 0,
            rested_ns: 0,
            notes_lost_ns: 0,
            began_from: 0,
            asked: Asked::default(),
            life: None,
            outputs: [None, None],
            watched: [false; 2],
            behind: [false; 2],
            replaying: false,
            repeats_output: false,
            uses_provider: false,
            aborted: false,
            has_told_undone: false,
            finished: false,
            ended_well: false,
            wrapped: Wrapped::default(),
            images: Images::default(),
            mapped: None,
            is_compared: true,
            fault_at_messages: 0,
            killed_ns: 0,
            asked_ns: 0,
            quiet_since: None,
        }
    }

    /// How long the fault that struck the rank went unnoticed; the rank itself or the agent injected it.
    fn unnoticed(&self, own_ns: u64, noticed_ns: u64) -> Option<u64> {
        match self.killed_ns.max(own_ns) {
            0 => None,
            killed_ns => Some(noticed_ns.saturating_sub(killed_ns)),
        }
    }

    /// It repeats nothing any more. A life that has begun together with all others need not print what former ones did.
    pub fn is_up_to_date(&self) -> bool {
        !self.repeats() && (self.behind == [false; 2] || !self.repeats_output)
    }

    /// It repeats a former life.
    pub fn repeats(&self) -> bool {
        self.replaying
    }

    /// It runs, with parts of its memory missing.
    pub fn is_filling(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.filling.is_some())
    }

    /// A life begins.
    /// `arrives`: from another node, with what it had noted of files there.
    fn begins(&mut self, asked: Asked, repeats: bool, arrives: bool) {
        if self.number == 0 || arrives {
            // Former lives, if there are any, were on another node.
            self.number += asked.life.saturating_sub(self.asked.life + 1);
            if self.number > 0 {
                self.rested_ns = unix_ns();
                if !arrives {
                    self.notes_lost_ns = self.rested_ns;
                }
            }
        }
        self.number += 1;
        self.asked = asked;
        (self.killed_ns, self.asked_ns) = (0, monotonic_ns());
        (self.uses_provider, self.aborted, self.has_told_undone) = (false, false, false);
        // The dispatcher says soon whether that is so.
        self.behind = [self.number > 1; 2];
        self.replaying = self.number > 1 && repeats;
        self.finished = false;
        self.wrapped.begins();
        self.quiet_since = None;
        self.repeats_output = repeats;
    }

    /// The part that a suspension writes down.
    pub fn state(&self) -> RankState {
        RankState {
            program: self.program,
            number: self.number,
            finished: self.finished,
            ended_well: self.ended_well,
            images: self.images.state(),
            noted: Vec::new(),
            notes_lost_ns: self.notes_lost_ns,
        }
    }

    /// A rank of a suspended job.
    pub fn from_state(state: RankState) -> Rank {
        Rank {
            number: state.number,
            rested_ns: unix_ns(),
            notes_lost_ns: state.notes_lost_ns,
            finished: state.finished,
            ended_well: state.ended_well,
            images: Images::from_state(state.images),
            ..Rank::new(state.program)
        }
    }

    /// The message that a life has begun.
    pub fn started(&self, rank: usize, pid: i32, image: u64, from_file: bool) -> ToDispatcher {
        ToDispatcher::Started {
            rank,
            life: self.number,
            pid,
            image,
            from_file,
            together: self.asked.together,
            beginning_ns: monotonic_ns() - self.asked_ns,
        }
    }

    /// The rank was stopped and continues: waiting for its output begins now.
    pub fn goes_on(&mut self) {
        self.quiet_since = self.quiet_since.map(|_| Instant::now());
    }

    /// Its last life has ended as a program should.
    pub fn has_finished(&self) -> bool {
        self.finished
    }

    /// Another node has it, and it has finished there, or has not.
    pub fn has_ended_elsewhere(&mut self, finished: bool) {
        self.finished = finished;
    }

    pub fn has_ended_well(&self) -> bool {
        self.ended_well
    }
}

impl Work {
    pub(super) fn anyone_replays(&self) -> bool {
        self.ranks
            .iter()
            .any(|rank| rank.life.is_some() && (rank.replaying || rank.quiet_since.is_some()))
    }

    /// The present life of `rank` reads no more.
    pub(super) fn end_input(&mut self, rank: usize) {
        if rank == 0 {
            // Closing a pipe takes it out of the epoll set.
            self.feed = Feed::default();
        }
    }
}

impl Agent {
    /// Starts life `life` of `rank`, as the coordinator counts them. `together`: with all ranks of its unit, which wait
    /// for one another.
    pub(super) fn start_life(&mut self, rank: usize, life: u64, from: From, together: bool) -> io::Result<()> {
        if self.ending.is_some() || self.is_broken || self.work.is_halting() {
            return Ok(());
        }
        if from == From::Beginning {
            self.end_wrapper(rank)?;
        }
        let work = &mut self.work;
        let place = spawn::place(&work.job, rank);
        let are_alone = work.is_hierarchical();
        let arrives = work.arrives(rank);
        let this = &mut work.ranks[rank];
        // Ranks that return to a wave may take another course, unless other units have gone on.
        let is_anew = std::mem::take(&mut this.images.begins_anew);
        let repeats = !together || are_alone && !is_anew;
        let asked = Asked {
            life,
            together,
            // Ranks that start from the beginning do not wait.
            waits: together && from != From::Beginning,
            is_ended: false,
        };
        this.begins(asked, repeats, arrives);
        let behind = repeats && this.behind[0];
        leftovers::remove(&place.kvs_name, place.rank);
        work.memory.begin_life(
            rank,
            this.number,
            this.fault_at_messages,
            behind,
            together,
            this.replaying,
        )?;
        work.memory.set_control(rank, control::RESTED_NS, this.rested_ns)?;
        work.memory.set_control(rank, control::GONE_ON, u64::from(repeats))?;
        work.memory
            .set_control(rank, control::NOTES_LOST_NS, this.notes_lost_ns)?;
        self.control.queue(&ToDispatcher::Began {
            rank,
            life: this.number,
            image: from.number(),
            repeats,
        });
        let image_at = work.job.image_at_messages.iter().find(|at| at.0 == rank);
        work.memory.set_image_at(rank, image_at.map_or(0, |at| at.1))?;
        let input = if let From::Copy(number) = from {
            let (mut life, theirs, input) = Life::connect(&work.job, rank)?;
            life.progress = Progress::IN_MPI;
            if let Err(error) = this.images.wake(number, life, theirs) {
                // It has just died.
                self.copy_lost(rank, number, &error.to_string())?;
                self.not_begun(rank);
                return Ok(());
            }
            input
        } else {
            self.start_process(rank, &place, from)?
        };
        if rank == 0 {
            self.work.feed = Feed::begin_life(input);
            self.feed_stdin()?;
        }
        Ok(())
    }

    /// Starts the process of a life that begins with the program, or is rebuilt from a file. Returns the pipe to its input.
    fn start_process(&mut self, rank: usize, place: &Place, from: From) -> io::Result<Option<PipeWriter>> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let image = match from {
            From::File(number) => Some(this.images.saved(number)?),
            _ => None,
        };
        let around = Surroundings {
            job: &work.job,
            node_memory: work.memory.file(),
            spill: work.spill.as_ref(),
            net: work.net.as_ref(),
            store: work.store.as_ref(),
        };
        let program = &work.job.programs[this.program];
        let file = &mut work.program_files[this.program];
        let mut is_replaced = false;
        if image.is_none() {
            if let Some(why) = file.why_not() {
                return Err(io::Error::other(why));
            }
            is_replaced = !file.is_told && file.is_replaced();
            file.is_told |= is_replaced;
        }
        let begin = match &image {
            Some(image) => Begin::Image(image),
            None => Begin::Program(file.to_execute()),
        };
        let (mut life, input) = Life::start(&around, rank, place, program, begin)?;
        if image.is_some() {
            life.progress = Progress::IN_MPI;
        }
        let replaced = is_replaced.then(|| file.path());
        this.is_compared = image.is_some() || !work.job.protocol.has_images();
        this.images.restoring = image.is_some().then(|| Restoring::of(from.number()));
        self.life_begins(rank, life, from.number())?;
        if let Some(path) = replaced {
            self.send(&ToDispatcher::ProgramReplaced { rank, path })?;
        }
        Ok(input)
    }

    /// The process of a new life runs.
    pub(super) fn life_begins(&mut self, rank: usize, mut life: Life, image: u64) -> io::Result<()> {
        let work = &mut self.work;
        let watch = |source: Source| EpollEvent::new(EpollFlags::EPOLLIN, source.token());
        self.epoll.add(&life.pmi, watch(Source::Pmi(rank)))?;
        if let Some(socket) = &life.image {
            self.epoll.add(socket, watch(Source::Images(rank)))?;
        }
        if let Some(socket) = &life.survivor {
            self.epoll.add(socket, watch(Source::Survivor(rank)))?;
        }
        let this = &mut work.ranks[rank];
        this.outputs = [life.stdout.take(), life.stderr.take()];
        this.watched = [false; 2];
        this.began_from = image;
        let started = this.started(rank, life.pid.as_raw(), image, false);
        this.life = Some(life);
        let life = this.asked.life;
        // A process that is being rebuilt reports when it is complete.
        if this.images.restoring.is_none() {
            self.send(&started)?;
        }
        self.watch_output(rank)?;
        self.life_below(rank);
        self.report(Fact::Started {
            rank: rank as u32,
            life,
        });
        Ok(())
    }

    /// Looks at every child that has ended.
    pub(super) fn collect_ended(&mut self) -> io::Result<()> {
        while let Some((pid, end)) = children::peek_ended() {
            let mut rank = self.rank_of(pid);
            if rank.is_none() && self.anyone_wakes() {
                // A snapshot may have named this process, in a message that is still unread.
                self.hear_snapshots()?;
                rank = self.rank_of(pid);
            }
            if let Some(rank) = self.rank_below(pid) {
                self.lose_wrapper(rank)?;
            }
            let is_server = self.guest.as_ref().is_some_and(|guest| guest.serving.owns(pid));
            match rank {
                Some(rank) => self.rank_ended(rank, end)?,
                None if is_server => self.servers_event()?,
                None => {
                    children::reap(pid);
                    // A snapshot may still name this process as a life.
                    self.unclaimed.push((pid, end));
                }
            }
        }
        if !self.anyone_wakes() && !self.anyone_parts() {
            self.unclaimed.clear();
        }
        Ok(())
    }

    fn rank_of(&self, pid: Pid) -> Option<usize> {
        let mut ranks = self.work.ranks.iter();
        ranks.position(|rank| rank.life.as_ref().is_some_and(|life| life.pid == pid))
    }

    pub(super) fn rank_ended(&mut self, rank: usize, end: End) -> io::Result<()> {
        let noticed_ns = monotonic_ns();
        // The rank's reports before its end count.
        self.image_event(rank)?;
        self.work.ranks[rank].images.end_taking();
        self.pmi_event(rank)?;
        self.survivor_event(rank)?;
        if self.restore_has_failed(rank, end)? || self.hands_over(rank, end)? {
            return Ok(());
        }
        self.has_died_below(rank)?;
        let work = &mut self.work;
        let statistics = work.statistics(rank)?;
        let own_ns = work.memory.killed_ns(rank)?;
        let said = work.memory.report_code(rank)?;
        let this = &mut work.ranks[rank];
        let Some(life) = this.life.take() else {
            return Ok(());
        };
        let mut progress = life.progress;
        // MPICH says "finalize" to PMI only in its exit handlers. A process that leaves by _exit after MPI_Finalize has
        // finished as well.
        progress.finalised |= statistics.phase == PHASE_CLOSED;
        let (asked, by_order) = (this.asked.life, this.asked.is_ended);
        let end = this.wrapped.end_of_rank(end, said.filter(|_| !by_order));
        let orderly = matches!(end, End::Exited(_)) && (progress.finalised || !progress.initialised) && !by_order;
        let (aborted, program) = (this.aborted, this.program);
        let unnoticed_ns = this.unnoticed(own_ns, noticed_ns);
        this.finished = orderly;
        this.ended_well = orderly && end == End::Exited(0);
        let number = this.number;
        if orderly {
            children::reap(life.pid);
        } else {
            life.fence(PATIENCE);
        }
        this.rested_ns = unix_ns();
        work.end_input(rank);
        work.net.iter().for_each(|net| net.ended(rank));
        let (end, report) = match end {
            _ if aborted => (End::Exited(EXIT_DIVERGED), Some(format!("rank {rank} {HAS_ABORTED}"))),
            End::Exited(EXIT_REPORT | EXIT_DIVERGED) => (end, work.memory.report(rank)?),
            _ => (end, None),
        };
        let repeats = work.memory.repeats(work.ranks.len())?;
        let mut ended = Ended {
            rank,
            life: number,
            asked,
            by_order,
            orderly,
            pid: life.pid.as_raw(),
            end,
            initialised: progress.initialised,
            finalised: progress.finalised,
            is_plain: work.job.programs[program].is_plain,
            statistics,
            report,
            repeats,
            unnoticed_ns,
            ending_ns: 0,
        };
        if matches!(end, End::Exited(1..)) && !aborted && !by_order {
            self.tell_undone(rank)?;
        }
        if orderly {
            self.tell_failed_finalize(rank)?;
            self.caught_up(rank)?;
            // The agent reads the pipes until all writers have closed them: a child of the rank may still print.
        } else {
            self.end_connections(rank, life)?;
        }
        ended.ending_ns = monotonic_ns() - noticed_ns;
        match by_order || self.ending.is_some() || !self.work.is_flushed_before_end(orderly) {
            true => self.send(&ToDispatcher::Ended(ended))?,
            false => self.end_after_flush(ended),
        }
        self.tell_output_end(rank)
    }

    /// A rank has finished. MPI may have complained at its end: one message for all ranks is enough.
    fn tell_failed_finalize(&mut self, rank: usize) -> io::Result<()> {
        if self.has_told_finalize || !self.work.memory.finalize_failed(rank)? {
            return Ok(());
        }
        self.has_told_finalize = true;
        let text = "has ended after MPI_Finalize had failed, perhaps as messages were left that nobody had received; what the program \
                    did is over, and its exit status counts";
        let text = text.to_string();
        self.send(&ToDispatcher::MpiTrouble { rank, text })
    }

    /// A rank comes to a bad end: reports what it could not do because a former life did it.
    pub(super) fn tell_undone(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        if work.ranks[rank].has_told_undone {
            return Ok(());
        }
        let Some(text) = work.memory.undone(rank)? else {
            return Ok(());
        };
        work.ranks[rank].has_told_undone = true;
        self.send(&ToDispatcher::Undone { rank, text })
    }

    pub(super) fn tell_output_end(&mut self, rank: usize) -> io::Result<()> {
        let this = &mut self.work.ranks[rank];
        if this.life.is_some() || this.outputs.iter().any(Option::is_some) {
            return Ok(());
        }
        let is_of_rank = |held: &HeldBack| matches!(&held.what, Held::Ended(ended) if ended.rank == rank);
        if self.held_back.iter().any(is_of_rank) {
            // It follows the report of the rank's end.
            return Ok(());
        }
        let finished = this.finished;
        self.send(&ToDispatcher::OutputEnd { rank, finished })
    }

    /// What `rank` prints, or says to PMI, is passed on: it may depend on all deliveries so far.
    pub(super) fn depends_on(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        if !work.job.piggybacks() {
            return Ok(());
        }
        if !work.job.moves_ranks() {
            return work.memory.passed_on(rank);
        }
        match work.memory.is_stable(rank)? {
            true => Ok(()),
            false => self.vouch(rank),
        }
    }

    /// An image of `rank` is about to count.
    pub(super) fn image_depends_on(&mut self, rank: usize) -> io::Result<()> {
        match self.work.job.piggybacks() && self.work.job.moves_ranks() {
            true => self.vouch(rank),
            false => Ok(()),
        }
    }

    /// The dispatcher hears what `rank` knows, before anything else that this node says.
    fn vouch(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let epoch = work.net.as_ref().map_or(0, Net::epoch);
        let told = work.vouched.before(rank, work.ranks.len(), &work.memory, epoch)?;
        told.iter().for_each(|deliveries| self.control.queue(deliveries));
        Ok(())
    }

    /// Whether this life of `rank` has yet to print again what former ones printed.
    pub(super) fn repeats(&mut self, rank: usize, life: u64, output: [bool; 2]) -> io::Result<()> {
        let work = &mut self.work;
        let Some(this) = work.ranks.get_mut(rank).filter(|this| this.number == life) else {
            return Ok(());
        };
        this.behind = output;
        if this.repeats_output {
            work.memory.set_output_behind(rank, output[0])?;
        }
        self.watch_output(rank)
    }

    /// Gives rank 0 the input there is and asks for more.
    pub(super) fn feed_stdin(&mut self) -> io::Result<()> {
        let work = &mut self.work;
        let feed = &mut work.feed;
        let waiting = feed.feed()?;
        if let Some(pipe) = feed.pipe() {
            if waiting && !feed.watched {
                self.epoll
                    .add(pipe, EpollEvent::new(EpollFlags::EPOLLOUT, Source::Stdin.token()))?;
            } else if !waiting && feed.watched {
                self.epoll.delete(pipe)?;
            }
        }
        // Closing a pipe takes it out of the set.
        feed.watched = waiting;
        if feed.wants_more() {
            let life = work.ranks[0].number;
            self.send(&ToDispatcher::StdinWanted { life })?;
        }
        Ok(())
    }

    /// More input, or its end, for this life of rank 0.
    pub(super) fn take_stdin(&mut self, life: u64, bytes: Option<&[u8]>) -> io::Result<()> {
        if self.work.ranks[0].number != life {
            return Ok(());
        }
        match bytes {
            Some(bytes) => self.work.feed.push(bytes),
            None => self.work.feed.end(),
        }
        self.feed_stdin()
    }

    /// Looks after replaying ranks and the end of the job.
    pub(super) fn tick(&mut self) -> io::Result<()> {
        let replaying: Vec<usize> = if self.work.anyone_replays() && !self.stands_still() {
            let ranks = self.work.ranks.iter().enumerate();
            let replaying = ranks.filter(|(_, this)| this.replaying || this.quiet_since.is_some());
            replaying.map(|(rank, _)| rank).collect()
        } else {
            Vec::new()
        };
        for rank in replaying {
            let work = &self.work;
            let phase = work.memory.phase(rank)?;
            if phase == PHASE_LIVE || phase == PHASE_CLOSED {
                self.caught_up(rank)?;
                self.mind_missing_output(rank)?;
            }
        }
        self.mind_halt()?;
        self.mind_buffers()?;
        self.mind_held()?;
        self.mind_vain_waits()?;
        if let Some(deadline) = self.ending {
            let running = self.work.ranks.iter().any(|rank| rank.life.is_some());
            if !running || Instant::now() >= deadline {
                self.stop()?;
            }
        }
        Ok(())
    }

    fn caught_up(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        if !std::mem::take(&mut this.replaying) {
            return Ok(());
        }
        if this.life.is_some() && this.behind[0] {
            this.quiet_since = Some(Instant::now());
        }
        let life = this.number;
        let statistics = work.statistics(rank)?;
        self.send(&ToDispatcher::CaughtUp { rank, life, statistics })
    }

    fn mind_missing_output(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        if !this.behind[0] {
            this.quiet_since = None;
            return Ok(());
        }
        // The rank may still print it, after a long computation.
        if !work.memory.awaits_output(rank)? {
            this.quiet_since = Some(Instant::now());
            return Ok(());
        }
        let since = *this.quiet_since.get_or_insert_with(Instant::now);
        if since.elapsed() < OUTPUT_PATIENCE {
            return Ok(());
        }
        this.quiet_since = None;
        let life = this.number;
        self.send(&ToDispatcher::OutputAwaited { rank, life })
    }
}
