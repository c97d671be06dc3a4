//! A suspension: images of all ranks go to files, all ranks end at one moment, and the launcher writes its own state to
//! a file ([`crate::suspended`]).
//!
//! The job gives up nothing before the last step. If a step fails before the ranks end, the job goes on; after that,
//! the ranks start again from their images.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use resurgo_protocol::checkpoints::Outcome;
use resurgo_protocol::coordinator::{Former, FormerSet};
use resurgo_protocol::policy::Failures;
use resurgo_protocol::{Command, Coordinator, Fact, kinds};
use resurgo_wire::console::Reply;
use resurgo_wire::control::{Job, ToAgent};
use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::events::Event;
use super::job_files::JobFiles;
use super::ledger;
use super::output::Before;
use super::record::Record;
use super::{Dispatcher, REFUSED};
use crate::printed::Place;
use crate::suspended::{About, Origin, processor};
use crate::units::readable_duration;
use resurgo_store::own_directory::{Directory, Trust};

/// Exit status of a job that has been suspended: EX_TEMPFAIL of sysexits.h, "try again later".
pub const SUSPENDED: i32 = 75;
/// Stands for a suspension among the clients that wait for images.
pub(super) const CLIENT: u64 = 0;
/// The pause before a failed suspension before a time limit is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Bounds of the time reserved for a suspension before a time limit: a tenth of the limit, more when images take long.
const LEAST_MARGIN: Duration = Duration::from_secs(1);
const MOST_MARGIN: Duration = Duration::from_secs(120);

/// How far the suspension has come.
#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    None,
    /// Images are taken and written.
    Images,
    /// The agent ends the ranks.
    Halting,
    /// Their output is on its way.
    Flushing,
    /// The agent writes the file.
    Writing,
    /// The files go to the job's places.
    Copying,
    Done,
}

/// Why a job has no images, if so.
pub(super) fn without_images(job: &Job) -> Option<&'static str> {
    match job.survives() {
        true => Some("there are no images with --ft and --ft-mode"),
        false => (!job.images).then_some("there are no images with --protocol none"),
    }
}

/// Why a job cannot be suspended, if so. `nodes`: it is on several.
pub(super) fn obstacle(job: &Job, nodes: bool) -> Option<&'static str> {
    if let Some(why) = without_images(job) {
        return Some(why);
    }
    if job.protocol.kept() == kinds::Kept::InChannelMemory {
        return Some(
            "what its channel memories hold is in no file; run it with --protocol pessimistic to be able to suspend it",
        );
    }
    if job.tolerate_node {
        return Some(
            "what its event loggers hold is in no file; run it without --tolerate node to be able to suspend it",
        );
    }
    if nodes && !job.protocol.can_return_together() && job.protocol.with_waves().is_none() {
        return Some(
            "its groups have no wave together, and what its nodes have in memory is in no file; run it with --protocol \
             auto to be able to suspend it",
        );
    }
    let without = "image files have no place; start it with --checkpoint-dir DIR to be able to suspend it";
    job.image_files.directory.is_none().then_some(without)
}

/// Suspensions of the job.
pub(super) struct Suspension {
    phase: Phase,
    /// Commands that wait for the end of it.
    clients: Vec<u64>,
    /// Ranks whose new image is not yet in a file.
    unwritten: BTreeSet<usize>,
    /// Why it cannot complete, after the ranks were halted.
    obstacle: Option<String>,
    /// Files are as in the wave: ranks can begin from it together only.
    is_undone: bool,
    /// How often ranks have been told to wait with their files.
    turns: u64,
    began: Instant,
    origin: Origin,
    /// Where links to suspended jobs are kept.
    pub registry: Option<PathBuf>,
    /// The job's own, where its files are.
    pub directory: PathBuf,
    /// What is written down of waves.
    pub record: Record,
    /// Why this job cannot have one.
    impossible: Option<&'static str>,
    /// Since the start of the job.
    time_limit: Option<Duration>,
    not_before: Duration,
    /// The longest time that a file took.
    longest_write: Duration,
    /// Where the job can be resumed from if this run is lost.
    pub resumed_from: Option<PathBuf>,
    /// An unusable image has ended this run.
    pub is_damaged: bool,
    /// The job goes on from a wave, because its launcher or machine was lost, or it was on several nodes: all ranks
    /// begin together.
    pub is_from_wave: bool,
    /// The job to resume runs elsewhere.
    pub is_elsewhere: bool,
    /// The directory, where agents are on several nodes: their reports are recorded here.
    pub files: Option<JobFiles>,
    /// The dispatcher's part of the record of a suspension.
    pub about: Option<serde_json::Value>,
    /// The program has come to its end.
    pub has_finished: bool,
    /// The duration of earlier runs of the job, and their numbers.
    pub seconds_before: f64,
    pub former: Vec<u32>,
}

