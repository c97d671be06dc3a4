//! Where the output of ranks goes: to the launcher's own streams, or to files that a pattern names.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, PipeWriter};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use resurgo_wire::control::Stream;
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, Host, Launcher};
use super::kept::{END, END_ALL, Kept};
use super::lines::{self, Label, Lines, Unfinished};
use super::shown::Shown;
use super::start_error::StartError;
use super::writer::{Writer, write_all};
use crate::pattern::{Home, Pattern, Ranks, seconds, this_machine};
use crate::printed::{self, Entry, Journal, Place, Tally};
use crate::progress::{Bar, Beside};
use resurgo_store::own_directory::{Directory, Trust};

/// The user's choice of destinations.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The text before every line.
    pub label: Option<Pattern>,
    /// Files for standard output and standard error, instead of the launcher's own streams.
    pub files: [Option<Pattern>; 2],
    /// The directory that these names are relative to.
    pub directory: PathBuf,
}

/// The destination of merged lines: a stream's lines for one file, or for our own stream of that name.
type Way = (Stream, Option<PathBuf>);

/// The destination of all output.
pub(super) struct Output {
    stdout: Writer,
    stderr: Writer,
    bar: Bar,
    lines: BTreeMap<Way, Lines>,
    files: BTreeMap<PathBuf, File>,
    places: Places,
    ranks: Arc<Ranks>,
    /// The names of the nodes' hosts, where there are several nodes.
    hosts: Vec<String>,
    /// When the job was started, in seconds since 1970.
    seconds: u64,
    failed: Option<(String, io::ErrorKind)>,
    pub kept: Kept,
    pub shown: Shown,
    /// Why output is not noted any more.
    pub not_kept: Option<io::Error>,
}

/// Bytes of output that agents still count as not taken: of new output, and of output counted as repeated.
#[derive(Default)]
pub(super) struct Owed {
    /// Dropped bytes.
    pub now: [u64; 2],
    /// Bytes passed on that are not on their way yet.
    pub later: [u64; 2],
}

/// The state for going on with the job later.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Before {
    lines: Vec<(String, Option<OsString>, Unfinished)>,
    /// The length of each file.
    files: Vec<(OsString, u64)>,
    worlds: Vec<usize>,
    /// Where ranks began.
    #[serde(default)]
    homes: Vec<Home>,
    seconds: u64,
}

impl Output {
    /// `wake`: for each of our streams, what its thread writes to when it has nothing left to do. `has_bar`: standard
    /// error is a terminal that shows progress.
    pub fn start(places: Places, [out, err]: [PipeWriter; 2], has_bar: bool) -> io::Result<Output> {
        let bar = Bar::new(has_bar);
        let on_terminal = io::stdout().is_terminal();
        let out_beside = if on_terminal { bar.beside() } else { Beside::none() };
        let mut output = Output {
            stdout: Writer::start(io::stdout(), out, out_beside)?,
            stderr: Writer::start(io::stderr(), err, bar.beside())?,
            bar,
            lines: BTreeMap::new(),
            files: BTreeMap::new(),
            places,
            ranks: Arc::default(),
            hosts: Vec::new(),
            seconds: seconds(),
            failed: None,
            kept: Kept::new(),
            shown: Shown::default(),
            not_kept: None,
        };
        for (stream, is_terminal) in [
            (Stream::Stdout, io::stdout().is_terminal()),
            (Stream::Stderr, io::stderr().is_terminal()),
        ] {
            let lines = Lines::new(output.label(), is_terminal);
            output.lines.insert((stream, None), lines);
        }
        Ok(output)
    }

    /// Whether files have names that depend on where ranks run.
    pub fn names_nodes(&self) -> bool {
        self.places.files.iter().flatten().any(Pattern::names_nodes)
    }

    /// The job has these nodes.
    pub fn set_nodes(&mut self, cluster: &Cluster) {
        cluster.hosts.iter().for_each(|host| self.node_comes(host));
        self.add_homes(0, &cluster.of_rank);
    }

