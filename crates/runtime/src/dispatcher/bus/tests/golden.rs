//! The reports of each event, byte for byte: for each step of a story `golden.txt` has standard error, then the file of
//! `--json-events`; at the end the file of `--stats-json`, on one line. Programs read the latter two.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};

use resurgo_wire::control::{End, Stream};
use resurgo_wire::counters::Cost;

use super::super::*;
use crate::channel_memory::Held;
use crate::dispatcher::events::ImageCopy;
use crate::dispatcher::killed;
use crate::dispatcher::servers::why_lost;

const SECOND: u64 = 1_000_000_000;

/// A job of four ranks with one event a second.
struct Story {
    bus: Bus,
    json: File,
    figures: File,
    now: Instant,
    told: String,
}

/// To write and to read.
fn unnamed() -> (File, File) {
    let file = File::from(memfd_create("golden", MFdFlags::empty()).unwrap());
    (file.try_clone().unwrap(), file)
}

impl Story {
    fn new(quiet: bool) -> Story {
        let start = Instant::now();
        let ((json, read_json), (figures, read_figures)) = (unnamed(), unnamed());
        let wanted = Wanted {
            quiet,
            json: Some(json),
            table: true,
            figures: Some(figures),
            ..Wanted::default()
        };
        let bus = Bus::new(4, wanted, start);
        Story {
            bus,
            json: read_json,
            figures: read_figures,
            now: start,
            told: String::new(),
        }
    }

    fn step(&mut self, name: &str, tell: impl FnOnce(&mut Bus, Instant)) {
        self.now += Duration::from_secs(1);
        let before = self.json.metadata().unwrap().len();
        tell(&mut self.bus, self.now);
        self.told += &format!("== {name}\n");
        self.told += std::str::from_utf8(&self.bus.take_text()).unwrap();
        self.told += &read_from(&mut self.json, before);
    }

    fn tell(&mut self, name: &str, event: Event) {
        self.step(name, |bus, now| bus.tell_at(event, now));
    }

    /// The rank's life ends, and another begins.
    fn lives_again(&mut self, name: &str, ended: &Ended, event: Event) {
        self.step(name, |bus, now| {
            bus.failed_at(ended, None, None, now);
            bus.tell_at(Event::Restarting { rank: ended.rank }, now);
            bus.tell_at(event, now);
        });
    }
}

fn read_from(file: &mut File, offset: u64) -> String {
    let mut text = String::new();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

fn sent(messages: u64, bytes: u64, deliveries: u64) -> LifeStatistics {
    let mut life = LifeStatistics {
        deliveries,
        delivered_bytes: 8 * deliveries,
        ..LifeStatistics::default()
    };
    life.sizes[11] = [messages, bytes];
    life.costs[Cost::LogBytes as usize] = 65_536;
    life
}

fn ended(rank: usize, life: u64, end: End, statistics: LifeStatistics) -> Ended {
    Ended {
        life,
        end,
        finalised: end == End::Exited(0),
        unnoticed_ns: Some(SECOND),
        ending_ns: SECOND,
        ..killed(rank, statistics)
    }
}

fn started(rank: usize, life: u64, pid: i32) -> Event<'static> {
    Event::Started {
        rank,
        life,
        pid,
        node: None,
        image: 0,
        from_file: false,
        together: false,
        beginning: Duration::ZERO,
        processors: None,
    }
}