/// What the dispatcher needs to go on with a job.
#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub policy: Failures,
    pub spawned_worlds: Vec<usize>,
    pub output: Before,
    /// None: the agent has written it.
    #[serde(default)]
    pub ledger: Option<ledger::State>,
}

impl Suspension {
    pub fn new(
        origin: Origin,
        registry: Option<PathBuf>,
        directory: PathBuf,
        impossible: Option<&'static str>,
        time_limit: Option<Duration>,
    ) -> Suspension {
        Suspension {
            phase: Phase::None,
            clients: Vec::new(),
            unwritten: BTreeSet::new(),
            obstacle: None,
            is_undone: false,
            turns: 0,
            began: Instant::now(),
            origin,
            registry,
            directory,
            record: Record::default(),
            impossible,
            time_limit,
            not_before: Duration::ZERO,
            longest_write: Duration::ZERO,
            resumed_from: None,
            is_damaged: false,
            is_from_wave: false,
            is_elsewhere: false,
            files: None,
            about: None,
            has_finished: false,
            seconds_before: 0.0,
            former: Vec::new(),
        }
    }

    /// The program has come to its end: nothing of job `name` can be resumed.
    pub fn unregister(&mut self, name: &str) {
        self.resumed_from = None;
        self.has_finished = true;
        self.record = Record::default();
        if let Some(registry) = &self.registry
            && let Ok(registry) = Directory::open(registry, Trust::Nobody)
        {
            let _ = registry.remove(name);
        }
    }

    /// Makes the job in `directory` known by its number. Returns its name for people.
    pub fn register(&self, directory: &Path) -> String {
        let registered = self.registry.as_ref().map(|registry| register(registry, directory));
        match registered {
            Some(Ok(())) => std::process::id().to_string(),
            _ => directory.display().to_string(),
        }
    }

    /// This job can have one.
    pub fn can_be(&self) -> bool {
        self.impossible.is_none()
    }

