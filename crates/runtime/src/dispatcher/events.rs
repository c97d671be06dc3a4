//! What the dispatcher tells: plain words on standard error, JSON for machines, and the summary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use resurgo_protocol::Protocol;
use resurgo_wire::control::{End, Ended, LifeStatistics, Stream};
use resurgo_wire::counters::Cost;
use resurgo_wire::node_memory::SEGMENT;
use serde_json::{Map, Value, json};

use super::policy::{describe, how_ended, of_rank};
use super::stats::{Outcome, Stats};
use crate::channel_memory::Held;
use crate::units::{grouped, readable_duration, readable_size};

/// How long a rank can be without an image before the user is told why.
const WITHOUT_IMAGE: Duration = Duration::from_secs(5);

/// Why there is no image for a while, in the ordinary course of things.
const IN_PASSING: [&str; 4] = ["former life", "not running", "died meanwhile", "still being written"];

/// Whether this reason for having no image will soon be gone by itself.
pub fn is_in_passing(reason: &str) -> bool {
    IN_PASSING.iter().any(|passing| reason.contains(passing))
}

/// What a life begins from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beginning {
    /// 0: the beginning of the program.
    pub image: u64,
    /// The image had to be read from a file.
    pub from_file: bool,
    /// All ranks do.
    pub together: bool,
    /// When it was asked for and when it could run, in nanoseconds of CLOCK_MONOTONIC.
    pub ns: (u64, u64),
}

/// What is to become of the measurements at the end.
#[derive(Default)]
pub struct Wanted {
    /// A table for people.
    pub table: bool,
    /// JSON, into this file.
    pub file: Option<File>,
}

/// A rank of which no image can be taken.
#[derive(Clone, Default)]
struct Refusals {
    /// When the first was refused since there was one.
    since: Option<Instant>,
    told: bool,
}

/// Tells what happens.
pub struct Events {
    quiet: bool,
    json: Option<File>,
    start: Instant,
    /// Text for standard error, taken by [`Events::take_text`].
    text: Vec<u8>,
    stats: Stats,
    statistics: Wanted,
    /// Which rank has spawned each one.
    spawned_by: Vec<Option<usize>>,
    /// Ranks in a later life that has not caught up.
    behind: Vec<bool>,
    refusals: Vec<Refusals>,
    /// Why images of which ranks could not be written, each until one of that rank has been.
    unwritten: BTreeMap<String, BTreeSet<usize>>,
    /// Of ranks that have not begun since: which image could not be used, and why.
    unusable: BTreeMap<usize, String>,
}

impl Events {
    pub fn new(size: usize, quiet: bool, json: Option<File>, statistics: Wanted, start: Instant) -> Events {
        Events {
            quiet,
            json,
            start,
            text: Vec::new(),
            stats: Stats::new(size, start),
            statistics,
            spawned_by: vec![None; size],
            behind: vec![false; size],
            refusals: vec![Refusals::default(); size],
            unwritten: BTreeMap::new(),
            unusable: BTreeMap::new(),
        }
    }

    /// Images (or complete waves) so far, and when the last was taken.
    pub fn images(&self) -> (u64, Option<Instant>) {
        (self.stats.images + self.stats.waves, self.stats.last_image)
    }

    pub fn restarts(&self) -> u64 {
        self.stats.restarts()
    }

