//! Events in plain words, for standard error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::dispatcher::ends::how_ended;
use crate::dispatcher::events::{Event, Sink, Summary};
use crate::units::{counted, grouped, readable_duration, readable_size};

pub struct Words {
    quiet: bool,
    verbose: bool,
    text: Vec<u8>,
    /// Ranks in a later life that has not caught up.
    behind: BTreeSet<usize>,
    /// The name of the node that each rank runs on, or ran on last, where there are several.
    places: BTreeMap<usize, String>,
    /// Why images could not be written, with the ranks; each until an image of that rank is written.
    unwritten: BTreeMap<String, BTreeSet<usize>>,
    has_told_not_recorded: bool,
    /// Places that could not take the last wave.
    failing: BTreeSet<String>,
}

impl Sink for Words {
    fn take(&mut self, event: &Event, _: Instant) {
        self.of_job(event);
        self.of_lives(event);
        self.of_returns(event);
        self.of_ranks(event);
        self.of_images(event);
        self.of_servers(event);
    }
}

impl Words {
    /// `quiet`: without progress; `verbose`: with every life.
    pub fn new(quiet: bool, verbose: bool) -> Words {
        Words {
            quiet,
            verbose,
            text: Vec::new(),
            behind: BTreeSet::new(),
            places: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            has_told_not_recorded: false,
            failing: BTreeSet::new(),
        }
    }