    pub fn is_under_way(&self) -> bool {
        self.phase != Phase::None
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// The job can be resumed from its files, which are still being copied.
    pub fn is_copying(&self) -> bool {
        self.phase == Phase::Copying
    }

    /// No rank runs, and none takes requests.
    pub fn has_halted(&self) -> bool {
        !matches!(self.phase, Phase::None | Phase::Images)
    }

    /// When the job suspends itself, since its start.
    pub fn due(&self) -> Option<Duration> {
        let limit = self.time_limit.filter(|_| self.phase == Phase::None)?;
        let margin = (limit / 10).clamp(LEAST_MARGIN, MOST_MARGIN) + 2 * self.longest_write;
        // Whatever images cost, the job must make progress.
        Some(limit.saturating_sub(margin).max(limit / 2).max(self.not_before))
    }

    /// Commands that wait for the end of it.
    pub fn clients(&self) -> &[u64] {
        &self.clients
    }

    /// Ranks whose images are not written yet.
    pub fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// What it waits for once all images are taken.
    pub fn waits_for(&self) -> String {
        match self.phase {
            Phase::None | Phase::Images | Phase::Halting | Phase::Flushing if !self.unwritten.is_empty() => {
                format!("{} to be written", images(self.unwritten.len()))
            }
            Phase::None | Phase::Images | Phase::Halting => "the ranks are being ended".to_string(),
            Phase::Flushing => "output is being written".to_string(),
            Phase::Copying => "its files are being copied to its places".to_string(),
            Phase::Writing | Phase::Done => "messages are being written".to_string(),
        }
    }

    pub fn image_taken(&mut self, rank: usize) {
        if self.phase == Phase::Images {
            self.unwritten.insert(rank);
        }
    }

    /// The rank needs no image any more.
    pub fn rank_finished(&mut self, rank: usize) {
        self.unwritten.remove(&rank);
    }

    pub fn image_written(&mut self, rank: usize, time: Duration) {
        self.unwritten.remove(&rank);
        self.longest_write = self.longest_write.max(time);
    }
}

impl Dispatcher {
    /// A user, perhaps by a command, wants the job suspended.
    pub(super) fn suspend(&mut self, client: Option<u64>) {
        if let Some(why) = self.suspension.impossible {
            return self.refuse(client, why);
        }
        if self.verdict.is_some() {
            return self.refuse(client, "the job is ending");
        }
        if self.plan.is_some() && !self.coordinator.protocol().can_return_together() {
            self.waves_come(Fact::WavesToSuspend);
        }
        if self.plan.is_some() && !self.coordinator.protocol().can_return_together() {
            let why =
                "there is no wave of ranks that others have spawned, and what its nodes have in memory is in no file";
            return self.refuse(client, why);
        }
        self.suspension.clients.extend(client);
        if self.suspension.phase == Phase::None {
            self.suspension.phase = Phase::Images;
            self.suspension.began = Instant::now();
            self.suspension.unwritten.clear();
            self.suspension.obstacle = None;
            self.files_wait();
            self.want_images(Some(CLIENT));
        }
    }

    fn refuse(&mut self, client: Option<u64>, why: &str) {
        if let Some(client) = client {
            self.front.console.answer(client, &Reply::Refused(why.to_string()));
        }
    }

    /// The outcome of the images for a suspension.
    pub(super) fn images_for_suspension(&mut self, outcome: &Outcome) {
        if self.suspension.phase != Phase::Images {
            return;
        }
        let Some((rank, why)) = outcome.failed.first() else {
            // The suspension waits for those that are still being written.
            return;
        };
        if self.images.refusals.is_in_passing(*rank) {
            // Ranks may have to come further for the next wave.
            self.files_wait();
            self.checkpoints
                .want(std::iter::once(*rank), Some(CLIENT), self.start.elapsed());
            return;
        }
        self.suspension_failed(&format!("no image can be taken: {why}"));
    }

    /// An image of `rank` could not be written.
    pub(super) fn image_not_written(&mut self, rank: usize, reason: &str) {
        if !self.suspension.unwritten.remove(&rank) {
            return;
        }
        let why = format!("the image of rank {rank} could not be written: {reason}");
        match self.suspension.phase {
            Phase::Images => self.suspension_failed(&why),
            Phase::Halting | Phase::Flushing => self.suspension.obstacle = Some(why),
            _ => {}
        }
    }

    /// A wave is complete: ranks would repeat any work after it, so they stop here.
    pub(super) fn wave_for_suspension(&mut self, members: &[usize], number: u64) {
        if self.is_hierarchical() {
            // The wave is recorded, and the other groups still need theirs.
            members.iter().for_each(|rank| self.suspension.image_taken(*rank));
        } else if self.suspension.phase == Phase::Images {
            let coordinator = &self.coordinator;
            let is_written = |rank: &usize| !coordinator.has_end(*rank as u32, number);
            self.suspension.unwritten = (0..self.pids.len()).filter(is_written).collect();
            self.suspension.phase = Phase::Halting;
            self.coordinate(Fact::Halt);
        }
    }

    pub(super) fn suspension_failed(&mut self, why: &str) {
        self.suspension.phase = Phase::None;
        // Whatever the protocol is now: waves may have been given up meanwhile.
        self.agents.give_all(Command::FilesWait { turn: 0 });
        self.suspension.not_before = self.start.elapsed() + AGAIN;
        if self.coordinator.has_waves_to_suspend() && !self.suspension.is_undone {
            self.only_logs(why);
        }
        self.bus.tell(Event::NotSuspended { reason: why });
        for client in std::mem::take(&mut self.suspension.clients) {
            self.refuse(Some(client), &format!("could not be suspended and goes on: {why}"));
        }
    }

