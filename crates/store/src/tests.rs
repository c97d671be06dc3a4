//! Whole generations, in places that fail.

mod flaky;
mod serving;
mod sweeping;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flaky::{Flaky, Memory};

use crate::{
    About, Dir, Error, Generation, Kind, Manifest, Place, Sender, Source, Store, StoreKey, everything, fetch,
    fetch_from,
};

/// A directory that goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("resurgo-store-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Scratch(path)
    }

    pub fn below(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// The seed of a test: `SEED`, or a new one, which is printed.
pub fn seed() -> u64 {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from_le_bytes(crate::random().unwrap()) | 1);
    println!("SEED={seed}");
    seed
}

pub fn about() -> About {
    About {
        unix_time: 0.0,
        title: "heat".to_string(),
        ranks: 2,
        protocol: "blocking".to_string(),
        more: serde_json::Value::Null,
    }
}

/// The files of a directory.
pub fn sources(directory: &Path) -> Vec<Source> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let source = |entry: fs::DirEntry| Source {
        name: entry.file_name().into_string().unwrap(),
        file: File::open(entry.path()).unwrap(),
    };
    entries.map(source).collect()
}

/// A generation of one node.
fn put(store: &Store, sender: &mut Sender, number: u64, files: &Path) -> Result<Manifest, Error> {
    let generation = store.begin("job", number)?;
    let note = sender.send(generation, sources(files))?;
    store.commit("job", generation, about(), vec![note])
}

fn contents(directory: &Path) -> Vec<(String, Vec<u8>, u32)> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let content = |entry: fs::DirEntry| {
        let mode = entry.metadata().unwrap().permissions().mode();
        (
            entry.file_name().into_string().unwrap(),
            fs::read(entry.path()).unwrap(),
            mode,
        )
    };
    let mut all: Vec<_> = entries.map(content).collect();
    all.sort();
    all
}

/// Everything that counts can be fetched, and is as it was.
fn check_all(store: &Store, scratch: &Scratch, expected: impl Fn(Generation) -> PathBuf) -> usize {
    let all = store.generations("job").unwrap();
    for generation in &all {
        let back = scratch.below("back");
        fs::remove_dir_all(&back).unwrap();
        let back = scratch.below("back");
        fetch(store, "job", generation.number, &back).unwrap();
        assert!(contents(&back) == contents(&expected(*generation)), "{generation}");
    }
    all.len()
}

/// Two directories with the files of two generations, which are alike.
fn files(scratch: &Scratch, random: &mut Random) -> [PathBuf; 2] {
    let (one, two) = (scratch.below("one"), scratch.below("two"));
    let large = random.bytes(5_000_000);
    fs::write(one.join("large"), &large).unwrap();
    fs::write(
        two.join("large"),
        [&large[..3_000_000], b"more", &large[3_000_000..]].concat(),
    )
    .unwrap();
    for directory in [&one, &two] {
        fs::write(directory.join("empty"), "").unwrap();
        fs::write(directory.join("zeros"), vec![0; 3_000_000]).unwrap();
        fs::write(directory.join("größe 3"), "x").unwrap();
        fs::set_permissions(directory.join("zeros"), fs::Permissions::from_mode(0o751)).unwrap();
    }
    [one, two]
}

