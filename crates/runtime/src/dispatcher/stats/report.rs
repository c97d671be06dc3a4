//! The measurements as JSON (`--stats-json`, docs/reference/statistics.md) and as a table (`--stats`).

use std::fmt::Write;
use std::time::Duration;

use resurgo_wire::control::LongestTurns;
use resurgo_wire::counters::{COSTS, Cost, Costs, Sizes, up_to};
use resurgo_wire::node_memory::SEGMENT;
use serde_json::{Map, Value, json};

use super::super::events::Summary;
use super::super::node::NodeFigures;
use super::{Checkpoint, PlaceStats, RankStats, Recovery, Stats, between};
use crate::channel_memory::Held;
use crate::units::{counted, grouped, readable_duration, readable_size};

/// Changes when a field of the JSON changes its meaning or goes.
const SCHEMA: u32 = 1;
/// Most ranks, and most recoveries, that the table has lines for.
const LINES: usize = 16;

/// How the job has ended.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub code: i32,
    pub wall: Duration,
    /// The counters of the ranks' last lives are known: the agent has told them.
    pub is_complete: bool,
}

fn sizes(sizes: &Sizes) -> Value {
    let classes = sizes.iter().enumerate().filter(|(_, class)| class[0] > 0);
    let told =
        classes.map(|(class, [messages, bytes])| json!({"up_to": up_to(class), "messages": messages, "bytes": bytes}));
    told.collect()
}

fn add_costs(object: &mut Map<String, Value>, costs: &Costs) {
    for (described, value) in COSTS.iter().zip(costs) {
        let told = if described.name.ends_with("_seconds") {
            json!(*value as f64 / 1e9)
        } else {
            json!(value)
        };
        object.insert(described.name.to_string(), told);
    }
}

impl RankStats {
    fn json(&self) -> Map<String, Value> {
        let sum = |index: usize| self.sizes.iter().map(|class| class[index]).sum::<u64>();
        let mut object = Map::new();
        object.insert("restarts".into(), json!(self.restarts));
        object.insert("messages".into(), json!(sum(0)));
        object.insert("bytes".into(), json!(sum(1)));
        object.insert("deliveries".into(), json!(self.deliveries));
        object.insert("delivered_bytes".into(), json!(self.delivered_bytes));
        object.insert("sizes".into(), sizes(&self.sizes));
        add_costs(&mut object, &self.costs);
        object
    }
}

impl Checkpoint {
    fn json(&self) -> Value {
        let in_files = |value: Value| if self.files > 0 { value } else { Value::Null };
        json!({
            "rank": self.rank, "group": self.group, "number": self.number, "time": self.at.as_secs_f64(),
            "individual_seconds": self.individual.as_secs_f64(), "longest_seconds": self.longest.as_secs_f64(),
            "total_seconds": self.total.as_secs_f64(), "effective_delay_seconds": self.effective.as_secs_f64(),
            "files": self.files, "bytes": in_files(json!(self.bytes)), "written_bytes": in_files(json!(self.written)),
            "write_seconds": in_files(json!(self.write.as_secs_f64())),
        })
    }
}

/// The parts of a recovery, in seconds and in order; none: not reached, or unknown.
struct Parts {
    detect: Option<f64>,
    end: Option<f64>,
    fetch_image: Option<f64>,
    begin: Option<f64>,
    collect: Option<f64>,
    replay: Option<f64>,
    catch_up: Option<f64>,
    total: Option<f64>,
}

impl Recovery {
    fn parts(&self) -> Parts {
        // Where nothing was to be replayed, catching up begins at once.
        let replayed = self.replayed.max(self.collected);
        let collecting = self
            .collected
            .map(|collected| collected.saturating_sub(self.collecting));
        // The process may work before its agent knows that it runs.
        let runs = match collecting {
            Some(collecting) => self.runs.map(|runs| runs.min(collecting)),
            None => self.runs,
        };
        let noticed = Some(self.noticed);
        Parts {
            detect: between(self.killed, noticed),
            end: between(noticed, self.asked),
            fetch_image: between(self.asked, runs),
            begin: between(runs, collecting),
            collect: collecting.map(|_| self.collecting.as_secs_f64()),
            replay: between(self.collected, replayed),
            catch_up: between(replayed, self.caught_up).filter(|_| self.collected.is_some()),
            total: between(self.killed.or(noticed), self.caught_up),
        }
    }