    /// Text to be written to standard error.
    pub fn take_text(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text)
    }

    pub fn say(&mut self, words: &str) {
        if !self.quiet {
            self.text.extend_from_slice(format!("resurgo: {words}\n").as_bytes());
        }
    }

    fn record(&mut self, event: &str, mut fields: Value) {
        let Some(file) = &mut self.json else { return };
        let mut object = Map::new();
        object.insert("time".into(), json!(self.start.elapsed().as_secs_f64()));
        object.insert("event".into(), json!(event));
        if let Some(fields) = fields.as_object_mut() {
            object.append(fields);
        }
        let line = format!("{}\n", Value::Object(object));
        if let Err(error) = file.write_all(line.as_bytes()) {
            self.json = None;
            self.text
                .extend_from_slice(format!("resurgo: the file of --json-events: {error}\n").as_bytes());
        }
    }

    pub fn job_started(&mut self, size: usize, protocol: Protocol) {
        let coordinated = protocol.has_waves() && !protocol.logs();
        self.stats.job_started(protocol.name(), coordinated);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        self.record(
            "job_started",
            json!({"ranks": size, "protocol": protocol.name(), "unix_time": now}),
        );
    }

    pub fn started(&mut self, rank: usize, life: u64, pid: i32, how: Beginning) {
        let Beginning {
            image,
            from_file,
            together,
            ns,
        } = how;
        self.stats.started(rank, life, image, from_file, ns);
        self.unusable.remove(&rank);
        // Others go on after a suspension.
        if self.behind[rank] && !together {
            let from = match image {
                0 => String::new(),
                _ if from_file => format!(" from the file of its image {image}"),
                _ => format!(" from its image {image}"),
            };
            self.say(&format!("rank {rank} restarted on this node{from} (life {life})"));
        }
        self.record(
            "started",
            json!({"rank": rank, "life": life, "pid": pid, "image": image, "from_file": from_file}),
        );
    }

    /// `again`: it has taken the place of one that was lost; `deliveries`: it has so many from then.
    pub fn event_logger_started(&mut self, number: usize, pid: Option<u32>, epoch: u64, deliveries: u64, again: bool) {
        if again {
            let how = match deliveries {
                0 => "empty".to_string(),
                _ => format!("with {} from its file", counted(deliveries, "delivery", "deliveries")),
            };
            self.say(&format!("event logger {number} has been started again, {how}"));
        }
        self.record(
            "event_logger_started",
            json!({"logger": number, "pid": pid, "epoch": epoch, "deliveries": deliveries}),
        );
    }

    /// `waits`: nothing is sent until it is there again.
    pub fn event_logger_lost(&mut self, number: usize, end: End, waits: bool) {
        let meanwhile = if waits {
            "ranks wait with what they send until it is there again"
        } else {
            "the job goes on without it meanwhile"
        };
        let end = how_ended(end);
        self.say(&format!("warning: event logger {number} was lost ({end}); {meanwhile}"));
        self.record("event_logger_lost", json!({"logger": number, "end": end}));
    }

    pub fn event_logger_without_journal(&mut self, number: usize, reason: &str) {
        self.say(&format!(
            "warning: event logger {number} cannot write its file ({reason}): it goes on without; if it dies as well, what it has is lost. \
             --spill-dir DIR names a place with room"
        ));
        self.record(
            "event_logger_without_journal",
            json!({"logger": number, "reason": reason}),
        );
    }

    pub fn event_logger_failed(&mut self, number: usize, reason: &str) {
        self.say(&format!("warning: event logger {number} cannot be started: {reason}"));
        self.record("event_logger_failed", json!({"logger": number, "reason": reason}));
    }

    pub fn channel_memory_started(&mut self, number: usize, pid: Option<u32>) {
        self.record("channel_memory_started", json!({"memory": number, "pid": pid}));
    }

    pub fn channel_memory_fills(&mut self, number: usize) {
        self.record("channel_memory_fills", json!({"memory": number}));
    }

    /// At the end of the job.
    pub fn channel_memories_held(&mut self, held: Vec<Option<Held>>) {
        self.stats.channel_memories = held;
    }

    /// `failed`: the reason that it has given itself; otherwise it has ended without a word.
    pub fn channel_memory_lost(&mut self, number: usize, failed: Option<String>, end: Option<End>) {
        let what = match (failed, end) {
            (Some(reason), _) => format!("channel memory {number} cannot go on: {reason}"),
            (None, end) => format!(
                "channel memory {number} was lost ({}); the messages that it had are nowhere else, so the job ends",
                end.map_or_else(|| "it said nothing".to_string(), how_ended)
            ),
        };
        self.record("channel_memory_lost", json!({"memory": number, "end": end}));
        self.error(&what);
    }

    /// The rank is asked for an image now.
    pub fn image_asked(&mut self, rank: usize) {
        self.stats.image_asked(rank, Instant::now());
    }

    /// `is_snapshot`: there is a sleeping process, else it counts when its file is complete.
    pub fn checkpointed(&mut self, rank: usize, number: u64, stall: Duration, is_snapshot: bool) {
        self.stats.checkpointed(rank, number, stall, Instant::now());
        self.unusable.remove(&rank);
        self.refusals[rank].since = None;
        self.record(
            "checkpointed",
            json!({
                "rank": rank, "image": number, "stall_seconds": stall.as_secs_f64(),
                "copy": if is_snapshot { "forked" } else { "warm_buffer" },
            }),
        );
    }

    /// They come less often than `every`, so that they take no more than this share of the time.
    pub fn images_held_back(&mut self, every: Duration, share: f64) {
        let (every, percent) = (readable_duration(every), share * 100.0);
        self.say(&format!(
            "note: images come less often than every {every}: they would take more than {percent} % of the time (--checkpoint-share)"
        ));
        self.record("images_held_back", json!({"share": share}));
    }

    pub fn log_fills(&mut self, rank: usize) {
        self.record("log_fills", json!({"rank": rank}));
    }

    /// `total`: from the request to the last rank; `longest` and `mean`: standstill of a rank (Gao 2007, §5: total and
    /// individual checkpoint time). `groups`: each rank's group, from 1, and whether they were to be formed by communication and
    /// it is global.
    pub fn wave_complete(
        &mut self,
        number: u64,
        total: Duration,
        longest: Duration,
        mean: Duration,
        groups: Option<(Vec<u32>, bool)>,
        of: Option<&[usize]>,
    ) {
        self.stats
            .wave_complete(number, total, longest, mean, of, Instant::now());
        for (rank, refusals) in self.refusals.iter_mut().enumerate() {
            if of.is_none_or(|of| of.contains(&rank)) {
                refusals.since = None;
            }
        }
        let mut wave = json!({
            "wave": number, "total_seconds": total.as_secs_f64(), "stall_seconds": longest.as_secs_f64(),
            "mean_stall_seconds": mean.as_secs_f64(),
        });
        if let Some((of, is_global)) = groups {
            let last = of.iter().copied().max().unwrap_or(0);
            let members = |group: u32| (0..of.len()).filter(|rank| of[*rank] == group).collect::<Vec<_>>();
            wave["groups"] = (1..=last).map(members).collect();
            wave["communication_is_global"] = is_global.into();
        }
        if let Some(ranks) = of {
            wave["ranks"] = json!(ranks);
        }
        self.record("wave_complete", wave);
    }

    /// The ranks of a group go on from `wave`, 0: the beginning, and repeat what they have done since.
    pub fn group_returned(&mut self, ranks: &[usize], wave: u64) {
        let of = numbers(ranks);
        self.say(&match (ranks, wave) {
            ([rank], 0) => format!("rank {rank} begins again: its group had no complete wave"),
            ([rank], _) => format!("rank {rank} goes on from wave {wave} of its group"),
            (_, 0) => format!("ranks {of} begin again: their group had no complete wave"),
            _ => format!("ranks {of} go on from wave {wave} of their group"),
        });
        self.record("returned", json!({"wave": wave, "ranks": ranks}));
    }

    /// All ranks go on from `wave`, 0: the beginning.
    pub fn returned(&mut self, wave: u64, now: Instant) {
        self.behind.fill(false);
        let lost = self.stats.returned(wave, now);
        self.say(&match wave {
            0 => "all ranks begin again: there was no complete wave".to_string(),
            _ => format!("all ranks go on from wave {wave}"),
        });
        self.record("returned", json!({"wave": wave, "lost_seconds": lost.as_secs_f64()}));
    }

    /// The program has turned out not to repeat what it does, or a rank has lost what it could recover from alone.
    pub fn all_return_from_now_on(&mut self, rank: usize, why: &str) {
        self.stats.all_return();
        self.say(&format!(
            "{why}: from now on all ranks return to the last wave when one has failed"
        ));
        self.record("returns_together", json!({"rank": rank, "reason": why}));
    }

    /// `is_expected`: the user asked for images, or the job needs them; this one was asked for at `asked`. True when it has been so
    /// for long, and more than once.
    pub fn not_checkpointed(
        &mut self,
        rank: usize,
        reason: &str,
        is_expected: bool,
        (asked, now): (Instant, Instant),
    ) -> bool {
        let refusals = &mut self.refusals[rank];
        let is_first = refusals.since.is_none();
        if !is_expected || is_in_passing(reason) {
            refusals.since = None;
        } else if now - *refusals.since.get_or_insert(asked) >= WITHOUT_IMAGE && !refusals.told {
            refusals.told = true;
            self.say(&format!("warning: no image of rank {rank} can be taken: {reason}"));
        }
        self.record("not_checkpointed", json!({"rank": rank, "reason": reason}));
        self.refusals[rank].told && !is_first
    }

    /// `by` has spawned the ranks that come next, so that there are `ranks` now.
    pub fn spawned(&mut self, by: usize, ranks: usize, programs: &[&str]) {
        let first = self.spawned_by.len();
        self.spawned_by.resize(ranks, Some(by));
        self.stats.grow(ranks);
        self.behind.resize(ranks, false);
        self.refusals.resize(ranks, Refusals::default());
        let new: Vec<usize> = (first..ranks).collect();
        self.record("spawned", json!({"rank": by, "ranks": new, "programs": programs}));
    }

    /// `by` is told that its spawn has failed.
    pub fn spawn_failed(&mut self, by: usize, reason: &str) {
        self.say(&format!("warning: rank {by} could not spawn: {reason}"));
        self.record("spawn_failed", json!({"rank": by, "reason": reason}));
    }

    pub fn image_written(&mut self, rank: usize, number: u64, bytes: u64, written: u64, time: Duration) {
        self.stats.image_written(rank, number, bytes, written, time);
        self.unwritten.retain(|_, ranks| {
            ranks.remove(&rank);
            !ranks.is_empty()
        });
        self.record(
            "image_written",
            json!({
                "rank": rank, "image": number, "bytes": bytes, "written_bytes": written,
                "write_seconds": time.as_secs_f64(),
            }),
        );
    }

    /// Told in words once for each reason, until all ranks that it is told of have had an image written.
    pub fn image_not_written(&mut self, rank: usize, number: u64, reason: &str) {
        // What comes before is where it was noticed.
        let cause = reason.rsplit(": ").next().unwrap_or(reason);
        let ranks = self.unwritten.entry(cause.to_string()).or_default();
        let is_new = ranks.is_empty();
        ranks.insert(rank);
        if is_new {
            self.say(&format!(
                "warning: image {number} of rank {rank} could not be written: {reason}; the job and earlier images are \
                 as before"
            ));
        }
        self.record(
            "image_not_written",
            json!({"rank": rank, "image": number, "reason": reason}),
        );
    }

    pub fn image_lost(&mut self, rank: usize, number: u64, reason: &str) {
        let words = format!("image {number} of rank {rank} cannot be used: {reason}");
        self.say(&format!("warning: {words}"));
        // The first of them is what the rank would have begun from.
        self.unusable.entry(rank).or_insert(words);
        self.record("image_lost", json!({"rank": rank, "image": number, "reason": reason}));
    }

    pub fn memory_read(&mut self, rank: usize, number: u64) {
        self.record("memory_read", json!({"rank": rank, "image": number}));
    }

    /// The job goes on from `directory`, and has the number `job` from now on.
    pub fn resumed(&mut self, directory: &Path, ranks: usize, job: u32) {
        let (ranks, directory_shown) = (counted(ranks as u64, "rank goes", "ranks go"), directory.display());
        self.say(&format!(
            "{ranks} on from the files in {directory_shown}; the job is number {job} now"
        ));
        self.record("resumed", json!({"directory": directory.to_string_lossy()}));
    }

    /// `name`: by which the job is resumed.
    pub fn suspended(&mut self, directory: &Path, name: &str, time: Duration, bytes: u64) {
        let (shown, time) = (directory.display(), readable_duration(time));
        self.say(&format!(
            "the job is suspended in {shown}, after {time}; resurgo resume {name} goes on with it"
        ));
        self.record(
            "suspended",
            json!({"directory": directory.to_string_lossy(), "bytes": bytes}),
        );
    }

    /// This run of the job is over before the program's end, and there is what it has begun from. `is_damaged`: an image
    /// that could not be used has ended it.
    pub fn stays_suspended(&mut self, directory: &Path, is_damaged: bool) {
        let directory = directory.display();
        let again = match is_damaged {
            true => "; it can be resumed again when that has been put right",
            false => "",
        };
        self.say(&format!("the job stays suspended, as it was, in {directory}{again}"));
    }

    /// An image that could not be used, of a rank that has not begun from another since.
    pub fn unusable_image(&self) -> Option<&str> {
        self.unusable.values().next().map(String::as_str)
    }

    pub fn not_suspended(&mut self, reason: &str) {
        let words = format!("the job could not be suspended and goes on: {reason}");
        self.text.extend_from_slice(format!("resurgo: {words}\n").as_bytes());
        self.record("not_suspended", json!({"reason": reason}));
    }

    pub fn fault_injected(&mut self, rank: usize) {
        self.record("fault_injected", json!({"rank": rank}));
    }

    pub fn finished(&mut self, ended: &Ended) {
        self.stats.finished(ended);
        let code = ended.exit_code();
        let mut fields = json!({"rank": ended.rank, "life": ended.life, "exit_code": code});
        let cost = |cost: Cost| ended.statistics.costs[cost as usize];
        if cost(Cost::Piggybacks) > 0 {
            fields["piggybacks"] = json!({
                "messages": cost(Cost::Piggybacks), "messages_with_none": cost(Cost::EmptyPiggybacks),
                "bytes": cost(Cost::PiggybackBytes), "events": cost(Cost::PiggybackEvents),
                "largest_graph": cost(Cost::LargestGraph),
            });
        }
        self.record("finished", fields);
    }

    /// `error`: why it ends the job, if it does; when that tells the failure, it is told nowhere else.
    pub fn failed(&mut self, ended: &Ended, error: Option<&str>, now: Instant) {
        let rank = ended.rank;
        self.stats.failed(ended, now);
        self.behind[rank] = false;
        let origin = match self.spawned_by[rank] {
            Some(by) => format!(", spawned by rank {by}"),
            None => String::new(),
        };
        let words = format!("{} (pid {}{origin})", of_rank(ended), ended.pid);
        let rest = error.and_then(|error| error.strip_prefix(&of_rank(ended)));
        if rest.is_none() {
            self.say(&words);
        }
        self.record(
            "failed",
            json!({
                "rank": rank, "life": ended.life, "pid": ended.pid, "cause": describe(ended),
                "deliveries": ended.statistics.deliveries, "sends": ended.statistics.sends(),
            }),
        );
        if let Some(error) = error {
            match rest {
                Some(rest) => self.error(&format!("{words}{rest}")),
                None => self.error(error),
            }
        }
    }

    pub fn restarting(&mut self, rank: usize) {
        self.stats.restarting(rank);
        self.behind[rank] = true;
    }

    pub fn caught_up(&mut self, rank: usize, life: u64, statistics: &LifeStatistics, now: Instant) {
        let (replay, lost) = self.stats.caught_up(rank, statistics, now);
        self.behind[rank] = false;
        let deliveries = statistics.replay_deliveries;
        let words = match deliveries {
            0 => format!("rank {rank} had nothing to replay"),
            _ => format!(
                "rank {rank} replayed {} in {}",
                counted(deliveries, "delivery", "deliveries"),
                readable_duration(replay)
            ),
        };
        if lost.is_some() {
            self.say(&words);
        }
        self.record(
            "caught_up",
            json!({
                "rank": rank, "life": life, "deliveries": deliveries,
                "replay_seconds": replay.as_secs_f64(), "lost_seconds": lost.unwrap_or_default().as_secs_f64(),
            }),
        );
    }

    /// `anew`: it goes another way than before, so that what differs is shown, and what follows it.
    pub fn output_differs(&mut self, rank: usize, stream: Stream, offset: u64, anew: bool) {
        let (name, at) = (stream.name(), grouped(offset));
        self.say(&if anew {
            format!(
                "warning: rank {rank} does not print on {name} what it printed before, from the line after {at} bytes on; \
                 from there its output is printed anew"
            )
        } else {
            format!(
                "warning: rank {rank} printed other numbers on {name} than before, from the line after {at} bytes on; \
                 what was printed first stands"
            )
        });
        self.record(
            "output_differs",
            json!({"rank": rank, "stream": name, "offset": offset, "anew": anew}),
        );
    }

    pub fn output_missing(&mut self, rank: usize, bytes: u64) {
        self.say(&format!(
            "warning: rank {rank} has not repeated the last {} bytes of its standard output; going on without them",
            grouped(bytes)
        ));
        self.record("output_missing", json!({"rank": rank, "bytes": bytes}));
    }

    pub fn program_replaced(&mut self, rank: usize, path: &Path) {
        let path = path.display();
        self.say(&format!(
            "warning: {path} has been replaced since the job began; rank {rank} goes on with the file that it began with"
        ));
        self.record("program_replaced", json!({"rank": rank, "path": path.to_string()}));
    }

    /// Told even with `-q`: it is why the rank ends, and perhaps the job.
    pub fn undone(&mut self, rank: usize, what: &str) {
        let text = format!("resurgo: rank {rank} ends badly, and before: {what}\n");
        self.text.extend_from_slice(text.as_bytes());
        self.record("undone", json!({"rank": rank, "text": what}));
    }

    pub fn pmi_trouble(&mut self, rank: usize, text: &str) {
        self.say(&format!("warning: rank {rank} {text}"));
        self.record("pmi_trouble", json!({"rank": rank, "text": text}));
    }

    pub fn aborted(&mut self, rank: usize, code: i32) {
        self.record("aborted", json!({"rank": rank, "exit_code": code}));
    }

    /// How each of so many ranks has ended, told even with `-q`: it has been asked for.
    pub fn exit_codes(&mut self, ranks: usize, codes: &BTreeMap<usize, i32>) {
        let code = |rank| codes.get(&rank).map_or("-".to_string(), i32::to_string);
        let words = (0..ranks).map(code).collect::<Vec<_>>().join(",");
        self.text
            .extend_from_slice(format!("resurgo: exit codes: {words}\n").as_bytes());
    }

    /// The job ends early. This is told even with `-q`: an error is no progress message.
    pub fn error(&mut self, reason: &str) {
        self.text.extend_from_slice(format!("resurgo: {reason}\n").as_bytes());
        self.record("error", json!({"reason": reason}));
    }

    /// The job is over. `statistics` are those of every rank's last life; none if the agent could not tell them.
    pub fn summary(&mut self, code: i32, statistics: &[LifeStatistics], now: Instant) {
        self.stats.ended(statistics, now);
        let stats = &self.stats;
        let (messages, logged) = stats.sent();
        let mut told = Vec::new();
        let restarts = stats.restarts();
        if restarts > 0 {
            let mut words = format!(
                "{}; {} lost",
                counted(restarts, "restart", "restarts"),
                readable_duration(stats.lost)
            );
            if stats.replayed_deliveries > 0 {
                words += &format!(
                    ", {} of it in the replay of {}",
                    readable_duration(stats.replay),
                    counted(stats.replayed_deliveries, "delivery", "deliveries"),
                );
            }
            let behind: Vec<usize> = (0..self.behind.len()).filter(|rank| self.behind[*rank]).collect();
            match behind[..] {
                [] => {}
                [rank] => words += &format!("; rank {rank} had not caught up when the job ended"),
                _ => words += &format!("; {} ranks had not caught up when the job ended", behind.len()),
            }
            if !statistics.is_empty() {
                words += &format!(
                    "; {} sent in {}",
                    readable_size(logged),
                    counted(messages, "message", "messages")
                );
            }
            told.push(words);
        }
        if stats.images > 0 {
            let words = format!(
                "{} taken; no rank stood still for longer than {}",
                counted(stats.images, "image", "images"),
                readable_duration(stats.longest_stall),
            );
            told.push(words);
        }
        if stats.waves > 0 {
            let words = format!(
                "{} taken in {} on average; no rank stood still for longer than {}",
                counted(stats.waves, "wave", "waves"),
                readable_duration(Duration::from_secs_f64(stats.total().unwrap_or_default())),
                readable_duration(stats.longest_stall),
            );
            told.push(words);
        }
        let fields = json!({
            "individual_checkpoint_seconds": stats.individual(),
            "total_checkpoint_seconds": stats.total().filter(|_| stats.waves > 0),
            "effective_delay_seconds": stats.effective().as_secs_f64(),
            "waves": stats.waves, "images": stats.images, "image_bytes": stats.image_bytes,
            "longest_stall_seconds": stats.longest_stall.as_secs_f64(),
            "exit_code": code, "failures": stats.failures, "restarts": restarts,
            "lost_seconds": stats.lost.as_secs_f64(), "replay_seconds": stats.replay.as_secs_f64(),
            "replayed_deliveries": stats.replayed_deliveries, "logged_bytes": logged, "messages": messages,
            "spilled_segments": stats.costs()[Cost::SpilledBytes as usize] / SEGMENT as u64,
            "wall_seconds": self.start.elapsed().as_secs_f64(),
        });
        told.iter().for_each(|words| self.say(words));
        self.record("job_ended", fields);
        self.tell_statistics(Outcome {
            code,
            wall: now.duration_since(self.start),
            is_complete: !statistics.is_empty(),
        });
    }

    /// The table is printed even with `-q`: it has been asked for.
    fn tell_statistics(&mut self, outcome: Outcome) {
        if self.statistics.table {
            for line in self.stats.table(outcome) {
                self.text.extend_from_slice(format!("resurgo: {line}\n").as_bytes());
            }
        }
        if let Some(mut file) = self.statistics.file.take() {
            let text = format!("{:#}\n", self.stats.json(outcome));
            if let Err(error) = file.write_all(text.as_bytes()) {
                self.error(&format!("the file of --stats-json could not be written: {error}"));
            }
        }
    }
}

/// `1 restart`, `2 restarts`.
/// `0, 2 and 3`.
fn numbers(ranks: &[usize]) -> String {
    let mut words: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match words.pop() {
        Some(last) if !words.is_empty() => format!("{} and {last}", words.join(", ")),
        last => last.unwrap_or_default(),
    }
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests;