    /// The job cannot be suspended: the halted ranks go on.
    pub(super) fn not_suspended(&mut self, why: &str) {
        self.suspension_failed(why);
        let together = std::mem::take(&mut self.suspension.is_undone);
        if self.verdict.is_none() {
            self.coordinate(Fact::GoOn { together });
        }
    }

    /// Takes the next possible step of a suspension.
    pub(super) fn mind_suspension(&mut self) {
        self.mind_record();
        if self.suspension.is_copying() && (self.verdict.is_some() || self.have_flushed()) {
            self.end_suspended();
        }
        if self.verdict.is_some() {
            return;
        }
        if self.suspension.due().is_some_and(|due| due <= self.start.elapsed()) {
            self.suspend(None);
        }
        match self.suspension.phase {
            Phase::Images if !self.checkpoints.is_wanted() && self.suspension.unwritten.is_empty() => {
                self.suspension.phase = Phase::Halting;
                self.coordinate(Fact::Halt);
            }
            Phase::Flushing if self.suspension.obstacle.is_some() => {
                let why = self.suspension.obstacle.take().unwrap_or_default();
                self.not_suspended(&why);
            }
            Phase::Flushing if !self.suspension.unwritten.is_empty() => {}
            Phase::Flushing if self.output.queued() == 0 => {
                self.suspension.phase = Phase::Writing;
                self.undo_since_suspension();
                let printed = self.place_of_output();
                match serde_json::to_value(self.about(None, printed)) {
                    Ok(about) if self.suspension.files.is_some() => self.suspend_nodes(about),
                    Ok(about) => {
                        let input = self.ledger.input.as_ref().map(|input| input.path().into());
                        self.tell(ToAgent::Suspend { about, input });
                    }
                    Err(error) => self.not_suspended(&error.to_string()),
                }
            }
            _ => {}
        }
    }

    /// Ranks that begin from a wave do again what they have done since: files must be as they were. What that takes is in
    /// the memories of nodes, and in no file.
    fn undo_since_suspension(&mut self) {
        if !self.begins_from_wave() {
            return;
        }
        if let Some(number) = self.coordinator.waves_in_files(0).first().copied() {
            self.agents.give_all(Command::Undo { number });
            self.suspension.is_undone = true;
        }
    }

    /// Whether a suspended job begins from a wave, without what is in the memories of nodes.
    fn begins_from_wave(&self) -> bool {
        self.coordinator.protocol().can_return_together()
            && (self.plan.is_some() || !self.coordinator.protocol().logs())
    }

    /// Ranks that have an image from now on do nothing to files that they would do again, or find done.
    fn files_wait(&mut self) {
        if self.begins_from_wave() {
            self.suspension.turns += 1;
            let turn = self.suspension.turns;
            self.agents.give_all(Command::FilesWait { turn });
        }
    }

    /// No rank has a process any more, and all their output is here.
    pub(super) fn halted(&mut self) {
        self.pids.fill(None);
        self.suspension.phase = Phase::Flushing;
        self.acknowledge();
    }

    /// The dispatcher's part of the record. `wave`: while the job runs, of this wave.
    pub(super) fn about(&self, wave: Option<u64>, printed: Option<Place>) -> About {
        let state = State {
            policy: self.policy.failures().clone(),
            spawned_worlds: self.spawning.worlds.clone(),
            output: self.output.before(),
            ledger: Some(self.ledger.state()),
        };
        About {
            number: std::process::id(),
            former: self.suspension.former.clone(),
            unix_time: crate::unix_time(),
            monotonic_ns: crate::monotonic_ns(),
            seconds: self.suspension.seconds_before + self.start.elapsed().as_secs_f64(),
            ranks: self.pids.len(),
            launched: self.faults.launched(),
            restarts: self.policy.restarts(),
            command: self.about.command.clone(),
            origin: self.suspension.origin.clone(),
            processor: processor(),
            wave,
            printed,
            nodes: self.node_names(),
            dispatcher: serde_json::to_value(state).unwrap_or_default(),
        }
    }