    fn json(&self) -> Value {
        let parts = self.parts();
        json!({
            "rank": self.rank, "life": self.life, "image": self.image, "from_file": self.from_file, "wave": self.wave,
            "time": self.noticed.as_secs_f64(), "complete": self.caught_up.is_some(),
            "detect_seconds": parts.detect, "end_seconds": parts.end, "fetch_image_seconds": parts.fetch_image,
            "begin_seconds": parts.begin, "collect_seconds": parts.collect, "replay_seconds": parts.replay,
            "catch_up_seconds": parts.catch_up, "total_seconds": parts.total, "replayed_deliveries": self.deliveries,
        })
    }
}

/// A node with what its ranks have sent to those of others.
struct NodeStats<'a> {
    number: usize,
    figures: &'a NodeFigures,
    ranks: Vec<usize>,
    messages: u64,
    bytes: u64,
}

impl NodeStats<'_> {
    fn json(&self) -> Value {
        let turn = |of: fn(&LongestTurns) -> u64| self.figures.turns.as_ref().map(|turns| of(turns) as f64 / 1e9);
        json!({
            "node": self.number, "name": self.figures.name, "ranks": self.ranks, "messages_to_other_nodes": self.messages,
            "bytes_to_other_nodes": self.bytes, "lost_at": self.figures.lost.map(|lost| lost.as_secs_f64()),
            "longest_silence_seconds": self.figures.silence.as_secs_f64(),
            "images_of_others": self.figures.images.0, "made_anew": self.figures.images.1,
            "held_image_bytes": self.figures.held.images, "held_piece_bytes": self.figures.held.pieces,
            "most_held_bytes": self.figures.held.most,
            "longest_turn_seconds": turn(|turns| turns.agent_ns),
            "longest_mover_turn_seconds": turn(|turns| turns.mover_ns),
        })
    }

    fn line(&self) -> String {
        let NodeFigures {
            name,
            lost,
            silence,
            images,
            held,
            turns: _,
        } = self.figures;
        let images = match images {
            (0, _) => String::new(),
            (all, 0) => format!("; has got {}", counted(*all, "image of others", "images of others")),
            (all, anew) => format!("; has got {all} images of others, {anew} anew"),
        };
        let held = match held.most {
            0 => String::new(),
            most => format!("; held at most {} for others", readable_size(most)),
        };
        let named = match *name == self.number.to_string() {
            true => String::new(),
            false => format!(" ({name})"),
        };
        let silent = short(silence.as_secs_f64());
        match lost {
            Some(lost) => format!(
                "node {}{named}: lost after {}; silent for at most {silent} before",
                self.number,
                short(lost.as_secs_f64())
            ),
            None => format!(
                "node {}{named}: {}, {} ({}) to other nodes{images}{held}; silent for at most {silent}",
                self.number,
                counted(self.ranks.len() as u64, "rank", "ranks"),
                counted(self.messages, "message", "messages"),
                readable_size(self.bytes)
            ),
        }
    }
}

impl PlaceStats {
    fn json(&self) -> Value {
        json!({
            "place": self.place, "waves": self.waves, "failed": self.failed, "bytes": self.bytes, "put_bytes": self.put,
            "seconds": self.time.as_secs_f64(), "last_wave": self.last.map(|(wave, _)| wave),
            "last_at": self.last.map(|(_, at)| at.as_secs_f64()),
        })
    }

    fn line(&self, wall: Duration) -> String {
        let failed = match self.failed {
            0 => String::new(),
            failed => format!("; {failed} could not be copied"),
        };
        let Some((wave, at)) = self.last else {
            return format!("{}: no wave{failed}", self.place);
        };
        let seconds = self.time.as_secs_f64();
        format!(
            "{}: {} of {}, of which {} went there, {} for one, {}/s; wave {wave} is there since {}{failed}",
            self.place,
            counted(self.waves, "wave", "waves"),
            readable_size(self.bytes),
            readable_size(self.put),
            short(seconds / self.waves as f64),
            readable_size((self.put as f64 / seconds.max(1e-9)) as u64),
            short(wall.saturating_sub(at).as_secs_f64()),
        )
    }
}