#[test]
fn generations_come_back_and_only_changes_are_sent() {
    // Content with ends of chunks before and behind the change. With one in some hundred other contents there are none.
    let mut random = Random(1);
    for key in [None, Some(StoreKey::of(&[5; 32]))] {
        let scratch = Scratch::new();
        let files = files(&scratch, &mut random);
        let place = Dir::open(&scratch.0.join("place"), true).unwrap();
        let store = Store::new(Arc::new(place), key);
        let mut sender = Sender::new(store.clone(), "job", 0, None);
        put(&store, &mut sender, 1, &files[0]).unwrap();
        let first = sender.progress().put();
        assert!((5_000_000..5_200_000).contains(&first), "{first}");
        put(&store, &mut sender, 2, &files[1]).unwrap();
        // Another process, which has to ask what is there.
        let mut other = Sender::new(store.clone(), "job", 7, None);
        put(&store, &mut other, 3, &files[1]).unwrap();
        let second = sender.progress().put() - first;
        assert!((1..4_000_000).contains(&second), "{second}");
        assert_eq!((other.progress().put(), other.progress().known()), (0, 8_000_005));
        let expected = |generation: Generation| files[usize::from(generation.number > 1)].clone();
        assert_eq!(check_all(&store, &scratch, expected), 3);
        // Only the newest stays, and nothing that it does not need.
        let swept = store.gc("job", Some(1), crate::GRACE).unwrap();
        assert_eq!(swept.generations, 2);
        assert!(swept.chunks >= 1 && swept.waiting == 0, "{swept:?}");
        assert_eq!(check_all(&store, &scratch, expected), 1);
        assert_eq!(store.gc("job", Some(1), crate::GRACE).unwrap(), crate::Swept::default());
        // It shows each object that it removes.
        let folders = fs::read_dir(scratch.0.join("place/job")).unwrap().map(Result::unwrap);
        let all: usize = folders.map(|folder| fs::read_dir(folder.path()).unwrap().count()).sum();
        let progress = crate::Progress::default();
        store.remove_showing("job", &progress).unwrap();
        assert_eq!(progress.removed(), all as u64);
        assert!(store.jobs().unwrap().is_empty());
        assert!(contents(&scratch.0.join("place")).is_empty());
    }
}

#[test]
fn a_transfer_that_ends_at_any_step_leaves_nothing_half() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let files = files(&scratch, &mut random);
    let memory = Arc::new(Memory::default());
    let store = Store::new(memory.clone(), None);
    put(&store, &mut Sender::new(store.clone(), "job", 0, None), 1, &files[0]).unwrap();
    let expected = |generation: Generation| files[usize::from(generation.number > 1)].clone();
    for steps in 0.. {
        // All calls after so many fail, as those of a killed process never come.
        let flaky = Flaky::new(memory.clone(), random.next());
        flaky.end_after(steps);
        let dying = Store::new(Arc::new(flaky), None);
        let sent = put(
            &dying,
            &mut Sender::new(dying.clone(), "job", 0, None),
            2 + steps,
            &files[1],
        );
        let count = check_all(&store, &scratch, expected);
        if sent.is_ok() {
            assert!(steps > 8 && count == 2, "{steps} steps, {count} generations");
            break;
        }
        if count == 2 {
            // It counts, and the launcher had no time to hear so.
            store.gc("job", None, std::time::Duration::ZERO).unwrap();
            let newest = store.find("job", None).unwrap();
            store.remove_generation("job", newest).unwrap();
        }
        // What it has put is used again.
        assert_eq!(check_all(&store, &scratch, expected), 1);
    }
}

fn again<R>(work: &mut dyn FnMut() -> Result<R, Error>) -> R {
    let done = (0..1000).find_map(|_| work().ok());
    done.expect("nothing works")
}

#[test]
fn calls_that_fail_are_repeated() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let files = files(&scratch, &mut random);
    let memory = Arc::new(Memory::default());
    let flaky = Flaky::new(memory.clone(), random.next());
    flaky.fail(25);
    let store = Store::new(Arc::new(flaky), None);
    let mut sender = Sender::new(store.clone(), "job", 0, None);
    for number in 0..8 {
        let generation = again(&mut || store.begin("job", number));
        let note = again(&mut || sender.send(generation, sources(&files[number as usize % 2])));
        again(&mut || store.commit("job", generation, about(), vec![note.clone()]));
        again(&mut || store.gc("job", Some(2), crate::GRACE));
    }
    let store = Store::new(memory, None);
    let expected = |generation: Generation| files[generation.number as usize % 2].clone();
    assert_eq!(check_all(&store, &scratch, expected), 2);
}