    /// One more node.
    pub fn node_comes(&mut self, host: &Host) {
        self.hosts.push(match host.launcher {
            Launcher::Fork => this_machine(),
            _ => host.name.clone(),
        });
    }

    /// The ranks from `first` on begin on these nodes.
    fn add_homes(&mut self, first: usize, nodes: &[u32]) {
        let hosts = &self.hosts;
        let home = |node: &u32| (*node, hosts.get(*node as usize).cloned().unwrap_or_else(this_machine));
        let homes = &mut Arc::make_mut(&mut self.ranks).homes;
        homes.resize_with(first, || (0, this_machine()));
        homes.extend(nodes.iter().map(home));
        self.tell_lines();
    }

    fn tell_lines(&mut self) {
        for lines in self.lines.values_mut() {
            lines.set_ranks(&self.ranks);
        }
    }

    /// Makes the files of a new job's ranks: an unwritable file shows before a process runs.
    pub fn make_files(&mut self, ranks: usize) -> Result<(), StartError> {
        if self.places.files.iter().any(Option::is_some)
            && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        {
            // Each rank may have two; the ranks' own limits are known already.
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
        for stream in Stream::ALL {
            for path in (0..ranks)
                .filter_map(|rank| self.path(rank, stream))
                .collect::<Vec<_>>()
            {
                self.open(&path, None).map_err(|error| cannot_write(&path, error))?;
            }
        }
        Ok(())
    }

    /// Goes on from the suspension. The new run repeats what an interrupted one has added to files since. Returns the
    /// files that are shorter than they were.
    pub fn resume(&mut self, before: Before) -> Result<Vec<PathBuf>, StartError> {
        let mut shorter = Vec::new();
        self.seconds = before.seconds;
        self.ranks = Arc::new(Ranks {
            worlds: before.worlds,
            homes: before.homes,
        });
        for (path, length) in before.files {
            let path = PathBuf::from(path);
            let is_whole = self
                .open(&path, Some(length))
                .map_err(|error| cannot_write(&path, error))?;
            if !is_whole {
                shorter.push(path);
            }
        }
        let label = self.label();
        for (name, path, unfinished) in before.lines {
            let Some(stream) = Stream::ALL.into_iter().find(|stream| stream.name() == name) else {
                continue;
            };
            let way = (stream, path.map(PathBuf::from));
            let lines = self
                .lines
                .entry(way)
                .or_insert_with(|| Lines::new(label.clone(), false));
            lines.resume(unfinished);
        }
        self.tell_lines();
        Ok(shorter)
    }

    /// What [`Output::resume`] needs.
    pub fn before(&self) -> Before {
        let lines = self.lines.iter().map(|((stream, path), lines)| {
            let path = path.clone().map(PathBuf::into_os_string);
            (stream.name().to_string(), path, lines.unfinished())
        });
        let files = self.files.iter().map(|(path, file)| {
            let length = file.metadata().map_or(0, |about| about.len());
            (path.clone().into_os_string(), length)
        });
        Before {
            lines: lines.collect(),
            files: files.collect(),
            worlds: self.ranks.worlds.clone(),
            homes: self.ranks.homes.clone(),
            seconds: self.seconds,
        }
    }

    /// Ranks from `first` on are a group of their own, on these nodes.
    pub fn spawned(&mut self, first: usize, nodes: &[u32]) {
        Arc::make_mut(&mut self.ranks).worlds.push(first);
        self.add_homes(first, nodes);
    }

    fn label(&self) -> Option<Label> {
        let pattern = self.places.label.clone()?;
        Some(Label {
            pattern,
            ranks: self.ranks.clone(),
        })
    }

    /// The file of a rank's stream; none: our own stream.
    fn path(&self, rank: usize, stream: Stream) -> Option<PathBuf> {
        let pattern = self.places.files[stream as usize].as_ref()?;
        let name = pattern.of(rank, &self.ranks, self.seconds);
        Some(self.places.directory.join(name))
    }

    /// Opens a file: empty, or as it was when it had this length. False: it is shorter now.
    fn open(&mut self, path: &Path, length: Option<u64>) -> io::Result<bool> {
        if self.files.contains_key(path) {
            return Ok(true);
        }
        // Not to wait for the reader of a FIFO.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let mut options = OpenOptions::new();
        options.create(true).append(true).custom_flags(flags.bits());
        let file = options.open(path)?;
        let about = file.metadata()?;
        let length = length.unwrap_or(0);
        if about.is_file() {
            file.set_len(length.min(about.len()))?;
        } else if !about.file_type().is_char_device() {
            return Err(io::Error::other("it is not a file"));
        }
        self.files.insert(path.to_path_buf(), file);
        Ok(!about.is_file() || about.len() >= length)
    }

    /// The lines of a rank's stream, and where they go.
    fn way(&mut self, rank: usize, stream: Stream) -> Way {
        let way = (stream, self.path(rank, stream));
        if !self.lines.contains_key(&way) {
            let lines = Lines::new(self.label(), false);
            self.lines.insert(way.clone(), lines);
        }
        way
    }

    fn write(&mut self, (stream, path): &Way, bytes: Vec<u8>) {
        let Some(path) = path else {
            self.shown.add(*stream, &bytes);
            let writer = match stream {
                Stream::Stdout => &self.stdout,
                Stream::Stderr => &self.stderr,
            };
            writer.write(bytes);
            return;
        };
        if bytes.is_empty() || self.failed.is_some() {
            return;
        }
        // A spawned rank's file is not there yet.
        let opened = self.open(path, None);
        let written = match (opened, self.files.get_mut(path)) {
            (Ok(_), Some(file)) => write_all(file, &bytes),
            (opened, _) => opened.map(|_| ()),
        };
        if let Err(error) = written {
            self.failed = Some((format!("{}: {error}", path.display()), error.kind()));
        }
    }

    fn note(&mut self, rank: usize, kind: u32, bytes: &[u8]) {
        if let Some(error) = self.kept.note(rank, kind, bytes) {
            // A run that goes on from before repeats all that is written from here on.
            self.count_in(None);
            self.not_kept = Some(error);
        }
    }

    /// Takes what a rank has printed.
    pub fn take(&mut self, rank: usize, stream: Stream, bytes: &[u8], now: Instant) {
        self.note(rank, stream as u32, bytes);
        let way = self.way(rank, stream);
        let shown = self.lines.get_mut(&way).map(|lines| lines.take(rank, bytes, now));
        self.write(&way, shown.unwrap_or_default());
    }

    /// A rank will print no more.
    pub fn end(&mut self, rank: usize) {
        self.note(rank, END, &[]);
        for stream in Stream::ALL {
            let way = self.way(rank, stream);
            let shown = self.lines.get_mut(&way).map(|lines| lines.end(rank));
            self.write(&way, shown.unwrap_or_default());
        }
    }

    /// All ranks print no more.
    pub fn end_all(&mut self) {
        self.note(0, END_ALL, &[]);
        self.each(Lines::end_all);
    }

    /// Shows beginnings of lines whose end has not come in time.
    pub fn mind_silence(&mut self, now: Instant) {
        self.each(|lines| lines.silent(now));
    }

    fn each(&mut self, rest: impl Fn(&mut Lines) -> Vec<u8>) {
        let all = self.lines.iter_mut().map(|(way, lines)| (way.clone(), rest(lines)));
        for (way, shown) in all.collect::<Vec<_>>() {
            self.write(&way, shown);
        }
    }

    /// When [`Output::mind_silence`] should be called.
    pub fn wait(&self) -> Option<Duration> {
        self.lines.values().any(Lines::has_waiting).then_some(lines::SILENCE)
    }

    /// Writes text of the launcher itself.
    pub fn say(&self, text: Vec<u8>) {
        self.stderr.say(text);
    }

    /// What takes long, on a terminal.
    pub fn bar(&self) -> &Bar {
        &self.bar
    }

    /// For each of our own streams, over all runs of the job: bytes that ranks have printed, and bytes written.
    pub fn counted(&self) -> [(u64, u64); 2] {
        [self.stdout.counted(), self.stderr.counted()]
    }

    /// Counts written bytes in these files.
    pub fn count_in(&self, tallies: Option<[Tally; 2]>) {
        let [out, err] = tallies.map_or([None, None], |tallies| tallies.map(Some));
        self.stdout.count_in(out);
        self.stderr.count_in(err);
    }

    /// Earlier runs have written so much of the ranks' output there; the next text was printed at `from`.
    pub fn begin_after(&self, written: [u64; 2], from: [u64; 2]) {
        self.stdout.begin_after(written[0], from[0]);
        self.stderr.begin_after(written[1], from[1]);
    }

    /// The next text is new: no earlier run has printed it.
    pub fn stop_passing_over(&self) {
        self.stdout.stop_passing_over();
        self.stderr.stop_passing_over();
    }

    /// Brings what has been printed to the disk.
    pub fn sync(&self) {
        self.stdout.sync();
        self.stderr.sync();
    }

    /// Bytes that wait for slow readers.
    pub fn queued(&self) -> usize {
        self.stdout.queued() + self.stderr.queued()
    }

    /// For each of our own streams, bytes that it was given so far, and how many of them have been written.
    pub fn progress(&self) -> [(u64, u64); 2] {
        [self.stdout.progress(), self.stderr.progress()]
    }

    /// The stream or file that cannot be written any more, and why.
    pub fn failed(&self) -> Option<(String, io::ErrorKind)> {
        let of = |what: &str, writer: &Writer| writer.failed().map(|kind| (format!("{what}: {kind}"), kind));
        of("standard output", &self.stdout)
            .or_else(|| of("standard error", &self.stderr))
            .or_else(|| self.failed.clone())
    }

    /// Waits until everything has been written, at most until `deadline` when there is one.
    pub fn finish(self, deadline: Option<Instant>) {
        self.stdout.finish(deadline);
        self.stderr.finish(deadline);
    }

    /// The job's file in `directory` is about to be written: returns the position of its output. From here on all
    /// output is noted.
    pub fn place(&mut self, directory: &Path) -> io::Result<Place> {
        let directory = Directory::open(directory, Trust::Groups)?;
        if !self.kept.counts {
            self.begin_counting(&directory)?;
        }
        let journal = Journal::create(&directory)?;
        let place = Place {
            journal: journal.number(),
            printed: self.counted().map(|(taken, _)| taken),
        };
        self.kept.journal = Some((directory, journal));
        Ok(place)
    }

    fn begin_counting(&mut self, directory: &Directory) -> io::Result<()> {
        let written = self.counted().map(|(_, written)| written);
        let tallies = printed::count(directory, self.kept.began, self.kept.before, written)?;
        self.count_in(Some(tallies));
        self.kept.counts = true;
        Ok(())
    }

    /// The job's file is written: earlier notes are not needed any more.
    pub fn forget_before(&self, place: Place) {
        if let Some((directory, _)) = &self.kept.journal {
            printed::forget_before(directory, place.journal);
        }
    }

    /// The job with files in `directory` goes on: writes the output since its file where it is missing.
    pub fn go_on(&mut self, directory: &Path, place: Place) -> io::Result<()> {
        let own = Directory::open(directory, Trust::Groups)?;
        let written = printed::written(&own, self.kept.began, place.printed);
        self.kept.before = written[0];
        self.begin_after(written, place.printed);
        // Before anything is written.
        self.begin_counting(&own)?;
        let now = std::time::Instant::now();
        printed::read(&own, place.journal, |entry| match entry {
            Entry::Printed { rank, stream, bytes } => self.take(rank, stream, &bytes, now),
            Entry::End { rank } => self.end(rank),
            Entry::EndAll => self.end_all(),
        })?;
        self.stop_passing_over();
        self.place(directory).map(drop)
    }
}

fn cannot_write(path: &Path, error: io::Error) -> StartError {
    StartError::Output {
        path: path.to_path_buf(),
        error,
    }
}