impl Stats {
    fn nodes(&self) -> impl Iterator<Item = NodeStats<'_>> {
        let (nodes, of_rank) = &self.nodes;
        nodes.iter().enumerate().map(|(number, figures)| {
            let is_there = |(_, of): &(usize, &usize)| **of == number;
            let there = of_rank.iter().enumerate().filter(is_there);
            let ranks: Vec<usize> = there.map(|(rank, _)| rank).collect();
            let of = |cost: Cost| ranks.iter().map(|rank| self.ranks[*rank].costs[cost as usize]).sum();
            NodeStats {
                number,
                figures,
                messages: of(Cost::RemoteMessages),
                bytes: of(Cost::RemoteBytes),
                ranks,
            }
        })
    }

    fn all(&self) -> RankStats {
        let mut all = RankStats {
            costs: self.costs(),
            restarts: self.restarts(),
            ..RankStats::default()
        };
        for rank in &self.ranks {
            all.deliveries += rank.deliveries;
            all.delivered_bytes += rank.delivered_bytes;
            for (all, class) in all.sizes.iter_mut().zip(&rank.sizes) {
                *all = [all[0] + class[0], all[1] + class[1]];
            }
        }
        all
    }

    pub fn summary(&self) -> Summary {
        let (messages, logged_bytes) = self.sent();
        Summary {
            failures: self.failures,
            restarts: self.restarts(),
            lost: self.lost,
            replay: self.replay,
            replayed_deliveries: self.replayed_deliveries,
            messages,
            logged_bytes,
            images: self.images,
            waves: self.waves,
            image_bytes: self.image_bytes,
            longest_stall: self.stalls.longest,
            individual_checkpoint_seconds: self.individual(),
            total_checkpoint_seconds: self.total().filter(|_| self.waves > 0),
            effective_delay: self.effective(),
            spilled_segments: self.costs()[Cost::SpilledBytes as usize] / SEGMENT as u64,
        }
    }

    /// As it is written to the file of `--stats-json`.
    pub fn json(&self, outcome: Outcome) -> Value {
        let ranks = self.ranks.iter().enumerate().map(|(number, rank)| {
            let mut object = Map::from_iter([("rank".to_string(), json!(number))]);
            object.append(&mut rank.json());
            Value::Object(object)
        });
        json!({
            "schema": SCHEMA,
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": self.protocol,
            "exit_code": outcome.code,
            "wall_seconds": outcome.wall.as_secs_f64(),
            "complete": outcome.is_complete,
            "longest_turn_seconds": self.longest_turn.as_secs_f64(),
            "total": self.all().json(),
            "ranks": ranks.collect::<Vec<_>>(),
            "channel_memories": self.channel_memories,
            "places": self.places.iter().map(PlaceStats::json).collect::<Vec<_>>(),
            "nodes": self.nodes().map(|node| node.json()).collect::<Vec<_>>(),
            "checkpoints": {
                "images": self.images, "waves": self.waves, "written_bytes": self.image_bytes,
                "individual_seconds": self.individual(), "longest_seconds": self.stalls.longest.as_secs_f64(),
                "total_seconds": self.total(),
                "effective_delay_seconds": self.effective().as_secs_f64(),
                "left_out": self.checkpoints.left_out,
                "each": self.checkpoints.kept.iter().map(Checkpoint::json).collect::<Vec<_>>(),
            },
            "recoveries": {
                "failures": self.failures, "restarts": self.restarts(), "lost_seconds": self.lost.as_secs_f64(),
                "left_out": self.recoveries.left_out,
                "each": self.recoveries.kept.iter().map(|one| one.json()).collect::<Vec<_>>(),
            },
        })
    }

    /// For people, at the end of the job; lines without their line ends.
    pub fn table(&self, outcome: Outcome) -> Vec<String> {
        let all = self.all();
        let ended = format!(
            "statistics: {}, {} for {}, exit status {}",
            self.protocol,
            counted(self.ranks.len() as u64, "rank", "ranks"),
            readable_duration(outcome.wall),
            outcome.code
        );
        let mut lines = vec![ended];
        if !outcome.is_complete {
            lines.push("what running ranks had counted is lost with the agent".to_string());
        }
        let titles = [
            "rank",
            "restarts",
            "sent",
            "bytes",
            "delivered",
            "log now",
            "log at most",
            "spilled",
            "sleeps",
        ];
        lines.push(row(titles.map(str::to_string)));
        for (number, rank) in self.ranks.iter().enumerate().take(LINES) {
            lines.push(row(rank.cells(number.to_string())));
        }
        if self.ranks.len() > LINES {
            lines.push(format!("({} more ranks)", self.ranks.len() - LINES));
        }
        lines.push(row(all.cells("all".to_string())));
        lines.extend(size_lines(&all.sizes));
        lines.extend(waiting_line(!self.channel_memories.is_empty(), &all.costs));
        lines.extend(piggyback_line(&all.costs));
        lines.extend(self.nodes().map(|node| node.line()));
        lines.extend(self.memory_lines());
        lines.extend(self.checkpoint_line());
        lines.extend(self.places.iter().map(|place| place.line(outcome.wall)));
        lines.extend(self.recovery_lines());
        lines
    }

    fn memory_lines(&self) -> impl Iterator<Item = String> {
        let told = self.channel_memories.iter().enumerate();
        told.filter_map(|(number, held)| {
            let Held {
                messages,
                bytes,
                most_bytes,
                most_memory_bytes,
                spilled_bytes,
                ..
            } = (*held)?;
            Some(format!(
                "channel memory {number}: {}, {}; at most {} at once, {} in memory; {} spilled",
                counted(messages, "message", "messages"),
                readable_size(bytes),
                readable_size(most_bytes),
                readable_size(most_memory_bytes),
                readable_size(spilled_bytes)
            ))
        })
    }

    fn checkpoint_line(&self) -> Option<String> {
        let (one, many, count) = if self.waves > 0 {
            ("wave", "waves", self.waves)
        } else {
            ("image", "images", self.images)
        };
        let time = |seconds: Option<f64>| short(seconds.unwrap_or_default());
        (count > 0).then(|| {
            let mut line = format!(
                "{}: a rank stood still for {} (at most {}); from the request {}; effective delay {}",
                counted(count, one, many),
                time(self.individual()),
                short(self.stalls.longest.as_secs_f64()),
                time(self.total()),
                short(self.effective().as_secs_f64()),
            );
            if self.image_bytes > 0 {
                let _ = write!(line, "; {} written", readable_size(self.image_bytes));
            }
            line
        })
    }

    fn recovery_lines(&self) -> Vec<String> {
        let total = self.recoveries.left_out as usize + self.recoveries.kept.len();
        let mut lines: Vec<String> = self.recoveries.kept.iter().take(LINES).map(Recovery::line).collect();
        if total > LINES {
            lines.push(format!("({} more recoveries)", total - LINES));
        }
        lines
    }
}