#[test]
fn damage_is_named_and_the_next_place_is_read() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let files = files(&scratch, &mut random);
    for keys in [[None, None], [Some(StoreKey::of(&[1; 32])), None]] {
        let memories = [Arc::new(Memory::default()), Arc::new(Memory::default())];
        let mut stores = Vec::new();
        for (memory, key) in memories.iter().zip(keys) {
            let store = Store::new(memory.clone(), key);
            put(&store, &mut Sender::new(store.clone(), "job", 0, None), 4, &files[0]).unwrap();
            stores.push(store);
        }
        for number in 0..20 {
            let objects: Vec<String> = memories[0].objects();
            let hurt = objects[random.below(objects.len() as u64) as usize].clone();
            // Others are those of the reader itself: it has noted what is bad.
            if hurt.contains("/condemned/") {
                continue;
            }
            let before = memories[0].damage(&hurt, &mut random);
            let told = std::sync::Mutex::new(Vec::new());
            let tell = |error: &Error| told.lock().unwrap().push(error.to_string());
            let back = scratch.below(&format!("back-{number}"));
            fetch_from(&stores, "job", 4, &everything, &back, &tell).unwrap();
            assert!(contents(&back) == contents(&files[0]));
            fs::remove_dir_all(&back).unwrap();
            let back = scratch.below("alone");
            let alone = fetch(&stores[0], "job", 4, &back).unwrap_err();
            assert!(contents(&back).is_empty());
            assert!(alone.is_damaged() || alone.is_missing(), "{alone}");
            let last = hurt.rsplit('/').next().unwrap();
            let told = told.lock().unwrap();
            assert!(
                told.iter().any(|line| line.contains(last) || line.contains("job@4")),
                "{hurt}: {told:?}"
            );
            memories[0].set(&hurt, before);
        }
    }
}

#[test]
fn a_damaged_chunk_is_put_anew() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let files = files(&scratch, &mut random);
    let memory = Arc::new(Memory::default());
    let store = Store::new(memory.clone(), None);
    let mut sender = Sender::new(store.clone(), "job", 0, None);
    let first = put(&store, &mut sender, 1, &files[0]).unwrap();
    let chunks = memory
        .objects()
        .into_iter()
        .filter(|object| object.contains("/chunks/"));
    for chunk in chunks.collect::<Vec<_>>() {
        memory.damage(&chunk, &mut random);
    }
    assert!(crate::check(&store, "job", first.generation, &|_| {}, &Default::default()).is_err());
    put(&store, &mut sender, 2, &files[0]).unwrap();
    let back = scratch.below("back");
    fetch(&store, "job", 2, &back).unwrap();
    assert!(contents(&back) == contents(&files[0]));
}

#[test]
fn another_key_is_said_and_not_called_damage() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let files = files(&scratch, &mut random);
    let memory = Arc::new(Memory::default());
    let [one, two] = [1, 2].map(|number| Some(StoreKey::of(&[number; 32])));
    let store = Store::new(memory.clone(), one);
    put(&store, &mut Sender::new(store.clone(), "job", 0, None), 1, &files[0]).unwrap();
    for (key, word) in [(two, "another key"), (None, "give the key")] {
        let error = fetch(&Store::new(memory.clone(), key), "job", 1, &scratch.0).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_directory_says_what_is_wrong_with_it() {
    let scratch = Scratch::new();
    let error = |result: Result<Dir, Error>| result.err().unwrap();
    let missing = error(Dir::open(&scratch.0.join("no/where"), true));
    assert!(matches!(missing.kind, Kind::NoPlace(_)), "{missing}");
    let missing = error(Dir::open(&scratch.0.join("none"), false));
    assert!(matches!(missing.kind, Kind::NoPlace(_)), "{missing}");
    let open = scratch.below("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = error(Dir::open(&open, true));
    assert!(matches!(refused.kind, Kind::NoRights(_)), "{refused}");
    let dir = Dir::open(&scratch.0.join("place"), true).unwrap();
    for name in ["x", "../chunks/x", "a/b/c", "j/chunks/../x", "j/chunks/.x"] {
        assert!(
            matches!(dir.put(name, b"x").unwrap_err().kind, Kind::BadName(_)),
            "{name}"
        );
    }
    // What a killed writer has left is no object.
    dir.put("j/chunks/x", b"x").unwrap();
    fs::write(scratch.0.join("place/j/chunks/.tmp-1"), "half").unwrap();
    assert_eq!(dir.list("j/chunks").unwrap().len(), 1);
    dir.remove_all_temporaries().unwrap();
    assert!(!scratch.0.join("place/j/chunks/.tmp-1").exists());
    assert!(dir.get("j/chunks/y").unwrap_err().is_missing() && !dir.has("j/parts/x").unwrap());
}