    pub fn take_text(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text)
    }

    /// `rank 3`; `rank 3 on node n2` where there are several nodes.
    pub fn rank(&self, rank: usize) -> String {
        match self.places.get(&rank) {
            Some(name) => format!("rank {rank} on node {name}"),
            None => format!("rank {rank}"),
        }
    }

    /// The name of the node that the rank runs on, or ran on last, where there are several.
    pub fn node_of(&self, rank: usize) -> Option<&str> {
        self.places.get(&rank).map(String::as_str)
    }

    fn say(&mut self, words: &str) {
        if !self.quiet {
            self.insist(words);
        }
    }

    /// Prints it even with `-q`.
    fn insist(&mut self, words: &str) {
        self.text.extend_from_slice(format!("resurgo: {words}\n").as_bytes());
    }

    fn of_job(&mut self, event: &Event) {
        match event {
            Event::Resumed { directory, ranks, job } => {
                let ranks = counted(*ranks as u64, "rank goes", "ranks go");
                let directory = directory.display();
                self.say(&format!("{ranks} on from the files in {directory}; the job is number {job} now"));
            }
            Event::OutputFileDiffers { path } => self.say(&format!(
                "warning: {} has changed since the job was suspended: lines are missing from it, and new output is appended",
                path.display()
            )),
            Event::Suspended { directory, name, took, .. } => self.say(&format!(
                "the job is suspended in {}, after {}; resurgo resume {name} goes on with it",
                directory.display(),
                readable_duration(*took)
            )),
            Event::NotSuspended { reason } => {
                self.insist(&format!("the job could not be suspended and goes on: {reason}"));
            }
            Event::StaysSuspended { directory, is_damaged } => {
                let again = match is_damaged {
                    true => "; fix that, then resume it again",
                    false => "",
                };
                let directory = directory.display();
                self.say(&format!("the job stays suspended, as it was, in {directory}{again}"));
            }
            Event::CanBeResumed { wave, name } => {
                self.say(&format!("the job can go on from wave {wave}: resurgo resume {name}"));
            }
            // An error is no progress message.
            Event::Error { reason } => self.insist(reason),
            Event::JobEnded { summary, is_complete, .. } => self.summary(summary, *is_complete),
            Event::NoJournal { reason } => {
                self.say(&format!("warning: there is no journal to write into: {reason}; the job runs without (--journal)"));
            }
            Event::JournalMissed { entries, reason } => {
                let entries = counted(*entries, "entry", "entries");
                self.say(&format!("warning: the journal has not taken {entries}: {reason} (--journal)"));
            }
            // The user asked for these lines.
            Event::Table { lines } => lines.iter().for_each(|line| self.insist(line)),
            Event::ExitCodes { ranks, codes } => {
                let code = |rank| codes.get(&rank).map_or("-".to_string(), i32::to_string);
                let codes = (0..*ranks).map(code).collect::<Vec<_>>().join(",");
                self.insist(&format!("exit codes: {codes}"));
            }
            _ => {}
        }
    }

    fn of_lives(&mut self, event: &Event) {
        match *event {
            Event::Started {
                rank,
                life,
                pid,
                node,
                image,
                from_file,
                together,
                processors,
                ..
            } => {
                match node {
                    Some(name) => _ = self.places.insert(rank, name.to_string()),
                    None => _ = self.places.remove(&rank),
                }
                let place = node.map_or("this node".to_string(), |name| format!("node {name}"));
                if self.verbose {
                    let there = node.map_or(String::new(), |_| format!(" on {place}"));
                    let on = processors
                        .map(|cpus| format!(" on processors {cpus}"))
                        .unwrap_or_default();
                    self.say(&format!("rank {rank} runs{there} as process {pid}{on} (life {life})"));
                }
                // Other units go on after a suspension.
                if self.behind.contains(&rank) && !together {
                    let from = match image {
                        0 => String::new(),
                        _ if from_file => format!(" from the file of its image {image}"),
                        _ => format!(" from its image {image}"),
                    };
                    self.say(&format!("rank {rank} restarted on {place}{from} (life {life})"));
                }
            }
            Event::Failed { rank, words, .. } => {
                self.behind.remove(&rank);
                words.into_iter().for_each(|words| self.say(words));
            }
            Event::Restarting { rank } => {
                self.behind.insert(rank);
            }
            Event::Lost { rank, left, reason } => {
                let rank = self.rank(rank);
                let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                match left {
                    0 => self.say(&format!("{rank} is lost, and no rank is left{why}")),
                    left => {
                        let left = counted(left as u64, "other goes", "others go");
                        self.say(&format!("{rank} is lost; the {left} on without it{why}"));
                    }
                }
            }
            Event::CaughtUp {
                rank,
                deliveries,
                replay,
                lost,
                ..
            } => {
                self.behind.remove(&rank);
                let rank = self.rank(rank);
                let words = match deliveries {
                    0 => format!("{rank} had nothing to replay"),
                    _ => format!(
                        "{rank} replayed {} in {}",
                        counted(deliveries, "delivery", "deliveries"),
                        readable_duration(replay)
                    ),
                };
                if lost.is_some() {
                    self.say(&words);
                }
            }
            _ => {}
        }
    }

    fn of_returns(&mut self, event: &Event) {
        match *event {
            Event::Returned { wave, ranks: None, .. } => {
                self.behind.clear();
                self.say(&match wave {
                    0 => "all ranks begin again: there are no images that they could go on from".to_string(),
                    _ => format!("all ranks go on from wave {wave}"),
                });
            }
            Event::Returned {
                wave,
                ranks: Some(ranks),
                ..
            } => {
                let of = numbers(ranks);
                self.say(&match (ranks, wave) {
                    ([rank], 0) => format!("rank {rank} begins again: its group has no wave to go on from"),
                    ([rank], _) => format!("rank {rank} goes on from wave {wave} of its group"),
                    (_, 0) => format!("ranks {of} begin again: their group has no wave to go on from"),
                    _ => format!("ranks {of} go on from wave {wave} of their group"),
                });
            }
            Event::NodeMissing { name, reason } => {
                self.say(&format!("warning: node {name}: {reason}; the job begins without it"));
            }
            Event::NodeCame { name, slots, .. } => self.say(&format!(
                "node {name} has come, with room for {slots} ranks: it takes those of nodes that are lost"
            )),
            Event::NodeLeaves { name, reason, .. } => {
                self.say(&format!("node {name} leaves: {reason}; its ranks go on elsewhere"));
            }
            Event::NodeLeft { name, .. } => self.say(&format!("no rank is on node {name} any more")),
            Event::NodeStays { name, reason, .. } => {
                self.say(&format!(
                    "warning: node {name} cannot be left: {reason}; what is lost with it begins again"
                ));
            }
            Event::NodeLost {
                reason, restarts: true, ..
            } => self.say(&format!("{reason}: its ranks begin again on other nodes")),
            Event::NodeLost { reason, .. } => self.say(reason),
            Event::ReturnsTogether { reason, .. } => self.say(&format!(
                "{reason}: from now on all ranks return to the last wave when one fails"
            )),
            Event::WavesGivenUp { rank, reason, nodes } => {
                let rank = self.rank(rank);
                let more = match nodes {
                    true => ", and the loss of a node takes all ranks back to the beginning",
                    false => "",
                };
                self.say(&format!(
                    "warning: there are no waves while {rank} can have no image ({reason}): the others take images alone{more}"
                ));
            }
            Event::LogsLetGo { rank, .. } => {
                let rank = self.rank(rank);
                self.say(&format!(
                    "warning: the logs are full, and {rank} can have no image: they keep nothing more for such ranks, and the \
                     failure of one takes all ranks back to the beginning"
                ));
            }
            Event::WavesOver { rank } => {
                let rank = self.rank(rank);
                self.say(&format!(
                    "warning: {rank} has finished: there are no waves any more, and what fails goes back to the last one"
                ));
            }
            Event::WavesBack { rank, finished } => {
                let rank = self.rank(rank);
                let has_what = if finished { "has finished" } else { "can have images" };
                self.say(&format!("{rank} {has_what}: waves are taken again"));
            }
            _ => {}
        }
    }

    fn of_ranks(&mut self, event: &Event) {
        match *event {
            Event::OutputDiffers {
                rank,
                stream,
                offset,
                anew,
            } => {
                let (rank, name, at) = (self.rank(rank), stream.name(), grouped(offset));
                self.say(&if anew {
                    format!(
                        "warning: {rank} does not print on {name} what it printed before, from the line after {at} bytes on; \
                         from there its output is printed anew"
                    )
                } else {
                    format!(
                        "warning: {rank} printed other numbers on {name} than before, from the line after {at} bytes on; \
                         what was printed first stands"
                    )
                });
            }
            Event::OutputMissing { rank, bytes } => {
                let (rank, bytes) = (self.rank(rank), grouped(bytes));
                self.say(&format!(
                    "warning: {rank} has not repeated the last {bytes} bytes of its standard output; the job goes on without them"
                ));
            }
            Event::ProgramReplaced { rank, path } => {
                let (rank, path) = (self.rank(rank), path.display());
                self.say(&format!(
                    "warning: {path} has been replaced since the job began; {rank} keeps the file that it began with"
                ));
            }
            // It is why the rank ends, and perhaps the job.
            Event::Undone { rank, text } => {
                let rank = self.rank(rank);
                self.insist(&format!("{rank} ends badly, and before: {text}"));
            }
            Event::PmiTrouble { rank, text } => {
                let rank = self.rank(rank);
                self.say(&format!("warning: {rank} {text}"));
            }
            Event::Replaced { ranks, replaced, .. } => {
                let pairs = ranks.iter().zip(replaced);
                pairs.for_each(|(rank, of)| self.say(&format!("rank {rank} starts in the place of rank {of}")));
            }
            Event::SpawnFailed { rank, reason } => {
                let rank = self.rank(rank);
                self.say(&format!("warning: {rank} could not spawn: {reason}"));
            }
            _ => {}
        }
    }

    fn of_images(&mut self, event: &Event) {
        match *event {
            Event::ImagesHeldBack { share, every } => {
                let (every, percent) = (readable_duration(every), (share * 1e4).round() / 100.0);
                self.say(&format!(
                    "note: images come less often than every {every}: they would take more than {percent} % of the time \
                     (--checkpoint-share)"
                ));
            }
            Event::NotCheckpointed {
                rank,
                reason,
                is_news: true,
            } => {
                let rank = self.rank(rank);
                self.say(&format!("warning: no image of {rank} can be taken: {reason}"));
            }
            Event::ImageWritten { rank, .. } => self.unwritten.retain(|_, ranks| {
                ranks.remove(&rank);
                !ranks.is_empty()
            }),
            Event::ImageNotWritten { rank, image, reason } => self.not_written(rank, image, reason),
            Event::PieceLost { node, reason, .. } => {
                self.say(&format!("warning: node {node} has lost a piece of parity: {reason}"));
            }
            Event::FewReplicas { reason } => self.say(&format!("warning: {reason}")),
            Event::OutputNotKept { reason } => self.say(&format!(
                "warning: if this run is lost, what is printed from here on will be printed again when the job goes on: {reason}"
            )),
            Event::WaveNotRecorded { wave, reason } if !std::mem::replace(&mut self.has_told_not_recorded, true) => {
                self.say(&format!(
                    "warning: wave {wave} is in files, but the job could not be resumed from it if this run were lost: {reason}"
                ));
            }
            Event::ImageLevel {
                level,
                what,
                survives,
                is_asked,
            } if is_asked || self.verbose => {
                self.say(&format!("images, level {level}: {what}; survives {survives}"));
            }
            Event::WaveFlushed { .. }
            | Event::WaveNotFlushed { .. }
            | Event::SuspensionNotFlushed { .. }
            | Event::WaveComes { .. }
            | Event::PlaceAway { .. }
            | Event::PlaceBehind { .. }
            | Event::PlaceKeeps { .. } => self.of_places(event),
            Event::ImageLost { rank, image, reason } => {
                self.say(&format!("warning: {}", unusable_image(rank, image, reason)));
            }
            _ => {}
        }
    }

    fn of_places(&mut self, event: &Event) {
        match *event {
            Event::WaveFlushed {
                wave,
                place,
                bytes,
                put,
                took,
            } => {
                self.failing.remove(place);
                if self.verbose {
                    self.say(&format!(
                        "wave {wave} is in {place}: {}, of which {} went there in {}",
                        readable_size(bytes),
                        readable_size(put),
                        readable_duration(took)
                    ));
                }
            }
            // Once, until the place takes a wave again.
            Event::WaveNotFlushed { wave, place, reason } if self.failing.insert(place.to_string()) => {
                self.say(&format!("warning: wave {wave} could not be stored: {reason}"));
            }
            Event::SuspensionNotFlushed { reason } => {
                self.say(&format!("warning: the suspended job is not stored: {reason}"));
            }
            Event::WaveComes { wave, places } => self.say(&format!(
                "no node has all of wave {wave} any more: what is missing comes from {places}"
            )),
            Event::PlaceAway { place, reason } => {
                self.failing.insert(place.to_string());
                self.say(&format!(
                    "warning: {place}: {reason}; the job begins without it, and waves go there once it can be reached"
                ));
            }
            Event::PlaceBehind { place, since } => self.say(&format!(
                "warning: waves come faster than {place} takes them: one is on its way since {}, so others do not go there; raise \
                 every= or --checkpoint-every",
                readable_duration(since)
            )),
            Event::PlaceKeeps { reason } => self.say(&format!(
                "warning: what the job has stored could not be removed: {reason}; resurgo store rm does it"
            )),
            _ => {}
        }
    }

    /// Reported once for each reason, until all of its ranks have a written image.
    fn not_written(&mut self, rank: usize, image: u64, reason: &str) {
        // The text before tells where the error appeared.
        let cause = reason.rsplit(": ").next().unwrap_or(reason);
        let ranks = self.unwritten.entry(cause.to_string()).or_default();
        let is_new = ranks.is_empty();
        ranks.insert(rank);
        if is_new {
            let rank = self.rank(rank);
            self.say(&format!(
                "warning: image {image} of {rank} could not be written: {reason}; the job and earlier images are as before"
            ));
        }
    }

    fn of_servers(&mut self, event: &Event) {
        match *event {
            Event::LoggerStarted { logger, deliveries, again: true, .. } => {
                let how = match deliveries {
                    0 => "empty".to_string(),
                    _ => format!("with {} from its file", counted(deliveries, "delivery", "deliveries")),
                };
                self.say(&format!("event logger {logger} was restarted, {how}"));
            }
            Event::LoggerLost { logger, end, waits } => {
                let meanwhile = match waits {
                    true => "ranks hold their sends until it is back",
                    false => "the job goes on without it meanwhile",
                };
                let end = how_ended(end);
                self.say(&format!("warning: event logger {logger} was lost ({end}); {meanwhile}"));
            }
            Event::LoggerWithoutJournal { logger, reason } => self.say(&format!(
                "warning: event logger {logger} cannot write its file ({reason}) and goes on without it: if it dies, its deliveries \
                 are lost; name a place with room by --spill-dir DIR"
            )),
            Event::LoggerFailed { logger, reason } => {
                self.say(&format!("warning: event logger {logger} cannot be started: {reason}"));
            }
            Event::StoreServerStarted {
                server, again: true, ..
            } => self.say(&format!("the checkpoint server of {server} was restarted")),
            Event::StoreServerLost { server, reason } => self.say(&format!(
                "warning: the checkpoint server of {server} was lost ({reason}) and is started again"
            )),
            Event::StoreServerAway { server, reason } => self.say(&format!(
                "warning: the checkpoint server of {server} cannot be started again: {reason}; until it can, nothing goes to its \
                 place or comes from there"
            )),
            Event::StoreServersKeep { kept } => {
                let kept = kept.iter().map(|(server, directory)| format!("{} of {server}", directory.display()));
                let kept = kept.collect::<Vec<_>>().join(", ");
                self.say(&format!(
                    "what the job has stored stays in {kept}; resurgo checkpoint-server --directory DIR serves it"
                ));
            }
            _ => {}
        }
    }

    /// `is_complete`: the messages of the ranks' last lives are included.
    fn summary(&mut self, summary: &Summary, is_complete: bool) {
        if summary.restarts > 0 {
            let words = self.recoveries(summary, is_complete);
            self.say(&words);
        }
        let longest = readable_duration(summary.longest_stall);
        if summary.images > 0 {
            let taken = counted(summary.images, "image", "images");
            self.say(&format!("{taken} taken; no rank stood still for longer than {longest}"));
        }
        if let Some(total) = summary.total_checkpoint_seconds {
            let total = readable_duration(Duration::from_secs_f64(total));
            let taken = counted(summary.waves, "wave", "waves");
            self.say(&format!(
                "{taken} taken in {total} on average; no rank stood still for longer than {longest}"
            ));
        }
    }

    fn recoveries(&self, summary: &Summary, is_complete: bool) -> String {
        let restarts = counted(summary.restarts, "restart", "restarts");
        let mut words = format!("{restarts}; {} lost", readable_duration(summary.lost));
        if summary.replayed_deliveries > 0 {
            words += &format!(
                ", {} of it in the replay of {}",
                readable_duration(summary.replay),
                counted(summary.replayed_deliveries, "delivery", "deliveries"),
            );
        }
        match (self.behind.len(), self.behind.first()) {
            (1, Some(rank)) => words += &format!("; rank {rank} had not caught up when the job ended"),
            (0, _) => {}
            (count, _) => words += &format!("; {count} ranks had not caught up when the job ended"),
        }
        if is_complete {
            let messages = counted(summary.messages, "message", "messages");
            words += &format!("; {} sent in {messages}", readable_size(summary.logged_bytes));
        }
        words
    }
}

/// Why an image cannot be used.
pub fn unusable_image(rank: usize, image: u64, reason: &str) -> String {
    format!("image {image} of rank {rank} cannot be used: {reason}")
}

/// `0, 2 and 3`.
fn numbers(ranks: &[usize]) -> String {
    let mut words: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match words.pop() {
        Some(last) if !words.is_empty() => format!("{} and {last}", words.join(", ")),
        last => last.unwrap_or_default(),
    }
}