impl RankStats {
    fn cells(&self, name: String) -> [String; 9] {
        let sum = |index: usize| self.sizes.iter().map(|class| class[index]).sum::<u64>();
        let bytes = |cost: Cost| readable_size(self.costs[cost as usize]);
        [
            name,
            grouped(self.restarts),
            grouped(sum(0)),
            readable_size(sum(1)),
            grouped(self.deliveries),
            bytes(Cost::LogBytes),
            bytes(Cost::MostLogBytes),
            bytes(Cost::SpilledBytes),
            grouped(self.costs[Cost::Sleeps as usize]),
        ]
    }
}

impl Recovery {
    fn line(&self) -> String {
        let parts = self.parts();
        let mut line = format!("recovery of rank {} (life {}", self.rank, self.life);
        let from = match (self.wave, self.image) {
            (Some(0), _) | (None, 0) => ", from the beginning)".to_string(),
            (Some(wave), _) => format!(", wave {wave})"),
            (None, image) => format!(", image {image}{})", if self.from_file { " in a file" } else { "" }),
        };
        line += &from;
        let named = [
            ("detect", parts.detect),
            ("end", parts.end),
            ("fetch image", parts.fetch_image),
            ("begin", parts.begin),
            ("collect", parts.collect),
            ("replay", parts.replay),
            ("catch up", parts.catch_up),
        ];
        for (separator, (name, seconds)) in std::iter::once(": ")
            .chain(std::iter::repeat(", "))
            .zip(named.iter().filter_map(|(name, seconds)| Some((name, (*seconds)?))))
        {
            let _ = write!(line, "{separator}{name} {}", short(seconds));
        }
        match parts.total {
            Some(seconds) => line + &format!("; together {}", short(seconds)),
            None => line + "; not complete",
        }
    }
}