    /// The job can be resumed from its files.
    pub(super) fn suspended(&mut self, directory: &Path, bytes: u64) {
        self.suspension.phase = Phase::Copying;
        self.suspension.resumed_from = None;
        self.forget_output();
        self.suspension.record = Record::default();
        let name = self.suspension.register(directory);
        self.bus.tell(Event::Suspended {
            directory,
            bytes,
            name: &name,
            took: self.suspension.began.elapsed(),
        });
        self.flush_suspension(directory);
    }

    /// Ends a job that can be resumed.
    fn end_suspended(&mut self) {
        self.suspension.phase = Phase::Done;
        // The user may have ended the job in the last moment: it is suspended nevertheless.
        self.verdict = Some(SUSPENDED);
        self.tell_end(Duration::ZERO, false);
    }

    /// The suspended job is ours: no other run goes on with it.
    pub(super) fn resumed(
        &mut self,
        ranks: Vec<Former>,
        sets: Vec<FormerSet>,
        transit: Vec<u64>,
        cluster: Option<&Cluster>,
    ) {
        if let Err(error) = self.ledger.input_is_back() {
            self.cannot_go_on(&format!("cannot keep standard input: {error}"));
        }
        if let Some(directory) = &self.suspension.resumed_from {
            self.bus.tell(Event::Resumed {
                directory,
                ranks: self.pids.len(),
                job: std::process::id(),
            });
            self.go_on_with_output();
        }
        if let Some(rank) = self.without_image(&ranks) {
            return self.cannot_go_on(&format!(
                "rank {rank} had finished before the last wave, and has no image of it: resume the job on one machine"
            ));
        }
        let plan = self.coordinator.plan().clone();
        self.coordinator = Coordinator::resume(plan, ranks, transit).with_sets(sets);
        self.place_ranks(cluster);
        self.tell_whole();
        if self.verdict.is_none() {
            let together = self.suspension.is_from_wave || cluster.is_some();
            let go_on = Fact::GoOn { together };
            match self.coordinator.protocol().with_waves().filter(|_| together) {
                Some(_) => self.waves_come(go_on),
                None => self.coordinate(go_on),
            }
        }
    }

    /// A rank whose end is its image of the last wave, where ends do not count.
    fn without_image(&self, ranks: &[Former]) -> Option<usize> {
        if self.ends_count() || !self.coordinator.protocol().can_return_together() {
            return None;
        }
        let newest = ranks.iter().flat_map(|former| &former.files).max()?;
        let lacks = |former: &Former| former.finished && !former.files.contains(newest);
        ranks.iter().position(lacks)
    }

    /// Another run has the suspended job and its files.
    pub(super) fn resumed_elsewhere(&mut self, reason: &str) {
        self.suspension.resumed_from = None;
        self.suspension.is_elsewhere = true;
        self.bus.error(reason);
        self.end(REFUSED, Duration::ZERO);
    }

    /// Answers clients that wait for the suspension, when no process of the job runs any more.
    pub(super) fn tell_who_waits_for_suspension(&mut self) {
        let seconds = readable_duration(self.suspension.began.elapsed());
        for client in std::mem::take(&mut self.suspension.clients) {
            let reply = match self.suspension.phase {
                Phase::Done => Reply::Done(format!(
                    "is suspended after {seconds}; resurgo resume {} goes on with it",
                    std::process::id()
                )),
                _ => Reply::Refused("has ended before it could be suspended".to_string()),
            };
            self.front.console.answer(client, &reply);
        }
    }
}

/// So many images.
pub(super) fn images(count: usize) -> String {
    match count {
        1 => "1 image is still".to_string(),
        count => format!("{count} images are still"),
    }
}

/// Makes a link to `directory`, by which the job is found again.
fn register(registry: &Path, directory: &Path) -> std::io::Result<()> {
    let Some(name) = directory.file_name() else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let registry = Directory::make(registry, Trust::Nobody)?;
    if registry.read_link(name).is_ok_and(|known| known == directory) {
        return Ok(());
    }
    let _ = registry.remove(name);
    registry.link(directory, name)
}
