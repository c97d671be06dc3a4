use super::*;
use crate::suspended::make_key;
use resurgo_store::own_directory::Trust;
use std::path::PathBuf;

fn directory(name: &str) -> (PathBuf, Directory) {
    let path = std::env::temp_dir().join(format!("resurgo-printed-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let directory = Directory::open(&path, Trust::Groups).unwrap();
    make_key(&directory).unwrap();
    (path, directory)
}

fn all(directory: &Directory, from: u64) -> Vec<Entry> {
    let mut entries = Vec::new();
    read(directory, from, |entry| entries.push(entry)).unwrap();
    entries
}

#[test]
fn what_was_printed_is_read_in_order_up_to_where_its_writer_was_killed() {
    let (path, directory) = directory("journal");
    let mut first = Journal::create(&directory).unwrap();
    first.append(3, 0, b"one").unwrap();
    let mut second = Journal::create(&directory).unwrap();
    second.append(1, 1, b"two\n").unwrap();
    second.append(1, 2, b"").unwrap();
    second.append(0, 3, b"").unwrap();
    let printed = |rank, stream, bytes: &[u8]| Entry::Printed {
        rank,
        stream,
        bytes: bytes.to_vec(),
    };
    let later = [
        printed(1, Stream::Stderr, b"two\n"),
        Entry::End { rank: 1 },
        Entry::EndAll,
    ];
    assert_eq!(all(&directory, 2), later);
    assert_eq!(all(&directory, 1).len(), 4);
    assert_eq!(all(&directory, 1)[0], printed(3, Stream::Stdout, b"one"));
    // The last entry is incomplete; and another was changed.
    let file = path.join("printed-2");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(all(&directory, 2), later[..2]);
    let mut changed = bytes.clone();
    changed[33] ^= 1;
    std::fs::write(&file, &changed).unwrap();
    assert_eq!(all(&directory, 2), []);
    forget_before(&directory, 2);
    assert_eq!(
        (numbers(&directory), Journal::create(&directory).unwrap().number()),
        (vec![2], 3)
    );
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_write_that_was_cut_off_is_known_by_the_length_of_the_file() {
    let (path, directory) = directory("written");
    let open = |name: &str| File::options().create(true).append(true).open(path.join(name)).unwrap();
    let (mut out, err) = (open("out"), open("err"));
    let now = |out: &File| written(&directory, Regular::of(out, &err), [90, 7]);
    out.write_all(b"what was there before").unwrap();
    assert_eq!((Regular::of(&out, &out), now(&out)), (None, [90, 7]));
    let [tally, other] = count(&directory, Regular::of(&out, &err), 100, [100, 0]).unwrap();
    out.write_all(b"12345").unwrap();
    tally.set(105, 0);
    other.set(9, 0);
    assert_eq!(now(&out), [105, 9]);
    tally.set(105, 10);
    out.write_all(b"678").unwrap();
    assert_eq!(now(&out), [108, 9]);
    // The later run writes elsewhere, or another program has written there since.
    assert_eq!(now(&open("other")), [105, 9]);
    out.write_all(b"12345678").unwrap();
    assert_eq!(now(&out), [105, 9]);
    // The machine was lost: the length of the file counts.
    let file = path.join(WRITTEN);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[KERNEL as usize] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!((now(&out), now(&open("other"))), ([116, 7], [90, 7]));
    std::fs::remove_dir_all(path).unwrap();
}