/// Messages by size, four classes a line.
fn size_lines(sizes: &Sizes) -> Vec<String> {
    let used: Vec<String> = (sizes.iter().enumerate())
        .filter(|(_, [messages, _])| *messages > 0)
        .map(|(class, [messages, bytes])| {
            let most = match up_to(class) {
                Some(most) => format!("up to {}", readable_size(most)),
                None => "longer".to_string(),
            };
            format!("{most}: {} ({})", grouped(*messages), readable_size(*bytes))
        })
        .collect();
    let mut lines = Vec::new();
    for (number, part) in used.chunks(4).enumerate() {
        let title = if number == 0 { "messages" } else { "        " };
        lines.push(format!("{title} {}", part.join(", ")));
    }
    lines
}

/// The waits of sends, and the event logger's round trips.
fn waiting_line(through_memories: bool, costs: &Costs) -> Option<String> {
    let cost = |cost: Cost| costs[cost as usize];
    let (held, trips) = (cost(Cost::HeldSends), cost(Cost::LoggerRoundTrips));
    let waited = format!(
        "for {} on average, {} at most",
        seconds(cost(Cost::HeldNs) / held.max(1)),
        seconds(cost(Cost::MostHeldNs)),
    );
    if trips > 0 {
        return Some(format!(
            "event logger: {} of {} on average, {} at most; {} held {waited}",
            counted(trips, "round trip", "round trips"),
            seconds(cost(Cost::LoggerNs) / trips),
            seconds(cost(Cost::MostLoggerNs)),
            counted(held, "send", "sends"),
        ));
    }
    let reason = match through_memories {
        true => "the rank's own channel memory",
        false => "the receiver's group to have its images",
    };
    (held > 0).then(|| format!("{} waited for {reason}, {waited}", counted(held, "send", "sends")))
}

/// What messages carried beside their payload.
fn piggyback_line(costs: &Costs) -> Option<String> {
    let cost = |cost: Cost| costs[cost as usize];
    let messages = cost(Cost::Piggybacks);
    (messages > 0).then(|| {
        let each = |sum: Cost| cost(sum) as f64 / messages as f64;
        format!(
            "piggybacks: {:.1} deliveries and {:.1} bytes a message, {:.0} % of {} without any; {} to make, {} to take in; at most \
             {} kept",
            each(Cost::PiggybackEvents),
            each(Cost::PiggybackBytes),
            each(Cost::EmptyPiggybacks) * 100.0,
            counted(messages, "message", "messages"),
            seconds(cost(Cost::PrepareNs)),
            seconds(cost(Cost::AbsorbNs)),
            grouped(cost(Cost::LargestGraph)),
        )
    })
}

fn seconds(nanoseconds: u64) -> String {
    short(nanoseconds as f64 / 1e9)
}

fn row(cells: [String; 9]) -> String {
    const WIDTHS: [usize; 9] = [5, 9, 12, 10, 12, 10, 12, 10, 10];
    let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:>width$}"));
    cells.collect::<Vec<_>>().join("")
}

/// A time with three digits.
fn short(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1e-2 => format!("{:.2} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}
