//! Launchers, nodes, readers and several gc at once, at random moments.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::flaky::{Flaky, Memory};
use super::{Random, Scratch, about, seed};
use crate::{Error, GRACE, Generation, Place, Sender, Source, Store, fetch};

/// How long the test waits until enough of everything has happened.
const PATIENCE: Duration = Duration::from_secs(300);
/// Different contents of files: few, so that generations share, lose and find them again.
const CONTENTS: u64 = 12;

struct World {
    memory: Arc<dyn Place>,
    pool: PathBuf,
    scratch: Scratch,
    next: AtomicU64,
    is_over: AtomicBool,
    /// Generations whose commit has succeeded.
    committed: Mutex<BTreeSet<Generation>>,
    fetched: AtomicU64,
    swept: AtomicU64,
}

impl World {
    /// It has done more than so much of everything.
    fn has_done(&self, least: u64) -> bool {
        let counts = [&self.fetched, &self.swept].map(|count| count.load(Ordering::Relaxed));
        self.committed.lock().unwrap().len() as u64 > least && counts.into_iter().all(|count| count > least)
    }

    fn store(&self, random: &mut Random) -> Store {
        let flaky = Flaky::new(self.memory.clone(), random.next());
        flaky.delay(Duration::from_micros(1500));
        if random.below(2) == 0 {
            flaky.fail(60);
        }
        Store::new(Arc::new(flaky), None)
    }

    fn sources(&self, random: &mut Random) -> Vec<Source> {
        let mut wanted = BTreeSet::new();
        wanted.extend((0..=random.below(6)).map(|_| random.below(CONTENTS)));
        let source = |content: u64| Source {
            name: content.to_string(),
            file: File::open(self.pool.join(content.to_string())).unwrap(),
        };
        wanted.into_iter().map(source).collect()
    }

    /// A launcher with a node, which may die and begin anew.
    fn launch(&self, mut random: Random) {
        while !self.is_over.load(Ordering::Relaxed) {
            let store = self.store(&mut random);
            let mut sender = Sender::new(store.clone(), "job", random.below(3) as u32, None);
            for _ in 0..random.below(8) {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let Ok(generation) = store.begin("job", number) else {
                    break;
                };
                let sources = self.sources(&mut random);
                let Ok(note) = sender.send(generation, sources) else {
                    if random.below(2) == 0 {
                        let _ = store.abandon("job", generation);
                    }
                    continue;
                };
                // A slow one, and one that is killed at some moment of the end.
                if random.below(3) == 0 {
                    std::thread::sleep(Duration::from_millis(random.below(6)));
                }
                if random.below(6) == 0 {
                    let dying = Flaky::new(self.memory.clone(), random.next());
                    dying.end_after(random.below(5));
                    let _ = Store::new(Arc::new(dying), None).commit("job", generation, about(), vec![note]);
                    break;
                }
                if store.commit("job", generation, about(), vec![note]).is_ok() {
                    self.committed.lock().unwrap().insert(generation);
                    // It counts, until there is a newer one.
                    let there = Store::new(self.memory.clone(), None).generations("job").unwrap();
                    let newest = *self.committed.lock().unwrap().last().unwrap();
                    let is_old = newest > generation || there.iter().any(|other| *other > generation);
                    assert!(is_old || there.contains(&generation), "{generation} does not count");
                }
            }
        }
    }

    fn sweep(&self, mut random: Random) {
        while !self.is_over.load(Ordering::Relaxed) {
            let store = self.store(&mut random);
            let grace = match random.below(4) {
                0 => Duration::ZERO,
                1 => Duration::from_millis(random.below(20)),
                _ => GRACE,
            };
            if let Ok(swept) = store.gc("job", Some(1 + random.below(2) as usize), grace) {
                self.swept.fetch_add(swept.chunks, Ordering::Relaxed);
            }
        }
    }

    fn read(&self, name: &str) {
        let store = Store::new(self.memory.clone(), None);
        while !self.is_over.load(Ordering::Relaxed) {
            match self.read_newest(&store, name) {
                Ok(()) => _ = self.fetched.fetch_add(1, Ordering::Relaxed),
                Err(None) => {}
                Err(Some(error)) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    panic!("a generation that counts cannot be fetched: {error}");
                }
            }
        }
    }

    fn read_newest(&self, store: &Store, name: &str) -> Result<(), Option<Error>> {
        let newest = store.find("job", None).map_err(|_| None)?;
        let back = self.scratch.below(name);
        let fetched = fetch(store, "job", newest.number, &back);
        let files: Vec<PathBuf> = fs::read_dir(&back)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        for file in files {
            let content = fs::read(self.pool.join(file.file_name().unwrap())).unwrap();
            assert!(fs::read(&file).unwrap() == content);
            fs::remove_file(file).unwrap();
        }
        match fetched {
            Ok(_) => Ok(()),
            // It may be removed while it is read.
            Err(_) if !store.generations("job").unwrap().contains(&newest) => Err(None),
            Err(error) => Err(Some(error)),
        }
    }
}

#[test]
fn no_gc_removes_what_a_writer_relies_on() {
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok());
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let pool = scratch.below("pool");
    for content in 0..CONTENTS {
        fs::write(
            pool.join(content.to_string()),
            random.bytes(100 + 100 * content as usize),
        )
        .unwrap();
    }
    let world = World {
        memory: Arc::new(Memory::default()),
        pool,
        scratch,
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        committed: Mutex::default(),
        fetched: AtomicU64::new(0),
        swept: AtomicU64::new(0),
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (one, other) = (Random(random.next()), Random(random.next()));
            scope.spawn(|| world.launch(one));
            scope.spawn(|| world.sweep(other));
        }
        scope.spawn(|| world.read("back-1"));
        while !world.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            // A slow machine takes longer for the same.
            let is_enough = start.elapsed() >= Duration::from_secs_f64(seconds.unwrap_or(4.0)) && world.has_done(20);
            if is_enough || start.elapsed() > PATIENCE {
                break;
            }
        }
        world.is_over.store(true, Ordering::Relaxed);
    });
    let (fetched, swept) = (world.fetched.into_inner(), world.swept.into_inner());
    let committed = world.committed.into_inner().unwrap();
    println!(
        "{} committed, {fetched} fetched, {swept} chunks removed",
        committed.len()
    );
    assert!(
        committed.len() > 20 && fetched > 20 && swept > 20,
        "within {PATIENCE:?}"
    );
    let store = Store::new(world.memory.clone(), None);
    let left = store.generations("job").unwrap();
    for generation in &left {
        let back = world.scratch.below(&generation.to_string());
        fetch(&store, "job", generation.number, &back).unwrap();
    }
    // The newest that a launcher was told to be there, is there.
    let newest = *committed.last().unwrap();
    assert!(left.contains(&newest), "{newest}: {left:?}");
    // Without writers all that is not needed goes.
    store.gc("job", Some(1), Duration::ZERO).unwrap();
    store.gc("job", Some(1), Duration::ZERO).unwrap();
    let newest = store.find("job", None).unwrap();
    let part = store.manifest("job", newest).unwrap().parts[0].clone();
    let part = store.part("job", newest, &part).unwrap();
    let chunks = store.place().list("job/chunks").unwrap().len();
    println!("{} files, {chunks} chunks at the end", part.files.len());
    assert!(store.place().list("job/condemned").unwrap().len() <= 1);
}