fn from(mut event: Event<'static>, image_now: u64, file_now: bool, took: Duration) -> Event<'static> {
    if let Event::Started {
        image,
        from_file,
        beginning,
        ..
    } = &mut event
    {
        (*image, *from_file, *beginning) = (image_now, file_now, took);
    }
    event
}

fn lives(story: &mut Story) {
    let begins = Duration::from_secs(1);
    story.tell(
        "job started",
        Event::JobStarted {
            ranks: 4,
            protocol: "pessimistic",
            unix_time: 1_790_000_000.5,
            coordinated: false,
        },
    );
    story.tell("started", started(0, 1, 100));
    story.step("restarting after a failure", |bus, now| {
        bus.failed_at(&ended(1, 1, End::Signalled(9), sent(3, 2048, 7)), None, None, now);
        bus.tell_at(Event::Restarting { rank: 1 }, now);
    });
    story.tell(
        "restarted from the beginning",
        from(started(1, 2, 101), 0, false, begins),
    );
    let life = LifeStatistics {
        replay_deliveries: 18_204,
        first_delivery_ns: 2 * SECOND,
        collecting_ns: SECOND / 2,
        collected_ns: 2 * SECOND,
        replayed_ns: 3 * SECOND,
        caught_up_ns: 4 * SECOND,
        ..sent(3, 2048, 7)
    };
    story.step("caught up", |bus, now| bus.caught_up(1, 2, &life, now));
    story.lives_again(
        "restarted from an image",
        &ended(1, 2, End::Exited(3), sent(3, 2048, 7)),
        from(started(1, 3, 102), 4, false, begins),
    );
    let nothing = LifeStatistics::default();
    story.step("caught up with nothing to replay", |bus, now| {
        bus.caught_up(1, 3, &nothing, now);
    });
    story.lives_again(
        "restarted from a file",
        &ended(2, 1, End::Exited(3), sent(1, 1, 1)),
        from(started(2, 2, 103), 5, true, Duration::ZERO),
    );
    story.step("caught up after no failure", |bus, now| {
        bus.caught_up(3, 1, &nothing, now)
    });
    let mut all = from(started(3, 2, 104), 5, false, Duration::ZERO);
    if let Event::Started { together, .. } = &mut all {
        *together = true;
    }
    let last = ended(3, 1, End::Exited(3), sent(1, 1, 1));
    story.lives_again("started together with all", &last, all);
    let last = ended(0, 1, End::Signalled(11), sent(1, 1, 1));
    story.step("failed: the error tells it", |bus, now| {
        bus.failed_at(&last, None, Some("rank 0 killed by SIGSEGV, at last"), now);
    });
    story.step("failed: the error tells something else", |bus, now| {
        bus.failed_at(&last, None, Some("it broke"), now);
    });
}

fn servers(story: &mut Story) {
    let again = |pid, epoch, deliveries, again| Event::LoggerStarted {
        logger: 0,
        pid,
        epoch,
        deliveries,
        again,
    };
    story.tell("event logger started", again(Some(77), 1, 0, false));
    story.tell("event logger started again, empty", again(Some(78), 2, 0, true));
    story.tell("event logger started again", again(None, 2, 1, true));
    let lost = |end, waits| Event::LoggerLost { logger: 1, end, waits };
    story.tell("event logger lost, ranks wait", lost(End::Signalled(9), true));
    story.tell("event logger lost", lost(End::Exited(3), false));
    let (logger, reason) = (1, "No space left on device");
    let without = Event::LoggerWithoutJournal { logger, reason };
    story.tell("event logger without journal", without);
    let reason = "no port";
    story.tell("event logger failed", Event::LoggerFailed { logger, reason });
    let (memory, pid) = (1, Some(79));
    story.tell("channel memory started", Event::ChannelMemoryStarted { memory, pid });
    story.tell("channel memory fills", Event::ChannelMemoryFills { memory });
    for (name, failed, end) in [
        ("channel memory lost", None, Some(End::Signalled(9))),
        ("channel memory lost without a word", None, None),
        (
            "channel memory failed",
            Some("disk full".to_string()),
            Some(End::Exited(1)),
        ),
    ] {
        story.step(name, |bus, now| {
            bus.tell_at(Event::ChannelMemoryLost { memory, end }, now);
            let reason = &why_lost(memory, failed, end);
            bus.tell_at(Event::Error { reason }, now);
        });
    }
}

fn places(story: &mut Story) {
    let ms = Duration::from_millis;
    let (place, server) = ("dir:/project/app", "server:data1:4717");
    let flushed = |wave, put| Event::WaveFlushed {
        wave,
        place,
        bytes: 64 << 20,
        put,
        took: ms(1500),
    };
    let not_flushed = |wave| Event::WaveNotFlushed {
        wave,
        place,
        reason: "dir:/project/app: there is no space left",
    };
    story.tell("wave flushed", flushed(1, 64 << 20));
    story.tell("wave not flushed", not_flushed(2));
    story.tell("wave not flushed, again", not_flushed(3));
    story.tell("wave flushed, again", flushed(4, 1 << 20));
    story.tell("wave not flushed, anew", not_flushed(5));
    let why = "server:data1:4717: it cannot be reached";
    story.tell(
        "wave not flushed, elsewhere",
        Event::WaveNotFlushed {
            wave: 5,
            place: server,
            reason: why,
        },
    );
    let since = ms(90_000);
    story.tell("place behind", Event::PlaceBehind { place, since });
    let reason = "it has images of single ranks only, which stay where they are";
    story.tell("suspension not flushed", Event::SuspensionNotFlushed { reason });
    let places = "dir:/project/app or server:data1:4717";
    story.tell("wave comes", Event::WaveComes { wave: 4, places });
    story.tell(
        "place away",
        Event::PlaceAway {
            place: "server:data2:4717",
            reason: "it does not answer",
        },
    );
    story.tell("place keeps", Event::PlaceKeeps { reason: why });
}

fn images(story: &mut Story) {
    let ms = Duration::from_millis;
    story.tell("image asked", Event::ImageAsked { rank: 2 });
    let checkpointed = |rank, stall, copy| Event::Checkpointed {
        rank,
        image: 6,
        stall,
        copy,
    };
    story.tell("checkpointed, a fork", checkpointed(2, ms(4), ImageCopy::Forked));
    story.tell(
        "checkpointed, a warm buffer",
        checkpointed(3, ms(5), ImageCopy::WarmBuffer),
    );
    let (share, every) = (0.009, ms(30_000));
    story.tell("images held back", Event::ImagesHeldBack { share, every });
    story.tell("log fills", Event::LogFills { rank: 2 });
    let wave = |wave, groups, communication_is_global, ranks| Event::WaveComplete {
        wave,
        total: ms(90),
        longest: ms(8),
        mean: ms(4),
        groups,
        communication_is_global,
        ranks,
    };
    story.tell("wave complete", wave(1, None, None, None));
    let two = wave(2, Some(vec![vec![0, 3], vec![1, 2]]), Some(false), None);
    story.tell("wave complete, groups formed", two);
    let all = wave(3, Some(vec![vec![0, 1, 2, 3]]), Some(true), None);
    story.tell("wave complete, all one group", all);
    story.tell("wave of a group complete", wave(4, None, None, Some(&[1, 3])));
    let returned = |ranks, wave| Event::Returned {
        wave,
        ranks: Some(ranks),
        lost: None,
    };
    story.tell("group returned: one to the beginning", returned(&[2], 0));
    story.tell("group returned: one", returned(&[2], 3));
    story.tell("group returned: several to the beginning", returned(&[0, 2, 3], 0));
    story.tell("group returned: several", returned(&[0, 2], 4));
    story.step("returned", |bus, now| bus.returned(3, now));
    story.step("returned to the beginning", |bus, now| bus.returned(0, now));
    let reason = "rank 2 cannot recover alone: it is lost";
    story.tell("all return from now on", Event::ReturnsTogether { rank: 2, reason });
    let open = "it has a device open";
    for (name, rank, reason, is_news) in [
        ("not checkpointed, in passing", 1, "not running", false),
        ("not checkpointed", 1, open, false),
        ("not checkpointed for long", 1, open, true),
        ("not checkpointed, told already", 1, open, false),
        ("not checkpointed at the first attempt", 2, open, true),
    ] {
        story.tell(name, Event::NotCheckpointed { rank, reason, is_news });
    }
    let written = |rank, image, bytes, written, time| Event::ImageWritten {
        rank,
        image,
        bytes,
        written,
        time: ms(time),
    };
    story.tell("image written", written(2, 6, 123_456_789, 4_096, 77));
    let not_written = |story: &mut Story, name, rank, image| {
        let reason = &format!("/scratch/job/image-{rank}-{image}: No space left on device");
        story.tell(name, Event::ImageNotWritten { rank, image, reason });
    };
    not_written(story, "image not written", 2, 7);
    not_written(story, "image not written, told already", 1, 7);
    story.step("images written", |bus, now| {
        bus.tell_at(written(2, 7, 1, 1, 1), now);
        bus.tell_at(written(1, 7, 1, 1, 1), now);
    });
    not_written(story, "image not written again", 1, 8);
    let (rank, image, reason) = (1, 7, "killed by SIGKILL");
    story.tell("image lost", Event::ImageLost { rank, image, reason });
    story.tell("memory read", Event::MemoryRead { rank, image });
}

fn suspensions(story: &mut Story) {
    let directory = Path::new("/scratch/job");
    for (name, ranks) in [("resumed", 4), ("resumed, one rank", 1)] {
        let job = 4711;
        story.tell(name, Event::Resumed { directory, ranks, job });
    }
    let suspended = Event::Suspended {
        directory,
        bytes: 9_999,
        name: "4711",
        took: Duration::from_millis(2340),
    };
    story.tell("suspended", suspended);
    for (name, is_damaged) in [("stays suspended", false), ("stays suspended, damaged", true)] {
        story.tell(name, Event::StaysSuspended { directory, is_damaged });
    }
    let reason = "no image can be taken: rank 1: not running";
    story.tell("not suspended", Event::NotSuspended { reason });
}

fn ranks(story: &mut Story) {
    story.tell("fault injected", Event::FaultInjected { rank: 3 });
    let mut last = ended(3, 2, End::Exited(0), sent(2, 9, 4));
    story.tell("finished", Event::finished(&last));
    for (value, cost) in [
        (5, Cost::Piggybacks),
        (1, Cost::EmptyPiggybacks),
        (900, Cost::PiggybackBytes),
        (30, Cost::PiggybackEvents),
        (12, Cost::LargestGraph),
    ] {
        last.statistics.costs[cost as usize] = value;
    }
    story.tell("finished, with piggybacks", Event::finished(&last));
    let differs = |stream, anew| Event::OutputDiffers {
        rank: 1,
        stream,
        offset: 12_345,
        anew,
    };
    story.tell("output differs", differs(Stream::Stdout, false));
    story.tell("output differs, printed anew", differs(Stream::Stderr, true));
    let (rank, bytes, path) = (1, 12_345, Path::new("/home/me/a.out"));
    story.tell("output missing", Event::OutputMissing { rank, bytes });
    story.tell("program replaced", Event::ProgramReplaced { rank, path });
    let text = "it unlinked a file";
    story.tell("undone", Event::Undone { rank, text });
    let text = "sent a command that nobody knows: x";
    story.tell("pmi trouble", Event::PmiTrouble { rank, text });
    let spawned = Event::Spawned {
        rank,
        ranks: &[4, 5],
        programs: &["worker", "helper"],
    };
    story.tell("spawned", spawned);
    story.step("spawned rank failed", |bus, now| {
        bus.failed_at(&ended(5, 1, End::Signalled(9), sent(1, 1, 1)), Some(1), None, now);
    });
    let reason = "worker: no such file";
    story.tell("spawn failed", Event::SpawnFailed { rank, reason });
    let exit_code = 77;
    story.tell("aborted", Event::Aborted { rank, exit_code });
}

fn end(story: &mut Story) {
    let (ranks, codes) = (6, &BTreeMap::from([(0, 0), (2, 137)]));
    story.tell("exit codes", Event::ExitCodes { ranks, codes });
    let reason = "ended by SIGINT";
    story.tell("error", Event::Error { reason });
    let held = Held {
        messages: 3,
        bytes: 2048,
        most_bytes: 1024,
        most_memory_bytes: 512,
        spilled_bytes: 7,
        ..Held::default()
    };
    let held = &[None, Some(held)];
    story.tell("channel memories held", Event::ChannelMemoriesHeld { held });
    let lives = [(1, 1, 1), (5, 4096, 9), (1, 1, 1), (2, 9, 4), (1, 1, 1), (1, 1, 1)];
    let lives = lives.map(|(messages, bytes, deliveries)| sent(messages, bytes, deliveries));
    story.step("job ended", |bus, now| {
        bus.tell_at(Event::Restarting { rank: 5 }, now);
        bus.ended(143, &lives, now);
    });
    let path = Path::new("/scratch/out");
    story.tell("output file differs", Event::OutputFileDiffers { path });
    story.tell("node fault injected", Event::NodeFaultInjected { node: 1 });
    let (rank, image, is_anew) = (2, 7, true);
    let replicated = Event::ImageReplicated {
        rank,
        image,
        node: 1,
        is_anew,
    };
    story.tell("image replicated", replicated);
    let encoded = Event::SetEncoded {
        wave: 7,
        set: 3,
        ranks: &[0, 2],
        nodes: &[1],
        bytes: 4096,
        time: Duration::from_millis(20),
    };
    story.tell("set encoded", encoded);
    let reason = "piece 0 of set 3 of wave 7: its bytes are damaged";
    let lost = Event::PieceLost {
        wave: 7,
        set: 3,
        node: 1,
        reason,
    };
    story.tell("piece lost", lost);
    let rebuilt = Event::ImageRebuilt { rank, image, node: 3 };
    story.tell("image rebuilt", rebuilt);
    let reason = "each image is to be on 2 other nodes, and there is room on 1 only";
    story.tell("few replicas", Event::FewReplicas { reason });
    for (level, is_asked) in [(2, true), (3, false)] {
        let (what, survives) = ("2 other nodes", "the loss of any 2 nodes at one moment");
        let told = Event::ImageLevel {
            level,
            what,
            survives,
            is_asked,
        };
        story.tell("image level", told);
    }
    let (server, reason) = ("n8:4717", "killed by SIGKILL");
    for again in [false, true] {
        let pid = 4711;
        story.tell("store server started", Event::StoreServerStarted { server, pid, again });
    }
    story.tell("store server lost", Event::StoreServerLost { server, reason });
    story.tell("store server away", Event::StoreServerAway { server, reason });
    let kept = &[("n8:4717".to_string(), "/var/tmp/resurgo-1000/j-4717".into())];
    story.tell("store servers keep", Event::StoreServersKeep { kept });
    story.tell(
        "lost",
        Event::Lost {
            rank: 3,
            left: 2,
            reason: None,
        },
    );
    story.tell(
        "lost, the last",
        Event::Lost {
            rank: 1,
            left: 0,
            reason: Some("it differs"),
        },
    );
    let replaced = Event::Replaced {
        ranks: &[6, 7],
        replaced: &[1, 5],
        places: &[1, 4],
    };
    story.tell("replaced", replaced);
    for nodes in [false, true] {
        let (rank, reason) = (1, "it has a device open");
        story.tell("waves given up", Event::WavesGivenUp { rank, reason, nodes });
    }
    let (rank, reason) = (1, "it has a device open");
    story.tell("logs let go", Event::LogsLetGo { rank, reason });
    for finished in [false, true] {
        story.tell("waves back", Event::WavesBack { rank: 1, finished });
    }
    story.tell("waves over", Event::WavesOver { rank: 1 });
    let reason = "/run/systemd/journal/socket: No such file or directory (os error 2)";
    story.tell("no journal", Event::NoJournal { reason });
    let (entries, reason) = (2, "Resource temporarily unavailable (os error 11)");
    story.tell("journal missed", Event::JournalMissed { entries, reason });
    let figures = read_from(&mut story.figures, 0);
    let figures: String = figures.lines().map(str::trim_start).collect();
    story.told += &format!("== file of --stats-json\n{figures}\n");
}

fn told(quiet: bool) -> String {
    let mut story = Story::new(quiet);
    for chapter in [lives, servers, images, suspensions, places, ranks, end] {
        chapter(&mut story);
    }
    story.told
}

#[test]
fn what_is_told_of_each_event_is_as_it_was() {
    let (told, expected) = (told(false), include_str!("golden.txt"));
    for (line, (told, expected)) in told.lines().zip(expected.lines()).enumerate() {
        assert_eq!(told, expected, "line {}", line + 1);
    }
    assert_eq!(told.lines().count(), expected.lines().count());
}

#[test]
fn quiet_leaves_out_progress_and_nothing_that_programs_read() {
    let split = |quiet| -> (Vec<String>, Vec<String>) {
        let told = told(quiet);
        let lines = told.lines().map(str::to_string);
        lines.partition(|line| line.starts_with("resurgo: "))
    };
    let ((words, for_programs), (quiet_words, quiet_for_programs)) = (split(false), split(true));
    assert_eq!(quiet_for_programs, for_programs);
    let is_progress = |line: &String| line.contains(" warning: ") || line.contains(" restarted on this node");
    assert!(words.iter().any(is_progress) && !quiet_words.iter().any(is_progress));
}
